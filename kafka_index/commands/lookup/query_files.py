"""Files of queries: found below a path, their format, text, columns, and splits for tasks.

Columns are required, typed and reserved; what is read of a split comes in batches of them.
"""

from __future__ import annotations

import codecs
import glob
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Self

import pyarrow as pa

from kafka_index.core.errors import InputError, ReadError, first_of
from kafka_index.core.fs.directories import scan_directory, walk
from kafka_index.core.fs.paths import absolute_path, expand_input
from kafka_index.core.fs.registry import COMPRESSIONS, input_stream, store_of
from kafka_index.core.fs.store import is_remote
from kafka_index.core.log.read.answers import ANSWER_SCHEMA
from kafka_index.core.query.keys import By, Flags, Keys, integers

TOPIC = "topic"
PARTITION = "partition"

_MAX_NAMES = 20
# Names that Spark ignores in a folder of files (InMemoryFileIndex).
_NOT_DATA = ("_", ".")
_COPYING = "._COPYING_"


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


class QueryFormat(Enum):
    """The format of query files, and of files of answers: its name for people, and endings."""

    PARQUET = "parquet", "Parquet", (".parquet",)
    CSV = "csv", "CSV", (".csv",)
    JSON = "json", "JSON lines", (".json", ".jsonl", ".ndjson")

    text: str
    endings: tuple[str, ...]

    def __new__(cls, value: str, text: str, endings: tuple[str, ...]) -> Self:
        """Return the member of a value."""
        member = object.__new__(cls)
        member._value_, member.text, member.endings = value, text, endings
        return member

    @classmethod
    def of(cls, path: str) -> QueryFormat | None:
        """Return the format that the ending of a path names, None for any other ending."""
        ending = os.path.splitext(path)[1].lower()
        return next((form for form in cls if ending in form.endings), None)


@dataclass(frozen=True, slots=True)
class QuerySplit:
    """A file of queries, or some row groups of a Parquet file.

    `number` is the position among all splits, whose order is that of the queries. A Parquet file
    without rows has no row groups. `rows` is None when only reading reveals it. `size_bytes` is
    about the size of the read, `file_bytes` the size of the file when it was checked. `first_row`
    counts the queries of the file before the split. `columns` are those of all files, in the order
    of the first file; for JSON lines, the members of the first lines of all files.
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
        """Check that the file still has its size; raises `InputError` if not, or if it is gone."""
        if file_size(self.path) != self.file_bytes:
            raise self.changed()

    def changed(self) -> ReadError:
        """Return the error for a file that changed after it was checked."""
        return ReadError(
            "the file of queries changed during the run",
            path=self.path,
            hint="run again when nothing writes to it",
        )


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
        for file in (_walk(root) if _is_folder(root) else [root])
    ]
    files = list(dict.fromkeys(files))
    every = ", ".join(ending for form in QueryFormat for ending in form.endings)
    if not files:
        raise InputError("no query files found", path=path, expected=f"files that end in {every}")
    forms = [_form_of(file) for file in files]
    for file, form in zip(files, forms, strict=True):
        if form is None:
            raise InputError(
                "the ending of a query file is not that of a format", path=file, expected=every
            )
        if form is not forms[0]:
            raise InputError(
                f"queries of several formats: also {file}",
                path=files[0],
                hint="look up each format in a run of its own",
            )
    assert forms[0] is not None  # noqa: S101, for mypy: the loop refused it
    return files, forms[0]


def file_size(path: str) -> int:
    """Return the size of a file of queries.

    Raises `InputError` if it cannot be examined, or is not a regular file.
    """
    if is_remote(path):
        try:
            return store_of(path).info(path).size_bytes
        except FileNotFoundError as error:
            raise InputError("cannot read the queries: there is no such file", path=path) from error
    with errors_of(path):
        found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise InputError(
            "not a regular file", path=path, hint="queries are read more than once: give a file"
        )
    return found.st_size


def text_blocks(path: str, block_bytes: int) -> Iterator[str]:
    """Yield the text of a file in blocks, decompressed, without a byte order mark.

    No block is empty. Bytes that are not UTF-8 are replaced by U+FFFD.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
    with input_stream(path) as stream:
        while data := stream.read(block_bytes):
            if text := decoder.decode(data):
                yield text
        if text := decoder.decode(b"", final=True):
            yield text


@contextmanager
def errors_of(path: str) -> Iterator[None]:
    """Raise what is wrong with a file as an InputError that names it."""
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


def _is_folder(path: str) -> bool:
    if is_remote(path):
        # HDFS lists a file as what it is itself.
        return any(entry.path != path for entry in scan_directory(path))
    return os.path.isdir(path)


def _is_hidden(name: str) -> bool:
    return name.startswith(_NOT_DATA) or name.endswith(_COPYING)


def _walk(root: str) -> Iterator[str]:
    if is_remote(root):
        yield from _walk_stored(root)
        return
    for folder, folders, names in walk(root, follows_links=True):
        folders[:] = sorted(name for name in folders if not _is_hidden(name))
        for name in folders:
            _refuse_column(os.path.join(folder, name))
        yield from (os.path.join(folder, name) for name in sorted(names) if not _is_hidden(name))


def _walk_stored(root: str) -> Iterator[str]:
    entries = [entry for entry in scan_directory(root) if not _is_hidden(entry.name)]
    entries.sort(key=lambda entry: entry.name)
    folders = [entry.path for entry in entries if entry.is_directory()]
    for path in folders:
        _refuse_column(path)
    yield from (entry.path for entry in entries if not entry.is_directory())
    for path in folders:
        yield from _walk_stored(path)


def _refuse_column(folder: str) -> None:
    if "=" in os.path.basename(folder):
        raise InputError(
            "the name of a folder holds the value of a column",
            path=folder,
            hint="such columns are not read: store them in the files",
        )
