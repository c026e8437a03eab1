"""Searches for many targets at once against a look at every entry."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.core.kernels.search import (
    NOT_FOUND,
    count_entries,
    find_disorder,
    find_entries,
    gallop_floor,
    is_ascending,
)
from tests.support import kernel_models

Entry = tuple[int, int]
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
UNTOUCHED = -77
INT32S = st.integers(0, INT32_MAX)


@dataclass(frozen=True)
class Layout:
    """Keys and their widths; an int32 follows each of them."""

    name: str
    code: str
    key_bytes: int
    largest: int

    @property
    def entry_bytes(self) -> int:
        return self.key_bytes + 4

    def packed(self, entries: list[Entry]) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        return np.frombuffer(
            b"".join(struct.pack(self.code, *entry) for entry in entries), np.uint8
        )


OFFSETS = Layout("offset", ">ii", 4, INT32_MAX)
TIMES = Layout("time", ">qi", 8, INT64_MAX)
LAYOUTS = st.sampled_from((OFFSETS, TIMES))


@st.composite
def sorted_keys(draw: st.DrawFn, layout: Layout, max_size: int = 60) -> list[int]:
    """Keys close together, far apart, and at the ends of what fits."""
    one = st.integers(0, 90) | st.integers(0, layout.largest) | st.just(layout.largest)
    return sorted(draw(st.sets(one, max_size=max_size)))


@st.composite
def files_and_targets(draw: st.DrawFn) -> tuple[Layout, list[Entry], list[int]]:
    """Entries in ascending order, and targets among and around their keys."""
    layout = draw(LAYOUTS)
    keys = draw(sorted_keys(layout))
    values = draw(st.lists(INT32S, min_size=len(keys), max_size=len(keys)))
    near = [key + step for key in keys for step in (-1, 0, 1)] or [0]
    targets = draw(st.lists(st.sampled_from(near) | st.integers(-2, layout.largest), max_size=40))
    bounded = [min(target, layout.largest) for target in targets]
    return layout, list(zip(keys, values, strict=True)), bounded


def gallop(layout: Layout, keys: list[int], target: int, slot: int) -> int:
    data = layout.packed([(key, 0) for key in keys])
    address = np.uint64(data.ctypes.data)
    return int(gallop_floor(address, len(keys), layout.entry_bytes, layout.key_bytes, target, slot))


def find(
    layout: Layout,
    entries: list[Entry],
    targets: list[int],
    *,
    key_base: int = 0,
    value_base: int = 0,
    missing_key: int = -1,
    rows: list[int] | None = None,
) -> list[Entry]:
    """The answers in their rows, ascending targets given."""
    data = layout.packed(entries)
    array = np.full((2, len(targets)), UNTOUCHED, np.int64)
    find_entries(
        np.uint64(data.ctypes.data),
        len(entries),
        layout.entry_bytes,
        layout.key_bytes,
        key_base,
        value_base,
        missing_key,
        np.array(targets, np.int64),
        np.array(range(len(targets)) if rows is None else rows, np.int64),
        array[0],
        array[1],
    )
    return list(zip(array[0].tolist(), array[1].tolist(), strict=True))


# -------------------------------------------------------------------------------- galloping


@given(files_and_targets(), st.data())
def test_galloping_search_equals_linear_search(
    generated: tuple[Layout, list[Entry], list[int]], data: st.DataObject
) -> None:
    layout, entries, targets = generated
    keys = [key for key, _ in entries]
    for target in targets:
        floor = kernel_models.floor_slot(keys, target)
        begin = data.draw(st.integers(NOT_FOUND, floor))
        assert gallop(layout, keys, target, begin) == floor


@pytest.mark.parametrize("count", range(20))
def test_galloping_search_reaches_the_last_entry(count: int) -> None:
    keys = list(range(10, 10 + count))
    assert gallop(OFFSETS, keys, INT32_MAX, NOT_FOUND) == count - 1


# ----------------------------------------------------------------------------- bulk lookups


@given(files_and_targets())
def test_bulk_lookup_equals_linear_search(
    generated: tuple[Layout, list[Entry], list[int]],
) -> None:
    layout, entries, targets = generated
    targets.sort()
    slots = [kernel_models.floor_slot([key for key, _ in entries], target) for target in targets]
    expected = [(-1, 0) if slot < 0 else entries[slot] for slot in slots]
    assert find(layout, entries, targets) == expected


@given(files_and_targets(), st.integers(0, 2**62), st.integers(0, 2**62), st.integers(-1, 9))
def test_bulk_lookup_adds_the_base_offset_to_found_entries(
    generated: tuple[Layout, list[Entry], list[int]], key_base: int, value_base: int, missing: int
) -> None:
    layout, entries, targets = generated
    entries = [(key % 2**61, value) for key, value in entries if key < 2**61]
    targets = sorted(min(target, 2**61) for target in targets)
    slots = [kernel_models.floor_slot([key for key, _ in entries], target) for target in targets]
    expected = [
        (missing, value_base)
        if slot < 0
        else (entries[slot][0] + key_base, entries[slot][1] + value_base)
        for slot in slots
    ]
    absolute = [target + key_base for target in targets]
    actual = find(
        layout,
        entries,
        absolute,
        key_base=key_base,
        value_base=value_base,
        missing_key=missing,
    )
    assert actual == expected


@given(st.permutations(range(12)))
def test_answers_are_written_to_the_rows_of_their_targets(rows: list[int]) -> None:
    entries = [(10 * number, number) for number in range(12)]
    result = find(OFFSETS, entries, [10 * number for number in range(12)], rows=rows)
    assert [result[row] for row in rows] == entries


def test_bulk_lookup_in_an_empty_index_finds_nothing() -> None:
    assert find(TIMES, [], [-5, 0, INT64_MAX], value_base=7) == [(-1, 7)] * 3


def test_rows_that_are_not_requested_are_unchanged() -> None:
    data = OFFSETS.packed([(1, 2)])
    array = np.full((2, 3), UNTOUCHED, np.int64)
    target, row = np.array([5], np.int64), np.array([1], np.int64)
    find_entries(np.uint64(data.ctypes.data), 1, 8, 4, 0, 0, 0, target, row, array[0], array[1])
    assert array.tolist() == [[UNTOUCHED, 1, UNTOUCHED], [UNTOUCHED, 2, UNTOUCHED]]


# ---------------------------------------------------------------------------------- padding


def count(layout: Layout, entries: list[Entry]) -> int:
    data = layout.packed(entries)
    return int(count_entries(np.uint64(data.ctypes.data), len(entries), layout.entry_bytes))


@given(LAYOUTS, st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), max_size=20))
def test_entry_count_ends_at_the_last_nonzero_entry(layout: Layout, entries: list[Entry]) -> None:
    not_zero = [slot for slot, entry in enumerate(entries) if any(entry)]
    assert count(layout, entries) == (not_zero[-1] + 1 if not_zero else 0)


@pytest.mark.parametrize("layout", [OFFSETS, TIMES], ids=lambda layout: layout.name)
def test_index_entry_with_any_bit_set_is_counted(layout: Layout) -> None:
    for bit in range(8 * layout.entry_bytes):
        one = (1 << bit).to_bytes(layout.entry_bytes, "big")
        data = np.frombuffer(one + bytes(layout.entry_bytes), np.uint8)
        assert count_entries(np.uint64(data.ctypes.data), 2, layout.entry_bytes) == 1


# --------------------------------------------------------------------------------- disorder


def disorder(layout: Layout, entries: list[Entry], least_step: int) -> int:
    data = layout.packed(entries)
    address = np.uint64(data.ctypes.data)
    return int(
        find_disorder(address, len(entries), layout.entry_bytes, layout.key_bytes, least_step)
    )


def first_disorder(entries: list[Entry], least_step: int) -> int:
    for slot, (key, value) in enumerate(entries):
        if min(key, value) < 0:
            return slot
        if slot and (key <= entries[slot - 1][0] or value - entries[slot - 1][1] < least_step):
            return slot
    return NOT_FOUND


@given(
    LAYOUTS,
    st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 3)), max_size=4),
    st.integers(0, 1),
)
def test_order_check_reports_the_first_misplaced_entry(
    layout: Layout, entries: list[Entry], least_step: int
) -> None:
    assert disorder(layout, entries, least_step) == first_disorder(entries, least_step)


@given(LAYOUTS, st.data(), st.integers(0, 1))
def test_order_check_reports_misplaced_entries_of_long_files(
    layout: Layout, data: st.DataObject, least_step: int
) -> None:
    keys = data.draw(sorted_keys(layout))
    entries = [(key, 3 * slot) for slot, key in enumerate(keys)]
    assert disorder(layout, entries, least_step) == NOT_FOUND
    if not entries:
        return
    slot = data.draw(st.integers(0, len(entries) - 1))
    changed = st.tuples(st.sampled_from([*keys, -1]), st.integers(-1, 3 * len(entries)))
    entries[slot] = data.draw(changed)
    assert disorder(layout, entries, least_step) == first_disorder(entries, least_step)


# ------------------------------------------------------------------------------------ order


@given(st.lists(st.integers(-(2**63), INT64_MAX), max_size=8), st.integers(0, 3))
def test_ascending_check_equals_comparison_with_sorted(values: list[int], repeated: int) -> None:
    values += values[-1:] * repeated
    assert is_ascending(np.array(values, np.int64)) == (values == sorted(values))
    assert is_ascending(np.array(sorted(values), np.int64))


@pytest.mark.parametrize("length", [2, 511, 512, 513, 514, 1024, 1025, 1026, 1600])
def test_ascending_check_detects_one_descent(length: int) -> None:
    for fall in {1, length // 2, length - 1, *(near for near in (511, 512, 513) if near < length)}:
        values = np.arange(length)
        values[fall:] -= 2
        assert not is_ascending(values), fall
