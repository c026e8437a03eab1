"""What appends make of a log: which segments take them, and where it is rolled in between.

Source: Kafka's ``UnifiedLog.maybeRoll`` and ``LocalLog.roll``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kafka_index.config import INT32_MAX
from kafka_index.errors import InputError
from kafka_index.growing.append_plan import (
    Longs,
    SegmentPlan,
    growth_limits,
    new_growth,
    plan_for_segment,
)
from kafka_index.growing.growing_segment import GrowingLogSegment
from kafka_index.growing.incoming_batches import IncomingBatches
from kafka_index.kernels.appending import GROWTH_SIZE
from kafka_index.layout.records import MAGIC_RECORD_BATCH


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
        What becomes of the segment.
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
    """Plan what becomes of a log by some appends; nothing is written.

    Parameters
    ----------
    active : GrowingLogSegment
        The last segment of the log.
    log_end_offset : int
        Where the log ends.
    batches : IncomingBatches
        Of all appends, offsets assigned.
    ends : ndarray of int64, shape (m,)
        The row behind the last batch of each append.
    make_jitter : callable
        Returns the roll jitter of a new segment, in ms.
    now_ms : int
        The time.

    Raises
    ------
    InputError
        A segment would have to begin where the active one does.
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
