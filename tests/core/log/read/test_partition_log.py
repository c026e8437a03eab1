"""Lookups in whole partitions against a look at every batch and record."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings

from kafka_index.commands.build.log_build import build_segment_files
from kafka_index.core.errors import InputError
from kafka_index.core.format.config import IndexConfig
from kafka_index.core.log.choices import Resolve
from kafka_index.core.log.read.answers import NO_INDEX
from kafka_index.core.log.read.partition_log import PartitionLog
from tests.support.partition_model import PartitionModel
from tests.support.partitions import (
    DIRECTORY,
    PLAIN,
    Partition,
    Row,
    ask_offset,
    ask_offsets,
    ask_times,
    faults,
    message,
    partition,
    partitions,
    written,
)


def assert_equal_to_model(log: PartitionLog, partition: Partition, resolve: Resolve) -> None:
    model = PartitionModel(partition)
    offsets, times = partition.offsets, partition.times
    by_offset = ask_offsets(log, offsets, resolve)
    by_time = ask_times(log, times, resolve)
    assert dict(zip(offsets, by_offset, strict=True)) == {
        offset: model.offset(offset, resolve) for offset in offsets
    }
    assert dict(zip(times, by_time, strict=True)) == {
        time: model.time(time, resolve) for time in times
    }


# ---------------------------------------------------------------------- any sound partition


@pytest.mark.parametrize("resolve", Resolve)
@given(partition=partitions())
def test_answers_equal_a_full_scan(resolve: Resolve, partition: Partition) -> None:
    with written(partition) as log:
        assert_equal_to_model(log, partition, resolve)
        assert faults(log) == []


@pytest.mark.parametrize("resolve", Resolve)
@settings(max_examples=50)
@given(partition=partitions())
def test_answers_without_index_files_are_equal(resolve: Resolve, partition: Partition) -> None:
    with written(partition, indexes=False) as log:
        assert_equal_to_model(log, partition, resolve)
        assert {finding.kind for finding in faults(log)} <= {NO_INDEX}


@settings(max_examples=6)
@given(partition=partitions())
def test_answers_with_built_indexes_are_equal(partition: Partition) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = partition.write(Path(folder) / "dump", indexes=False)
        target = Path(folder) / "indexes" / DIRECTORY
        target.mkdir(parents=True)
        config = IndexConfig(index_interval_bytes=partition.interval)
        for segment in partition.segments:
            build_segment_files(directory / f"{segment.name}.log", target, config=config)
        with partition.open(directory, indexes=target.parent) as log:
            for resolve in Resolve:
                assert_equal_to_model(log, partition, resolve)
            assert faults(log) == []


def test_empty_queries_have_empty_answers(tmp_path: Path) -> None:
    with PLAIN.open(PLAIN.write(tmp_path)) as log:
        for resolve in Resolve:
            assert ask_offsets(log, [], resolve) == []
            assert ask_times(log, [], resolve) == []


# ------------------------------------------------------------------------------------ scalars


@settings(max_examples=60)
@given(plain=partitions(bounded=False))
def test_single_offset_lookup_equals_bulk_lookup(plain: Partition) -> None:
    with written(plain) as log:
        asked = [one for one in plain.offsets if one >= 0]
        for offset, row in zip(asked, ask_offsets(log, asked, Resolve.BATCH), strict=True):
            assert _scalar(log, offset) == _of_row(row), offset


def _scalar(log: PartitionLog, offset: int) -> tuple[int, ...] | str | None:
    try:
        return log.offset_to_position(offset)
    except InputError:
        return "out of range"


def _of_row(row: Row) -> tuple[int | None, ...] | str | None:
    if row.status in ("before_log_start", "after_log_end"):
        return "out of range"
    if row.status in ("log_end", "no_record_at_or_after"):
        return None
    return row.batch_base_offset, row.batch_position_bytes, row.batch_size_bytes


# ------------------------------------------------------------------------------------- opening


def test_partition_returns_its_name_and_end_offsets(tmp_path: Path) -> None:
    plain = Partition(PLAIN.segments, log_start_offset=3, high_watermark=9)
    with plain.open(plain.write(tmp_path)) as log:
        assert (log.topic, log.partition) == ("topic", 0)
        assert (log.log_start_offset, log.log_end_offset, log.end_offset) == (3, 18, 9)
        assert [segment.base_offset for segment in log.segments] == [0, 6, 12]


def test_folder_that_is_not_a_partition_is_not_opened(tmp_path: Path) -> None:
    PLAIN.write(tmp_path)
    with pytest.raises(InputError, match="not a partition directory"):
        PartitionLog.open(tmp_path)


def test_closed_partition_opens_again(tmp_path: Path) -> None:
    with PLAIN.open(PLAIN.write(tmp_path)) as log:
        assert ask_offset(log, 7).found_offset == 7
        log.close()
        assert ask_offset(log, 7).found_offset == 7


def test_epoch_of_a_message_without_one_is_null(tmp_path: Path) -> None:
    plain = partition((0, [message(0, 1, 5)]))
    with plain.open(plain.write(tmp_path)) as log:
        assert ask_offset(log, 0).found_leader_epoch is None
