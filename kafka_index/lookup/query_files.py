"""Files of queries: found below a path, their format and text, and the splits that tasks answer."""

from __future__ import annotations

import codecs
import glob
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from kafka_index.errors import InputError, ReadError
from kafka_index.lookup.keys import By
from kafka_index.storage import expand_input
from kafka_index.storage.directories import scan_directory, walk
from kafka_index.storage.paths import absolute_path
from kafka_index.stores import is_remote, store_of
from kafka_index.stores.registry import COMPRESSIONS, input_stream

# Names that Spark ignores in a folder of files (InMemoryFileIndex).
_NOT_DATA = ("_", ".")
_COPYING = "._COPYING_"


class QueryFormat(Enum):
    """The format of query files, and of files of answers."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"

    @property
    def endings(self) -> tuple[str, ...]:
        """The endings of such files."""
        return _ENDINGS[self]

    @property
    def text(self) -> str:
        """Its name, for people."""
        return _TEXTS[self]

    @classmethod
    def of(cls, path: str) -> QueryFormat | None:
        """Return the format that the ending of a path names, None for any other ending."""
        ending = os.path.splitext(path)[1].lower()
        return next((form for form in cls if ending in form.endings), None)


_TEXTS = {
    QueryFormat.PARQUET: "Parquet",
    QueryFormat.CSV: "CSV",
    QueryFormat.JSON: "JSON lines",
}
_ENDINGS = {
    QueryFormat.PARQUET: (".parquet",),
    QueryFormat.CSV: (".csv",),
    QueryFormat.JSON: (".json", ".jsonl", ".ndjson"),
}


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
        return _stored_size(path)
    with errors_of(path):
        found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise InputError(
            "not a regular file", path=path, hint="queries are read more than once: give a file"
        )
    return found.st_size


def _stored_size(path: str) -> int:
    try:
        return store_of(path).info(path).size_bytes
    except FileNotFoundError as error:
        raise InputError("cannot read the queries: there is no such file", path=path) from error


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
