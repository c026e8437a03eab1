"""The indexes of remote segments in memory, each fetched or built once for all threads of a run."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import numpy as np

from kafka_index.reading.built_indexes import BuiltIndexes, IndexFolder
from kafka_index.reading.fetched_log import requests
from kafka_index.stores import Bytes, store_of

#: What is kept at the most; indexes that were not used for longest are fetched, or built, again.
MAX_KEPT_BYTES = 256 << 20

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class FetchedIndexes:
    """Index files of remote segments, and the indexes that were built where there are none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: OrderedDict[str, Future[Bytes | None]] = OrderedDict()
        self._built: OrderedDict[Hashable, Future[BuiltIndexes]] = OrderedDict()
        self._folder: IndexFolder | None = None

    def share(self, folder: IndexFolder | None) -> None:
        """Keep built indexes in a folder too, for other workers and when memory is full.

        None keeps them in memory alone.
        """
        self._folder = folder

    def request(self, path: str) -> None:
        """Begin to fetch an index file."""
        self._requested(path)

    def read(self, path: str) -> Bytes | None:
        """Return the content of an index file, None if it is missing.

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
        """Return the indexes of a key, built by the first thread that asks for them.

        The key names the log and everything else that the result depends on.
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
