"""The records that a rewrite drops: those with some keys, or those that satisfy a condition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.errors import InputError
from kafka_index.layout.byte_text import parse_bytes
from kafka_index.writing.condition import CONDITION_COLUMNS, Condition, ConditionMatcher


@dataclass(frozen=True, slots=True)
class Selection:
    """The records to drop, by keys or by a condition, one of the two; picklable."""

    keys: tuple[bytes, ...] | None = None
    condition: Condition | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that decide."""
        return ("key",) if self.condition is None else CONDITION_COLUMNS

    def matcher(self) -> SelectionMatcher:
        """Return what selects records, for use by one thread."""
        return SelectionMatcher(self)


class SelectionMatcher:
    """Selects records."""

    def __init__(self, selection: Selection) -> None:
        self.columns = selection.columns
        self._condition = (
            None if selection.condition is None else ConditionMatcher(selection.condition)
        )
        self._keys = pa.array(sorted(set(selection.keys or ())), pa.binary())

    def match(self, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return which records are dropped."""
        if self._condition is not None:
            return self._condition.match(rows)
        found = pc.is_in(rows.column("key"), value_set=self._keys)
        matches: NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
        return matches


def parse_keys(lines: Iterable[str], *, path: str) -> tuple[bytes, ...]:
    """Return the keys of a file, one per line: text, ``hex:`` or ``base64:``.

    Raises `InputError` if a line is malformed, or there is no key.
    """
    keys = []
    for number, line in enumerate(lines, start=1):
        text = line.rstrip("\r\n")
        if not text:
            continue
        try:
            keys.append(parse_bytes(text))
        except InputError as error:
            raise InputError(
                f"line {number} is not a key", path=path, expected="text, hex: or base64:"
            ) from error
    if not keys:
        raise InputError("there is no key in the file", path=path)
    return tuple(keys)
