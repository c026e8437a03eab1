"""The record kernel against a walk by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_index.kernels.records import (
    MIN_RECORD_BYTES,
    RECORD_BAD_SIZE,
    RECORD_BROKEN,
    RECORD_CUT,
    RECORD_SOUND,
    RECORDS_REMAINING,
    decode_records,
    read_record,
)
from tests.support import record_twin
from tests.support.record_cases import body
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


def decode(
    data: bytes,
    count: int,
    base_offset: int = 0,
    base_timestamp: int = 0,
    append_timestamp: int | None = None,
    *,
    behind: bytes = b"",
) -> tuple[list[tuple[int, int]], int]:
    """The records that the kernel hands out, and its code."""
    memory = np.frombuffer(data + behind, np.uint8)
    start = memory.ctypes.data
    offsets, timestamps = np.full(count, -9, np.int64), np.full(count, -9, np.int64)
    decoded, code = decode_records(
        np.uint64(start),
        np.uint64(start + len(data)),
        count,
        base_offset,
        base_timestamp,
        append_timestamp or 0,
        int(append_timestamp is not None),
        offsets,
        timestamps,
    )
    rows = zip(offsets.tolist(), timestamps.tolist(), strict=True)
    return list(rows)[:decoded], int(code)


def code_of(data: bytes, count: int = 1) -> int:
    return decode(data, count)[1]


@settings(deadline=None, max_examples=500)
@given(sections(), INT64S, INT64S, st.one_of(st.none(), INT64S))
def test_any_bytes_are_read_as_by_hand(
    section: tuple[bytes, int], base_offset: int, base_timestamp: int, append_timestamp: int | None
) -> None:
    data, count = section
    records, code = decode(data, count, base_offset, base_timestamp, append_timestamp)
    expected = record_twin.read_all(data, count, base_offset, base_timestamp, append_timestamp)
    assert (records, code == RECORD_SOUND) == expected


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=40), st.integers(0, 4))
def test_nonsense_is_read_as_by_hand(data: bytes, count: int) -> None:
    records, code = decode(data, count)
    assert (records, code == RECORD_SOUND) == record_twin.read_all(data, count)


@settings(deadline=None, max_examples=200)
@given(sections(), st.binary(min_size=16, max_size=16))
def test_what_lies_behind_the_batch_does_not_matter(
    section: tuple[bytes, int], behind: bytes
) -> None:
    assert decode(*section, behind=behind) == decode(*section, behind=bytes(16))


@pytest.mark.parametrize("size", [0, 1, 62, 63, 64, 65, 8190, 8191, 8192, 2**20, 2**20 + 1])
def test_fields_of_every_width_are_passed_over(size: int) -> None:
    data = record(3, 5, bytes(size), None) + record(4, 6, None, bytes(size))
    assert decode(data, 2) == ([(3, 5), (4, 6)], RECORD_SOUND)


@pytest.mark.parametrize("bits", range(64))
def test_timestamp_deltas_of_every_width_are_read(bits: int) -> None:
    deltas = [2**bits - 1, -(2**bits)]
    data = b"".join(record(0, delta, None, b"some value") for delta in deltas)
    assert decode(data, 2) == ([(0, delta) for delta in deltas], RECORD_SOUND)


@pytest.mark.parametrize("bits", range(32))
def test_offset_deltas_of_every_width_are_read(bits: int) -> None:
    deltas = [2**bits - 1, -(2**bits)]
    data = b"".join(record(delta, 0, None, b"some value") for delta in deltas)
    assert decode(data, 2) == ([(delta, 0) for delta in deltas], RECORD_SOUND)


def test_sums_wrap_around() -> None:
    data = record(1, 1, None, None) + record(-1, -1, None, None)
    assert decode(data, 2, 2**63 - 1, -(2**63))[0] == [
        (-(2**63), -(2**63) + 1),
        (2**63 - 2, 2**63 - 1),
    ]


def test_with_append_time_all_records_have_it() -> None:
    data = record(0, 0, None, None) + record(1, 7, None, None)
    assert decode(data, 2, 10, 1000, 5)[0] == [(10, 5), (11, 5)]


def test_the_smallest_record_is_read() -> None:
    data = record(0, 0, None, None)
    assert len(data) == MIN_RECORD_BYTES
    assert decode(data, 1) == ([(0, 0)], RECORD_SOUND)


@pytest.mark.parametrize("cut", range(1, 16))
def test_a_record_cut_anywhere_is_not_read(cut: int) -> None:
    whole = record(0, 0, b"key", b"value")
    data = whole + whole[:-cut]
    assert decode(data, 2)[0] == [(0, 0)]
    assert code_of(data, 2) == (RECORD_BAD_SIZE if cut == len(whole) else RECORD_CUT)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", RECORD_BAD_SIZE),
        (b"\x80", RECORD_BAD_SIZE),
        (b"\xff" * 5 + b"\0" * 20, RECORD_BAD_SIZE),
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
def test_each_fault_has_its_code(data: bytes, expected: int) -> None:
    assert code_of(data) == expected
    assert not record_twin.read_all(data, 1)[1]


@pytest.mark.parametrize("size", [b"\x0c", b"\x8c\0", b"\x8c\x80\0", b"\x8c\x80\x80\x80\x10"])
def test_a_size_may_take_more_bytes_than_it_needs(size: bytes) -> None:
    assert code_of(size + record(0, 0, None, None)[1:]) == RECORD_SOUND


def test_the_last_record_is_kept_back_when_bytes_remain() -> None:
    data = record(0, 0, None, None) + record(1, 0, None, None)
    assert decode(data + b"\0", 2) == ([(0, 0)], RECORDS_REMAINING)
    assert decode(data, 1) == ([], RECORDS_REMAINING)


def test_no_records_are_read_where_none_are_counted() -> None:
    assert decode(b"\xff" * 9, 0) == ([], RECORD_SOUND)


def test_nothing_is_written_behind_what_is_read() -> None:
    data = np.frombuffer(record(1, 2, None, None) + b"\xff" * 20, np.uint8)
    start = data.ctypes.data
    columns = np.full((2, 4), -9, np.int64)
    decode_records(
        np.uint64(start), np.uint64(start + len(data)), 4, 0, 0, 0, 0, columns[0], columns[1]
    )
    assert columns.tolist() == [[1, -9, -9, -9], [2, -9, -9, -9]]


def test_a_faulty_record_leaves_the_address_where_it_is() -> None:
    data = np.frombuffer(b"\xff" * 20, np.uint8)
    start = data.ctypes.data
    address, _, _, code = read_record(np.uint64(start), np.uint64(start + len(data)))
    assert (int(address), int(code)) == (start, RECORD_BAD_SIZE)
