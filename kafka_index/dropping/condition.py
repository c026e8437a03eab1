"""The records that a rewrite drops, by their keys or by a condition.

A condition is a few words of SQL, evaluated by DuckDB. Nothing reaches DuckDB but a condition that
`kafka_index.dropping.condition_grammar` has parsed. A comparison with NULL is NULL, as in SQL, and
NULL selects nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.dropping.condition_grammar import COLUMNS, parse_condition
from kafka_index.errors import InputError, help_page
from kafka_index.layout.texts import parse_bytes
from kafka_index.records.record_table import record_schema

#: In DuckDB: keys and headers as text. What is not UTF-8 is U+FFFD alone: it is not NULL, and is no
#: text that anyone writes. Times are integers: there are more of them than DuckDB's timestamps.
_VIEW = """
    SELECT topic, "partition", "offset", 2 * "timestamp"::HUGEINT AS "timestamp",
        text_of(key) AS key, headers FROM rows
"""
_MACROS = """
    CREATE MACRO text_of(bytes) AS
        coalesce(try(decode(bytes)), CASE WHEN bytes IS NOT NULL THEN chr(65533) END);
    CREATE MACRO header_of(pairs, name) AS
        text_of(list_last(list_filter(pairs, lambda pair: pair.key = name)).value);
"""
#: A row of these makes any error of DuckDB before work is done.
_PROBE = b"x"


class SelectionError(InputError):
    """The records to drop cannot be determined, in any partition."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A checked condition, as it was given and in SQL for DuckDB; small, and picklable."""

    text: str
    sql: str

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Check a condition; raises `InputError` if it is not of the grammar."""
        parsed = parse_condition(text)
        condition = cls(text, parsed.sql)
        probe = {
            "topic": "x",
            "partition": 0,
            "offset": 0,
            "timestamp": 0,
            "key": _PROBE,
            "headers": [{"key": name, "value": _PROBE} for name in parsed.headers],
        }
        rows = pa.RecordBatch.from_pylist([probe], schema=record_schema(CONDITION_COLUMNS))
        ConditionMatcher(condition).match(rows)
        return condition


#: The columns that a condition is evaluated over.
CONDITION_COLUMNS = (*COLUMNS, "headers")


class ConditionMatcher:
    """Evaluates a condition, in a database of its own."""

    def __init__(self, condition: Condition) -> None:
        # It takes a while, and most commands do without it.
        import duckdb  # noqa: PLC0415

        self._error: Any = duckdb.Error
        self._condition = condition
        self._database = duckdb.connect(":memory:", config={"threads": 1})
        self._database.execute(_MACROS)
        self._query = f"SELECT coalesce(({condition.sql}), false) AS dropped FROM ({_VIEW})"  # noqa: S608, because every word is checked

    def match(self, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return which records satisfy the condition; raises `InputError` if DuckDB refuses it."""
        times = rows.column("timestamp").cast(pa.timestamp("ms", "UTC")).view(pa.int64())
        place = rows.schema.get_field_index("timestamp")
        numbers = rows.set_column(place, pa.field("timestamp", pa.int64()), times)
        self._database.register("rows", pa.Table.from_batches([numbers]))
        try:
            found = self._database.sql(self._query).to_arrow_table()
        except self._error as error:
            line = str(error).strip().splitlines()[0]
            raise SelectionError(
                f"not a condition: {line}",
                found=self._condition.text,
                hint=f"see {help_page('rewrite')}",
            ) from error
        column = found.column("dropped")
        if not pa.types.is_boolean(column.type):
            raise SelectionError(
                "the condition is neither true nor false", found=self._condition.text
            )
        matches: NDArray[np.bool_] = column.to_numpy().astype(np.bool_)
        return matches


@dataclass(frozen=True, slots=True)
class Selection:
    """The records to drop, by keys or by a condition, one of the two; picklable."""

    keys: tuple[bytes, ...] | None = None
    condition: Condition | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that decide."""
        return ("key",) if self.condition is None else CONDITION_COLUMNS


class SelectionMatcher:
    """Selects records, in one thread."""

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


def read_keys(path: str) -> tuple[bytes, ...]:
    """Return the keys in a file; raises `InputError` if it cannot be read, as `parse_keys` does."""
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            return parse_keys(file, path=path)
    except OSError as error:
        raise InputError(f"cannot read the keys: {error.strerror}", path=path) from error
    except UnicodeDecodeError as error:
        raise InputError(
            "the file of keys is not UTF-8", path=path, hint="write other bytes as hex:"
        ) from error


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
