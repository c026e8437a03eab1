"""The record kernel against a walk by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kafka_index.core.kernels.record_columns import (
    DECODE_FAULT,
    DECODE_FULL,
    MAX_CHUNK_HEADERS,
    MAX_HEADERS,
    PLACE_ROWS,
    TOO_MANY_HEADERS,
    decode_batches,
    hand_in_section,
    new_state,
)
from kafka_index.core.kernels.record_fields import (
    RECORD_BROKEN,
    RECORD_CUT,
    RECORD_SIZE_CUT,
    RECORD_SIZE_TOO_LONG,
    RECORD_VALID,
    RECORDS_REMAINING,
    read_record,
)
from kafka_index.core.kernels.records import RecordSection, check_records, next_record
from kafka_index.core.records.record_decoder import ChunkMemory, RecordChunk, RecordParts
from tests.support.campaign import sample_size
from tests.support.named_segments import body
from tests.support.seek_model import read_all
from tests.support.segments import record, varint

NULL = varint(-1)
INT32S = st.one_of(st.integers(-70, 70), st.integers(-9000, 9000), st.integers(-(2**31), 2**31 - 1))
INT64S = st.one_of(INT32S, st.integers(-(2**63), 2**63 - 1))
#: Sizes at which a size takes another byte.
SIZES = st.one_of(st.integers(0, 70), st.sampled_from([8191, 8192, 8193]))
FIELDS = st.one_of(st.none(), SIZES.map(bytes))


def sized(data: bytes | None) -> bytes:
    return NULL if data is None else varint(len(data)) + data


@st.composite
def one_record(draw: st.DrawFn) -> bytes:
    """A sound record of any shape."""
    headers = draw(st.lists(st.tuples(SIZES.map(bytes), FIELDS), max_size=2))
    fields = [sized(draw(FIELDS)), sized(draw(FIELDS)), varint(len(headers))]
    fields += [sized(part) for header in headers for part in header]
    return body(b"\0", varint(draw(INT64S)), varint(draw(INT32S)), *fields)


@st.composite
def changed(draw: st.DrawFn, data: bytes) -> bytes:
    """The same bytes but for some that are others, too many or gone."""
    at = draw(st.integers(0, len(data)))
    other = draw(st.one_of(INT32S.map(varint), st.binary(max_size=3)))
    return data[:at] + other + data[at + draw(st.integers(0, 3)) :]


@st.composite
def sections(draw: st.DrawFn) -> tuple[bytes, int]:
    """The records of a batch, often wrong somewhere, and a count."""
    records = draw(st.lists(one_record(), max_size=4))
    data = b"".join(records)
    for _ in range(draw(st.integers(0, 2))):
        data = draw(changed(data))
    return data, draw(st.one_of(st.just(len(records)), st.integers(0, 6)))


def section_of(
    memory: NDArray[np.uint8],
    size: int,
    count: int,
    base_offset: int = 0,
    base_timestamp: int = 0,
    append_timestamp: int | None = None,
) -> RecordSection:
    start = memory.ctypes.data
    return RecordSection(
        np.uint64(start),
        np.uint64(start + size),
        count,
        base_offset,
        base_timestamp,
        append_timestamp or 0,
        int(append_timestamp is not None),
        0,
    )


def decode_in_parts(
    section: RecordSection, count: int, parts: RecordParts
) -> tuple[list[tuple[int, int]], int, int]:
    """The results of `decode_batches` on a section: records, code, and number of sound ones."""
    chunk, state, code = decode_section(section, max(count, 1), parts)
    fault = int(state.fault) if code == DECODE_FAULT else RECORD_VALID
    rows = zip(chunk.offsets.tolist(), chunk.timestamps_ms.tolist(), strict=True)
    return list(rows), fault, count - int(state.left)


def decode_section(
    section: RecordSection, room: int, parts: RecordParts = RecordParts.ALL
) -> tuple[RecordChunk, np.record, int]:
    """The records, the state after them, and the code."""
    size = int(section.end) - int(section.start)
    memory = ChunkMemory(parts, room, size, size, np.full((PLACE_ROWS, room), -9, np.int64))
    states = new_state()
    state = states[0]
    hand_in_section(state, section)
    zero = np.zeros(1, np.int64)
    limits = (-(2**63), 2**63 - 1)
    code = decode_batches(
        np.uint64(0),
        0,
        zero,
        zero,
        *limits,
        int(parts),
        np.empty(0, np.uint8),
        zero,
        memory.columns,
        zero.copy(),
        states,
    )
    rows, header_rows = int(state.rows), int(state.header_rows)
    chunk = memory.chunk(rows, header_rows, 0, np.array([rows]), section.end, {})
    return chunk, state, code


def decode(
    data: bytes,
    count: int,
    base_offset: int = 0,
    base_timestamp: int = 0,
    append_timestamp: int | None = None,
    *,
    after: bytes = b"",
) -> tuple[list[tuple[int, int]], int]:
    """The records that the kernels return, all of them the same ones, and their code."""
    memory = np.frombuffer(data + after, np.uint8)
    section = section_of(memory, len(data), count, base_offset, base_timestamp, append_timestamp)
    rows, code, decoded = decode_in_parts(section, count, RecordParts.ALL)
    assert (rows, code, decoded) == decode_in_parts(section, count, RecordParts.NONE)
    assert check_records(tuple(section)) == (decoded, code)
    address = section.start
    for number, row in enumerate(rows):
        address, *found, row_code = next_record(section, address, count - number)
        assert (tuple(found), row_code) == (row, RECORD_VALID)
    return rows, code


def code_of(data: bytes, count: int = 1) -> int:
    return decode(data, count)[1]


@settings(deadline=None, max_examples=sample_size(500, one_in=4))
@given(sections(), INT64S, INT64S, st.one_of(st.none(), INT64S))
def test_random_bytes_are_parsed_as_by_the_reference(
    section: tuple[bytes, int], base_offset: int, base_timestamp: int, append_timestamp: int | None
) -> None:
    data, count = section
    records, code = decode(data, count, base_offset, base_timestamp, append_timestamp)
    expected = read_all(data, count, base_offset, base_timestamp, append_timestamp)
    assert (records, code == RECORD_VALID) == expected


@settings(deadline=None, max_examples=sample_size(200, one_in=4))
@given(st.binary(max_size=40), st.integers(0, 4))
def test_invalid_records_are_parsed_as_by_the_reference(data: bytes, count: int) -> None:
    records, code = decode(data, count)
    assert (records, code == RECORD_VALID) == read_all(data, count)


@settings(deadline=None, max_examples=sample_size(200, one_in=4))
@given(sections(), st.binary(min_size=16, max_size=16))
def test_bytes_after_the_batch_are_not_read(section: tuple[bytes, int], after: bytes) -> None:
    assert decode(*section, after=after) == decode(*section, after=bytes(16))


@pytest.mark.parametrize("size", [0, 1, 62, 63, 64, 65, 8190, 8191, 8192, 2**20, 2**20 + 1])
def test_fields_of_every_width_are_skipped(size: int) -> None:
    data = record(3, 5, bytes(size), None) + record(4, 6, None, bytes(size))
    assert decode(data, 2) == ([(3, 5), (4, 6)], RECORD_VALID)


@pytest.mark.parametrize("bits", range(64))
def test_timestamp_deltas_of_every_width_are_read(bits: int) -> None:
    deltas = [2**bits - 1, -(2**bits)]
    data = b"".join(record(0, delta, None, b"some value") for delta in deltas)
    assert decode(data, 2) == ([(0, delta) for delta in deltas], RECORD_VALID)


@pytest.mark.parametrize("bits", range(32))
def test_offset_deltas_of_every_width_are_read(bits: int) -> None:
    deltas = [2**bits - 1, -(2**bits)]
    data = b"".join(record(delta, 0, None, b"some value") for delta in deltas)
    assert decode(data, 2) == ([(delta, 0) for delta in deltas], RECORD_VALID)


def test_offset_and_timestamp_sums_wrap_around() -> None:
    data = record(1, 1, None, None) + record(-1, -1, None, None)
    assert decode(data, 2, 2**63 - 1, -(2**63))[0] == [
        (-(2**63), -(2**63) + 1),
        (2**63 - 2, 2**63 - 1),
    ]


def test_log_append_time_applies_to_all_records() -> None:
    data = record(0, 0, None, None) + record(1, 7, None, None)
    assert decode(data, 2, 10, 1000, 5)[0] == [(10, 5), (11, 5)]


def test_smallest_record_is_read() -> None:
    data = record(0, 0, None, None)
    assert len(data) == 7
    assert decode(data, 1) == ([(0, 0)], RECORD_VALID)


@pytest.mark.parametrize("cut", range(1, 16))
def test_truncated_record_is_not_read(cut: int) -> None:
    whole = record(0, 0, b"key", b"value")
    data = whole + whole[:-cut]
    assert decode(data, 2)[0] == [(0, 0)]
    assert code_of(data, 2) == (RECORD_SIZE_CUT if cut == len(whole) else RECORD_CUT)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", RECORD_SIZE_CUT),
        (b"\x80", RECORD_SIZE_CUT),
        (b"\xff" * 5 + b"\0" * 20, RECORD_SIZE_TOO_LONG),
        (varint(2**31 - 1) + bytes(20), RECORD_CUT),
        (varint(-1) + bytes(20), RECORD_BROKEN),
        (varint(-(2**31)) + bytes(20), RECORD_BROKEN),
        (varint(0) + bytes(20), RECORD_BROKEN),
        (body(b"\0", b"\xff" * 10, b"\0\0\0\0\0"), RECORD_BROKEN),
        (body(b"\0\0", b"\xff" * 5, b"\0\0\0\0\0"), RECORD_BROKEN),
        (body(b"\0\0\0", varint(2**31 - 1), bytes(20)), RECORD_BROKEN),
        (body(b"\0\0\0", NULL, varint(2**31 - 1), bytes(20)), RECORD_BROKEN),
        (body(b"\0\0\0", NULL * 2), RECORD_BROKEN),
        (body(b"\0\0\0", NULL * 2, b"\0\0"), RECORD_BROKEN),
        (body(b"\0\0\0", NULL * 2, varint(-1)), RECORD_BROKEN),
        (body(b"\0\0\0", NULL * 2, varint(2**31 - 1), bytes(20)), RECORD_BROKEN),
        (body(b"\0\0\0", NULL * 2, varint(1), NULL, NULL), RECORD_BROKEN),
        (body(b"\0\0\0", NULL * 2, varint(1), varint(1), b"k"), RECORD_BROKEN),
        (record(0, 0, None, None) + b"\0", RECORDS_REMAINING),
    ],
)
def test_each_kind_of_damage_has_its_code(data: bytes, expected: int) -> None:
    assert code_of(data) == expected
    assert not read_all(data, 1)[1]


@pytest.mark.parametrize("size", [b"\x0c", b"\x8c\0", b"\x8c\x80\0", b"\x8c\x80\x80\x80\x10"])
def test_overlong_varint_of_a_record_size_is_accepted(size: bytes) -> None:
    assert code_of(size + record(0, 0, None, None)[1:]) == RECORD_VALID


def test_last_record_before_trailing_bytes_is_not_returned() -> None:
    data = record(0, 0, None, None) + record(1, 0, None, None)
    assert decode(data + b"\0", 2) == ([(0, 0)], RECORDS_REMAINING)
    assert decode(data, 1) == ([], RECORDS_REMAINING)


def test_record_count_of_zero_reads_no_record() -> None:
    assert decode(b"\xff" * 9, 0) == ([], RECORD_VALID)


def test_rows_after_a_truncated_section_are_not_records() -> None:
    data = np.frombuffer(record(1, 2, None, None) + b"\xff" * 20, np.uint8)
    chunk, _, code = decode_section(section_of(data, len(data), 4), 6)
    assert (code, chunk.offsets.tolist()) == (DECODE_FAULT, [1])


@settings(deadline=None)
@given(st.lists(one_record(), min_size=1, max_size=4))
def test_record_fields_equal_the_written_ones(records: list[bytes]) -> None:
    memory = np.frombuffer(b"".join(records), np.uint8)
    chunk, _, _ = decode_section(section_of(memory, len(memory), len(records)), len(records))
    assert chunk.keys is not None
    assert chunk.values is not None
    fields = zip(chunk.keys.to_pylist(), chunk.values.to_pylist(), strict=True)
    names, values = (column.to_pylist() for column in chunk.header_columns())
    halves = [half for pair in zip(names, values, strict=True) for half in pair]
    for one, parts, count in zip(records, fields, chunk.header_counts().tolist(), strict=True):
        own, halves = halves[: 2 * count], halves[2 * count :]
        tail = b"".join(map(sized, parts)) + varint(count) + b"".join(map(sized, own))
        assert one.endswith(tail)


def test_chunk_ends_after_the_record_with_too_many_headers() -> None:
    count = MAX_CHUNK_HEADERS + 1
    many = body(b"\0\0\0", NULL * 2, varint(count), b"\0\1" * count)
    memory = np.frombuffer(many + record(1, 0, None, None), np.uint8)
    _, state, code = decode_section(section_of(memory, len(memory), 2), 2)
    assert (code, int(state.rows), int(state.left)) == (DECODE_FULL, 1, 1)
    assert int(state.cursor) - memory.ctypes.data == len(many)


def test_record_with_too_many_headers_is_rejected() -> None:
    count = MAX_HEADERS + 1
    many = body(b"\0\0\0", NULL * 2, varint(count), b"\0\1" * count)
    memory = np.frombuffer(many, np.uint8)
    _, state, code = decode_section(section_of(memory, len(memory), 1), 1)
    assert (code, int(state.fault)) == (DECODE_FAULT, TOO_MANY_HEADERS)


def test_malformed_record_does_not_advance_the_address() -> None:
    data = np.frombuffer(b"\xff" * 20, np.uint8)
    start = data.ctypes.data
    address, _, _, code = read_record(np.uint64(start), np.uint64(start + len(data)))
    assert (int(address), int(code)) == (start, RECORD_SIZE_TOO_LONG)
