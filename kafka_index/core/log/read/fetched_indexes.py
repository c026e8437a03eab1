"""In-memory indexes of remote segments, fetched or built once for all threads of a run.

Built indexes are shared with other workers of a run through a folder.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from kafka_index.core.errors import KafkaIndexError
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import Bytes
from kafka_index.core.index.sparse_indexes import IN_MEMORY, OffsetIndex, TimeIndex
from kafka_index.core.log.read.fetched_log import requests
from kafka_index.core.records.batch_table import ScanStop

_log = logging.getLogger(__name__)

#: Maximum size of cached indexes; the least recently used ones are evicted.
MAX_KEPT_BYTES = 256 << 20
_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class BuiltIndexes:
    """Indexes of a segment that were built in memory, in file format.

    `stop` is the reason why they end before their log, if they do. If `has_unindexed`, the log ends
    with batches whose offsets are too far above the base offset for an entry.
    """

    base_offset: int
    offset_entries: Bytes
    time_entries: Bytes
    stop: ScanStop | None
    has_unindexed: bool = False

    @property
    def size_bytes(self) -> int:
        return self.offset_entries.nbytes + self.time_entries.nbytes

    def open(self) -> tuple[OffsetIndex, TimeIndex]:
        return (
            OffsetIndex(IN_MEMORY, self.base_offset, INT32_MAX, content=self.offset_entries),
            TimeIndex(IN_MEMORY, self.base_offset, INT32_MAX, content=self.time_entries),
        )


class IndexFolder:
    """Built indexes as hidden files in a folder that all workers of a run can read."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self, key: Hashable) -> BuiltIndexes | None:
        """Read the indexes of a key, None if no worker has written them yet.

        Raises `KafkaIndexError` if the folder cannot be read.
        """
        path = self._file(key)
        try:
            with np.load(io.BytesIO(store_of(path).read(path)), allow_pickle=False) as found:
                stop = json.loads(found["stop"].tobytes())
                return BuiltIndexes(
                    int(found["base_offset"]),
                    found["offset_entries"],
                    found["time_entries"],
                    None if stop is None else ScanStop(**stop),
                    has_unindexed=bool(found["has_unindexed"]),
                )
        except (OSError, ValueError, TypeError, KeyError, zipfile.BadZipFile):
            return None

    def write(self, key: Hashable, built: BuiltIndexes) -> None:
        """Write the indexes of a key; a failure is logged, and other workers build them again."""
        path = self._file(key)
        stop = None if built.stop is None else asdict(built.stop)
        file = io.BytesIO()
        np.savez_compressed(
            file,
            base_offset=np.int64(built.base_offset),
            offset_entries=built.offset_entries,
            time_entries=built.time_entries,
            has_unindexed=np.bool_(built.has_unindexed),
            stop=np.frombuffer(json.dumps(stop).encode(), np.uint8),
        )
        try:
            store_of(path).put(path, file.getvalue())
        except (KafkaIndexError, OSError) as error:
            _log.warning("indexes that were built are not shared: %s", error)

    def _file(self, key: Hashable) -> str:
        digest = hashlib.sha256(repr(key).encode()).hexdigest()
        return os.path.join(self._path, f".indexes-{digest[:32]}.npz")


class FetchedIndexes:
    """Fetched index files of remote segments, and indexes built for segments without them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[str, Future[Bytes | None]] = OrderedDict()
        self._built: OrderedDict[Hashable, Future[BuiltIndexes]] = OrderedDict()
        self._folder: IndexFolder | None = None

    def share(self, folder: IndexFolder | None) -> None:
        """Share built indexes through a folder; None keeps them in memory only."""
        self._folder = folder

    def request(self, path: str) -> None:
        self._requested(path)

    def read(self, path: str) -> Bytes | None:
        """Return the content of an index file, None if it does not exist.

        Raises `KafkaIndexError` if it cannot be read.
        """
        future = self._requested(path)
        try:
            return future.result()
        except BaseException:
            with self._lock:
                self._files.pop(path, None)
            raise
        finally:
            self._make_room()

    def build(self, key: Hashable, build: Callable[[], BuiltIndexes]) -> BuiltIndexes:
        """Return the indexes of a key, built by the first thread that requests them.

        The key identifies the log and everything else that affects the result.
        """
        with self._lock:
            future = self._built.get(key)
            is_ours = future is None
            if future is None:
                future = self._built[key] = Future()
            self._built.move_to_end(key)
        if is_ours:
            try:
                future.set_result(self._read_or_build(key, build))
            except BaseException as error:  # noqa: BLE001, because others wait for it
                with self._lock:
                    self._built.pop(key, None)
                future.set_exception(error)
        try:
            return future.result()
        finally:
            self._make_room()

    def _read_or_build(self, key: Hashable, build: Callable[[], BuiltIndexes]) -> BuiltIndexes:
        folder = self._folder
        if folder is None:
            return build()
        built = folder.read(key)
        if built is None:
            built = build()
            folder.write(key, built)
        return built

    def _requested(self, path: str) -> Future[Bytes | None]:
        with self._lock:
            future = self._files.get(path)
            if future is None:
                future = requests(os.getpid()).submit(partial(_read, path))
                self._files[path] = future
            self._files.move_to_end(path)
            return future

    def _make_room(self) -> None:
        with self._lock:
            _trim(self._files)
            _trim(self._built)


def _trim(kept: OrderedDict[_Key, Future[_Value]]) -> None:
    sizes = [(key, _size(future)) for key, future in kept.items()]
    total = sum(size for _, size in sizes)
    for key, size in sizes[:-1]:
        if total <= MAX_KEPT_BYTES // 2:
            break
        if size:
            del kept[key]
            total -= size


def _read(path: str) -> Bytes | None:
    try:
        data = store_of(path).read(path)
    except FileNotFoundError:
        return None
    return np.frombuffer(data, np.uint8)


def _size(future: Future[_Value]) -> int:
    if not future.done() or future.cancelled() or future.exception() is not None:
        return 0
    found = future.result()
    if isinstance(found, BuiltIndexes):
        return found.size_bytes
    return found.nbytes if isinstance(found, np.ndarray) else 0
