"""The segments of a growing log while it is loaded: its files are changed as a broker's are.

It refuses where a broker would delete records, or hide some, without anyone's asking.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from kafka_index.errors import CorruptIndexError, CorruptLogError, InputError, KafkaIndexError
from kafka_index.growing.growing_segment import GrowingLogSegment
from kafka_index.growing.local_log import LocalLog
from kafka_index.growing.log_loader import LoadConditions
from kafka_index.layout.names import LOG_SUFFIX, parse_segment_file


class GrowingFiles:
    """The segments of a `LocalLog` that is being loaded."""

    def __init__(self, local: LocalLog, conditions: LoadConditions) -> None:
        self._local = local
        self._conditions = conditions
        self.segments = local.segments

    def open_segments(self) -> Iterator[GrowingLogSegment]:
        """Open the segments in the directory, by base offset."""
        local = self._local
        parsed = (parse_segment_file(name) for name in os.listdir(local.directory))
        for base_offset in sorted(
            name.base_offset
            for name in parsed
            if name is not None and name.kind == LOG_SUFFIX and not name.transient
        ):
            yield local.open_segment(base_offset, local.jitter())

    def create_segment(self, base_offset: int) -> GrowingLogSegment:
        """Create a segment."""
        return self._local.open_segment(base_offset, self._local.jitter(), create=True)

    def delete_segment(self, segment: GrowingLogSegment) -> None:
        """Delete the files of a segment."""
        segment.delete()

    def check_active(self, segment: GrowingLogSegment) -> None:
        """Refuse the log of a writer that was killed if its marker calls it closed.

        Raises `InputError` if its indexes are zero-filled, or its last batch is cut off.
        """
        if not self._conditions.is_clean:
            return
        try:
            segment.offset_index.sanity_check()
            segment.time_index.sanity_check()
            end = segment.read_end()
            if end.end_bytes != segment.size_bytes:
                raise CorruptLogError(
                    "no valid batch at a position that its index or its batches lead to"
                )
            if segment.size_bytes and end.next_offset == segment.base_offset:
                raise CorruptIndexError("no batch where its last entry points to")
        except KafkaIndexError as error:
            raise InputError(
                f"the log was not closed: {error.message}",
                path=segment.log.path,
                hint="open it with was_clean=False to recover it",
            ) from error

    def check_log_start(self, log_end_offset: int) -> None:
        """Refuse a log whose start lies after its end: a broker would delete all of it."""
        raise InputError(
            "the log ends before the log start offset",
            path=self._local.directory,
            expected=f"{self._conditions.log_start_offset} or more",
            found=log_end_offset,
        )
