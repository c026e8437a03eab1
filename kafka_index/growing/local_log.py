"""The segments of a partition that grows: rolled, appended to, cut, flushed and read.

Source: Kafka's ``LocalLog``. Epochs and producers are the business of `growing_log`.
"""

from __future__ import annotations

import contextlib
import os
import random

from kafka_index.growing.append_plan import Longs
from kafka_index.growing.growing_segment import Clock, GrowingLogSegment
from kafka_index.growing.incoming_batches import IncomingBatches
from kafka_index.growing.log_plan import Step, plan_for_log
from kafka_index.growing.log_reads import floor_place
from kafka_index.growing.settings import LogSettings
from kafka_index.layout.names import INDEX_SUFFIXES, LOG_SUFFIX, segment_file_name
from kafka_index.storage import publish_error
from kafka_index.storage.durable_files import make_durable


class LocalLog:
    """The segments of a partition.

    Parameters
    ----------
    directory : str
        The partition directory.
    settings : LogSettings
        Of the topic.
    clock : callable
        Returns the time in ms.
    random_source : random.Random
        Where the jitter of rolls comes from.

    Attributes
    ----------
    segments : list of GrowingLogSegment
        In order, the active one last; filled by whoever loads them.
    end_offset : int
        The offset that the next record gets.
    recovery_point : int
        Everything in front of it is durable.
    """

    def __init__(
        self,
        directory: str,
        settings: LogSettings,
        clock: Clock,
        random_source: random.Random,
    ) -> None:
        self.directory = directory
        self.settings = settings
        self._clock = clock
        self._random = random_source
        self.segments: list[GrowingLogSegment] = []
        self.end_offset = 0
        self.recovery_point = 0

    @property
    def active_segment(self) -> GrowingLogSegment:
        """The segment that is appended to."""
        return self.segments[-1]

    def jitter(self) -> int:
        """Return the roll jitter of a segment, in ms (``LogConfig.randomSegmentJitter``)."""
        most = self.settings.segment_jitter_ms
        if not most:
            return 0
        return self._random.randrange(min(most, self.settings.segment_ms))

    def plan(self, batches: IncomingBatches, ends: Longs) -> list[Step]:
        """Do `plan_for_log` for what it is now."""
        return plan_for_log(
            self.active_segment,
            self.end_offset,
            batches,
            ends,
            make_jitter=self.jitter,
            now_ms=self._clock(),
        )

    def take(self, batches: IncomingBatches, ends: Longs, step: Step) -> None:
        """Append what a step says; the roll before it has been made."""
        plan = step.plan
        if plan.next_append == step.first_append:
            return
        first = int(ends[step.first_append - 1]) if step.first_append else 0
        end = int(ends[plan.next_append - 1])
        self.active_segment.take(batches.rows(first, end), plan, first)
        self.end_offset = int(batches.columns.last_offset[end - 1]) + 1

    def roll_to(self, base_offset: int, jitter_ms: int) -> None:
        """Begin a segment; an empty one that begins there is made anew."""
        active = self.active_segment
        if active.base_offset == base_offset:
            active.delete()
            self.segments.pop()
        else:
            active.become_inactive()
        self.segments.append(self._new_segment(base_offset, jitter_ms))

    def truncate_to(self, offset: int) -> list[int]:
        """Drop the batches from the one on that holds an offset.

        Returns
        -------
        list of int
            Base offsets of the segments that are gone.
        """
        gone = []
        while self.segments[-1].base_offset > offset:
            segment = self.segments.pop()
            segment.delete()
            gone.append(segment.base_offset)
        self.active_segment.truncate_to(offset)
        self.end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        return gone

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything, and begin anew at an offset."""
        for segment in self.segments:
            segment.delete()
        self.segments = [self._new_segment(offset, self.jitter())]
        self.end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)

    def flush(self) -> None:
        """Make everything durable, new segments in their folder too."""
        for segment in self.segments[floor_place(self.segments, self.recovery_point) :]:
            segment.flush()
        for path, error in make_durable([self.directory]).items():
            raise publish_error(error, path, "flush the folder")
        self.recovery_point = self.end_offset

    def close(self) -> None:
        """Close all segments."""
        for segment in self.segments:
            segment.close()
        self.segments = []

    def _new_segment(self, base_offset: int, jitter_ms: int) -> GrowingLogSegment:
        # A roll that failed may have left files.
        for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.directory, segment_file_name(base_offset, suffix)))
        return GrowingLogSegment(
            self.directory,
            base_offset,
            self.settings,
            create=True,
            roll_jitter_ms=jitter_ms,
            clock=self._clock,
        )
