"""The logs of a partition: copied or linked from the dump, scanned in the output, and salvaged.

The scan reads the log of the output, so that what is verified is what a broker will read. It is
that of a build, and its stop is where recovery would cut the log. Offsets that are missing between
batches or logs are repaired from other copies, or lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np

from kafka_index.commands.restore.lost_markers import TransactionEdits
from kafka_index.commands.restore.output_files import copy_or_link, truncate_log, write_log
from kafka_index.commands.restore.plan import PartitionPlan
from kafka_index.commands.restore.request import Link, Salvage
from kafka_index.commands.restore.restored_partition import LostRange
from kafka_index.commands.restore.salvage import (
    LogContext,
    LogSalvage,
    Piece,
    RangeRepair,
    ReplicaRepair,
    write_pieces,
)
from kafka_index.core.errors import CorruptObjectError
from kafka_index.core.format.names import LOG_SUFFIX, segment_file_name
from kafka_index.core.format.strings import is_linked
from kafka_index.core.fs.durable_files import publishing
from kafka_index.core.fs.store import Bytes
from kafka_index.core.fs.uris import is_backup_path
from kafka_index.core.log.filter.partition_rewrite import SegmentRewriter
from kafka_index.core.log.missing_offsets import (
    BY_CHECKPOINTS,
    Cause,
    Cleaning,
    MissingOffsets,
    MissingRange,
    Place,
    SeenLog,
    missing_offsets,
)
from kafka_index.core.log.recovery.scan import stage_segment
from kafka_index.core.log.recovery.settings import BUILT, FAILED, BuildSettings
from kafka_index.core.log.recovery.staged_segment import StagedSegment
from kafka_index.core.log.scan.file_records import LogBatches, open_log
from kafka_index.core.log.scan.log_offsets import Hole, LogOffsets
from kafka_index.core.log.scan.scanner import BatchOrder, unknown_magic
from kafka_index.core.log.scan.segment_scan import LogFileSource, ObservedSource
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.logdir.segment_table import lost_logs_of
from kafka_index.core.records.batch_table import NOT_A_LOG, OVERLAP, BatchColumns, ScanStop
from kafka_index.core.records.record_sections import Decompressor

MISSING_OBJECT = "missing_object"
ALTERED_OBJECT = "altered_object"


@dataclass(frozen=True, slots=True)
class DamagedObject:
    """An object of a log that is missing or altered, by its offsets, the end exclusive.

    Its intact batches end at `held_to`, or go on after damage if it is not `is_short`. `kept_after`
    counts the offsets of later objects that are not written.
    """

    first_offset: int
    end_offset: int
    held_to: int
    is_short: bool
    is_missing: bool
    error: CorruptObjectError
    kept_after: int = 0

    def loss(self, source: SegmentFile, known: Iterable[LostRange]) -> LostRange | None:
        """Return the lost offsets outside of the known ranges; None if there are none.

        If the object has its size, nobody knows which of its offsets they are.
        """
        first = self.held_to if self.is_short else self.first_offset
        for each in known:
            if self.overlaps(each):
                end = self.end_offset if each.last_offset is None else each.last_offset + 1
                first = max(first, end) if self.is_short else self.end_offset
        if first >= self.end_offset:
            return None
        return LostRange(
            source.base_offset,
            source.log_path,
            first,
            self.end_offset - 1,
            MISSING_OBJECT if self.is_missing else ALTERED_OBJECT,
            str(self.error),
            is_known=self.is_short,
            kept_by_batches=self.kept_after,
        )

    def overlaps(self, lost: LostRange) -> bool:
        """Return whether a lost range overlaps it."""
        first, last = lost.first_offset, lost.last_offset
        return (first is None or first < self.end_offset) and (
            last is None or last >= self.first_offset
        )


def write_surviving(source: SegmentFile, target: str, salvage: Salvage) -> list[DamagedObject]:
    """Write the bytes that the objects of a log still have; return the damaged objects.

    A prefix ends at the first object whose batches end too early.
    """
    # Executors restore other logs without the libraries of repositories.
    from kafka_index.core.fs.backup.manifest import LogChunk  # noqa: PLC0415, as above
    from kafka_index.core.fs.backup.store import JoinedFile  # noqa: PLC0415, as above

    damaged: list[DamagedObject] = []

    def pieces(log: JoinedFile) -> Iterator[Bytes]:
        kept_after, is_ended = 0, False
        for named, data, error in log.surviving():
            if not isinstance(named, LogChunk):
                raise TypeError(f"not a log: {source.log_path}")
            end = named.last_offset + 1
            if is_ended:
                kept_after += 0 if error else end - named.base_offset
                last = damaged[-1]
                damaged[-1] = replace(last, end_offset=end, kept_after=kept_after)
                continue
            array = np.frombuffer(data, np.uint8)
            if error is not None:
                held_to, ends_after_batch = _held_to(array, named.base_offset)
                is_short = len(data) < named.size_bytes
                offsets = named.base_offset, end, held_to
                damaged.append(DamagedObject(*offsets, is_short, not data, error))
                is_ended = is_short and ends_after_batch and salvage is Salvage.PREFIX
            yield array

    with closing(open_log(source.log_path, source)) as log:
        if not isinstance(log, JoinedFile):
            raise TypeError(f"not a log of a backup: {source.log_path}")
        write_log(target, pieces(log))
    return damaged


def with_damaged_objects(
    lost: Iterable[LostRange], damaged: Sequence[DamagedObject], source: SegmentFile
) -> list[LostRange]:
    """Return the losses of a log with their objects, and losses that its batches do not show."""
    found = []
    for each in lost:
        reasons = [str(one.error) for one in damaged if one.overlaps(each)]
        found.append(replace(each, reason="; ".join([each.reason, *reasons])))
    losses = [one.loss(source, found) for one in damaged]
    return [*found, *filter(None, losses)]


def _held_to(data: Bytes, base_offset: int) -> tuple[int, bool]:
    """Return the offset after the intact batches at the start, and whether nothing follows them."""
    batches = LogBatches(data, 0, base_offset, verify_crc=True)
    end = base_offset
    for chunk in batches:
        end = int(chunk.last_offset[-1]) + 1
    return end, batches.stop is None


#: Names scratch files. A run restores each log once, in a folder that no other run has.
ATTEMPT_ID = "restore"
# A log with more kinds of damage than this is failed, and its partition left out.
_MAX_DROPS = 64

GAP = "gap"
BELOW_COMMITTED = "below_committed"


@dataclass(slots=True)
class LogFacts:
    """The offsets, producers and epochs of the batches of a log.

    `stop` is the first batch out of order, or of an unknown magic.
    """

    offsets: LogOffsets
    order: BatchOrder
    next_base_offset: int | None = None
    stop: ScanStop | None = None
    max_producer_id: int = -1
    last_epoch: int = -1

    def observe(self, batches: BatchColumns) -> None:
        """Add the next batches."""
        self.stop = (
            self.stop
            or self.order.first_stop(batches)
            or self._first_jump(batches)
            or unknown_magic(batches)
        )
        self.offsets.observe(batches)
        self.max_producer_id = max(self.max_producer_id, int(batches.producer_id.max()))
        self.last_epoch = max(self.last_epoch, int(batches.leader_epoch.max()))

    def _first_jump(self, batches: BatchColumns) -> ScanStop | None:
        """Return the first batch that jumps into the next segment: its base offset is wrong."""
        if self.next_base_offset is None:
            return None
        base, before = batches.base_offset, np.roll(batches.last_offset, 1) + 1
        before[0] = self.offsets.end_offset
        rows = np.flatnonzero((base > before) & (base >= self.next_base_offset))
        if not len(rows):
            return None
        position, offset = int(batches.position_bytes[rows[0]]), int(base[rows[0]])
        expected = f"offsets below {self.next_base_offset}"
        return ScanStop(OVERLAP, position, expected, f"offset {offset}")


@dataclass(slots=True)
class RestoredLog:
    """A log in the output, scanned, whose index files wait to be published."""

    source: SegmentFile
    staged: StagedSegment
    facts: LogFacts
    lost: list[LostRange] = field(default_factory=list)
    repairs: list[RangeRepair] = field(default_factory=list)
    keeps_end: bool = True
    is_limited: bool = False

    @property
    def path(self) -> str:
        """The path of the log in the output."""
        return self.staged.segment.log_path

    def now(self) -> SegmentFile:
        """Return the log of the output as it is now."""
        return segment_at(self.path, self.source)

    def damage(self) -> tuple[int, str, str] | None:
        """Return the position of the first damage, its code and its reason; None for none.

        Recovery keeps batches that are out of order or of an unknown magic, and readers do not. The
        reason quotes nothing of a log that was a link.
        """
        row, stop = self.staged.report, self.facts.stop
        at = row.position_bytes
        if row.status != BUILT and at is None:
            return None
        if stop is not None and (at is None or stop.position_bytes <= at):
            return stop.position_bytes, stop.reason_code, stop.text
        if row.status == BUILT or at is None or row.is_preallocated_tail:
            return None
        code, reason = row.reason_code or FAILED, row.reason or FAILED
        is_hidden = code == NOT_A_LOG and is_linked(self.source.log_path)
        return at, code, "not a Kafka log" if is_hidden else reason


@dataclass(frozen=True, slots=True)
class LogRestore:
    """Restores logs of a partition into a folder, with the settings of a build."""

    directory: str
    settings: BuildSettings
    context: LogContext

    def restore_log(self, source: SegmentFile, link: Link, salvage: Salvage) -> RestoredLog:
        """Copy or link a log, and stage its index files."""
        target = self._target(source.base_offset)
        try:
            copy_or_link(source, target, link)
        except CorruptObjectError:
            if salvage is Salvage.NONE or not is_backup_path(source.log_path):
                raise
            damaged = write_surviving(source, target, salvage)
            restored = self._salvaged(self._stage(source, target), salvage)
            restored.lost = with_damaged_objects(restored.lost, damaged, source)
            if _touches_end(restored.lost, restored.facts):
                restored.keeps_end = False
            return restored
        return self._salvaged(self._stage(source, target), salvage)

    def _salvaged(self, restored: RestoredLog, salvage: Salvage) -> RestoredLog:
        """Return a staged log without its damage."""
        target = restored.path
        damage = restored.damage()
        if damage is None:
            row = restored.staged.report
            if row.is_preallocated_tail and row.position_bytes is not None:
                truncate_log(target, row.position_bytes)
            return restored
        lost, repairs = self._salvaging(restored).repair(*damage[1:], salvage)
        if salvage is Salvage.NONE and lost:
            restored.lost = lost
            return restored
        restored = self._restage(restored)
        for _ in range(_MAX_DROPS):
            damage = restored.damage()
            if damage is None:
                break
            # What its checksum does not show, such as a marker that cannot be read.
            again = self._salvaging(restored)
            drop = again.drop_one if salvage is Salvage.BATCHES else again.cut_off
            lost.append(replace(drop(*damage), position_bytes=None))
            restored = self._restage(restored)
        restored.lost, restored.repairs = lost, repairs
        restored.keeps_end = not (restored.is_limited or _touches_end(lost, restored.facts))
        return restored

    def repair_gaps(
        self, log: RestoredLog, gaps: Sequence[tuple[Hole, RangeRepair]]
    ) -> RestoredLog:
        """Repair offsets that are missing between batches of a log, and stage it again."""
        self._salvaging(log).repair_gaps(gaps)
        return self._refilled(log)

    def append(self, log: RestoredLog, pieces: Sequence[Piece]) -> RestoredLog:
        """Put batches of other copies at the end of a log, and stage it again."""
        self._salvaging(log).append(pieces)
        return self._refilled(log)

    def _refilled(self, log: RestoredLog) -> RestoredLog:
        repaired = self._restage(log)
        repaired.keeps_end, repaired.is_limited = log.keeps_end, log.is_limited
        repaired.lost, repaired.repairs = log.lost, log.repairs
        return repaired

    def write_logs(self, pieces: Sequence[Piece], like: SegmentFile) -> list[RestoredLog]:
        """Write batches of other copies as logs of the output, one for each of their segments."""
        logs: list[list[Piece]] = []
        for piece in pieces:
            if not logs or piece.segment_base_offset > logs[-1][0].first_offset:
                logs.append([])
            logs[-1].append(piece)
        restored = []
        for log in logs:
            first = log[0]
            target = self._target(first.first_offset)
            write_pieces(target, log)
            source = replace(
                like, base_offset=first.first_offset, log_path=first.path, is_last=False
            )
            restored.append(self._stage(source, target))
        return restored

    def drop_records(
        self, log: RestoredLog, rewriter: SegmentRewriter | TransactionEdits
    ) -> RestoredLog:
        """Write a log without the records that are dropped, and stage it anew.

        What is known of the log stays: its end, its losses, and what its batches were.
        """
        aside = f"{log.path}.dropped"
        with publishing(log.path, "write a log without some records"):
            mtime_ns = os.stat(log.path).st_mtime_ns
            rewriter.rewrite(log.now(), aside)
            os.utime(aside, ns=(mtime_ns, mtime_ns))
            os.replace(aside, log.path)
        return replace(log, staged=self._restage(log).staged)

    def _target(self, base_offset: int) -> str:
        return os.path.join(self.directory, segment_file_name(base_offset, LOG_SUFFIX))

    def _salvaging(self, log: RestoredLog) -> LogSalvage:
        return LogSalvage(log.source, log.path, self.context)

    def _stage(self, source: SegmentFile, target: str) -> RestoredLog:
        segment, limit = segment_at(target, source), self.context.limit
        facts = LogFacts(
            LogOffsets(source.base_offset, self.context.cleaned_to),
            BatchOrder(source.base_offset),
            self.context.next_base_offset,
        )
        log = ObservedSource(
            LogFileSource.of_segment(segment, verify_crc=True),
            [facts],
            None if limit is None else limit.first_beyond,
        )
        staged = stage_segment(segment, log, self.settings, ATTEMPT_ID, self.directory)
        is_intact = staged.report.status == BUILT and facts.stop is None
        is_limited = log.cut_at_bytes is not None and is_intact
        if is_limited and log.cut_at_bytes is not None:
            truncate_log(target, log.cut_at_bytes)
        return RestoredLog(source, staged, facts, is_limited=is_limited, keeps_end=not is_limited)

    def _restage(self, before: RestoredLog) -> RestoredLog:
        before.staged.remove_scratch(self.settings)
        return self._stage(before.source, before.path)


def segment_at(path: str, source: SegmentFile) -> SegmentFile:
    """Return the segment whose log is in the output, with its current size."""
    with publishing(path, "look at a restored log"):
        return source.copied_to(path, os.stat(path))


def _touches_end(lost: Sequence[LostRange], facts: LogFacts) -> bool:
    end = facts.offsets.end_offset
    return any(each.first_offset is None or each.first_offset >= end for each in lost)


def log_end(last: RestoredLog) -> int:
    """Return the offset after a log, as a broker reads it."""
    counts = last.staged.report.counts
    return last.source.base_offset if counts is None else counts.next_offset


def gap_losses(
    plan: PartitionPlan, logs: Sequence[RestoredLog], decompressor: Decompressor
) -> list[LostRange]:
    """Return the missing offsets that compaction does not explain, and that are not lost already.

    They are before, within and between segments, in what repairs a range, and after the last one.
    """
    missing = _missing_in(plan, logs, decompressor)
    known = [lost for each in logs for lost in each.lost]
    repairs = [repair for each in logs for repair in each.repairs]
    found = []
    for each in missing.unexplained:
        for first, end in _outside(each, known):
            if not any(repair.explains(first, end) for repair in repairs):
                repair = next((one for one in repairs if one.covers(first, end)), None)
                found.append(_loss(logs, replace(each, first_offset=first, end_offset=end), repair))
    for number, count in missing.unnamed.items():
        source = logs[number].source
        reason = f"offsets are missing in {count} more places of the log"
        place = source.base_offset, source.log_path
        found.append(LostRange(*place, None, None, GAP, reason, is_known=False))
    return found


def with_repairs(
    plan: PartitionPlan, logs: Sequence[RestoredLog], restoring: LogRestore
) -> Sequence[RestoredLog]:
    """Return the logs, with missing offsets repaired from other copies."""
    replica_repair = restoring.context.replica_repair
    if not replica_repair:
        return logs
    logs = list(logs)
    start = _missing_head(plan, logs, replica_repair)
    if start is not None:
        cleaning = plan.known.cleaning
        cleaned_to = (cleaning.cleaned_to or 0) if cleaning.is_compacted else None
        repair = replica_repair.find_head(start, logs[0].source.base_offset, cleaned_to)
        if repair.pieces:
            logs[0].repairs.append(repair)
            logs = [*restoring.write_logs(repair.pieces, logs[0].source), *logs]
    missing = _missing_in(plan, logs, replica_repair.decompressor)
    more: list[RestoredLog] = []
    for number, log in enumerate(list(logs)):
        base_offset = log.source.base_offset
        holes = {each.position_bytes: each for each in log.facts.offsets.holes}
        gaps = []
        for each in missing.ranges:
            if each.log != number or each.place is not Place.WITHIN:
                continue
            between, inside = _split_at(each, base_offset)
            if inside is not None and each.position_bytes in holes:
                repair = _find(replica_repair, inside, missing.cleaning)
                gaps.append((holes[each.position_bytes], repair))
                log.repairs.append(repair)
            if between is not None and logs[number - 1].keeps_end:
                repair = _find(replica_repair, between, missing.cleaning)
                log.repairs.append(repair)
                logs[number - 1], written = _repair_between(logs[number - 1], repair, restoring)
                more += written
        if any(repair.pieces for _, repair in gaps):
            logs[number] = restoring.repair_gaps(logs[number], gaps)
    return sorted([*logs, *more], key=lambda each: each.source.base_offset)


def _split_at(
    missing: MissingRange, base_offset: int
) -> tuple[MissingRange | None, MissingRange | None]:
    """Return the part of a range before a log, and the part inside the log."""
    first, end = missing.first_offset, missing.end_offset
    return (
        replace(missing, end_offset=min(end, base_offset)) if first < base_offset else None,
        replace(missing, first_offset=max(first, base_offset)) if end > base_offset else None,
    )


def _find(replica_repair: ReplicaRepair, missing: MissingRange, cleaning: Cleaning) -> RangeRepair:
    """Find missing offsets in other copies, unless a cleaner may have removed them."""
    cleaned_to = cleaning.cleaned_to if missing.cause is Cause.COMPACTED else None
    # If the cleaner's progress is unknown, removed records might reappear: repair nothing.
    is_unknown = missing.cause is Cause.UNKNOWN and cleaning.is_compacted
    takes = not (is_unknown and cleaning.cleaned_to is None)
    return replica_repair.find(missing.first_offset, missing.end_offset, cleaned_to, takes=takes)


def _repair_between(
    before: RestoredLog, repair: RangeRepair, restoring: LogRestore
) -> tuple[RestoredLog, list[RestoredLog]]:
    """Return the log before a gap, with its part of the repair, and logs with the rest."""
    base_offset = before.source.base_offset
    count = sum(each.segment_base_offset <= base_offset for each in repair.pieces)
    if count:
        before = restoring.append(before, repair.pieces[:count])
    return before, restoring.write_logs(repair.pieces[count:], before.source)


def _missing_in(
    plan: PartitionPlan, logs: Sequence[RestoredLog], decompressor: Decompressor
) -> MissingOffsets:
    base_offset = logs[0].source.base_offset
    known, lost_ends = plan.known, {}
    if plan.base.tiered is not None:
        known = replace(known, start_offset=max(plan.log_start_offset, base_offset))
    else:
        lost_ends = lost_logs_of(plan.base.segments)
    if logs[-1].is_limited:
        known = replace(known, end_offset=None)
    return missing_offsets(
        [
            SeenLog(
                each.now(),
                each.facts.offsets,
                is_read=each.staged.report.status != FAILED or bool(each.lost),
                listed=each.source,
            )
            for each in logs
        ],
        known,
        decompressor,
        lost_ends,
    )


def _missing_head(
    plan: PartitionPlan, logs: Sequence[RestoredLog], replica_repair: ReplicaRepair
) -> int | None:
    """Return the log start, if the first log begins after it.

    It is that of the checkpoint, or the lowest at which a copy starts: what a client or retention
    has deleted is below the checkpoint.
    """
    if plan.base.tiered is not None:
        return None
    first, start = logs[0].source.base_offset, plan.known.start_offset
    if start is None:
        start = replica_repair.start_offset(first)
    return start if start < first else None


def _outside(missing: MissingRange, lost: Sequence[LostRange]) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range that are not in a lost one, the end exclusive."""
    first = missing.first_offset
    # A range without a last offset is the end of a log: checkpoints tell how much that is.
    known = [
        (each.first_offset or 0, each.last_offset + 1)
        for each in lost
        if each.last_offset is not None
    ]
    for start, end in sorted(known):
        if first < start < missing.end_offset:
            yield first, start
        if start < missing.end_offset:
            first = max(first, end)
    if first < missing.end_offset:
        yield first, missing.end_offset


def _loss(
    logs: Sequence[RestoredLog], missing: MissingRange, repair: RangeRepair | None
) -> LostRange:
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
    elif repair is not None and (refused := repair.refused_in(first, missing.end_offset)):
        what = f"{what}, and batches of them in {', '.join(refused)} are not taken: "
        what += "a cleaner may have removed them here"
    elif repair is not None:
        what = f"offsets {first} to {last} are also missing in {', '.join(repair.replicas)}"
    reason = what if is_checkpointed else f"{what}; {missing.why}"
    place, is_known = (source.base_offset, source.log_path), missing.cause is Cause.LOST
    return LostRange(*place, first, last, code, reason, is_known=is_known)
