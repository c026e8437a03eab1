"""The offset index against Kafka's semantics."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kafka_index.core.errors import (
    CorruptIndexError,
    IndexOffsetOverflowError,
    InvalidOffsetError,
    KafkaIndexError,
)
from kafka_index.core.index.slot_search import BULK_LOOKUPS
from kafka_index.core.index.sparse_indexes import OffsetIndex, OffsetPosition
from tests.support.index_models import OffsetIndexModel

BASE = 45
Entry = tuple[int, int]


@pytest.fixture
def index(tmp_path: Path) -> OffsetIndex:
    """An empty index with room for 30 entries."""
    return OffsetIndex(tmp_path / "0.index", BASE, 30 * 8)


def longs(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def file_of(path: Path, *entries: Entry) -> Path:
    """A closed index file of (relative offset, position)."""
    path.write_bytes(b"".join(struct.pack(">ii", *entry) for entry in entries))
    return path


def entries_of(index: OffsetIndex) -> list[Entry]:
    offsets, positions = index.read_entries()
    return list(zip(offsets.tolist(), positions.tolist(), strict=True))


def appended(index: OffsetIndex, *entries: Entry) -> OffsetIndex:
    for entry in entries:
        index.append(*entry)
    return index


def test_entries_are_relative_to_the_base_offset_and_big_endian(index: OffsetIndex) -> None:
    appended(index, (49, 1), (52, 258)).close()
    assert Path(index.path).read_bytes() == struct.pack(">iiii", 4, 1, 7, 258)


@pytest.mark.parametrize("offset", [51, 52])
def test_offset_that_does_not_grow_is_rejected(index: OffsetIndex, offset: int) -> None:
    with pytest.raises(InvalidOffsetError, match="more than 52"):
        appended(index, (52, 1)).append(offset, 2)


@pytest.mark.parametrize("offset", [BASE - 1, BASE + 2**31])
def test_offset_that_is_not_representable_is_rejected(index: OffsetIndex, offset: int) -> None:
    assert not index.can_append_offset(offset)
    with pytest.raises(IndexOffsetOverflowError):
        index.append(offset, 0)


def test_slot_outside_the_index_is_rejected(index: OffsetIndex) -> None:
    with pytest.raises(IndexError):
        appended(index, (49, 1)).entry(1)
    with pytest.raises(IndexError):
        index.entry(-1)


def test_fetch_is_bounded_by_the_first_entry_at_or_after_its_end(index: OffsetIndex) -> None:
    first, *_, last = entries = [(BASE + number, 10 * number) for number in range(1, 5)]
    assert index.fetch_upper_bound_offset(OffsetPosition(BASE, 0), 5) is None
    appended(index, *entries)
    bounds = [
        index.fetch_upper_bound_offset(OffsetPosition(*first), size) for size in (1, 10, 11, 30, 31)
    ]
    assert bounds == [entries[1], entries[1], entries[2], last, None]


def test_fetch_that_ends_before_the_first_entry_is_bounded_by_it(index: OffsetIndex) -> None:
    appended(index, (46, 10), (47, 20))
    assert index.fetch_upper_bound_offset(OffsetPosition(BASE, 0), 9) == (46, 10)


def test_fetch_that_ends_exactly_at_the_first_entry_is_bounded_by_the_second(
    index: OffsetIndex,
) -> None:
    # Kafka's search never compares slot 0 for equality.
    appended(index, (46, 10))
    assert index.fetch_upper_bound_offset(OffsetPosition(BASE, 0), 10) is None
    appended(index, (47, 20))
    assert index.fetch_upper_bound_offset(OffsetPosition(BASE, 0), 10) == (47, 20)


def test_last_offset_below_the_base_fails_the_sanity_check(tmp_path: Path) -> None:
    index = OffsetIndex(file_of(tmp_path / "0.index", (1, 0), (-3, 9)), BASE)
    with pytest.raises(CorruptIndexError, match="below the base offset"):
        index.sanity_check()


OFFSETS = st.integers(BASE - 1, BASE + 60) | st.sampled_from((BASE + 2**31 - 1, BASE + 2**31))


@settings(deadline=None)
@given(
    entries=st.lists(st.tuples(OFFSETS, st.integers(0, 2**31 - 1)), max_size=40),
    room=st.integers(1, 25),
    sizes=st.lists(st.integers(1, 9), max_size=10),
    growing=st.booleans(),
)
def test_bulk_append_equals_single_appends(
    *, entries: list[Entry], room: int, sizes: list[int], growing: bool
) -> None:
    model = OffsetIndexModel(BASE, room)
    with tempfile.TemporaryDirectory() as folder:
        index = OffsetIndex(f"{folder}/0.index", BASE, room * 8, growing=growing)
        for size in [*sizes, len(entries)]:
            part, entries = entries[:size], entries[size:]
            expected = next(
                ((n, error) for n, entry in enumerate(part) if (error := model.append(*entry))),
                (len(part), None),
            )
            taken, refusal = index.try_append_many(
                longs(*(offset for offset, _ in part)), longs(*(at for _, at in part))
            )
            assert (taken, _name(refusal)) == expected
            assert entries_of(index) == model.entries
            assert index.last_offset == (model.entries[-1][0] if model.entries else BASE)
        index.close()


def _name(error: KafkaIndexError | None) -> str | None:
    return None if error is None else type(error).__name__


LARGEST = 2**31 - 1
TARGETS = st.integers(-10, 300) | st.sampled_from(
    (-(2**63), -1, BASE - 1, BASE, BASE + LARGEST, 2**63 - 1)
)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 200) | st.just(LARGEST), unique=True, max_size=60).map(sorted),
    st.lists(TARGETS, max_size=30) | st.lists(TARGETS, min_size=BULK_LOOKUPS),
    TARGETS,
)
@example([4, 7, 10], [44, 48, 49, 51, 52, 55, 99], 53)
def test_lookups_and_truncation_equal_those_of_a_list(
    relative: list[int], targets: list[int], end: int
) -> None:
    model = OffsetIndexModel(BASE, 100, [(BASE + one, one // 2) for one in relative])
    with tempfile.TemporaryDirectory() as folder:
        path = file_of(Path(folder) / "0.index", *((one, one // 2) for one in relative))
        index = OffsetIndex(path, BASE)
        expected = [model.lookup(target) for target in targets]
        offsets, positions = index.lookup_many(longs(*targets))
        assert list(zip(offsets.tolist(), positions.tolist(), strict=True)) == expected
        assert [index.lookup(target) for target in targets] == expected
        index.truncate_to(end)
        model.truncate_to(end)
        assert entries_of(index) == model.entries
        assert index.last_offset == (model.entries[-1][0] if model.entries else BASE)
        index.close()
