"""Partitions whose logs are in place: what depends on several logs, and all of their files.

The index files, snapshots and leader epochs are those of a build over the logs as they lie in the
output. A partition counts as restored when all of its files are durable.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from kafka_index.build import BuildSettings, publish_partitions
from kafka_index.build.partition_start import PartitionStart
from kafka_index.build.report import FAILED, SegmentReport
from kafka_index.errors import KafkaIndexError, is_retriable
from kafka_index.layout.names import LOG_SUFFIX, TopicPartition, segment_file_name
from kafka_index.restore.gaps import cleaned_places, gap_losses, log_end, with_fills
from kafka_index.restore.log_restoring import RestoredLog
from kafka_index.restore.lost_ranges import Salvage
from kafka_index.restore.partition_files import (
    paths_of,
    remove_build_files,
    remove_directory,
    write_partition_metadata,
)
from kafka_index.restore.plan import PartitionPlan
from kafka_index.restore.restored_partition import (
    DAMAGED,
    ERROR,
    LOG_START_ABOVE_END,
    RestoredPartition,
)
from kafka_index.storage import SegmentFile, make_durable, publish_error


@dataclass(frozen=True, slots=True)
class PartitionLogs:
    """A partition whose logs are in place.

    Parameters
    ----------
    plan : PartitionPlan
        The partition.
    logs : sequence of RestoredLog
        All of its logs, by base offset.
    directory : str
        Its directory in the output.
    """

    plan: PartitionPlan
    logs: Sequence[RestoredLog]
    directory: str


@dataclass(frozen=True, slots=True)
class _Sound:
    """A partition whose files can be published."""

    found: RestoredPartition
    plan: PartitionPlan
    logs: Sequence[RestoredLog]
    directory: str
    start: PartitionStart


def finish_partitions(
    group: Sequence[PartitionLogs],
    salvage: Salvage,
    settings: BuildSettings,
    *,
    attempt_id: str,
) -> list[RestoredPartition]:
    """Write the files of partitions whose logs are in place, and make all of them durable at once.

    Parameters
    ----------
    group : sequence of PartitionLogs
        The partitions: many small ones share the cost of making files durable.
    salvage : Salvage
        With ``none``, a damaged partition is left out.
    settings : BuildSettings
        How index files are written.
    attempt_id : str
        Names scratch files.

    Returns
    -------
    list of RestoredPartition
        One for each, in order. Of one that is left out nothing is in the output.
    """
    every = []
    sound = []
    for each in group:
        plan = each.plan
        found = RestoredPartition(plan.partition, plan.base.directory, plan.topic_id)
        every.append(found)
        with _leaving_out([found]):
            ready = _prepare(found, each, salvage, settings, attempt_id)
            if ready is not None:
                sound.append(ready)
    with _leaving_out([each.found for each in sound]):
        _publish(sound, settings, attempt_id)
        _sync([each for each in sound if not each.found.is_left_out])
    for each, found in zip(group, every, strict=True):
        if found.is_left_out:
            remove_directory(each.directory)
    return every


@contextmanager
def _leaving_out(found: Sequence[RestoredPartition]) -> Iterator[None]:
    """Leave partitions out for an error; those that are left out already keep their reason."""
    try:
        yield
    except KafkaIndexError as error:
        for each in found:
            if not each.is_left_out:
                each.leave_out(ERROR, str(error), retriable=is_retriable(error))


def _prepare(
    found: RestoredPartition,
    partition: PartitionLogs,
    salvage: Salvage,
    settings: BuildSettings,
    attempt_id: str,
) -> _Sound | None:
    """Return a partition with all that is to be published of it; None where it is left out."""
    plan, directory = partition.plan, partition.directory
    logs = _up_to_limit(partition.logs, settings)
    logs = with_fills(plan, logs, directory, settings, attempt_id=attempt_id)
    fills = dict.fromkeys(fill for each in logs for fill in each.fills if fill.pieces)
    found.notes += [
        f"offsets {fill.first_offset} to {fill.end_offset - 1}: filled from {fill.replica}"
        for fill in fills
    ]
    failed = next((each for each in logs if each.staged.report.status == FAILED), None)
    found.lost = [lost for each in logs for lost in each.lost]
    if failed is not None and salvage is not Salvage.NONE:
        found.leave_out(*_why_failed(failed.staged.report))
        found.retriable = failed.staged.report.retriable
        return None
    found.lost += gap_losses(plan, logs, settings)
    cleaned = cleaned_places(logs)
    if cleaned:
        found.notes.append(f"offsets are missing in {cleaned} places, as compaction leaves them")
    if salvage is Salvage.NONE and found.lost:
        reason = f"{found.lost[0].code}: {found.lost[0].reason}; --salvage none leaves it out"
        found.leave_out(DAMAGED, reason)
        return None
    start = _start(found, plan, _first_of(plan, logs[0].source))
    _note_facts(found, logs, start)
    end = log_end(logs[-1])
    if start.log_start_offset > end:
        found.leave_out(
            LOG_START_ABOVE_END,
            f"the log ends at {end}, before its start at {start.log_start_offset}: a broker would "
            "delete all of it; where that start is wrong, give --log-start",
        )
        return None
    return _Sound(found, plan, logs, directory, start)


def _publish(group: Sequence[_Sound], settings: BuildSettings, attempt_id: str) -> None:
    """Publish the files of partitions, and complete their rows."""
    rows: dict[TopicPartition, list[SegmentReport]] = {each.plan.partition: [] for each in group}
    for row in publish_partitions(
        [[log.staged for log in each.logs] for each in group],
        settings,
        attempt_id=attempt_id,
        starts={each.plan.partition: each.start for each in group},
    ):
        rows[TopicPartition(row.topic, row.partition)].append(row)
    for each in group:
        for log in each.logs:
            log.staged.remove_scratch(settings)
        with _leaving_out([each.found]):
            _complete(each, rows[each.plan.partition])


def _complete(sound: _Sound, rows: Sequence[SegmentReport]) -> None:
    found, plan, logs, start = sound.found, sound.plan, sound.logs, sound.start
    broken = next((row for row in rows if row.status == FAILED), None)
    if broken is not None:
        found.leave_out(*_why_failed(broken))
        found.retriable = broken.retriable
        return
    found.notes += [f"{row.segment_base_offset}: {row.note}" for row in rows if row.note]
    found.is_limited = logs[-1].is_limited
    entries = start.state.entries
    is_open = entries["current_txn_first_offset"] >= 0
    found.open_producers = entries["producer_id"][is_open].tolist()
    found.log_start_offset = max(start.log_start_offset, logs[0].source.base_offset)
    found.base_offset = logs[0].source.base_offset
    found.log_end_offset = log_end(logs[-1])
    write_partition_metadata(sound.directory, plan.topic_id)
    remove_build_files(sound.directory)
    found.segments = len(logs)
    found.size_bytes = sum(os.path.getsize(each.staged.segment.log_path) for each in logs)


def _up_to_limit(logs: Sequence[RestoredLog], settings: BuildSettings) -> Sequence[RestoredLog]:
    """Return the logs up to the one that the partition ends in; later ones are removed."""
    last = next((at for at, each in enumerate(logs) if each.is_limited), None)
    if last is None:
        return logs
    for each in logs[last + 1 :]:
        each.staged.remove_scratch(settings)
        path = each.staged.segment.log_path
        try:
            os.unlink(path)
        except OSError as error:
            raise publish_error(error, path, "remove a log after the end") from error
    return logs[: last + 1]


def _first_of(plan: PartitionPlan, first: SegmentFile) -> SegmentFile:
    """Return the first log as if it lay beside the files of the base, even a filled one."""
    if first.partition_directory == plan.base.directory or plan.base.tiered is not None:
        return first
    name = segment_file_name(first.base_offset, LOG_SUFFIX)
    return replace(first, log_path=os.path.join(plan.base.directory, name))


def _why_failed(row: SegmentReport) -> tuple[str, str]:
    return row.reason_code or ERROR, f"{row.log_path}: {row.reason}"


def _start(found: RestoredPartition, plan: PartitionPlan, first: SegmentFile) -> PartitionStart:
    """Return the state before the first segment; what is malformed of it counts as absent."""
    try:
        return _read_start(plan, first, with_epochs=True)
    except KafkaIndexError as error:
        if is_retriable(error):
            raise
        found.notes.append(f"the leader epochs are those of the batches alone: {error}")
        return _read_start(plan, first, with_epochs=False)


def _read_start(plan: PartitionPlan, first: SegmentFile, *, with_epochs: bool) -> PartitionStart:
    tiered = plan.base.tiered
    start = PartitionStart.read(
        first,
        None,
        with_epochs=with_epochs,
        tiered=tiered,
        log_start_offset=plan.log_start_offset or 0,
    )
    return start if tiered is None else replace(start, log_start_offset=plan.log_start_offset or 0)


def _note_facts(
    found: RestoredPartition, logs: Sequence[RestoredLog], start: PartitionStart
) -> None:
    epochs = [each.epoch for each in start.epochs]
    found.last_epoch = max([each.facts.last_epoch for each in logs] + epochs)
    producers = start.state.entries["producer_id"].tolist()
    found.max_producer_id = max([each.facts.max_producer_id for each in logs] + producers)


def _sync(group: Sequence[_Sound]) -> None:
    """Make the files of partitions durable, all at once; one whose files are not is left out."""
    paths = {each.directory: paths_of(each.directory) for each in group}
    failures = make_durable(path for found in paths.values() for path in found)
    for each in group:
        with _leaving_out([each.found]):
            for path in paths[each.directory]:
                if path in failures:
                    raise publish_error(failures[path], path, "make a restored file durable")
