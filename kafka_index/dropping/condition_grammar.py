"""The grammar of ``--drop-where``: a few words of SQL; every other text is refused.

The result is SQL over the columns of `kafka_index.dropping.condition`, in which times are numbers:
twice their milliseconds, so that a time between two milliseconds is a number too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from kafka_index.config import parse_integer
from kafka_index.errors import InputError, help_page
from kafka_index.layout.records import NO_TIMESTAMP
from kafka_index.layout.times import is_between_milliseconds, is_relative, parse_time

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


@dataclass(frozen=True, slots=True)
class ParsedCondition:
    """A condition for DuckDB, true, false or NULL, and the names of headers in it."""

    sql: str
    headers: tuple[str, ...]


def parse_condition(text: str) -> ParsedCondition:
    """Parse a condition.

    Raises `InputError` if it is not of the grammar, compares types that cannot be compared, or
    names an invalid time.
    """
    return _Parser(text).parse()


class _Parser:
    """Recursive descent over the words of a condition."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words = self._split()
        self._at = 0
        self._depth = 0
        self._headers: list[str] = []

    def parse(self) -> ParsedCondition:
        sql = self._condition()
        if self._next is not None:
            raise self._unknown()
        return ParsedCondition(sql, tuple(self._headers))

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
        word, start, headers = self._next, self._at, list(self._headers)
        if word is None or word.text != "(":
            return False
        try:
            self._operand()
        except InputError:
            return True
        finally:
            self._at, self._headers = start, headers
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
        self._headers.append(_content(name))
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
        return InputError(
            "not a condition",
            expected=f"{', '.join(COLUMNS)}, header('NAME'), 'text', numbers, = <> < <= > >=, "
            f"{', '.join(sorted(_KEYWORDS))}, parentheses",
            found=repr(rest) if rest else f"the end of {self._text!r}",
            hint=f"see {help_page('rewrite')}",
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
