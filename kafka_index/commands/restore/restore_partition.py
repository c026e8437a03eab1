"""Partitions as units of work: restored in a folder of their own, and renamed when complete.

The works of both engines are groups of partitions (`divide`), and the parts of a work are logs. A
log is scanned in the file that a rename takes into the output. The index files, snapshots and
leader epochs are those of a build over these logs. A partition takes its name in the output when
all of its files are durable.
"""

from __future__ import annotations

import os
import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TypeAlias

from kafka_index.commands.restore.lost_markers import TransactionEdits
from kafka_index.commands.restore.output_files import (
    remove_build_files,
    write_partition_metadata,
)
from kafka_index.commands.restore.plan import PartitionPlan
from kafka_index.commands.restore.request import Link, Salvage
from kafka_index.commands.restore.restore_log import (
    ATTEMPT_ID,
    LogRestore,
    RestoredLog,
    gap_losses,
    log_end,
    with_repairs,
)
from kafka_index.commands.restore.restored_partition import (
    DAMAGED,
    ERROR,
    KEYS_NOT_DROPPED,
    RestoredPartition,
)
from kafka_index.commands.restore.salvage import LogContext, logs_in_context, partition_context
from kafka_index.core.errors import (
    KafkaIndexError,
    LinkedOutError,
    is_retriable,
    without_frames,
)
from kafka_index.core.format.config import LogConfig
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.names import LOG_SUFFIX, TopicPartition, segment_file_name
from kafka_index.core.fs.durable_files import publishing
from kafka_index.core.fs.inputs import BAD_CHECKPOINT, Skipped
from kafka_index.core.fs.registry import store_of
from kafka_index.core.job.engine import Engine, Listener, SplittableTask, Waves, new_run_id
from kafka_index.core.log.filter.partition_rewrite import (
    SegmentRewriter,
    is_internal,
    match_partition,
)
from kafka_index.core.log.filter.selection import Selection
from kafka_index.core.log.recovery.publish import GROUP_SEGMENTS, publish_partitions
from kafka_index.core.log.recovery.settings import FAILED, BuildSettings, SegmentReport
from kafka_index.core.log.recovery.state_merge import LOG_START_ABOVE_END, PartitionStart
from kafka_index.core.log.state.partition_state import PartitionState
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.logdir.segment_table import has_entries_beyond
from kafka_index.core.output.output import (
    StagedPartition,
    make_staged_directory,
    publish_directories,
)

# Partitions of fewer bytes of logs share a group, and the cost of making files durable.
_GROUP_BYTES = 64 << 20

#: A log, or the error that it ended with: the rest of its partition is awaited all the same.
FoundLog = RestoredLog | KafkaIndexError
OnSettled = Callable[[Sequence[RestoredPartition]], None]


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """Settings for all partitions of a run; small and picklable.

    The staging directory is one of the output. No partition gets the records of the selection; so
    much of them is decompressed at a time.
    """

    output: str
    staging: str
    config: LogConfig
    salvage: Salvage
    link: Link
    dropped: Selection | None
    max_decompressed_bytes: int


@dataclass(frozen=True, slots=True)
class _ReadyPartition:
    """A partition whose files can be published."""

    found: RestoredPartition
    logs: Sequence[RestoredLog]
    directory: str
    start: PartitionStart


def grouped(plans: Iterable[PartitionPlan]) -> list[list[PartitionPlan]]:
    """Return the units of work, the largest first: large partitions alone, small ones together."""
    groups: list[list[PartitionPlan]] = []
    room = segments = 0
    for plan in sorted(plans, key=lambda each: -each.size_bytes):
        if not groups or plan.size_bytes > room or segments + plan.log_count > GROUP_SEGMENTS:
            groups.append([])
            room, segments = _GROUP_BYTES, 0
        groups[-1].append(plan)
        room, segments = room - plan.size_bytes, segments + plan.log_count
    return groups


#: Restores partitions on some engine, and calls back with each group that is settled.
Runner: TypeAlias = Callable[[Sequence[PartitionPlan], PartitionSettings, OnSettled], None]


def restore_on(engine: Engine, listener: Listener | None = None) -> Runner:
    """Return a function that restores partitions on an engine."""

    def run(
        plans: Sequence[PartitionPlan], settings: PartitionSettings, on_settled: OnSettled
    ) -> None:
        groups = grouped(each.alone() for each in plans)
        with engine.start(
            "restore",
            after_failure="finished partitions are kept: run again to continue",
            listener=listener,
            works=len(groups),
            inputs=sorted({each.base.directory for each in plans}),
            outputs=[settings.output],
        ) as workers:
            for group in workers.run_parts(
                groups,
                partial(divide, settings=settings),
                sizes=[sum(each.size_bytes for each in group) for group in groups],
                what="restore {:,} groups of partitions",
                waves=Waves.KEPT,
            ):
                on_settled(group)

    return run


def divide(
    group: Sequence[PartitionPlan], *, settings: PartitionSettings
) -> SplittableTask[list[RestoredPartition]]:
    """Return a task that restores partitions in a folder of its own, with a part for each log.

    Joined, each partition appears whole in the output, without the records of some keys, or it is
    left out and not there.
    """
    root = os.path.join(settings.staging, new_run_id())
    attempt = _Attempt(
        root,
        settings,
        BuildSettings(
            config=settings.config, target_root=root, run_id=new_run_id(), keeps_record=False
        ),
    )
    parts = [
        partial(attempt.restore_log, plan, *log)
        for plan in group
        for log in logs_in_context(plan, settings.config)
    ]
    return SplittableTask(parts, partial(attempt.finish, group))


@dataclass(frozen=True, slots=True)
class _Attempt:
    """An attempt at a group of partitions, in a folder of its own."""

    root: str
    settings: PartitionSettings
    build: BuildSettings

    def restore_log(
        self, plan: PartitionPlan, source: SegmentFile, context: LogContext, _attempt_id: str
    ) -> FoundLog:
        """Restore a log of a partition."""
        try:
            restoring = self._restoring(plan, context)
            make_staged_directory(self.root)
            make_staged_directory(restoring.directory)
            return restoring.restore_log(source, self.settings.link, self.settings.salvage)
        except KafkaIndexError as error:
            return without_frames(error)

    def finish(
        self, group: Sequence[PartitionPlan], found: list[FoundLog], _attempt_id: str
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
                with _leaving_out([row]):
                    ready = self._prepare(row, plan, _intact_logs(own))
                    if ready is not None:
                        ready_partitions.append(ready)
            with _leaving_out([each.found for each in ready_partitions]):
                _publish(ready_partitions, self.build)
                ready_partitions = [each for each in ready_partitions if not each.found.is_left_out]
                staged = [
                    StagedPartition(each.found.partition, each.directory, is_shared=True)
                    for each in ready_partitions
                ]
                errors = publish_directories(self.settings.output, staged)
                for each, error in zip(ready_partitions, errors, strict=True):
                    if error is not None:
                        _leave_out(each.found, error)
        finally:
            # What cannot be removed now, the end of the run removes, or fails.
            shutil.rmtree(self.root, ignore_errors=True)
        return every

    def _restoring(self, plan: PartitionPlan, context: LogContext) -> LogRestore:
        directory = os.path.join(self.root, plan.partition.directory_name)
        return LogRestore(directory, self.build, context)

    def _prepare(
        self, found: RestoredPartition, plan: PartitionPlan, logs: Sequence[RestoredLog]
    ) -> _ReadyPartition | None:
        """Return a partition that can be published; None if it is left out."""
        salvage, dropped = self.settings.salvage, self.settings.dropped
        context = replace(partition_context(plan, self.settings.config), limit=None)
        restoring = self._restoring(plan, context)
        logs = with_repairs(plan, _up_to_limit(logs, self.build), restoring)
        repairs = dict.fromkeys(repair for each in logs for repair in each.repairs if repair.pieces)
        found.notes += [
            f"offsets {repair.first_offset} to {repair.end_offset - 1}: repaired from {replica}"
            for repair in repairs
            for replica in sorted({os.path.dirname(each.path) for each in repair.pieces})
        ]
        failed = next((each for each in logs if each.staged.report.status == FAILED), None)
        found.lost = [lost for each in logs for lost in each.lost]
        if failed is not None and salvage is not Salvage.NONE:
            _leave_failed_out(found, failed.staged.report, logs)
            return None
        found.lost += gap_losses(plan, logs, context.replica_repair.decompressor)
        cleaned = sum(each.facts.offsets.cleaned_count for each in logs)
        if cleaned:
            found.notes.append(
                f"offsets are missing in {cleaned} places, as compaction leaves them"
            )
        if salvage is Salvage.NONE and found.lost:
            reason = f"{found.lost[0].code}: {found.lost[0].reason}; --salvage none leaves it out"
            found.leave_out(DAMAGED, reason)
            return None
        start = _start(found, plan, _first_of(plan, logs[0].source))
        _note_facts(found, logs, start)
        end = log_end(logs[-1])
        last = logs[-1]
        is_whole = not (found.lost or last.is_limited)
        is_local = not store_of(last.source.log_path).needs_requests
        if is_whole and is_local and has_entries_beyond(last.source, end, INT64_MAX):
            found.notes.append(
                f"the log ends at {end}, and its index files know later offsets: they are lost, or "
                "the log was copied before its index files"
            )
        if start.log_start_offset > end and logs[-1].is_limited:
            found.notes.append(
                f"records before offset {start.log_start_offset} were deleted after its end here, "
                f"{end}: it has none"
            )
            start = replace(start, checkpointed_log_start=end)
        if start.log_start_offset > end:
            found.leave_out(
                LOG_START_ABOVE_END,
                f"the log ends at {end}, before its start at {start.log_start_offset}: a broker "
                "would delete all of it; where that start is wrong, give --log-start",
            )
            return None
        if plan.edits is not None:
            logs = _edited(found, logs, plan.edits, restoring)
        if dropped is not None and not is_internal(plan.partition):
            most = self.settings.max_decompressed_bytes
            try:
                logs = _without_records(found, logs, start, restoring, dropped, most)
            except KafkaIndexError as error:
                if is_retriable(error):
                    raise
                reason = f"not every record with a key to drop can be found: {error}"
                found.leave_out(KEYS_NOT_DROPPED, reason)
                return None
        return _ReadyPartition(found, logs, restoring.directory, start)


def _intact_logs(found: Iterable[FoundLog]) -> list[RestoredLog]:
    """Return the logs of a partition, or raise the error that one of them ended with."""
    logs = []
    for each in found:
        if isinstance(each, KafkaIndexError):
            raise each
        logs.append(each)
    return logs


@contextmanager
def _leaving_out(found: Sequence[RestoredPartition]) -> Iterator[None]:
    """Leave partitions out for an error; a partition that is left out already keeps its reason."""
    try:
        yield
    except KafkaIndexError as error:
        for each in found:
            _leave_out(each, error)


def _leave_out(found: RestoredPartition, error: KafkaIndexError) -> None:
    if not found.is_left_out:
        found.leave_out(ERROR, str(error), retriable=is_retriable(error))


def _edited(
    found: RestoredPartition,
    logs: Sequence[RestoredLog],
    edits: TransactionEdits,
    restoring: LogRestore,
) -> Sequence[RestoredLog]:
    """Return the logs with the edits of transactions."""
    found.is_edited = True
    found.notes += edits.notes
    base_offsets = [each.source.base_offset for each in logs]
    for each in edits.lost:
        source = logs[max(bisect_right(base_offsets, each.first_offset or 0) - 1, 0)].source
        base_offset, path = source.base_offset, source.log_path
        found.lost.append(replace(each, segment_base_offset=base_offset, path=path))
    ends = [*base_offsets[1:], INT64_MAX]
    parts = map(edits.of_segment, base_offsets, ends)
    return [
        restoring.drop_records(log, part) if part else log
        for log, part in zip(logs, parts, strict=True)
    ]


def _without_records(
    found: RestoredPartition,
    logs: Sequence[RestoredLog],
    start: PartitionStart,
    restoring: LogRestore,
    dropped: Selection,
    max_decompressed_bytes: int,
) -> Sequence[RestoredLog]:
    """Return the logs without some records; a log that loses none stays as it is.

    Raises `CorruptLogError` if a record cannot be read.
    """
    try:
        match = match_partition(
            [each.now() for each in logs],
            dropped,
            PartitionState(start.state.entries),
            max_decompressed_bytes=max_decompressed_bytes,
            checks_revival=False,
        )
        rewriter = SegmentRewriter(match, dropped, max_decompressed_bytes)
        found.dropped, found.dropped_by_key = match.dropped, dict(match.by_key)
        return [
            restoring.drop_records(each, rewriter)
            if each.source.base_offset in match.losing
            else each
            for each in logs
        ]
    except KafkaIndexError as error:
        # The copy in the output is gone when somebody reads this.
        sources = {each.path: each.source.log_path for each in logs}
        error.path = sources.get(error.path or "", error.path)
        raise


def _publish(group: Sequence[_ReadyPartition], settings: BuildSettings) -> None:
    """Write the files of partitions beside their logs, and complete their rows."""
    rows: dict[TopicPartition, list[SegmentReport]] = {each.found.partition: [] for each in group}
    for row in publish_partitions(
        [[log.staged for log in each.logs] for each in group],
        settings,
        attempt_id=ATTEMPT_ID,
        starts={each.found.partition: each.start for each in group},
    ):
        rows[TopicPartition(row.topic, row.partition)].append(row)
    for each in group:
        for log in each.logs:
            log.staged.remove_scratch(settings)
        with _leaving_out([each.found]):
            _complete(each, rows[each.found.partition])


def _complete(ready: _ReadyPartition, rows: Sequence[SegmentReport]) -> None:
    found, logs, start = ready.found, ready.logs, ready.start
    broken = next((row for row in rows if row.status == FAILED), None)
    if broken is not None:
        _leave_failed_out(found, broken, logs)
        return
    found.notes += [f"{row.segment_base_offset}: {row.note}" for row in rows if row.note]
    found.is_limited = logs[-1].is_limited
    entries = start.state.entries
    is_open = entries["current_txn_first_offset"] >= 0
    found.open_producers = entries["producer_id"][is_open].tolist()
    found.log_start_offset = max(start.log_start_offset, logs[0].source.base_offset)
    found.base_offset = logs[0].source.base_offset
    found.log_end_offset = log_end(logs[-1])
    write_partition_metadata(ready.directory, found.topic_id)
    remove_build_files(ready.directory)
    found.segments = len(logs)
    found.size_bytes = sum(os.path.getsize(each.path) for each in logs)


def _up_to_limit(logs: Sequence[RestoredLog], settings: BuildSettings) -> Sequence[RestoredLog]:
    """Return the logs up to the end of the partition; later ones are removed."""
    last = next((at for at, each in enumerate(logs) if each.is_limited), None)
    if last is None:
        return logs
    for each in logs[last + 1 :]:
        each.staged.remove_scratch(settings)
        with publishing(each.path, "remove a log after the end"):
            os.unlink(each.path)
    return logs[: last + 1]


def _first_of(plan: PartitionPlan, first: SegmentFile) -> SegmentFile:
    """Return the first log with the directory of the base, from which its state files are read."""
    if first.partition_directory == plan.base.directory or plan.base.tiered is not None:
        return first
    name = segment_file_name(first.base_offset, LOG_SUFFIX)
    return replace(first, log_path=os.path.join(plan.base.directory, name))


def _leave_failed_out(
    found: RestoredPartition, row: SegmentReport, logs: Sequence[RestoredLog]
) -> None:
    paths = {each.source.base_offset: each.source.log_path for each in logs}
    reason = f"{paths[row.segment_base_offset]}: {row.reason}"
    found.leave_out(row.reason_code or ERROR, reason, retriable=row.retriable)


def _start(found: RestoredPartition, plan: PartitionPlan, first: SegmentFile) -> PartitionStart:
    """Return the state before the first segment; malformed files count as missing."""
    try:
        return _read_start(plan, first, with_epochs=True)
    except KafkaIndexError as error:
        if is_retriable(error):
            raise
        found.notes.append(f"the leader epochs are those of the batches alone: {error}")
        if error.path is not None and not isinstance(error, LinkedOutError):
            unread = Skipped(error.path, BAD_CHECKPOINT, detail=error.described)
            found.unread.append(unread.text)
        return _read_start(plan, first, with_epochs=False)


def _read_start(plan: PartitionPlan, first: SegmentFile, *, with_epochs: bool) -> PartitionStart:
    tiered = plan.base.tiered
    start = PartitionStart.read(
        first,
        None,
        with_epochs=with_epochs,
        tiered=tiered,
        log_start_offset=plan.log_start_offset,
    )
    return start if tiered is None else replace(start, checkpointed_log_start=plan.log_start_offset)


def _note_facts(
    found: RestoredPartition, logs: Sequence[RestoredLog], start: PartitionStart
) -> None:
    epochs = [each.epoch for each in start.epochs]
    found.last_epoch = max([each.facts.last_epoch for each in logs] + epochs)
    producers = start.state.entries["producer_id"].tolist()
    found.max_producer_id = max([each.facts.max_producer_id for each in logs] + producers)
