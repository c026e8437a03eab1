"""A file of HDFS that is open for reading."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from kafka_index.errors import KafkaIndexError
from kafka_index.stores import read_ahead
from kafka_index.stores.hdfs_errors import read_error
from kafka_index.stores.remote_file import RemoteFile
from kafka_index.stores.store import FileInfo

if TYPE_CHECKING:
    from kafka_index.stores.hdfs_store import HdfsStore


class HdfsFile(RemoteFile):
    """A file of HDFS that is open for reading: its blocks are those of the moment it was opened."""

    _NOUN = "file"
    _WRONG_LENGTH = "the file ends early"

    def __init__(self, store: HdfsStore, reader: Any, info: FileInfo) -> None:
        super().__init__(info)
        self._store = store
        self._reader = reader

    def changed(self) -> str | None:
        """Return how the file differs from the one opened; None when it does not."""
        try:
            now = self._store.info(self.path)
        except FileNotFoundError:
            return "it was removed"
        if (now.size_bytes, now.mtime_ns) != (self.size_bytes, self.mtime_ns):
            return "it was modified"
        return None

    def _request(self, position_bytes: int, size_bytes: int) -> bytes:
        try:
            with read_ahead.request_slots:
                return cast("bytes", self._reader.read_range(position_bytes, size_bytes))
        except Exception as error:
            how = self._changed_meanwhile()
            if how is not None:
                raise self._changed_error(how, position_bytes) from error
            raise read_error(error, self.path, "read the file", position_bytes) from error

    def _changed_meanwhile(self) -> str | None:
        try:
            return self.changed()
        except KafkaIndexError:
            return None
