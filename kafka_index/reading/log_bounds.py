"""The bounds of a partition's log for lookups, and the segments that count."""

from __future__ import annotations

from collections.abc import Sequence

from kafka_index.errors import CorruptLogError, KafkaIndexError
from kafka_index.reading.log_segment import LogSegment
from kafka_index.reading.partition_files import PartitionFiles


class LogBounds:
    """The bounds of a partition's log, whose segments are opened on first use."""

    def __init__(self, files: PartitionFiles, segments: Sequence[LogSegment]) -> None:
        self._files = files
        self._segments = segments
        self._last_stable_offset: int | None = None

    @property
    def log_start_offset(self) -> int:
        """The first offset that the partition still has."""
        return self._files.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The next offset to be written.

        Raises `KafkaIndexError` if the last segment cannot be read.
        """
        return max(self._segments[-1].next_offset, self.log_start_offset)

    @property
    def end_offset(self) -> int:
        """The exclusive end of answers: the requested bound, or the log end offset.

        Raises `KafkaIndexError` if the last segment cannot be read, or transactions cannot be
        followed up to the bound.
        """
        end = self.log_end_offset
        bound = self._files.high_watermark
        damage = self._segments[-1].damage if self._files.is_stable else None
        if damage is not None and (bound is None or bound > end):
            raise CorruptLogError(
                f"damage hides the last stable offset: {damage.text}",
                path=self._segments[-1].file.log_path,
                position_bytes=damage.position_bytes,
            )
        end = end if bound is None else min(end, bound)
        return self._stable_end(end) if self._files.is_stable else end

    @property
    def is_empty(self) -> bool:
        """Whether the log has no records; one whose end cannot be read has some."""
        try:
            return self.log_end_offset <= self.log_start_offset
        except KafkaIndexError:
            return False

    def live_segments(self) -> Sequence[LogSegment]:
        """Return the segments, or none of them.

        A broker deletes them all when the log start is above their end (LogLoader.load).
        """
        try:
            ends_before_start = self._segments[-1].next_offset < self.log_start_offset
        except KafkaIndexError:
            # The queries of that segment report it.
            return self._segments
        return () if ends_before_start else self._segments

    def local_segments(self) -> Sequence[LogSegment]:
        """Return the segments that a broker looks through for the largest timestamp.

        Of a tiered partition these are the local ones (UnifiedLog.fetchOffsetByTimestamp), or all,
        where no log directory is known.
        """
        segments = self.live_segments()
        start = self._files.local_start_offset
        if start is None:
            return segments
        return [segment for segment in segments if segment.base_offset >= start]

    def _stable_end(self, end_offset: int) -> int:
        """Return the last stable offset, which is found once."""
        if self._last_stable_offset is None:
            from kafka_index.reading.transactions import (  # noqa: PLC0415, slow to import
                read_transactions,
            )

            bounds = read_transactions(self._files, end_offset, end_offset)
            if bounds.damage is not None:
                raise bounds.damage
            self._last_stable_offset = bounds.last_stable_offset
        return self._last_stable_offset
