"""Select the records that a rewrite drops, by key or by an SQL condition.

DuckDB parses the condition. Each node of its syntax tree must be supported, and is translated to
new SQL. Only the new SQL is evaluated. A comparison with NULL is NULL, as in SQL, and selects no
record.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import json
from numpy.typing import NDArray

from kafka_index.core.errors import InputError, help_page, plural
from kafka_index.core.format.config import parse_integer
from kafka_index.core.format.human import format_count
from kafka_index.core.format.records import NO_TIMESTAMP
from kafka_index.core.format.strings import parse_bytes
from kafka_index.core.format.times import is_between_milliseconds, is_relative, parse_time
from kafka_index.core.fs.registry import read_text
from kafka_index.core.job.result import GOOD, Section
from kafka_index.core.records.record_table import record_schema


class KeyLines(tuple[bytes, ...]):  # noqa: SLOT001, because tuples vary in size
    """Record keys, with their line numbers in the key file, from 1; picklable."""

    lines: tuple[int, ...]

    @classmethod
    def of(cls, keys: Sequence[bytes], lines: Iterable[int] | None = None) -> Self:
        """Add line numbers to keys; by default, the keys are on consecutive lines."""
        key_lines = cls(keys)
        key_lines.lines = tuple(range(1, len(keys) + 1) if lines is None else lines)
        return key_lines


def read_keys(path: str) -> KeyLines:
    """Read a file with one key per line: text, ``hex:`` or ``base64:``.

    Raises `InputError` if the file cannot be read, or a line is not a key.
    """
    keys, lines = [], []
    for number, line in enumerate(read_text(path, "the keys").split("\n"), start=1):
        key_text = line.rstrip("\r")
        if not key_text:
            continue
        try:
            keys.append(parse_bytes(key_text))
        except InputError as error:
            raise InputError(
                f"line {number} is not a key",
                path=path,
                expected="text, or hex: or base64: with digits",
            ) from error
        lines.append(number)
    if not keys:
        raise InputError("the file contains no key", path=path)
    return KeyLines.of(keys, lines)


class KeyMatcher:
    """Selects the records with any of the given keys. Not thread-safe.

    `counts` has the number of records per key so far, keyed by the position of the key in the
    sorted keys.
    """

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._keys = pa.array(sorted(set(keys)), pa.binary())
        self.counts: Counter[int] = Counter()

    def match(self, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        key_numbers = pc.index_in(rows.column("key"), value_set=self._keys)
        numbers, counts = np.unique(key_numbers.drop_null().to_numpy(), return_counts=True)
        self.counts.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
        matches: NDArray[np.bool_] = key_numbers.is_valid().to_numpy(zero_copy_only=False)
        return matches


def records_by_line(
    keys: tuple[bytes, ...], counts_by_key: Iterable[Mapping[int, int]]
) -> dict[int, int]:
    """Return the number of records by line of the key file, from the counts of `KeyMatcher`."""
    counts: Counter[int] = Counter()
    for key_counts in counts_by_key:
        counts.update(key_counts)
    number_by_key = {key: number for number, key in enumerate(sorted(set(keys)))}
    lines = keys.lines if isinstance(keys, KeyLines) else range(1, len(keys) + 1)
    return {line: counts[number_by_key[key]] for line, key in zip(lines, keys, strict=True)}


def key_counts(by_line: Mapping[int, int]) -> Mapping[str, int]:
    """Return how many keys are given and unmatched, for ``--summary``; empty without keys."""
    unmatched = sum(not count for count in by_line.values())
    return {"keys": len(by_line), "keys_unmatched": unmatched} if by_line else {}


def key_sections(by_line: Mapping[int, int]) -> list[Section]:
    """Return report sections: dropped records by line of the key file, and lines without records.

    Keys are not shown, because they can be personal data.
    """
    counts = [f"line {line}: {format_count(count)}" for line, count in by_line.items() if count]
    unmatched = [f"line {line}" for line, count in by_line.items() if not count]
    unmatched_lines = plural(len(unmatched), "line")
    return [
        Section("dropped records by line of the key file:", counts, GOOD, noun="line"),
        Section(f"no record has the key in {unmatched_lines}:", unmatched, noun="line"),
    ]


#: The records as DuckDB reads them, with keys as text. A key that is not valid UTF-8 becomes the
#: single character U+FFFD, so that it is not NULL, and equals no usual text. Timestamps are
#: integers, because DuckDB's timestamps have a smaller range.
_VIEW = """
    SELECT topic, "partition", "offset", 2 * "timestamp"::HUGEINT AS "timestamp",
        text_of(key) AS key, headers FROM rows
"""
#: Like `_VIEW`, for records with decoded keys or values.
_TYPED_VIEW = """
    SELECT * REPLACE (2 * "timestamp"::HUGEINT AS "timestamp" {key}) FROM rows
"""
_MACROS = """
    CREATE MACRO text_of(bytes) AS
        coalesce(try(decode(bytes)), CASE WHEN bytes IS NOT NULL THEN chr(65533) END);
    CREATE MACRO header_of(pairs, name) AS
        text_of(list_last(list_filter(pairs, lambda pair: pair.key = name)).value);
    CREATE MACRO integer_of(digits) AS
        CASE WHEN regexp_full_match(digits, '-?[0-9]{1,19}') THEN try_cast(digits AS BIGINT) END;
"""
#: Settings of DuckDB. A condition cannot read files or change settings.
_DATABASE: dict[str, Any] = {
    "threads": 1,
    "enable_external_access": "false",
    "lock_configuration": "true",
}
_MAX_DEPTH = 100
_NUMBER = re.compile("-?[0-9]{1,19}", re.ASCII)
_DECIMAL = re.compile(r"-?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?", re.ASCII)


class _Kind(Enum):
    TEXT = "text"
    NUMBER = "an integer"
    TIME = "a time"
    NULL = "NULL"
    BOOLEAN = "a condition"
    #: The type depends on the schema of the records, so only DuckDB checks comparisons.
    MEMBER = "a member of a decoded key or value"


#: Record columns that a condition may compare.
COLUMNS = {
    "topic": _Kind.TEXT,
    "partition": _Kind.NUMBER,
    "offset": _Kind.NUMBER,
    "timestamp": _Kind.TIME,
    "key": _Kind.TEXT,
}
#: The record columns that are read to evaluate a condition.
CONDITION_COLUMNS = (*COLUMNS, "headers")
#: A node of DuckDB's syntax tree.
_Node = Mapping[str, Any]
#: Decoded columns that a condition may compare, and members. The value is True if the condition
#: compares them.
_Members = dict[str, bool]


class _Operand(NamedTuple):
    """A translated operand of a condition. `constant` is the text of a constant, otherwise None."""

    kind: _Kind
    sql: str
    constant: str | None = None

    def converted(self, kind: _Kind) -> str:
        if _Kind.MEMBER in (self.kind, kind):
            return self.sql
        if self.constant is not None and kind is _Kind.TIME:
            return _translate_time(self.kind, self.constant)
        if self.constant is not None and (self.kind, kind) == (_Kind.TEXT, _Kind.NUMBER):
            number = parse_integer(self.constant)
            if number is not None:
                return str(number)
        if self.kind not in (kind, _Kind.NULL):
            raise InputError(
                "the condition compares incompatible types",
                expected=kind.value,
                found=f"{self.kind.value}: {self.sql}",
                hint=f"see {help_page('rewrite')}",
            )
        return self.sql


class _Rule(NamedTuple):
    """An SQL template for a node and its children. All children must have the same kind."""

    sql: str
    kind: _Kind = _Kind.BOOLEAN
    children: Collection[_Kind] = tuple(_Kind)

    def apply(self, operands: Sequence[_Operand]) -> _Operand:
        # The kind of a column takes precedence over the kind of a constant.
        kind = min(
            operands, key=lambda operand: (operand.kind is _Kind.NULL, operand.constant is not None)
        ).kind
        if any(operand.kind is _Kind.MEMBER for operand in operands):
            kind = _Kind.MEMBER
        elif kind not in self.children:
            kind = next(iter(self.children))
        operand_sqls = [operand.converted(kind) for operand in operands]
        if "{list}" in self.sql:
            sql = self.sql.format(operand_sqls[0], list=", ".join(operand_sqls[1:]))
        else:
            sql = (
                self.sql.format(*operand_sqls) if "{}" in self.sql else self.sql.join(operand_sqls)
            )
        return _Operand(self.kind, f"({sql})")


_CONDITIONS, _TEXTS = (_Kind.BOOLEAN,), (_Kind.TEXT,)
_CASTABLE = (_Kind.TEXT, _Kind.NUMBER, _Kind.NULL)
#: Supported nodes of DuckDB's syntax tree. The names of functions end in parentheses.
_RULES = {
    "CONJUNCTION_AND": _Rule(" AND ", children=_CONDITIONS),
    "CONJUNCTION_OR": _Rule(" OR ", children=_CONDITIONS),
    "OPERATOR_NOT": _Rule("NOT {}", children=_CONDITIONS),
    "OPERATOR_IS_NULL": _Rule("{} IS NULL"),
    "OPERATOR_IS_NOT_NULL": _Rule("{} IS NOT NULL"),
    "COMPARE_EQUAL": _Rule("{} = {}"),
    "COMPARE_NOTEQUAL": _Rule("{} <> {}"),
    "COMPARE_LESSTHAN": _Rule("{} < {}"),
    "COMPARE_LESSTHANOREQUALTO": _Rule("{} <= {}"),
    "COMPARE_GREATERTHAN": _Rule("{} > {}"),
    "COMPARE_GREATERTHANOREQUALTO": _Rule("{} >= {}"),
    "COMPARE_BETWEEN": _Rule("{} BETWEEN {} AND {}"),
    "COMPARE_IN": _Rule("{0} IN ({list})"),
    "CAST VARCHAR": _Rule("CAST({} AS VARCHAR)", _Kind.TEXT, _CASTABLE),
    "CAST BIGINT": _Rule("integer_of(CAST({} AS VARCHAR))", _Kind.NUMBER, _CASTABLE),
    "~~()": _Rule("{} LIKE {}", children=_TEXTS),
    "!~~()": _Rule("{} NOT LIKE {}", children=_TEXTS),
    "starts_with()": _Rule("starts_with({}, {})", children=_TEXTS),
    "ends_with()": _Rule("ends_with({}, {})", children=_TEXTS),
    "lower()": _Rule("lower({})", _Kind.TEXT, _TEXTS),
    "upper()": _Rule("upper({})", _Kind.TEXT, _TEXTS),
    "length()": _Rule("length({})", _Kind.NUMBER, _TEXTS),
}
#: JSON members of a node that contain its children, in order.
_CHILD_MEMBERS = ("left", "right", "input", "lower", "upper")
#: JSON members that a supported function call must have, with their only supported values.
_FUNCTION_MEMBERS = {
    "type": "FUNCTION",
    "schema": "",
    "catalog": "",
    "distinct": False,
    "filter": None,
    "order_bys": {"type": "ORDER_MODIFIER", "orders": []},
}


class SelectionError(InputError):
    """An error in the selection itself, which affects all partitions."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A validated condition: the user's text, and SQL for DuckDB; small and picklable."""

    text: str
    sql: str
    #: Decoded columns and members, such as ``value.customer.id``, that the condition compares.
    members: tuple[str, ...] = ()

    @classmethod
    def parse_decoded(cls, text: str, columns: Collection[str]) -> Condition:
        """Parse a condition over decoded columns and their members.

        The types of members are unknown until records are matched, so matching may raise
        `SelectionError`.
        """
        members = dict.fromkeys(columns, False)
        sql = _parse(text, members)
        return cls(text, sql, tuple(name for name, is_used in members.items() if is_used))

    @classmethod
    def parse(cls, text: str) -> Condition:
        condition = cls(text, _parse(text))
        row = dict.fromkeys(CONDITION_COLUMNS) | {"partition": 0, "offset": 0, "timestamp": 0}
        # Evaluate the condition once, so that DuckDB's errors are raised before the run starts.
        rows = pa.RecordBatch.from_pylist([row], schema=record_schema(CONDITION_COLUMNS))
        ConditionMatcher(condition).match(rows)
        return condition


class ConditionMatcher:
    """Evaluates a condition in a separate in-memory database."""

    def __init__(self, condition: Condition) -> None:
        # DuckDB is slow to import, and most commands do not need it.
        import duckdb  # noqa: PLC0415

        self._error: Any = duckdb.Error
        self._condition = condition
        self._database = duckdb.connect(":memory:", config=_DATABASE)
        self._database.execute(_MACROS)
        # The SQL is translated from supported nodes only.
        self._select = f"SELECT coalesce(({condition.sql}), false) AS dropped FROM "  # noqa: S608

    def match(self, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return which records satisfy the condition; raises `InputError` if DuckDB fails."""
        times = rows.column("timestamp").cast(pa.timestamp("ms", "UTC")).view(pa.int64())
        column_number = rows.schema.get_field_index("timestamp")
        numeric_rows = rows.set_column(column_number, pa.field("timestamp", pa.int64()), times)
        self._database.register("rows", pa.Table.from_batches([numeric_rows]))
        view = _VIEW
        if self._condition.members:
            is_text = pa.types.is_binary(rows.schema.field("key").type)
            view = _TYPED_VIEW.format(key=", text_of(key) AS key" if is_text else "")
        try:
            result = self._database.sql(f"{self._select} ({view})").to_arrow_table()
        except self._error as error:
            line = str(error).strip().splitlines()[0]
            raise SelectionError(
                f"the condition is invalid: {line}",
                found=self._condition.text,
                hint=f"see {help_page('rewrite')}",
            ) from error
        column = result.column("dropped")
        if not pa.types.is_boolean(column.type):
            raise SelectionError(
                "the result of the condition is neither true nor false",
                found=self._condition.text,
            )
        matches: NDArray[np.bool_] = column.to_numpy().astype(np.bool_)
        return matches


class RowMatcher(Protocol):
    """Evaluates a condition for the records of one partition."""

    def match(self, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return which records satisfy the condition."""
        ...


class DecodedCondition(Protocol):
    """A condition on decoded keys and values; picklable."""

    @property
    def needed(self) -> tuple[str, ...]:
        """The record columns that are read to evaluate the condition."""
        ...

    @property
    def identity(self) -> str:
        """Identifies the types and settings that affect the result of the condition."""
        ...

    def matcher(self) -> RowMatcher:
        """Return a matcher for one thread."""
        ...


@dataclass(frozen=True, slots=True)
class Selection:
    """The records to drop, selected by keys or by a condition; picklable.

    If the condition compares decoded keys or values, `decoded` evaluates it.
    """

    keys: tuple[bytes, ...] | None = None
    condition: Condition | None = None
    decoded: DecodedCondition | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        if self.decoded is not None:
            return self.decoded.needed
        return ("key",) if self.condition is None else CONDITION_COLUMNS


def open_matcher(selection: Selection) -> RowMatcher | KeyMatcher:
    """Return a matcher that finds the selected records, for use in one thread."""
    if selection.decoded is not None:
        return selection.decoded.matcher()
    if selection.condition is not None:
        return ConditionMatcher(selection.condition)
    return KeyMatcher(selection.keys or ())


def _parse(text: str, members: _Members | None = None) -> str:
    """Translate a condition to SQL for DuckDB; raises `InputError` for an unsupported node.

    With `members`, the condition may also compare decoded columns and their members. `members` then
    has the value True for each column or member that the condition compares.

    In the SQL, times are in units of half a millisecond, so that a time between two milliseconds is
    also an integer.
    """
    import duckdb  # noqa: PLC0415

    if not text.strip():
        raise _condition_error("the text is empty")
    sql = f"SELECT NULL WHERE ({_quote_offset(text)}\n)"
    with duckdb.connect(":memory:", config=_DATABASE) as database:
        row = database.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchone()
    match json.decode(row[0] if row else "null"):
        case {"error": True, "error_message": str(message)}:
            raise _condition_error(message.partition("\n")[0])
        case {"statements": [{"node": {"type": "SELECT_NODE", "where_clause": dict(node)}}]}:
            condition = _translate(node, sql.encode(), members)
            if condition.kind in (_Kind.BOOLEAN, _Kind.MEMBER):
                return condition.sql
    raise _condition_error("the result is neither true nor false")


def _translate(node: _Node, sql: bytes, members: _Members | None, depth: int = 1) -> _Operand:
    """Translate a node of DuckDB's syntax tree; raise `InputError` if the node is not supported."""
    if depth > _MAX_DEPTH:
        raise _depth_error()
    name, children = _rule_and_children(node)
    operands = []
    if name in _RULES:
        operands = [_translate(child, sql, members, depth + 1) for child in children]
    if operands and _RULES[name].sql.count("{}") in (0, len(operands)):
        return _RULES[name].apply(operands)
    operand = None if members is None else _translate_member(node, members)
    operand = operand or _translate_leaf(node)
    if operand is None:
        start = node["query_location"]
        node_sql = (sql[start : start + node["query_location_length"]] or sql).decode(
            errors="replace"
        )
        column, dot, _ = node_sql.partition(".")
        is_member = dot and column in ("key", "value") and column not in (members or {})
        if is_member:
            raise _condition_error(
                f"{node_sql!r} is a member of a decoded {column}, and requires decode"
            )
        raise _condition_error(f"{node_sql!r} is not supported")
    return operand


def _rule_and_children(node: _Node) -> tuple[str, list[_Node]]:
    """Return the name that a node has in `_RULES`, and the children of the node."""
    match node:
        case {"function_name": name, "arguments": arguments, **others}:
            is_plain = (
                not any(argument["name"] for argument in arguments)
                and _FUNCTION_MEMBERS.items() <= others.items()
            )
            return f"{name}()" if is_plain else "", [
                argument["expression"] for argument in arguments
            ]
        case {
            "type": "OPERATOR_CAST",
            "child": child,
            "type_expr": {"type_name": name, "children": []},
        }:
            return f"CAST {name.upper()}", [child]
        case {"type": name, "children": children}:
            return name, children
    return node["type"], [node[name] for name in _CHILD_MEMBERS if name in node]


def _translate_member(node: _Node, members: _Members) -> _Operand | None:
    """Translate a decoded column, a member, or a decimal or boolean constant."""
    match node:
        case {"type": "COLUMN_REF", "column_names": [str(column), *path]} if column in members:
            names = [column, *path]
            for name in path:
                if "." in name:
                    raise _condition_error(f"the member name {name!r} contains a dot")
            members[".".join(names)] = True
            quoted = ['"' + name.replace('"', '""') + '"' for name in names]
            return _Operand(_Kind.MEMBER, ".".join(quoted))
        case {"literal": {"kind": "NUMERIC", "text": str(text)}} if _DECIMAL.fullmatch(text):
            return _Operand(_Kind.MEMBER, text)
        case {"literal": {"kind": "BOOLEAN", "text": str(text)}} if text in ("true", "false"):
            return _Operand(_Kind.MEMBER, text)
    return None


def _translate_leaf(node: _Node) -> _Operand | None:
    """Translate an undecoded column, a header or a constant."""
    match node:
        case {"type": "COLUMN_REF", "column_names": [name]} if name.lower() in COLUMNS:
            return _Operand(COLUMNS[name.lower()], f'"{name.lower()}"')
        case {"literal": {"kind": "NULL_LITERAL"}}:
            return _Operand(_Kind.NULL, "NULL")
        case {"literal": {"kind": "STRING", "text": text}}:
            return _Operand(_Kind.TEXT, _quote(text), text)
        case {"function_name": "header", "arguments": [{"expression": {"literal": literal}}]} if (
            literal["kind"] == "STRING" and _rule_and_children(node)[0]
        ):
            return _Operand(_Kind.TEXT, f"header_of(headers, {_quote(literal['text'])})")
        case {"literal": {"kind": "INTEGER", "text": text}} if _NUMBER.fullmatch(text):
            return _Operand(_Kind.NUMBER, text, text)
    return None


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _quote_offset(text: str) -> str:
    """Quote the column ``offset``, which is a keyword of SQL.

    Raises `InputError` for comments, for double quotes except around member names, for non-ASCII
    characters outside quotes, and for unbalanced parentheses. Other double-quoted names are
    rejected, because a user may mean a string.
    """
    import duckdb  # noqa: PLC0415

    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        raise _condition_error("the text is not UTF-8") from error
    kinds = duckdb.token_type
    tokens = duckdb.tokenize(text)
    # DuckDB's token positions are in bytes.
    ends = [start for start, _ in tokens[1:]] + [len(content)]
    words: list[bytes] = []
    depth = 0
    for (start, kind), end in zip(tokens, ends, strict=True):
        word = content[start:end]
        depth += word.startswith(b"(") - word.startswith(b")")
        if depth > _MAX_DEPTH:
            raise _depth_error()
        is_member = word.startswith(b'"') and bool(words) and words[-1].strip() == b"."
        is_plain = word.isascii() and not word.startswith((b'"', b";")) and kind != kinds.comment
        is_allowed = word.startswith(b"'") if kind == kinds.string_const else is_plain or is_member
        if depth < 0 or not is_allowed:
            token = word.decode(errors="replace").strip()
            raise _condition_error(f"{token!r} is not supported")
        is_offset = kind == kinds.keyword and word.strip().lower() == b"offset"
        words.append(b'"offset" ' if is_offset else word)
    return b"".join(words).decode()


def _condition_error(reason: str) -> InputError:
    return InputError(
        f"the condition is invalid: {reason}",
        hint=f"put strings and times in single quotes; see {help_page('rewrite')}",
    )


def _depth_error() -> InputError:
    return InputError("the condition is nested too deeply", expected=f"{_MAX_DEPTH} levels")


def _translate_time(kind: _Kind, text: str) -> str:
    """Return a time in half milliseconds; an odd number is a time between two milliseconds."""
    if kind is _Kind.NUMBER:
        number = int(text)
        # -1 is the timestamp of records without a timestamp.
        return str(2 * (number if number == NO_TIMESTAMP else parse_time(number)))
    if is_relative(text):
        raise InputError(
            "the condition contains a time that differs in each run",
            expected="a fixed time, so that an interrupted rewrite can be run again",
            found=repr(text),
            hint="give a fixed time, such as '2024-05-01T00:00:00Z'",
        )
    return str(2 * parse_time(text) - is_between_milliseconds(text.strip()))
