"""Plans over the columns of partitions: every segment once, in bins and waves of bounded size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from kafka_index.build import plan, plan_build, read_plan
from kafka_index.build.plan import partition_groups, plan_partitions, plan_waves
from kafka_index.execution.tasks import BIN
from kafka_index.layout.names import TopicPartition
from kafka_index.storage import SegmentFile, list_dump
from kafka_index.storage.segment_table import PartitionSegments, SegmentTable
from tests.storage.test_listing import batch, name, put


def columns(number: int, count: int, size_bytes: int = 100) -> PartitionSegments:
    """A partition of as many segments, of which there are no files."""
    return PartitionSegments(
        TopicPartition("t", number),
        f"/dump/t-{number}",
        np.arange(count, dtype=np.int64),
        np.full(count, size_bytes, np.int64),
        np.arange(count, dtype=np.int64),
    )


def in_order(segments: list[SegmentFile]) -> list[SegmentFile]:
    return sorted(segments, key=lambda each: (each.topic, each.partition, each.base_offset))


@pytest.mark.parametrize("make", [plan_build, plan_partitions])
@pytest.mark.parametrize("bins", [1, 3, 50])
def test_a_plan_has_each_segment_as_it_was_listed(tmp_path: Path, make, bins: int) -> None:  # type: ignore[no-untyped-def]
    put(tmp_path / "a-0", name(0), name(5), data=b"12345")
    put(tmp_path / "a-10", name(7))
    # A compaction that had finished: the log keeps its ending.
    put(tmp_path / "b-3", name(0), name(40))
    put(tmp_path / "b-3", name(10, ".log.swap"), data=batch(10) + batch(25, 4))
    listed = list_dump([str(tmp_path)], topics=None).segments

    planned = make(listed, bins=bins)

    assert in_order(list(read_plan(planned))) == list(listed)
    assert planned.column(BIN).to_pylist() == sorted(planned.column(BIN).to_pylist())
    assert set(planned.column(BIN).to_pylist()) <= set(range(bins))


def test_versions_of_objects_are_in_the_plan() -> None:
    files = [
        SegmentFile("t", 0, offset, f"s3://b/t-0/{name(offset)}", 1, 2, offset == 9, f"e{offset}")
        for offset in (0, 9)
    ]
    table = SegmentTable.of(files)
    assert table.partitions[0].versions == pa.array(["e0", "e9"])
    assert table.partitions[0].odd == ()
    assert list(read_plan(plan_build(table, bins=1))) == files


def test_a_partition_is_planned_in_one_bin() -> None:
    table = SegmentTable([columns(number, 10 * number + 1) for number in range(9)])
    planned = plan_partitions(table, bins=4)
    bins = (
        planned.select(["partition", BIN])
        .group_by("partition")
        .aggregate([(BIN, "count_distinct")])
    )
    assert set(bins.column(f"{BIN}_count_distinct").to_pylist()) == {1}


def test_waves_hold_whole_partitions_and_not_too_many_segments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan, "_WAVE_SEGMENTS", 1000)
    table = SegmentTable([columns(number, 300) for number in range(40)])

    waves = plan_waves(table, cores=2)

    assert sum(map(len, waves)) == len(table)
    assert max(map(len, waves)) < 1000 + 300
    partitions = [each.partition for wave in waves for each in wave.partitions]
    assert len(partitions) == len(set(partitions)) == 40


def test_the_largest_partitions_come_first() -> None:
    table = SegmentTable([columns(number, 2, size) for number, size in enumerate((5, 900, 70))])
    groups = partition_groups(table, max_bytes=100, max_segments=1000)
    assert [[each.partition.partition for each in group.partitions] for group in groups] == [
        [1],
        [2],
        [0],
    ]


def test_planning_makes_no_segment_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    table = SegmentTable([columns(number, 1000) for number in range(100)])
    monkeypatch.setattr(PartitionSegments, "files", lambda _: pytest.fail("objects were made"))
    for wave in plan_waves(table, cores=2):
        plan_build(wave, bins=7)
