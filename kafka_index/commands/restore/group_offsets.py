"""Committed offsets after the ends of restored logs, and committed offsets of renamed topics.

A consumer whose committed offset is after the log end is out of range: ``auto.offset.reset``
determines its start offset, possibly the log start. If the committed offset is reset to the log
end, the consumer starts at the log end. To reset an offset, a commit is appended to the group's
partition of ``__consumer_offsets``, like a commit of a group coordinator. No record is removed or
overwritten.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kafka_index.commands.restore.output import Journal
from kafka_index.commands.restore.request import RestoreRequest
from kafka_index.commands.restore.result import CLAMPED, NOT_RENAMED, GroupOffset, RestoredPartition
from kafka_index.core.cluster.metadata.decoding import GROUP_CODEC
from kafka_index.core.cluster.metadata.directory import read_metadata
from kafka_index.core.cluster.metadata.topic_states import CommittedOffset
from kafka_index.core.format.config import LogConfig
from kafka_index.core.format.message_schemas import Value
from kafka_index.core.format.names import CONSUMER_OFFSETS_TOPIC, LOG_SUFFIX, TopicPartition
from kafka_index.core.format.strings import ZERO_UUID
from kafka_index.core.log.append.partition_log_writer import PartitionLogWriter
from kafka_index.core.log.append.settings import LogSettings, log_settings_of
from kafka_index.core.log.state.snapshots import list_snapshots, snapshot_path
from kafka_index.core.logdir.metadata_files import read_epochs
from kafka_index.core.output.output import (
    Output,
    StagedPartition,
    make_staged_directory,
    publish_directory,
    withdraw_directory,
)
from kafka_index.core.records.decompression import DecompressionBudget, shared_budget
from kafka_index.core.records.record_batch import BatchFields, Record, write_record_batch

_MAX_BATCH_RECORDS = 100
# GroupCoordinatorRecordHelpers.offsetCommitValueVersion
_VERSION_WITH_EXPIRATION, _VERSION_WITHOUT_EXPIRATION = 1, 4
_NO_EPOCH = -1
_OPEN_TRANSACTION_REASON = "the transaction of the commit is open at the end of __consumer_offsets"
_DAMAGED_REASON = "records of the group in __consumer_offsets may be lost or unreadable"


@dataclass(frozen=True, slots=True)
class _GroupOffsets:
    """A partition of ``__consumer_offsets`` in an output, and its committed offsets."""

    restored: RestoredPartition
    path: str
    committed: Sequence[CommittedOffset]
    pending: Sequence[CommittedOffset]
    is_damaged: bool

    def not_reset_rows(self, ends: Mapping[TopicPartition, int], reason: str) -> list[GroupOffset]:
        """Return the report rows of committed offsets that are not reset, with the reason."""
        return [
            *(_not_reset_row(committed, ends, self.path, reason) for committed in self.committed),
            *(
                _not_reset_row(committed, ends, self.path, _OPEN_TRANSACTION_REASON)
                for committed in self.pending
            ),
        ]


def restore_group_offsets(
    request: RestoreRequest,
    partitions: Sequence[RestoredPartition],
    empty: Sequence[TopicPartition],
    locked: Output,
) -> tuple[list[GroupOffset], list[GroupOffset]]:
    """Return the committed offsets after log ends, and the committed offsets of renamed topics.

    On request, committed offsets after a log end are reset to the log end. `empty` are partitions
    that start empty in the new cluster.
    """
    not_reset: list[GroupOffset] = []
    not_renamed: list[GroupOffset] = []
    has_new_ends = bool(empty) or any(
        restored.is_limited or restored.lost for restored in partitions
    )
    if has_new_ends or request.clamp_groups or request.renames:
        ends = {
            restored.partition: restored.log_end_offset
            for restored in partitions
            if not restored.is_skipped
        }
        ends = {**dict.fromkeys(empty, 0), **ends}
        budget = shared_budget(request.max_decompressed_bytes)
        groups = _read_offsets(locked.root, partitions, budget)
        not_renamed = _list_renamed_offsets(groups, request.renames, ends)
        groups = _select_offsets_after_end(groups, ends)
        if request.clamp_groups:
            not_reset = _reset_offsets(locked, ends, groups, request.log_config)
        elif has_new_ends:
            not_reset = [
                row
                for partition_offsets in groups
                for row in partition_offsets.not_reset_rows(ends, "")
            ]
    return [*(row for restored in partitions for row in restored.clamped), *not_reset], not_renamed


def _read_offsets(
    output: str, partitions: Sequence[RestoredPartition], budget: DecompressionBudget
) -> list[_GroupOffsets]:
    group_offsets = []
    for restored in partitions:
        if restored.partition.topic != CONSUMER_OFFSETS_TOPIC or restored.is_skipped:
            continue
        directory = os.path.join(output, restored.partition.directory_name)
        metadata = read_metadata([directory], budget=budget, topics=(CONSUMER_OFFSETS_TOPIC,))
        is_damaged = bool(restored.lost or metadata.faults.total)
        group_offsets.append(
            _GroupOffsets(
                restored, directory, metadata.offsets or (), metadata.open_offsets, is_damaged
            )
        )
    return group_offsets


def _select_offsets_after_end(
    groups: Iterable[_GroupOffsets], ends: Mapping[TopicPartition, int]
) -> list[_GroupOffsets]:
    """Select the committed offsets that are after the ends of restored logs."""
    offsets_after_end = (
        replace(
            partition_offsets,
            committed=[
                committed
                for committed in partition_offsets.committed
                if _is_after_end(committed, ends)
            ],
            pending=[
                committed
                for committed in partition_offsets.pending
                if _is_after_end(committed, ends)
            ],
        )
        for partition_offsets in groups
    )
    return [
        partition_offsets
        for partition_offsets in offsets_after_end
        if partition_offsets.committed or partition_offsets.pending
    ]


def _list_renamed_offsets(
    groups: Iterable[_GroupOffsets],
    renames: Mapping[str, str],
    ends: Mapping[TopicPartition, int],
) -> list[GroupOffset]:
    """Return the committed offsets that remain under the old names of renamed topics."""
    rows = []
    for partition_offsets in groups:
        for committed in (*partition_offsets.committed, *partition_offsets.pending):
            if committed.topic in renames:
                new_partition = TopicPartition(renames[committed.topic], committed.partition)
                rows.append(
                    GroupOffset(
                        committed.topic,
                        committed.partition,
                        committed.group,
                        committed.offset,
                        ends.get(new_partition),
                        partition_offsets.path,
                        NOT_RENAMED,
                        f"the topic is restored as {new_partition.topic}",
                    )
                )
    return rows


def _reset_offsets(
    locked: Output,
    ends: Mapping[TopicPartition, int],
    groups: Sequence[_GroupOffsets],
    config: LogConfig,
) -> list[GroupOffset]:
    """Reset committed offsets to log ends; return those that are not reset, with the reason."""
    settings = replace(log_settings_of(config, CONSUMER_OFFSETS_TOPIC), cleanup_policy="compact")
    not_reset: list[GroupOffset] = []
    for partition_offsets in groups:
        if partition_offsets.is_damaged:
            not_reset += partition_offsets.not_reset_rows(ends, _DAMAGED_REASON)
            continue
        if partition_offsets.committed:
            _reset_partition_offsets(partition_offsets, ends, locked, settings)
        not_reset += replace(partition_offsets, committed=()).not_reset_rows(ends, "")
    locked.remove_staging()
    return not_reset


def _reset_partition_offsets(
    partition_offsets: _GroupOffsets,
    ends: Mapping[TopicPartition, int],
    locked: Output,
    settings: LogSettings,
) -> None:
    """For each committed offset after a log end, commit the log end.

    The partition is changed in the staging directory. Before that, the journal marks the partition
    as unfinished: if this run is killed, the next run restores the partition again.
    """
    restored, directory, output = partition_offsets.restored, partition_offsets.path, locked.root
    journal = Journal(output)
    journal.reopen(restored)
    # PartitionLogWriter opens the lock file of its directory. In the output, closing this file
    # would release the lock of the run.
    work_directory = os.path.join(locked.make_staging(), "clamped")
    make_staged_directory(work_directory)
    staged = withdraw_directory(directory, work_directory)
    _append_commits(
        staged,
        restored,
        [_commit_record(committed, ends, output) for committed in partition_offsets.committed],
        settings,
    )
    publish_directory(output, StagedPartition(restored.partition, staged))
    logs = [entry for entry in os.scandir(directory) if entry.name.endswith(LOG_SUFFIX)]
    restored.segments, restored.size_bytes = len(logs), sum(entry.stat().st_size for entry in logs)
    restored.clamped += [
        replace(_not_reset_row(committed, ends, directory, ""), status=CLAMPED)
        for committed in partition_offsets.committed
    ]
    journal.add([restored])


def _append_commits(
    directory: str, restored: RestoredPartition, records: Sequence[Record], settings: LogSettings
) -> None:
    old_end = restored.log_end_offset
    with PartitionLogWriter(
        directory,
        settings,
        log_start_offset=restored.log_start_offset,
        # At time 0, no producer expires.
        clock=lambda: 0,
    ) as log:
        epochs = log.leader_epochs
        epoch = epochs[-1].epoch if epochs else 0
        fields = BatchFields(leader_epoch=epoch)
        for start in range(0, len(records), _MAX_BATCH_RECORDS):
            chunk = records[start : start + _MAX_BATCH_RECORDS]
            log.append_as_follower(write_record_batch(chunk, log.log_end_offset, fields), epoch)
        restored.log_end_offset = log.log_end_offset
        snapshot_offsets = {segment.base_offset for segment in log.segments} | {log.log_end_offset}
    restored.last_epoch = max(restored.last_epoch, epoch)
    if old_end in list_snapshots(directory) and old_end not in snapshot_offsets:
        os.unlink(snapshot_path(directory, old_end))


def _commit_record(
    committed: CommittedOffset, ends: Mapping[TopicPartition, int], output: str
) -> Record:
    """Return the record with which a group coordinator commits the log end."""
    partition = TopicPartition(committed.topic, committed.partition)
    log_end_offset = ends[partition]
    epoch = (
        _NO_EPOCH
        if committed.leader_epoch is None
        else _last_record_epoch(output, partition, log_end_offset)
    )
    key: dict[str, Value] = {
        "group": committed.group,
        "topic": committed.topic,
        "partition": committed.partition,
    }
    value: dict[str, Value] = {
        "offset": log_end_offset,
        "leaderEpoch": epoch,
        "metadata": committed.metadata,
        "commitTimestamp": committed.commit_timestamp_ms,
        "topicId": committed.topic_id or ZERO_UUID,
    }
    version = _VERSION_WITHOUT_EXPIRATION
    if committed.expire_timestamp_ms is not None:
        version = _VERSION_WITH_EXPIRATION
        value["expireTimestamp"] = committed.expire_timestamp_ms
    return Record(
        max(committed.commit_timestamp_ms, 0),
        *GROUP_CODEC.encode("OffsetCommit", version, key, value),
    )


def _last_record_epoch(output: str, partition: TopicPartition, end_offset: int) -> int:
    """Return the leader epoch of the last record before an offset; -1 if there is none."""
    epochs = read_epochs(os.path.join(output, partition.directory_name)).entries
    earlier_epochs = [entry.epoch for entry in epochs if entry.start_offset < end_offset]
    return earlier_epochs[-1] if earlier_epochs else _NO_EPOCH


def _is_after_end(committed: CommittedOffset, ends: Mapping[TopicPartition, int]) -> bool:
    return committed.offset > ends.get(
        TopicPartition(committed.topic, committed.partition), committed.offset
    )


def _not_reset_row(
    committed: CommittedOffset, ends: Mapping[TopicPartition, int], path: str, reason: str
) -> GroupOffset:
    log_end_offset = ends[TopicPartition(committed.topic, committed.partition)]
    return GroupOffset(
        committed.topic,
        committed.partition,
        committed.group,
        committed.offset,
        log_end_offset,
        path,
        reason=reason,
    )
