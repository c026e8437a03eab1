"""Segments as columns: the same segments, whichever way a directory is listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_index.layout.names import TopicPartition
from kafka_index.storage.directories import scan_directory
from kafka_index.storage.partition_files import list_partition
from kafka_index.storage.segment_table import PartitionSegments, SegmentTable, list_plain_partition
from tests.storage.test_listing import name, put

PARTITION = TopicPartition("t", 3)


def test_a_plain_directory_gives_the_segments_of_a_listing_entry_by_entry(tmp_path: Path) -> None:
    put(tmp_path / "t-3", name(9), name(0), name(2**63 - 1), data=b"123")
    put(tmp_path / "t-3", name(0, ".index"), "leader-epoch-checkpoint", "partition.metadata")
    directory = str(tmp_path / "t-3")
    found = list_plain_partition(PARTITION, directory)
    assert found is not None
    expected, _ = list_partition(PARTITION, scan_directory(directory))
    assert found.files() == sorted(expected, key=lambda each: each.base_offset)


@pytest.mark.parametrize(
    "odd",
    [
        name(5, ".log.swap"),
        name(5, ".index.cleaned"),
        name(5, ".log.deleted"),
        "5.log",
        "9" * 20 + ".log",
        "٣" * 20 + ".log",
    ],
)
def test_a_directory_with_an_odd_entry_is_listed_entry_by_entry(tmp_path: Path, odd: str) -> None:
    put(tmp_path / "t-3", name(0), odd)
    assert list_plain_partition(PARTITION, str(tmp_path / "t-3")) is None


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("elsewhere")])
def test_a_log_that_is_no_plain_file_is_listed_entry_by_entry(tmp_path: Path, make) -> None:  # type: ignore[no-untyped-def]
    put(tmp_path / "t-3", name(0))
    make(tmp_path / "t-3" / name(7))
    assert list_plain_partition(PARTITION, str(tmp_path / "t-3")) is None


def test_a_table_is_the_sequence_of_its_segments(tmp_path: Path) -> None:
    partitions = []
    for number, offsets in ((0, (0, 5)), (3, (7,)), (4, (1, 2, 3))):
        put(tmp_path / f"t-{number}", *map(name, offsets), data=b"12")
        found = list_plain_partition(TopicPartition("t", number), str(tmp_path / f"t-{number}"))
        assert found is not None
        partitions.append(found)
    table = SegmentTable(partitions)
    files = [file for each in partitions for file in each.files()]
    assert len(table) == 6
    assert list(table) == files
    assert [table[number] for number in range(-6, 6)] == files + files
    assert table[1:4] == files[1:4]
    assert table.total_bytes == 12
    again = SegmentTable.of(files)
    assert list(again) == files
    assert [each.partition for each in again.partitions] == [each.partition for each in partitions]
    assert isinstance(again.partitions[0], PartitionSegments)
