"""Scanned segments on their way to the tasks that publish: nothing is lost, and a loss is seen."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pyarrow as pa

from kafka_index.build import BuildSettings, plan_build
from kafka_index.build.scan import stage_segments
from kafka_index.build.staged_segment import StagedSegment
from kafka_index.spark.staged_rows import (
    PUBLISHING_SCHEMA,
    STAGED_SCHEMA,
    plan_publishing,
    read_staged,
    staged_table,
    whole_partitions,
)
from kafka_index.storage import list_dump
from tests.support.transactional_logs import log_path, segments, write

PARTITIONS = ("a.b-c-0", "a.b-c-1", "a.b-d-0", "z-7")


def _staged(root: Path) -> tuple[pa.Table, list[StagedSegment]]:
    """A plan, and all of its segments: one is torn, one cannot be read."""
    for number, name in enumerate(PARTITIONS):
        write(root / name, segments(number + 2))
    log = log_path(root / PARTITIONS[0], 0)
    log.write_bytes(log.read_bytes()[:-5])
    listed = list_dump([str(root)], topics=None).segments
    log_path(root / PARTITIONS[1], 0).unlink()
    settings = BuildSettings()
    return plan_build(listed, bins=3), list(stage_segments(listed, settings, attempt_id="task7_1"))


def test_rows_hold_everything_of_staged_segments(tmp_path: Path) -> None:
    _, staged = _staged(tmp_path)
    assert {each.is_withheld for each in staged} == {False, True}
    assert {each.attempt_id for each in staged} == {None, "task7_1"}

    rows = staged_table(staged)

    assert rows.schema == STAGED_SCHEMA
    assert read_staged(rows) == staged


def test_a_partition_goes_to_one_bin_and_its_segments_come_back_in_order(tmp_path: Path) -> None:
    plan, staged = _staged(tmp_path)
    shuffled = staged_table(staged).take(pa.array(range(len(staged) - 1, -1, -1)))

    publishing = plan_publishing(shuffled, plan, bins=3)

    assert publishing.schema == PUBLISHING_SCHEMA
    bins = defaultdict(set)
    for row in publishing.to_pylist():
        bins[row["topic"], row["partition"]].add(row["bin"])
    assert all(len(numbers) == 1 for numbers in bins.values())
    assert set.union(*bins.values()) == {0, 1, 2}
    groups = list(whole_partitions(publishing.to_batches(max_chunksize=2)))
    assert len(groups) == len(PARTITIONS)
    for group in groups:
        offsets = [each.segment.base_offset for each in group]
        assert offsets == sorted(offsets)
    assert {repr(each) for group in groups for each in group} == set(map(repr, staged))


def test_a_partition_whose_rows_have_not_all_come_is_left_alone(tmp_path: Path) -> None:
    plan, staged = _staged(tmp_path)
    publishing = plan_publishing(staged_table(staged), plan, bins=1)

    for number in range(publishing.num_rows):
        lost = publishing.slice(number, 1).to_pylist()[0]
        rest = pa.concat_tables([publishing.slice(0, number), publishing.slice(number + 1)])
        names = {_name(group) for group in whole_partitions(rest.to_batches())}
        assert names == set(PARTITIONS) - {f"{lost['topic']}-{lost['partition']}"}


def test_a_partition_of_which_a_segment_was_never_staged_is_left_alone(tmp_path: Path) -> None:
    plan, staged = _staged(tmp_path)

    publishing = plan_publishing(staged_table(staged[1:]), plan, bins=2)

    names = {_name(group) for group in whole_partitions(publishing.to_batches())}
    assert names == set(PARTITIONS[1:])


def _name(group: list[StagedSegment]) -> str:
    return f"{group[0].segment.topic}-{group[0].segment.partition}"
