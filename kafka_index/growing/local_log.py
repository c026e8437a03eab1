"""The segments of a partition that grows: rolled, appended to, truncated and flushed.

Sources: Kafka's ``LocalLog`` and ``UnifiedLog.maybeRoll``. Epochs and producers are the business of
`growing_log`.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from dataclasses import dataclass

from kafka_index.config import INT32_MAX
from kafka_index.errors import InputError
from kafka_index.growing.append_plan import (
    SegmentPlan,
    growth_limits,
    new_growth,
    plan_for_segment,
)
from kafka_index.growing.growing_segment import Clock, GrowingLogSegment
from kafka_index.growing.incoming_batches import IncomingBatches
from kafka_index.growing.log_reads import floor_place
from kafka_index.growing.settings import LogSettings
from kafka_index.index import Longs
from kafka_index.kernels.appending import GROWTH_SIZE
from kafka_index.layout.names import INDEX_SUFFIXES, LOG_SUFFIX, segment_file_name
from kafka_index.layout.records import MAGIC_RECORD_BATCH
from kafka_index.storage import publish_error
from kafka_index.storage.durable_files import make_durable


@dataclass(frozen=True, slots=True)
class Step:
    """Appends to one segment, after a roll if there is one.

    Parameters
    ----------
    roll_to : int, optional
        Base offset of the segment that is begun first.
    jitter_ms : int
        Its roll jitter.
    first_append : int
        Which append it begins with.
    plan : SegmentPlan
        What the appends do to it.
    """

    roll_to: int | None
    jitter_ms: int
    first_append: int
    plan: SegmentPlan


def plan_for_log(
    active: GrowingLogSegment,
    log_end_offset: int,
    batches: IncomingBatches,
    ends: Longs,
    *,
    make_jitter: Callable[[], int],
    now_ms: int,
) -> list[Step]:
    """Plan the effect of some appends on a log; nothing is written.

    Parameters
    ----------
    active : GrowingLogSegment
        The last segment of the log.
    log_end_offset : int
        Where the log ends.
    batches : IncomingBatches
        Of all appends, offsets assigned.
    ends : ndarray of int64, shape (m,)
        The row after the last batch of each append.
    make_jitter : callable
        Returns the roll jitter of a new segment, in ms.
    now_ms : int
        The time.

    Raises
    ------
    InputError
        A new segment would begin where the active one does.
    IndexFullError, IndexOffsetOverflowError
        As in `plan_for_segment`.
    """
    base, limits, growth = active.base_offset, active.limits(), active.growth()
    end_offset = log_end_offset
    roll_to: int | None = None
    jitter_ms = append = 0
    steps = []
    while True:
        plan = plan_for_segment(batches, ends, append, limits, growth, may_roll=roll_to is None)
        steps.append(Step(roll_to, jitter_ms, append, plan))
        append = plan.next_append
        if append == len(ends):
            return steps
        row = int(ends[append - 1]) if append else 0
        if row:
            end_offset = int(batches.columns.last_offset[row - 1]) + 1
        roll_to = max(_roll_offset(batches, row, int(ends[append])), end_offset)
        if roll_to <= base and plan.state[GROWTH_SIZE]:
            raise InputError(
                "the log cannot be rolled: its active segment already begins there",
                path=active.directory,
                expected=f"above {base}",
                found=roll_to,
            )
        jitter_ms = make_jitter()
        base = roll_to
        growth = new_growth(base)
        limits = growth_limits(
            active.settings, base, jitter_ms=jitter_ms, created_ms=now_ms, now_ms=now_ms
        )


def _roll_offset(batches: IncomingBatches, first: int, end: int) -> int:
    if batches.magic[first] >= MAGIC_RECORD_BATCH:
        return int(batches.columns.base_offset[first])
    # Their first offset may be packed: no append has offsets further apart than this.
    return int(batches.columns.last_offset[end - 1]) - INT32_MAX


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
        Source of the roll jitter.

    Attributes
    ----------
    segments : list of GrowingLogSegment
        In order, the active one last; filled by `Loader`.
    end_offset : int
        The offset that the next record gets.
    recovery_point : int
        Everything before it is durable.
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
        largest = self.settings.segment_jitter_ms
        if not largest:
            return 0
        return self._random.randrange(min(largest, self.settings.segment_ms))

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

    def append(self, batches: IncomingBatches, ends: Longs, step: Step) -> None:
        """Append the batches of a step; its roll has been made."""
        plan = step.plan
        if plan.next_append == step.first_append:
            return
        first = int(ends[step.first_append - 1]) if step.first_append else 0
        end = int(ends[plan.next_append - 1])
        self.active_segment.append_plan(batches.rows(first, end), plan, first)
        self.end_offset = int(batches.columns.last_offset[end - 1]) + 1

    def roll_to(self, base_offset: int, jitter_ms: int) -> None:
        """Begin a segment; an empty one that begins there is replaced."""
        active = self.active_segment
        if active.base_offset == base_offset:
            active.delete()
            self.segments.pop()
        else:
            active.become_inactive()
        self.segments.append(self._new_segment(base_offset, jitter_ms))

    def truncate_to(self, offset: int) -> list[int]:
        """Drop the batches from the one that holds an offset on.

        Returns
        -------
        list of int
            Base offsets of the segments deleted.
        """
        deleted = []
        while self.segments[-1].base_offset > offset:
            segment = self.segments.pop()
            segment.delete()
            deleted.append(segment.base_offset)
        self.active_segment.truncate_to(offset)
        self.end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        return deleted

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything, and begin at an offset."""
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
