"""Slot search: right answers from both searches, and the pages each of them touches."""

from __future__ import annotations

import bisect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kafka_index.core.format.records import OFFSET_ENTRY, TIME_ENTRY, WARM_BYTES
from kafka_index.core.kernels.search import NOT_FOUND, find_floor, find_floors
from tests.support import kernel_models

PAGE = 4096
PLAIN = 0
Entries = NDArray[np.void]

INT32S = st.integers(0, 2**31 - 1)
INT64S = st.integers(-(2**63), 2**63 - 1)


def offset_entries(keys: list[int] | range) -> Entries:
    entries = np.zeros(len(keys), OFFSET_ENTRY)
    entries["relative_offset"] = keys
    return entries


def time_entries(keys: list[int] | range) -> Entries:
    entries = np.zeros(len(keys), TIME_ENTRY)
    entries["timestamp_ms"] = keys
    return entries


def warm(entries: Entries) -> int:
    return WARM_BYTES // entries.itemsize


def floors(entries: Entries, targets: list[int], warm_entries: int) -> list[int]:
    """Slots for the first field of the entries."""
    key_bytes = 4 if entries.dtype == OFFSET_ENTRY else 8
    slots = np.empty(len(targets), np.int64)
    find_floors(
        entries.ctypes.data,
        len(entries),
        entries.itemsize,
        0,
        key_bytes,
        np.array(targets, np.int64),
        warm_entries,
        slots,
    )
    return [int(slot) for slot in slots]


def pages_touched(entries: Entries, count: int, target: int, warm_entries: int) -> list[int]:
    """Pages of a file with the first `count` entries that a search reads, in ascending order."""
    key_bytes = 4 if entries.dtype == OFFSET_ENTRY else 8
    trace = np.empty(64, np.int64)
    address = np.uint64(entries.ctypes.data)
    slot, reads = find_floor(
        address, count, entries.itemsize, 0, key_bytes, target, warm_entries, trace
    )
    starts = [int(slot) * entries.itemsize for slot in (*trace[:reads], slot)]
    return sorted({at // PAGE for start in starts for at in (start, start + entries.itemsize - 1)})


@given(st.lists(INT32S, unique=True, max_size=60).map(sorted), st.lists(INT64S | INT32S))
def test_offset_index_search_equals_linear_search(keys: list[int], targets: list[int]) -> None:
    wanted = targets + keys + [key - 1 for key in keys]
    expected = [kernel_models.floor_slot(keys, target) for target in wanted]
    entries = offset_entries(keys)
    assert floors(entries, wanted, warm(entries)) == expected
    assert floors(entries, wanted, PLAIN) == expected


@given(st.lists(INT64S, unique=True, max_size=60).map(sorted), st.lists(INT64S))
def test_time_index_search_equals_linear_search(keys: list[int], targets: list[int]) -> None:
    wanted = targets + keys
    expected = [kernel_models.floor_slot(keys, target) for target in wanted]
    entries = time_entries(keys)
    assert floors(entries, wanted, warm(entries)) == expected
    assert floors(entries, wanted, PLAIN) == expected


@given(st.integers(0, 5000), st.integers(1, 3), st.integers(1, 1200), st.data())
def test_warm_section_boundary_does_not_change_the_result(
    count: int, step: int, warm_entries: int, data: st.DataObject
) -> None:
    entries = offset_entries(range(0, count * step, step))
    targets = data.draw(st.lists(st.integers(-1, count * step + 1), max_size=20))
    border = (count - 1 - warm_entries) * step
    targets += [border - 1, border, border + 1]
    keys = list(range(0, count * step, step))
    expected = [bisect.bisect_right(keys, target) - 1 for target in targets]
    assert floors(entries, targets, warm_entries) == expected


def test_search_of_an_empty_index_finds_nothing() -> None:
    assert floors(offset_entries([]), [0, 5], 1024) == [NOT_FOUND, NOT_FOUND]


# Kafka's comment in AbstractIndex.java (KAFKA-6432): with the 14th page the plain search for
# something in the last page leaves pages 6, 9 and 11 and wants 7 and 10, gone cold since long ago.


@pytest.mark.parametrize(("pages", "touched"), [(13, [0, 6, 9, 11, 12]), (14, [0, 7, 10, 12, 13])])
def test_binary_search_without_warm_section_touches_other_pages_as_the_file_grows(
    pages: int, touched: list[int]
) -> None:
    per_page = PAGE // OFFSET_ENTRY.itemsize
    entries = offset_entries(range(pages * per_page))
    for target in range((pages - 1) * per_page, pages * per_page):
        assert pages_touched(entries, len(entries), target, PLAIN) == touched


LARGEST = offset_entries(range(2560 * PAGE // OFFSET_ENTRY.itemsize))
LARGEST_TIME = time_entries(range(2560 * PAGE // TIME_ENTRY.itemsize))


@pytest.mark.parametrize("entries", [LARGEST, LARGEST_TIME], ids=["offset", "time"])
def test_lookup_near_the_end_touches_three_pages_for_any_index_size(entries: Entries) -> None:
    for pages in range(12, 2561):
        count = pages * PAGE // entries.itemsize - pages % 7
        for back in (0, 1, 300, warm(entries) - 1):
            target = count - 1 - back
            touched = pages_touched(entries, count, target, warm(entries))
            assert len(touched) <= 3
            assert touched[0] >= (count - 1) * entries.itemsize // PAGE - 2


def test_lookups_near_the_end_touch_the_same_pages_while_a_page_fills() -> None:
    per_page = PAGE // OFFSET_ENTRY.itemsize
    start = 40 * per_page
    touched = {
        tuple(pages_touched(LARGEST, count, count - 1, warm(LARGEST)))
        for count in range(start + 1, start + per_page)
    }
    assert touched == {(38, 39, 40)}


def test_lookup_in_the_warm_section_touches_every_page_of_it() -> None:
    # Or else it would not stay warm. The last page counts: the next entry is written there.
    count = 40 * PAGE // OFFSET_ENTRY.itemsize + 200
    for back in range(warm(LARGEST)):
        touched = pages_touched(LARGEST, count, count - 1 - back, warm(LARGEST))
        assert {38, 39} <= set(touched) <= {38, 39, 40}
