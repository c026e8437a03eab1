"""Offsets that are missing in the logs of a partition: filled from other copies, or lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kafka_index.build import BuildSettings
from kafka_index.build.report import FAILED
from kafka_index.dump.missing_offsets import (
    BY_CHECKPOINTS,
    Cause,
    MissingOffsets,
    MissingRange,
    Place,
    SeenLog,
    missing_offsets,
)
from kafka_index.restore.filling import Fill, first_mark, last_mark
from kafka_index.restore.log_restoring import RestoredLog, fill_holes, restore_fill
from kafka_index.restore.plan import PartitionPlan
from kafka_index.restore.restored_partition import LostRange
from kafka_index.restore.salvaging import LogContext, partition_context
from kafka_index.scan.log_offsets import Hole
from kafka_index.storage.segment_table import lost_logs_of

GAP = "gap"
BELOW_COMMITTED = "below_committed"


def log_end(last: RestoredLog) -> int:
    """Return the offset after a log, as a broker reads it."""
    counts = last.staged.report.counts
    return last.source.base_offset if counts is None else counts.next_offset


def gap_losses(
    plan: PartitionPlan, logs: Sequence[RestoredLog], settings: BuildSettings
) -> list[LostRange]:
    """Return the missing offsets that compaction does not explain, and that are not lost already.

    They are before, within and between segments, in what fills a range, and after the last one.
    """
    missing = _missing_in(plan, logs, partition_context(plan, settings.config))
    known = [lost for each in logs for lost in each.lost]
    fills = [fill for each in logs for fill in each.fills]
    found = []
    for each in missing.unexplained:
        for first, end in _outside(each, known):
            fill = next((one for one in fills if one.covers(first, end)), None)
            if fill is None or not fill.explains(first, end):
                found.append(_loss(logs, replace(each, first_offset=first, end_offset=end), fill))
    for number, count in missing.unnamed.items():
        source = logs[number].source
        reason = f"offsets are missing in {count} more places of the log"
        found.append(_lost(source.base_offset, source.log_path, None, None, GAP, reason))
    return found


def cleaned_places(logs: Sequence[RestoredLog]) -> int:
    """Return in how many places offsets are missing that a cleaner has removed."""
    return sum(each.facts.offsets.cleaned_count for each in logs)


def with_fills(
    plan: PartitionPlan,
    logs: Sequence[RestoredLog],
    directory: str,
    settings: BuildSettings,
) -> Sequence[RestoredLog]:
    """Return the logs, with missing offsets filled from other copies."""
    context = replace(partition_context(plan, settings.config), limit=None)
    filler = context.filler
    if not filler:
        return logs
    logs = list(logs)
    start = _missing_head(plan, logs)
    if start is not None:
        fill = filler.find_head(start, first_mark(logs[0].now()))
        if fill is not None:
            logs = [*_new_logs(fill, logs[0], directory, settings, context), *logs]
    missing = _missing_in(plan, logs, context)
    # What a cleaner may have removed, nobody knows up to where, is not brought back.
    cleaning = missing.cleaning
    takes_records = not (cleaning.is_compacted and cleaning.cleaned_to is None)
    more: list[RestoredLog] = []
    for number, log in enumerate(list(logs)):
        gaps = [
            each
            for each in missing.unexplained
            if each.log == number and each.place is Place.WITHIN
        ]
        holes = [each for each in log.facts.offsets.holes if _is_in(each, gaps)]
        if holes:
            logs[number] = fill_holes(
                log,
                holes,
                settings,
                context=context,
                takes_records=takes_records,
            )
        before = logs[number - 1] if number else None
        is_between = any(each.position_bytes == 0 for each in gaps)
        if before is None or not is_between or not before.keeps_end or not _begins_at_base(log):
            continue
        fill = filler.find(last_mark(before.now()), first_mark(log.now()))
        if fill is None or (fill.pieces and not takes_records):
            continue
        logs[number].fills.append(fill)
        more += _new_logs(fill, before, directory, settings, context)
    return sorted([*logs, *more], key=lambda each: each.source.base_offset)


def _new_logs(
    fill: Fill,
    like: RestoredLog,
    directory: str,
    settings: BuildSettings,
    context: LogContext,
) -> list[RestoredLog]:
    return restore_fill(fill, like.source, directory, settings, context=context)


def _missing_in(
    plan: PartitionPlan, logs: Sequence[RestoredLog], context: LogContext
) -> MissingOffsets:
    base_offset = logs[0].source.base_offset
    start = plan.log_start_offset
    if plan.base.tiered is not None:
        start = max(start or 0, base_offset)
        lost_ends = {}
    else:
        lost_ends = lost_logs_of(plan.base.segments)
    copies = (plan.base, *plan.others)
    committed = max(each.root.committed_end(each.partition) for each in copies)
    return missing_offsets(
        [
            SeenLog(
                each.now(),
                each.facts.offsets,
                is_read=each.staged.report.status != FAILED or bool(each.lost),
            )
            for each in logs
        ],
        plan.cleaning,
        context.filler.decompressor,
        start_offset=start,
        known_end=committed if logs[-1].keeps_end else None,
        is_start_exact=plan.base.root.is_clean,
        lost_ends=lost_ends,
    )


def _missing_head(plan: PartitionPlan, logs: Sequence[RestoredLog]) -> int | None:
    """Return the log start where the first segment is after it and the topic is not compacted.

    Without a checkpoint nobody knows that the log began earlier: what retention or a client has
    deleted does not come back from another copy.
    """
    head, start = logs[0], plan.log_start_offset
    if start is None or plan.head_offset is None or head.lost or not _begins_at_base(head):
        return None
    return start if start < head.source.base_offset else None


def _begins_at_base(log: RestoredLog) -> bool:
    """Return whether the first batch of a log is at its base offset.

    Otherwise a log before it would hold offsets that are looked for in this one.
    """
    return log.facts.offsets.first_offset in (None, log.source.base_offset)


def _is_in(hole: Hole, gaps: Sequence[MissingRange]) -> bool:
    return any(each.position_bytes == hole.position_bytes for each in gaps)


def _outside(missing: MissingRange, lost: Sequence[LostRange]) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range that are not in a lost one, the end exclusive."""
    first = missing.first_offset
    known = [
        (
            each.first_offset or 0,
            missing.end_offset if each.last_offset is None else each.last_offset + 1,
        )
        for each in lost
    ]
    for start, end in sorted(known):
        if first < start < missing.end_offset:
            yield first, start
        if start < missing.end_offset:
            first = max(first, end)
    if first < missing.end_offset:
        yield first, missing.end_offset


def _loss(logs: Sequence[RestoredLog], missing: MissingRange, fill: Fill | None) -> LostRange:
    first, last = missing.first_offset, missing.last_offset
    code, what = GAP, f"offsets {first} to {last} are in no segment"
    is_between = missing.log > 0 and missing.position_bytes == 0
    source = logs[missing.log - is_between].source
    is_checkpointed = missing.why == BY_CHECKPOINTS
    if is_checkpointed:
        code = BELOW_COMMITTED
        count = last - first + 1
        what = f"the log ends at {first}, and the checkpoints of the dump know {count} offsets more"
    elif missing.place is Place.HEAD:
        what = f"the log starts at {first}, and {what}"
    elif fill is not None:
        what = f"offsets {first} to {last} are missing in {fill.replica}, which fills the rest"
    is_known = missing.cause is Cause.LOST
    reason = what if is_checkpointed else f"{what}; {missing.why}"
    return _lost(source.base_offset, source.log_path, first, last, code, reason, is_known=is_known)


def _lost(
    base_offset: int,
    path: str,
    first: int | None,
    last: int | None,
    code: str,
    reason: str,
    *,
    is_known: bool = False,
) -> LostRange:
    return LostRange(
        base_offset, path, first, last, None, None, None, 0, None, code, reason, is_known
    )
