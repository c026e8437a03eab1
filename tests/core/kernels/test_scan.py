"""The scan kernel against a walk with struct."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kafka_index.core.kernels.scan import (
    SCAN_BAD_CRC,
    SCAN_BAD_LENGTH,
    SCAN_BAD_SIZE,
    SCAN_COLUMNS,
    SCAN_END,
    SCAN_NEED_BYTES,
    SCAN_OFFSET_OVERFLOW,
    SCAN_ROWS_FULL,
    SCAN_TORN_BATCH,
    SCAN_TORN_HEADER,
    BatchColumns,
    are_contiguous,
    scan_batches,
)
from tests.support import kernel_models
from tests.support.campaign import sample_size
from tests.support.cases import Case
from tests.support.named_segments import NAMED
from tests.support.segments import DELETE_HORIZON, Segment, batch, marker, message, segment
from tests.support.strategies import segments


def call(
    window: NDArray[np.uint8],
    window_position: int,
    log_size: int,
    position: int,
    base_offset: int,
    columns: NDArray[np.int64],
    *,
    count: int = 0,
    verify_crc: bool = True,
) -> tuple[int, int, int]:
    code, end, count = scan_batches(
        window, window_position, log_size, position, base_offset, verify_crc, columns, count
    )
    return code, int(end), count


def rows_of(columns: NDArray[np.int64], count: int) -> list[kernel_models.Row]:
    """The rows, with zeros for what is undefined without a producer."""
    filled = BatchColumns(*columns[:, :count].copy())
    for column in (filled.producer_epoch, filled.base_sequence):
        column[filled.producer_id < 0] = 0
    # The model has all columns but those of a marker's record.
    shown = (*filled[:-4], filled.magic, filled.record_count)
    return [
        kernel_models.Row(*cells)
        for cells in zip(*(column.tolist() for column in shown), strict=True)
    ]


def scan(
    one: Segment, *, verify_crc: bool = True, capacity: int = 64
) -> tuple[int, int, list[kernel_models.Row]]:
    """Scan a whole log, as many calls as it takes."""
    window = np.frombuffer(one.log, np.uint8)
    columns = np.empty((SCAN_COLUMNS, capacity), np.int64)
    rows: list[kernel_models.Row] = []
    code, position = SCAN_ROWS_FULL, 0
    while code == SCAN_ROWS_FULL:
        code, position, count = call(
            window, 0, len(one.log), position, one.base_offset, columns, verify_crc=verify_crc
        )
        rows += rows_of(columns, count)
    return code, position, rows


def stop_of(*entries: bytes, base_offset: int = 0) -> tuple[int, int]:
    code, position, _ = scan(segment(*entries, base_offset=base_offset))
    return code, position


@settings(deadline=None, max_examples=sample_size(300, one_in=4))
@given(one=segments(), verify_crc=st.booleans(), capacity=st.integers(1, 40))
def test_random_log_is_scanned_as_by_the_reference(
    *, one: Segment, verify_crc: bool, capacity: int
) -> None:
    expected = kernel_models.scan_log(one.log, one.base_offset, verify_crc=verify_crc)
    assert scan(one, verify_crc=verify_crc, capacity=capacity) == expected


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in NAMED])
def test_named_segments_are_scanned_as_by_the_reference(case: Case) -> None:
    one = case.segment
    assert scan(one) == kernel_models.scan_log(one.log, one.base_offset)


@settings(deadline=None, max_examples=sample_size(200, one_in=4))
@given(st.binary(max_size=300), st.integers(0, 2**40))
def test_random_bytes_are_scanned_as_by_the_reference(log: bytes, base_offset: int) -> None:
    one = Segment(log, base_offset)
    assert scan(one, verify_crc=False) == kernel_models.scan_log(log, base_offset, verify_crc=False)


@settings(deadline=None, max_examples=sample_size(150, one_in=4))
@given(segments(), st.data())
def test_scan_of_any_window_equals_the_full_scan(one: Segment, data: st.DataObject) -> None:
    log = np.frombuffer(one.log, np.uint8)
    columns = np.empty((SCAN_COLUMNS, 7), np.int64)
    rows: list[kernel_models.Row] = []
    position, code, got_on = 0, SCAN_NEED_BYTES, True
    while code in {SCAN_NEED_BYTES, SCAN_ROWS_FULL}:
        start = data.draw(st.integers(0, position))
        end = data.draw(st.integers(position, len(log))) if got_on else len(log)
        before = position
        code, position, count = call(
            log[start:end], start, len(log), position, one.base_offset, columns
        )
        got_on = position > before
        rows += rows_of(columns, count)
    assert (code, position, rows) == kernel_models.scan_log(one.log, one.base_offset)


@pytest.mark.parametrize("magic", range(-128, 128))
def test_every_magic_is_read_as_kafka_reads_it(magic: int) -> None:
    entry = batch(5, magic=magic) if magic >= 2 else message(5, magic, 77, b"value")
    code, _, rows = scan(segment(entry, entry))
    assert code == SCAN_END
    assert [row.max_timestamp for row in rows] == [
        -1 if magic == 0 else 77 if magic < 2 else 1007
    ] * 2
    assert rows == kernel_models.scan_log(entry * 2, 0)[2]


@pytest.mark.parametrize("entry", [batch(0), message(0, 0, value=b"v"), message(0, 1, value=b"v")])
def test_flipped_bit_after_the_checksum_field_is_detected(entry: bytes) -> None:
    covered_from = 21 if entry[16] == 2 else 17
    for at in range(covered_from, len(entry)):
        changed = bytearray(entry)
        changed[at] ^= 0x10
        assert stop_of(entry, bytes(changed)) == (SCAN_BAD_CRC, len(entry))


def test_scan_without_checksums_accepts_a_wrong_one() -> None:
    assert scan(segment(batch(0, crc=1)), verify_crc=False)[0] == SCAN_END


@pytest.mark.parametrize("left", range(1, 18))
def test_less_than_a_header_at_the_end_is_torn(left: int) -> None:
    complete_batch = batch(0)
    assert stop_of(complete_batch, complete_batch[:left]) == (SCAN_TORN_HEADER, len(complete_batch))


def test_batch_truncated_anywhere_after_its_magic_is_torn() -> None:
    complete_batch = batch(0)
    for left in range(18, len(complete_batch)):
        assert stop_of(complete_batch[:left]) == (SCAN_TORN_BATCH, 0)


@pytest.mark.parametrize("length", [13, 0, -1, -(2**31)])
def test_length_below_the_smallest_entry_is_reported(length: int) -> None:
    assert stop_of(batch(0, length=length)) == (SCAN_BAD_LENGTH, 0)


@pytest.mark.parametrize("length", [14, 22, 48])
def test_record_batch_shorter_than_its_header_is_reported(length: int) -> None:
    assert stop_of(batch(0, length=length)[: 12 + length]) == (SCAN_BAD_SIZE, 0)


@pytest.mark.parametrize(
    ("base_offset", "last_offset"), [(10, 9), (0, 2**31), (10, -(2**63)), (0, 2**63 - 1)]
)
def test_offset_out_of_range_of_an_index_is_reported(base_offset: int, last_offset: int) -> None:
    entry = batch(last_offset, 1)
    assert stop_of(entry, base_offset=base_offset) == (SCAN_OFFSET_OVERFLOW, 0)


@pytest.mark.parametrize("relative_offset", [0, 2**31 - 1])
def test_smallest_and_largest_offset_are_accepted(relative_offset: int) -> None:
    assert stop_of(batch(10 + relative_offset, 1), base_offset=10)[0] == SCAN_END


def test_transaction_marker_has_its_type() -> None:
    entries = [marker(at, 7, 0, commit=bool(at)) for at in (0, 1)]
    assert [row.control_type for row in scan(segment(*entries))[2]] == [0, 1]


def test_scan_appends_to_existing_rows() -> None:
    entry = batch(0)
    log = np.frombuffer(entry * 2, np.uint8)
    columns = np.full((SCAN_COLUMNS, 4), -9, np.int64)
    result = call(log, 0, len(log), len(entry), 0, columns, count=2)
    assert result == (SCAN_END, len(log), 3)
    assert [list(column[:2]) for column in columns] == [[-9, -9]] * SCAN_COLUMNS
    assert rows_of(columns[:, 2:], 1) == kernel_models.scan_log(entry * 2, 0)[2][1:]


def test_transaction_marker_has_coordinator_epoch_and_timestamp() -> None:
    entries = batch(0) + marker(3, 7, 2, commit=True, coordinator_epoch=12, timestamp=4444)
    log = np.frombuffer(entries, np.uint8)
    columns = np.empty((SCAN_COLUMNS, 4), np.int64)
    call(log, 0, len(log), 0, 0, columns)
    result = BatchColumns(*columns)
    assert result.producer_epoch[1] == 2
    assert result.coordinator_epoch[1] == 12
    assert result.control_timestamp_ms[1] == 4444


@pytest.mark.parametrize(
    ("changes", "contiguous"),
    [
        ({}, True),
        ({"base_offset": 4}, False),
        ({"base_offset": 2, "last_offset_delta": 3}, False),
        ({"last_offset_delta": -1}, False),
        ({"attributes": DELETE_HORIZON}, False),
    ],
)
def test_batches_are_contiguous_if_they_contain_all_offsets_without_cleaner_marks(
    changes: dict[str, Any], *, contiguous: bool
) -> None:
    entries = batch(0) + batch(**{"base_offset": 3, **changes}) + batch(6)
    log = np.frombuffer(entries, np.uint8)
    columns = np.empty((SCAN_COLUMNS, 4), np.int64)
    _, _, count = call(log, 0, len(log), 0, 0, columns)
    result = BatchColumns(*columns[:, :count])
    fields = result.base_offset, result.last_offset, result.attributes, result.control_type
    assert are_contiguous(*fields, 0) is contiguous
    assert are_contiguous(*fields, 1) is False
