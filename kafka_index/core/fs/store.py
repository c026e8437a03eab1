"""The interface of a store and of its files, the URIs that name them, and the options of stores.

A key is taken as it is written, without percent decoding, as the stores' own tools do;
``file://`` URIs are turned into plain paths by `kafka_index.core.fs.paths.local_path`. Options
travel to executors, into event logs and error texts as they were given, so a secret is only ever a
reference (``@/path/to/file``), which each process resolves for itself.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar, NoReturn, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kafka_index.core.errors import ConfigError, InputError, PublishError
from kafka_index.core.format.uri_passwords import has_password
from kafka_index.core.fs.durable_files import AtomicFile
from kafka_index.core.fs.inputs import NOT_A_FILE
from kafka_index.core.fs.stored_files import COMPRESSIONS, StagedFile, StoredFile, StoredStream

Bytes = npt.NDArray[np.uint8]

#: A file of a listing: its path below the listed one, as `FileInfo`.
LISTING_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("size_bytes", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("version", pa.string()),
    ]
)

_SECRET = re.compile(
    r"secret|token(?!_file|_service)|password|passphrase|credential(?!s?_(?:type|file|relative|full))"
    r"|(?:account|access|master|customer|encryption|private|sas|shared)_key|(?:^|_)sas(?:$|_)"
    r"|connection_string",
    re.IGNORECASE,
)

_REFERENCE = "@"
# The access key's id is an identifier that logs and URLs show.
_NO_SECRETS = frozenset({"aws_access_key_id", "access_key_id"})
_CLAIM_SUFFIX = ".claim"
_ROWS_OF_PAGE = 10_000


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file, or an object, with its modification time in nanoseconds since the epoch.

    The version is the ETag of an object; empty where a store has none.
    """

    path: str
    size_bytes: int
    mtime_ns: int
    version: str = ""


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """An entry of a directory, or of what stands for one in an object store: a common prefix."""

    path: str
    is_directory: bool = False
    size_bytes: int = 0
    mtime_ns: int = 0
    version: str = ""


class Entry(Protocol):
    """An entry of a directory, which is looked at when it is asked."""

    name: str
    path: str

    def is_directory(self) -> bool:
        """Return whether it is a directory, a link to one, or a prefix of objects."""

    def why_not_a_file(self) -> str | None:
        """Return why it cannot be read as a file."""

    def is_broken_link(self) -> bool:
        """Return whether it is a link to nothing."""

    def info(self) -> FileInfo:
        """Return its size, time and version; 0 where they cannot be found out."""

    def linked_out(self) -> str | None:
        """Return where it leads as a link out of the input that is not followed."""

    def file_version(self) -> tuple[int, str]:
        """Return its size, and its ETag or the time of its last change."""


class StoredEntry:
    """An object or a common prefix of an object store, or an entry of a directory of HDFS."""

    __slots__ = ("_entry", "name", "path")

    def __init__(self, entry: DirectoryEntry) -> None:
        self._entry = entry
        self.path = entry.path
        self.name = os.path.basename(entry.path)

    def is_directory(self) -> bool:
        """Return whether it is a directory, or a prefix of objects."""
        return self._entry.is_directory

    def why_not_a_file(self) -> str | None:
        """Return why it cannot be read as a file."""
        return NOT_A_FILE if self._entry.is_directory else None

    def is_broken_link(self) -> bool:
        """Return False: stores have no links that are seen here."""
        return False

    def info(self) -> FileInfo:
        """Return its size, time and version."""
        entry = self._entry
        return FileInfo(entry.path, entry.size_bytes, entry.mtime_ns, entry.version)

    def linked_out(self) -> None:
        """Return None: stores have no links that are seen here."""

    def file_version(self) -> tuple[int, str]:
        """Return its size, and its ETag or the time of its modification."""
        entry = self._entry
        return entry.size_bytes, entry.version or str(entry.mtime_ns)


class ByteSource(Protocol):
    """A file that is open for reading; it is the same file, unchanged, for as long as it is open.

    A read of a file that has changed, or that ends early, raises `ReadError`.
    """

    @property
    def path(self) -> str:
        """Path or URI."""

    @property
    def size_bytes(self) -> int:
        """Size in bytes when opened."""

    @property
    def mtime_ns(self) -> int:
        """Modification time when opened, nanoseconds since the epoch."""

    def read_at(self, position_bytes: int, size_bytes: int) -> Bytes:
        """Return up to `size_bytes` bytes from `position_bytes` on, fewer only at the end."""

    def read_ranges(self, starts: Sequence[int], ends: Sequence[int]) -> list[Bytes]:
        """Return the bytes of ascending ranges, end exclusive; near ones share a request."""

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        """Yield the bytes from a position to the end in pieces, read ahead of the caller."""

    def changed(self) -> str | None:
        """Return how the file at this path differs from the one opened, None when it does not."""

    def close(self) -> None:
        """Release the file."""


class Store(ABC):
    """A bucket, a container or a file system of HDFS; `LocalStore` is the local disk.

    Methods take and return whole paths or URIs. Not found is `FileNotFoundError` in `info` and
    `read`, as both are asked for files that may not exist; everything else that fails is an error
    of `kafka_index.core.errors`, retriable where the store or the network is at fault. What is
    not abstract here is so in every store but the local disk.
    """

    #: A rename is one atomic step. Otherwise a file is put whole under its name.
    has_rename: ClassVar[bool] = False
    #: A look at a file, or a read of it, costs a request. Otherwise files are mapped.
    needs_requests: ClassVar[bool] = True
    #: A file that waits to be published lies beside its final path, and a rename publishes it.
    stages_beside: ClassVar[bool] = False
    #: A process can lock a file.
    has_locks: ClassVar[bool] = False
    #: A broker may run on a directory, or be started on it.
    hosts_brokers: ClassVar[bool] = False
    #: A file can be a link to another one, or share its blocks.
    has_links: ClassVar[bool] = False

    @abstractmethod
    def info(self, path: str) -> FileInfo:
        """Return a file's size, modification time and version."""

    @abstractmethod
    def open(self, path: str, info: FileInfo | None = None) -> ByteSource:
        """Open a file; with `info`, only that version of it, and without a request."""

    @abstractmethod
    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """Return the bytes of a small file, or its first ones."""

    @abstractmethod
    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """Return the entries of a directory, sorted by path; empty where there is none."""

    @abstractmethod
    def list_tree(self, path: str) -> Iterator[pa.RecordBatch]:
        """Yield every file below a directory as rows of `LISTING_SCHEMA`, by ascending path."""

    @abstractmethod
    def put(self, path: str, data: bytes | memoryview, *, if_absent: bool = False) -> bool:
        """Write a file whole, durably; return False where `if_absent` and there is one."""

    @abstractmethod
    def replace(self, path: str, data: bytes, info: FileInfo) -> bool:
        """Write a small file whole if `info` still describes it; return whether it was written.

        One of several attempts at the same time succeeds.
        """

    @abstractmethod
    def rename(self, source: str, target: str) -> None:
        """Give a file another name, replacing what has it."""

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; files that do not exist are fine."""

    def delete_tree(self, path: str) -> None:
        """Delete a directory with all that is below it."""
        folders = {path}
        for page in self.list_tree(path):
            paths = [f"{path}/{below}" for below in page.column("path").to_pylist()]
            folders.update(map(os.path.dirname, paths))
            self.delete(paths)
        if self.has_rename:
            # Folders of their own, and not only the prefixes of objects.
            self.delete(sorted(folders, reverse=True))

    def delete_empty_directory(self, path: str) -> None:  # noqa: B027, stores have none
        """Delete a directory if it is empty, and can be deleted."""

    def is_file(self, path: str) -> bool:
        """Return whether there is a file."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def is_special(self, path: str) -> bool:  # noqa: ARG002
        """Return whether neither a file nor a directory is there: reading a pipe may wait."""
        return False

    def is_directory(self, path: str) -> bool:
        """Return whether there is a directory; in an object store, whether it holds anything."""
        return bool(self.list_directory(path))

    def scan(self, path: str) -> list[Entry]:
        """Return the entries of a directory, in no particular order.

        Raises `OSError` if it is one of the local disk that cannot be read.
        """
        return list(map(StoredEntry, self.list_directory(path)))

    def files_below(self, path: str) -> Iterator[str]:
        """Yield the path of each file below a directory, by one listing of a store."""
        for page in self.list_tree(path):
            yield from (f"{path}/{below}" for below in page.column("path").to_pylist())

    def real_path(self, path: str) -> str:
        """Return a path without links."""
        return path

    def identity(self, path: str) -> Hashable:
        """Return a value that all paths of one directory share; raises `OSError`."""
        return path

    def make_directory(self, path: str, action: str = "make the folder") -> None:  # noqa: B027, stores have none
        """Make a directory, with those above it: in a store, a file in it does.

        `action` is what errors say after "cannot".
        """

    def make_writable_directory(self, path: str) -> None:  # noqa: B027
        """Make a directory, and try a write there; the lock of an output is the first in a store.

        Raises `PublishError` if it cannot be made or written.
        """

    def is_same_directory(self, path: str, other: str) -> bool:
        """Return whether a directory is that of another path, of any store; raises `OSError`."""
        return path == other

    def make_durable(self, directories: Iterable[str], action: str) -> None:  # noqa: B027
        """Make the entries of directories durable, as all that is put into a store is."""

    def create(self, path: str, *, scratch_path: str | None = None, what: str) -> AtomicFile:  # noqa: ARG002
        """Create a file that appears whole, or not at all; parameters are those of `AtomicFile`.

        In a store the scratch path is one of its own, on the local disk. Raises `PublishError` if
        it cannot be written.
        """
        return StagedFile(self, path, what=what)

    def readable(self, path: str, info: FileInfo | None = None) -> str | StoredFile:
        """Return what Arrow opens to read any part of a file: its path, or a file of its store.

        With `info`, the file of a store is read in that version.
        """
        return StoredFile(self.open(path, info))

    def input_stream(self, path: str) -> pa.NativeFile:
        """Open a file to be read once, decompressed as its name says."""
        stream = pa.PythonFile(StoredStream(self.open(path)), "r")
        if os.path.splitext(path)[1].lower() not in COMPRESSIONS:
            return stream
        return pa.CompressedInputStream(stream, pa.Codec.detect(path).name)


class ReadOnlyStore(Store):
    """A store that refuses to write; `_NAME` is what errors call it."""

    _NAME: ClassVar[str]

    def put(self, path: str, data: bytes | memoryview, *, if_absent: bool = False) -> bool:  # noqa: ARG002
        """Refuse."""
        self._refuse(path)

    def replace(self, path: str, data: bytes, info: FileInfo) -> bool:  # noqa: ARG002
        """Refuse."""
        self._refuse(path)

    def rename(self, source: str, target: str) -> None:  # noqa: ARG002
        """Refuse."""
        self._refuse(source)

    def delete(self, paths: Iterable[str]) -> None:
        """Refuse."""
        self._refuse(next(iter(paths), ""))

    def _refuse(self, path: str) -> NoReturn:
        raise PublishError(f"{self._NAME} only read", path=path)


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Options under the names of the storage library, with references to secrets.

    The items have ascending keys, each once; in lower case, except Hadoop's, which have dots. The
    tiered keys are ids of the key pairs of tiered storage, and the files that hold their private
    keys.
    """

    items: tuple[tuple[str, str], ...] = ()
    tiered_keys: tuple[tuple[str, str], ...] = ()
    inputs: tuple[tuple[str, bool], ...] = field(default=(), compare=False)

    def resolve(self) -> dict[str, str]:
        """Return the options with each reference replaced by the content of its file.

        Raises `InputError` if a file cannot be read.
        """
        return {key: _resolved(key, value) for key, value in self.items}


def parse_storage_options(texts: Iterable[str]) -> StorageOptions:
    """Parse ``KEY=VALUE`` and ``KEY=@FILE``.

    Raises `ConfigError` if a text has another form, a key is repeated, or a secret is given by
    value.
    """
    options: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        key = key.strip() if "." in key else key.strip().lower()
        if not key or not separator:
            # The text may be a secret: it is not shown.
            raise ConfigError("not a storage option", expected="KEY=VALUE or KEY=@FILE")
        if key in options:
            raise ConfigError(f"the storage option {key} is given twice")
        if not value.startswith(_REFERENCE) and (is_secret(key) or has_password(value)):
            raise ConfigError(
                f"the storage option {key} holds a secret, and command lines are visible to others",
                expected=f"{key}=@FILE",
                hint="write it to a file that only you can read, or set it in the environment",
            )
        options[key] = value
    return StorageOptions(tuple(sorted(options.items())))


def is_secret(key: str) -> bool:
    """Return whether the value of an option must not be shown."""
    return key not in _NO_SECRETS and _SECRET.search(key) is not None


def _resolved(key: str, value: str) -> str:
    if not value.startswith(_REFERENCE):
        return value
    path = value[len(_REFERENCE) :]
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"cannot read the storage option {key}: {reason}", path=path) from error


def list_by_directory(store: Store, path: str) -> Iterator[pa.RecordBatch]:
    """Do what `Store.list_tree` does, directory by directory.

    One directory's entries are in memory at a time, and those of the directories above it.
    """
    skipped = len(os.path.join(path, ""))

    def walk(directory: str) -> Iterator[tuple[str, int, int, str]]:
        for entry in sorted(store.list_directory(directory), key=_sort_key):
            if entry.is_directory:
                yield from walk(entry.path)
            else:
                yield entry.path[skipped:], entry.size_bytes, entry.mtime_ns, ""

    files = walk(path)
    while rows := list(islice(files, _ROWS_OF_PAGE)):
        columns = [pa.array(column) for column in zip(*rows, strict=True)]
        yield pa.record_batch(columns, schema=LISTING_SCHEMA)


def _sort_key(entry: DirectoryEntry) -> str:
    # As an object store sorts: a directory's files come where its name with a slash would.
    return f"{entry.path}/" if entry.is_directory else entry.path


def replace_by_claim(store: Store, path: str, data: bytes, info: FileInfo) -> bool:
    """Do what `Store.replace` does: whoever makes a file beside it may compare and write.

    A process that is killed meanwhile leaves that file, and nobody replaces the other one before it
    is deleted (`find_claim`).
    """
    claim = _claim_of(path)
    if not store.put(claim, b"", if_absent=True):
        return False
    try:
        try:
            now = store.info(path)
        except FileNotFoundError:
            return False
        return now == info and store.put(path, data)
    finally:
        store.delete([claim])


def find_claim(store: Store, path: str) -> str | None:
    """Return the file by which a process claims a file at present, None where there is none."""
    claim = _claim_of(path)
    try:
        store.info(claim)
    except FileNotFoundError:
        return None
    return claim


def _claim_of(path: str) -> str:
    return f"{path}{_CLAIM_SUFFIX}"
