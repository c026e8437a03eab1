"""Tables of queries in files, read as Arrow batches after a check of their columns.

Arrow reads Parquet, and DuckDB reads CSV and JSON lines, in which all columns are strings. A file
whose rows do not parse is rejected, with the line.
"""

from __future__ import annotations

import csv
import glob
import io
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import json

from kafka_index.core.errors import InputError, ReadError, first_of
from kafka_index.core.format.state_files import MALFORMED
from kafka_index.core.fs.local_work import workspace
from kafka_index.core.fs.paths import absolute_path, expand_input
from kafka_index.core.fs.registry import (
    directory_exists,
    input_stream,
    readable,
    scan_directory,
    store_of,
)
from kafka_index.core.fs.store import COMPRESSIONS
from kafka_index.core.log.read.answers import ANSWER_SCHEMA
from kafka_index.core.query.choices import By
from kafka_index.core.query.keys import PARTITION, TOPIC

if TYPE_CHECKING:
    import pyarrow.parquet as pq

#: Maximum number of rows of a split, unless a row group has more.
SPLIT_ROWS = 1_000_000
#: Maximum number of rows of a batch. Larger batches are slower, because they exceed the CPU caches.
READ_ROWS = 250_000
#: The column with the JSON object of each query, as read.
LINE = "line"

_MAX_NAMES = 20
# Names that Spark ignores in a folder of files (InMemoryFileIndex).
_NOT_DATA = ("_", ".")
_COPYING = "._COPYING_"


class QueryFormat(Enum):
    """The format of files of queries and answers: its name in texts, and its endings."""

    PARQUET = "parquet", "Parquet", (".parquet",)
    CSV = "csv", "CSV", (".csv",)
    JSON = "json", "JSON lines", (".json", ".jsonl", ".ndjson")

    text: str
    endings: tuple[str, ...]

    def __new__(cls, value: str, text: str, endings: tuple[str, ...]) -> Self:
        member = object.__new__(cls)
        member._value_, member.text, member.endings = value, text, endings
        return member

    @classmethod
    def of(cls, path: str) -> QueryFormat | None:
        """Return the format of a path by its ending, None for an unknown ending."""
        ending = os.path.splitext(path)[1].lower()
        return next((form for form in cls if ending in form.endings), None)


@dataclass(frozen=True, slots=True)
class QuerySplit:
    """A file of queries, or some row groups of a Parquet file.

    Splits are numbered in the order of the queries. A Parquet file without rows has a split without
    row groups. `rows` is None if it is unknown before the read. `size_bytes` is the approximate
    size of the read, and `file_bytes` the size of the file when it was checked. `first_row` is the
    number of queries of the file before the split. `columns` are the columns of all files, in the
    order of the first file; for JSON lines, the members of the first lines of all files.
    """

    number: int
    path: str
    format: QueryFormat
    by: By
    row_groups: tuple[int, ...]
    rows: int | None
    size_bytes: int
    file_bytes: int
    columns: tuple[str, ...] = ()
    first_row: int = 0

    def check_unchanged(self) -> None:
        """Raise `InputError` if the file has another size, or is missing."""
        if file_size(self.path) != self.file_bytes:
            raise self.changed()

    def changed(self) -> ReadError:
        """Return the error for a file that changed after it was checked."""
        return ReadError(
            "the file of queries changed during the run",
            path=self.path,
            hint="run again when nothing writes to it",
        )


@dataclass(frozen=True, slots=True)
class Queries:
    """The checked queries of a run: absolute paths of files, and their splits, in order."""

    path: str
    by: By
    format: QueryFormat
    files: tuple[str, ...]
    splits: tuple[QuerySplit, ...]

    @property
    def rows(self) -> int | None:
        """Number of queries, None if it is unknown before the read."""
        counts = [split.rows for split in self.splits]
        return None if None in counts else sum(count or 0 for count in counts)


def open_queries(path: str, by: By) -> Queries:
    """Find files of queries, check their columns, and divide them into splits.

    The path is a Parquet (``.parquet``), CSV (``.csv``) or JSON lines (``.json``, ``.jsonl``,
    ``.ndjson``) file, a folder of files of one format, or a glob of either. Names that start with
    ``_`` or ``.`` are ignored in folders and globs. Text may be compressed. Raises `InputError` if
    there are no files, they have several formats or an unknown one, or their columns are missing,
    of the wrong type, named like answer columns, or not the same in all files. For JSON lines
    only the first lines of each file are checked.
    """
    files, form = find_query_files(path)
    if form is QueryFormat.PARQUET:
        splits = _check_parquet(files, by)
    else:
        sizes = list(map(file_size, files))
        names = _check_csv(files, by) if form is QueryFormat.CSV else _check_json(files, by)
        splits = [
            QuerySplit(number, file, form, by, (), None, size, size, names or needed_columns(by))
            for number, (file, size) in enumerate(zip(files, sizes, strict=True))
        ]
    return Queries(path, by, form, tuple(files), tuple(splits))


def read_split(
    split: QuerySplit, *, as_parquet: bool = False, max_rows: int = READ_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield the queries of a split in order, with the columns `QuerySplit.columns`.

    JSON lines have the column `LINE` instead of members that are not part of a query, unless the
    answers are written `as_parquet`. A batch of Parquet has at most `max_rows`, a batch of text a
    few MB. Raises `InputError` if the file cannot be read, does not parse, or has changed since it
    was checked.
    """
    split.check_unchanged()
    if split.format is QueryFormat.PARQUET:
        return _read_parquet(split, max_rows=max_rows)
    if split.format is QueryFormat.CSV:
        return _read_csv(split)
    return _read_json(split, as_columns=as_parquet)


def written_schema(split: QuerySplit) -> pa.Schema:
    """Return the columns of the queries of a split that are written to Parquet."""
    if split.format is QueryFormat.PARQUET:
        return parquet_schema(read_footer(split.path))
    types = {PARTITION: pa.int32(), split.by.column: pa.int64()}
    return pa.schema([(name, types.get(name, pa.string())) for name in split.columns])


# ------------------------------------------------------------------------------------------ files


def find_query_files(path: str) -> tuple[list[str], QueryFormat]:
    """Find the files of queries, sorted within each folder, and their format.

    The path or URI is a file, a folder (searched through), or a glob of either. Raises `InputError`
    if there are no files, an ending is unknown, or there are several formats.
    """
    roots = expand_input(path)
    named_outright = not glob.has_magic(path) or roots == [absolute_path(path)]
    files = [
        file
        for root in roots
        if named_outright or not _is_hidden(os.path.basename(root))
        for file in (_walk(root) if directory_exists(root) else [root])
    ]
    files = list(dict.fromkeys(files))
    every = ", ".join(ending for form in QueryFormat for ending in form.endings)
    if not files:
        raise InputError("no query files found", path=path, expected=f"files that end in {every}")
    forms = [_form_of(file) for file in files]
    for file, form in zip(files, forms, strict=True):
        if form is None:
            raise InputError("a query file has an unknown ending", path=file, expected=every)
        if form is not forms[0]:
            raise InputError(
                f"queries of several formats: also {file}",
                path=files[0],
                hint="look up each format in a separate run",
            )
    assert forms[0] is not None  # noqa: S101, for mypy: the loop refused it
    return files, forms[0]


def file_size(path: str) -> int:
    """Return the size of a file of queries.

    Raises `InputError` if it cannot be examined, or is not a regular file.
    """
    store = store_of(path)
    with errors_of(path):
        size_bytes = store.info(path).size_bytes
    if store.is_special(path):
        raise InputError(
            "not a regular file", path=path, hint="queries are read more than once: give a file"
        )
    return size_bytes


@contextmanager
def errors_of(path: str) -> Iterator[None]:
    """Raise `InputError` with the path for an error of the operating system."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot read the queries: {error.strerror or error}", path=path
        ) from error


def _form_of(path: str) -> QueryFormat | None:
    stem, ending = os.path.splitext(path)
    if ending.lower() not in COMPRESSIONS:
        return QueryFormat.of(path)
    form = QueryFormat.of(stem)
    return None if form is QueryFormat.PARQUET else form


def _is_hidden(name: str) -> bool:
    return name.startswith(_NOT_DATA) or name.endswith(_COPYING)


def _walk(root: str) -> Iterator[str]:
    entries = [entry for entry in scan_directory(root) if not _is_hidden(entry.name)]
    entries.sort(key=lambda entry: entry.name)
    folders = [entry.path for entry in entries if entry.is_directory()]
    for path in folders:
        _refuse_column(path)
    yield from (entry.path for entry in entries if not entry.is_directory())
    for path in folders:
        yield from _walk(path)


def _refuse_column(folder: str) -> None:
    if "=" in os.path.basename(folder):
        raise InputError(
            "a folder name contains the value of a column",
            path=folder,
            hint="columns in folder names are not read: store them in the files",
        )


# ---------------------------------------------------------------------------------------- columns


def needed_columns(by: By) -> tuple[str, str, str]:
    return TOPIC, PARTITION, by.column


def check_columns(schema: pa.Schema, by: By, *, path: str | None = None) -> None:
    """Check the columns of the queries of a file or data frame.

    Raises `InputError` if columns are missing, of the wrong type, or named like answer columns.
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
        shown = [repr(name) if name != name.strip() else name for name in names]
        raise InputError(
            f"no column {', '.join(missing)}",
            path=path,
            expected=", ".join(needed),
            found=first_of(shown, _MAX_NAMES) or "no columns",
            hint=_hint(names, by),
        )
    repeated = [name for name in needed if names.count(name) > 1]
    if repeated:
        raise InputError(f"more than one column {', '.join(repeated)}", path=path)
    refuse_collisions(names, path=path)


def refuse_collisions(names: Iterable[str], *, path: str | None = None) -> None:
    """Reject columns with names of answer columns; in Spark, names are case-insensitive."""
    taken = sorted(set(names) & set(ANSWER_SCHEMA.names)) or sorted(
        name for name in set(names) if name.lower() in ANSWER_SCHEMA.names
    )
    if taken:
        raise InputError(
            f"columns have the names of answer columns: {', '.join(taken)}",
            path=path,
            hint="rename them (are these the answers of an earlier run?)",
        )


def _hint(names: Sequence[str], by: By) -> str | None:
    other = By.TIMESTAMP if by is By.OFFSET else By.OFFSET
    if by.column not in names and other.column in names:
        return f"these queries ask by {other.value}: give --by {other.value}"
    return None


def _expected(name: str, found: pa.DataType) -> str | None:
    """Return the expected type of a column, None if its type is valid."""
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
    """Reject files that do not have the columns of the first file, in any order.

    Raises `InputError` with the differences of the first mismatching file.
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
                hint="look up files with different columns in separate runs",
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


# ----------------------------------------------------------------------------------------- Parquet

# Small files have small splits, so that all threads have work.
_MIN_SPLIT_ROWS = 100_000
_SPLITS = 32
_BATCH_BYTES = 256 << 20
_MIN_BATCH_ROWS = 1_000

_ARROW_SCHEMA = b"ARROW:schema"
# Spark and Hive used to write timestamps as 96-bit integers without a unit. As nanoseconds, they
# overflow, and Spark cannot read them. So they become microseconds, as in current Spark.
_INSTANT = pa.timestamp("us", "UTC")


def _check_parquet(files: Sequence[str], by: By) -> list[QuerySplit]:
    """Check the columns of all files, and divide them into splits.

    Raises `InputError` if a file cannot be read, or its columns are invalid or differ from other
    files.
    """
    schemas: list[tuple[str, pa.Schema]] = []
    footers: list[pq.FileMetaData] = []
    sizes = [file_size(path) for path in files]
    for path in files:
        with _parquet_errors_of(path):
            footers.append(read_footer(path))
            schemas.append((path, parquet_schema(footers[-1])))
        check_columns(schemas[-1][1], by, path=path)
    refuse_differences(schemas)
    rows = sum(footer.num_rows for footer in footers)
    split_rows = min(max(rows // _SPLITS, _MIN_SPLIT_ROWS), SPLIT_ROWS)
    splits: list[QuerySplit] = []
    for path, footer, size in zip(files, footers, sizes, strict=True):
        first_row = 0
        for groups in _row_groups(footer, split_rows):
            metadata = [footer.row_group(group) for group in groups]
            splits.append(
                QuerySplit(
                    number=len(splits),
                    path=path,
                    format=QueryFormat.PARQUET,
                    by=by,
                    row_groups=groups,
                    rows=sum(group.num_rows for group in metadata),
                    size_bytes=sum(_compressed_bytes(group) for group in metadata),
                    file_bytes=size,
                    columns=tuple(schemas[0][1].names),
                    first_row=first_row,
                )
            )
            first_row += splits[-1].rows or 0
    return splits


def read_footer(path: str) -> pq.FileMetaData:
    import pyarrow.parquet as pq  # noqa: PLC0415, slow to import

    return pq.read_metadata(readable(path))


def parquet_schema(footer: pq.FileMetaData) -> pa.Schema:
    """Return the columns of a file, with the types in which they are read and written."""
    # The metadata of the file comes with the schema only if Arrow wrote it.
    metadata = {k: v for k, v in (footer.metadata or {}).items() if k != _ARROW_SCHEMA}
    schema = footer.schema.to_arrow_schema()
    schema = schema.with_metadata({**metadata, **(schema.metadata or {})} or None)
    for number in _instants(footer):
        name = footer.schema.column(number).path
        place = schema.get_field_index(name)
        if place >= 0:
            schema = schema.set(place, schema.field(place).with_type(_INSTANT))
    return schema


def _read_parquet(split: QuerySplit, *, max_rows: int = READ_ROWS) -> Iterator[pa.RecordBatch]:
    """Read a split of a Parquet file, at most `max_rows` at a time; topics may be dictionaries."""
    import pyarrow.parquet as pq  # noqa: PLC0415, slow to import

    rows = 0
    with _parquet_errors_of(split.path):
        file = readable(split.path)
        footer = pq.read_metadata(file)
        unit = "us" if _instants(footer) else None
        if any(group >= footer.num_row_groups for group in split.row_groups):
            raise split.changed()
        schema = parquet_schema(footer)
        with pq.ParquetFile(
            file,
            metadata=footer,
            coerce_int96_timestamp_unit=unit,
            # Each topic is then looked up once, not once per row.
            read_dictionary=[TOPIC] if schema.field(TOPIC).type == pa.string() else [],
        ) as opened:
            batches = opened.iter_batches(
                batch_size=_batch_rows(footer, split.row_groups, max_rows),
                row_groups=list(split.row_groups),
                use_threads=False,
            )
            for batch in batches if split.row_groups else ():
                rows += batch.num_rows
                yield batch
    if rows != split.rows:
        raise split.changed()


def _row_groups(footer: pq.FileMetaData, max_rows: int) -> Iterator[tuple[int, ...]]:
    """Yield the row groups of each split: at most `max_rows`, or a single larger group."""
    groups: list[int] = []
    rows = 0
    for number in range(footer.num_row_groups):
        more = footer.row_group(number).num_rows
        if groups and rows + more > max_rows:
            yield tuple(groups)
            groups, rows = [], 0
        groups.append(number)
        rows += more
    # A file without rows also has a split, whose part contains the columns.
    yield tuple(groups)


def _batch_rows(footer: pq.FileMetaData, row_groups: Sequence[int], max_rows: int) -> int:
    groups = [footer.row_group(number) for number in row_groups]
    rows = max(sum(group.num_rows for group in groups), 1)
    size = max(sum(group.total_byte_size for group in groups), 1)
    return int(max(min(max_rows, _BATCH_BYTES * rows // size), _MIN_BATCH_ROWS))


def _compressed_bytes(group: pq.RowGroupMetaData) -> int:
    return sum(group.column(number).total_compressed_size for number in range(group.num_columns))


def _instants(footer: pq.FileMetaData) -> list[int]:
    """Return the columns of 96-bit timestamps."""
    return [
        number
        for number in range(footer.num_columns)
        if footer.schema.column(number).physical_type == "INT96"
    ]


@contextmanager
def _parquet_errors_of(path: str) -> Iterator[None]:
    """Raise `InputError` with the path for an error of a Parquet file."""
    try:
        with errors_of(path):
            yield
    except pa.ArrowException as error:
        raise InputError(f"not a valid Parquet file: {error}", path=path) from error


# -------------------------------------------------------------------------------------------- text

# DuckDB holds a row in memory.
_MAX_ROW_BYTES = 16 << 20
_BATCH_TEXT_BYTES = 8 << 20
_MIN_TEXT_ROWS = 2_048
_SAMPLE_BYTES = 1 << 16
_COPY_BYTES = 1 << 20
# The members of the first lines determine the columns of Parquet.
_FIRST_LINES = 1_000
# Characters that DuckDB expands in a path.
_MAGIC = re.compile(r"[*?\[{]")
# The line with the reason in DuckDB's errors about CSV.
_CAUSE = re.compile(
    r"^(Expected Number of|Value with|Invalid unicode|Maximum line).*$", re.MULTILINE
)
_CSV = (
    "header = true, auto_detect = false, delim = ',', quote = '\"', escape = '\"', nullstr = '', "
    "allow_quoted_nulls = false"
)


def _check_csv(files: Sequence[str], by: By) -> tuple[str, ...]:
    """Check the headers of all files; return their columns, none if all files are empty."""
    schemas: list[tuple[str, pa.Schema]] = []
    for path in files:
        if names := _csv_header(path):
            check_names(names, by, path=path)
            schemas.append((path, pa.schema([(name, pa.string()) for name in names])))
    if not schemas:
        return ()
    refuse_differences(schemas)
    return tuple(schemas[0][1].names)


def _csv_header(path: str) -> list[str]:
    with errors_of(path), input_stream(path) as stream:
        text = io.TextIOWrapper(stream, "utf-8-sig", errors="replace", newline="")
        return next((row for row in csv.reader(text) if row), [])


def _check_json(files: Sequence[str], by: By) -> tuple[str, ...]:
    """Check the first lines of all files; return their members in the order of appearance."""
    members: dict[str, None] = {}
    for path in files:
        query = f"SELECT json_keys(json) FROM {_json_source()} LIMIT {_FIRST_LINES}"  # noqa: S608
        found = [
            names
            for batch in _query(path, QueryFormat.JSON, query)
            for names in batch.column(0).to_pylist()
        ]
        if found:
            names = dict.fromkeys(name for names in found for name in names)
            check_names(list(names), by, path=path)
            members.update(names)
    return tuple(members)


def _read_csv(split: QuerySplit) -> Iterator[pa.RecordBatch]:
    names = _csv_header(split.path)
    if not names:
        return
    if sorted(names) != sorted(split.columns):
        raise split.changed()
    places = list(range(len(names)))
    if names != list(split.columns):
        places = list(map(names.index, split.columns))
    types = ", ".join(f"c{place}: 'VARCHAR'" for place in range(len(names)))
    source = f"read_csv(?, {_CSV}, columns = {{{types}}}, max_line_size = {_MAX_ROW_BYTES}"
    chosen = ", ".join(f"c{place}" for place in places)
    query = f"SELECT {chosen} FROM {source}, compression = 'none')"  # noqa: S608, no value is in it
    for batch in _query(split.path, split.format, query):
        yield pa.RecordBatch.from_arrays(batch.columns, list(split.columns))


def _read_json(split: QuerySplit, *, as_columns: bool) -> Iterator[pa.RecordBatch]:
    """Read all members of JSON lines; without `as_columns`, only query columns and the lines."""
    names = split.columns if as_columns else needed_columns(split.by)
    chosen = [f"json ->> '{_pointer(name)}'" for name in names]
    more = ["json::VARCHAR", "json_keys(json)"]
    query = f"SELECT {', '.join([*chosen, *more])} FROM {_json_source()}"  # noqa: S608, as quoted
    rows = 0
    for batch in _query(split.path, split.format, query):
        *columns, lines, members = batch.columns
        _check_members(lines, members, rows, split, as_columns=as_columns)
        rows += len(batch)
        if as_columns:
            yield pa.RecordBatch.from_arrays(columns, list(names))
        else:
            yield pa.RecordBatch.from_arrays([*columns, lines], [*names, LINE])


def _json_source() -> str:
    return (
        "read_json_objects(?, format = 'newline_delimited', compression = 'none', "
        f"maximum_object_size = {_MAX_ROW_BYTES})"
    )


def _pointer(name: str) -> str:
    """Return a member as a JSON pointer (RFC 6901), quoted for SQL."""
    return "/" + name.replace("~", "~0").replace("/", "~1").replace("'", "''")


def _check_members(
    lines: pa.Array, members: pa.Array, rows: int, split: QuerySplit, *, as_columns: bool
) -> None:
    """Reject lines that are not objects, and members that collide with answer columns."""
    empty = pc.equal(pc.list_value_length(members), 0)
    bad = pc.and_(empty, pc.invert(pc.starts_with(lines, "{")))
    if pc.any(bad).as_py():
        row = rows + pc.index(bad, True).as_py() + 1
        raise InputError(f"query {row} is not a JSON object", path=split.path)
    names = pc.unique(members.flatten()).to_pylist()
    refuse_collisions(names, path=split.path)
    unknown = set(names).difference(split.columns) if as_columns else ()
    if unknown:
        row, name = next(
            (row, name)
            for row, found in enumerate(members.to_pylist(), rows + 1)
            for name in found
            if name in unknown
        )
        raise InputError(
            f"query {row}: the member {name!r} is in none of the files' first lines",
            path=split.path,
            hint="they determine the columns of answers in Parquet: put such a line first, or "
            "write JSON lines",
        )


def _query(path: str, form: QueryFormat, query: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a DuckDB query over a file, whose path is its parameter.

    Raises `InputError` with the row or line that does not parse.
    """
    import duckdb  # noqa: PLC0415, slow to import

    with errors_of(path), _plain_file(path) as plain:
        rows = _estimate_rows_per_batch(plain)
        with closing(duckdb.connect(config={"threads": 1})) as connection:
            try:
                yield from connection.sql(query, params=[plain]).to_arrow_reader(rows)
            except duckdb.InvalidInputException as error:
                raise _parse_error(path, plain, str(error), form) from error
            except duckdb.Error as error:
                raise ReadError(f"cannot read the queries: {error}", path=path) from error


@contextmanager
def _plain_file(path: str) -> Iterator[str]:
    """Yield the path of a local file with the text from the first non-blank line on.

    It is the file itself, unless the file is compressed or remote, begins with a blank, or has a
    path that DuckDB expands.
    """
    is_packed = os.path.splitext(path)[1].lower() in COMPRESSIONS
    if not is_packed and not store_of(path).needs_requests and not _MAGIC.search(path):
        with open(path, "rb") as file:
            if not file.read(1).isspace():
                yield path
                return
    with tempfile.NamedTemporaryFile(dir=workspace()) as copy, input_stream(path) as stream:
        block = b""
        while not block.strip() and (data := stream.read(_COPY_BYTES)):
            block = data.lstrip(b"\r\n")
        copy.write(block)
        shutil.copyfileobj(stream, copy, _COPY_BYTES)
        copy.flush()
        yield copy.name


def _estimate_rows_per_batch(path: str) -> int:
    """Return the number of rows to read per batch, based on the first rows of a file."""
    with open(path, "rb") as file:
        sample = file.read(_SAMPLE_BYTES)
    row_bytes = len(sample) // (sample.count(b"\n") + 1) + 1
    return max(min(READ_ROWS, _BATCH_TEXT_BYTES // row_bytes), _MIN_TEXT_ROWS)


def _parse_error(path: str, plain: str, text: str, form: QueryFormat) -> InputError:
    """Convert DuckDB's error for a text that does not parse."""
    cause = _CAUSE.search(text)
    reason = cause[0] if cause else text.splitlines()[0].removeprefix("Invalid Input Error: ")
    if form is QueryFormat.JSON:
        return InputError(f"line {_bad_json_line(plain) or 1} does not parse: {reason}", path=path)
    row = re.search(r"CSV Error on Line: (\d+)", text)
    place = f"row {row[1]}, with the header," if row else "a row"
    return InputError(
        f"{place} does not parse: {reason}",
        path=path,
        hint="rows have as many cells as the header, closed quotes, and equal line ends (RFC 4180)",
    )


def _bad_json_line(path: str) -> int | None:
    """Return the number of the first line that is not JSON; DuckDB's number is off by one."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                json.decode(line.lstrip(b"\xef\xbb\xbf").strip() or b"0")
            except MALFORMED:
                return number
    return None
