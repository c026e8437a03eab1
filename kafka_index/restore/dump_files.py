"""Dumps: their partitions, the copies of each, and what the files beside the logs say.

A dump may be cut, edited or partial: a file that cannot be read is a note, and counts as absent.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kafka_index.errors import InputError, KafkaIndexError, is_retriable
from kafka_index.layout.checkpoints import parse_offset_checkpoint
from kafka_index.layout.names import (
    CLEAN_SHUTDOWN,
    CLUSTER_METADATA_TOPIC,
    META_PROPERTIES,
    OFFSET_CHECKPOINTS,
    TopicPartition,
)
from kafka_index.scan import LogFileSource
from kafka_index.startup.directory_files import read_properties, read_topic_id, refuse_held
from kafka_index.storage import Listing, SegmentFile, Skipped, expand_directories
from kafka_index.storage.directories import scan_input
from kafka_index.storage.listing import list_any
from kafka_index.storage.log_directory import RootOffsets, read_checkpoint_text
from kafka_index.storage.segment_table import PartitionSegments, SegmentTable
from kafka_index.storage.tiered_partition import TieredPartition
from kafka_index.stores import is_remote
from kafka_index.tiered.listing import list_logs
from kafka_index.tiered.options import TieredOptions

_WHILE_RUNNING = "restore from a snapshot or a copy, or after the broker has stopped"


@dataclass(slots=True)
class DumpDirectory(RootOffsets):
    """A data directory of a dump, and what the files at its root say."""

    properties: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    is_clean: bool = False

    @classmethod
    def read(cls, path: str) -> DumpDirectory:
        """Read the files at the root of a data directory."""
        directory = cls(path)
        for name in OFFSET_CHECKPOINTS:
            place = os.path.join(path, name)
            try:
                text = read_checkpoint_text(place)
                directory.offsets[name] = parse_offset_checkpoint(text or "", path=place)
            except InputError as error:
                directory._note(error)
        try:
            marker = read_checkpoint_text(os.path.join(path, CLEAN_SHUTDOWN))
            directory.is_clean = marker is not None
        except KafkaIndexError as error:
            directory._note(error)
        try:
            place = os.path.join(path, META_PROPERTIES)
            if read_checkpoint_text(place) is not None:
                directory.properties = read_properties(place)
        except KafkaIndexError as error:
            directory._note(error)
        return directory

    def _note(self, error: KafkaIndexError) -> None:
        if is_retriable(error):
            raise error
        self.notes.append(f"ignored: {error}")


@dataclass(frozen=True, slots=True)
class Replica:
    """A partition in one of the dumps."""

    partition: TopicPartition
    directory: str
    segments: PartitionSegments
    root: DumpDirectory
    topic_id: str | None
    tiered: TieredPartition | None = None

    def alone(self) -> Replica:
        """Return the replica without what its data directory says of other partitions."""
        own = {
            name: {self.partition: offsets[self.partition]}
            for name, offsets in self.root.offsets.items()
            if self.partition in offsets
        }
        return replace(self, root=DumpDirectory(self.root.path, own, is_clean=self.root.is_clean))


@dataclass(slots=True)
class Dump:
    """One or more dumps."""

    replicas: dict[TopicPartition, list[Replica]] = field(default_factory=dict)
    directories: dict[str, DumpDirectory] = field(default_factory=dict)
    without_logs: dict[TopicPartition, str] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    metadata_logs: list[str] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """The files that could not be read, for people."""
        return [note for each in self.directories.values() for note in each.notes]


def read_dumps(
    inputs: Sequence[str], tiered: TieredOptions | None, *, topics: re.Pattern[str] | None
) -> Dump:
    """List the partitions of dumps; one partition may be in several of them."""
    dump = Dump()
    if tiered is not None:
        _add(dump, list_logs(inputs, tiered, topics=topics))
    else:
        for path in expand_directories(inputs):
            _add(dump, list_any([path], topics=topics))
    if not dump.replicas:
        # Listing them together says what was looked for, and where.
        list_logs(inputs, tiered, topics=topics)
        raise InputError(
            "the input holds no partition but the metadata log", path=", ".join(inputs)
        )
    return dump


def _add(dump: Dump, listing: Listing) -> None:
    for path in listing.data_directories:
        if path not in dump.directories:
            if not is_remote(path):
                refuse_running(path, _WHILE_RUNNING)
            dump.directories[path] = DumpDirectory.read(path)
    dump.skipped += listing.skipped
    with_logs = set()
    for segments in SegmentTable.of(listing.segments).partitions:
        with_logs.add(segments.partition)
        if segments.partition.topic == CLUSTER_METADATA_TOPIC:
            dump.metadata_logs.append(segments.directory)
            continue
        root = dump.directories.get(os.path.dirname(segments.directory))
        replica = Replica(
            segments.partition,
            segments.directory,
            segments,
            root or DumpDirectory(os.path.dirname(segments.directory)),
            _topic_id(segments.directory, root, listing.tiered.get(segments.partition)),
            listing.tiered.get(segments.partition),
        )
        known = dump.replicas.setdefault(segments.partition, [])
        if all(each.directory != replica.directory for each in known):
            known.append(replica)
    for directory in listing.partition_directories:
        topic, _, number = os.path.basename(directory).rpartition("-")
        partition = TopicPartition(topic, int(number))
        if partition in with_logs:
            continue
        if topic != CLUSTER_METADATA_TOPIC:
            dump.without_logs.setdefault(partition, directory)
        elif any(entry.name.endswith(".checkpoint") for entry in scan_input(directory)):
            dump.metadata_logs.append(directory)


def _topic_id(
    directory: str, root: DumpDirectory | None, tiered: TieredPartition | None
) -> str | None:
    if tiered is not None and tiered.topic_id:
        return tiered.topic_id
    try:
        return read_topic_id(directory)
    except KafkaIndexError as error:
        if root is None or is_retriable(error):
            raise
        root.notes.append(f"ignored: {error}")
        return None


def refuse_running(path: str, hint: str) -> None:
    """Refuse a directory that a running broker holds."""
    try:
        refuse_held(path)
    except InputError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno != errno.EAGAIN and is_retriable(error):
            raise
        raise InputError(error.message, path=error.path, hint=hint) from None


_NOTHING = (-1, -1)


def base_replica(replicas: Sequence[Replica]) -> list[Replica]:
    """Return the copies of a partition, the one with the highest last epoch and end first."""
    if len(replicas) == 1:
        return list(replicas)
    return sorted(replicas, key=_last_epoch_and_end, reverse=True)


def _last_epoch_and_end(replica: Replica) -> tuple[int, int]:
    """Return the leader epoch of the last sound batch, and the offset after it."""
    for segment in reversed(replica.segments.files()):
        try:
            found = _last_batch(segment)
        except KafkaIndexError as error:
            if is_retriable(error):
                raise
            continue
        if found is not None:
            return found
    return _NOTHING


def _last_batch(segment: SegmentFile) -> tuple[int, int] | None:
    found = None
    source = LogFileSource.of_segment(segment, verify_crc=True)
    for batches in source.chunks():
        if batches.rows:
            found = int(batches.leader_epoch[-1]), int(batches.last_offset[-1]) + 1
    return found
