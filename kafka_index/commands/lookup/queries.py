"""Check the columns of tables of queries in files, and read the files as Arrow batches.

Arrow reads Parquet. DuckDB reads CSV and JSON lines, with all columns as strings. If a row does not
parse, the file is rejected, and the error reports the line.
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
from kafka_index.core.log.choices import By
from kafka_index.core.log.read.answers import ANSWER_SCHEMA
from kafka_index.core.query.lookups import PARTITION, TOPIC

if TYPE_CHECKING:
    import pyarrow.parquet as pq

#: Maximum number of rows of a split, unless a single row group has more rows.
SPLIT_ROWS = 1_000_000
#: Maximum number of rows of a batch. Larger batches are slower, because they exceed the CPU caches.
READ_ROWS = 250_000
#: The column with the JSON object of each query, as it was read.
LINE = "line"

_MAX_NAMES = 20
# Prefixes of file names that Spark ignores in a folder (InMemoryFileIndex).
_HIDDEN_PREFIXES = ("_", ".")
_COPY_SUFFIX = "._COPYING_"


class QueryFormat(Enum):
    """The format of files with queries or answers: its name in messages, and its extensions."""

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
    def from_path(cls, path: str) -> QueryFormat | None:
        """Return the format of a path by its file name extension, None for an unknown extension."""
        ending = os.path.splitext(path)[1].lower()
        return next((format_ for format_ in cls if ending in format_.endings), None)


@dataclass(frozen=True, slots=True)
class QuerySplit:
    """A file of queries, or some row groups of a Parquet file of queries.

    Splits are numbered in the order of the queries. A Parquet file without rows has one split
    without row groups.

    Attributes
    ----------
    rows : int, optional
        The number of queries, None if it is unknown before the file is read.
    size_bytes, file_bytes : int
        The approximate size of the split, and the size of the file when it was checked.
    columns : tuple of str
        The columns, which are the same in all files, in the order of the first file. For JSON
        lines, all members in the first lines of each file.
    first_row : int
        The number of queries in the file that precede the split.
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
        """Raise an error if the file is missing, or its size has changed since it was checked."""
        if file_size(self.path) != self.file_bytes:
            raise self.changed_error()

    def changed_error(self) -> ReadError:
        """Return the error for a file that changed after it was checked."""
        return ReadError(
            "the file of queries changed during the run",
            path=self.path,
            hint="run again when no process writes to the file",
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
        """Number of queries, None if it is unknown before the files are read."""
        counts = [split.rows for split in self.splits]
        return None if None in counts else sum(count or 0 for count in counts)


def open_queries(path: str, by: By) -> Queries:
    """Find files of queries, check their columns, and divide them into splits.

    The path is a Parquet (``.parquet``), CSV (``.csv``) or JSON lines (``.json``, ``.jsonl``,
    ``.ndjson``) file, a folder of files of one format, or a glob of either. Names that start with
    ``_`` or ``.`` are ignored in folders and globs. CSV and JSON files may be compressed.

    Raises `InputError` if there are no files, the files have different formats or an unknown
    format, or their columns differ. Also raises `InputError` if a column is missing, has the wrong
    type, or has the name of an answer column. For JSON lines, only the first lines of each file are
    checked.
    """
    files, form = find_query_files(path)
    if form is QueryFormat.PARQUET:
        splits = _check_parquet(files, by)
    else:
        sizes = list(map(file_size, files))
        names = _check_csv(files, by) if form is QueryFormat.CSV else _check_json(files, by)
        splits = [
            QuerySplit(number, file, form, by, (), None, size, size, names or query_columns(by))
            for number, (file, size) in enumerate(zip(files, sizes, strict=True))
        ]
    return Queries(path, by, form, tuple(files), tuple(splits))


def read_split(
    split: QuerySplit, *, as_parquet: bool = False, max_rows: int = READ_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield the queries of a split in order, with the columns `QuerySplit.columns`.

    For JSON lines, the column `LINE` replaces members that are not part of a query, unless
    `as_parquet` is set because answers are written as Parquet. A batch of Parquet has at most
    `max_rows`. A batch of CSV or JSON lines has a few MB. Raises `InputError` if the file cannot be
    read or parsed, or changed after the check.
    """
    split.check_unchanged()
    if split.format is QueryFormat.PARQUET:
        return _read_parquet(split, max_rows=max_rows)
    if split.format is QueryFormat.CSV:
        return _read_csv(split)
    return _read_json(split, as_columns=as_parquet)


def written_schema(split: QuerySplit) -> pa.Schema:
    """Return the schema of the queries of a split in Parquet answers."""
    if split.format is QueryFormat.PARQUET:
        return parquet_schema(read_footer(split.path))
    types = {PARTITION: pa.int32(), split.by.column: pa.int64()}
    return pa.schema([(name, types.get(name, pa.string())) for name in split.columns])


# ------------------------------------------------------------------------------------------ files


def find_query_files(path: str) -> tuple[list[str], QueryFormat]:
    """Return the files of queries, sorted within each folder, and their format.

    The path or URI is a file, a folder (searched through), or a glob of either. Raises `InputError`
    if there are no files, a file name extension is unknown, or the files have different formats.
    """
    roots = expand_input(path)
    is_single_file = not glob.has_magic(path) or roots == [absolute_path(path)]
    files = [
        file
        for root in roots
        if is_single_file or not _is_hidden(os.path.basename(root))
        for file in (_list_files(root) if directory_exists(root) else [root])
    ]
    files = list(dict.fromkeys(files))
    endings = ", ".join(ending for form in QueryFormat for ending in form.endings)
    if not files:
        raise InputError("no query files found", path=path, expected=f"files that end in {endings}")
    forms = [_find_format(file) for file in files]
    for file, form in zip(files, forms, strict=True):
        if form is None:
            raise InputError("a query file has an unknown ending", path=file, expected=endings)
        if form is not forms[0]:
            raise InputError(
                f"the format of the file differs from that of {files[0]}",
                path=file,
                hint="look up the queries of each format in a separate run",
            )
    assert forms[0] is not None  # noqa: S101, because mypy needs it
    return files, forms[0]


def file_size(path: str) -> int:
    """Return the size of a file of queries.

    Raises `InputError` if it cannot be examined, or is not a regular file.
    """
    store = store_of(path)
    with convert_os_errors(path):
        size_bytes = store.info(path).size_bytes
    if store.is_special(path):
        raise InputError(
            "the path is not a regular file",
            path=path,
            hint="queries are read more than once; give a regular file",
        )
    return size_bytes


@contextmanager
def convert_os_errors(path: str) -> Iterator[None]:
    """Convert an error of the operating system to an `InputError` with the path."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"the queries cannot be read: {error.strerror or error}", path=path
        ) from error


def _find_format(path: str) -> QueryFormat | None:
    stem, ending = os.path.splitext(path)
    if ending.lower() not in COMPRESSIONS:
        return QueryFormat.from_path(path)
    form = QueryFormat.from_path(stem)
    return None if form is QueryFormat.PARQUET else form


def _is_hidden(name: str) -> bool:
    return name.startswith(_HIDDEN_PREFIXES) or name.endswith(_COPY_SUFFIX)


def _list_files(root: str) -> Iterator[str]:
    entries = [entry for entry in scan_directory(root) if not _is_hidden(entry.name)]
    entries.sort(key=lambda entry: entry.name)
    folders = [entry.path for entry in entries if entry.is_directory()]
    for path in folders:
        _refuse_partition_folder(path)
    yield from (entry.path for entry in entries if not entry.is_directory())
    for path in folders:
        yield from _list_files(path)


def _refuse_partition_folder(folder: str) -> None:
    if "=" in os.path.basename(folder):
        raise InputError(
            "a folder name contains the value of a column",
            path=folder,
            hint="columns in folder names are not read; store the columns in the files",
        )


# ---------------------------------------------------------------------------------------- columns


def query_columns(by: By) -> tuple[str, str, str]:
    return TOPIC, PARTITION, by.column


def check_columns(schema: pa.Schema, by: By, *, path: str | None = None) -> None:
    """Check the columns of the queries of a file or data frame.

    Raises `InputError` if a column is missing, has the wrong type, or has the name of an answer
    column.
    """
    check_names(schema.names, by, path=path)
    problems = [
        f"{name} is {schema.field(name).type}, not {expected}"
        for name in query_columns(by)
        if (expected := _expected_type(name, schema.field(name).type)) is not None
    ]
    if problems:
        raise InputError(f"columns of the wrong type: {', '.join(problems)}", path=path)


def check_names(names: Sequence[str], by: By, *, path: str | None = None) -> None:
    """Check the names of columns, as `check_columns` does."""
    required = query_columns(by)
    missing_names = [name for name in required if name not in names]
    if missing_names:
        quoted_names = [repr(name) if name != name.strip() else name for name in names]
        raise InputError(
            f"the queries have no column {', '.join(missing_names)}",
            path=path,
            expected=", ".join(required),
            found=first_of(quoted_names, _MAX_NAMES) or "no columns",
            hint=_other_key_hint(names, by),
        )
    repeated = [name for name in required if names.count(name) > 1]
    if repeated:
        raise InputError(f"the queries have more than one column {', '.join(repeated)}", path=path)
    refuse_collisions(names, path=path)


def refuse_collisions(names: Iterable[str], *, path: str | None = None) -> None:
    """Reject columns with names of answer columns, ignoring case as Spark does."""
    collisions = sorted(set(names) & set(ANSWER_SCHEMA.names)) or sorted(
        name for name in set(names) if name.lower() in ANSWER_SCHEMA.names
    )
    if collisions:
        raise InputError(
            f"columns have the names of answer columns: {', '.join(collisions)}",
            path=path,
            hint="rename the columns; the file may contain answers of an earlier run",
        )


def _other_key_hint(names: Sequence[str], by: By) -> str | None:
    other_key = By.TIMESTAMP if by is By.OFFSET else By.OFFSET
    if by.column not in names and other_key.column in names:
        return f"the queries have a column {other_key.column}: give --by {other_key.value}"
    return None


def _expected_type(name: str, column_type: pa.DataType) -> str | None:
    """Return a description of the types that a column may have, None if its type is valid."""
    value_type = column_type.value_type if pa.types.is_dictionary(column_type) else column_type
    if name == TOPIC:
        return None if _is_string(value_type) else "a string"
    if pa.types.is_integer(value_type):
        return None
    if name == By.TIMESTAMP.column:
        is_time = pa.types.is_timestamp(value_type) or pa.types.is_date(value_type)
        return None if is_time else "an integer (milliseconds), a timestamp or a date"
    return "an integer"


def _is_string(column_type: pa.DataType) -> bool:
    types = pa.types
    return any(
        is_type(column_type)
        for is_type in (types.is_string, types.is_large_string, types.is_string_view)
    )


def refuse_differences(schemas: Sequence[tuple[str, pa.Schema]]) -> None:
    """Reject files with other columns than the first file; the order of columns may differ."""
    first_path, first_schema = schemas[0]
    for path, schema in schemas[1:]:
        differences = list(_describe_differences(first_schema, schema))
        if (
            not differences
            and len(set(first_schema.names)) < len(first_schema)
            and schema.names != first_schema.names
        ):
            differences = ["columns with the same name are in another order"]
        if differences:
            raise InputError(
                f"the columns differ from {first_path}: {', '.join(differences)}",
                path=path,
                hint="look up files with different columns in separate runs",
            )


def _describe_differences(expected: pa.Schema, schema: pa.Schema) -> Iterator[str]:
    for name in dict.fromkeys(expected.names):
        count, expected_count = schema.names.count(name), expected.names.count(name)
        if not count:
            yield f"{name} is missing"
        elif count != expected_count:
            yield f"{count} columns named {name}, not {expected_count}"
        elif count == 1 and expected.field(name).type != schema.field(name).type:
            yield f"{name} is {schema.field(name).type}, not {expected.field(name).type}"
    for name in dict.fromkeys(schema.names):
        if name not in expected.names:
            yield f"{name} is additional"


# ----------------------------------------------------------------------------------------- Parquet

# Minimum number of rows of a split. Small files have small splits, so that all threads have work.
_MIN_SPLIT_ROWS = 100_000
_SPLITS = 32
_BATCH_BYTES = 256 << 20
_MIN_BATCH_ROWS = 1_000

_ARROW_SCHEMA = b"ARROW:schema"
# Older versions of Spark and Hive write timestamps as 96-bit integers. Convert these timestamps to
# microseconds, as current Spark does: nanoseconds could overflow, and Spark cannot read them.
_INT96_TYPE = pa.timestamp("us", "UTC")


def _check_parquet(files: Sequence[str], by: By) -> list[QuerySplit]:
    """Check the columns of all files, and divide them into splits.

    Raises `InputError` if a file cannot be read, or its columns are invalid or differ from those of
    the first file.
    """
    schemas: list[tuple[str, pa.Schema]] = []
    footers: list[pq.FileMetaData] = []
    sizes = [file_size(path) for path in files]
    for path in files:
        with _convert_parquet_errors(path):
            footers.append(read_footer(path))
            schemas.append((path, parquet_schema(footers[-1])))
        check_columns(schemas[-1][1], by, path=path)
    refuse_differences(schemas)
    rows = sum(footer.num_rows for footer in footers)
    split_rows = min(max(rows // _SPLITS, _MIN_SPLIT_ROWS), SPLIT_ROWS)
    splits: list[QuerySplit] = []
    for path, footer, size in zip(files, footers, sizes, strict=True):
        first_row = 0
        for groups in _divide_row_groups(footer, split_rows):
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
    """Return the columns of a Parquet file, with the types in which they are read and written."""
    # Add the file metadata, because the Arrow schema contains it only if Arrow wrote the file.
    metadata = {k: v for k, v in (footer.metadata or {}).items() if k != _ARROW_SCHEMA}
    schema = footer.schema.to_arrow_schema()
    schema = schema.with_metadata({**metadata, **(schema.metadata or {})} or None)
    for number in _int96_columns(footer):
        name = footer.schema.column(number).path
        position = schema.get_field_index(name)
        if position >= 0:
            schema = schema.set(position, schema.field(position).with_type(_INT96_TYPE))
    return schema


def _read_parquet(split: QuerySplit, *, max_rows: int = READ_ROWS) -> Iterator[pa.RecordBatch]:
    """Read a split of a Parquet file in batches of at most `max_rows`."""
    import pyarrow.parquet as pq  # noqa: PLC0415, slow to import

    rows = 0
    with _convert_parquet_errors(split.path):
        file = readable(split.path)
        footer = pq.read_metadata(file)
        unit = "us" if _int96_columns(footer) else None
        if any(group >= footer.num_row_groups for group in split.row_groups):
            raise split.changed_error()
        schema = parquet_schema(footer)
        with pq.ParquetFile(
            file,
            metadata=footer,
            coerce_int96_timestamp_unit=unit,
            # With a dictionary, each topic is looked up once instead of once per row.
            read_dictionary=[TOPIC] if schema.field(TOPIC).type == pa.string() else [],
        ) as parquet_file:
            batches = parquet_file.iter_batches(
                batch_size=_rows_per_read(footer, split.row_groups, max_rows),
                row_groups=list(split.row_groups),
                use_threads=False,
            )
            for batch in batches if split.row_groups else ():
                rows += batch.num_rows
                yield batch
    if rows != split.rows:
        raise split.changed_error()


def _divide_row_groups(footer: pq.FileMetaData, max_rows: int) -> Iterator[tuple[int, ...]]:
    """Yield the row groups of each split: at most `max_rows` in total, or one larger row group."""
    groups: list[int] = []
    rows = 0
    for number in range(footer.num_row_groups):
        group_rows = footer.row_group(number).num_rows
        if groups and rows + group_rows > max_rows:
            yield tuple(groups)
            groups, rows = [], 0
        groups.append(number)
        rows += group_rows
    # Yield a split even for a file without rows, so that the output contains its columns.
    yield tuple(groups)


def _rows_per_read(footer: pq.FileMetaData, row_groups: Sequence[int], max_rows: int) -> int:
    groups = [footer.row_group(number) for number in row_groups]
    rows = max(sum(group.num_rows for group in groups), 1)
    size = max(sum(group.total_byte_size for group in groups), 1)
    return int(max(min(max_rows, _BATCH_BYTES * rows // size), _MIN_BATCH_ROWS))


def _compressed_bytes(group: pq.RowGroupMetaData) -> int:
    return sum(group.column(number).total_compressed_size for number in range(group.num_columns))


def _int96_columns(footer: pq.FileMetaData) -> list[int]:
    """Return the indexes of the columns with 96-bit timestamps."""
    return [
        number
        for number in range(footer.num_columns)
        if footer.schema.column(number).physical_type == "INT96"
    ]


@contextmanager
def _convert_parquet_errors(path: str) -> Iterator[None]:
    """Convert an error about a Parquet file to an `InputError` with the path."""
    try:
        with convert_os_errors(path):
            yield
    except pa.ArrowException as error:
        raise InputError(f"the file is not a valid Parquet file: {error}", path=path) from error


# -------------------------------------------------------------------------------------------- text

# Maximum size of a row, because DuckDB reads a complete row into memory.
_MAX_ROW_BYTES = 16 << 20
_BATCH_TEXT_BYTES = 8 << 20
_MIN_TEXT_ROWS = 2_048
_SAMPLE_BYTES = 1 << 16
_COPY_BYTES = 1 << 20
# Number of lines in which JSON members are searched. They become columns of Parquet answers.
_FIRST_LINES = 1_000
# Glob characters, which DuckDB expands in a path.
_GLOB_CHARACTERS = re.compile(r"[*?\[{]")
# Matches the line with the reason in an error of DuckDB about CSV.
_CSV_CAUSE = re.compile(
    r"^(Expected Number of|Value with|Invalid unicode|Maximum line).*$", re.MULTILINE
)
_CSV_OPTIONS = (
    "header = true, auto_detect = false, delim = ',', quote = '\"', escape = '\"', nullstr = '', "
    "allow_quoted_nulls = false"
)


def _check_csv(files: Sequence[str], by: By) -> tuple[str, ...]:
    """Check the headers of all files; return the columns, none if all files are empty."""
    schemas: list[tuple[str, pa.Schema]] = []
    for path in files:
        if names := _read_csv_header(path):
            check_names(names, by, path=path)
            schemas.append((path, pa.schema([(name, pa.string()) for name in names])))
    if not schemas:
        return ()
    refuse_differences(schemas)
    return tuple(schemas[0][1].names)


def _read_csv_header(path: str) -> list[str]:
    with convert_os_errors(path), input_stream(path) as stream:
        csv_text = io.TextIOWrapper(stream, "utf-8-sig", errors="replace", newline="")
        return next((row for row in csv.reader(csv_text) if row), [])


def _check_json(files: Sequence[str], by: By) -> tuple[str, ...]:
    """Check the first lines of all files; return their members in the order of appearance."""
    members: dict[str, None] = {}
    for path in files:
        query = f"SELECT json_keys(json) FROM {_json_source()} LIMIT {_FIRST_LINES}"  # noqa: S608
        lines = [
            names
            for batch in _run_query(path, QueryFormat.JSON, query)
            for names in batch.column(0).to_pylist()
        ]
        if lines:
            names = dict.fromkeys(name for names in lines for name in names)
            check_names(list(names), by, path=path)
            members.update(names)
    return tuple(members)


def _read_csv(split: QuerySplit) -> Iterator[pa.RecordBatch]:
    names = _read_csv_header(split.path)
    if not names:
        return
    if sorted(names) != sorted(split.columns):
        raise split.changed_error()
    positions = list(range(len(names)))
    if names != list(split.columns):
        positions = list(map(names.index, split.columns))
    types = ", ".join(f"c{position}: 'VARCHAR'" for position in range(len(names)))
    source = f"read_csv(?, {_CSV_OPTIONS}, columns = {{{types}}}, max_line_size = {_MAX_ROW_BYTES}"
    columns = ", ".join(f"c{position}" for position in positions)
    query = f"SELECT {columns} FROM {source}, compression = 'none')"  # noqa: S608, column numbers only
    for batch in _run_query(split.path, split.format, query):
        yield pa.RecordBatch.from_arrays(batch.columns, list(split.columns))


def _read_json(split: QuerySplit, *, as_columns: bool) -> Iterator[pa.RecordBatch]:
    """Read JSON lines: with `as_columns` all members, otherwise the query columns and `LINE`."""
    names = split.columns if as_columns else query_columns(split.by)
    members = [f"json ->> '{_json_pointer(name)}'" for name in names]
    columns = ", ".join([*members, "json::VARCHAR", "json_keys(json)"])
    query = f"SELECT {columns} FROM {_json_source()}"  # noqa: S608, names are quoted
    rows = 0
    for batch in _run_query(split.path, split.format, query):
        *values, lines, member_names = batch.columns
        _check_members(lines, member_names, rows, split, as_columns=as_columns)
        rows += len(batch)
        if as_columns:
            yield pa.RecordBatch.from_arrays(values, list(names))
        else:
            yield pa.RecordBatch.from_arrays([*values, lines], [*names, LINE])


def _json_source() -> str:
    return (
        "read_json_objects(?, format = 'newline_delimited', compression = 'none', "
        f"maximum_object_size = {_MAX_ROW_BYTES})"
    )


def _json_pointer(name: str) -> str:
    """Return the JSON pointer (RFC 6901) of a member, quoted for SQL."""
    return "/" + name.replace("~", "~0").replace("/", "~1").replace("'", "''")


def _check_members(
    lines: pa.Array, members: pa.Array, rows: int, split: QuerySplit, *, as_columns: bool
) -> None:
    """Reject lines that are not objects, and members that collide with answer columns."""
    is_empty = pc.equal(pc.list_value_length(members), 0)
    is_other_value = pc.and_(is_empty, pc.invert(pc.starts_with(lines, "{")))
    if pc.any(is_other_value).as_py():
        row = rows + pc.index(is_other_value, True).as_py() + 1
        raise InputError(f"query {row} is not a JSON object", path=split.path)
    names = pc.unique(members.flatten()).to_pylist()
    refuse_collisions(names, path=split.path)
    unknown = set(names).difference(split.columns) if as_columns else ()
    if unknown:
        row, name = next(
            (row, name)
            for row, names in enumerate(members.to_pylist(), rows + 1)
            for name in names
            if name in unknown
        )
        raise InputError(
            f"query {row} has the member {name!r}, which the first lines of all files lack",
            path=split.path,
            hint="the first lines determine the columns of answers in Parquet: move a line with "
            "this member to the start, or write JSON lines",
        )


def _run_query(path: str, form: QueryFormat, query: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a SQL query of DuckDB; the path of the file is the query's parameter.

    Raises `InputError` with the row or line that does not parse.
    """
    import duckdb  # noqa: PLC0415, slow to import

    with convert_os_errors(path), _uncompressed_file(path) as plain_path:
        rows = _estimate_rows_per_batch(plain_path)
        with closing(duckdb.connect(config={"threads": 1})) as connection:
            try:
                yield from connection.sql(query, params=[plain_path]).to_arrow_reader(rows)
            except duckdb.InvalidInputException as error:
                raise _parse_error(path, plain_path, str(error), form) from error
            except duckdb.Error as error:
                raise ReadError(f"the queries cannot be read: {error}", path=path) from error


@contextmanager
def _uncompressed_file(path: str) -> Iterator[str]:
    """Yield the path of a local, uncompressed file without leading blank lines.

    The file at `path` is copied only if it is compressed or remote, begins with a blank, or its
    path contains glob characters.
    """
    is_compressed = os.path.splitext(path)[1].lower() in COMPRESSIONS
    if (
        not is_compressed
        and not store_of(path).needs_requests
        and not _GLOB_CHARACTERS.search(path)
    ):
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


def _parse_error(path: str, plain_path: str, duckdb_message: str, form: QueryFormat) -> InputError:
    """Convert an error of DuckDB for a file that does not parse."""
    cause = _CSV_CAUSE.search(duckdb_message)
    reason = (
        cause[0] if cause else duckdb_message.splitlines()[0].removeprefix("Invalid Input Error: ")
    )
    if form is QueryFormat.JSON:
        line = _first_invalid_line(plain_path) or 1
        return InputError(f"line {line} does not parse: {reason}", path=path)
    row = re.search(r"CSV Error on Line: (\d+)", duckdb_message)
    subject = f"row {row[1]}, with the header," if row else "a row"
    return InputError(
        f"{subject} does not parse: {reason}",
        path=path,
        hint="each row needs the cells of the header, closed quotes, and equal line ends (RFC "
        "4180)",
    )


def _first_invalid_line(path: str) -> int | None:
    """Return the number of the first line that is not JSON, because DuckDB's is off by one."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                json.decode(line.lstrip(b"\xef\xbb\xbf").strip() or b"0")
            except MALFORMED:
                return number
    return None
