"""The partitions of one or more dumps, their replicas, and their metadata files.

Dumps may be truncated, edited or partial. If a metadata file is unreadable, it is treated as
missing, and a note describes it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kafka_index.core.cluster.listing import list_dumps, list_logs
from kafka_index.core.errors import InputError, KafkaIndexError, is_retriable
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.names import (
    CLUSTER_METADATA_TOPIC,
    TopicPartition,
    split_directory_name,
)
from kafka_index.core.fs.inputs import Skipped
from kafka_index.core.fs.registry import scan_input, store_of
from kafka_index.core.fs.uris import TieredOptions
from kafka_index.core.log.scan.valid_batches import INTACT_BATCH, IntactRows, read_intact_batches
from kafka_index.core.logdir.data_directory import DataDirectory, reject_running
from kafka_index.core.logdir.listing import Listing
from kafka_index.core.logdir.metadata_files import read_topic_id
from kafka_index.core.logdir.partition_files import TieredPartition
from kafka_index.core.logdir.segment_table import PartitionSegments, SegmentTable
from kafka_index.core.records.decompression import shared_budget

_WHILE_RUNNING = "restore from a snapshot or a copy, or after the broker has stopped"


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica of a partition in one of the dumps."""

    partition: TopicPartition
    directory: str
    segments: PartitionSegments
    root: DataDirectory
    topic_id: str | None
    tiered: TieredPartition | None = None

    def with_own_checkpoints(self) -> Replica:
        """Return a copy of the replica that has only the checkpoint entries of its partition."""
        return replace(self, root=self.root.restrict_to(self.partition))


@dataclass(slots=True)
class Dump:
    """One or more dumps; `notes` describe the unreadable files that are treated as missing."""

    replicas: dict[TopicPartition, list[Replica]] = field(default_factory=dict)
    directories: dict[str, DataDirectory] = field(default_factory=dict)
    without_logs: dict[TopicPartition, str] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    metadata_logs: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def all_replicas(self) -> list[Replica]:
        return [replica for replicas in self.replicas.values() for replica in replicas]

    @property
    def roots(self) -> list[DataDirectory]:
        return list({id(replica.root): replica.root for replica in self.all_replicas}.values())


def missing_file_note(error: KafkaIndexError) -> str:
    """Return the note about an unreadable file; raise `error` if it is retriable."""
    if is_retriable(error):
        raise error
    return f"ignored: {error}"


def read_dumps(
    inputs: Sequence[str], tiered: TieredOptions | None, *, topics: re.Pattern[str] | None
) -> Dump:
    """List the partitions of dumps, which may contain several replicas of a partition."""
    dump = Dump()
    for listing in list_dumps(inputs, tiered, topics=topics):
        _add_listing(dump, listing)
    if not dump.replicas:
        # List all inputs together, to raise an error with all searched directories.
        list_logs(inputs, tiered, topics=topics)
        raise InputError(
            "the input contains no partition except the metadata log", path=", ".join(inputs)
        )
    return dump


def _add_listing(dump: Dump, listing: Listing) -> None:
    for path in listing.data_directories:
        if path not in dump.directories:
            if store_of(path).hosts_brokers:
                reject_running(path, _WHILE_RUNNING)
            root = dump.directories[path] = DataDirectory(path, tolerated=True)
            dump.notes += map(missing_file_note, root.faults())
    dump.skipped += listing.skipped
    with_logs = set()
    for segments in SegmentTable.from_files(listing.segments).partitions:
        with_logs.add(segments.partition)
        if segments.partition.topic == CLUSTER_METADATA_TOPIC:
            dump.metadata_logs.append(segments.directory)
            continue
        data_directory = os.path.dirname(segments.directory)
        tiered = listing.tiered.get(segments.partition)
        replica = Replica(
            segments.partition,
            segments.directory,
            segments,
            dump.directories.get(data_directory) or DataDirectory(data_directory, tolerated=True),
            _topic_id(dump, segments.directory, tiered),
            tiered,
        )
        replicas = dump.replicas.setdefault(segments.partition, [])
        if all(listed_replica.directory != replica.directory for listed_replica in replicas):
            replicas.append(replica)
    for directory in listing.partition_directories:
        parsed_name = split_directory_name(os.path.basename(directory))
        if parsed_name is None or parsed_name[0] in with_logs:
            continue
        partition = parsed_name[0]
        if partition.topic != CLUSTER_METADATA_TOPIC:
            dump.without_logs.setdefault(partition, directory)
        elif any(entry.name.endswith(".checkpoint") for entry in scan_input(directory)):
            dump.metadata_logs.append(directory)


def _topic_id(dump: Dump, directory: str, tiered: TieredPartition | None) -> str | None:
    if tiered is not None and tiered.topic_id:
        return tiered.topic_id
    try:
        return read_topic_id(directory)
    except KafkaIndexError as error:
        dump.notes.append(missing_file_note(error))
        return None


def order_replicas(replicas: Sequence[Replica]) -> list[Replica]:
    """Order the replicas of a partition, best replica first.

    The best replica has the highest leader epoch in its last valid batch, then the highest end
    offset, then the largest size.
    """
    if len(replicas) == 1:
        return list(replicas)
    by_path = sorted(replicas, key=lambda replica: replica.directory)
    tails = list(map(_read_last_batches, by_path))
    ranks = {
        replica.directory: (*_log_end(tail, tails), int(replica.segments.sizes_bytes.sum()))
        for replica, tail in zip(by_path, tails, strict=True)
    }
    return sorted(by_path, key=lambda replica: ranks[replica.directory], reverse=True)


def _read_last_batches(replica: Replica) -> tuple[int, IntactRows]:
    """Return the base offset of the last segment with valid batches, and these batches."""
    end_offset = INT64_MAX
    decompressor = shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES)
    for segment in reversed(replica.segments.files()):
        try:
            batches = read_intact_batches(segment, end_offset, decompressor).by_offset
        except KafkaIndexError as error:
            if is_retriable(error):
                raise
            continue
        if len(batches):
            return segment.base_offset, batches
        end_offset = segment.base_offset
    return 0, np.empty(0, INTACT_BATCH)


def _log_end(
    tail: tuple[int, IntactRows], tails: Sequence[tuple[int, IntactRows]]
) -> tuple[int, int]:
    """Return the leader epoch of a replica's last batch, and the offset after it.

    No checksum covers the base offset of a batch, so it may be wrong. If a batch follows a gap, and
    another replica has the same batch without this gap, the base offset is wrong and the batch is
    ignored.
    """
    base_offset, rows = tail
    next_offsets = np.concatenate(([base_offset], rows["last_offset"] + 1))
    for row in range(len(rows) - 1, -1, -1):
        batch = rows[row]
        is_wrong = batch["first_offset"] > next_offsets[row] and any(
            bool(
                (
                    (other_rows["first_offset"] == next_offsets[row])
                    & (other_rows["checksum"] == batch["checksum"])
                    & (other_rows["leader_epoch"] == batch["leader_epoch"])
                ).any()
            )
            for _, other_rows in tails
        )
        if not is_wrong:
            return int(batch["leader_epoch"]), int(batch["last_offset"]) + 1
    return -1, -1
