"""Plans of appends against their plain model, and what a leader writes into batches."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.core.errors import IndexFullError
from kafka_index.core.kernels.append_batches import (
    GROWTH_SIZE,
    PACKED_RECORDS,
    TIMESTAMP_OUT_OF_BOUNDS,
    largest_timestamps,
    stamp_batches,
)
from kafka_index.core.kernels.batch_header import batch_checksums
from kafka_index.core.kernels.record_fields import RECORD_VALID
from kafka_index.core.log.append.incoming_batches import (
    IncomingBatches,
    growth_limits,
    new_growth,
    plan_for_segment,
)
from kafka_index.core.log.append.settings import LogSettings
from kafka_index.core.records.batch_table import BatchColumns
from tests.support import segments as built

INT32_MAX = 2**31 - 1


class ModelFullError(Exception):
    """Kafka throws in the middle of an append."""


@dataclass
class SegmentModel:
    """A segment that counts what it would hold."""

    base_offset: int
    segment_bytes: int
    wait_ms: int
    interval: int
    offset_room: int
    time_room: int
    created_ms: int = 0
    size: int = 0
    bytes_since_entry: int = 0
    largest: tuple[int, int] = (-1, 0)
    first_timestamp: int | None = None
    offset_entries: list[tuple[int, int]] = field(default_factory=list)
    time_entries: list[tuple[int, int]] = field(default_factory=list)

    def should_roll(self, batches: list[tuple[int, int, int]], now_ms: int) -> bool:
        """Whether to roll before an append of (size, last offset, largest timestamp)."""
        latest = max([-1] + [timestamp for _, _, timestamp in batches])
        waited = now_ms - self.created_ms
        if self.first_timestamp is not None and self.first_timestamp >= 0:
            waited = latest - self.first_timestamp
        return (
            self.size > self.segment_bytes - sum(size for size, _, _ in batches)
            or (self.size > 0 and waited > self.wait_ms)
            or self.is_full
            or not 0 <= batches[-1][1] - self.base_offset <= INT32_MAX
        )

    @property
    def is_full(self) -> bool:
        """Whether an index has no room."""
        return (
            len(self.offset_entries) >= self.offset_room
            or len(self.time_entries) >= self.time_room - 1
        )

    def append(self, batches: list[tuple[int, int, int]]) -> None:
        """Append, as one append."""
        if self.first_timestamp is None:
            self.first_timestamp = batches[0][2]
        for size, last_offset, timestamp in batches:
            if timestamp > self.largest[0]:
                self.largest = timestamp, last_offset
            if self.bytes_since_entry > self.interval:
                if self.is_full:
                    raise ModelFullError
                self.offset_entries.append((last_offset, self.size))
                if self.largest[0] > (self.time_entries[-1][0] if self.time_entries else -1):
                    self.time_entries.append(self.largest)
                self.bytes_since_entry = 0
            self.size += size
            self.bytes_since_entry += size


NOW_MS = 10_000

APPENDS = st.lists(
    st.lists(st.tuples(st.integers(61, 300), st.integers(1, 9), st.integers(-1, 200)), min_size=1),
    min_size=1,
    max_size=30,
)


def table(appends: list[list[tuple[int, int, int]]]) -> IncomingBatches:
    """Batches of (size, last offset, timestamp) of which only that matters."""
    rows = [batch for append in appends for batch in append]
    sizes, last_offsets, timestamps = np.array(rows, np.int64).T.copy()
    nothing = np.zeros(len(rows), np.int64)
    positions = np.concatenate([[0], sizes.cumsum()[:-1]])
    columns = BatchColumns(positions, sizes, nothing, last_offsets, timestamps, *[nothing] * 10)
    return IncomingBatches(np.empty(0, np.uint8), columns)


def append_all(model: SegmentModel, appends: list[list[tuple[int, int, int]]]) -> None:
    """Append to the model, which is never to be rolled."""
    for append in appends:
        assert not model.should_roll(append, NOW_MS)
        model.append(append)


@given(
    shapes=APPENDS,
    segment_bytes=st.integers(100, 20_000),
    wait_ms=st.integers(0, 250),
    interval=st.integers(0, 1000),
    index_bytes=st.integers(12, 300),
)
def test_append_plan_equals_the_reference_implementation(
    shapes: list[list[tuple[int, int, int]]],
    segment_bytes: int,
    wait_ms: int,
    interval: int,
    index_bytes: int,
) -> None:
    offset = -1
    appends = []
    for shape in shapes:
        append = []
        for size, step, timestamp in shape:
            offset += step
            append.append((size, offset, timestamp))
        appends.append(append)
    settings = LogSettings(
        segment_bytes=segment_bytes,
        segment_ms=wait_ms + 1,
        index_interval_bytes=interval,
        segment_index_bytes=index_bytes,
    )
    limits = growth_limits(settings, 0, jitter_ms=1, created_ms=NOW_MS, now_ms=NOW_MS)
    model = SegmentModel(
        0, segment_bytes, wait_ms, interval, index_bytes // 8, index_bytes // 12, NOW_MS
    )
    ends = np.cumsum([len(append) for append in appends])

    def plan() -> None:
        result = plan_for_segment(table(appends), ends, 0, limits, new_growth(0), may_roll=True)
        taken = appends[: result.next_append]
        append_all(model, taken)
        assert result.must_roll == (len(taken) < len(appends))
        if result.must_roll:
            assert model.should_roll(appends[len(taken)], NOW_MS)
        assert result.state[GROWTH_SIZE] == model.size
        offsets = table(appends).columns.last_offset[result.rows]
        entries = zip(offsets.tolist(), result.positions_bytes.tolist(), strict=True)
        assert list(entries) == model.offset_entries
        times = zip(result.timestamps_ms.tolist(), result.timestamp_offsets.tolist(), strict=True)
        kept = [fromkey for fromkey in dict.fromkeys(times) if fromkey[0] >= 0]
        assert kept == model.time_entries

    try:
        plan()
    except IndexFullError:
        with pytest.raises(ModelFullError):
            append_all(model, appends)


@pytest.mark.parametrize("timestamp_type", [0, 8])
@pytest.mark.parametrize("max_timestamp", [1002, 5])
def test_leader_recomputes_only_changed_checksums(timestamp_type: int, max_timestamp: int) -> None:
    plain = built.batch(0, 3, timestamps=[1000, 1001, 1002], leader_epoch=-1)
    data = np.frombuffer(bytearray(plain * 2), np.uint8)
    positions = np.array([0, len(plain)])
    sizes = np.full(2, len(plain))
    bases, lasts = np.empty((2, 2), np.int64)
    latest = np.full(2, max_timestamp)
    end = stamp_batches(data, positions, sizes, 40, 7, timestamp_type, latest, bases, lasts)
    assert (end, bases.tolist(), lasts.tolist()) == (46, [40, 43], [42, 45])
    for position, base in zip(positions, bases, strict=True):
        expected = built.batch(
            int(base),
            3,
            timestamps=[1000, 1001, 1002],
            leader_epoch=7,
            attributes=timestamp_type,
            max_timestamp=max_timestamp,
        )
        assert data[position : position + len(plain)].tobytes() == expected
        stored, computed = batch_checksums(data, int(position), len(plain))
        assert stored == computed


def test_largest_timestamp_is_computed_from_the_records() -> None:
    batches = [
        built.batch(0, 2, timestamps=[5, 3], max_timestamp=99),
        built.batch(0, 1, timestamps=[-1]),
        built.batch(0, 1, timestamps=[7], attributes=1),
        built.batch(0, 2, timestamps=[8, 50]),
        built.batch(0, 2, timestamps=[8, 8], payload=b"\x00" * 4),
    ]
    data = np.frombuffer(b"".join(batches), np.uint8)
    sizes = np.array([len(batch) for batch in batches])
    positions = np.concatenate([[0], sizes.cumsum()[:-1]])
    counts = np.array([2, 1, 1, 2, 2])
    largest, codes = np.empty((2, 5), np.int64)
    largest_timestamps(data, positions, sizes, counts, 0, 40, largest, codes)
    assert codes[:4].tolist() == [
        RECORD_VALID,
        RECORD_VALID,
        PACKED_RECORDS,
        TIMESTAMP_OUT_OF_BOUNDS,
    ]
    assert codes[4] not in (RECORD_VALID, PACKED_RECORDS, TIMESTAMP_OUT_OF_BOUNDS)
    assert largest[[0, 1, 3]].tolist() == [5, -1, 50]
