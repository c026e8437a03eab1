"""Committed offsets after the ends of restored logs, and committed offsets of renamed topics.

A consumer whose committed offset is after the log end is out of range. It starts where
``auto.offset.reset`` selects, possibly at the log start. If its offset is clamped, it starts at the
log end. A clamped offset is appended to the group's partition of ``__consumer_offsets``, as a group
coordinator commits it. No record is removed or overwritten.
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

_RECORDS_OF_A_BATCH = 100
# GroupCoordinatorRecordHelpers.offsetCommitValueVersion
_WITH_EXPIRATION, _WITHOUT_EXPIRATION = 1, 4
_NO_EPOCH = -1
_IN_TRANSACTION = "it is in a transaction that is open at the end of __consumer_offsets"
_DAMAGED = "records of its partition of __consumer_offsets are lost or unreadable"


@dataclass(frozen=True, slots=True)
class _GroupOffsets:
    """A partition of ``__consumer_offsets`` in an output, and its committed offsets."""

    restored: RestoredPartition
    path: str
    committed: Sequence[CommittedOffset]
    pending: Sequence[CommittedOffset]
    is_damaged: bool

    def beyond_end(self, ends: Mapping[TopicPartition, int], reason: str) -> list[GroupOffset]:
        """Return the rows of offsets that are not clamped, with the reason."""
        return [
            *(_beyond(one, ends, self.path, reason) for one in self.committed),
            *(_beyond(one, ends, self.path, _IN_TRANSACTION) for one in self.pending),
        ]


def restore_group_offsets(
    request: RestoreRequest,
    partitions: Sequence[RestoredPartition],
    empty: Sequence[TopicPartition],
    locked: Output,
) -> tuple[list[GroupOffset], list[GroupOffset]]:
    """Return the committed offsets after log ends, and the committed offsets of renamed topics.

    On request, the former are reset to the log end. `empty` are partitions that begin empty in the
    new cluster.
    """
    not_clamped: list[GroupOffset] = []
    not_renamed: list[GroupOffset] = []
    has_new_ends = bool(empty) or any(each.is_limited or each.lost for each in partitions)
    if has_new_ends or request.clamp_groups or request.renames:
        ends = {each.partition: each.log_end_offset for each in partitions if not each.is_left_out}
        ends = {**dict.fromkeys(empty, 0), **ends}
        budget = shared_budget(request.max_decompressed_bytes)
        groups = _read_offsets(locked.root, partitions, budget)
        not_renamed = _offsets_of_renamed(groups, request.renames, ends)
        groups = _offsets_beyond(groups, ends)
        if request.clamp_groups:
            not_clamped = _clamp_offsets(locked, ends, groups, request.log_config)
        elif has_new_ends:
            not_clamped = [one for each in groups for one in each.beyond_end(ends, "")]
    return [*(one for each in partitions for one in each.clamped), *not_clamped], not_renamed


def _read_offsets(
    output: str, partitions: Sequence[RestoredPartition], budget: DecompressionBudget
) -> list[_GroupOffsets]:
    found = []
    for each in partitions:
        if each.partition.topic != CONSUMER_OFFSETS_TOPIC or each.is_left_out:
            continue
        directory = os.path.join(output, each.partition.directory_name)
        read = read_metadata([directory], budget=budget, topics=(CONSUMER_OFFSETS_TOPIC,))
        is_damaged = bool(each.lost or read.faults.total)
        found.append(
            _GroupOffsets(each, directory, read.offsets or (), read.open_offsets, is_damaged)
        )
    return found


def _offsets_beyond(
    groups: Iterable[_GroupOffsets], ends: Mapping[TopicPartition, int]
) -> list[_GroupOffsets]:
    """Return the offsets after the ends of restored logs."""
    found = (
        replace(
            each,
            committed=[one for one in each.committed if _is_beyond(one, ends)],
            pending=[one for one in each.pending if _is_beyond(one, ends)],
        )
        for each in groups
    )
    return [each for each in found if each.committed or each.pending]


def _offsets_of_renamed(
    groups: Iterable[_GroupOffsets],
    renames: Mapping[str, str],
    ends: Mapping[TopicPartition, int],
) -> list[GroupOffset]:
    """Return the offsets that remain under the old names of topics."""
    found = []
    for each in groups:
        for one in (*each.committed, *each.pending):
            if one.topic in renames:
                renamed = TopicPartition(renames[one.topic], one.partition)
                found.append(
                    GroupOffset(
                        one.topic,
                        one.partition,
                        one.group,
                        one.offset,
                        ends.get(renamed),
                        each.path,
                        NOT_RENAMED,
                        f"the topic is restored as {renamed.topic}",
                    )
                )
    return found


def _clamp_offsets(
    locked: Output,
    ends: Mapping[TopicPartition, int],
    groups: Sequence[_GroupOffsets],
    config: LogConfig,
) -> list[GroupOffset]:
    """Reset offsets to log ends; return the offsets that are not reset, with the reason."""
    settings = replace(log_settings_of(config, CONSUMER_OFFSETS_TOPIC), cleanup_policy="compact")
    left: list[GroupOffset] = []
    for found in groups:
        if found.is_damaged:
            left += found.beyond_end(ends, _DAMAGED)
            continue
        if found.committed:
            _clamp(found, ends, locked, settings)
        left += replace(found, committed=()).beyond_end(ends, "")
    locked.remove_staging()
    return left


def _clamp(
    found: _GroupOffsets, ends: Mapping[TopicPartition, int], locked: Output, settings: LogSettings
) -> None:
    """Commit the log ends for groups that committed offsets after them.

    The partition is changed in the staging directory. Its line in the journal is reopened before,
    so that the run after a killed run restores it again.
    """
    restored, directory, output = found.restored, found.path, locked.root
    journal = Journal(output)
    journal.reopen(restored)
    # The output is locked already; opening its lock file again would release the lock.
    clamped = os.path.join(locked.make_staging(), "clamped")
    make_staged_directory(clamped)
    staged = withdraw_directory(directory, clamped)
    _append(staged, restored, [_record(one, ends, output) for one in found.committed], settings)
    publish_directory(output, StagedPartition(restored.partition, staged))
    logs = [each for each in os.scandir(directory) if each.name.endswith(LOG_SUFFIX)]
    restored.segments, restored.size_bytes = len(logs), sum(each.stat().st_size for each in logs)
    restored.clamped += [
        replace(_beyond(one, ends, directory, ""), status=CLAMPED) for one in found.committed
    ]
    journal.add([restored])


def _append(
    directory: str, restored: RestoredPartition, records: Sequence[Record], settings: LogSettings
) -> None:
    old_end = restored.log_end_offset
    with PartitionLogWriter(
        directory,
        settings,
        log_start_offset=restored.log_start_offset,
        # With this clock no producer expires.
        clock=lambda: 0,
    ) as log:
        epochs = log.leader_epochs
        epoch = epochs[-1].epoch if epochs else 0
        fields = BatchFields(leader_epoch=epoch)
        for first in range(0, len(records), _RECORDS_OF_A_BATCH):
            some = records[first : first + _RECORDS_OF_A_BATCH]
            log.append_as_follower(write_record_batch(some, log.log_end_offset, fields), epoch)
        restored.log_end_offset = log.log_end_offset
        kept = {segment.base_offset for segment in log.segments} | {log.log_end_offset}
    restored.last_epoch = max(restored.last_epoch, epoch)
    if old_end in list_snapshots(directory) and old_end not in kept:
        os.unlink(snapshot_path(directory, old_end))


def _record(one: CommittedOffset, ends: Mapping[TopicPartition, int], output: str) -> Record:
    """Return the record of a commit at the end of the log, as a coordinator writes it."""
    partition = TopicPartition(one.topic, one.partition)
    end = ends[partition]
    epoch = _NO_EPOCH if one.leader_epoch is None else _epoch_before(output, partition, end)
    key: dict[str, Value] = {"group": one.group, "topic": one.topic, "partition": one.partition}
    value: dict[str, Value] = {
        "offset": end,
        "leaderEpoch": epoch,
        "metadata": one.metadata,
        "commitTimestamp": one.commit_timestamp_ms,
        "topicId": one.topic_id or ZERO_UUID,
    }
    version = _WITHOUT_EXPIRATION
    if one.expire_timestamp_ms is not None:
        version = _WITH_EXPIRATION
        value["expireTimestamp"] = one.expire_timestamp_ms
    return Record(
        max(one.commit_timestamp_ms, 0), *GROUP_CODEC.encode("OffsetCommit", version, key, value)
    )


def _epoch_before(output: str, partition: TopicPartition, end_offset: int) -> int:
    """Return the leader epoch of the last record of a restored log; -1 for none."""
    epochs = read_epochs(os.path.join(output, partition.directory_name)).entries
    before = [each.epoch for each in epochs if each.start_offset < end_offset]
    return before[-1] if before else _NO_EPOCH


def _is_beyond(one: CommittedOffset, ends: Mapping[TopicPartition, int]) -> bool:
    return one.offset > ends.get(TopicPartition(one.topic, one.partition), one.offset)


def _beyond(
    one: CommittedOffset, ends: Mapping[TopicPartition, int], path: str, reason: str
) -> GroupOffset:
    end = ends[TopicPartition(one.topic, one.partition)]
    return GroupOffset(one.topic, one.partition, one.group, one.offset, end, path, reason=reason)
