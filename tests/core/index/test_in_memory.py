"""An index in memory is what an index in a file is, but for the file."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_index.core.errors import ConfigError, KafkaIndexError
from kafka_index.core.index.sparse_indexes import IN_MEMORY, OffsetIndex, TimeIndex
from tests.support.campaign import sample_size
from tests.support.index_models import BASE, OFFSET, TIME, Kind

Index = OffsetIndex | TimeIndex
Step = tuple[str, tuple[int, ...]]

_SMALL = st.integers(-2, 40)
#: What is done to an index, with what.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(_SMALL, max_size=12).map(tuple)),
        st.tuples(st.just("append"), st.integers(0, 700).map(lambda n: tuple(range(n)))),
        st.tuples(st.just("truncate_to"), st.tuples(_SMALL)),
        st.tuples(st.just("resize"), st.tuples(st.integers(0, 9000))),
        st.tuples(st.sampled_from(("truncate", "reset", "trim", "skip_padding")), st.just(())),
    ),
    max_size=8,
)


def do(index: Index, step: Step) -> str:
    """Do one step; the kind of error that it ends with."""
    name, numbers = step
    many = np.array(numbers, np.int64)
    try:
        match name:
            case "append" if isinstance(index, OffsetIndex):
                index.append_many(many + BASE, 7 * many)
            case "append" if isinstance(index, TimeIndex):
                index.maybe_append_many(many // 2, many + BASE, skip_full_check=True)
            case "truncate_to":
                index.truncate_to(BASE + numbers[0])
            case "resize":
                index.resize(numbers[0])
            case "truncate":
                index.truncate()
            case "reset":
                index.reset()
            case "trim":
                index.trim_to_valid_size()
            case _:
                index.skip_padding()
    except KafkaIndexError as error:
        return f"{type(error).__name__} {error.message} {error.expected} {error.found}"
    return ""


@dataclass(frozen=True)
class PartitionInspector:
    """All that can be seen of an index."""

    entries: list[list[int]]
    room: int
    size_bytes: int
    last: object
    found: list[list[int]]
    disorder: int


def looks_of(index: Index) -> PartitionInspector:
    targets = np.concatenate([np.arange(-5, 45), np.arange(BASE - 5, BASE + 60)])
    last = index.last_offset if isinstance(index, OffsetIndex) else index.last_entry
    return PartitionInspector(
        [column.tolist() for column in index.read_entries()],
        index.max_entries,
        index.length,
        last,
        [column.tolist() for column in index.lookup_many(targets)],
        index.find_disorder(),
    )


@pytest.mark.parametrize("one", [OFFSET, TIME], ids=lambda one: str(one.name))
@settings(max_examples=sample_size(100, one_in=4))
@given(steps=STEPS, room=st.integers(12, 9000), growing=st.booleans())
def test_in_memory_index_equals_file_index_after_every_operation(
    one: Kind, *, steps: list[Step], room: int, growing: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        memory = one.open(IN_MEMORY, room, growing=growing)
        file = one.open(Path(folder) / "x", room, growing=growing)
        for step in steps:
            assert do(memory, step) == do(file, step)
            assert looks_of(memory) == looks_of(file)
        memory.close()
        file.close()


def test_index_in_memory_makes_no_file(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    index = kind.open(IN_MEMORY, 10_000)
    kind.add(index, 50)
    index.flush()
    index.close()
    assert os.listdir(tmp_path) == []


def test_close_releases_the_memory(kind: Kind) -> None:
    index = kind.open(IN_MEMORY, 1000)
    kind.add(index, 3)
    index.close_handler()
    assert len(index._mapping.data) == 0
    with pytest.raises(ValueError, match="closed"):
        index.lookup_many(np.array([0], np.int64))


def test_two_in_memory_indexes_share_no_entries(kind: Kind) -> None:
    first, second = kind.open(IN_MEMORY, 1000), kind.open(IN_MEMORY, 1000)
    kind.add(first, 5)
    assert (first.entries, second.entries) == (5, 0)


def test_in_memory_index_size_below_one_entry_is_rejected(kind: Kind) -> None:
    with pytest.raises(ConfigError, match=f"{kind.entry_size} bytes"):
        kind.open(IN_MEMORY, kind.entry_size - 1)


def test_growing_index_allocates_memory_for_its_entries_only(kind: Kind) -> None:
    index = kind.open(IN_MEMORY, 2**31 - 1, growing=True)
    assert index.length == 0
    kind.add(index, 3000)
    assert 3000 * kind.entry_size <= index.length <= 4 * 3000 * kind.entry_size
    assert kind.found(index, 2999) == 2999
