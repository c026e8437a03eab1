"""Partitions as units of work: each is restored in a staging directory, and renamed when complete.

A task of either engine restores a group of partitions (`restore_group`). Its parts are logs:

1. `LogRestore.restore_log` copies or links a log, scans the copy and repairs its damage. So the
   checksums are verified of the bytes that a broker will read.
2. `repair_missing_offsets` adds batches of other copies of the partition, and `lost_gaps` lists the
   offsets that are still missing.
3. Transactions are edited, and records with dropped keys are removed.
4. `publish_partitions` writes index files, snapshots and leader epochs, as a build does. The
   directories are renamed when all files are durable.
"""

from __future__ import annotations

import os
import shutil
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TypeAlias

import numpy as np

from kafka_index.commands.restore.output import (
    copy_or_link,
    remove_build_files,
    truncate_log,
    write_log,
    write_partition_metadata,
)
from kafka_index.commands.restore.plan import PartitionPlan
from kafka_index.commands.restore.request import Link, Salvage
from kafka_index.commands.restore.result import (
    DAMAGED,
    ERROR,
    KEYS_NOT_DROPPED,
    LostRange,
    RestoredPartition,
)
from kafka_index.commands.restore.salvage import (
    BatchRange,
    LogContext,
    LogSalvage,
    RangeRepair,
    ReplicaRepair,
    logs_in_context,
    partition_context,
    subtract_ranges,
    write_batches,
)
from kafka_index.commands.restore.transaction_markers import TransactionEdits
from kafka_index.core.errors import (
    CorruptObjectError,
    KafkaIndexError,
    LinkedOutError,
    is_retriable,
    without_frames,
)
from kafka_index.core.format.config import LogConfig
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.names import LOG_SUFFIX, TopicPartition, segment_file_name
from kafka_index.core.format.strings import is_linked
from kafka_index.core.fs.durable_files import publishing
from kafka_index.core.fs.inputs import BAD_CHECKPOINT, Skipped
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import Bytes
from kafka_index.core.fs.uris import is_backup_path
from kafka_index.core.job.engine import Engine, JobSizes, Listener, SplittableTask, new_run_id
from kafka_index.core.log.filter.partition_rewrite import (
    SegmentRewriter,
    is_internal,
    match_partition,
)
from kafka_index.core.log.filter.selection import Selection
from kafka_index.core.log.missing_offsets import (
    BY_CHECKPOINTS,
    Cause,
    Cleaning,
    GapLocation,
    MissingOffsets,
    MissingRange,
    ScannedLog,
    missing_offsets,
)
from kafka_index.core.log.recovery.publish import GROUP_SEGMENTS, publish_partitions
from kafka_index.core.log.recovery.scan import stage_segment
from kafka_index.core.log.recovery.settings import BUILT, FAILED, BuildSettings, SegmentReport
from kafka_index.core.log.recovery.staged_segment import StagedSegment
from kafka_index.core.log.recovery.state_merge import LOG_START_ABOVE_END, PartitionStart
from kafka_index.core.log.scan.file_records import LogBatches, open_log
from kafka_index.core.log.scan.log_offsets import LogOffsets
from kafka_index.core.log.scan.scanner import BatchOrder, unknown_magic
from kafka_index.core.log.scan.segment_scan import LogFileSource, ObservedSource
from kafka_index.core.log.state.partition_state import PartitionState
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.logdir.segment_table import has_entries_beyond, list_lost_logs
from kafka_index.core.output.output import (
    StagedPartition,
    make_staged_directory,
    publish_directories,
)
from kafka_index.core.records.batch_table import NOT_A_LOG, OVERLAP, BatchColumns, ScanStop
from kafka_index.core.records.record_sections import Decompressor

#: Names scratch files. A run restores each log once, in a directory of its own.
ATTEMPT_ID = "restore"
# Smaller partitions share a group, and so the cost of fsync.
_GROUP_BYTES = 64 << 20
# A log fails, and its partition is skipped, if more batches than this must be dropped.
_MAX_DROPS = 64
GAP = "gap"
BELOW_COMMITTED = "below_committed"
MISSING_OBJECT = "missing_object"
ALTERED_OBJECT = "altered_object"
OnFinished = Callable[[Sequence[RestoredPartition]], None]


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """Settings for all partitions of a run; small and picklable.

    `staging` is a directory of the output. Records of the selection `dropped` are not restored.
    """

    output: str
    staging: str
    config: LogConfig
    salvage: Salvage
    link: Link
    dropped: Selection | None
    max_decompressed_bytes: int


#: Restores partitions on an engine, and calls back with each finished group.
Runner: TypeAlias = Callable[[Sequence[PartitionPlan], PartitionSettings, OnFinished], None]


def restore_on(engine: Engine, listener: Listener | None = None) -> Runner:
    def run(
        plans: Sequence[PartitionPlan], settings: PartitionSettings, on_finished: OnFinished
    ) -> None:
        groups = group_partitions(each.alone() for each in plans)
        with engine.start(
            "restore",
            after_failure="finished partitions are kept: run again to continue",
            listener=listener,
            tasks=len(groups),
            inputs=sorted({each.base.directory for each in plans}),
            outputs=[settings.output],
        ) as workers:
            for group in workers.run_parts(
                groups,
                partial(restore_group, settings=settings),
                sizes=[sum(each.size_bytes for each in group) for group in groups],
                what="restore {:,} groups of partitions",
                jobs=JobSizes.EQUAL,
            ):
                on_finished(group)

    return run


def group_partitions(plans: Iterable[PartitionPlan]) -> list[list[PartitionPlan]]:
    """Return groups of partitions, the largest first; small partitions share a group."""
    groups: list[list[PartitionPlan]] = []
    free_bytes = segments = 0
    for plan in sorted(plans, key=lambda each: -each.size_bytes):
        if not groups or plan.size_bytes > free_bytes or segments + plan.log_count > GROUP_SEGMENTS:
            groups.append([])
            free_bytes, segments = _GROUP_BYTES, 0
        groups[-1].append(plan)
        free_bytes, segments = free_bytes - plan.size_bytes, segments + plan.log_count
    return groups


def restore_group(
    group: Sequence[PartitionPlan], *, settings: PartitionSettings
) -> SplittableTask[list[RestoredPartition]]:
    """Return a task that restores partitions, with a part for each log.

    Afterwards, each partition is either complete in the output, or skipped and not in the output.
    """
    root = os.path.join(settings.staging, new_run_id())
    build = BuildSettings(
        config=settings.config, target_root=root, run_id=new_run_id(), keeps_manifest=False
    )
    restore = _GroupRestore(root, settings, build)
    parts = [
        partial(restore.restore_log, plan, *log)
        for plan in group
        for log in logs_in_context(plan, settings.config)
    ]
    return SplittableTask(parts, partial(restore.finish, group))


@dataclass(frozen=True, slots=True)
class _ReadyPartition:
    """A partition whose files can be published."""

    restored: RestoredPartition
    logs: Sequence[RestoredLog]
    directory: str
    start: PartitionStart


@dataclass(frozen=True, slots=True)
class _GroupRestore:
    """The restore of a group of partitions in a staging directory."""

    root: str
    settings: PartitionSettings
    build: BuildSettings

    def restore_log(
        self, plan: PartitionPlan, source: SegmentFile, context: LogContext, _attempt_id: str
    ) -> RestoredLog | KafkaIndexError:
        """Return a log or its error, which is raised when all logs of the partition have ended."""
        try:
            log_restore = self._log_restore(plan, context)
            make_staged_directory(self.root)
            make_staged_directory(log_restore.directory)
            return log_restore.restore_log(source, self.settings.link, self.settings.salvage)
        except KafkaIndexError as error:
            return without_frames(error)

    def finish(
        self,
        group: Sequence[PartitionPlan],
        found: list[RestoredLog | KafkaIndexError],
        _attempt_id: str,
    ) -> list[RestoredPartition]:
        """Publish each partition whose logs are complete."""
        logs = iter(found)
        every = []
        ready_partitions = []
        try:
            for plan in group:
                row = RestoredPartition(plan.partition, plan.base.directory, plan.topic_id)
                every.append(row)
                own = list(islice(logs, plan.log_count))
                with _leave_out_on_error([row]):
                    ready = self._prepare(row, plan, _complete_logs(own))
                    if ready is not None:
                        ready_partitions.append(ready)
            with _leave_out_on_error([each.restored for each in ready_partitions]):
                _publish(ready_partitions, self.build)
                ready_partitions = [
                    each for each in ready_partitions if not each.restored.is_left_out
                ]
                staged = [
                    StagedPartition(each.restored.partition, each.directory, is_shared=True)
                    for each in ready_partitions
                ]
                errors = publish_directories(self.settings.output, staged)
                for each, error in zip(ready_partitions, errors, strict=True):
                    if error is not None:
                        _leave_out(each.restored, error)
        finally:
            # The end of the run removes remaining files, or fails.
            shutil.rmtree(self.root, ignore_errors=True)
        return every

    def _log_restore(self, plan: PartitionPlan, context: LogContext) -> LogRestore:
        directory = os.path.join(self.root, plan.partition.directory_name)
        return LogRestore(directory, self.build, context)

    def _prepare(
        self, restored: RestoredPartition, plan: PartitionPlan, logs: Sequence[RestoredLog]
    ) -> _ReadyPartition | None:
        """Return a partition that can be published; None if it is skipped."""
        salvage, dropped = self.settings.salvage, self.settings.dropped
        context = replace(partition_context(plan, self.settings.config), limit=None)
        log_restore = self._log_restore(plan, context)
        logs = repair_missing_offsets(plan, _up_to_limit(logs, self.build), log_restore)
        restored.notes += [
            f"offsets {repair.first_offset} to {repair.end_offset - 1}: repaired from {replica}"
            for repair in dict.fromkeys(repair for each in logs for repair in each.repairs)
            for replica in sorted({os.path.dirname(each.path) for each in repair.batches})
        ]
        failed = next((each for each in logs if each.staged.report.status == FAILED), None)
        restored.lost = [lost for each in logs for lost in each.lost]
        if failed is not None and salvage is not Salvage.NONE:
            _leave_failed_out(restored, failed.staged.report, logs)
            return None
        restored.lost += lost_gaps(plan, logs, context.replica_repair.decompressor)
        cleaned = sum(each.facts.offsets.cleaned_count for each in logs)
        if cleaned:
            restored.notes.append(f"offsets are missing in {cleaned} places, as after compaction")
        if salvage is Salvage.NONE and restored.lost:
            first = restored.lost[0]
            reason = f"{first.code}: {first.reason}; --salvage none leaves the partition out"
            restored.leave_out(DAMAGED, reason)
            return None
        start = _read_start(restored, plan, logs[0].source)
        epochs = [each.epoch for each in start.epochs]
        restored.last_epoch = max([each.facts.last_epoch for each in logs] + epochs)
        producers = start.state.entries["producer_id"].tolist()
        restored.max_producer_id = max([each.facts.max_producer_id for each in logs] + producers)
        last, end = logs[-1], log_end(logs[-1])
        is_complete = not (restored.lost or last.is_limited)
        is_local = not store_of(last.source.log_path).needs_requests
        if is_complete and is_local and has_entries_beyond(last.source, end, INT64_MAX):
            restored.notes.append(
                f"the log ends at {end}, but its index files have later offsets: these records are "
                "lost, or the log was copied before its index files"
            )
        if start.log_start_offset > end and last.is_limited:
            restored.notes.append(
                f"the records before offset {start.log_start_offset} were deleted, and the log is "
                f"truncated at {end}: it is empty"
            )
            start = replace(start, checkpointed_log_start=end)
        if start.log_start_offset > end:
            restored.leave_out(
                LOG_START_ABOVE_END,
                f"the log end offset {end} is below the log start offset {start.log_start_offset}: "
                "a broker would delete the log; if the log start is wrong, give --log-start",
            )
            return None
        if plan.edits is not None:
            logs = _edit_transactions(restored, logs, plan.edits, log_restore)
        if dropped is not None and not is_internal(plan.partition):
            most = self.settings.max_decompressed_bytes
            try:
                logs = _drop_records(restored, logs, start, log_restore, dropped, most)
            except KafkaIndexError as error:
                if is_retriable(error):
                    raise
                reason = f"not every record with a key to drop can be found: {error}"
                restored.leave_out(KEYS_NOT_DROPPED, reason)
                return None
        return _ReadyPartition(restored, logs, log_restore.directory, start)


def _complete_logs(found: Iterable[RestoredLog | KafkaIndexError]) -> list[RestoredLog]:
    """Return the logs of a partition; raise the error of a log."""
    logs = []
    for each in found:
        if isinstance(each, KafkaIndexError):
            raise each
        logs.append(each)
    return logs


@contextmanager
def _leave_out_on_error(restored: Sequence[RestoredPartition]) -> Iterator[None]:
    """Skip partitions because of an error, unless they are already skipped."""
    try:
        yield
    except KafkaIndexError as error:
        for each in restored:
            _leave_out(each, error)


def _leave_out(restored: RestoredPartition, error: KafkaIndexError) -> None:
    if not restored.is_left_out:
        restored.leave_out(ERROR, str(error), retriable=is_retriable(error))


def _leave_failed_out(
    restored: RestoredPartition, row: SegmentReport, logs: Sequence[RestoredLog]
) -> None:
    paths = {each.source.base_offset: each.source.log_path for each in logs}
    reason = f"{paths[row.segment_base_offset]}: {row.reason}"
    restored.leave_out(row.reason_code or ERROR, reason, retriable=row.retriable)


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
    """A scanned log in the staging directory, whose index files are staged.

    `keeps_end`: the end of the log is neither lost nor truncated. `is_limited`: the log is
    truncated at the limit of its partition.
    """

    source: SegmentFile
    staged: StagedSegment
    facts: LogFacts
    lost: list[LostRange] = field(default_factory=list)
    repairs: list[RangeRepair] = field(default_factory=list)
    keeps_end: bool = True
    is_limited: bool = False

    @property
    def path(self) -> str:
        return self.staged.segment.log_path

    def current_segment(self) -> SegmentFile:
        return segment_at(self.path, self.source)

    def damage(self) -> tuple[int, str, str] | None:
        """Return the position, code and reason of the first damage; None if there is no damage.

        Recovery keeps batches that are out of order or have an unknown magic, but readers fail on
        them. The reason quotes no bytes of a log that was a link.
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
    """Restores the logs of a partition in a directory, with the settings of a build."""

    directory: str
    settings: BuildSettings
    context: LogContext

    def restore_log(self, source: SegmentFile, link: Link, salvage: Salvage) -> RestoredLog:
        """Copy or link a log, and stage its index files."""
        target = self._path(source.base_offset)
        try:
            copy_or_link(source, target, link)
        except CorruptObjectError:
            if salvage is Salvage.NONE or not is_backup_path(source.log_path):
                raise
            damaged = write_surviving(source, target, salvage)
            restored = self._without_damage(self._stage(source, target), salvage)
            restored.lost = with_damaged_objects(restored.lost, damaged, source)
            if _touches_end(restored.lost, restored.facts):
                restored.keeps_end = False
            return restored
        return self._without_damage(self._stage(source, target), salvage)

    def _without_damage(self, restored: RestoredLog, salvage: Salvage) -> RestoredLog:
        """Return a staged log without its damage."""
        target = restored.path
        damage = restored.damage()
        if damage is None:
            row = restored.staged.report
            if row.is_preallocated_tail and row.position_bytes is not None:
                truncate_log(target, row.position_bytes)
            return restored
        lost, repairs = self._salvage(restored).repair(*damage[1:], salvage)
        if salvage is Salvage.NONE and lost:
            restored.lost = lost
            return restored
        restored = self._restage(restored)
        for _ in range(_MAX_DROPS):
            damage = restored.damage()
            if damage is None:
                break
            # Damage that checksums do not show, such as an unreadable transaction marker.
            again = self._salvage(restored)
            drop = again.drop_batch if salvage is Salvage.BATCHES else again.truncate
            lost.append(replace(drop(*damage), position_bytes=None))
            restored = self._restage(restored)
        restored.lost, restored.repairs = lost, repairs
        restored.keeps_end = not (restored.is_limited or _touches_end(lost, restored.facts))
        return restored

    def insert(
        self, log: RestoredLog, batches: Iterable[tuple[int, Sequence[BatchRange]]]
    ) -> RestoredLog:
        """Insert batches of other copies at ascending positions of a log, and stage it again."""
        self._salvage(log).insert(batches)
        restaged = self._restage(log)
        return replace(log, staged=restaged.staged, facts=restaged.facts)

    def write_logs(self, batches: Sequence[BatchRange], like: SegmentFile) -> list[RestoredLog]:
        """Write batches of other copies as logs of the output, one for each of their segments."""
        logs: list[list[BatchRange]] = []
        for batch_range in batches:
            if not logs or batch_range.segment_base_offset > logs[-1][0].first_offset:
                logs.append([])
            logs[-1].append(batch_range)
        restored = []
        for log in logs:
            first = log[0]
            target = self._path(first.first_offset)
            write_batches(target, log)
            source = replace(
                like, base_offset=first.first_offset, log_path=first.path, is_last=False
            )
            restored.append(self._stage(source, target))
        return restored

    def drop_records(
        self, log: RestoredLog, rewriter: SegmentRewriter | TransactionEdits
    ) -> RestoredLog:
        """Write a log without the dropped records, and stage it again.

        The facts of the log still describe all its batches.
        """
        rewritten = f"{log.path}.dropped"
        with publishing(log.path, "write a log without some records"):
            mtime_ns = os.stat(log.path).st_mtime_ns
            rewriter.rewrite(log.current_segment(), rewritten)
            os.utime(rewritten, ns=(mtime_ns, mtime_ns))
            os.replace(rewritten, log.path)
        return replace(log, staged=self._restage(log).staged)

    def _path(self, base_offset: int) -> str:
        return os.path.join(self.directory, segment_file_name(base_offset, LOG_SUFFIX))

    def _salvage(self, log: RestoredLog) -> LogSalvage:
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
    """Return the segment with the path and the current size of a log in the staging directory."""
    with publishing(path, "look at a restored log"):
        return source.copied_to(path, os.stat(path))


def _touches_end(lost: Sequence[LostRange], facts: LogFacts) -> bool:
    end = facts.offsets.end_offset
    return any(each.first_offset is None or each.first_offset >= end for each in lost)


def log_end(last: RestoredLog) -> int:
    counts = last.staged.report.counts
    return last.source.base_offset if counts is None else counts.next_offset


@dataclass(frozen=True, slots=True)
class DamagedObject:
    """An object of a backup that is missing or altered, and its offsets, the end exclusive.

    Its intact first batches end at `intact_end`. If it is `is_short`, no other batch follows them.
    `kept_after` counts the offsets of later objects that are not written.
    """

    first_offset: int
    end_offset: int
    intact_end: int
    is_short: bool
    is_missing: bool
    error: CorruptObjectError
    kept_after: int = 0

    def loss(self, source: SegmentFile, known: Iterable[LostRange]) -> LostRange | None:
        """Return the lost offsets outside of the known ranges; None if there are none.

        If the object has the size in its manifest, it is unknown which of its offsets are lost.
        """
        first = self.intact_end if self.is_short else self.first_offset
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
        """Return whether a lost range overlaps the range of the object."""
        first, last = lost.first_offset, lost.last_offset
        return (first is None or first < self.end_offset) and (
            last is None or last >= self.first_offset
        )


def write_surviving(source: SegmentFile, target: str, salvage: Salvage) -> list[DamagedObject]:
    """Write the bytes that the objects of a backup still have; return the damaged objects.

    With `Salvage.PREFIX`, the log ends at the first object whose batches end too early.
    """
    # Executors restore other logs without the libraries of repositories.
    from kafka_index.core.fs.backup.manifest import LogChunk  # noqa: PLC0415, as above
    from kafka_index.core.fs.backup.store import JoinedFile  # noqa: PLC0415, as above

    damaged: list[DamagedObject] = []

    def batches(log: JoinedFile) -> Iterator[Bytes]:
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
                intact_end, ends_after_batch = _intact_end(array, named.base_offset)
                is_short = len(data) < named.size_bytes
                offsets = named.base_offset, end, intact_end
                damaged.append(DamagedObject(*offsets, is_short, not data, error))
                is_ended = is_short and ends_after_batch and salvage is Salvage.PREFIX
            yield array

    with closing(open_log(source.log_path, source)) as log:
        if not isinstance(log, JoinedFile):
            raise TypeError(f"not a log of a backup: {source.log_path}")
        write_log(target, batches(log))
    return damaged


def with_damaged_objects(
    lost: Iterable[LostRange], damaged: Sequence[DamagedObject], source: SegmentFile
) -> list[LostRange]:
    """Add the errors of damaged objects to lost ranges, and the ranges that no batch shows."""
    found = []
    for each in lost:
        reasons = [str(one.error) for one in damaged if one.overlaps(each)]
        found.append(replace(each, reason="; ".join([each.reason, *reasons])))
    losses = [one.loss(source, found) for one in damaged]
    return [*found, *filter(None, losses)]


def _intact_end(data: Bytes, base_offset: int) -> tuple[int, bool]:
    """Return the offset after the intact first batches, and whether the data ends there."""
    batches = LogBatches(data, 0, base_offset, verify_crc=True)
    end = base_offset
    for chunk in batches:
        end = int(chunk.last_offset[-1]) + 1
    return end, batches.stop is None


def repair_missing_offsets(
    plan: PartitionPlan, logs: Sequence[RestoredLog], log_restore: LogRestore
) -> Sequence[RestoredLog]:
    """Return the logs, with missing offsets repaired from other copies."""
    replica_repair = log_restore.context.replica_repair
    if not replica_repair:
        return logs
    logs = list(logs)
    start = _missing_head(plan, logs, replica_repair)
    if start is not None:
        cleaning = plan.known.cleaning
        cleaned_to = (cleaning.cleaned_to or 0) if cleaning.is_compacted else None
        repair = replica_repair.find_head(start, logs[0].source.base_offset, cleaned_to)
        if repair.batches:
            logs[0].repairs.append(repair)
            logs = [*log_restore.write_logs(repair.batches, logs[0].source), *logs]
    missing = _find_missing(plan, logs, replica_repair.decompressor)
    more: list[RestoredLog] = []
    for number, log in enumerate(list(logs)):
        base_offset = log.source.base_offset
        gap_positions = {each.position_bytes for each in log.facts.offsets.gaps}
        gaps = []
        for each in missing.ranges:
            if each.log != number or each.location is not GapLocation.WITHIN:
                continue
            between, inside = _split_at(each, base_offset)
            if inside is not None and each.position_bytes in gap_positions:
                repair = _find_in_replicas(replica_repair, inside, missing.cleaning)
                gaps.append((each.position_bytes, repair.batches))
                log.repairs.append(repair)
            if between is not None and logs[number - 1].keeps_end:
                repair = _find_in_replicas(replica_repair, between, missing.cleaning)
                log.repairs.append(repair)
                logs[number - 1], written = _repair_between(logs[number - 1], repair, log_restore)
                more += written
        if any(batches for _, batches in gaps):
            logs[number] = log_restore.insert(logs[number], gaps)
    return sorted([*logs, *more], key=lambda each: each.source.base_offset)


def _missing_head(
    plan: PartitionPlan, logs: Sequence[RestoredLog], replica_repair: ReplicaRepair
) -> int | None:
    """Return the log start offset if the first log begins after it, else None.

    The log start offset is in a checkpoint; otherwise it is the lowest start of another copy.
    """
    if plan.base.tiered is not None:
        return None
    first, start = logs[0].source.base_offset, plan.known.start_offset
    if start is None:
        start = replica_repair.start_offset(first)
    return start if start < first else None


def _find_missing(
    plan: PartitionPlan, logs: Sequence[RestoredLog], decompressor: Decompressor
) -> MissingOffsets:
    base_offset = logs[0].source.base_offset
    known, lost_ends = plan.known, {}
    if plan.base.tiered is not None:
        known = replace(known, start_offset=max(plan.log_start_offset, base_offset))
    else:
        lost_ends = list_lost_logs(plan.base.segments)
    if logs[-1].is_limited:
        known = replace(known, end_offset=None)
    return missing_offsets(
        [
            ScannedLog(
                each.current_segment(),
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


def _split_at(
    missing: MissingRange, base_offset: int
) -> tuple[MissingRange | None, MissingRange | None]:
    """Return the part of a range before a log, and the part inside the log."""
    first, end = missing.first_offset, missing.end_offset
    return (
        replace(missing, end_offset=min(end, base_offset)) if first < base_offset else None,
        replace(missing, first_offset=max(first, base_offset)) if end > base_offset else None,
    )


def _find_in_replicas(
    replica_repair: ReplicaRepair, missing: MissingRange, cleaning: Cleaning
) -> RangeRepair:
    """Find missing offsets in other copies, unless a cleaner may have removed them here."""
    cleaned_to = cleaning.cleaned_to if missing.cause is Cause.COMPACTED else None
    # If the cleaner's progress is unknown, removed records might reappear: repair nothing.
    is_unknown = missing.cause is Cause.UNKNOWN and cleaning.is_compacted
    accepts = not (is_unknown and cleaning.cleaned_to is None)
    return replica_repair.find(
        missing.first_offset, missing.end_offset, cleaned_to, accepts=accepts
    )


def _repair_between(
    before: RestoredLog, repair: RangeRepair, log_restore: LogRestore
) -> tuple[RestoredLog, list[RestoredLog]]:
    """Return the log before a gap with the batches of its segment, and logs with later batches."""
    base_offset = before.source.base_offset
    count = sum(each.segment_base_offset <= base_offset for each in repair.batches)
    if count:
        size_bytes = os.path.getsize(before.path)
        before = log_restore.insert(before, [(size_bytes, repair.batches[:count])])
    return before, log_restore.write_logs(repair.batches[count:], before.source)


def lost_gaps(
    plan: PartitionPlan, logs: Sequence[RestoredLog], decompressor: Decompressor
) -> list[LostRange]:
    """Return the missing offsets that compaction does not explain, and that no loss contains yet.

    They are before, within, between and after segments, and within repaired ranges.
    """
    missing = _find_missing(plan, logs, decompressor)
    # Checkpoints show how much is lost after a range without a last offset, the end of a log.
    known = [
        (lost.first_offset or 0, lost.last_offset + 1)
        for each in logs
        for lost in each.lost
        if lost.last_offset is not None
    ]
    repairs = [repair for each in logs for repair in each.repairs]
    found = []
    for each in missing.unexplained:
        for first, end in subtract_ranges([(each.first_offset, each.end_offset)], known):
            if not any(repair.explains(first, end) for repair in repairs):
                repair = next((one for one in repairs if one.covers(first, end)), None)
                found.append(
                    _gap_loss(logs, replace(each, first_offset=first, end_offset=end), repair)
                )
    for number, count in missing.omitted_counts.items():
        source = logs[number].source
        reason = f"offsets are missing in {count} more places of the log"
        place = source.base_offset, source.log_path
        found.append(LostRange(*place, None, None, GAP, reason, is_known=False))
    return found


def _gap_loss(
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
        what = (
            f"the log ends at {first}, but {count} more offsets are in the checkpoints of the dump"
        )
    elif missing.location is GapLocation.HEAD:
        what = f"the log starts at {first}, and {what}"
    elif repair is not None and (rejected := repair.rejected_in(first, missing.end_offset)):
        what = f"{what}, and their batches in {', '.join(rejected)} are not used: "
        what += "a cleaner may have removed them here"
    elif repair is not None:
        what = f"offsets {first} to {last} are also missing in {', '.join(repair.replicas)}"
    reason = what if is_checkpointed else f"{what}; {missing.why}"
    place, is_known = (source.base_offset, source.log_path), missing.cause is Cause.LOST
    return LostRange(*place, first, last, code, reason, is_known=is_known)


def _up_to_limit(logs: Sequence[RestoredLog], settings: BuildSettings) -> Sequence[RestoredLog]:
    """Return the logs up to the limit of the partition; remove later logs."""
    last = next((at for at, each in enumerate(logs) if each.is_limited), None)
    if last is None:
        return logs
    for each in logs[last + 1 :]:
        each.staged.remove_scratch(settings)
        with publishing(each.path, "remove a log after the end"):
            os.unlink(each.path)
    return logs[: last + 1]


def _read_start(
    restored: RestoredPartition, plan: PartitionPlan, first: SegmentFile
) -> PartitionStart:
    """Read the state before the first segment from files of the base; ignore malformed files."""
    tiered = plan.base.tiered
    if first.partition_directory != plan.base.directory and tiered is None:
        name = segment_file_name(first.base_offset, LOG_SUFFIX)
        first = replace(first, log_path=os.path.join(plan.base.directory, name))
    read = partial(
        PartitionStart.read, first, None, tiered=tiered, log_start_offset=plan.log_start_offset
    )
    try:
        start = read(with_epochs=True)
    except KafkaIndexError as error:
        if is_retriable(error):
            raise
        restored.notes.append(f"only the leader epochs of the batches are restored: {error}")
        if error.path is not None and not isinstance(error, LinkedOutError):
            unread = Skipped(error.path, BAD_CHECKPOINT, detail=error.described)
            restored.unread.append(unread.text)
        start = read(with_epochs=False)
    return start if tiered is None else replace(start, checkpointed_log_start=plan.log_start_offset)


def _edit_transactions(
    restored: RestoredPartition,
    logs: Sequence[RestoredLog],
    edits: TransactionEdits,
    log_restore: LogRestore,
) -> Sequence[RestoredLog]:
    restored.is_edited = True
    restored.notes += edits.notes
    base_offsets = [each.source.base_offset for each in logs]
    for each in edits.lost:
        source = logs[max(bisect_right(base_offsets, each.first_offset or 0) - 1, 0)].source
        base_offset, path = source.base_offset, source.log_path
        restored.lost.append(replace(each, segment_base_offset=base_offset, path=path))
    ends = [*base_offsets[1:], INT64_MAX]
    parts = map(edits.in_segment, base_offsets, ends)
    return [
        log_restore.drop_records(log, part) if part else log
        for log, part in zip(logs, parts, strict=True)
    ]


def _drop_records(
    restored: RestoredPartition,
    logs: Sequence[RestoredLog],
    start: PartitionStart,
    log_restore: LogRestore,
    dropped: Selection,
    max_decompressed_bytes: int,
) -> Sequence[RestoredLog]:
    """Return the logs without dropped records; raise `CorruptLogError` for unreadable ones."""
    try:
        match = match_partition(
            [each.current_segment() for each in logs],
            dropped,
            PartitionState(start.state.entries),
            max_decompressed_bytes=max_decompressed_bytes,
            checks_revival=False,
        )
        rewriter = SegmentRewriter(match, dropped, max_decompressed_bytes)
        restored.dropped, restored.dropped_by_key = match.dropped, dict(match.by_key)
        return [
            log_restore.drop_records(each, rewriter)
            if each.source.base_offset in match.losing
            else each
            for each in logs
        ]
    except KafkaIndexError as error:
        # The staged log is removed before the error is reported.
        sources = {each.path: each.source.log_path for each in logs}
        error.path = sources.get(error.path or "", error.path)
        raise


def _publish(group: Sequence[_ReadyPartition], settings: BuildSettings) -> None:
    """Write the index and state files of partitions next to their logs, and complete their rows."""
    rows: defaultdict[TopicPartition, list[SegmentReport]] = defaultdict(list)
    for row in publish_partitions(
        [[log.staged for log in each.logs] for each in group],
        settings,
        attempt_id=ATTEMPT_ID,
        starts={each.restored.partition: each.start for each in group},
    ):
        rows[TopicPartition(row.topic, row.partition)].append(row)
    for each in group:
        for log in each.logs:
            log.staged.remove_scratch(settings)
        with _leave_out_on_error([each.restored]):
            _complete(each, rows[each.restored.partition])


def _complete(ready: _ReadyPartition, rows: Sequence[SegmentReport]) -> None:
    restored, logs, start = ready.restored, ready.logs, ready.start
    broken = next((row for row in rows if row.status == FAILED), None)
    if broken is not None:
        _leave_failed_out(restored, broken, logs)
        return
    restored.notes += [f"{row.segment_base_offset}: {row.note}" for row in rows if row.note]
    restored.is_limited = logs[-1].is_limited
    entries = start.state.entries
    is_open = entries["current_txn_first_offset"] >= 0
    restored.open_producers = entries["producer_id"][is_open].tolist()
    restored.log_start_offset = max(start.log_start_offset, logs[0].source.base_offset)
    restored.base_offset = logs[0].source.base_offset
    restored.log_end_offset = log_end(logs[-1])
    write_partition_metadata(ready.directory, restored.topic_id)
    remove_build_files(ready.directory)
    restored.segments = len(logs)
    restored.size_bytes = sum(os.path.getsize(each.path) for each in logs)
