"""Plans over the columns of partitions: each segment once, in bounded groups and rounds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.commands.build import log_build as module
from kafka_index.commands.build.log_build import group_partitions, partition_groups, plan_rounds
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.logdir.segment_table import PartitionSegments, SegmentTable


def columns(number: int, count: int, size_bytes: int = 100) -> PartitionSegments:
    """A partition of as many segments, of which there are no files."""
    return PartitionSegments(
        TopicPartition("t", number),
        f"/dump/t-{number}",
        np.arange(count, dtype=np.int64),
        np.full(count, size_bytes, np.int64),
        np.arange(count, dtype=np.int64),
    )


@given(st.lists(st.integers(1, 9), max_size=30), st.integers(1, 12))
def test_task_groups_contain_complete_partitions_in_order(lengths: list[int], most: int) -> None:
    groups = [lengths[group] for group in group_partitions(lengths, max_segments=most)]

    assert [length for group in groups for length in group] == lengths
    for group, following in pairwise([*groups, [most + 1]]):
        assert sum(group) <= most or len(group) == 1
        assert sum(group) + following[0] > most


def test_build_rounds_contain_complete_partitions_and_bounded_segments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ROUND_SEGMENTS", 1000)
    table = SegmentTable([columns(number, 300) for number in range(40)])

    rounds = [round_.segments for round_ in plan_rounds(table)]

    assert sum(map(len, rounds)) == len(table)
    assert max(map(len, rounds)) < 1000 + 300
    partitions = [partition.partition for round_ in rounds for partition in round_.partitions]
    assert len(partitions) == len(set(partitions)) == 40


def test_build_plan_starts_with_the_largest_partitions() -> None:
    table = SegmentTable([columns(number, 2, size) for number, size in enumerate((5, 900, 70))])
    groups = partition_groups(table, max_bytes=100, max_segments=1000)
    assert [
        [partition.partition.partition for partition in group.partitions] for group in groups
    ] == [
        [1],
        [2],
        [0],
    ]


def test_planning_creates_no_segment_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    table = SegmentTable([columns(number, 1000) for number in range(100)])
    monkeypatch.setattr(PartitionSegments, "files", lambda _: pytest.fail("objects were made"))
    assert sum(len(round_.segments) for round_ in plan_rounds(table)) == len(table)
