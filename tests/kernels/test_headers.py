"""Further header fields against struct."""

from __future__ import annotations

import struct

import numpy as np
from hypothesis import given, settings

from kafka_index.kernels.headers import (
    CONTROL_COMPRESSED,
    CONTROL_EMPTY,
    HEADER_COLUMNS,
    HEADER_CONTROL_TYPE,
    read_headers,
)
from tests.support import twins
from tests.support.segments import (
    LOG_APPEND_TIME,
    Segment,
    batch,
    control_batch,
    control_key,
    marker,
    marker_value,
    message,
)
from tests.support.strategies import segments


def headers(*entries: bytes, start: int = 0) -> list[list[int]]:
    """Rows of the columns; the window holds the log from `start` on."""
    log = b"".join(entries)
    positions = start + np.cumsum([0, *map(len, entries)], dtype=np.int64)[:-1]
    columns = np.empty((HEADER_COLUMNS, len(entries)), np.int64)
    read_headers(np.frombuffer(log, np.uint8), start, positions, columns)
    return [[int(cell) for cell in row] for row in columns.T]


def by_hand(entry: bytes) -> list[int]:
    """Magic, checksum, base timestamp, producer epoch, base sequence and record count."""
    stored = twins.checksums(entry)[0]
    magic = struct.unpack_from(">b", entry, 16)[0]
    if magic < 2:
        timestamp = struct.unpack_from(">q", entry, 18)[0] if magic else -1
        return [magic, stored, timestamp, -1, -1, 1]
    fields = twins.BATCH_HEADER.unpack_from(entry)
    return [magic, stored, fields[7], *fields[10:]]


@settings(deadline=None)
@given(segments(damaged=False))
def test_fields_are_those_of_the_entry(one: Segment) -> None:
    rows = twins.scan_log(one.log, one.base_offset)[2]
    entries = [one.log[row.position : row.position + row.size] for row in rows]
    assert [row[:6] for row in headers(*entries)] == [by_hand(entry) for entry in entries]


def test_positions_are_those_in_the_log_not_in_the_window() -> None:
    entries = batch(0), message(3, 1, 9), batch(4, base_sequence=5, producer_epoch=3)
    assert headers(*entries, start=10**9) == headers(*entries)


def test_a_marker_shows_type_coordinator_epoch_and_timestamp() -> None:
    entry = marker(3, 7, 0, commit=True, coordinator_epoch=12, timestamp=4444)
    assert headers(entry)[0][6:] == [1, 12, 4444]


def test_the_time_of_a_marker_with_log_append_time_is_the_batchs() -> None:
    entry = control_batch(3, 7, 0, control_key(0), marker_value(2), 50, attributes=LOG_APPEND_TIME)
    entry = entry[:27] + struct.pack(">q", 49) + entry[35:]
    assert headers(entry)[0][6:] == [0, 2, 50]


def test_a_data_batch_has_no_control_fields() -> None:
    assert headers(batch(0))[0][6:] == [-1, -1, -1]


def test_control_batches_without_a_plain_record_are_reported() -> None:
    empty = control_batch(0, 7, 0, None, None, payload=b"", record_count=0)
    packed = control_batch(0, 7, 0, control_key(0), marker_value(), attributes=1)
    kinds = [row[HEADER_CONTROL_TYPE] for row in headers(empty, packed)]
    assert kinds == [CONTROL_EMPTY, CONTROL_COMPRESSED]
