"""The columns of Parquet input, in its two forms.

======================== ============================ =======================================
form                     needed columns               used when present
======================== ============================ =======================================
batch metadata           keys, ``position_bytes``,    ``base_offset``, ``leader_epoch``,
                         ``size_bytes``,              ``magic``, ``attributes``,
                         ``last_offset``,             ``producer_id``, ``control_type``,
                         ``max_timestamp_ms``         ``producer_epoch``,
                                                      ``base_sequence``,
                                                      ``coordinator_epoch``,
                                                      ``control_timestamp_ms``
raw batches              keys, ``position_bytes``,
                         ``batch``
======================== ============================ =======================================

The keys are ``topic``, ``partition`` and ``segment_base_offset``. A row is a record batch. Where
the columns of both forms are present, the raw batches win: their bytes are verified. Files that
depend on producers, transactions and leader epochs need raw batches, or all optional columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

import pyarrow as pa

from kafka_index.errors import InputError
from kafka_index.stores import FileInfo

KEY_COLUMNS = ("topic", "partition", "segment_base_offset")
POSITION = "position_bytes"
BATCH = "batch"
METADATA_COLUMNS = ("size_bytes", "last_offset", "max_timestamp_ms")
#: What the state of a partition is made of, besides the needed columns.
OPTIONAL_COLUMNS = (
    "base_offset",
    "magic",
    "leader_epoch",
    "attributes",
    "producer_id",
    "control_type",
    "producer_epoch",
    "base_sequence",
    "coordinator_epoch",
    "control_timestamp_ms",
)


class ParquetForm(Enum):
    """The content of a row of the input."""

    METADATA = "batch metadata"
    RAW = "raw batches"

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of the columns that must be there."""
        own = (BATCH,) if self is ParquetForm.RAW else METADATA_COLUMNS
        return (*KEY_COLUMNS, POSITION, *own)


def choose_form(schemas: Sequence[pa.Schema]) -> ParquetForm:
    """Return the form that the files of an input have in common."""
    with_batch = [BATCH in schema.names for schema in schemas]
    if all(with_batch) or (any(with_batch) and not all(map(has_metadata, schemas))):
        return ParquetForm.RAW
    return ParquetForm.METADATA


def has_metadata(schema: pa.Schema) -> bool:
    """Return whether there are the columns of batch metadata."""
    return set(METADATA_COLUMNS).issubset(schema.names)


def check_columns(
    form: ParquetForm, files: Sequence[FileInfo], schemas: Sequence[pa.Schema]
) -> None:
    """Raise InputError, naming every file and column, where columns are not those of a form."""
    bad: dict[tuple[str, ...], list[str]] = {}
    for file, schema in zip(files, schemas, strict=True):
        problems = tuple(_problems(form, schema))
        if problems:
            bad.setdefault(problems, []).append(file.path)
    if not bad:
        return
    texts = []
    for problems, where in bad.items():
        others = f" (and {len(where) - 1} more files)" if len(where) > 1 else ""
        texts.append(f"{where[0]}{others}: {', '.join(problems)}")
    raise InputError(
        f"not the columns of {form.value}: {'; '.join(texts)}",
        hint=f"metadata needs {', '.join(ParquetForm.METADATA.needed)}; "
        f"raw batches need {', '.join(ParquetForm.RAW.needed)}",
    )


def _problems(form: ParquetForm, schema: pa.Schema) -> Iterable[str]:
    names = form.needed + (OPTIONAL_COLUMNS if form is ParquetForm.METADATA else ())
    for name in names:
        count = schema.names.count(name)
        if count == 0:
            if name in form.needed:
                yield f"{name} is missing"
        elif count > 1:
            yield f"{name} occurs {count} times"
        else:
            found = schema.field(name).type
            expected = _expected(name, found)
            if expected is not None:
                yield f"{name} is {found}, not {expected}"


def _expected(name: str, found: pa.DataType) -> str | None:
    """Return what a column must be, or None if it is that."""
    kind = found.value_type if pa.types.is_dictionary(found) else found
    if name == "topic":
        types = pa.types
        strings = (types.is_string, types.is_large_string, types.is_string_view)
        return None if any(check(kind) for check in strings) else "a string"
    if name == BATCH:
        return None if pa.types.is_binary(found) or pa.types.is_large_binary(found) else "binary"
    fits = pa.types.is_integer(found) and found != pa.uint64()
    return None if fits else "an integer of at most 64 signed bits"


def canonical_type(name: str) -> pa.DataType:
    """Return the type that a column is read as."""
    if name == "topic":
        return pa.string()
    return pa.large_binary() if name == BATCH else pa.int64()
