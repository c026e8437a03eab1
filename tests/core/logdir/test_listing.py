"""Listings: the live segments of a dump, and the reasons for skipped entries."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import pytest

from kafka_index.core.errors import InputError
from kafka_index.core.logdir.listing import Listing, list_dump

UUID = "0f3c1f6a9c9b4b0c8d7e6f5a4b3c2d1e"


def batch(base_offset: int, last_offset_delta: int = 0, magic: int = 2) -> bytes:
    size = 61 if magic >= 2 else 34
    body = struct.pack(">qiib", base_offset, size - 12, 0, magic)
    if magic >= 2:
        body += struct.pack(">Ihi", 0, 0, last_offset_delta)
    return body.ljust(size, b"\x07")


def name(base_offset: int, suffix: str = ".log") -> str:
    return f"{base_offset:020d}{suffix}"


def put(directory: Path, *names: str, data: bytes = b"") -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for each in names:
        (directory / each).write_bytes(data)


def listed(*inputs: Path | str, topics: str | None = None) -> Listing:
    pattern = None if topics is None else re.compile(topics)
    return list_dump([str(path) for path in inputs], topics=pattern)


def offsets(listing: Listing) -> list[int]:
    return [segment.base_offset for segment in listing.segments]


def reasons(listing: Listing) -> dict[str, str]:
    return {os.path.basename(each.path): each.reason for each in listing.skipped}


def test_listed_segments_are_sorted_and_have_size_and_time(tmp_path: Path) -> None:
    put(tmp_path / "b-0", name(5), name(0), data=b"12345")
    put(tmp_path / "a-10", name(7))
    put(tmp_path / "a-9", name(7))
    os.utime(tmp_path / "b-0" / name(0), ns=(1, 1_234_567_890_123_456_789))
    listing = listed(tmp_path)
    assert [(s.topic, s.partition, s.base_offset) for s in listing.segments] == [
        ("a", 9, 7), ("a", 10, 7), ("b", 0, 0), ("b", 0, 5),
    ]  # fmt: skip
    segment = listing.segments[2]
    assert segment.log_path == str(tmp_path / "b-0" / name(0))
    assert segment.log_size_bytes == 5
    assert segment.log_mtime_ns == 1_234_567_890_123_456_789
    assert segment.partition_directory == str(tmp_path / "b-0")
    assert listing.data_directories == [str(tmp_path)]


def test_partition_directory_is_accepted_as_input(tmp_path: Path) -> None:
    put(tmp_path / "a-b-3", name(0))
    listing = listed(f"{tmp_path}/a-b-3/")
    assert (listing.segments[0].topic, listing.segments[0].partition) == ("a-b", 3)
    assert listing.data_directories == [str(tmp_path)]


def test_relative_input_gives_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "t-0", name(0))
    monkeypatch.chdir(tmp_path / "t-0")
    assert listed(".").segments[0].log_path == str(tmp_path / "t-0" / name(0))


def test_data_directory_may_be_named_like_a_partition(tmp_path: Path) -> None:
    put(tmp_path / "data-1" / "t-0", name(0))
    listing = listed(tmp_path / "data-1")
    assert [segment.topic for segment in listing.segments] == ["t"]
    assert listing.data_directories == [str(tmp_path / "data-1")]


def test_directory_with_logs_is_a_partition_despite_other_files(tmp_path: Path) -> None:
    put(tmp_path / "t-0", name(0))
    put(tmp_path / "t-0" / "u-0", name(9))
    assert [segment.topic for segment in listed(tmp_path / "t-0").segments] == ["t"]


def test_logs_in_a_directory_without_a_partition_name_are_rejected(tmp_path: Path) -> None:
    put(tmp_path / "renamed", name(0))
    with pytest.raises(InputError, match="its name is not a partition name"):
        listed(tmp_path / "renamed")


def test_globs_match_data_directories_and_partitions_but_not_files(tmp_path: Path) -> None:
    put(tmp_path / "d1" / "t-0", name(0))
    put(tmp_path / "d2" / "t-1", name(0))
    put(tmp_path / "d2", "meta.properties")
    assert len(listed(f"{tmp_path}/d?").segments) == 2
    assert [s.partition for s in listed(f"{tmp_path}/d2/*").segments] == [1]


def test_path_that_exists_is_not_a_glob(tmp_path: Path) -> None:
    put(tmp_path / "d[1]" / "t-0", name(0))
    put(tmp_path / "d1" / "t-1", name(0))
    assert [s.partition for s in listed(tmp_path / "d[1]").segments] == [0]


def test_file_uri_is_a_path(tmp_path: Path) -> None:
    put(tmp_path / "my data" / "t-0", name(0))
    assert len(listed(f"file://{tmp_path}/my%20data").segments) == 1
    assert len(listed(f"file:{tmp_path}/my%20dat?").segments) == 1


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("ftp://host/logs", "scheme ftp://"),
        ("file://elsewhere/logs", "another host"),
        ("/no/such/directory", "No such file"),
        ("/no/such/*", "no path matches this glob"),
        ("", "path is empty"),
    ],
)
def test_missing_input_is_rejected(path: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        listed(path)


def test_file_is_rejected_as_input(tmp_path: Path) -> None:
    put(tmp_path / "t-0", name(0))
    with pytest.raises(InputError, match="not a directory"):
        listed(tmp_path / "t-0" / name(0))


def test_overlapping_inputs_list_a_partition_once(tmp_path: Path) -> None:
    put(tmp_path / "d" / "t-0", name(0))
    (tmp_path / "link").symlink_to(tmp_path / "d")
    listing = listed(tmp_path / "d", tmp_path / "d" / "t-0", tmp_path / "link", f"{tmp_path}/d/*")
    assert len(listing.segments) == 1
    assert listing.data_directories == [str(tmp_path / "d")]
    assert listing.skipped == []


def test_linked_partition_directories_are_followed(tmp_path: Path) -> None:
    put(tmp_path / "big" / "t-0", name(0))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "t-0").symlink_to(tmp_path / "big" / "t-0")
    listing = listed(tmp_path / "data")
    assert listing.segments[0].log_path == str(tmp_path / "data" / "t-0" / name(0))
    # A broker may run on both data directories.
    assert listing.data_directories == [str(tmp_path / "data"), str(tmp_path / "big")]


def test_directory_with_two_partition_names_is_listed_once(tmp_path: Path) -> None:
    put(tmp_path / "t-0", name(0))
    (tmp_path / "u-0").symlink_to(tmp_path / "t-0")
    listing = listed(tmp_path)
    assert len(listing.segments) == 1
    assert "the directory is the same as" in next(iter(reasons(listing).values()))


def test_segment_in_two_directories_is_rejected_with_both_paths(tmp_path: Path) -> None:
    put(tmp_path / "d1" / "t-0", name(5))
    put(tmp_path / "d2" / "t-0", name(5))
    with pytest.raises(InputError) as caught:
        listed(tmp_path / "d1", tmp_path / "d2")
    assert str(tmp_path / "d1" / "t-0") in str(caught.value)
    assert str(tmp_path / "d2" / "t-0") in str(caught.value)


def test_topics_pattern_must_match_the_full_name(tmp_path: Path) -> None:
    put(tmp_path / "orders-0", name(0))
    put(tmp_path / "orders.v2-0", name(0))
    assert [s.topic for s in listed(tmp_path, topics="orders").segments] == ["orders"]


def test_topic_pattern_without_a_match_lists_topics(tmp_path: Path) -> None:
    for topic in "abcdefg":
        put(tmp_path / f"{topic}-0", name(0))
    with pytest.raises(InputError, match=r"no topic matches 'x'.*a, b, c, d, e and 2 more"):
        listed(tmp_path, topics="x")


def test_empty_partition_next_to_another_is_accepted(tmp_path: Path) -> None:
    put(tmp_path / "empty-0")
    put(tmp_path / "t-0", name(0))
    listing = listed(tmp_path)
    assert len(listing.segments) == 1
    assert str(tmp_path / "empty-0") in listing.partition_directories


def test_input_without_segments_is_an_error_with_the_skipped_entries(tmp_path: Path) -> None:
    put(tmp_path / "t-0", name(0, ".log.deleted"))
    with pytest.raises(InputError, match=r"no segments found.*marked for deletion"):
        listed(tmp_path)


@pytest.mark.parametrize(
    ("mark", "reason"), [("delete", "deletion"), ("future", "being moved"), ("stray", "stray")]
)
def test_stray_and_deleted_partitions_are_skipped_with_a_reason(
    tmp_path: Path, mark: str, reason: str
) -> None:
    put(tmp_path / "t-0", name(0))
    put(tmp_path / f"t-1.{UUID}-{mark}", name(0))
    listing = listed(tmp_path)
    assert len(listing.segments) == 1
    assert reason in reasons(listing)[f"t-1.{UUID}-{mark}"]


def test_unknown_folders_are_reported_but_not_files(tmp_path: Path) -> None:
    hidden = [f".{name(0, '.index')}.1.2.tmp", f".{name(0, '.kafka-index')}"]
    known = ["partition.metadata", "leader-epoch-checkpoint"]
    put(tmp_path / "t-0", name(0), name(0, ".index"), name(0, ".snapshot"), *known, *hidden)
    put(tmp_path / "lost+found")
    put(tmp_path / "remote-log-index-cache")
    put(tmp_path, "meta.properties", ".lock")
    assert list(reasons(listed(tmp_path))) == ["lost+found"]


def test_snapshots_of_cluster_metadata_are_no_segments(tmp_path: Path) -> None:
    checkpoint = f"{name(8, '')}-0000000001.checkpoint"
    put(tmp_path / "__cluster_metadata-0", name(0), checkpoint, checkpoint + ".deleted")
    listing = listed(tmp_path)
    assert offsets(listing) == [0]
    assert listing.skipped == []


def test_logs_that_are_not_live_are_skipped_with_a_reason(tmp_path: Path) -> None:
    put(tmp_path / "t-0", name(0), "5.log", name(7, ".log.deleted"), name(9, ".log.cleaned"),
        "99999999999999999999.log")  # fmt: skip
    (tmp_path / "t-0" / name(11)).mkdir()
    (tmp_path / "t-0" / name(12)).symlink_to("nowhere")
    listing = listed(tmp_path)
    assert offsets(listing) == [0]
    assert reasons(listing) == {
        "5.log": "the file name is not a 20-digit offset",
        "99999999999999999999.log": "the file name is not a 20-digit offset",
        name(7, ".log.deleted"): "the file is marked for deletion",
        name(9, ".log.cleaned"): "the file belongs to an unfinished compaction or split",
        name(11): "not a file",
        name(12): "a broken link",
    }


def test_swapped_log_replaces_the_segments_of_its_offsets(tmp_path: Path) -> None:
    put(tmp_path / "t-0", name(0), name(10), name(20), name(30))
    put(tmp_path / "t-0", name(10, ".log.swap"), data=batch(10, 4) + batch(17, 12))
    listing = listed(tmp_path)
    assert [os.path.basename(s.log_path) for s in listing.segments] == [
        name(0), name(10, ".log.swap"), name(30),
    ]  # fmt: skip
    assert sorted(reasons(listing)) == [name(10), name(20)]
    assert "offsets 10 to 30 (exclusive)" in reasons(listing)[name(20)]


def test_several_swapped_logs_replace_all_from_the_lowest_to_the_highest(tmp_path: Path) -> None:
    put(tmp_path / "t-0", name(0), name(10), name(50), name(90), name(101))
    put(tmp_path / "t-0", name(10, ".log.swap"), data=batch(10))
    put(tmp_path / "t-0", name(90, ".log.swap"), data=batch(90, 10))
    listing = listed(tmp_path)
    assert offsets(listing) == [0, 10, 90, 101]
    assert sorted(reasons(listing)) == [name(10), name(50), name(90)]


def test_swap_file_of_old_messages_ends_after_their_largest_offset(tmp_path: Path) -> None:
    put(tmp_path / "t-0", name(0), name(5), name(6))
    put(tmp_path / "t-0", name(0, ".log.swap"), data=batch(0, magic=1) + batch(5, magic=0))
    assert offsets(listed(tmp_path)) == [0, 6]


def test_empty_swap_log_replaces_only_the_segment_of_its_offset(tmp_path: Path) -> None:
    put(tmp_path / "t-0", name(0), name(10), name(10, ".log.swap"))
    listing = listed(tmp_path)
    assert [os.path.basename(s.log_path) for s in listing.segments] == [
        name(0), name(10, ".log.swap"),
    ]  # fmt: skip


def test_incomplete_last_batch_of_a_swapped_log_is_not_counted(tmp_path: Path) -> None:
    put(tmp_path / "t-0", name(0), name(5), name(7))
    put(tmp_path / "t-0", name(0, ".log.swap"), data=batch(0, 5) + batch(6, 50)[:-1])
    assert offsets(listed(tmp_path)) == [0, 7]


def test_damaged_swap_file_ends_at_the_reported_damage(tmp_path: Path) -> None:
    put(tmp_path / "t-0", name(0), name(5), name(6))
    put(tmp_path / "t-0", name(0, ".log.swap"), data=batch(0, 5) + bytes(100))
    listing = listed(tmp_path)
    assert offsets(listing) == [0, 6]
    assert "the batch at byte 61 has the invalid length 0" in reasons(listing)[name(5)]


@pytest.mark.parametrize("cleaned", [".log.cleaned", ".timeindex.cleaned"])
def test_swap_files_at_or_above_the_lowest_cleaned_file_are_ignored(
    tmp_path: Path, cleaned: str
) -> None:
    put(tmp_path / "t-0", name(0), name(10), name(20), name(30, cleaned), name(20, cleaned))
    put(tmp_path / "t-0", name(10, ".log.swap"), data=batch(10))
    put(tmp_path / "t-0", name(20, ".log.swap"), data=batch(20))
    listing = listed(tmp_path)
    assert [os.path.basename(s.log_path) for s in listing.segments] == [
        name(0), name(10, ".log.swap"), name(20),
    ]  # fmt: skip
    assert "offset 20" in reasons(listing)[name(20, ".log.swap")]


def test_cleaned_file_at_offset_zero_invalidates_every_swap_file(tmp_path: Path) -> None:
    put(tmp_path / "t-0", name(0), name(5), name(0, ".index.cleaned"), name(9, ".index.cleaned"))
    put(tmp_path / "t-0", name(5, ".log.swap"), name(0, ".index.swap"), data=batch(5))
    listing = listed(tmp_path)
    assert [os.path.basename(s.log_path) for s in listing.segments] == [name(0), name(5)]
    assert sorted(reasons(listing)) == [name(0, ".index.swap"), name(5, ".log.swap")]


def test_swap_index_files_without_their_log_are_reported(tmp_path: Path) -> None:
    put(tmp_path / "t-0", name(0), name(0, ".index.swap"), name(5, ".timeindex.swap"))
    put(tmp_path / "t-0", name(9, ".log.swap"), name(9, ".index.swap"))
    result = reasons(listed(tmp_path))
    assert "already has its final name" in result[name(0, ".index.swap")]
    assert result[name(5, ".timeindex.swap")] == "the swapped index has no log"
    assert name(9, ".index.swap") not in result
