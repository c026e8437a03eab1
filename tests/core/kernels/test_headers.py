"""The fields and the size of a batch header, compared with ``struct``."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_index.core.kernels import batch_header
from kafka_index.core.kernels.headers import (
    CONTROL_COMPRESSED,
    CONTROL_EMPTY,
    HEADER_COLUMNS,
    HEADER_CONTROL_TYPE,
    read_headers,
)
from tests.support import kernel_models, seek_model
from tests.support.seek_cases import UNTOUCHED, Log, address_of, logs, longs
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
    """Rows of the columns; the window contains the log from `start` on."""
    log = b"".join(entries)
    positions = start + np.cumsum([0, *map(len, entries)], dtype=np.int64)[:-1]
    columns = np.empty((HEADER_COLUMNS, len(entries)), np.int64)
    read_headers(np.frombuffer(log, np.uint8), start, positions, columns)
    return [[int(cell) for cell in row] for row in columns.T]


def by_hand(entry: bytes) -> list[int]:
    """Checksum, base timestamp, producer epoch and base sequence."""
    stored = kernel_models.checksums(entry)[0]
    magic = struct.unpack_from(">b", entry, 16)[0]
    if magic < 2:
        timestamp = struct.unpack_from(">q", entry, 18)[0] if magic else -1
        return [stored, timestamp, -1, -1]
    fields = kernel_models.BATCH_HEADER.unpack_from(entry)
    return [stored, fields[7], *fields[10:12]]


@settings(deadline=None)
@given(segments(damaged=False))
def test_header_fields_equal_those_of_the_entry(one: Segment) -> None:
    rows = kernel_models.scan_log(one.log, one.base_offset)[2]
    entries = [one.log[row.position : row.position + row.size] for row in rows]
    assert [row[:4] for row in headers(*entries)] == [by_hand(entry) for entry in entries]


def test_positions_are_relative_to_the_log() -> None:
    entries = batch(0), message(3, 1, 9), batch(4, base_sequence=5, producer_epoch=3)
    assert headers(*entries, start=10**9) == headers(*entries)


def test_transaction_marker_returns_type_coordinator_epoch_and_timestamp() -> None:
    entry = marker(3, 7, 0, commit=True, coordinator_epoch=12, timestamp=4444)
    assert headers(entry)[0][4:] == [1, 12, 4444]


def test_transaction_marker_with_log_append_time_has_the_time_of_its_batch() -> None:
    entry = control_batch(3, 7, 0, control_key(0), marker_value(2), 50, attributes=LOG_APPEND_TIME)
    entry = entry[:27] + struct.pack(">q", 49) + entry[35:]
    assert headers(entry)[0][4:] == [0, 2, 50]


def test_data_batch_has_no_control_fields() -> None:
    assert headers(batch(0))[0][4:] == [-1, -1, -1]


def test_control_batches_without_a_plain_record_are_reported() -> None:
    empty = control_batch(0, 7, 0, None, None, payload=b"", record_count=0)
    packed = control_batch(0, 7, 0, control_key(0), marker_value(), attributes=1)
    kinds = [row[HEADER_CONTROL_TYPE] for row in headers(empty, packed)]
    assert kinds == [CONTROL_EMPTY, CONTROL_COMPRESSED]


HEADERS = [
    batch(7, 3, last_offset_delta=9, max_timestamp=50, attributes=4, payload=b""),
    message(7, 0, value=b"v", attributes=2),
    message(7, 1, 50, b"v", attributes=3),
    message(7, -5, 50, b"v"),
    batch(7, 3, magic=100),
]


@pytest.mark.parametrize("entry", HEADERS, ids=["2", "0", "1", "-5", "100"])
def test_header_fields_equal_those_read_by_struct(entry: bytes) -> None:
    data = np.frombuffer(entry, np.uint8)
    start = address_of(data)
    header = seek_model.header_at(entry, 0)
    assert (
        batch_header.batch_size(start, len(entry)),
        batch_header.magic_of(start),
        batch_header.last_offset_of(start),
        batch_header.max_timestamp_of(start),
        batch_header.codec_of(start),
    ) == (header.size, header.magic, header.last_offset, header.max_timestamp, header.codec)


def size_at(entry: bytes, log_size: int | None = None, position: int = 0) -> int:
    data = np.frombuffer(entry, np.uint8)
    size = len(entry) if log_size is None else log_size
    return int(batch_header.batch_size(address_of(data) + np.uint64(position), size - position))


def test_position_after_the_last_byte_is_the_end() -> None:
    assert size_at(batch(0), position=len(batch(0))) == batch_header.AT_END


@pytest.mark.parametrize("left", range(1, 18))
def test_incomplete_header_is_torn(left: int) -> None:
    assert size_at(batch(0) * 2, log_size=len(batch(0)) + left, position=len(batch(0))) == (
        batch_header.TORN_HEADER
    )


@pytest.mark.parametrize("length", [-(2**31), -13, -1, 0, 13])
def test_length_below_the_smallest_batch_is_bad_length(length: int) -> None:
    assert size_at(batch(0, length=length)) == batch_header.BAD_LENGTH


@pytest.mark.parametrize("over", [1, 2, 50])
def test_batch_that_extends_beyond_the_log_is_torn(over: int) -> None:
    complete_batch = batch(0)
    assert size_at(complete_batch, log_size=len(complete_batch) - over) == batch_header.TORN_BATCH


def test_largest_batch_length_does_not_overflow() -> None:
    assert size_at(batch(0, length=2**31 - 1)) == batch_header.TORN_BATCH


def empty_entry(magic: int, size: int) -> bytes:
    entry = bytearray(size + 20)
    struct.pack_into(">i", entry, 8, size - 12)
    struct.pack_into(">b", entry, 16, magic)
    return bytes(entry)


@pytest.mark.parametrize(("magic", "size"), [(0, 26), (1, 60), (2, 61), (127, 61), (-1, 26)])
def test_smallest_batch_of_each_magic_has_the_minimum_size(magic: int, size: int) -> None:
    assert size_at(empty_entry(magic, size)) == size


@pytest.mark.parametrize("magic", [2, 3, 127])
def test_record_batch_smaller_than_its_header_has_a_bad_size(magic: int) -> None:
    assert size_at(empty_entry(magic, 60)) == batch_header.BAD_SIZE


@pytest.mark.parametrize(
    "entry", [batch(0), batch(0, crc=5), message(0, 1, 9, b"v"), message(0, 0, crc=6)]
)
def test_checksums_equal_those_of_zlib_and_crc32c(entry: bytes) -> None:
    window = np.frombuffer(b"xyz" + entry, np.uint8)
    assert batch_header.batch_checksums(window, 3, len(entry)) == kernel_models.checksums(entry)


@given(st.integers(0, 2**62))
def test_damage_encodes_its_position(position: int) -> None:
    assert batch_header.damage_at(batch_header.damage_at(position)) == position
    assert batch_header.damage_at(position) < batch_header.AT_END


@given(logs(), st.data())
def test_headers_are_read_at_known_positions_only(log: Log, data: st.DataObject) -> None:
    by_position = {header.position: header for header in log.headers}
    asked = data.draw(st.lists(st.sampled_from([-1, -2, -40, *by_position])))
    fields = np.full((3, len(asked)), UNTOUCHED, np.int64)
    batch_header.read_batch_fields(
        address_of(log.array), longs(asked), fields[0], fields[1], fields[2]
    )
    expected = []
    for position in asked:
        one = by_position.get(position)
        if one is None:
            expected.append([UNTOUCHED] * 3)
        else:
            base = batch_header.NOT_IN_HEADER if one.is_packed_legacy else one.base_offset
            expected.append([base, one.last_offset, one.size])
    assert fields.T.tolist() == expected
