"""What is missing between the logs of a partition and after them; filling it from other copies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from kafka_index.build import BuildSettings
from kafka_index.restore.filling import Filler, FillGap, first_mark, last_mark
from kafka_index.restore.log_restoring import RestoredLog, restore_fill, segment_at
from kafka_index.restore.lost_ranges import LostRange
from kafka_index.restore.plan import PartitionPlan
from kafka_index.storage import SegmentFile

GAP = "gap"
BELOW_COMMITTED = "below_committed"


def log_end(last: RestoredLog) -> int:
    """Return the offset after a log, as a broker reads it."""
    counts = last.staged.report.counts
    return last.source.base_offset if counts is None else counts.next_offset


def gap_losses(plan: PartitionPlan, logs: Sequence[RestoredLog]) -> Iterator[LostRange]:
    """Yield the missing offsets that compaction does not explain.

    They are before and between segments, and in what fills a range. Those that are lost already are
    left out.
    """
    found = list(_head_losses(plan, logs))
    for before, after in _unexplained(plan, logs):
        first, last = log_end(before), _first_offset(after) - 1
        reason = f"offsets {first} to {last} are in no segment"
        found.append(_missing(before.source, first, last, GAP, reason))
    yield from found
    known = [*found, *(lost for each in logs for lost in each.lost)]
    cleaned_to = _cleaned_to(plan, logs)
    for log in logs:
        for gap in log.fill_gaps:
            first, last, replica = gap
            if not _is_below(first, cleaned_to) and not any(_covers(lost, gap) for lost in known):
                reason = f"offsets {first} to {last} are missing in {replica}, which fills the rest"
                yield _missing(log.source, first, last, GAP, reason)


def _covers(lost: LostRange, gap: FillGap) -> bool:
    if lost.first_offset is None or lost.first_offset > gap.first_offset:
        return False
    return lost.last_offset is None or lost.last_offset >= gap.last_offset


def _head_losses(plan: PartitionPlan, logs: Sequence[RestoredLog]) -> Iterator[LostRange]:
    """Yield the offsets from the log start on that are before the first batch."""
    if plan.base.tiered is not None:
        return
    head = logs[0]
    base_offset = head.source.base_offset
    # Compaction removes first batches too; what a salvaged log lacks is a lost range already.
    is_cleaned = _cleaned_to(plan, logs) is not None
    first = base_offset if is_cleaned or head.lost else _first_offset(head)
    start = base_offset if plan.log_start_offset is None else plan.log_start_offset
    if first > start:
        reason = (
            f"the log starts at {start}, and offsets {start} to {first - 1} are in no segment; if "
            "retention deleted them after the checkpoint was written, nothing is lost"
        )
        yield _missing(head.source, start, first - 1, GAP, reason)


def below_committed(plan: PartitionPlan, last: RestoredLog, end: int) -> Iterator[LostRange]:
    """Yield the offsets that the checkpoints of the dumps know, and that no log has."""
    copies = (plan.base, *plan.others)
    committed = max(each.root.committed_to(each.partition) for each in copies)
    if committed > end and last.keeps_end:
        reason = (
            f"the log ends at {end}, and the checkpoints of the dump know {committed - end} "
            "offsets more"
        )
        yield _missing(last.source, end, committed - 1, BELOW_COMMITTED, reason)


def with_fills(
    plan: PartitionPlan,
    logs: Sequence[RestoredLog],
    directory: str,
    settings: BuildSettings,
    *,
    attempt_id: str,
) -> Sequence[RestoredLog]:
    """Return the logs with those that other copies have of missing segments.

    Raises
    ------
    KafkaIndexError
        A copy cannot be read, or the output not be written.
    """
    filler = Filler(plan.others, _cleaned_to(plan, logs))
    if not filler:
        return logs
    start = _missing_head(plan, logs)
    if start is not None:
        fill = filler.find_head(start, first_mark(_now(logs[0])))
        if fill is not None:
            head = restore_fill(fill, logs[0].source, directory, settings, attempt_id=attempt_id)
            logs = [*head, *logs]
    more: list[RestoredLog] = []
    for before, after in _unexplained(plan, logs):
        if not _begins_at_base(after):
            continue
        fill = filler.find(last_mark(_now(before)), first_mark(_now(after)))
        if fill is not None:
            more += restore_fill(fill, before.source, directory, settings, attempt_id=attempt_id)
    return sorted([*logs, *more], key=lambda each: each.source.base_offset)


def _missing_head(plan: PartitionPlan, logs: Sequence[RestoredLog]) -> int | None:
    """Return the log start where the first batch is after it and no cleaner explains that.

    Without a checkpoint nobody knows that the log began earlier: what retention or a client has
    deleted does not come back from another copy.
    """
    head, start = logs[0], plan.log_start_offset
    if start is None or plan.base.tiered is not None or head.lost or not _begins_at_base(head):
        return None
    is_missing = start < head.source.base_offset and _cleaned_to(plan, logs) is None
    return start if is_missing else None


def _begins_at_base(log: RestoredLog) -> bool:
    """Return whether the first batch of a log is at its base offset.

    Otherwise a log before it would hold offsets that are looked for in this one.
    """
    return _first_offset(log) == log.source.base_offset


def _unexplained(
    plan: PartitionPlan, logs: Sequence[RestoredLog]
) -> Iterator[tuple[RestoredLog, RestoredLog]]:
    """Yield the logs with offsets missing between them that compaction does not explain."""
    cleaned_to = _cleaned_to(plan, logs)
    for before, after in pairwise(logs):
        end = log_end(before)
        # What a salvaged log lacks at its end is a lost range already.
        if before.keeps_end and _first_offset(after) > end and not _is_below(end, cleaned_to):
            yield before, after


def _is_below(offset: int, limit: float | None) -> bool:
    return limit is not None and offset < limit


def _cleaned_to(plan: PartitionPlan, logs: Sequence[RestoredLog]) -> float | None:
    """Return up to where compaction removed offsets: infinity for not known, None for nowhere."""
    gaps = [each.facts.last_gap_offset for each in logs if not each.lost]
    # Where this copy was not cleaned, it may be of a leader that was: gaps within logs show that.
    last_gap = max((each for each in gaps if each is not None), default=None)
    if not plan.is_compacted and last_gap is None:
        return None
    cleaned_to = plan.cleaned_to
    return math.inf if cleaned_to is None else max(cleaned_to, last_gap or 0)


def _now(log: RestoredLog) -> SegmentFile:
    """Return the log of the output as it is now."""
    return segment_at(log.staged.segment.log_path, log.source)


def _first_offset(log: RestoredLog) -> int:
    found = log.facts.first_offset
    return log.source.base_offset if found is None else found


def _missing(
    segment: SegmentFile, first_offset: int, last_offset: int, code: str, reason: str
) -> LostRange:
    return LostRange(
        segment.base_offset,
        segment.log_path,
        first_offset,
        last_offset,
        None,
        None,
        None,
        0,
        None,
        code,
        reason,
    )
