"""The stores of a process, by the scheme of a path; functions that open files in any store."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import pyarrow as pa

from kafka_index.core.errors import EngineError, InputError
from kafka_index.core.fs.backup.backup_paths import is_backup_path, objects_root
from kafka_index.core.fs.durable_files import AtomicFile
from kafka_index.core.fs.inputs import admit_sent, admitted_inputs
from kafka_index.core.fs.local_store import LocalStore
from kafka_index.core.fs.store import FileInfo, StorageOptions, Store
from kafka_index.core.fs.stored_files import StoredFile
from kafka_index.core.fs.tiered.segment_paths import inner_root, is_segment_path
from kafka_index.core.fs.uris import HDFS_SCHEME, OBJECT_SCHEMES, is_remote, scheme_of, split_uri

_LOCAL = LocalStore()
# Reentrant: opening a tiered store opens the store of its objects too.
_lock = threading.RLock()
_options = StorageOptions()
_stores: dict[str, Store] = {}
# The process whose threads serve the connections; a forked child has no such threads.
_owner = 0


def configure_stores(options: StorageOptions) -> None:
    """Set the options of all stores of this process, on the driver and in Spark tasks."""
    global _options  # noqa: PLW0603, because connections are shared by the whole process
    admit_sent(options.inputs)
    with _lock:
        if options != _options:
            _options = options
            _stores.clear()


def storage_options() -> StorageOptions:
    """Return the options of this process to send them to another process."""
    return replace(_options, inputs=admitted_inputs())


def store_of(path: str) -> Store:
    """Return the store of a path or URI.

    Raises `InputError` if the scheme is not supported or its extra is not installed, and
    `EngineError` if this process was forked from one that had used a remote store.
    """
    global _owner  # noqa: PLW0603, because connections are shared by the whole process
    if not is_remote(path):
        return _LOCAL
    root, _ = split_uri(path)
    with _lock:
        _owner = _owner or os.getpid()
        if _owner != os.getpid():
            # The libraries would wait forever for threads that do not exist in this process.
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
    # The libraries are optional, so they are imported only for remote paths.
    scheme = scheme_of(root)
    if is_segment_path(root):
        from kafka_index.core.fs.tiered.encryption import KeyRing  # noqa: PLC0415, slow to import
        from kafka_index.core.fs.tiered.tiered_store import TieredStore  # noqa: PLC0415

        layout, objects = inner_root(root)
        return TieredStore(layout, store_of(objects), KeyRing(dict(_options.tiered_keys)))
    if is_backup_path(root):
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
    """Return what Arrow opens for random access to a file; see `Store.readable`."""
    return store_of(path).readable(path, info)


def input_stream(path: str) -> pa.NativeFile:
    """Open a file for one sequential read; decompress it according to its name."""
    return store_of(path).input_stream(path)


def whole_file(path: str, *, scratch_path: str | None = None, what: str = "file") -> AtomicFile:
    """Create a file that is written atomically; see `Store.create`."""
    return store_of(path).create(path, scratch_path=scratch_path, what=what)
