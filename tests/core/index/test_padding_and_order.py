"""The checks of strange index files: the begin of padding, and the order of entries."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kafka_index.core.index.slot_search import BULK_LOOKUPS
from kafka_index.core.index.sparse_indexes import OffsetIndex, TimeIndex
from kafka_index.core.kernels.search import NOT_FOUND
from tests.support.index_models import BASE, OFFSET, TIME, Kind

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def file_of(kind: Kind, path: Path, *entries: tuple[int, int]) -> Path:
    """An index file of these pairs of integers as they are stored."""
    code = ">ii" if kind is OFFSET else ">qi"
    path.write_bytes(b"".join(struct.pack(code, *entry) for entry in entries))
    return path


def opened(kind: Kind, path: Path, *entries: tuple[int, int]) -> OffsetIndex | TimeIndex:
    return kind.open(file_of(kind, path, *entries), writable=False)


# ---------------------------------------------------------------------------------- padding


def test_skipped_padding_becomes_free_slots(kind: Kind, tmp_path: Path) -> None:
    index = opened(kind, tmp_path / "x", (1, 1), (2, 2), *[(0, 0)] * 900)
    index.skip_padding()
    assert index.entries == 2
    assert kind.found(index, 99) == 2


def test_index_file_of_only_zeros_has_no_entries(kind: Kind, tmp_path: Path) -> None:
    index = opened(kind, tmp_path / "x", *[(0, 0)] * 900)
    index.skip_padding()
    assert index.entries == 0
    assert kind.found(index, 99) == 0


def test_last_entry_precedes_skipped_padding(tmp_path: Path) -> None:
    offsets = OffsetIndex(file_of(OFFSET, tmp_path / "o", (3, 8), (0, 0)), BASE, writable=False)
    times = TimeIndex(file_of(TIME, tmp_path / "t", (7, 3), (0, 0)), BASE, writable=False)
    offsets.skip_padding()
    times.skip_padding()
    assert (offsets.last_offset, times.last_entry) == (BASE + 3, (7, BASE + 3))


def test_index_without_padding_keeps_all_entries(kind: Kind, tmp_path: Path) -> None:
    index = opened(kind, tmp_path / "x", (0, 0), (1, 1))
    index.skip_padding()
    assert index.entries == 2


def test_zeros_between_entries_are_counted_as_entries(kind: Kind, tmp_path: Path) -> None:
    index = opened(kind, tmp_path / "x", (1, 1), (0, 0), (2, 2))
    index.skip_padding()
    assert index.entries == 3


def test_index_that_skips_padding_does_not_change_its_file(kind: Kind, tmp_path: Path) -> None:
    index = opened(kind, tmp_path / "x", (1, 1), (0, 0))
    content = (tmp_path / "x").read_bytes()
    index.skip_padding()
    index.close()
    assert (tmp_path / "x").read_bytes() == content


# ------------------------------------------------------------------------------------ order


def test_ascending_entries_are_in_order(kind: Kind, tmp_path: Path) -> None:
    assert opened(kind, tmp_path / "x", (0, 0), (1, 1), (5, 2)).find_disorder() == NOT_FOUND


@pytest.mark.parametrize("key", [0, 1, -1])
def test_non_ascending_key_is_out_of_order(kind: Kind, tmp_path: Path, key: int) -> None:
    index = opened(kind, tmp_path / "x", (0, 0), (1, 1), (key, 2))
    assert index.find_disorder() == 2


def test_equal_offsets_with_ascending_positions_are_in_order(tmp_path: Path) -> None:
    # The latest batch may be the last of one stretch of the log, and of the next none later.
    entries = (1, 5), (2, 5)
    assert opened(OFFSET, tmp_path / "o", *entries).find_disorder() == 1
    assert opened(TIME, tmp_path / "t", *entries).find_disorder() == NOT_FOUND


def test_skipped_padding_is_not_checked_for_order(kind: Kind, tmp_path: Path) -> None:
    index = opened(kind, tmp_path / "x", (1, 1), (0, 0))
    assert index.find_disorder() == 1
    index.skip_padding()
    assert index.find_disorder() == NOT_FOUND


def test_closed_index_rejects_the_order_check(kind: Kind, tmp_path: Path) -> None:
    index = opened(kind, tmp_path / "x", (1, 1))
    index.close()
    with pytest.raises(ValueError, match="closed"):
        index.find_disorder()


# ----------------------------------------------------------------------------- bulk lookups

EXTREMES = (INT64_MIN, INT64_MIN + 1, -1, 0, BASE - 1, BASE, INT64_MAX - 1, INT64_MAX)
TARGETS = st.lists(st.integers(-10, 200) | st.sampled_from(EXTREMES), min_size=BULK_LOOKUPS)


def pairs(columns: tuple[NDArray[np.int64], NDArray[np.int64]]) -> list[tuple[int, int]]:
    return list(zip(*(column.tolist() for column in columns), strict=True))


@given(st.sets(st.integers(0, 120), max_size=50).map(sorted), TARGETS)
def test_ceiling_is_the_first_entry_at_or_above_the_target(
    keys: list[int], generated: list[int]
) -> None:
    index = OffsetIndex("<memory>", BASE, 1000)
    index.append_many(np.array(keys, np.int64) + BASE, 7 * np.array(keys, np.int64))
    expected = []
    for target in generated:
        # Kafka's search never compares the very first key for equality.
        above = [
            slot
            for slot, key in enumerate(keys)
            if key + BASE > target or (slot and key + BASE == target)
        ]
        expected.append(above[0] if above else NOT_FOUND)
    stored = np.maximum(np.array(generated, np.int64), BASE - 1) - BASE
    assert index.ceiling_slots(stored).tolist() == expected


@pytest.mark.parametrize("count", [1, BULK_LOOKUPS - 1, BULK_LOOKUPS, 3 * BULK_LOOKUPS])
@pytest.mark.parametrize("target", EXTREMES)
def test_int64_min_and_max_targets_find_the_ends_of_the_index(count: int, target: int) -> None:
    base = 2**62
    index = OffsetIndex("<memory>", base, 1000)
    index.append(base + 2**31 - 1, 9)
    expected = (base + 2**31 - 1, 9) if target > base + 2**31 else (base, 0)
    assert set(pairs(index.lookup_many(np.full(count, target)))) == {expected}


def test_ascending_lookup_writes_only_the_given_rows(kind: Kind, tmp_path: Path) -> None:
    index = opened(kind, tmp_path / "x", (1, 10), (2, 20))
    keys, values = np.full(4, -7), np.full(4, -7)
    base = BASE if kind is OFFSET else 0
    index.look_up_ascending(np.array([1, 2]) + base, np.array([3, 0]), keys, values)
    added = 0 if kind is OFFSET else BASE
    assert keys.tolist() == [2 + base, -7, -7, 1 + base]
    assert values.tolist() == [20 + added, -7, -7, 10 + added]


def test_closed_index_rejects_ascending_lookups(kind: Kind, tmp_path: Path) -> None:
    index = opened(kind, tmp_path / "x", (1, 10))
    index.close()
    one = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="closed"):
        index.look_up_ascending(one, one, one.copy(), one.copy())
