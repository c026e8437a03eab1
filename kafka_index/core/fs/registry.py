"""The stores of a process by the scheme of a path, and files that are opened in any of them."""

from __future__ import annotations

import io
import mmap
import os
import tempfile
import threading
from dataclasses import replace
from typing import IO, Any

import numpy as np
import pyarrow as pa

from kafka_index.core.errors import EngineError, InputError, PublishError
from kafka_index.core.fs.backup.backup_paths import is_run_path, objects_root
from kafka_index.core.fs.durable_files import AtomicFile, publish_error
from kafka_index.core.fs.inputs import admit_sent, admitted_inputs
from kafka_index.core.fs.local_store import LocalStore
from kafka_index.core.fs.store import (
    HDFS_SCHEME,
    OBJECT_SCHEMES,
    ByteSource,
    FileInfo,
    StorageOptions,
    Store,
    is_remote,
    scheme_of,
    split_uri,
)
from kafka_index.core.fs.tiered.segment_paths import inner_root, is_segment_path

_LOCAL = LocalStore()
# Held again while the store of the objects of remote segments is opened.
_lock = threading.RLock()
_options = StorageOptions()
_stores: dict[str, Store] = {}
# The process whose threads serve the connections; a fork of it has the stores and not the threads.
_owner = 0

#: Endings of compressed text.
COMPRESSIONS = (".gz", ".bz2", ".zst", ".lz4")
_DESCRIPTORS = "/proc/self/fd"


def configure_stores(options: StorageOptions) -> None:
    """Set the options of all stores of this process, on the driver and in each Spark task."""
    global _options  # noqa: PLW0603, because connections are shared by the whole process
    admit_sent(options.inputs)
    with _lock:
        if options != _options:
            _options = options
            _stores.clear()


def storage_options() -> StorageOptions:
    """Return the options of this process, to send to another."""
    return replace(_options, inputs=admitted_inputs())


def store_of(path: str) -> Store:
    """Return the store of a path or URI.

    Raises `InputError` if the scheme is not supported, or the extra with its library is not
    installed, and `EngineError` if this process was forked from a process that had used a remote
    store.
    """
    global _owner  # noqa: PLW0603, because connections are shared by the whole process
    if not is_remote(path):
        return _LOCAL
    root, _ = split_uri(path)
    with _lock:
        _owner = _owner or os.getpid()
        if _owner != os.getpid():
            # The libraries would wait for ever for threads that are not here.
            raise EngineError(
                "this process was forked from one that had opened a remote store",
                path=root,
                hint="start processes with multiprocessing's spawn method",
            )
        store = _stores.get(root)
        if store is None:
            store = _stores[root] = _open(root)
        return store


def _open(root: str) -> Store:
    # The libraries are optional, and not imported where only local files are read.
    scheme = scheme_of(root)
    if is_segment_path(root):
        from kafka_index.core.fs.tiered.encryption import KeyRing  # noqa: PLC0415, slow to import
        from kafka_index.core.fs.tiered.tiered_store import TieredStore  # noqa: PLC0415

        layout, objects = inner_root(root)
        return TieredStore(layout, store_of(objects), KeyRing(dict(_options.tiered_keys)))
    if is_run_path(root):
        from kafka_index.core.fs.backup.store import BackupStore  # noqa: PLC0415

        return BackupStore(store_of(objects_root(root)))
    if scheme in OBJECT_SCHEMES:
        try:
            from kafka_index.core.fs.object_store import ObjectStore  # noqa: PLC0415
        except ImportError as error:
            raise _missing(root, OBJECT_SCHEMES[scheme], error) from error
        return ObjectStore(root, _options)
    if scheme == HDFS_SCHEME:
        try:
            from kafka_index.core.fs.hdfs_store import HdfsStore  # noqa: PLC0415
        except ImportError as error:
            raise _missing(root, HDFS_SCHEME, error) from error
        return HdfsStore(root, _options)
    supported = ", ".join(f"{name}://" for name in ("file", *OBJECT_SCHEMES, HDFS_SCHEME))
    raise InputError(
        f"paths of scheme {scheme}:// are not supported", path=root, expected=supported
    )


def _missing(root: str, extra: str, error: ImportError) -> InputError:
    return InputError(
        f"the library for {scheme_of(root)}:// is not installed ({error.name})",
        path=root,
        hint=f"pip install 'kafka-index[{extra}]'",
    )


def readable(path: str, info: FileInfo | None = None) -> str | StoredFile:
    """Return what Arrow opens to read any part of a file: its path, or a file of its store.

    With `info`, the file of a store is read in that version.
    """
    return StoredFile(store_of(path).open(path, info)) if is_remote(path) else path


def input_stream(path: str) -> pa.NativeFile:
    """Open a file to be read once, decompressed as its name says."""
    if not is_remote(path):
        return pa.input_stream(path, compression="detect")
    stream = pa.PythonFile(_StoredStream(store_of(path).open(path)), "r")
    if os.path.splitext(path)[1].lower() not in COMPRESSIONS:
        return stream
    return pa.CompressedInputStream(stream, pa.Codec.detect(path).name)


class _OpenedFile(io.RawIOBase):
    """A file of a store for Arrow, which closes it."""

    def __init__(self, source: ByteSource) -> None:
        super().__init__()
        self._source = source

    def readable(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            self._source.close()
        super().close()


class StoredFile(_OpenedFile):
    """A file of a store, to be read at any position."""

    def __init__(self, source: ByteSource) -> None:
        super().__init__(source)
        self._position = 0

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._source.size_bytes}
        self._position = max(start[whence] + offset, 0)
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from the position on."""
        target = np.frombuffer(buffer, np.uint8)
        data = self._source.read_at(self._position, len(target))
        target[: len(data)] = data
        self._position += len(data)
        return len(data)


class _StoredStream(_OpenedFile):
    """A file of a store, to be read from its beginning to its end."""

    def __init__(self, source: ByteSource) -> None:
        super().__init__(source)
        self._pieces = source.stream()
        self._piece = memoryview(b"")

    def read(self, size: int = -1) -> bytes:
        """Return at most so many bytes, none at the end."""
        while not self._piece:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._piece = np.ascontiguousarray(piece).data.cast("B")
        found = self._piece[:size] if size >= 0 else self._piece
        self._piece = self._piece[len(found) :]
        return bytes(found)


def whole_file(path: str, *, scratch_path: str | None = None, what: str = "file") -> AtomicFile:
    """Create a file that appears whole, or not at all.

    The parameters are those of `AtomicFile`; a file in another store has its own scratch path.
    Raises `PublishError` if it cannot be written.
    """
    if is_remote(path):
        return StagedFile(path, what=what)
    return AtomicFile(path, scratch_path=scratch_path, what=what)


class StagedFile(AtomicFile):
    """A file on the local disk that is put into its store when it is committed.

    Raises `PublishError`, which names `what`, if there is no room in the folder of temporary files.
    """

    def __init__(self, path: str, *, what: str = "file") -> None:
        self.path = path
        self._what = what
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
        """Remove the local copy."""
        self._file.close()

    def commit(self, *, durable: bool = True) -> None:  # noqa: ARG002, what is put is durable
        """Put the file into its store.

        Raises `PublishError` if the store refuses it, or cannot be reached; an older file stays as
        it was.
        """
        size = os.fstat(self._descriptor).st_size
        if not size:
            store_of(self.path).put(self.path, b"")
            return
        with mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ) as content:
            view = memoryview(content)
            try:
                store_of(self.path).put(self.path, view)
            finally:
                view.release()

    def error(self, error: OSError) -> PublishError:
        """Return the error to raise where writing the local copy failed."""
        folder = tempfile.gettempdir()
        return publish_error(error, folder, f"write the {self._what} before it is put in place")
