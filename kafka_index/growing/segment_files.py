"""The files of a segment that grows: its log, and its indexes, which are opened when needed."""

from __future__ import annotations

import os

from kafka_index.errors import InputError
from kafka_index.growing.log_file import LogFile
from kafka_index.growing.settings import LogSettings
from kafka_index.index import OffsetIndex, TimeIndex, TransactionIndex
from kafka_index.layout.names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    segment_file_name,
)

_SUFFIXES = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


class SegmentFiles:
    """The files of one segment.

    Parameters
    ----------
    directory : str
        The partition directory.
    base_offset : int
        Of the segment.
    settings : LogSettings
        Of its topic.
    create : bool
        Make the log; without it it must be there.

    Raises
    ------
    InputError
        There is no such log to open.
    PublishError
        A file cannot be opened or made.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        base_offset: int,
        settings: LogSettings,
        *,
        create: bool,
    ) -> None:
        self.directory = os.fspath(directory)
        self.base_offset = base_offset
        self.settings = settings
        log_path = self.path(LOG_SUFFIX)
        if not create and not os.path.isfile(log_path):
            raise InputError("there is no such log", path=log_path)
        reserved = settings.segment_bytes if create and settings.preallocate else 0
        self.log = LogFile(log_path, preallocated_bytes=reserved)
        self.transaction_index = TransactionIndex(self.path(TXN_INDEX_SUFFIX), base_offset)
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None

    def path(self, suffix: str) -> str:
        """Return the path of one of its files."""
        return os.path.join(self.directory, segment_file_name(self.base_offset, suffix))

    @property
    def offset_index(self) -> OffsetIndex:
        """The ``.index``."""
        if self._offset_index is None:
            self._offset_index = OffsetIndex(
                self.path(OFFSET_INDEX_SUFFIX), self.base_offset, self.settings.segment_index_bytes
            )
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        """The ``.timeindex``."""
        if self._time_index is None:
            self._time_index = TimeIndex(
                self.path(TIME_INDEX_SUFFIX), self.base_offset, self.settings.segment_index_bytes
            )
        return self._time_index

    @property
    def size_bytes(self) -> int:
        """Bytes of the log that are written."""
        return self.log.size_bytes

    def resize_indexes(self) -> None:
        """Give the indexes all their room, as the active segment has it."""
        self.offset_index.resize(self.settings.segment_index_bytes)
        self.time_index.resize(self.settings.segment_index_bytes)

    def flush(self) -> None:
        """Make everything written durable."""
        self.log.flush()
        self.offset_index.flush()
        self.time_index.flush()
        self.transaction_index.flush()

    def close_handlers(self) -> None:
        """Close all files as they are."""
        for index in (self._offset_index, self._time_index):
            if index is not None:
                index.close_handler()
        self.log.close_handler()
        self.transaction_index.close()
        self._offset_index = self._time_index = None

    def delete(self) -> None:
        """Close and remove all files."""
        self.close_handlers()
        for suffix in _SUFFIXES:
            if os.path.exists(self.path(suffix)):
                os.unlink(self.path(suffix))
