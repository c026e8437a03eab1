"""The stores of a process, by the scheme of a path; files and directories in any store."""

from __future__ import annotations

import glob
import os
import stat
import threading
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from kafka_index.core.errors import EngineError, InputError
from kafka_index.core.fs.durable_files import AtomicFile
from kafka_index.core.fs.inputs import admit_received, admitted_inputs, run_cache
from kafka_index.core.fs.local_store import LocalStore, unreadable_directory, walk
from kafka_index.core.fs.store import (
    DirectoryEntry,
    Entry,
    FileInfo,
    StorageOptions,
    Store,
    StoredEntry,
    StoredFile,
)
from kafka_index.core.fs.uris import (
    HDFS_SCHEME,
    OBJECT_SCHEMES,
    inner_root,
    is_backup_path,
    is_remote,
    is_segment_path,
    objects_root,
    scheme_of,
    split_uri,
)

_LOCAL = LocalStore()
# Reentrant: opening a tiered store opens the store of its objects too.
_lock = threading.RLock()
_options = StorageOptions()
_stores: dict[str, Store] = {}
# The process whose threads serve the connections; a forked child has no such threads.
_owner_pid = 0


def configure_stores(options: StorageOptions) -> None:
    """Set the options of all stores of this process, which may be the driver or a Spark worker."""
    global _options  # noqa: PLW0603, because connections are shared by the whole process
    admit_received(options.inputs)
    with _lock:
        if options != _options:
            _options = options
            _stores.clear()


def storage_options() -> StorageOptions:
    """Return the options of this process, to be sent to another process."""
    return replace(_options, inputs=admitted_inputs())


def store_of(path: str) -> Store:
    """Return the store of a path or URI.

    Raises `InputError` if the scheme is not supported or its extra is not installed, and
    `EngineError` if this process was forked from a process that had used a remote store.
    """
    global _owner_pid  # noqa: PLW0603, because connections are shared by the whole process
    if not is_remote(path):
        return _LOCAL
    root, _ = split_uri(path)
    with _lock:
        _owner_pid = _owner_pid or os.getpid()
        if _owner_pid != os.getpid():
            # The libraries would wait forever for threads that do not exist in this process.
            raise EngineError(
                "this process was forked from a process that had opened a remote store",
                path=root,
                hint="start processes with multiprocessing's spawn method",
            )
        store = _stores.get(root)
        if store is None:
            store = _stores[root] = _open_store(root)
        return store


def _open_store(root: str) -> Store:
    # The libraries are optional, so they are imported only for remote paths.
    scheme = scheme_of(root)
    if is_segment_path(root):
        from kafka_index.core.fs.tiered.tiered_store import KeyRing, TieredStore  # noqa: PLC0415

        layout, objects = inner_root(root)
        return TieredStore(layout, store_of(objects), KeyRing(dict(_options.tiered_keys)))
    if is_backup_path(root):
        from kafka_index.core.fs.backup.store import BackupStore  # noqa: PLC0415

        return BackupStore(store_of(objects_root(root)))
    if scheme in OBJECT_SCHEMES:
        try:
            from kafka_index.core.fs.object_store import ObjectStore  # noqa: PLC0415
        except ImportError as error:
            raise _missing_library_error(root, OBJECT_SCHEMES[scheme], error) from error
        return ObjectStore(root, _options)
    if scheme == HDFS_SCHEME:
        try:
            from kafka_index.core.fs.hdfs_store import HdfsStore  # noqa: PLC0415
        except ImportError as error:
            raise _missing_library_error(root, HDFS_SCHEME, error) from error
        return HdfsStore(root, _options)
    supported = ", ".join(f"{name}://" for name in ("file", *OBJECT_SCHEMES, HDFS_SCHEME))
    raise InputError(f"the scheme {scheme}:// is not supported", path=root, expected=supported)


def _missing_library_error(root: str, extra: str, error: ImportError) -> InputError:
    return InputError(
        f"the library for {scheme_of(root)}:// is not installed ({error.name})",
        path=root,
        hint=f"pip install 'kafka-index[{extra}]'",
    )


def readable(path: str, info: FileInfo | None = None) -> str | StoredFile:
    """Return what Arrow opens for random access to a file; see `Store.readable`."""
    return store_of(path).readable(path, info)


def input_stream(path: str) -> pa.NativeFile:
    """Open a file for a sequential read, decompressed according to the suffix of its name."""
    return store_of(path).input_stream(path)


def atomic_file(path: str, *, scratch_path: str | None = None, noun: str = "file") -> AtomicFile:
    """Create a file that is written atomically; see `Store.create`."""
    return store_of(path).create(path, scratch_path=scratch_path, noun=noun)


def read_text(path: str, noun: str) -> str:
    """Read UTF-8 text with line feeds as line ends; `noun` describes the file in errors.

    The path is a URI, a local file or a pipe. A byte order mark, as written by Windows editors, is
    removed. Raises `InputError` if the file cannot be read.
    """
    try:
        # Local files are read directly, which allows pipes and gives specific errors.
        data = store_of(path).read(path) if is_remote(path) else Path(path).read_bytes()
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except FileNotFoundError as error:
        raise InputError(f"cannot read {noun}: no such file", path=path) from error
    except OSError as error:
        raise InputError(f"cannot read {noun}: {error.strerror}", path=path) from error
    except UnicodeDecodeError as error:
        # Error positions exclude the byte order mark.
        position = error.start + len(data) - len(error.object)
        line = data.count(b"\n", 0, position) + 1
        raise InputError(
            f"line {line} of {noun} is not UTF-8",
            path=path,
            position_bytes=position,
            found=f"0x{data[position]:02x}",
        ) from error


def is_dead_link(path: str) -> bool:
    """Return whether no file can be created through this link.

    The link is circular, or the folder of its target does not exist.
    """
    if not os.path.islink(path):
        return False
    target = os.path.realpath(path)
    return os.path.islink(target) or not os.path.isdir(os.path.dirname(target))


def opening_error(path: str) -> str | None:
    """Return why a file cannot be opened or created for writing, None if it can."""
    if is_dead_link(path):
        return "a broken link"
    mode = os.stat(path).st_mode if os.path.exists(path) else 0
    if stat.S_ISDIR(mode):
        return "a directory"
    return "a socket" if stat.S_ISSOCK(mode) else None


def scan_directory(directory: str) -> list[Entry]:
    """Return the entries of a directory, in no particular order.

    Raises `InputError` if the directory cannot be read.
    """
    try:
        return store_of(directory).scan(directory)
    except OSError as error:
        raise unreadable_directory(error, directory) from error


def scan_input(directory: str) -> list[Entry]:
    """Return the entries of an input directory; a remote directory is listed once in a run."""
    if store_of(directory).needs_requests:
        return [StoredEntry(entry) for entry in list_stored_input(directory)]
    return scan_directory(directory)


def is_input_directory(path: str) -> bool:
    """Return whether an input is a directory; a remote directory is listed once in a run."""
    if store_of(path).needs_requests:
        return bool(list_stored_input(path))
    return os.path.isdir(path)


def list_stored_input(directory: str) -> list[DirectoryEntry]:
    """Return the entries of a remote directory, listed once in a run."""
    listings: dict[str, list[DirectoryEntry]] = run_cache("listings")
    entries = listings.get(directory)
    if entries is None:
        entries = listings[directory] = store_of(directory).list_directory(directory)
    return entries


def directory_exists(path: str) -> bool:
    """Return whether a directory exists; in an object store, whether the prefix has objects.

    Raises `KafkaIndexError` if the store cannot be reached or the path cannot be inspected.
    """
    return store_of(path).is_directory(path)


def expand_local_glob(pattern: str) -> list[str]:
    """Return the local paths that match a glob, sorted.

    Raises `InputError` if a folder that could contain a match cannot be read.
    """
    components = pattern.split(os.sep)
    for number, component in enumerate(components):
        if glob.has_magic(component):
            for folder in glob.glob(os.sep.join(components[:number]) or os.sep, recursive=True):
                if directory_exists(folder):
                    scan_directory(folder)
    if "**" in components:
        for folder in glob.glob(os.sep.join(components[: components.index("**")]) or os.sep):
            for _ in walk(folder):
                pass
    return sorted(glob.glob(pattern, recursive=True))


def identity_of(directory: str) -> Hashable:
    """Return a value that is equal for all paths of one directory.

    Raises `InputError` if the directory cannot be inspected.
    """
    try:
        return store_of(directory).identity(directory)
    except OSError as error:
        raise unreadable_directory(error, directory) from error
