"""The interfaces of stores, files and directory entries, and the options of stores.

Object keys in URIs are used without percent decoding, as in the stores' own tools.
`kafka_index.core.fs.paths.local_path` converts ``file://`` URIs to plain paths. Options are sent to
executors and appear in event logs and errors. A secret in them is therefore always a reference
(``@/path/to/file``) that each process resolves itself.
"""

from __future__ import annotations

import io
import mmap
import os
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, Any, ClassVar, NoReturn, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kafka_index.core.errors import ConfigError, InputError, PublishError
from kafka_index.core.format.uri_passwords import has_password
from kafka_index.core.fs.durable_files import AtomicFile, publish_error
from kafka_index.core.fs.inputs import NOT_A_FILE

Bytes = npt.NDArray[np.uint8]

#: A row of a listing: the path relative to the listed directory, and the fields of `FileInfo`.
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
# The ID of an access key is not secret: logs and URLs contain it.
_PUBLIC_KEYS = frozenset({"aws_access_key_id", "access_key_id"})
_CLAIM_SUFFIX = ".claim"
_PAGE_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file or an object, with its modification time in nanoseconds since the epoch.

    `version` is the ETag of an object, empty if the store has none.
    """

    path: str
    size_bytes: int
    mtime_ns: int
    version: str = ""


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """An entry of a directory, or a common prefix in an object store."""

    path: str
    is_directory: bool = False
    size_bytes: int = 0
    mtime_ns: int = 0
    version: str = ""


class Entry(Protocol):
    """A directory entry that is inspected only on demand."""

    name: str
    path: str

    def is_directory(self) -> bool:
        """Return whether the entry is a directory, a link to a directory, or a common prefix."""

    def file_error(self) -> str | None:
        """Return why the entry cannot be read as a file, None if it can."""

    def is_broken_link(self) -> bool: ...

    def info(self) -> FileInfo:
        """Return the size, time and version of the file; 0 if unknown."""

    def linked_out(self) -> str | None:
        """Return the target of a link out of the input that is not followed, else None."""

    def file_version(self) -> tuple[int, str]:
        """Return the size of the file, and the ETag or the time of the last change."""


class StoredEntry:
    """An object or common prefix of an object store, or a directory entry of HDFS."""

    __slots__ = ("_entry", "name", "path")

    def __init__(self, entry: DirectoryEntry) -> None:
        self._entry = entry
        self.path = entry.path
        self.name = os.path.basename(entry.path)

    def is_directory(self) -> bool:
        return self._entry.is_directory

    def file_error(self) -> str | None:
        return NOT_A_FILE if self._entry.is_directory else None

    def is_broken_link(self) -> bool:
        return False

    def info(self) -> FileInfo:
        entry = self._entry
        return FileInfo(entry.path, entry.size_bytes, entry.mtime_ns, entry.version)

    def linked_out(self) -> None: ...

    def file_version(self) -> tuple[int, str]:
        """Return the size of the object, and the ETag or the modification time."""
        entry = self._entry
        return entry.size_bytes, entry.version or str(entry.mtime_ns)


class ByteSource(Protocol):
    """A file open for reading; its content does not change while it is open.

    A read of a file that has changed, or that ends early, raises `ReadError`.
    """

    @property
    def path(self) -> str: ...

    @property
    def size_bytes(self) -> int:
        """Size when opened."""

    @property
    def mtime_ns(self) -> int:
        """Modification time when opened, in nanoseconds since the epoch."""

    def read_at(self, position_bytes: int, size_bytes: int) -> Bytes:
        """Return up to `size_bytes` bytes from `position_bytes` on, fewer only at the end."""

    def read_ranges(self, starts: Sequence[int], ends: Sequence[int]) -> list[Bytes]:
        """Return the bytes of ascending ranges, end exclusive; nearby ranges share a request."""

    def stream(self, start_bytes: int = 0) -> Iterator[Bytes]:
        """Yield the bytes from a position to the end in blocks, reading ahead."""

    def changed(self) -> str | None:
        """Return how the file changed since opening, such as ``removed``; None if unchanged."""

    def close(self) -> None: ...


class Store(ABC):
    """A bucket, a container, an HDFS file system, or the local disk (`LocalStore`).

    Methods take and return complete paths or URIs. `info` and `read` raise `FileNotFoundError` for
    missing files. All other failures are errors of `kafka_index.core.errors`, retriable if the
    store or the network failed. Methods that are not abstract apply to all remote stores.
    """

    #: A rename is atomic. Otherwise files are put directly under their final name.
    has_rename: ClassVar[bool] = False
    #: Inspecting or reading a file costs a request. Otherwise files are memory-mapped.
    needs_requests: ClassVar[bool] = True
    #: Files are staged next to their final path and published by a rename.
    stages_locally: ClassVar[bool] = False
    #: Processes can lock files.
    has_locks: ClassVar[bool] = False
    #: A broker can run on directories in this store.
    hosts_brokers: ClassVar[bool] = False
    #: The store supports links and shared blocks (reflinks).
    has_links: ClassVar[bool] = False

    @abstractmethod
    def info(self, path: str) -> FileInfo: ...

    @abstractmethod
    def open(self, path: str, info: FileInfo | None = None) -> ByteSource:
        """Open a file; with `info`, in exactly this version, and without a request."""

    @abstractmethod
    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """Return the bytes of a small file, or its first `max_bytes`."""

    @abstractmethod
    def list_directory(self, path: str) -> list[DirectoryEntry]:
        """Return the entries of a directory in order of path; empty if it does not exist."""

    @abstractmethod
    def list_tree(self, path: str) -> Iterator[pa.RecordBatch]:
        """Yield all files below a directory as rows of `LISTING_SCHEMA`, in order of path."""

    @abstractmethod
    def put(self, path: str, data: bytes | memoryview, *, if_absent: bool = False) -> bool:
        """Write a file atomically and durably; return False if `if_absent` and the file exists."""

    @abstractmethod
    def replace(self, path: str, data: bytes, info: FileInfo) -> bool:
        """Write a small file atomically; return False if `info` is no longer current.

        Of several concurrent attempts, one succeeds.
        """

    @abstractmethod
    def rename(self, source: str, target: str) -> None:
        """Rename a file; replace an existing target."""

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; missing files are ignored."""

    def delete_tree(self, path: str) -> None:
        folders = {path}
        for page in self.list_tree(path):
            paths = [f"{path}/{relative_path}" for relative_path in page.column("path").to_pylist()]
            folders.update(map(os.path.dirname, paths))
            self.delete(paths)
        if self.has_rename:
            # Delete the directories too: in HDFS they exist without files, unlike common prefixes.
            self.delete(sorted(folders, reverse=True))

    def delete_empty_directory(self, path: str) -> None:  # noqa: B027, stores have none
        """Delete a directory if it is empty and deletion is permitted."""

    def is_file(self, path: str) -> bool:
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def is_special(self, path: str) -> bool:  # noqa: ARG002
        """Return whether something exists that is neither a file nor a directory."""
        return False

    def is_directory(self, path: str) -> bool:
        """Return whether a directory exists; in an object store, whether the prefix has objects."""
        return bool(self.list_directory(path))

    def scan(self, path: str) -> list[Entry]:
        """Return the entries of a directory, in no particular order.

        Raises `OSError` if a local directory cannot be read.
        """
        return list(map(StoredEntry, self.list_directory(path)))

    def files_below(self, path: str) -> Iterator[str]:
        """Yield the path of each file below a directory, using one listing in a remote store."""
        for page in self.list_tree(path):
            yield from (
                f"{path}/{relative_path}" for relative_path in page.column("path").to_pylist()
            )

    def real_path(self, path: str) -> str:
        return path

    def identity(self, path: str) -> Hashable:
        """Return a value that is equal for all paths of one directory; raises `OSError`."""
        return path

    def make_directory(self, path: str, action: str = "create the folder") -> None:  # noqa: B027, stores have none
        """Create a directory with its parents; does nothing in an object store.

        `action` follows "cannot" in errors.
        """

    def make_writable_directory(self, path: str) -> None:  # noqa: B027
        """Create a directory, and test that files can be written.

        Remote stores skip the test: the lock object is their first write. Raises `PublishError` if
        the directory cannot be created or written.
        """

    def is_same_directory(self, path: str, other_path: str) -> bool:
        """Return whether two paths, of any store, are the same directory; raises `OSError`."""
        return path == other_path

    def make_durable(self, directories: Iterable[str], action: str) -> None:  # noqa: B027
        """Make the entries of directories durable; in remote stores, they always are."""

    def create(self, path: str, *, scratch_path: str | None = None, noun: str) -> AtomicFile:  # noqa: ARG002
        """Create a file that is written atomically; for the parameters, see `AtomicFile`.

        In a remote store, the file is first written to the local disk. Raises `PublishError` if it
        cannot be written.
        """
        return StagedFile(self, path, noun=noun)

    def readable(self, path: str, info: FileInfo | None = None) -> str | StoredFile:
        """Return what Arrow opens for random access to a file: its path, or a file object.

        With `info`, a remote file is read in that version.
        """
        return StoredFile(self.open(path, info))

    def input_stream(self, path: str) -> pa.NativeFile:
        """Open a file for a sequential read, decompressed according to the suffix of its name."""
        stream = pa.PythonFile(StoredStream(self.open(path)), "r")
        if os.path.splitext(path)[1].lower() not in COMPRESSIONS:
            return stream
        return pa.CompressedInputStream(stream, pa.Codec.detect(path).name)


class ReadOnlyStore(Store):
    """A store that rejects all writes, with `_DESCRIPTION` in the error."""

    _DESCRIPTION: ClassVar[str]

    def put(self, path: str, data: bytes | memoryview, *, if_absent: bool = False) -> bool:  # noqa: ARG002
        self._refuse_write(path)

    def replace(self, path: str, data: bytes, info: FileInfo) -> bool:  # noqa: ARG002
        self._refuse_write(path)

    def rename(self, source: str, target: str) -> None:  # noqa: ARG002
        self._refuse_write(source)

    def delete(self, paths: Iterable[str]) -> None:
        self._refuse_write(next(iter(paths), ""))

    def _refuse_write(self, path: str) -> NoReturn:
        raise PublishError(f"{self._DESCRIPTION} read-only", path=path)


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Options with the names of the storage library, and references to secrets.

    The items have unique, ascending keys, in lower case except for Hadoop's property names, which
    contain dots. `tiered_keys` maps IDs of tiered storage key pairs to files with private keys.
    """

    items: tuple[tuple[str, str], ...] = ()
    tiered_keys: tuple[tuple[str, str], ...] = ()
    inputs: tuple[tuple[str, bool], ...] = field(default=(), compare=False)

    def resolve(self) -> dict[str, str]:
        """Return the options with references replaced by file contents.

        Raises `InputError` if a file cannot be read.
        """
        return {key: _resolve_option(key, value) for key, value in self.items}


def parse_storage_options(arguments: Iterable[str]) -> StorageOptions:
    """Parse ``KEY=VALUE`` and ``KEY=@FILE``.

    Raises `ConfigError` for any other form, a repeated key, or a secret given by value.
    """
    options: dict[str, str] = {}
    for argument in arguments:
        key, separator, value = argument.partition("=")
        key = key.strip() if "." in key else key.strip().lower()
        if not key or not separator:
            # The argument is not shown, because it may be a secret.
            raise ConfigError("the storage option is malformed", expected="KEY=VALUE or KEY=@FILE")
        if key in options:
            raise ConfigError(f"the storage option {key} is given twice")
        if not value.startswith(_REFERENCE) and (is_secret(key) or has_password(value)):
            raise ConfigError(
                f"the storage option {key} contains a secret, which other users can see",
                expected=f"{key}=@FILE",
                hint="write the secret to a file that only you can read, or to the environment",
            )
        options[key] = value
    return StorageOptions(tuple(sorted(options.items())))


def is_secret(key: str) -> bool:
    """Return whether the value of an option must not be shown."""
    return key not in _PUBLIC_KEYS and _SECRET.search(key) is not None


def _resolve_option(key: str, value: str) -> str:
    if not value.startswith(_REFERENCE):
        return value
    path = value[len(_REFERENCE) :]
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the file is not UTF-8"
        raise InputError(f"cannot read the storage option {key}: {reason}", path=path) from error


def list_by_directory(store: Store, path: str) -> Iterator[pa.RecordBatch]:
    """Implement `Store.list_tree` by listing one directory at a time.

    Memory holds the entries of one directory and of its parents.
    """
    prefix_length = len(os.path.join(path, ""))

    def walk(directory: str) -> Iterator[tuple[str, int, int, str]]:
        for entry in sorted(store.list_directory(directory), key=_sort_key):
            if entry.is_directory:
                yield from walk(entry.path)
            else:
                yield entry.path[prefix_length:], entry.size_bytes, entry.mtime_ns, ""

    files = walk(path)
    while rows := list(islice(files, _PAGE_ROWS)):
        columns = [pa.array(column) for column in zip(*rows, strict=True)]
        yield pa.record_batch(columns, schema=LISTING_SCHEMA)


def _sort_key(entry: DirectoryEntry) -> str:
    # Sort directories with a trailing slash, as an object store does.
    return f"{entry.path}/" if entry.is_directory else entry.path


def replace_by_claim(store: Store, path: str, data: bytes, info: FileInfo) -> bool:
    """Implement `Store.replace` with a lock file next to the file.

    A killed process leaves the lock file, which blocks further replacements until the lock file is
    deleted (`find_claim`).
    """
    claim = _claim_path(path)
    if not store.put(claim, b"", if_absent=True):
        return False
    try:
        try:
            current_info = store.info(path)
        except FileNotFoundError:
            return False
        return current_info == info and store.put(path, data)
    finally:
        store.delete([claim])


def find_claim(store: Store, path: str) -> str | None:
    """Return the lock file of a running or killed `replace_by_claim`; None without a lock file."""
    claim = _claim_path(path)
    try:
        store.info(claim)
    except FileNotFoundError:
        return None
    return claim


def _claim_path(path: str) -> str:
    return f"{path}{_CLAIM_SUFFIX}"


#: File suffixes of compressed text files.
COMPRESSIONS = (".gz", ".bz2", ".zst", ".lz4")
_DESCRIPTORS = "/proc/self/fd"


class _ArrowFile(io.RawIOBase):
    """A remote file as a Python file object for Arrow; Arrow closes the file."""

    def __init__(self, source: ByteSource) -> None:
        super().__init__()
        self._source = source

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self._source.close()
        super().close()


class StoredFile(_ArrowFile):
    """A remote file with random access."""

    def __init__(self, source: ByteSource) -> None:
        super().__init__(source)
        self._position = 0

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start_by_whence = {
            os.SEEK_SET: 0,
            os.SEEK_CUR: self._position,
            os.SEEK_END: self._source.size_bytes,
        }
        self._position = max(start_by_whence[whence] + offset, 0)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        target = np.frombuffer(buffer, np.uint8)
        data = self._source.read_at(self._position, len(target))
        target[: len(data)] = data
        self._position += len(data)
        return len(data)


class StoredStream(_ArrowFile):
    """A remote file for a single sequential read."""

    def __init__(self, source: ByteSource) -> None:
        super().__init__(source)
        self._blocks = source.stream()
        self._block = memoryview(b"")

    def read(self, size: int = -1) -> bytes:
        while not self._block:
            block = next(self._blocks, None)
            if block is None:
                return b""
            self._block = np.ascontiguousarray(block).data.cast("B")
        data = self._block[:size] if size >= 0 else self._block
        self._block = self._block[len(data) :]
        return bytes(data)


class StagedFile(AtomicFile):
    """A local temporary file that is uploaded on commit.

    Raises `PublishError`, with `noun` in the message, if the temporary folder has no space.
    """

    def __init__(self, store: Store, path: str, *, noun: str = "file") -> None:
        self.path = path
        self._store = store
        self._noun = noun
        try:
            if os.path.isdir(_DESCRIPTORS):
                self._file: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115, a member
                self.scratch_path = f"{_DESCRIPTORS}/{self._file.fileno()}"
            else:
                self._file = tempfile.NamedTemporaryFile(buffering=0)  # noqa: SIM115, a member
                self.scratch_path = self._file.name
        except OSError as error:
            raise publish_error(error, tempfile.gettempdir(), "write a temporary file") from error
        self._descriptor = self._file.fileno()

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def commit(self, *, durable: bool = True) -> None:  # noqa: ARG002, objects are durable
        """Upload the file.

        Raises `PublishError` if the upload fails; an existing file then stays unchanged.
        """
        size = os.fstat(self._descriptor).st_size
        if not size:
            self._store.put(self.path, b"")
            return
        with mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ) as content:
            view = memoryview(content)
            try:
                self._store.put(self.path, view)
            finally:
                view.release()

    def error(self, error: OSError) -> PublishError:
        """Return the error for a failed write of the local copy."""
        folder = tempfile.gettempdir()
        return publish_error(error, folder, f"write the {self._noun} to a temporary file")
