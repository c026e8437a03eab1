"""One segment: questions one by one and in bulk, whatever partition it is from."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_index.core.errors import CorruptLogError, InputError
from kafka_index.core.format.config import IndexConfig
from kafka_index.core.log.choices import Resolve
from kafka_index.core.log.read.log_segment import LogSegment
from tests.support.partition_model import PartitionModel
from tests.support.partitions import (
    INT64_MAX,
    INT64_MIN,
    Partition,
    Row,
    Segment,
    batches_with_timestamps,
    message,
    of_records,
    partition,
    partitions,
    rows_of,
    segment_file,
    wrapper,
)

FAR = (INT64_MIN, INT64_MIN + 1, -1, INT64_MAX - 1, INT64_MAX)
GZIP = 1


@contextmanager
def opened(
    plain: Partition, number: int = 0, *, indexes: bool = True, is_last: bool = True
) -> Iterator[LogSegment]:
    """One of the segments of a partition."""
    with tempfile.TemporaryDirectory() as folder:
        path = plain.write(Path(folder), indexes=indexes) / f"{plain.segments[number].name}.log"
        config = IndexConfig(index_interval_bytes=plain.interval)
        with LogSegment(segment_file(path, is_last=is_last), config=config) as segment:
            yield segment


def look_up(segment: LogSegment, offsets: list[int], resolve: Resolve) -> list[Row]:
    return rows_of(segment.lookup_offsets(np.array(offsets, np.int64), resolve=resolve))


def look_up_times(
    segment: LogSegment, times: list[int], resolve: Resolve, starting_offset: int | None = None
) -> list[Row]:
    return rows_of(
        segment.lookup_timestamps(
            np.array(times, np.int64), starting_offset=starting_offset, resolve=resolve
        )
    )


# ----------------------------------------------------------------------- one by one and in bulk


@settings(max_examples=80)
@given(plain=partitions(), data=st.data())
def test_single_offset_lookup_equals_bulk_lookup(plain: Partition, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(plain.segments) - 1))
    offsets = [*plain.offsets, *FAR]
    with opened(plain, number) as segment:
        for offset, row in zip(offsets, look_up(segment, offsets, Resolve.BATCH), strict=True):
            expected = (row.batch_base_offset, row.batch_position_bytes, row.batch_size_bytes)
            actual = segment.offset_to_position(offset)
            assert actual == (expected if row.status == "found" else None), offset


@settings(max_examples=80)
@given(plain=partitions(), data=st.data())
def test_single_timestamp_lookup_equals_bulk_lookup(plain: Partition, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(plain.segments) - 1))
    starting = data.draw(st.sampled_from(plain.offsets))
    times = [*plain.times, *FAR[1:]]
    with opened(plain, number) as segment:
        rows = look_up_times(segment, times, Resolve.RECORD, starting)
        for time, row in zip(times, rows, strict=True):
            expected = (row.found_timestamp_ms, row.found_offset, row.found_leader_epoch)
            actual = segment.find_offset_by_timestamp(time, starting)
            assert actual == (expected if row.status == "found" else None), time


@pytest.mark.parametrize("resolve", [Resolve.BATCH, Resolve.RECORD])
@settings(max_examples=50)
@given(plain=partitions(start_inside=False, bounded=False), indexes=st.booleans())
def test_segment_answers_like_a_partition_with_one_segment(
    plain: Partition, resolve: Resolve, *, indexes: bool
) -> None:
    alone = Partition(plain.segments[:1], plain.interval, plain.segments[0].base_offset)
    model = PartitionModel(alone)
    within = [
        offset
        for offset in plain.offsets
        if alone.log_start_offset <= offset < alone.log_end_offset
    ]
    times = [time_ms for time_ms in plain.times if time_ms >= 0]
    with opened(alone, indexes=indexes) as segment:
        assert look_up(segment, within, resolve) == [model.offset(one, resolve) for one in within]
        assert look_up_times(segment, times, resolve) == [
            model.time(time_ms, resolve) for time_ms in times
        ]


# ----------------------------------------------------------------------------- single queries

PLAIN = partition(
    (
        5,
        [
            batches_with_timestamps(5, 50, 51),
            batches_with_timestamps(7, 70, 60),
            batches_with_timestamps(12, 65),
        ],
    )
)
SIZES = [len(batch.data) for batch in PLAIN.segments[0].batches]


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (INT64_MIN, (5, 0)),
        (4, (5, 0)),
        (6, (5, 0)),
        (7, (7, SIZES[0])),
        (8, (7, SIZES[0])),
        (9, (12, sum(SIZES[:2]))),
    ],
)
def test_offset_lookup_returns_its_batch_or_the_next(
    offset: int, expected: tuple[int, int]
) -> None:
    with opened(PLAIN) as segment:
        actual = segment.offset_to_position(offset)
        assert actual is not None
        assert actual[:2] == expected
        assert actual.size == SIZES[[5, 7, 12].index(actual.offset)]


def test_lookup_after_the_last_offset_finds_no_batch() -> None:
    with opened(PLAIN) as segment:
        assert segment.offset_to_position(13) is None
        assert segment.offset_to_position(INT64_MAX) is None


def test_compressed_old_message_has_the_offset_of_its_first_record() -> None:
    packed = wrapper(3, 1, [(0, 10), (2, 30)], GZIP)
    with opened(partition((3, [packed]))) as segment:
        assert segment.offset_to_position(4) == (3, 0, len(packed.data))


@pytest.mark.parametrize(
    ("time", "starting", "expected"),
    [
        (INT64_MIN + 1, 0, (50, 5, 0)),
        (51, 0, (51, 6, 0)),
        (52, 0, (70, 7, 0)),
        (52, 8, (60, 8, 0)),
        (61, 8, (65, 12, 0)),
        (71, 0, None),
        (50, 13, None),
    ],
)
def test_timestamp_lookup_returns_the_first_record_from_an_offset(
    time: int, starting: int, expected: tuple[int, int, int] | None
) -> None:
    with opened(PLAIN) as segment:
        assert segment.find_offset_by_timestamp(time, starting) == expected


def test_message_without_leader_epoch_has_none() -> None:
    with opened(partition((0, [message(0, 1, 5)]))) as segment:
        assert segment.find_offset_by_timestamp(5, 0) == (5, 0, None)


def test_timestamp_lookup_searches_the_complete_segment_by_default() -> None:
    with opened(PLAIN) as segment:
        assert [
            time_ms.found_offset for time_ms in look_up_times(segment, [0], Resolve.RECORD)
        ] == [5]


@pytest.mark.parametrize("indexes", [True, False], ids=["indexed", "unindexed"])
def test_segment_returns_largest_timestamp_and_end_offset(*, indexes: bool) -> None:
    with opened(PLAIN, indexes=indexes) as segment:
        assert tuple(segment.largest) == (70, 8, True)
        assert segment.next_offset == 13
        assert segment.damage is None


@pytest.mark.parametrize(
    "plain",
    [partition((9, [])), partition((9, [message(9, 0)])), partition((9, [of_records(9, [])]))],
    ids=["empty", "magic 0", "no records"],
)
def test_segment_without_timestamps_has_no_largest_timestamp(plain: Partition) -> None:
    with opened(plain) as segment:
        assert segment.largest[:2] == (-1, 9)
        assert segment.find_offset_by_timestamp(0, 0) is None


def test_empty_segment_ends_at_its_base_offset() -> None:
    with opened(partition((9, []))) as segment:
        assert segment.next_offset == 9
        assert segment.offset_to_position(9) is None


# --------------------------------------------------------------------------------------- damage

LOG = PLAIN.segments[0].log
TORN = PLAIN.replaced(0, LOG[:-3])
BROKEN = PLAIN.replaced(0, LOG[: SIZES[0] + 8] + bytes(4) + LOG[SIZES[0] + 12 :])


@pytest.mark.parametrize("is_last", [True, False], ids=["last", "earlier"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda segment: segment.offset_to_position(8),
        lambda segment: segment.find_offset_by_timestamp(60, 0),
    ],
    ids=["offset", "timestamp"],
)
def test_single_lookup_that_reads_damage_raises_an_error_with_position(
    ask: Callable[[LogSegment], object], *, is_last: bool
) -> None:
    with opened(BROKEN, indexes=False, is_last=is_last) as segment:
        with pytest.raises(CorruptLogError, match="bad_length") as caught:
            ask(segment)
        assert caught.value.position_bytes == SIZES[0]
        assert str(caught.value.path).endswith(f"{5:020d}.log")


def test_single_lookup_that_avoids_damage_is_answered() -> None:
    with opened(BROKEN, indexes=False) as segment:
        assert segment.offset_to_position(6) == (5, 0, SIZES[0])


def test_last_segment_ends_before_its_torn_tail() -> None:
    with opened(TORN) as segment:
        assert (segment.next_offset, segment.damage) == (9, None)
        assert segment.offset_to_position(12) is None


def test_torn_tail_of_an_earlier_segment_is_damage() -> None:
    with opened(TORN, is_last=False) as segment:
        assert segment.damage is not None
        with pytest.raises(CorruptLogError):
            segment.offset_to_position(12)


def test_bulk_lookup_reports_damage_as_a_status() -> None:
    with opened(BROKEN, indexes=False) as segment:
        rows = look_up(segment, [12, 6, 8, 13], Resolve.BATCH)
        assert [row.status for row in rows] == ["unreadable", "found", "unreadable", "unreadable"]


# -------------------------------------------------------------------------------------- opening


def test_segment_is_opened_by_the_path_of_its_log(tmp_path: Path) -> None:
    path = PLAIN.write(tmp_path) / f"{5:020d}.log"
    with LogSegment.open(path) as segment:
        assert (segment.file.topic, segment.file.partition, segment.base_offset) == ("topic", 0, 5)
        assert segment.offset_to_position(7) == (7, *_place(1))


def _place(row: int) -> tuple[int, int]:
    return sum(SIZES[:row]), SIZES[row]


def test_log_in_any_folder_can_be_opened(tmp_path: Path) -> None:
    path = tmp_path / f"{5:020d}.log"
    path.write_bytes(LOG)
    with LogSegment.open(path) as segment:
        assert (segment.file.topic, segment.file.partition) == ("", -1)
        assert segment.next_offset == 13


def test_index_files_of_a_segment_are_read_from_another_folder(tmp_path: Path) -> None:
    directory = PLAIN.write(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for path in directory.glob("*index"):
        path.rename(elsewhere / path.name)
    with LogSegment.open(directory / f"{5:020d}.log", index_directory=elsewhere) as segment:
        assert segment.offset_to_position(12) == (12, *_place(2))
        assert segment.indexes.offset_index.path == str(elsewhere / f"{5:020d}.index")


@pytest.mark.parametrize("name", [f"{5:020d}.log", "5.log"])
def test_file_that_is_not_a_log_cannot_be_opened(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError):
        LogSegment.open(tmp_path / name)


def test_closed_segment_is_reopened_by_a_lookup() -> None:
    with opened(PLAIN) as segment:
        before = segment.offset_to_position(7)
        segment.close()
        assert segment.offset_to_position(7) == before


def test_log_that_changed_since_it_was_closed_is_rejected(tmp_path: Path) -> None:
    path = PLAIN.write(tmp_path) / f"{5:020d}.log"
    with LogSegment.open(path) as segment:
        segment.offset_to_position(7)
        segment.close()
        path.write_bytes(LOG + batches_with_timestamps(20, 99).data)
        with pytest.raises(InputError, match="the log changed"):
            segment.offset_to_position(7)


def test_lookup_changes_no_file(tmp_path: Path) -> None:
    directory = PLAIN.write(tmp_path)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in directory.iterdir()}
    with LogSegment.open(directory / f"{5:020d}.log") as segment:
        look_up(segment, [5, 12], Resolve.RECORD)
        look_up_times(segment, [60], Resolve.RECORD)
    after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in directory.iterdir()}
    assert after == before


def test_long_segments_are_searched_by_their_entries() -> None:
    batches = tuple(batches_with_timestamps(2 * row, 10 * row, 10 * row + 5) for row in range(2000))
    with opened(Partition((Segment(0, batches),), 4096)) as segment:
        assert segment.indexes.offset_index.entries > 20
        rows = look_up(segment, list(range(3999, -1, -1)), Resolve.RECORD)
        assert [row.found_offset for row in rows] == list(range(3999, -1, -1))
