"""Parquet input: its files and columns, and reading with limited memory."""

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

#: Total number of rows of a segment, joined to each row, so that a task detects the last one.
ROW_COUNT = "segment_rows"

# Spark's and Hive's folder name for null.
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
# Concurrent reads of footers, since requests to a store mostly wait.
_FOOTERS_AT_A_TIME = 8
# Bytes read from a column at once; remote reads are one request each.
_LOCAL_BUFFER_BYTES = 1 << 20
_STORE_BUFFER_BYTES = 4 << 20

_INTEGER = re.compile(r"-?\d{1,19}")
_Found = TypeVar("_Found")

KEY_COLUMNS = ("topic", "partition", "segment_base_offset")
POSITION = "position_bytes"
BATCH = "batch"
METADATA_COLUMNS = ("size_bytes", "last_offset", "max_timestamp_ms")
#: Columns needed for the state of a partition, besides the required columns.
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

    `path`, for reports, is the only input path, or the common folder of all. Files are absolute and
    in read order; remote files have the version that was found first. Required columns come first.
    `missing_for_state` are the columns without which producers, transactions and leader epochs are
    unknown.
    """

    path: str
    files: tuple[FileInfo, ...]
    form: ParquetForm
    columns: tuple[str, ...]
    missing_for_state: tuple[str, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """The columns as this package reads them: wide integers, plain strings and binaries."""
        return pa.schema([(name, canonical_type(name)) for name in self.columns])


def open_parquet(paths: Sequence[str]) -> ParquetInput:
    """Find the files of a Parquet input and check every file's columns.

    Paths are Parquet files, folders (searched recursively; names starting with ``_`` or ``.`` are
    skipped), or globs of either; local paths or URIs. Raises `InputError` if a path is missing,
    there is no file, one cannot be read, or columns are missing or have the wrong type; the error
    lists all such columns.
    """
    roots = [root for path in paths for root in expand_input(path)]
    files = list({file.path: file for root in roots for file in _files(root)}.values())
    if not files:
        raise InputError(
            "no Parquet file found",
            path=", ".join(paths) or None,
            hint=f"name a file, or a folder with files that end in {', '.join(PARQUET_SUFFIXES)}",
        )
    path = roots[0] if len(roots) == 1 else os.path.commonpath(roots)
    return input_of_schemas(path, files, for_each_footer(files, _read_schema))


def input_of_schemas(
    path: str, files: Sequence[FileInfo], schemas: Sequence[pa.Schema]
) -> ParquetInput:
    """Return an input with the given file schemas; without files, a DataFrame with one schema.

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
        columns=(*form.needed, *optional),
        missing_for_state=missing,
    )


def for_each_footer(files: Sequence[FileInfo], read: Callable[[FileInfo], _Found]) -> list[_Found]:
    """Apply a function to each file, several at a time."""
    return list(map_requests(read, files, threads=_FOOTERS_AT_A_TIME, name="footer"))


def _files(root: str) -> list[FileInfo]:
    if store_of(root).needs_requests:
        return _stored_files(root)
    if not os.path.isdir(root):
        return [_local_file(root)]
    found = []
    for folder, folders, names in walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(("_", ".")))
        found += [os.path.join(folder, name) for name in names if is_parquet_name(name)]
    return [_local_file(path) for path in sorted(found)]


def _local_file(path: str) -> FileInfo:
    # The file is opened by path, so size and time are not needed.
    return FileInfo(path, 0, 0)


def _stored_files(root: str) -> list[FileInfo]:
    store = store_of(root)
    found = []
    is_folder = False
    for page in store.list_tree(root):
        for row in page.to_pylist():
            *folders, name = row["path"].split("/")
            # HDFS lists a file as its own child, with an empty name.
            is_folder |= bool(name)
            if is_parquet_name(name) and not any(each.startswith(("_", ".")) for each in folders):
                path = f"{root}/{row['path']}"
                found.append(FileInfo(path, row["size_bytes"], row["mtime_ns"], row["version"]))
    return found if is_folder else [store.info(root)]


def _read_schema(file: FileInfo) -> pa.Schema:
    try:
        return pq.read_schema(readable(file.path, file))
    except OSError as error:
        raise InputError(
            f"cannot read the Parquet file: {error.strerror or error}", path=file.path
        ) from error
    except pa.ArrowException as error:
        raise InputError(f"not a Parquet file: {error}", path=file.path) from error


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of one of the input's files."""

    file: FileInfo
    index: int
    rows: int
    row_bytes: int


class NumberedGroup(NamedTuple):
    """A row group, and the number of its first row in the whole input."""

    first_row: int
    group: RowGroup

    @property
    def size_bytes(self) -> int:
        """Approximate size of its rows."""
        return self.group.rows * self.group.row_bytes


@contextmanager
def open_file(file: FileInfo) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file for streaming: pages are read one by one, not whole row groups.

    Raises `InputError` if it cannot be read, now or later.
    """
    path = file.path
    size = _STORE_BUFFER_BYTES if store_of(path).needs_requests else _LOCAL_BUFFER_BYTES
    try:
        source = readable(path, file)
        with pq.ParquetFile(source, pre_buffer=False, buffer_size=size) as parquet:
            yield parquet
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"cannot read the Parquet file: {error}", path=path) from error


def read_row_group(
    source: ParquetInput, group: RowGroup, names: list[str], batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Stream the columns of a row group in their canonical types; absent columns are null.

    Raises `InputError` if the file cannot be read, or a value exceeds 64 bits.
    """
    schema = pa.schema([source.schema.field(name) for name in names])
    folders = folder_values(group.file.path)
    with open_file(group.file) as parquet:
        present = {
            name: found for name in names if (found := same_names(parquet.schema_arrow, name))
        }
        batches = parquet.iter_batches(
            batch_size=batch_rows,
            row_groups=[group.index],
            columns=[found[0] for found in present.values()],
            use_threads=False,
        )
        for batch in batches:
            columns = []
            for column in schema:
                if column.name in present:
                    columns.append(batch[present[column.name][0]].cast(column.type))
                else:
                    value = folders.get(column.name)
                    scalar = pa.scalar(value, pa.string()).cast(column.type)
                    columns.append(pa.repeat(scalar, batch.num_rows))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def same_names(schema: pa.Schema, name: str) -> list[str]:
    """Return the columns with a name, case-insensitive as in Spark."""
    return [found for found in schema.names if found.lower() == name]


def folder_values(path: str) -> dict[str, str | None]:
    """Return the key columns in the names of a path's folders, as Spark writes them."""
    values: dict[str, str | None] = {}
    for folder in path.split("/")[:-1]:
        name, equals, value = folder.partition("=")
        if equals and name.lower() in KEY_COLUMNS:
            values[name.lower()] = None if value == _NULL_FOLDER else unquote(value)
    return values


class ParquetForm(Enum):
    """The content of a row of the input."""

    METADATA = "batch metadata"
    RAW = "raw batches"

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of the required columns."""
        own = (BATCH,) if self is ParquetForm.RAW else METADATA_COLUMNS
        return (*KEY_COLUMNS, POSITION, *own)


def choose_form(schemas: Sequence[pa.Schema]) -> ParquetForm:
    """Return the column layout that all files of an input have."""
    names = [{name.lower() for name in schema.names} for schema in schemas]
    with_batch = [BATCH in each for each in names]
    with_metadata = [each.issuperset(METADATA_COLUMNS) for each in names]
    is_raw = all(with_batch) or (any(with_batch) and not all(with_metadata))
    return ParquetForm.RAW if is_raw else ParquetForm.METADATA


def check_columns(
    form: ParquetForm, files: Sequence[FileInfo], schemas: Sequence[pa.Schema]
) -> None:
    """Raise `InputError` if columns do not match a form, listing all files and columns."""
    bad: dict[tuple[str, ...], list[str]] = {}
    for path, schema in zip([file.path for file in files] or [""], schemas, strict=True):
        problems = tuple(_problems(form, schema, folder_values(path)))
        if problems:
            bad.setdefault(problems, []).append(path)
    if not bad:
        return
    texts = []
    for problems, where in bad.items():
        others = f" (and {len(where) - 1} more files)" if len(where) > 1 else ""
        texts.append(f"{where[0]}{others}: {', '.join(problems)}".removeprefix(": "))
    raise InputError(
        f"not the columns of {form.value}: {'; '.join(texts)}",
        hint=f"metadata needs {', '.join(ParquetForm.METADATA.needed)}; "
        f"raw batches need {', '.join(ParquetForm.RAW.needed)}",
    )


def _problems(
    form: ParquetForm, schema: pa.Schema, folders: Mapping[str, str | None]
) -> Iterable[str]:
    names = form.needed + (OPTIONAL_COLUMNS if form is ParquetForm.METADATA else ())
    for name in names:
        same = same_names(schema, name)
        if not same and name in folders:
            value = folders[name]
            if name != "topic" and value is not None and not _INTEGER.fullmatch(value):
                yield f"{name} is {value} in the name of a folder, not an integer"
        elif not same:
            if name in form.needed:
                yield f"{name} is missing"
        elif len(same) > 1:
            yield f"{name} occurs {len(same)} times"
        else:
            found = schema.field(same[0]).type
            expected = _expected(name, found)
            if expected is not None:
                yield f"{name} is {found}, not {expected}"


def _expected(name: str, found: pa.DataType) -> str | None:
    """Return the expected type of a column; None if it has this type."""
    kind = found.value_type if pa.types.is_dictionary(found) else found
    if name == "topic":
        types = pa.types
        strings = (types.is_string, types.is_large_string, types.is_string_view)
        return None if any(check(kind) for check in strings) else "a string"
    if name == BATCH:
        types = pa.types
        binaries = (types.is_binary, types.is_large_binary, types.is_binary_view)
        return None if any(check(found) for check in binaries) else "binary"
    fits = pa.types.is_integer(found) and found != pa.uint64()
    return None if fits else "an integer of at most 64 signed bits"


def canonical_type(name: str) -> pa.DataType:
    """Return the type as which a column is read."""
    if name == "topic":
        return pa.string()
    return pa.large_binary() if name == BATCH else pa.int64()
