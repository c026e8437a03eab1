"""The ``.log`` of a segment, mapped while it is in use."""

from __future__ import annotations

import numpy as np

from kafka_index.errors import InputError, TooLargeError
from kafka_index.index import OffsetPosition
from kafka_index.records.batch_source import TOO_LARGE
from kafka_index.records.decompression import shared_budget
from kafka_index.records.record_decoder import BatchDamage, decode_entry
from kafka_index.records.record_sections import BatchRecords, open_records
from kafka_index.scan.file_records import LogEnd, batch_at, open_log, scan_to_end, stop_at
from kafka_index.storage import Bytes, MappedFile, SegmentFile


class SegmentLog:
    """A log that is mapped on first use, and again after `close`.

    Parameters
    ----------
    segment : SegmentFile
        As it was listed: a log that has changed when it is mapped is an error.
    max_decompressed_bytes : int
        The most bytes of decompressed records that this process holds at a time.
    """

    def __init__(self, segment: SegmentFile, max_decompressed_bytes: int) -> None:
        self._segment = segment
        self.budget = shared_budget(max_decompressed_bytes)
        self._file: MappedFile | None = None
        self._address = np.uint64(0)

    @property
    def file(self) -> MappedFile:
        """The mapped log.

        Raises
        ------
        InputError
            It cannot be opened, or changed since it was listed.
        """
        if self._file is None:
            file = open_log(self._segment.log_path, self._segment)
            if not isinstance(file, MappedFile):
                raise InputError("lookups read local logs only", path=self._segment.log_path)
            file.advise_random()
            self._file = file
            self._address = np.uint64(file.array.ctypes.data)
        return self._file

    @property
    def address(self) -> np.uint64:
        """Memory address of the log; good until `close`."""
        _ = self.file
        return self._address

    @property
    def size_bytes(self) -> int:
        """Size of the log."""
        return self.file.size_bytes

    def batch(self, position_bytes: int) -> Bytes:
        """Return the bytes of the batch at a position, header included."""
        return batch_at(self.file.array, position_bytes)

    def records(self, position_bytes: int) -> BatchRecords:
        """Open the records of the batch at a position; errors are those of `open_records`."""
        return open_records(self.batch(position_bytes), self.budget)

    def why_unreadable(self, position_bytes: int) -> str:
        """Return why a batch, or one of its records, cannot be read."""
        stop = stop_at(self.file.array, position_bytes, self._segment.base_offset)
        if stop is not None:
            return stop.text
        for result in decode_entry(self.batch(position_bytes), self.budget, len):
            if isinstance(result, BatchDamage):
                is_too_large = isinstance(result.error, TooLargeError)
                return f"{TOO_LARGE}: {result.error}" if is_too_large else str(result.error)
        return "the batch cannot be read"

    def scan_to_end(self, last_entry: OffsetPosition) -> LogEnd:
        """Verify the batches from the last index entry on, and return where they end."""
        end = scan_to_end(self.file.array, last_entry, self._segment.base_offset, verify_crc=True)
        self.check_faults()
        return end

    def check_faults(self) -> None:
        """Raise InputError when bytes were lost during a read, and zeros took their place."""
        if self._file is not None and self._file.faulted:
            raise InputError(
                "the log was cut, or its disk failed, while it was read",
                path=self._segment.log_path,
            )

    def close(self) -> None:
        """Unmap the log."""
        if self._file is not None:
            self._file.close()
            self._file = None
