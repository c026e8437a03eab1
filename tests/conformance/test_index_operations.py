"""Our index classes do what Kafka's do: the same operations, answers, refusals and bytes.

Operations are generated and run on a file of each; Kafka's classes are those of both versions.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.core.errors import (
    ConfigError,
    CorruptIndexError,
    IndexFullError,
    IndexOffsetOverflowError,
    InvalidOffsetError,
    InvalidTimestampError,
)
from kafka_index.core.index.sparse_indexes import OffsetIndex, OffsetPosition, TimeIndex

from .campaign import random_cases
from .reference_files import index_operations

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from .kafka_reference import KafkaReference

#: What Kafka throws where we raise.
REFUSALS = {
    ConfigError: "IllegalArgumentException",
    CorruptIndexError: "CorruptIndexException",
    IndexFullError: "IllegalArgumentException",
    IndexOffsetOverflowError: "IndexOffsetOverflowException",
    InvalidOffsetError: "InvalidOffsetException",
    InvalidTimestampError: "IllegalStateException",
}
NOTHING = "-"
DONE = "ok"

_Index = OffsetIndex | TimeIndex


def our_operations(kind: str, path: Path, base_offset: int, operations: Sequence[str]) -> list[str]:
    """The results of `reference_files.index_operations`, by our ``offset`` or ``time`` index."""
    return _OurIndex(kind, path, base_offset).run(operations)


class _OurIndex:
    def __init__(self, kind: str, path: Path, base_offset: int) -> None:
        self._kind = OffsetIndex if kind == "offset" else TimeIndex
        self._path = path
        self._base_offset = base_offset
        self._index: _Index | None = None

    def run(self, operations: Sequence[str]) -> list[str]:
        answers = [self._guarded(operation) for operation in operations]
        self._let_go()
        return answers

    def _guarded(self, operation: str) -> str:
        name, *words = operation.split(" ")
        try:
            return self._answer(name, words)
        except tuple(REFUSALS) as refusal:
            return f"!{REFUSALS[type(refusal)]}"

    def _let_go(self) -> None:
        if self._index is not None:
            self._index.close_handler()
            self._index = None

    def _answer(self, name: str, words: list[str]) -> str:
        if name == "open":
            self._let_go()
            self._index = self._kind(
                self._path, self._base_offset, int(words[0]), writable="read-only" not in words
            )
            return DONE
        index = self._index
        assert index is not None
        if name == "close":
            index.close()
            self._index = None
            return DONE
        if name in _CHANGES:
            _CHANGES[name](index, *map(int, words))
            return DONE
        if name in _ANSWERS:
            return _ANSWERS[name](index, *map(int, words))
        if isinstance(index, OffsetIndex):
            return _offset_answer(index, name, words)
        return _time_answer(index, name, words)


def _offset_answer(index: OffsetIndex, name: str, words: list[str]) -> str:
    match name:
        case "append":
            index.append(int(words[0]), int(words[1]))
            return DONE
        case "upper-bound":
            offset, position, size = map(int, words)
            result = index.fetch_upper_bound_offset(OffsetPosition(offset, position), size)
            return NOTHING if result is None else _numbers(result)
        case "last":
            return str(index.last_offset)
        case _:
            raise AssertionError(name)


def _time_answer(index: TimeIndex, name: str, words: list[str]) -> str:
    match name:
        case "maybe-append":
            index.maybe_append(
                int(words[0]), int(words[1]), skip_full_check="skip-full-check" in words
            )
            return DONE
        case "last":
            return _numbers(index.last_entry)
        case _:
            raise AssertionError(name)


def _numbers(entry: tuple[int, int]) -> str:
    return f"{entry[0]} {entry[1]}"


def _flag(value: bool) -> str:  # noqa: FBT001 - one value, turned into its word
    return "true" if value else "false"


def _entries(index: _Index) -> str:
    return " ".join(_numbers(index.entry(slot)) for slot in range(index.entries)) or NOTHING


_CHANGES: dict[str, Callable[..., None]] = {
    "truncate": lambda index: index.truncate(),
    "truncate-to": lambda index, offset: index.truncate_to(offset),
    "trim": lambda index: index.trim_to_valid_size(),
    "reset": lambda index: index.reset(),
    "sanity-check": lambda index: index.sanity_check(),
}
_ANSWERS: dict[str, Callable[..., str]] = {
    "resize": lambda index, size: _flag(index.resize(size)),
    "is-full": lambda index: _flag(index.is_full),
    "length": lambda index: str(index.length),
    "max-entries": lambda index: str(index.max_entries),
    "entries": _entries,
    "lookup": lambda index, target: _numbers(index.lookup(target)),
}


ENTRIES = {"offset": struct.Struct(">ii"), "time": struct.Struct(">qi")}
INT32_MAX = 2**31 - 1
INT64 = (-(2**63), 2**63 - 1)
BASE_OFFSETS = st.sampled_from((0, 1000, 2**40))
#: Entries of a file that is there before; 1,500 are more than the warm end of either index.
FORMER = st.sampled_from((None, None, 0, 1, 2, 7, 600, 1500))
SHARED = ("truncate", "truncate-to", "trim", "sanity-check", "is-full", "length", "max-entries")
NAMES = {
    "offset": ("append",) * 5 + ("lookup", "lookup", "upper-bound", "last", "grow", "entries"),
    "time": ("maybe-append",) * 5 + ("lookup", "lookup", "last", "grow", "entries"),
}
OFTEN = 8
#: A time index that is full up to its reserved slot, and an index that has lost that slot too.
FULL = {"!BufferOverflowException": "!IllegalArgumentException"}


@dataclass
class Draw:
    """Turns random numbers into operations that are mostly sound."""

    kind: str
    base_offset: int
    rng: random.Random
    offset: int = 0
    other: int = 0
    operations: list[str] = field(default_factory=list)

    def add(self, name: str) -> None:
        """Add an operation."""
        match name:
            case "append":
                self._move(least=1)
                self._do(f"append {self.offset} {self.other}")
            case "maybe-append":
                self._move(least=0)
                skip = " skip-full-check" if self.rng.randrange(OFTEN) == 0 else ""
                self._do(f"maybe-append {self.other} {self.offset}{skip}")
            case "lookup":
                self._do(f"lookup {self._target()}")
            case "upper-bound":
                position = self.rng.randrange(self.other + 2)
                self._do(f"upper-bound {self.offset} {position} {self.rng.randrange(200)}")
            case "truncate-to":
                self._do(f"truncate-to {self._target()}")
            case "grow":
                # To fewer bytes than its entries Kafka cannot: see the test by that name.
                self._do("reset" if self.rng.randrange(2) else f"resize {20_000 + self.other % 99}")
            case _:
                self._do(name)

    def _do(self, operation: str) -> None:
        self.operations.append(operation)

    def _move(self, least: int) -> None:
        usual = self.rng.randrange(OFTEN) > 0
        # A time index is spoilt by an offset out of range: the last test here is about that.
        far = (2**31, 2**32) if self.kind == "offset" else (2, 1000)
        self.offset += self.rng.randrange(least, 5) if usual else self.rng.choice((-3, -1, 0, *far))
        if self.kind == "time":
            self.offset = max(self.offset, self.base_offset)
        if usual or self.kind == "offset":
            self.other = min(self.other + self.rng.randrange(40), INT32_MAX)
        else:
            self.other += self.rng.choice((-5, 0, -1 - self.other, 2**40))

    def _target(self) -> int:
        at = self.other if self.kind == "time" else self.offset
        near = self.rng.randrange(at - 60, at + 10)
        return self.rng.choice((near, near, near, self.base_offset, *INT64))


def random_index_bytes(kind: str, count: int, rng: random.Random) -> bytes:
    """Bytes of an index file in order, now and then with a piece of an entry after them."""
    layout = ENTRIES[kind]
    entries = bytearray()
    first = second = 0
    for _ in range(count):
        first += rng.randrange(1, 20)
        second += rng.randrange(20)
        entries += layout.pack(first, second)
    # With room for a time and not for its offset Kafka would write half an entry.
    piece = rng.randrange(1, 8) if rng.randrange(OFTEN) == 0 else 0
    return bytes(entries) + bytes(piece)


def assert_same(
    reference: KafkaReference,
    scratch: Path,
    kind: str,
    base_offset: int,
    operations: list[str],
    former: bytes | None = None,
    lazy: str = "",
) -> None:
    """Kafka's answers, and at the end its bytes, are ours."""
    paths = [scratch / f"{name}.index" for name in ("kafka", "ours")]
    for path in paths:
        path.unlink(missing_ok=True)
        if former is not None:
            path.write_bytes(former)
    kafka = [
        FULL.get(answer, answer)
        for answer in index_operations(
            reference, f"{lazy}{kind}", paths[0], base_offset, operations
        )
    ]
    ours = our_operations(kind, paths[1], base_offset, operations)
    assert list(zip(operations, ours, strict=True)) == list(zip(operations, kafka, strict=True))
    assert paths[1].read_bytes() == paths[0].read_bytes()


def random_operations(
    kind: str, base_offset: int, count: int | None, seed: int, names: list[str]
) -> Draw:
    """Operations on a new file, or on one with so many entries."""
    rng = random.Random(seed)
    draw = Draw(kind, base_offset, rng, base_offset)
    draw.operations.append(f"open {rng.randrange(12, 30) if seed % 9 == 0 else 12 + seed % 300}")
    if count:
        # The next operations are near the end of the entries.
        step = count * 10
        draw.offset += step
        draw.other += step
    for name in names:
        draw.add(name)
    draw.operations += ["entries", "last", "close"]
    return draw


@pytest.mark.parametrize("version", ["reference", "old_reference"])
@pytest.mark.parametrize("kind", ["offset", "time"])
@random_cases(0.1)
@given(data=st.data())
def test_random_index_operations_have_kafkas_results_and_bytes(
    request: pytest.FixtureRequest, scratch: Path, version: str, kind: str, data: st.DataObject
) -> None:
    reference = request.getfixturevalue(version)
    base_offset = data.draw(BASE_OFFSETS)
    count = data.draw(FORMER)
    seed = data.draw(st.integers(0, 2**32))
    names = data.draw(st.lists(st.sampled_from(NAMES[kind] + SHARED), max_size=30))
    draw = random_operations(kind, base_offset, count, seed, names)
    former = None if count is None else random_index_bytes(kind, count, random.Random(seed))
    lazy = "lazy-" if seed % 5 == 0 else ""
    assert_same(reference, scratch, kind, base_offset, draw.operations, former, lazy)


@pytest.mark.parametrize("kind", ["offset", "time"])
def test_lookups_in_a_long_index_equal_kafkas(
    reference: KafkaReference, scratch: Path, kind: str
) -> None:
    former = random_index_bytes(kind, 1500, random.Random(3))
    last = ENTRIES[kind].unpack(former[-ENTRIES[kind].size :])[0]
    targets = [f"lookup {target}" for target in range(-2, last + 3)]
    assert_same(reference, scratch, kind, 0, ["open 10", *targets], former)


def test_upper_bounds_in_a_long_index_equal_kafkas(
    reference: KafkaReference, scratch: Path
) -> None:
    former = random_index_bytes("offset", 1500, random.Random(3))
    last = ENTRIES["offset"].unpack(former[-8:])[1]
    ends = [f"upper-bound 0 0 {size}" for size in range(last + 3)]
    assert_same(reference, scratch, "offset", 0, ["open 10", *ends], former)


@pytest.mark.parametrize("kind", ["offset", "time"])
@pytest.mark.parametrize("size", [0, 7, 11])
def test_index_size_below_one_entry_is_rejected_with_the_same_files_as_kafka(
    reference: KafkaReference, scratch: Path, kind: str, size: int
) -> None:
    path = scratch / "small.index"
    path.unlink(missing_ok=True)
    fits = size >= ENTRIES[kind].size
    assert index_operations(reference, kind, path, 0, [f"open {size}"]) == [
        "ok" if fits else "!IllegalArgumentException"
    ]
    path.unlink(missing_ok=True)
    assert our_operations(kind, path, 0, [f"open {size}"]) == [
        "ok" if fits else "!IllegalArgumentException"
    ]


def test_closing_a_read_only_index_keeps_its_length(
    reference: KafkaReference, scratch: Path
) -> None:
    padded = random_index_bytes("offset", 3, random.Random(1)) + bytes(80)
    for ask in (index_operations, None):
        path = scratch / "padded.index"
        path.write_bytes(padded)
        operations = ["open 100 read-only", "lookup 5", "sanity-check"]
        if ask is None:
            our_operations("offset", path, 0, operations)
        else:
            ask(reference, "offset", path, 0, operations)
        assert path.read_bytes() == padded


def test_kafka_cannot_make_an_index_smaller_than_its_entries(
    reference: KafkaReference, scratch: Path
) -> None:
    path = scratch / "shrunk.index"
    path.unlink(missing_ok=True)
    operations = ["open 40", "append 1 1", "append 2 2", "append 3 3", "resize 16", "entries"]
    assert index_operations(reference, "offset", path, 0, operations)[-2:] == [
        "!IllegalArgumentException",
        "!IndexOutOfBoundsException",
    ]
    # Ours refuses as well, and is unchanged.
    path.unlink()
    ours = our_operations("offset", path, 0, operations)
    assert ours[-2:] == ["!IllegalArgumentException", "1 1 2 2 3 3"]


def test_offset_out_of_range_corrupts_only_kafkas_time_index(
    reference: KafkaReference, scratch: Path
) -> None:
    path = scratch / "spoilt.timeindex"
    operations = ["open 60", "maybe-append 2 4000000000", "maybe-append 3 3", "entries"]
    path.unlink(missing_ok=True)
    assert index_operations(reference, "time", path, 0, operations) == [
        "ok",
        "!IndexOffsetOverflowException",
        "!IllegalStateException",
        "2 0",
    ]
    path.unlink(missing_ok=True)
    assert our_operations("time", path, 0, operations) == [
        "ok",
        "!IndexOffsetOverflowException",
        "ok",
        "3 3",
    ]
