"""Indexes that were built in memory, and the folder by which the workers of a run share them."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import zipfile
from collections.abc import Hashable
from dataclasses import asdict, dataclass

import numpy as np

from kafka_index.errors import KafkaIndexError
from kafka_index.index import IN_MEMORY, OffsetIndex, TimeIndex
from kafka_index.layout.integers import INT32_MAX
from kafka_index.records.batch_source import ScanStop
from kafka_index.stores import Bytes, store_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BuiltIndexes:
    """The entries of the indexes of a segment that were built in memory, in the bytes of files.

    `stop` is the reason why they end before their log, if they do.
    """

    base_offset: int
    offset_entries: Bytes
    time_entries: Bytes
    stop: ScanStop | None

    @property
    def size_bytes(self) -> int:
        """Size of the entries."""
        return self.offset_entries.nbytes + self.time_entries.nbytes

    def open(self) -> tuple[OffsetIndex, TimeIndex]:
        """Return both indexes, read-only."""
        return (
            OffsetIndex(IN_MEMORY, self.base_offset, INT32_MAX, content=self.offset_entries),
            TimeIndex(IN_MEMORY, self.base_offset, INT32_MAX, content=self.time_entries),
        )


class IndexFolder:
    """Built indexes as hidden files in a folder that every worker sees, for the length of a run."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self, key: Hashable) -> BuiltIndexes | None:
        """Return the indexes of a key, None if no worker has written them yet.

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
                )
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):
            return None

    def write(self, key: Hashable, built: BuiltIndexes) -> None:
        """Write the indexes of a key; what fails is logged, and costs another worker a build."""
        path = self._file(key)
        stop = None if built.stop is None else asdict(built.stop)
        file = io.BytesIO()
        np.savez_compressed(
            file,
            base_offset=np.int64(built.base_offset),
            offset_entries=built.offset_entries,
            time_entries=built.time_entries,
            stop=np.frombuffer(json.dumps(stop).encode(), np.uint8),
        )
        try:
            store_of(path).put(path, file.getvalue())
        except (KafkaIndexError, OSError) as error:
            _log.warning("indexes that were built are not shared: %s", error)

    def _file(self, key: Hashable) -> str:
        digest = hashlib.sha256(repr(key).encode()).hexdigest()
        return os.path.join(self._path, f".indexes-{digest[:32]}.npz")
