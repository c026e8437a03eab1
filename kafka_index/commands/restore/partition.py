"""The restore of a partition in a staging directory, which is renamed when complete.

A task of the engine restores a group of partitions (`restore_group`). Its subtasks are logs:

1. `LogRestore.restore_log` copies or links a log, scans the copy and repairs its damage. The scan
   verifies the checksums of the bytes that a broker will read.
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
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import TypeAlias

import numpy as np

from kafka_index.commands.restore.output import (
    copy_or_link,
    remove_build_files,
    truncate_log,
    write_partition_metadata,
)
from kafka_index.commands.restore.plan import PartitionPlan
from kafka_index.commands.restore.replica_repair import (
    BatchRange,
    RangeRepair,
    ReplicaRepair,
    subtract_ranges,
    write_batches,
)
from kafka_index.commands.restore.request import Link, Salvage
from kafka_index.commands.restore.result import (
    DAMAGED,
    ERROR,
    KEYS_NOT_DROPPED,
    LostRange,
    RestoredPartition,
)
from kafka_index.commands.restore.salvage import (
    LogContext,
    LogSalvage,
    add_object_errors,
    logs_in_context,
    partition_context,
    write_intact_objects,
)
from kafka_index.commands.restore.transaction_markers import TransactionEdits
from kafka_index.core.errors import (
    CorruptObjectError,
    KafkaIndexError,
    LinkedOutError,
    is_retriable,
    plural,
    without_frames,
)
from kafka_index.core.format.config import LogConfig
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.names import LOG_SUFFIX, TopicPartition, segment_file_name
from kafka_index.core.format.strings import is_linked
from kafka_index.core.fs.durable_files import publishing
from kafka_index.core.fs.inputs import BAD_CHECKPOINT, Skipped
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.uris import is_backup_path
from kafka_index.core.job.engine import (
    Engine,
    JobSizes,
    Listener,
    SplittableTask,
    TaskSplitter,
    new_run_id,
)
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

#: The attempt ID in scratch file names. A run restores each log once, in a separate directory.
ATTEMPT_ID = "restore"
# Smaller partitions share a group, because one syncfs makes the files of a group durable.
_GROUP_BYTES = 64 << 20
# A log fails, and its partition is skipped, if more batches than this must be dropped.
_MAX_DROPS = 64
GAP = "gap"
BELOW_COMMITTED = "below_committed"
OnFinished = Callable[[Sequence[RestoredPartition]], None]


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """Settings for all partitions of a run; small and picklable.

    `staging` is the staging directory of the output. Records with the keys in `dropped` are not
    restored.
    """

    output: str
    staging: str
    config: LogConfig
    salvage: Salvage
    link: Link
    dropped: Selection | None
    max_decompressed_bytes: int


#: Restores partitions on an engine, and calls `OnFinished` with each finished group.
Runner: TypeAlias = Callable[[Sequence[PartitionPlan], PartitionSettings, OnFinished], None]


def engine_runner(engine: Engine, listener: Listener | None = None) -> Runner:
    def run(
        plans: Sequence[PartitionPlan], settings: PartitionSettings, on_finished: OnFinished
    ) -> None:
        groups = group_partitions(plan.with_own_checkpoints() for plan in plans)
        with engine.start(
            "restore",
            after_failure="finished partitions are kept: run again to continue",
            listener=listener,
            tasks=len(groups),
            inputs=sorted({plan.base.directory for plan in plans}),
            outputs=[settings.output],
        ) as workers:
            for group in workers.run(
                groups,
                TaskSplitter(partial(restore_group, settings=settings)),
                sizes=[sum(plan.size_bytes for plan in group) for group in groups],
                description="restore {:,} groups of partitions",
                jobs=JobSizes.EQUAL,
            ):
                on_finished(group)

    return run


def group_partitions(plans: Iterable[PartitionPlan]) -> list[list[PartitionPlan]]:
    """Group partitions for tasks, largest partition first; small partitions share a group."""
    groups: list[list[PartitionPlan]] = []
    free_bytes = segments = 0
    for plan in sorted(plans, key=attrgetter("size_bytes"), reverse=True):
        if not groups or plan.size_bytes > free_bytes or segments + plan.log_count > GROUP_SEGMENTS:
            groups.append([])
            free_bytes, segments = _GROUP_BYTES, 0
        groups[-1].append(plan)
        free_bytes, segments = free_bytes - plan.size_bytes, segments + plan.log_count
    return groups


def restore_group(
    group: Sequence[PartitionPlan], *, settings: PartitionSettings
) -> SplittableTask[list[RestoredPartition]]:
    """Return a task that restores partitions, with a subtask for each log.

    After the task, each partition is either complete in the output, or skipped.
    """
    root = os.path.join(settings.staging, new_run_id())
    build = BuildSettings(
        config=settings.config, target_root=root, run_id=new_run_id(), keeps_manifest=False
    )
    restore = _GroupRestore(root, settings, build)
    subtasks = [
        partial(restore.restore_log, plan, *log)
        for plan in group
        for log in logs_in_context(plan, settings.config)
    ]
    return SplittableTask(subtasks, partial(restore.finish, group))


@dataclass(frozen=True, slots=True)
class _ReadyPartition:
    """A partition whose staged files are ready to be published."""

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
        """Restore a log; return the restored log, or an error that `finish` handles."""
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
        log_results: list[RestoredLog | KafkaIndexError],
        _attempt_id: str,
    ) -> list[RestoredPartition]:
        """Publish each partition of the group whose logs were all restored."""
        logs = iter(log_results)
        rows = []
        ready_partitions = []
        try:
            for plan in group:
                row = RestoredPartition(plan.partition, plan.base.directory, plan.topic_id)
                rows.append(row)
                plan_results = list(islice(logs, plan.log_count))
                with _skip_on_error([row]):
                    ready = self._prepare_partition(row, plan, _complete_logs(plan_results))
                    if ready is not None:
                        ready_partitions.append(ready)
            with _skip_on_error([ready_partition.restored for ready_partition in ready_partitions]):
                _publish_group(ready_partitions, self.build)
                ready_partitions = [
                    ready_partition
                    for ready_partition in ready_partitions
                    if not ready_partition.restored.is_skipped
                ]
                staged = [
                    StagedPartition(
                        ready_partition.restored.partition,
                        ready_partition.directory,
                        is_shared=True,
                    )
                    for ready_partition in ready_partitions
                ]
                errors = publish_directories(self.settings.output, staged)
                for ready_partition, error in zip(ready_partitions, errors, strict=True):
                    if error is not None:
                        _skip_with_error(ready_partition.restored, error)
        finally:
            # Ignore errors: at its end, the run removes the staging directory or fails.
            shutil.rmtree(self.root, ignore_errors=True)
        return rows

    def _log_restore(self, plan: PartitionPlan, context: LogContext) -> LogRestore:
        directory = os.path.join(self.root, plan.partition.directory_name)
        return LogRestore(directory, self.build, context)

    def _prepare_partition(
        self, restored: RestoredPartition, plan: PartitionPlan, logs: Sequence[RestoredLog]
    ) -> _ReadyPartition | None:
        """Repair and edit a partition before it is published; return None if it is skipped."""
        salvage, dropped_selection = self.settings.salvage, self.settings.dropped
        context = replace(partition_context(plan, self.settings.config), limit=None)
        log_restore = self._log_restore(plan, context)
        logs = repair_missing_offsets(plan, _remove_logs_after_limit(logs, self.build), log_restore)
        restored.notes += [
            f"offsets {repair.first_offset} to {repair.end_offset - 1}: repaired from {replica}"
            for repair in dict.fromkeys(repair for log in logs for repair in log.repairs)
            for replica in sorted(
                {os.path.dirname(batch_range.path) for batch_range in repair.batches}
            )
        ]
        failed_log = next((log for log in logs if log.staged.report.status == FAILED), None)
        restored.lost = [lost for log in logs for lost in log.lost]
        if failed_log is not None and salvage is not Salvage.NONE:
            _skip_failed(restored, failed_log.staged.report, logs)
            return None
        restored.lost += lost_gaps(plan, logs, context.replica_repair.decompressor)
        cleaned_gap_count = sum(log.facts.offsets.cleaned_count for log in logs)
        if cleaned_gap_count:
            restored.notes.append(
                f"the offsets have {plural(cleaned_gap_count, 'gap')}, such as compaction leaves"
            )
        if salvage is Salvage.NONE and restored.lost:
            first_loss = restored.lost[0]
            reason = f"{first_loss.code}: {first_loss.reason}; --salvage none skips the partition"
            restored.skip(DAMAGED, reason)
            return None
        start = _read_start(restored, plan, logs[0].source)
        epochs = [entry.epoch for entry in start.epochs]
        restored.last_epoch = max([log.facts.last_epoch for log in logs] + epochs)
        producers = start.state.entries["producer_id"].tolist()
        restored.max_producer_id = max([log.facts.max_producer_id for log in logs] + producers)
        last_log, log_end_offset = logs[-1], log_end(logs[-1])
        is_complete = not (restored.lost or last_log.is_limited)
        is_local = not store_of(last_log.source.log_path).needs_requests
        if (
            is_complete
            and is_local
            and has_entries_beyond(last_log.source, log_end_offset, INT64_MAX)
        ):
            restored.notes.append(
                f"the log ends at {log_end_offset}, but its index files contain later offsets: "
                "later records are lost, or the log was copied before its index files"
            )
        if start.log_start_offset > log_end_offset and last_log.is_limited:
            restored.notes.append(
                f"the log is truncated at {log_end_offset}, before the log start offset "
                f"{start.log_start_offset}: no record remains"
            )
            start = replace(start, checkpointed_log_start=log_end_offset)
        if start.log_start_offset > log_end_offset:
            restored.skip(
                LOG_START_ABOVE_END,
                f"the log end offset {log_end_offset} is below the log start offset "
                f"{start.log_start_offset}, so a broker would delete the log (--log-start sets "
                "another log start offset)",
            )
            return None
        if plan.edits is not None:
            logs = _edit_transactions(restored, logs, plan.edits, log_restore)
        if dropped_selection is not None and not is_internal(plan.partition):
            max_bytes = self.settings.max_decompressed_bytes
            try:
                logs = _drop_records(
                    restored, logs, start, log_restore, dropped_selection, max_bytes
                )
            except KafkaIndexError as error:
                if is_retriable(error):
                    raise
                reason = f"a record that cannot be read may have a key of --drop-keys: {error}"
                restored.skip(KEYS_NOT_DROPPED, reason)
                return None
        return _ReadyPartition(restored, logs, log_restore.directory, start)


def _complete_logs(results: Iterable[RestoredLog | KafkaIndexError]) -> list[RestoredLog]:
    """Return the restored logs of a partition; if a log failed, raise its error."""
    logs = []
    for result in results:
        if isinstance(result, KafkaIndexError):
            raise result
        logs.append(result)
    return logs


@contextmanager
def _skip_on_error(restored: Sequence[RestoredPartition]) -> Iterator[None]:
    """If the context raises an error, skip the partitions that are not skipped yet."""
    try:
        yield
    except KafkaIndexError as error:
        for partition in restored:
            _skip_with_error(partition, error)


def _skip_with_error(restored: RestoredPartition, error: KafkaIndexError) -> None:
    if not restored.is_skipped:
        restored.skip(ERROR, str(error), retriable=is_retriable(error))


def _skip_failed(
    restored: RestoredPartition, report: SegmentReport, logs: Sequence[RestoredLog]
) -> None:
    paths = {log.source.base_offset: log.source.log_path for log in logs}
    reason = f"{paths[report.segment_base_offset]}: {report.reason}"
    restored.skip(report.reason_code or ERROR, reason, retriable=report.retriable)


@dataclass(slots=True)
class LogFacts:
    """Facts about the batches of a log: offsets, largest producer ID and leader epoch.

    `stop` is the first batch that is out of order or has an unknown magic.
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
            or self._first_offset_jump(batches)
            or unknown_magic(batches)
        )
        self.offsets.observe(batches)
        self.max_producer_id = max(self.max_producer_id, int(batches.producer_id.max()))
        self.last_epoch = max(self.last_epoch, int(batches.leader_epoch.max()))

    def _first_offset_jump(self, batches: BatchColumns) -> ScanStop | None:
        """Return the first batch that skips offsets and belongs to the next segment."""
        if self.next_base_offset is None:
            return None
        base_offsets, expected_offsets = batches.base_offset, np.roll(batches.last_offset, 1) + 1
        expected_offsets[0] = self.offsets.end_offset
        rows = np.flatnonzero(
            (base_offsets > expected_offsets) & (base_offsets >= self.next_base_offset)
        )
        if not len(rows):
            return None
        position, offset = int(batches.position_bytes[rows[0]]), int(base_offsets[rows[0]])
        expected = f"offsets below {self.next_base_offset}"
        return ScanStop(OVERLAP, position, expected, f"offset {offset}")


@dataclass(slots=True)
class RestoredLog:
    """A scanned log in the staging directory, whose index files are staged.

    Attributes
    ----------
    keeps_end : bool
        The last batches of the source log are in the restored log: neither lost nor truncated.
    is_limited : bool
        The log is truncated at the limit of its partition.
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
        """Return the position, code and reason of the first damage; None if the log is intact.

        Log recovery keeps batches that are out of order or have an unknown magic, but consumers
        fail at such batches. If the log in the dump is a link to a file that is not a log, the
        reason quotes no bytes of it.
        """
        report, stop = self.staged.report, self.facts.stop
        position_bytes = report.position_bytes
        if report.status != BUILT and position_bytes is None:
            return None
        if stop is not None and (position_bytes is None or stop.position_bytes <= position_bytes):
            return stop.position_bytes, stop.reason_code, stop.text
        if report.status == BUILT or position_bytes is None or report.is_preallocated_tail:
            return None
        code, reason = report.reason_code or FAILED, report.reason or FAILED
        is_hidden = code == NOT_A_LOG and is_linked(self.source.log_path)
        return position_bytes, code, "not a Kafka log" if is_hidden else reason


@dataclass(frozen=True, slots=True)
class LogRestore:
    """Restores the logs of a partition in a staging directory."""

    directory: str
    settings: BuildSettings
    context: LogContext

    def restore_log(self, source: SegmentFile, link: Link, salvage: Salvage) -> RestoredLog:
        """Copy or link a log, and stage its index files."""
        target = self._log_path(source.base_offset)
        try:
            copy_or_link(source, target, link)
        except CorruptObjectError:
            if salvage is Salvage.NONE or not is_backup_path(source.log_path):
                raise
            damaged_objects = write_intact_objects(source, target, salvage)
            restored = self._repair_damage(self._stage_log(source, target), salvage)
            restored.lost = add_object_errors(restored.lost, damaged_objects, source)
            if _has_lost_end(restored.lost, restored.facts):
                restored.keeps_end = False
            return restored
        return self._repair_damage(self._stage_log(source, target), salvage)

    def _repair_damage(self, restored: RestoredLog, salvage: Salvage) -> RestoredLog:
        """Repair the damage of a staged log, and stage index files of the repaired log."""
        target = restored.path
        damage = restored.damage()
        if damage is None:
            report = restored.staged.report
            if report.is_preallocated_tail and report.position_bytes is not None:
                truncate_log(target, report.position_bytes)
            return restored
        lost, repairs = self._log_salvage(restored).repair(*damage[1:], salvage)
        if salvage is Salvage.NONE and lost:
            restored.lost = lost
            return restored
        restored = self._restage_log(restored)
        for _ in range(_MAX_DROPS):
            damage = restored.damage()
            if damage is None:
                break
            # Damage with valid checksums, such as an unreadable transaction marker: remove one
            # batch or truncate.
            salvage_again = self._log_salvage(restored)
            drop = (
                salvage_again.drop_batch if salvage is Salvage.BATCHES else salvage_again.truncate
            )
            lost.append(replace(drop(*damage), position_bytes=None))
            restored = self._restage_log(restored)
        restored.lost, restored.repairs = lost, repairs
        restored.keeps_end = not (restored.is_limited or _has_lost_end(lost, restored.facts))
        return restored

    def insert(
        self, log: RestoredLog, batches: Iterable[tuple[int, Sequence[BatchRange]]]
    ) -> RestoredLog:
        """Insert batches of other copies at ascending positions; stage new index files."""
        self._log_salvage(log).insert(batches)
        restaged_log = self._restage_log(log)
        return replace(log, staged=restaged_log.staged, facts=restaged_log.facts)

    def write_logs(self, batches: Sequence[BatchRange], template: SegmentFile) -> list[RestoredLog]:
        """Write batches of other copies as logs of the output: one log per segment."""
        logs: list[list[BatchRange]] = []
        for batch_range in batches:
            if not logs or batch_range.segment_base_offset > logs[-1][0].first_offset:
                logs.append([])
            logs[-1].append(batch_range)
        restored = []
        for batch_ranges in logs:
            first_range = batch_ranges[0]
            target = self._log_path(first_range.first_offset)
            write_batches(target, batch_ranges)
            source = replace(
                template,
                base_offset=first_range.first_offset,
                log_path=first_range.path,
                is_last=False,
            )
            restored.append(self._stage_log(source, target))
        return restored

    def drop_records(
        self, log: RestoredLog, rewriter: SegmentRewriter | TransactionEdits
    ) -> RestoredLog:
        """Rewrite a log without the dropped records, and stage new index files.

        `RestoredLog.facts` still describes the log before the rewrite.
        """
        rewritten_path = f"{log.path}.dropped"
        with publishing(log.path, "write a log without the dropped records"):
            mtime_ns = os.stat(log.path).st_mtime_ns
            rewriter.rewrite(log.current_segment(), rewritten_path)
            os.utime(rewritten_path, ns=(mtime_ns, mtime_ns))
            os.replace(rewritten_path, log.path)
        return replace(log, staged=self._restage_log(log).staged)

    def _log_path(self, base_offset: int) -> str:
        return os.path.join(self.directory, segment_file_name(base_offset, LOG_SUFFIX))

    def _log_salvage(self, log: RestoredLog) -> LogSalvage:
        return LogSalvage(log.source, log.path, self.context)

    def _stage_log(self, source: SegmentFile, target: str) -> RestoredLog:
        segment, limit = segment_at(target, source), self.context.limit
        facts = LogFacts(
            LogOffsets(source.base_offset, self.context.cleaned_to),
            BatchOrder(source.base_offset),
            self.context.next_base_offset,
        )
        log = ObservedSource(
            LogFileSource.of_segment(segment, verify_crc=True),
            [facts],
            None if limit is None else limit.first_excluded_row,
        )
        staged = stage_segment(segment, log, self.settings, ATTEMPT_ID, self.directory)
        is_intact = staged.report.status == BUILT and facts.stop is None
        is_limited = log.cut_at_bytes is not None and is_intact
        if is_limited and log.cut_at_bytes is not None:
            truncate_log(target, log.cut_at_bytes)
        return RestoredLog(source, staged, facts, is_limited=is_limited, keeps_end=not is_limited)

    def _restage_log(self, log: RestoredLog) -> RestoredLog:
        log.staged.remove_scratch(self.settings)
        return self._stage_log(log.source, log.path)


def segment_at(path: str, source: SegmentFile) -> SegmentFile:
    """Return a copy of `source` with the path and size of its log in the staging directory."""
    with publishing(path, "read the size of a restored log"):
        return source.copied_to(path, os.stat(path))


def _has_lost_end(lost: Sequence[LostRange], facts: LogFacts) -> bool:
    end_offset = facts.offsets.end_offset
    return any(
        lost_range.first_offset is None or lost_range.first_offset >= end_offset
        for lost_range in lost
    )


def log_end(log: RestoredLog) -> int:
    counts = log.staged.report.counts
    return log.source.base_offset if counts is None else counts.next_offset


def repair_missing_offsets(
    plan: PartitionPlan, logs: Sequence[RestoredLog], log_restore: LogRestore
) -> Sequence[RestoredLog]:
    """Repair missing offsets from other copies; return all logs of the partition."""
    replica_repair = log_restore.context.replica_repair
    if not replica_repair:
        return logs
    logs = list(logs)
    log_start_offset = _missing_log_start(plan, logs, replica_repair)
    if log_start_offset is not None:
        cleaning = plan.known_offsets.cleaning
        cleaned_to = (cleaning.cleaned_to or 0) if cleaning.is_compacted else None
        repair = replica_repair.find_head(log_start_offset, logs[0].source.base_offset, cleaned_to)
        if repair.batches:
            logs[0].repairs.append(repair)
            logs = [*log_restore.write_logs(repair.batches, logs[0].source), *logs]
    missing = _find_missing(plan, logs, replica_repair.decompressor)
    inserted_logs: list[RestoredLog] = []
    for number, log in enumerate(list(logs)):
        base_offset = log.source.base_offset
        gap_positions = {missing_range.position_bytes for missing_range in log.facts.offsets.gaps}
        insertions = []
        for missing_range in missing.ranges:
            if missing_range.log != number or missing_range.location is not GapLocation.WITHIN:
                continue
            range_before_log, range_in_log = _split_range(missing_range, base_offset)
            if range_in_log is not None and missing_range.position_bytes in gap_positions:
                repair = _find_in_replicas(replica_repair, range_in_log, missing.cleaning)
                insertions.append((missing_range.position_bytes, repair.batches))
                log.repairs.append(repair)
            if range_before_log is not None and logs[number - 1].keeps_end:
                repair = _find_in_replicas(replica_repair, range_before_log, missing.cleaning)
                log.repairs.append(repair)
                logs[number - 1], new_logs = _repair_between(logs[number - 1], repair, log_restore)
                inserted_logs += new_logs
        if any(batches for _, batches in insertions):
            logs[number] = log_restore.insert(logs[number], insertions)
    return sorted([*logs, *inserted_logs], key=attrgetter("source.base_offset"))


def _missing_log_start(
    plan: PartitionPlan, logs: Sequence[RestoredLog], replica_repair: ReplicaRepair
) -> int | None:
    """Return the log start offset if it is below the base offset of the first log; else None.

    Without a checkpointed log start offset, the lowest log start offset of other copies is used.
    """
    if plan.base.tiered is not None:
        return None
    first_base_offset, log_start_offset = (
        logs[0].source.base_offset,
        plan.known_offsets.start_offset,
    )
    if log_start_offset is None:
        log_start_offset = replica_repair.start_offset(first_base_offset)
    return log_start_offset if log_start_offset < first_base_offset else None


def _find_missing(
    plan: PartitionPlan, logs: Sequence[RestoredLog], decompressor: Decompressor
) -> MissingOffsets:
    base_offset = logs[0].source.base_offset
    known_offsets, lost_ends = plan.known_offsets, {}
    if plan.base.tiered is not None:
        known_offsets = replace(known_offsets, start_offset=max(plan.log_start_offset, base_offset))
    else:
        lost_ends = list_lost_logs(plan.base.segments)
    if logs[-1].is_limited:
        known_offsets = replace(known_offsets, end_offset=None)
    return missing_offsets(
        [
            ScannedLog(
                log.current_segment(),
                log.facts.offsets,
                is_read=log.staged.report.status != FAILED or bool(log.lost),
                listed=log.source,
            )
            for log in logs
        ],
        known_offsets,
        decompressor,
        lost_ends,
    )


def _split_range(
    missing_range: MissingRange, base_offset: int
) -> tuple[MissingRange | None, MissingRange | None]:
    """Split a missing range into the part before a log's base offset and the rest."""
    first_offset, end_offset = missing_range.first_offset, missing_range.end_offset
    return (
        replace(missing_range, end_offset=min(end_offset, base_offset))
        if first_offset < base_offset
        else None,
        replace(missing_range, first_offset=max(first_offset, base_offset))
        if end_offset > base_offset
        else None,
    )


def _find_in_replicas(
    replica_repair: ReplicaRepair, missing_range: MissingRange, cleaning: Cleaning
) -> RangeRepair:
    """Find missing offsets in other copies, unless the log cleaner may have removed the records."""
    cleaned_to = cleaning.cleaned_to if missing_range.cause is Cause.COMPACTED else None
    # If the cleaner offset of a compacted topic is unknown, a repair might restore records that the
    # log cleaner removed: accept no batches.
    is_unknown = missing_range.cause is Cause.UNKNOWN and cleaning.is_compacted
    accepts = not (is_unknown and cleaning.cleaned_to is None)
    return replica_repair.find(
        missing_range.first_offset, missing_range.end_offset, cleaned_to, accepts=accepts
    )


def _repair_between(
    previous_log: RestoredLog, repair: RangeRepair, log_restore: LogRestore
) -> tuple[RestoredLog, list[RestoredLog]]:
    """Append batches to the log before a gap; return this log, and new logs of later segments."""
    base_offset = previous_log.source.base_offset
    count = sum(batch_range.segment_base_offset <= base_offset for batch_range in repair.batches)
    if count:
        size_bytes = os.path.getsize(previous_log.path)
        previous_log = log_restore.insert(previous_log, [(size_bytes, repair.batches[:count])])
    return previous_log, log_restore.write_logs(repair.batches[count:], previous_log.source)


def lost_gaps(
    plan: PartitionPlan, logs: Sequence[RestoredLog], decompressor: Decompressor
) -> list[LostRange]:
    """Return the missing offsets that compaction does not explain, and that no loss contains yet.

    Offsets may be missing before, within, between and after segments, and in repaired ranges.
    """
    missing = _find_missing(plan, logs, decompressor)
    # Skip lost ranges without a last offset. They are at the log end, where checkpoints show which
    # offsets are missing.
    known_ranges = [
        (lost_range.first_offset or 0, lost_range.last_offset + 1)
        for log in logs
        for lost_range in log.lost
        if lost_range.last_offset is not None
    ]
    repairs = [repair for log in logs for repair in log.repairs]
    losses = []
    for missing_range in missing.unexplained:
        for first_offset, end_offset in subtract_ranges(
            [(missing_range.first_offset, missing_range.end_offset)], known_ranges
        ):
            if not any(repair.explains(first_offset, end_offset) for repair in repairs):
                repair = next(
                    (
                        candidate
                        for candidate in repairs
                        if candidate.covers(first_offset, end_offset)
                    ),
                    None,
                )
                losses.append(
                    _gap_loss(
                        logs,
                        replace(missing_range, first_offset=first_offset, end_offset=end_offset),
                        repair,
                    )
                )
    for number, count in missing.omitted_counts.items():
        source = logs[number].source
        reason = f"the offsets of the log have {plural(count, 'more gap')}"
        segment = source.base_offset, source.log_path
        losses.append(LostRange(*segment, None, None, GAP, reason, is_known=False))
    return losses


def _gap_loss(
    logs: Sequence[RestoredLog], missing_range: MissingRange, repair: RangeRepair | None
) -> LostRange:
    first_offset, last_offset = missing_range.first_offset, missing_range.last_offset
    code, description = GAP, f"offsets {first_offset} to {last_offset} are in no segment"
    is_between = missing_range.log > 0 and missing_range.position_bytes == 0
    source = logs[missing_range.log - is_between].source
    is_checkpointed = missing_range.why == BY_CHECKPOINTS
    if is_checkpointed:
        code = BELOW_COMMITTED
        count = last_offset - first_offset + 1
        description = f"the log ends at {first_offset}, but the checkpoints of the dump contain "
        description += plural(count, "more offset")
    elif missing_range.location is GapLocation.HEAD:
        description = f"the log start offset is {first_offset}, but {description}"
    elif repair is not None and (
        rejecting_replicas := repair.rejecting_replicas(first_offset, missing_range.end_offset)
    ):
        description += (
            f", and the batches in {', '.join(rejecting_replicas)} are not used, because the log "
            "cleaner may have removed the records"
        )
    elif repair is not None:
        description = f"offsets {first_offset} to {last_offset} are also missing in "
        description += ", ".join(repair.replicas)
    reason = description if is_checkpointed else f"{description}; {missing_range.why}"
    segment, is_known = (source.base_offset, source.log_path), missing_range.cause is Cause.LOST
    return LostRange(*segment, first_offset, last_offset, code, reason, is_known=is_known)


def _remove_logs_after_limit(
    logs: Sequence[RestoredLog], settings: BuildSettings
) -> Sequence[RestoredLog]:
    """Remove the logs after the log that was truncated at the limit; return the others."""
    last_number = next((number for number, log in enumerate(logs) if log.is_limited), None)
    if last_number is None:
        return logs
    for log in logs[last_number + 1 :]:
        log.staged.remove_scratch(settings)
        with publishing(log.path, "remove a log after the requested end"):
            os.unlink(log.path)
    return logs[: last_number + 1]


def _read_start(
    restored: RestoredPartition, plan: PartitionPlan, first_segment: SegmentFile
) -> PartitionStart:
    """Read the producers and leader epochs before the first segment; ignore malformed files."""
    tiered = plan.base.tiered
    if first_segment.partition_directory != plan.base.directory and tiered is None:
        name = segment_file_name(first_segment.base_offset, LOG_SUFFIX)
        first_segment = replace(first_segment, log_path=os.path.join(plan.base.directory, name))
    read_start = partial(
        PartitionStart.read,
        first_segment,
        None,
        tiered=tiered,
        log_start_offset=plan.log_start_offset,
    )
    try:
        start = read_start(with_epochs=True)
    except KafkaIndexError as error:
        if is_retriable(error):
            raise
        restored.notes.append(f"leader epochs are restored only from the batches: {error}")
        if error.path is not None and not isinstance(error, LinkedOutError):
            unread = Skipped(error.path, BAD_CHECKPOINT, detail=error.described)
            restored.unread.append(unread.description)
        start = read_start(with_epochs=False)
    return start if tiered is None else replace(start, checkpointed_log_start=plan.log_start_offset)


def _edit_transactions(
    restored: RestoredPartition,
    logs: Sequence[RestoredLog],
    edits: TransactionEdits,
    log_restore: LogRestore,
) -> Sequence[RestoredLog]:
    restored.is_edited = True
    restored.notes += edits.notes
    base_offsets = [log.source.base_offset for log in logs]
    for lost_range in edits.lost:
        source = logs[max(bisect_right(base_offsets, lost_range.first_offset or 0) - 1, 0)].source
        base_offset, path = source.base_offset, source.log_path
        restored.lost.append(replace(lost_range, segment_base_offset=base_offset, path=path))
    ends = [*base_offsets[1:], INT64_MAX]
    segment_edits = map(edits.in_segment, base_offsets, ends)
    return [
        log_restore.drop_records(log, edits_of_segment) if edits_of_segment else log
        for log, edits_of_segment in zip(logs, segment_edits, strict=True)
    ]


def _drop_records(
    restored: RestoredPartition,
    logs: Sequence[RestoredLog],
    start: PartitionStart,
    log_restore: LogRestore,
    dropped_selection: Selection,
    max_decompressed_bytes: int,
) -> Sequence[RestoredLog]:
    """Drop records from logs; raise `CorruptLogError` if a record cannot be read."""
    try:
        match = match_partition(
            [log.current_segment() for log in logs],
            dropped_selection,
            PartitionState(start.state.entries),
            max_decompressed_bytes=max_decompressed_bytes,
            checks_revival=False,
        )
        rewriter = SegmentRewriter(match, dropped_selection, max_decompressed_bytes)
        restored.dropped, restored.dropped_by_key = match.dropped, dict(match.by_key)
        return [
            log_restore.drop_records(log, rewriter)
            if log.source.base_offset in match.losing
            else log
            for log in logs
        ]
    except KafkaIndexError as error:
        # Report the log in the dump: the staged log is removed before the error is shown.
        sources = {log.path: log.source.log_path for log in logs}
        error.path = sources.get(error.path or "", error.path)
        raise


def _publish_group(group: Sequence[_ReadyPartition], settings: BuildSettings) -> None:
    """Write index files, snapshots and leader epochs; complete the partitions' report rows."""
    rows: defaultdict[TopicPartition, list[SegmentReport]] = defaultdict(list)
    for row in publish_partitions(
        [[log.staged for log in ready.logs] for ready in group],
        settings,
        attempt_id=ATTEMPT_ID,
        starts={ready.restored.partition: ready.start for ready in group},
    ):
        rows[TopicPartition(row.topic, row.partition)].append(row)
    for ready in group:
        for log in ready.logs:
            log.staged.remove_scratch(settings)
        with _skip_on_error([ready.restored]):
            _complete_row(ready, rows[ready.restored.partition])


def _complete_row(ready: _ReadyPartition, rows: Sequence[SegmentReport]) -> None:
    restored, logs, start = ready.restored, ready.logs, ready.start
    failed_report = next((report for report in rows if report.status == FAILED), None)
    if failed_report is not None:
        _skip_failed(restored, failed_report, logs)
        return
    restored.notes += [
        f"{report.segment_base_offset}: {report.note}" for report in rows if report.note
    ]
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
    restored.size_bytes = sum(os.path.getsize(log.path) for log in logs)
