"""One partition: its logs in place, everything that depends on several of them, and its files.

The index files, snapshots and leader epochs are those of a build over the logs as they lie in the
output. The partition counts as restored when all of its files are durable.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace

from kafka_index.build import BuildSettings, publish_partitions
from kafka_index.build.partition_start import PartitionStart
from kafka_index.build.report import FAILED, SegmentReport
from kafka_index.errors import KafkaIndexError, is_retriable
from kafka_index.layout.names import PARTITION_METADATA
from kafka_index.restore.gaps import below_committed, gap_losses, log_end, with_fills
from kafka_index.restore.log_restoring import RestoredLog
from kafka_index.restore.lost_ranges import Salvage
from kafka_index.restore.plan import PartitionPlan
from kafka_index.restore.restored_partition import (
    DAMAGED,
    ERROR,
    LOG_START_ABOVE_END,
    RestoredPartition,
)
from kafka_index.storage import SegmentFile, make_durable, publish_error


def finish_partition(
    plan: PartitionPlan,
    logs: Sequence[RestoredLog],
    directory: str,
    salvage: Salvage,
    settings: BuildSettings,
    *,
    attempt_id: str,
) -> RestoredPartition:
    """Write the files of a partition whose logs are in place, and make all of it durable.

    Parameters
    ----------
    plan : PartitionPlan
        The partition.
    logs : sequence of RestoredLog
        All of its logs, by base offset.
    directory : str
        Its directory in the output.
    salvage : Salvage
        With ``none``, a damaged partition is left out.
    settings : BuildSettings
        How index files are written.
    attempt_id : str
        Names scratch files.

    Returns
    -------
    RestoredPartition
        Where it is left out, nothing of it is in the output.
    """
    found = RestoredPartition(plan.partition, plan.base.directory, plan.topic_id)
    try:
        _finish(found, plan, logs, directory, salvage, settings, attempt_id)
    except KafkaIndexError as error:
        found.leave_out(ERROR, str(error), retriable=is_retriable(error))
    if found.is_left_out:
        remove_directory(directory)
    return found


def remove_directory(directory: str) -> None:
    """Remove a partition of the output that is not finished.

    Raises
    ------
    PublishError
        It cannot be removed.
    """
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        return
    except OSError as error:
        raise publish_error(error, directory, "remove an unfinished partition") from error


def _finish(
    found: RestoredPartition,
    plan: PartitionPlan,
    logs: Sequence[RestoredLog],
    directory: str,
    salvage: Salvage,
    settings: BuildSettings,
    attempt_id: str,
) -> None:
    logs = _up_to_limit(logs, settings)
    logs = with_fills(plan, logs, directory, settings, attempt_id=attempt_id)
    found.notes += [note for each in logs for note in each.filled]
    failed = next((each for each in logs if each.staged.report.status == FAILED), None)
    found.lost = [lost for each in logs for lost in each.lost]
    if failed is not None and salvage is not Salvage.NONE:
        found.leave_out(*_why_failed(failed.staged.report))
        found.retriable = failed.staged.report.retriable
        return
    found.lost += gap_losses(plan, logs)
    if salvage is Salvage.NONE and found.lost:
        reason = f"{found.lost[0].code}: {found.lost[0].reason}; --salvage none leaves it out"
        found.leave_out(DAMAGED, reason)
        return
    start = _start(found, plan, logs[0].source)
    _note_facts(found, logs, start)
    end = log_end(logs[-1])
    found.lost += below_committed(plan, logs[-1], end)
    if salvage is Salvage.NONE and found.lost:
        found.leave_out(DAMAGED, f"{found.lost[-1].reason}; --salvage none leaves it out")
        return
    if start.log_start_offset > end:
        found.leave_out(
            LOG_START_ABOVE_END,
            f"the log ends at {end}, before its start at {start.log_start_offset}: a broker would "
            "delete all of it; where that start is wrong, give --log-start",
        )
        return
    rows = list(
        publish_partitions(
            [[each.staged for each in logs]],
            settings,
            attempt_id=attempt_id,
            starts={plan.partition: start},
        )
    )
    for each in logs:
        each.staged.remove_scratch(settings)
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
    found.log_end_offset = end
    _write_partition_metadata(directory, plan.topic_id)
    make_partition_durable(directory)
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


def _write_partition_metadata(directory: str, topic_id: str) -> None:
    path = os.path.join(directory, PARTITION_METADATA)
    try:
        with open(path, "w", encoding="ascii", newline="") as file:
            file.write(f"version: 0\ntopic_id: {topic_id}")
    except OSError as error:
        raise publish_error(error, path, "write the partition metadata") from error


def make_partition_durable(directory: str) -> None:
    """Make all files of a partition durable, and remove those that only a build needs.

    Raises
    ------
    PublishError
        The disk refuses it.
    """
    try:
        names = sorted(os.listdir(directory))
        for name in names:
            if name.startswith("."):
                os.unlink(os.path.join(directory, name))
    except OSError as error:
        raise publish_error(error, directory, "remove a file of the build") from error
    paths = [os.path.join(directory, name) for name in names if not name.startswith(".")]
    failures = make_durable([*paths, directory, os.path.dirname(directory)])
    for path, failure in failures.items():
        raise publish_error(failure, path, "make a restored file durable")
