"""Listings of an object store by pages, compared with listings of a local copy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_index.core.errors import InputError
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.fs.paths import expand_input, refuse_overlap
from kafka_index.core.fs.registry import scan_directory, store_of
from kafka_index.core.logdir.listing import Listing, list_dump
from kafka_index.core.logdir.paged_listing import scan_directories
from kafka_index.core.logdir.partition_files import list_partition
from kafka_index.core.logdir.segment_table import (
    PartitionSegments,
    SegmentTable,
    list_plain_partition,
)
from tests.core.logdir.test_listing import batch, name, put
from tests.servers.faults import FaultProxy, fault_proxy
from tests.servers.s3 import S3Server
from tests.support.remote import new_bucket, upload


def found(listing: Listing, root: str) -> list[tuple[object, ...]]:
    segments = [
        (s.topic, s.partition, s.base_offset, s.log_path, s.log_size_bytes, s.is_last)
        for s in listing.segments
    ]
    skipped = [(each.path, each.reason) for each in listing.skipped]
    return [
        tuple(str(value).replace(root, "") for value in row)
        for row in (
            *segments,
            *skipped,
            sorted(listing.data_directories),
            sorted(listing.partition_directories),
        )
    ]


def test_remote_listing_equals_the_listing_of_a_local_copy(tmp_path: Path, bucket: str) -> None:
    put(tmp_path / "a-0", name(0), name(5), data=b"12345")
    put(tmp_path / "a-0", "0.log", name(3, ".log.deleted"))
    put(tmp_path / "a-10", name(7))
    put(tmp_path / "gone-0.0f3c1f6a9c9b4b0c8d7e6f5a4b3c2d1e-delete", name(0))
    put(tmp_path, "meta.properties", name(9))
    # A compaction that had finished: its batches end before offset 30.
    put(tmp_path / "swapped-3", name(0), name(20), name(40))
    put(tmp_path / "swapped-3", name(10, ".log.swap"), data=batch(10) + batch(25, 4))
    remote = upload(tmp_path, f"{bucket}/some/dump")
    assert found(list_dump([remote], topics=None), remote) == found(
        list_dump([str(tmp_path)], topics=None), str(tmp_path)
    )


def test_listed_object_has_its_version(tmp_path: Path, bucket: str) -> None:
    put(tmp_path / "a-0", name(0), data=b"12345")
    remote = upload(tmp_path, bucket)
    (segment,) = list_dump([remote], topics=None).segments
    assert segment.log_version == store_of(remote).info(segment.log_path).version != ""


#: Names of files that are no segment's, however alike.
_ODD_NAMES = (
    name(5, ".log.swap"),
    name(5, ".index.cleaned"),
    name(5, ".log.deleted"),
    "5.log",
    "9" * 20 + ".log",
    "٣" * 20 + ".log",
)


@pytest.mark.parametrize(
    "odd",
    [
        *_ODD_NAMES,
        f"{name(5)}/inside",
        f"{name(5, '.log.swap')}/inside",
        "deep/folder/" + name(7),
    ],
)
def test_unusual_object_names_are_listed_as_in_a_local_directory(
    tmp_path: Path, bucket: str, odd: str
) -> None:
    put(tmp_path / "a-0", name(0), name(9), name(2**63 - 1), "leader-epoch-checkpoint", data=b"12")
    put((tmp_path / "a-0" / odd).parent, Path(odd).name)
    put(tmp_path / "a-1", name(3))
    remote = upload(tmp_path, f"{bucket}/dump")
    assert found(list_dump([remote], topics=None), remote) == found(
        list_dump([str(tmp_path)], topics=None), str(tmp_path)
    )


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(s3.endpoint) as between:
        yield between


def test_partitions_share_the_pages_of_a_listing(
    s3: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    for partition in range(60):
        offsets = range(0, 400, 10)
        put(tmp_path / f"a-{partition}", *map(name, offsets), data=b"12345")
    with new_bucket(s3.behind(proxy.endpoint)) as bucket:
        remote = upload(tmp_path, f"{bucket}/dump")
        proxy.clear()
        listing = list_dump([remote], topics=None)
        # Is it a directory, which partitions are in it, and 2,400 objects.
        assert len(proxy.gets()) <= 3 + 3
        assert len(listing.segments) == 2400
        assert all(segment.log_version for segment in listing.segments)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("dump/a-0", ["dump/a-0"]),
        ("dump/a-0/", ["dump/a-0"]),
        ("dump/a-*", ["dump/a-0", "dump/a-1", "dump/a-[x]"]),
        ("*/b-[0-9]", ["dump/b-0"]),
        ("dump/a-[x]", ["dump/a-[x]"]),
        ("**/b-0", ["dump/b-0", "dump/deep/b-0"]),
    ],
)
def test_globs_match_prefixes(
    tmp_path: Path, bucket: str, pattern: str, expected: list[str]
) -> None:
    for directory in ("a-0", "a-1", "a-[x]", "b-0", ".a-2", "deep/b-0"):
        put(tmp_path / "dump" / directory, name(0))
    upload(tmp_path, bucket)
    assert expand_input(f"{bucket}/{pattern}") == [f"{bucket}/{path}" for path in expected]


@pytest.mark.parametrize(
    ("path", "message"),
    [("gone", "no such file or directory"), ("gone-*", "no path matches this glob")],
)
def test_prefix_without_objects_does_not_exist(bucket: str, path: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list_dump([f"{bucket}/{path}"], topics=None)


@pytest.mark.parametrize("output", ["dump", "dump/t-0", ""])
def test_output_that_overlaps_the_input_is_rejected(
    tmp_path: Path, bucket: str, output: str
) -> None:
    put(tmp_path / "t-0", name(0))
    upload(tmp_path, f"{bucket}/dump")
    target = f"{bucket}/{output}".rstrip("/").replace("s3://", "s3a://")
    with pytest.raises(InputError, match="the output"):
        refuse_overlap(target, target, [f"{bucket}/dump"])


COUNT = 30


def entries(directories: list[str]) -> dict[str, list[tuple[str, bool]]]:
    return {
        directory: sorted((entry.path, entry.is_directory()) for entry in found)
        for directory, found in scan_directories(directories)
    }


def test_directories_of_a_bucket_share_requests(s3: S3Server, tmp_path: Path) -> None:
    for number in range(COUNT):
        folder = tmp_path / f"topic-{number}" / "inner"
        folder.mkdir(parents=True)
        (folder.parent / "a.index").touch()
        (folder / "b").touch()
    with fault_proxy(s3.endpoint) as proxy, new_bucket(s3.behind(proxy.endpoint)) as bucket:
        root = upload(tmp_path, f"{bucket}/dump")
        directories = [f"{root}/topic-{number}" for number in range(COUNT)]
        proxy.clear()

        most = entries(directories)
        assert len(proxy.requests) <= 4
        few = entries(directories[:3])

    assert few == {directory: most[directory] for directory in directories[:3]}
    assert most == {
        directory: [(f"{directory}/a.index", False), (f"{directory}/inner", True)]
        for directory in directories
    }


def test_missing_directory_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "a-0").mkdir()

    assert entries([str(tmp_path / "a-0"), str(tmp_path / "b-0")]) == {str(tmp_path / "a-0"): []}


PARTITION = TopicPartition("t", 3)


def test_fast_listing_equals_a_listing_entry_by_entry(tmp_path: Path) -> None:
    put(tmp_path / "t-3", name(9), name(0), name(2**63 - 1), data=b"123")
    put(tmp_path / "t-3", name(0, ".index"), "leader-epoch-checkpoint", "partition.metadata")
    directory = str(tmp_path / "t-3")
    actual = list_plain_partition(PARTITION, directory)
    assert actual is not None
    expected, _ = list_partition(PARTITION, scan_directory(directory))
    assert actual.files() == sorted(expected, key=lambda each: each.base_offset)


@pytest.mark.parametrize("odd", _ODD_NAMES)
def test_directory_with_a_transient_file_is_listed_entry_by_entry(tmp_path: Path, odd: str) -> None:
    put(tmp_path / "t-3", name(0), odd)
    assert list_plain_partition(PARTITION, str(tmp_path / "t-3")) is None


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("elsewhere")])
def test_directory_with_an_irregular_log_is_listed_entry_by_entry(tmp_path: Path, make) -> None:  # type: ignore[no-untyped-def]
    put(tmp_path / "t-3", name(0))
    make(tmp_path / "t-3" / name(7))
    assert list_plain_partition(PARTITION, str(tmp_path / "t-3")) is None


def test_segment_table_iterates_over_its_segments(tmp_path: Path) -> None:
    partitions = []
    for number, offsets in ((0, (0, 5)), (3, (7,)), (4, (1, 2, 3))):
        put(tmp_path / f"t-{number}", *map(name, offsets), data=b"12")
        result = list_plain_partition(TopicPartition("t", number), str(tmp_path / f"t-{number}"))
        assert result is not None
        partitions.append(result)
    table = SegmentTable(partitions)
    files = [file for partition in partitions for file in partition.files()]
    assert len(table) == 6
    assert list(table) == files
    assert [table[number] for number in range(-6, 6)] == files + files
    assert table[1:4] == files[1:4]
    assert table.total_bytes == 12
    second_files = SegmentTable.from_files(files)
    assert list(second_files) == files
    assert [partition.partition for partition in second_files.partitions] == [
        partition.partition for partition in partitions
    ]
    assert isinstance(second_files.partitions[0], PartitionSegments)
