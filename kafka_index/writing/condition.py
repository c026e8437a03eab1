"""The conditions of ``--drop-where``: a few words of SQL, checked here and evaluated by DuckDB.

The text is split into words, each of which has to be one of the grammar: nothing else reaches
DuckDB. A comparison with NULL is NULL, as in SQL, and NULL selects nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.errors import InputError
from kafka_index.records.record_table import record_schema

#: What may be compared. A header is that of this name that comes last, as text.
_COLUMNS = ("topic", "partition", "offset", "timestamp", "key")
_HEADER = "header"
_KEYWORDS = frozenset(("AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "IS", "NULL"))
_WORD = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?[0-9]{1,19}\b)|(?P<name>[A-Za-z_]+)"
    r"|(?P<symbol><=|>=|<>|!=|[=<>(),]))"
)
#: DuckDB leaves out the zone of a text that it compares with a timestamp.
_OTHER_ZONE = re.compile(r"'[0-9]{4}-[0-9]{2}-[0-9]{2}.*:.*[+-][0-9]{2}(:?[0-9]{2})?\s*'")
_HEADER_NAME = re.compile(r"header_of\(headers, ('(?:[^']|'')*')\)")
_PLACE = re.compile(r"\s*(?P<rest>\S.{0,20})?")
_TEXT_HEADER = re.compile(r"\s*\(\s*('(?:[^']|'')*')\s*\)")
#: In DuckDB: keys and headers as text. What is not UTF-8 is U+FFFD alone: it is not NULL, and is no
#: text that anyone writes.
_VIEW = """
    SELECT topic, "partition", "offset", try(epoch_ms("timestamp")) AS "timestamp",
        text_of(key) AS key, headers FROM rows
"""
_MACROS = """
    CREATE MACRO text_of(bytes) AS
        coalesce(try(decode(bytes)), CASE WHEN bytes IS NOT NULL THEN chr(65533) END);
    CREATE MACRO header_of(pairs, name) AS
        text_of(list_last(list_filter(pairs, lambda pair: pair.key = name)).value);
"""
#: A number is no text: of a comparison of both, this row makes an error before any work is done.
_PROBE = b"x"


class SelectionError(InputError):
    """What is to be dropped cannot be found out, whatever the partition."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that has been checked; small, and picklable.

    Parameters
    ----------
    text : str
        As it was given.
    sql : str
        The same for DuckDB.
    """

    text: str
    sql: str

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Check a condition.

        Raises
        ------
        InputError
            It is not of the grammar.
        """
        condition = cls(text, " ".join(_words(text)))
        # DuckDB finds what is wrong with the order of the words, and with types.
        names = [name[1:-1].replace("''", "'") for name in _HEADER_NAME.findall(condition.sql)]
        probe = {
            "topic": "x",
            "partition": 0,
            "offset": 0,
            "timestamp": 0,
            "key": _PROBE,
            "headers": [{"key": name, "value": _PROBE} for name in names],
        }
        rows = pa.RecordBatch.from_pylist([probe], schema=record_schema(CONDITION_COLUMNS))
        ConditionMatcher(condition).match(rows)
        return condition


#: The columns that a condition is evaluated over.
CONDITION_COLUMNS = (*_COLUMNS, "headers")


def _words(text: str) -> Iterator[str]:
    position = 0
    while text[position:].strip():
        found = _WORD.match(text, position)
        if found is None:
            raise _unknown(text, position)
        position = found.end()
        name = found["name"]
        if _OTHER_ZONE.fullmatch(found["text"] or ""):
            raise InputError("a time of another zone", expected="UTC", found=found["text"])
        if name is None:
            yield found[0].strip()
        elif name.upper() in _KEYWORDS:
            yield name.upper()
        elif name.lower() in _COLUMNS:
            yield f'"{name.lower()}"'
        elif name.lower() == _HEADER:
            argument = _TEXT_HEADER.match(text, position)
            if argument is None:
                raise _unknown(text, found.start("name"))
            position = argument.end()
            yield f"header_of(headers, {argument[1]})"
        else:
            raise _unknown(text, found.start("name"))


def _unknown(text: str, position: int) -> InputError:
    place = _PLACE.match(text, position)
    return InputError(
        "not a condition",
        expected=f"{', '.join(_COLUMNS)}, header('NAME'), 'text', numbers, = <> < <= > >=, "
        f"{', '.join(sorted(_KEYWORDS))}, parentheses",
        found=repr(place["rest"] if place else text),
        hint="see docs/rewrite.md",
    )


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
        """Return which records satisfy the condition.

        Raises
        ------
        InputError
            The condition is not one.
        """
        times = rows.column("timestamp").cast(pa.timestamp("ms", "UTC")).view(pa.int64())
        place = rows.schema.get_field_index("timestamp")
        numbers = rows.set_column(place, pa.field("timestamp", pa.int64()), times)
        self._database.register("rows", pa.Table.from_batches([numbers]))
        try:
            found = self._database.sql(self._query).to_arrow_table()
        except self._error as error:
            line = str(error).strip().splitlines()[0]
            raise SelectionError(
                f"not a condition: {line}", found=self._condition.text, hint="see docs/rewrite.md"
            ) from error
        column = found.column("dropped")
        if not pa.types.is_boolean(column.type):
            raise SelectionError(
                "the condition is neither true nor false", found=self._condition.text
            )
        matches: NDArray[np.bool_] = column.to_numpy().astype(np.bool_)
        return matches
