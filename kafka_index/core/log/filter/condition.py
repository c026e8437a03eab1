"""The records that a rewrite drops, by their keys or by a condition.

A condition is a few words of SQL, evaluated by DuckDB. Nothing reaches DuckDB but a condition that
was parsed here; every other text is refused. A comparison with NULL is NULL, as in SQL, and NULL
selects nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.core.errors import InputError, help_page
from kafka_index.core.format.config import parse_integer
from kafka_index.core.format.records import NO_TIMESTAMP
from kafka_index.core.format.strings import parse_bytes
from kafka_index.core.format.times import is_between_milliseconds, is_relative, parse_time
from kafka_index.core.fs.text_files import read_text
from kafka_index.core.records.record_table import record_schema

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
_KEYWORDS = frozenset(("AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "IS", "NULL"))
_HEADER = "header"
_WORD = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?[0-9]{1,19}\b)|(?P<name>[A-Za-z_]+)"
    r"|(?P<symbol><=|>=|<>|!=|[=<>(),]))",
    re.ASCII,
)
_COMPARISONS = frozenset(("=", "<>", "!=", "<", "<=", ">", ">="))
_MAX_DEPTH = 100


class _Kind(Enum):
    TEXT = "text"
    NUMBER = "an integer"
    TIME = "a time"
    NULL = "NULL"


#: What may be compared.
COLUMNS = {
    "topic": _Kind.TEXT,
    "partition": _Kind.NUMBER,
    "offset": _Kind.NUMBER,
    "timestamp": _Kind.TIME,
    "key": _Kind.TEXT,
}
#: The columns that a condition is evaluated over.
CONDITION_COLUMNS = (*COLUMNS, "headers")


@dataclass(frozen=True, slots=True)
class _Word:
    """A word: a text, number or symbol as it stands, a keyword in capitals, or a column."""

    kind: str
    text: str
    position: int


@dataclass(frozen=True, slots=True)
class _Operand:
    """A column, or a literal."""

    kind: _Kind
    sql: str
    word: _Word
    is_literal: bool = False


class SelectionError(InputError):
    """The records to drop cannot be determined, in any partition."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A checked condition, as it was given and in SQL for DuckDB; small, and picklable."""

    text: str
    sql: str

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Check a condition."""
        parser = _Parser(text)
        condition = cls(text, parser.parse())
        probe = {
            "topic": "x",
            "partition": 0,
            "offset": 0,
            "timestamp": 0,
            "key": _PROBE,
            "headers": [{"key": name, "value": _PROBE} for name in parser.headers],
        }
        rows = pa.RecordBatch.from_pylist([probe], schema=record_schema(CONDITION_COLUMNS))
        ConditionMatcher(condition).match(rows)
        return condition


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


class KeyMatcher:
    """Selects the records with some keys, for one thread.

    `counts` has their number by key, in the order of the sorted keys.
    """

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._keys = pa.array(sorted(set(keys)), pa.binary())
        self.counts: Counter[int] = Counter()

    def match(self, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return which records have one of the keys."""
        found = pc.index_in(rows.column("key"), value_set=self._keys)
        numbers, counts = np.unique(found.drop_null().to_numpy(), return_counts=True)
        self.counts.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
        matches: NDArray[np.bool_] = found.is_valid().to_numpy(zero_copy_only=False)
        return matches


def matcher_of(selection: Selection) -> ConditionMatcher | KeyMatcher:
    """Return a matcher of the records to drop, for one thread."""
    if selection.condition is not None:
        return ConditionMatcher(selection.condition)
    return KeyMatcher(selection.keys or ())


class KeyLines(tuple[bytes, ...]):  # noqa: SLOT001, because tuples vary in size
    """Keys, with the number of the line that each has in its file, from 1; picklable."""

    lines: tuple[int, ...]

    @classmethod
    def of(cls, keys: Sequence[bytes], lines: Iterable[int] | None = None) -> Self:
        """Return keys; by default each is on a line of its own."""
        found = cls(keys)
        found.lines = tuple(range(1, len(keys) + 1) if lines is None else lines)
        return found


def records_by_line(keys: tuple[bytes, ...], parts: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Return how many records have the key of each line, from the counts of `KeyMatcher`."""
    counts: Counter[int] = Counter()
    for part in parts:
        counts.update(part)
    number_of = {key: number for number, key in enumerate(sorted(set(keys)))}
    lines = keys.lines if isinstance(keys, KeyLines) else range(1, len(keys) + 1)
    return {line: counts[number_of[key]] for line, key in zip(lines, keys, strict=True)}


def key_counts(by_line: Mapping[int, int]) -> Mapping[str, int]:
    """Return the counts of keys for ``--summary``, none without keys."""
    unmatched = sum(not count for count in by_line.values())
    return {"keys": len(by_line), "keys_unmatched": unmatched} if by_line else {}


def read_keys(path: str) -> KeyLines:
    """Return the keys in a file, one per line: text, ``hex:`` or ``base64:``.

    Raises `InputError` if the file cannot be read, or a line is no key.
    """
    keys, lines = [], []
    for number, line in enumerate(read_text(path, "the keys").split("\n"), start=1):
        text = line.rstrip("\r")
        if not text:
            continue
        try:
            keys.append(parse_bytes(text))
        except InputError as error:
            raise InputError(
                f"line {number} is not a key", path=path, expected="text, hex: or base64:"
            ) from error
        lines.append(number)
    if not keys:
        raise InputError("there is no key in the file", path=path)
    return KeyLines.of(keys, lines)


class _Parser:
    """Recursive descent over the words of a condition.

    In the SQL times are numbers: twice their milliseconds, so that a time between two milliseconds
    is a number too.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._words = self._split()
        self._at = 0
        self._depth = 0
        #: The names of headers in the condition.
        self.headers: list[str] = []

    def parse(self) -> str:
        """Return the condition in SQL; raises `InputError` if it is not of the grammar."""
        sql = self._condition()
        if self._next is not None:
            raise self._unknown()
        return sql

    def _split(self) -> list[_Word]:
        words: list[_Word] = []
        position = 0
        while self._text[position:].strip():
            found = _WORD.match(self._text, position)
            if found is None:
                raise self._unknown(position)
            kind = str(found.lastgroup)
            word = found[kind]
            if kind == "name" and word.upper() in _KEYWORDS:
                kind, word = "symbol", word.upper()
            elif kind == "name":
                word = word.lower()
                if word not in COLUMNS and word != _HEADER:
                    raise self._unknown(found.start(kind))
            words.append(_Word(kind, word, found.start(kind)))
            position = found.end()
        return words

    @property
    def _next(self) -> _Word | None:
        return self._words[self._at] if self._at < len(self._words) else None

    def _accept(self, *symbols: str) -> _Word | None:
        """Take the next word if it is one of these."""
        word = self._next
        if word is None or word.kind != "symbol" or word.text not in symbols:
            return None
        self._at += 1
        return word

    def _expect(self, symbol: str) -> None:
        if self._accept(symbol) is None:
            raise self._unknown()

    def _condition(self) -> str:
        terms = [self._conjunction()]
        while self._accept("OR"):
            terms.append(self._conjunction())
        return " OR ".join(terms)

    def _conjunction(self) -> str:
        terms = [self._term()]
        while self._accept("AND"):
            terms.append(self._term())
        return " AND ".join(terms)

    def _term(self) -> str:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise InputError("the condition is nested too deeply", expected=f"{_MAX_DEPTH} levels")
        try:
            if self._accept("NOT"):
                return f"NOT {self._term()}"
            if self._is_condition_in_parentheses():
                self._expect("(")
                sql = self._condition()
                self._expect(")")
                return f"({sql})"
            return self._predicate()
        finally:
            self._depth -= 1

    def _is_condition_in_parentheses(self) -> bool:
        """Return whether a condition in parentheses follows, and not an operand in them."""
        word, start, headers = self._next, self._at, list(self.headers)
        if word is None or word.text != "(":
            return False
        try:
            self._operand()
        except InputError:
            return True
        finally:
            self._at, self.headers = start, headers
        return False

    def _predicate(self) -> str:
        left = self._operand()
        comparison = self._accept(*_COMPARISONS)
        if comparison is not None:
            first, second = self._alike(left, self._operand())
            return f"{first} {comparison.text} {second}"
        if self._accept("IS"):
            negation = "NOT " if self._accept("NOT") else ""
            self._expect("NULL")
            return f"{left.sql} IS {negation}NULL"
        negation = "NOT " if self._accept("NOT") else ""
        if self._accept("IN"):
            self._expect("(")
            members = [self._operand()]
            while self._accept(","):
                members.append(self._operand())
            self._expect(")")
            first, *others = self._alike(left, *members)
            return f"{first} {negation}IN ({', '.join(others)})"
        if self._accept("BETWEEN"):
            low = self._operand()
            self._expect("AND")
            first, second, third = self._alike(left, low, self._operand())
            return f"{first} {negation}BETWEEN {second} AND {third}"
        if self._accept("LIKE"):
            pattern = self._operand()
            for operand in (left, pattern):
                if operand.kind not in (_Kind.TEXT, _Kind.NULL):
                    raise _not_of_kind(_Kind.TEXT, operand)
            return f"{left.sql} {negation}LIKE {pattern.sql}"
        raise self._unknown()

    def _operand(self) -> _Operand:
        opened = 0
        while self._accept("("):
            opened += 1
        word = self._next
        if word is None or (word.kind == "symbol" and word.text != "NULL"):
            raise self._unknown()
        self._at += 1
        if word.kind == "text":
            operand = _Operand(_Kind.TEXT, word.text, word, is_literal=True)
        elif word.kind == "number":
            operand = _Operand(_Kind.NUMBER, word.text, word, is_literal=True)
        elif word.kind == "symbol":
            operand = _Operand(_Kind.NULL, "NULL", word)
        elif word.text == _HEADER:
            operand = self._header(word)
        else:
            operand = _Operand(COLUMNS[word.text], f'"{word.text}"', word)
        for _ in range(opened):
            self._expect(")")
        return operand

    def _header(self, word: _Word) -> _Operand:
        self._expect("(")
        name = self._next
        if name is None or name.kind != "text":
            raise self._unknown()
        self._at += 1
        self._expect(")")
        self.headers.append(_content(name))
        return _Operand(_Kind.TEXT, f"header_of(headers, {name.text})", word)

    def _alike(self, *operands: _Operand) -> list[str]:
        """Return operands that are compared with each other, all of one kind."""
        # The kind of a column decides; where there is none, that of the first literal.
        named = sorted(operands, key=lambda each: (each.kind is _Kind.NULL, each.is_literal))
        wanted = named[0].kind
        return [_converted(each, wanted) for each in operands]

    def _unknown(self, position: int | None = None) -> InputError:
        if position is None:
            position = len(self._text) if self._next is None else self._next.position
        rest = self._text[position : position + 21].strip()
        where = repr(rest) if rest else f"the end of {self._text!r}"
        hint = (
            "put strings and times in single quotes, as in '2024-05-01'; "
            if rest[:1].isalnum()
            else ""
        )
        return InputError(
            f"not a condition: {where} is not expected here",
            hint=f"{hint}see {help_page('rewrite')}",
        )


def _content(word: _Word) -> str:
    """Return the content of a text between quotes."""
    return word.text[1:-1].replace("''", "'")


def _converted(operand: _Operand, kind: _Kind) -> str:
    """Return an operand for a comparison with others of a kind."""
    if operand.kind is _Kind.NULL:
        return operand.sql
    if operand.is_literal and kind is _Kind.TIME:
        return _time(operand)
    if operand.is_literal and kind is _Kind.NUMBER and operand.kind is _Kind.TEXT:
        number = parse_integer(_content(operand.word))
        if number is not None:
            return str(number)
    if operand.kind is not kind:
        raise _not_of_kind(kind, operand)
    return operand.sql


def _time(operand: _Operand) -> str:
    """Return twice the milliseconds of a time; one less between two milliseconds."""
    if operand.kind is _Kind.NUMBER:
        number = int(operand.sql)
        # A record without a timestamp has this.
        return str(2 * (number if number == NO_TIMESTAMP else parse_time(number)))
    text = _content(operand.word)
    if is_relative(text):
        raise InputError(
            "a time that is another one in each run",
            expected="the same whenever an interrupted rewrite is run again",
            found=repr(text),
            hint="give the time itself, such as '2024-05-01T00:00:00Z'",
        )
    return str(2 * parse_time(text) - is_between_milliseconds(text.strip()))


def _not_of_kind(kind: _Kind, operand: _Operand) -> InputError:
    return InputError(
        "the condition compares what cannot be compared",
        expected=kind.value,
        found=f"{operand.kind.value}: {operand.word.text}",
        hint=f"see {help_page('rewrite')}",
    )
