"""A segment that grows: its files, reads, truncation, recovery and rolls."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_index.commands.build.log_build import build_segment_files
from kafka_index.core.errors import CorruptLogError, IndexFullError, InputError
from kafka_index.core.format.config import IndexConfig
from kafka_index.core.index.sparse_indexes import OffsetIndex
from kafka_index.core.log.append.log_segment_writer import LogSegmentWriter
from kafka_index.core.log.append.settings import LogSettings
from kafka_index.core.log.read.log_segment import LogSegment
from tests.support.growing import NOW_MS, Clock, data_batch

EVERY_BATCH = LogSettings(index_interval_bytes=0, segment_index_bytes=4096, segment_bytes=1 << 20)
BATCH_BYTES = len(data_batch(0))
PAIR_BYTES = len(data_batch(0, records=2))


def grown(folder: Path, batches: list[bytes], settings: LogSettings = EVERY_BATCH) -> Path:
    """A closed segment at 0 with these batches; the path of its log."""
    with LogSegmentWriter(folder, 0, settings, create=True) as segment:
        for batch in batches:
            segment.append(batch)
    return folder / f"{0:020d}.log"


def index_bytes(log: Path) -> list[bytes]:
    return [log.with_suffix(suffix).read_bytes() for suffix in (".index", ".timeindex")]


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 4), st.integers(0, 400), st.integers(-1, 50)),
        min_size=1,
        max_size=40,
    ),
    appends=st.lists(st.integers(1, 5), min_size=40, max_size=40),
    interval=st.sampled_from([0, 100, 500, 4096]),
)
def test_index_files_of_a_growing_segment_equal_rebuilt_ones(
    tmp_path_factory: pytest.TempPathFactory,
    shapes: list[tuple[int, int, int]],
    appends: list[int],
    interval: int,
) -> None:
    folder = tmp_path_factory.mktemp("grown")
    config = LogSettings(index_interval_bytes=interval, segment_index_bytes=4096)
    batches, offset = [], 0
    for records, size, time in shapes:
        batches.append(data_batch(offset, records=records, value=bytes(size), timestamp_ms=time))
        offset += records
    together = []
    for count in appends:
        together.append(b"".join(batches[:count]))
        batches = batches[count:]
    log = grown(folder, [data for data in together if data], config)
    target = folder / "built"
    target.mkdir()
    report = build_segment_files(
        log, target, config=IndexConfig(config.index_interval_bytes, config.segment_index_bytes)
    )
    assert report.status == "built"
    assert index_bytes(log) == index_bytes(target / log.name)


def test_index_files_have_full_size_while_active_and_are_trimmed_on_close(
    tmp_path: Path,
) -> None:
    segment = LogSegmentWriter(tmp_path, 0, EVERY_BATCH, create=True)
    segment.append(data_batch(0) + data_batch(1))
    assert (tmp_path / f"{0:020d}.index").stat().st_size == 4096
    assert (tmp_path / f"{0:020d}.timeindex").stat().st_size == 4092
    segment.close()
    assert [len(data) for data in index_bytes(tmp_path / f"{0:020d}.log")] == [8, 12]


def test_preallocated_log_has_its_full_size_until_it_is_closed(tmp_path: Path) -> None:
    config = LogSettings(segment_bytes=100_000, segment_index_bytes=4096, preallocate=True)
    segment = LogSegmentWriter(tmp_path, 0, config, create=True)
    segment.append(data_batch(0))
    log = tmp_path / f"{0:020d}.log"
    assert (log.stat().st_size, segment.size_bytes) == (100_000, BATCH_BYTES)
    assert segment.read(0, 10**6) is not None
    segment.close()
    assert log.read_bytes() == data_batch(0)


def test_reopened_segment_does_not_count_the_bytes_after_its_last_entry(tmp_path: Path) -> None:
    config = LogSettings(index_interval_bytes=2 * BATCH_BYTES, segment_index_bytes=4096)
    grown(tmp_path, [data_batch(n) for n in range(3)], config)
    with LogSegmentWriter(tmp_path, 0, config) as segment:
        segment.resize_indexes()
        for n in range(3, 8):
            segment.append(data_batch(n))
    with OffsetIndex(tmp_path / f"{0:020d}.index", 0, writable=False) as index:
        # Without the restart: batches 3 and 6.
        assert index.read_entries()[0].tolist() == [6]


@pytest.mark.parametrize(
    ("start", "max_bytes", "whole", "expected"),
    [
        (0, PAIR_BYTES, False, (0, PAIR_BYTES, False)),
        (3, 10, False, (2, 10, True)),
        (3, 10, True, (2, PAIR_BYTES, False)),
        (5, 10**6, False, (4, 3 * PAIR_BYTES, False)),
        (0, 0, False, (0, 0, False)),
    ],
)
def test_read_starts_at_the_batch_that_contains_the_offset(
    tmp_path: Path, start: int, max_bytes: int, *, whole: bool, expected: tuple[int, int, bool]
) -> None:
    with LogSegmentWriter(tmp_path, 0, EVERY_BATCH, create=True) as segment:
        for offset in range(0, 10, 2):
            segment.append(data_batch(offset, records=2))
        actual = segment.read(start, max_bytes, min_one_message=whole)
        assert actual is not None
        assert (actual.base_offset, len(actual.records), actual.first_entry_incomplete) == expected


def test_read_ends_at_a_position_and_finds_nothing_at_the_end(tmp_path: Path) -> None:
    with LogSegmentWriter(tmp_path, 0, EVERY_BATCH, create=True) as segment:
        assert segment.read(0, 100) is None
        segment.append(data_batch(0) + data_batch(1))
        result = segment.read(0, 10**6, max_position_bytes=BATCH_BYTES)
        assert result is not None
        assert result.records == data_batch(0)
        assert segment.read(2, 100) is None
        with pytest.raises(InputError, match="found -1"):
            segment.read(0, -1)


def test_truncation_removes_batches_and_entries_and_restores_the_largest_timestamp(
    tmp_path: Path,
) -> None:
    with LogSegmentWriter(tmp_path, 0, EVERY_BATCH, create=True) as segment:
        for offset in range(10):
            segment.append(data_batch(offset, timestamp_ms=NOW_MS + offset))
        assert segment.truncate_to(6) == 4 * BATCH_BYTES
        assert segment.next_offset() == 6
        assert segment.largest_timestamp == (NOW_MS + 5, 5)
        assert segment.offset_index.entries == 5
        assert segment.truncate_to(6) == 0
        segment.append(data_batch(6))
    with LogSegment.open(tmp_path / f"{0:020d}.log") as closed:
        assert closed.next_offset == 7
        assert closed.offset_to_position(6) == (6, 6 * BATCH_BYTES, BATCH_BYTES)


def test_recovery_truncates_at_the_first_invalid_batch_and_rebuilds_the_indexes(
    tmp_path: Path,
) -> None:
    log = grown(tmp_path, [data_batch(n) for n in range(5)])
    damaged = bytearray(log.read_bytes())
    damaged[3 * BATCH_BYTES + 70] ^= 1
    log.write_bytes(damaged)
    with LogSegmentWriter(tmp_path, 0, EVERY_BATCH) as segment:
        assert segment.recover() == 2 * BATCH_BYTES
        assert segment.next_offset() == 3
    again = tmp_path / "again"
    again.mkdir()
    assert index_bytes(log) == index_bytes(grown(again, [data_batch(n) for n in range(3)]))


def test_recovery_keeps_a_log_with_offsets_out_of_range(tmp_path: Path) -> None:
    log = grown(tmp_path, [data_batch(n) for n in range(5)])
    damaged = bytearray(log.read_bytes())
    # The base offset of a batch is outside its checksum.
    damaged[3 * BATCH_BYTES] ^= 1
    log.write_bytes(damaged)
    with (
        LogSegmentWriter(tmp_path, 0, EVERY_BATCH) as segment,
        pytest.raises(CorruptLogError, match="offset_overflow"),
    ):
        segment.recover()
    assert log.read_bytes() == damaged


@pytest.mark.parametrize(
    ("config", "jitter_ms", "incoming", "expected"),
    [
        ({"segment_bytes": 3 * BATCH_BYTES}, 0, data_batch(2), False),
        ({"segment_bytes": 3 * BATCH_BYTES - 1}, 0, data_batch(2), True),
        ({"segment_ms": 100}, 0, data_batch(2, timestamp_ms=NOW_MS + 100), False),
        ({"segment_ms": 100}, 0, data_batch(2, timestamp_ms=NOW_MS + 101), True),
        ({"segment_ms": 100}, 1, data_batch(2, timestamp_ms=NOW_MS + 100), True),
        ({"segment_index_bytes": 24}, 0, data_batch(2), True),
        ({"segment_index_bytes": 36}, 0, data_batch(2), False),
        (
            {"cleanup_policy": "compact", "max_compaction_lag_ms": 50},
            0,
            data_batch(2, timestamp_ms=NOW_MS + 51),
            True,
        ),
        ({}, 0, data_batch(2**31 - 1), False),
    ],
)
def test_segment_is_rolled_by_size_time_or_full_index(
    tmp_path: Path, config: dict[str, object], jitter_ms: int, incoming: bytes, *, expected: bool
) -> None:
    values: dict[str, object] = {"index_interval_bytes": 0, "segment_index_bytes": 4096, **config}
    settings = LogSettings(**values)  # type: ignore[arg-type]  # by name
    with LogSegmentWriter(tmp_path, 0, settings, create=True, roll_jitter_ms=jitter_ms) as segment:
        segment.append(data_batch(0))
        segment.append(data_batch(1))
        assert segment.should_roll(incoming) is expected


def test_segment_without_timestamps_is_rolled_by_the_clock(tmp_path: Path) -> None:
    clock = Clock()
    config = LogSettings(segment_ms=100, segment_index_bytes=4096)
    with LogSegmentWriter(tmp_path, 0, config, create=True, clock=clock) as segment:
        segment.append(data_batch(0, timestamp_ms=-1))
        clock.now_ms += 100
        assert not segment.should_roll(data_batch(1, timestamp_ms=-1))
        clock.now_ms += 1
        assert segment.should_roll(data_batch(1, timestamp_ms=-1))


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (data_batch(1)[:-1], CorruptLogError, "at byte 0: .*torn_batch"),
        (data_batch(1) + b"\1" * 30, CorruptLogError, f"at byte {BATCH_BYTES}: "),
        (data_batch(1)[:-1] + b"x", CorruptLogError, "bad_crc"),
        (data_batch(2**31), InputError, r"offset_overflow.*found 2147483648"),
        (b"", InputError, "no batch"),
        (b"".join(map(data_batch, range(1, 9))), IndexFullError, "at byte .*too small"),
    ],
)
def test_rejected_append_leaves_the_segment_unchanged(
    tmp_path: Path, data: bytes, error: type[Exception], message: str
) -> None:
    config = LogSettings(index_interval_bytes=0, segment_index_bytes=48)
    with LogSegmentWriter(tmp_path, 0, config, create=True) as segment:
        segment.append(data_batch(0))
        before = segment.growth().tolist()
        with pytest.raises(error, match=message):
            segment.append(data)
        assert segment.growth().tolist() == before
        assert segment.log.view.tobytes() == data_batch(0)
        segment.append(data_batch(1))


def test_missing_segment_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the log does not exist"):
        LogSegmentWriter(tmp_path, 0, EVERY_BATCH)
