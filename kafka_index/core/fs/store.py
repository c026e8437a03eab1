"""The interface of a store and of its files, the URIs that name them, and the options of stores.

A key is taken as it is written, without percent decoding, as the stores' own tools do;
``file://`` URIs are turned into plain paths by `kafka_index.core.fs.paths.local_path`. Options
travel to executors, into event logs and error texts as they were given, so a secret is only ever a
reference (``@/path/to/file``), which each process resolves for itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar, NoReturn, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kafka_index.core.errors import ConfigError, InputError, PublishError
from kafka_index.core.format.uri_passwords import has_password, refuse_passwords

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

_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+)://(?P<authority>[^/]*)")
#: Schemes of object stores, and the extra that has their library.
OBJECT_SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "abfs": "azure",
    "abfss": "azure",
    "wasb": "azure",
    "wasbs": "azure",
}
HDFS_SCHEME = "hdfs"
#: Schemes that name the same bucket or container as another.
SAME_SCHEMES = {"s3a": "s3", "abfss": "abfs", "wasb": "abfs", "wasbs": "abfs"}
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


class Store(Protocol):
    """A local disk, a bucket, a container or a file system of HDFS.

    Methods take and return whole paths or URIs. Not found is `FileNotFoundError` in `info` and
    `read`, as both are asked for files that may not exist; everything else that fails is an error
    of `kafka_index.core.errors`, retriable where the store or the network is at fault.
    """

    @property
    def has_rename(self) -> bool:
        """Whether a rename is one atomic step. Otherwise a file is put whole under its name."""

    def info(self, path: str) -> FileInfo:
        """Return a file's size, modification time and version."""

    def open(self, path: str, info: FileInfo | None = None) -> ByteSource:
        """Open a file; with `info`, only that version of it, and without a request."""

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """Return the bytes of a small file, or its first ones."""

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """Return the entries of a directory, sorted by path; empty where there is none."""

    def list_tree(self, path: str) -> Iterator[pa.RecordBatch]:
        """Yield every file below a directory as rows of `LISTING_SCHEMA`, by ascending path."""

    def put(self, path: str, data: bytes | memoryview, *, if_absent: bool = False) -> bool:
        """Write a file whole, durably; return False where `if_absent` and there is one."""

    def replace(self, path: str, data: bytes, info: FileInfo) -> bool:
        """Write a small file whole if `info` still describes it; return whether it was written.

        One of several attempts at the same time succeeds.
        """

    def rename(self, source: str, target: str) -> None:
        """Give a file another name, replacing what has it."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; files that do not exist are fine."""


class ReadOnlyStore:
    """The part of a `Store` that refuses to write; `_NAME` is what errors call it."""

    has_rename = False
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


def scheme_of(path: str) -> str | None:
    """Return the scheme of a URI, in lower case; None for a plain path."""
    match = _URI.match(path)
    if match is None:
        return None
    refuse_passwords([path])
    return match["scheme"].lower()


def is_remote(path: str) -> bool:
    """Return whether a path is a URI of a store other than the local disk."""
    return scheme_of(path) not in (None, "file")


def split_uri(path: str) -> tuple[str, str]:
    """Return the store's part of a URI, and the rest without its slashes at either end.

    ``s3://bucket/a/b/`` is ``("s3://bucket", "a/b")``.
    """
    match = _URI.match(path)
    if match is None:
        raise ValueError(f"not a URI: {path}")
    return match[0], path[match.end() :].strip("/")


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
