"""The time index against Kafka's semantics."""

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
    InvalidTimestampError,
    KafkaIndexError,
)
from kafka_index.core.index.slot_search import BULK_LOOKUPS
from kafka_index.core.index.sparse_indexes import TimeIndex
from tests.support.index_models import TimeIndexModel

BASE = 45
Entry = tuple[int, int]


@pytest.fixture
def index(tmp_path: Path) -> TimeIndex:
    """An empty index with room for 30 entries."""
    return TimeIndex(tmp_path / "0.timeindex", BASE, 30 * 12)


def appended(index: TimeIndex, *entries: Entry) -> TimeIndex:
    for entry in entries:
        index.maybe_append(*entry)
    return index


def entries_of(index: TimeIndex) -> list[Entry]:
    timestamps, offsets = index.read_entries()
    return list(zip(timestamps.tolist(), offsets.tolist(), strict=True))


def file_of(path: Path, *entries: Entry) -> Path:
    """A closed index file of (timestamp, relative offset)."""
    path.write_bytes(b"".join(struct.pack(">qi", *entry) for entry in entries))
    return path


def test_entries_are_relative_to_the_base_offset_and_big_endian(index: TimeIndex) -> None:
    appended(index, (1000, 49), (2**40, 52)).close()
    assert Path(index.path).read_bytes() == struct.pack(">qiqi", 1000, 4, 2**40, 7)


def test_time_index_of_one_entry_size_is_full_when_empty(tmp_path: Path) -> None:
    assert TimeIndex(tmp_path / "0.timeindex", 0, 12).is_full


def test_smaller_offset_is_rejected_even_with_an_equal_timestamp(index: TimeIndex) -> None:
    appended(index, (100, 50))
    for timestamp in (99, 100, 101):
        with pytest.raises(InvalidOffsetError, match="50 or more"):
            index.maybe_append(timestamp, 49)


def test_smaller_timestamp_is_rejected(index: TimeIndex) -> None:
    with pytest.raises(InvalidTimestampError, match="100 or more"):
        appended(index, (100, 50)).maybe_append(99, 51)


@pytest.mark.parametrize("offset", [BASE - 1, BASE + 2**31])
def test_offset_that_is_not_representable_is_rejected(index: TimeIndex, offset: int) -> None:
    with pytest.raises(IndexOffsetOverflowError):
        index.maybe_append(100, offset)
    assert index.entries == 0


def test_time_index_is_truncated_by_offset(index: TimeIndex) -> None:
    appended(index, (100, 50), (110, 60), (120, 70))
    index.truncate_to(65)
    assert entries_of(index) == [(100, 50), (110, 60)]
    index.truncate_to(60)
    assert index.last_entry == (100, 50)
    index.truncate_to(0)
    assert index.last_entry == (-1, BASE)


def test_last_timestamp_below_the_first_fails_the_sanity_check(tmp_path: Path) -> None:
    index = TimeIndex(file_of(tmp_path / "0.timeindex", (100, 1), (90, 2)), BASE)
    with pytest.raises(CorruptIndexError, match="timestamp is below the first"):
        index.sanity_check()


def test_last_offset_below_the_base_fails_the_sanity_check(tmp_path: Path) -> None:
    index = TimeIndex(file_of(tmp_path / "0.timeindex", (100, 1), (110, -2)), BASE)
    with pytest.raises(CorruptIndexError, match="below the base offset"):
        index.sanity_check()


TIMES = st.integers(-2, 40) | st.sampled_from((-(2**63), 2**63 - 1))
OFFSETS = st.integers(BASE - 1, BASE + 60) | st.sampled_from((BASE + 2**31 - 1, BASE + 2**31))


@st.composite
def runs(draw: st.DrawFn) -> list[Entry]:
    """Entries that mostly rise, so that many are taken before one is refused."""
    wild = draw(st.booleans())
    entries = draw(st.lists(st.tuples(TIMES, OFFSETS), max_size=30))
    if wild:
        return entries
    times, offsets = sorted(time for time, _ in entries), sorted(offset for _, offset in entries)
    return list(zip(times, offsets, strict=True))


@settings(deadline=None)
@given(
    entries=runs(),
    room=st.integers(1, 25),
    parts=st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=10),
    growing=st.booleans(),
)
def test_bulk_append_equals_single_appends(
    *, entries: list[Entry], room: int, parts: list[tuple[int, bool]], growing: bool
) -> None:
    model = TimeIndexModel(BASE, room)
    with tempfile.TemporaryDirectory() as folder:
        index = TimeIndex(f"{folder}/0.timeindex", BASE, room * 12, growing=growing)
        for size, skip in [*parts, (len(entries), False)]:
            part, entries = entries[:size], entries[size:]
            expected: tuple[int, str | None] = (len(part), None)
            for number, entry in enumerate(part):
                error = model.maybe_append(*entry, skip_full_check=skip)
                if error is not None:
                    expected = number, error
                    break
            columns = np.array(part, np.int64).reshape(-1, 2).T.copy()
            taken, refusal = index.try_maybe_append_many(*columns, skip_full_check=skip)
            assert (taken, _name(refusal)) == expected
            assert entries_of(index) == model.entries
            assert index.last_entry == (model.entries[-1] if model.entries else (-1, BASE))
        index.close()


def _name(error: KafkaIndexError | None) -> str | None:
    return None if error is None else type(error).__name__


TARGETS = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 200)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 2**62) | st.integers(0, 200), unique=True, max_size=60).map(sorted),
    st.lists(TARGETS, max_size=30) | st.lists(TARGETS, min_size=BULK_LOOKUPS),
)
@example([100, 110, 120], [-5, 99, 100, 115, 120, 2**62])
def test_lookups_equal_those_of_a_list(times: list[int], targets: list[int]) -> None:
    entries = [(time, number // 2) for number, time in enumerate(times)]
    model = TimeIndexModel(BASE, 100, [(time, BASE + offset) for time, offset in entries])
    wanted = targets + times
    with tempfile.TemporaryDirectory() as folder:
        index = TimeIndex(file_of(Path(folder) / "0.timeindex", *entries), BASE)
        expected = [model.lookup(target) for target in wanted]
        timestamps, offsets = index.lookup_many(np.array(wanted, np.int64))
        assert list(zip(timestamps.tolist(), offsets.tolist(), strict=True)) == expected
        assert [index.lookup(target) for target in wanted] == expected
        index.close()
