"""Parquet input: find its files, check its columns, and read row groups with limited memory."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from kafka_index.core.errors import InputError
from kafka_index.core.fs.local_store import walk
from kafka_index.core.fs.paths import PARQUET_SUFFIXES, expand_input, is_parquet_name
from kafka_index.core.fs.registry import readable, store_of
from kafka_index.core.fs.store import FileInfo
from kafka_index.core.job.engine import map_requests

#: Column with the number of rows of the segment, from which a task detects the last row.
ROW_COUNT = "segment_rows"

# Spark's and Hive's folder name for null.
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
# Number of Parquet footers that are read concurrently, since requests to a store mostly wait.
_FOOTERS_AT_A_TIME = 8
# Buffer size per column: the bytes of a read from a local file, and of a request to a store.
_LOCAL_BUFFER_BYTES = 1 << 20
_STORE_BUFFER_BYTES = 4 << 20

_INTEGER = re.compile(r"-?\d{1,19}")
_Footer = TypeVar("_Footer")

KEY_COLUMNS = ("topic", "partition", "segment_base_offset")
POSITION = "position_bytes"
BATCH = "batch"
METADATA_COLUMNS = ("size_bytes", "last_offset", "max_timestamp_ms")
#: Optional columns: required only to build producer snapshots, transaction indexes and the leader
#: epoch checkpoint.
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


@dataclass(frozen=True, slots=True)
class ParquetInput:
    """A checked Parquet input.

    Attributes
    ----------
    path
        The input path, or the common folder of several input paths, for reports.
    files
        Files with absolute paths, in read order. Remote files have the version that was listed.
    columns
        Required columns, then optional columns.
    missing_for_state
        Missing columns without which producers, transactions and leader epochs are unknown.
    """

    path: str
    files: tuple[FileInfo, ...]
    form: ParquetForm
    columns: tuple[str, ...]
    missing_for_state: tuple[str, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """The schema in which row groups are read, with the types of `canonical_type`."""
        return pa.schema([(name, canonical_type(name)) for name in self.columns])


def open_parquet(paths: Sequence[str]) -> ParquetInput:
    """Find the files of a Parquet input and check every file's columns.

    Paths are Parquet files, folders, or globs; local paths or URIs. Folders are searched
    recursively, and names that start with ``_`` or ``.`` are skipped.

    Raises `InputError` if a path is missing, no file is found, a file cannot be read, or columns
    are missing or have the wrong type. The error lists all wrong columns.
    """
    roots = [root for path in paths for root in expand_input(path)]
    files = list({file.path: file for root in roots for file in _list_files(root)}.values())
    if not files:
        raise InputError(
            "no Parquet file found",
            path=", ".join(paths) or None,
            hint=f"give a file, or a folder with files that end in {', '.join(PARQUET_SUFFIXES)}",
        )
    path = roots[0] if len(roots) == 1 else os.path.commonpath(roots)
    return input_from_schemas(path, files, for_each_footer(files, _read_schema))


def input_from_schemas(
    path: str, files: Sequence[FileInfo], schemas: Sequence[pa.Schema]
) -> ParquetInput:
    """Create an input from the schemas of its files, or from the schema of a DataFrame.

    Raises `InputError` if columns are missing or have the wrong type.
    """
    form = choose_form(schemas)
    check_columns(form, files, schemas)
    optional: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    if form is ParquetForm.METADATA:
        present = [{name.lower() for name in schema.names} for schema in schemas]
        optional = tuple(name for name in OPTIONAL_COLUMNS if name in set.union(*present))
        in_all = set.intersection(*present)
        missing = tuple(name for name in OPTIONAL_COLUMNS if name not in in_all)
    return ParquetInput(
        path=path,
        files=tuple(files),
        form=form,
        columns=(*form.required_columns, *optional),
        missing_for_state=missing,
    )


def for_each_footer(
    files: Sequence[FileInfo], read: Callable[[FileInfo], _Footer]
) -> list[_Footer]:
    """Apply a function to each file, with several files concurrently."""
    return list(map_requests(read, files, threads=_FOOTERS_AT_A_TIME, name="footer"))


def _list_files(root: str) -> list[FileInfo]:
    if store_of(root).needs_requests:
        return _list_stored_files(root)
    if not os.path.isdir(root):
        return [_to_local_file(root)]
    paths = []
    for folder, folders, names in walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(("_", ".")))
        paths += [os.path.join(folder, name) for name in names if is_parquet_name(name)]
    return [_to_local_file(path) for path in sorted(paths)]


def _to_local_file(path: str) -> FileInfo:
    # The file is opened by its path only, so its size and modification time are not needed.
    return FileInfo(path, 0, 0)


def _list_stored_files(root: str) -> list[FileInfo]:
    store = store_of(root)
    files = []
    is_folder = False
    for page in store.list_tree(root):
        for row in page.to_pylist():
            *folders, name = row["path"].split("/")
            # HDFS lists a file as its own child, with an empty name.
            is_folder |= bool(name)
            if is_parquet_name(name) and not any(
                folder.startswith(("_", ".")) for folder in folders
            ):
                path = f"{root}/{row['path']}"
                files.append(FileInfo(path, row["size_bytes"], row["mtime_ns"], row["version"]))
    return files if is_folder else [store.info(root)]


def _read_schema(file: FileInfo) -> pa.Schema:
    try:
        return pq.read_schema(readable(file.path, file))
    except OSError as error:
        raise InputError(
            f"cannot read the Parquet file: {error.strerror or error}", path=file.path
        ) from error
    except pa.ArrowException as error:
        raise InputError(f"the file is not a Parquet file: {error}", path=file.path) from error


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of one of the input's files."""

    file: FileInfo
    index: int
    rows: int
    row_bytes: int


class NumberedGroup(NamedTuple):
    """A row group, and the number of its first row in the complete input."""

    first_row: int
    group: RowGroup

    @property
    def size_bytes(self) -> int:
        """Approximate size of the rows in the group."""
        return self.group.rows * self.group.row_bytes


@contextmanager
def open_file(file: FileInfo) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file for streaming: single pages are read, not complete row groups.

    Raises `InputError` if opening the file, or a read in the context, fails.
    """
    path = file.path
    buffer_bytes = _STORE_BUFFER_BYTES if store_of(path).needs_requests else _LOCAL_BUFFER_BYTES
    try:
        source = readable(path, file)
        with pq.ParquetFile(source, pre_buffer=False, buffer_size=buffer_bytes) as parquet:
            yield parquet
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"cannot read the Parquet file: {error}", path=path) from error


def read_row_group(
    source: ParquetInput, group: RowGroup, names: list[str], batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Stream columns of a row group in canonical types; columns missing in the file are null.

    Raises `InputError` if the file cannot be read, or a value exceeds 64 bits.
    """
    schema = pa.schema([source.schema.field(name) for name in names])
    folders = folder_values(group.file.path)
    with open_file(group.file) as parquet:
        present_columns = {
            name: column_names
            for name in names
            if (column_names := matching_columns(parquet.schema_arrow, name))
        }
        batches = parquet.iter_batches(
            batch_size=batch_rows,
            row_groups=[group.index],
            columns=[column_names[0] for column_names in present_columns.values()],
            use_threads=False,
        )
        for batch in batches:
            columns = []
            for column in schema:
                if column.name in present_columns:
                    columns.append(batch[present_columns[column.name][0]].cast(column.type))
                else:
                    folder_value = folders.get(column.name)
                    scalar = pa.scalar(folder_value, pa.string()).cast(column.type)
                    columns.append(pa.repeat(scalar, batch.num_rows))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def matching_columns(schema: pa.Schema, name: str) -> list[str]:
    """Return the column names that equal `name`; case is ignored, as in Spark."""
    return [column_name for column_name in schema.names if column_name.lower() == name]


def folder_values(path: str) -> dict[str, str | None]:
    """Return the key columns that a path has as ``column=value`` folders, as Spark writes them."""
    values: dict[str, str | None] = {}
    for folder in path.split("/")[:-1]:
        name, equals, value = folder.partition("=")
        if equals and name.lower() in KEY_COLUMNS:
            values[name.lower()] = None if value == _NULL_FOLDER else unquote(value)
    return values


class ParquetForm(Enum):
    """What a row of the input contains."""

    METADATA = "batch metadata"
    RAW = "raw batches"

    @property
    def required_columns(self) -> tuple[str, ...]:
        """Names of the required columns."""
        form_columns = (BATCH,) if self is ParquetForm.RAW else METADATA_COLUMNS
        return (*KEY_COLUMNS, POSITION, *form_columns)


def choose_form(schemas: Sequence[pa.Schema]) -> ParquetForm:
    """Return the form of the rows, which must be the same in all files of an input."""
    names_by_file = [{name.lower() for name in schema.names} for schema in schemas]
    has_batch = [BATCH in column_names for column_names in names_by_file]
    has_metadata = [column_names.issuperset(METADATA_COLUMNS) for column_names in names_by_file]
    is_raw = all(has_batch) or (any(has_batch) and not all(has_metadata))
    return ParquetForm.RAW if is_raw else ParquetForm.METADATA


def check_columns(
    form: ParquetForm, files: Sequence[FileInfo], schemas: Sequence[pa.Schema]
) -> None:
    """Raise `InputError` with all files and columns if columns do not match the form."""
    paths_by_problems: dict[tuple[str, ...], list[str]] = {}
    for path, schema in zip([file.path for file in files] or [""], schemas, strict=True):
        problems = tuple(_find_problems(form, schema, folder_values(path)))
        if problems:
            paths_by_problems.setdefault(problems, []).append(path)
    if not paths_by_problems:
        return
    descriptions = []
    for problems, paths in paths_by_problems.items():
        more_files = f" (and {len(paths) - 1} more files)" if len(paths) > 1 else ""
        descriptions.append(f"{paths[0]}{more_files}: {', '.join(problems)}".removeprefix(": "))
    raise InputError(
        f"the columns do not match {form.value}: {'; '.join(descriptions)}",
        hint="; ".join(
            f"columns of {accepted.value}: {', '.join(accepted.required_columns)}"
            for accepted in ParquetForm
        ),
    )


def _find_problems(
    form: ParquetForm, schema: pa.Schema, folders: Mapping[str, str | None]
) -> Iterable[str]:
    names = form.required_columns + (OPTIONAL_COLUMNS if form is ParquetForm.METADATA else ())
    for name in names:
        column_names = matching_columns(schema, name)
        if not column_names and name in folders:
            folder_value = folders[name]
            if (
                name != "topic"
                and folder_value is not None
                and not _INTEGER.fullmatch(folder_value)
            ):
                yield f"{name} is {folder_value} in a folder name, not an integer"
        elif not column_names:
            if name in form.required_columns:
                yield f"{name} is missing"
        elif len(column_names) > 1:
            yield f"{name} occurs {len(column_names)} times"
        else:
            column_type = schema.field(column_names[0]).type
            expected = _expected_type(name, column_type)
            if expected is not None:
                yield f"{name} is {column_type}, not {expected}"


def _expected_type(name: str, column_type: pa.DataType) -> str | None:
    """Return the type that a column should have; None if its type is correct."""
    value_type = column_type.value_type if pa.types.is_dictionary(column_type) else column_type
    if name == "topic":
        types = pa.types
        strings = (types.is_string, types.is_large_string, types.is_string_view)
        return None if any(check(value_type) for check in strings) else "a string"
    if name == BATCH:
        types = pa.types
        binaries = (types.is_binary, types.is_large_binary, types.is_binary_view)
        return None if any(check(column_type) for check in binaries) else "binary"
    is_signed_integer = pa.types.is_integer(column_type) and column_type != pa.uint64()
    return None if is_signed_integer else "an integer of at most 64 signed bits"


def canonical_type(name: str) -> pa.DataType:
    """Return the Arrow type as which a column is read."""
    if name == "topic":
        return pa.string()
    return pa.large_binary() if name == BATCH else pa.int64()
