"""Our index classes, driven by the operations that the judge knows for index files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_index.errors import (
    ConfigError,
    CorruptIndexError,
    IndexFullError,
    IndexOffsetOverflowError,
    InvalidOffsetError,
    InvalidTimestampError,
)
from kafka_index.index import OffsetIndex, OffsetPosition, TimeIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

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
    """The results of `judged_files.index_operations`, by our ``offset`` or ``time`` index."""
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
            found = index.fetch_upper_bound_offset(OffsetPosition(offset, position), size)
            return NOTHING if found is None else _numbers(found)
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
