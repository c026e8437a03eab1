"""The columns of queries: required, typed and reserved ones, and batches of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from kafka_index.errors import InputError
from kafka_index.lookup.keys import By, Flags, Keys, integers
from kafka_index.reading.answers import ANSWER_SCHEMA

TOPIC = "topic"
PARTITION = "partition"

_MAX_NAMES = 20


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """Some queries: their keys, and the columns that pass through.

    Partitions are null where a cell does not hold one. `lines` are JSON lines that are answered as
    JSON lines: a JSON object for each query, instead of `rows`. `malformed` marks rows of text with
    a wrong width, or that are not JSON; their keys are invalid. `cells` are the columns as they
    were read, where `rows` has them in other types.
    """

    rows: pa.RecordBatch
    topics: pa.Array
    partitions: pa.Array
    keys: Keys
    lines: pa.Array | None = None
    malformed: Flags | None = None
    cells: pa.RecordBatch | None = None

    @classmethod
    def of_text(
        cls,
        rows: pa.RecordBatch,
        topics: pa.Array,
        partitions: pa.Array,
        keys: pa.Array,
        by: By,
        *,
        lines: pa.Array | None = None,
        malformed: Flags | None = None,
    ) -> QueryBatch:
        """Return queries with partitions and keys as they were read: integers or strings."""
        numbers, valid = integers(partitions)
        found = Keys.of(keys, by)
        return cls(
            rows,
            topics,
            pa.array(numbers, mask=None if valid is None else ~valid),
            found if malformed is None else found.without(malformed),
            lines,
            malformed,
        )

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.keys)


def needed_columns(by: By) -> tuple[str, str, str]:
    """Return the names of the columns that every query has."""
    return TOPIC, PARTITION, by.column


def check_columns(schema: pa.Schema, by: By, *, path: str | None = None) -> None:
    """Check the columns of queries, of a file or of a data frame.

    Raises `InputError` if columns are missing, of the wrong type, or named like those of answers.
    """
    check_names(schema.names, by, path=path)
    problems = [
        f"{name} is {schema.field(name).type}, not {expected}"
        for name in needed_columns(by)
        if (expected := _expected(name, schema.field(name).type)) is not None
    ]
    if problems:
        raise InputError(f"columns of the wrong type: {', '.join(problems)}", path=path)


def check_names(names: Sequence[str], by: By, *, path: str | None = None) -> None:
    """Check the names of columns, as `check_columns` does."""
    needed = needed_columns(by)
    missing = [name for name in needed if name not in names]
    if missing:
        raise InputError(
            f"no column {', '.join(missing)}",
            path=path,
            expected=", ".join(needed),
            found=_listed(names) or "no columns",
            hint=_hint(names, by),
        )
    repeated = [name for name in needed if names.count(name) > 1]
    if repeated:
        raise InputError(f"more than one column {', '.join(repeated)}", path=path)
    refuse_collisions(names, path=path)


def refuse_collisions(names: Iterable[str], *, path: str | None = None) -> None:
    """Refuse columns that are named like those of answers.

    To Spark, names that differ only in case are the same.
    """
    taken = sorted(set(names) & set(ANSWER_SCHEMA.names)) or sorted(
        name for name in set(names) if name.lower() in ANSWER_SCHEMA.names
    )
    if taken:
        raise InputError(
            f"columns are named like those of answers: {', '.join(taken)}",
            path=path,
            hint="rename them (are these the answers of an earlier run?)",
        )


def _hint(names: Sequence[str], by: By) -> str | None:
    other = By.TIMESTAMP if by is By.OFFSET else By.OFFSET
    if by.column not in names and other.column in names:
        return f"these queries ask by {other.value}: give --by {other.value}"
    return None


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) if name != name.strip() else name for name in names[:_MAX_NAMES])
    more = len(names) - _MAX_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def _expected(name: str, found: pa.DataType) -> str | None:
    """Return what a column must be, None if it is that."""
    kind = found.value_type if pa.types.is_dictionary(found) else found
    if name == TOPIC:
        return None if _is_string(kind) else "a string"
    if pa.types.is_integer(kind):
        return None
    if name == By.TIMESTAMP.column:
        is_time = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
        return None if is_time else "an integer (milliseconds), a timestamp or a date"
    return "an integer"


def _is_string(kind: pa.DataType) -> bool:
    types = pa.types
    return any(
        check(kind) for check in (types.is_string, types.is_large_string, types.is_string_view)
    )


def refuse_differences(schemas: Sequence[tuple[str, pa.Schema]]) -> None:
    """Refuse files whose columns are not those of the first, whatever their order.

    Raises `InputError`, which names the first such file, and how it differs.
    """
    first_path, first = schemas[0]
    for path, schema in schemas[1:]:
        differences = list(_differences(first, schema))
        if not differences and len(set(first.names)) < len(first) and schema.names != first.names:
            differences = ["columns that share a name are in another order"]
        if differences:
            raise InputError(
                f"not the columns of {first_path}: {', '.join(differences)}",
                path=path,
                hint="look up files of different columns in a run each",
            )


def _differences(one: pa.Schema, other: pa.Schema) -> Iterator[str]:
    for name in dict.fromkeys(one.names):
        if one.names.count(name) != other.names.count(name):
            yield f"no {name}" if name not in other.names else f"{name} more or less often"
        elif one.names.count(name) == 1 and one.field(name).type != other.field(name).type:
            yield f"{name} is {other.field(name).type}, not {one.field(name).type}"
    for name in dict.fromkeys(other.names):
        if name not in one.names:
            yield f"an additional {name}"
