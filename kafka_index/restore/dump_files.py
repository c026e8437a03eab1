"""What dumps hold of partitions besides their segments: checkpoints, topic ids, identities.

A dump may be cut, edited or partial: what cannot be read is a note, and counts as absent.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from kafka_index.errors import InputError, KafkaIndexError, is_retriable
from kafka_index.layout.checkpoints import parse_offset_checkpoint
from kafka_index.layout.internal_topics import CLUSTER_METADATA_TOPIC
from kafka_index.layout.names import (
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    OFFSET_CHECKPOINTS,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    TopicPartition,
)
from kafka_index.startup.directory_files import CLEAN_SHUTDOWN, read_properties, refuse_held
from kafka_index.startup.topic_id_file import read_topic_id
from kafka_index.storage import Listing, Skipped, expand_directories
from kafka_index.storage.listing import list_any
from kafka_index.storage.log_directory import read_checkpoint_text
from kafka_index.storage.segment_table import PartitionSegments, SegmentTable
from kafka_index.storage.tiered_partition import TieredPartition
from kafka_index.stores import is_remote
from kafka_index.tiered.listing import list_logs
from kafka_index.tiered.options import TieredOptions

_WHILE_RUNNING = "restore from a snapshot or a copy, or after the broker has stopped"


@dataclass(slots=True)
class DumpDirectory:
    """A data directory of a dump, and what the files at its root say.

    Parameters
    ----------
    path : str
        The directory.
    properties : dict of str to str
        Of ``meta.properties``; empty without one.
    offsets : dict of str to dict
        The checkpoints by file name, each by partition.
    notes : list of str
        What cannot be read.
    is_clean : bool
        Whether the marker of a clean shutdown is there.
    """

    path: str
    properties: dict[str, str] = field(default_factory=dict)
    offsets: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    is_clean: bool = False

    @classmethod
    def read(cls, path: str) -> DumpDirectory:
        """Read the files at the root of a data directory.

        Raises
        ------
        KafkaIndexError
            Permission, disk or network: another try may read them.
        """
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

    def log_start(self, partition: TopicPartition) -> int | None:
        """Return the checkpointed log start; None where there is none."""
        return self._offset(LOG_START_CHECKPOINT, partition)

    def cleaned_to(self, partition: TopicPartition) -> int | None:
        """Return up to where a compacted log was cleaned; None where that is not known."""
        return self._offset(CLEANER_CHECKPOINT, partition)

    def committed_to(self, partition: TopicPartition) -> int:
        """Return an offset up to which the log was there once: committed, or flushed."""
        names = REPLICATION_CHECKPOINT, RECOVERY_POINT_CHECKPOINT
        return max(self._offset(name, partition) or 0 for name in names)

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """Return the checkpointed high watermark; None where there is none."""
        return self._offset(REPLICATION_CHECKPOINT, partition)

    def _offset(self, name: str, partition: TopicPartition) -> int | None:
        return self.offsets.get(name, {}).get(partition)

    def _note(self, error: KafkaIndexError) -> None:
        if is_retriable(error):
            raise error
        self.notes.append(f"ignored: {error}")


@dataclass(frozen=True, slots=True)
class Replica:
    """A partition in one of the dumps.

    Parameters
    ----------
    partition : TopicPartition
        Its name there.
    directory : str
        Its directory.
    segments : PartitionSegments
        Its live segments.
    root : DumpDirectory
        The data directory that it is in.
    topic_id : str, optional
        Of its ``partition.metadata``.
    tiered : TieredPartition, optional
        What is known of it where segments of it are remote.
    """

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
        return replace(
            self, root=DumpDirectory(self.root.path, {}, own, is_clean=self.root.is_clean)
        )


@dataclass(slots=True)
class Dump:
    """One or more dumps.

    Parameters
    ----------
    replicas : dict of TopicPartition to list of Replica
        In the order of the inputs.
    directories : dict of str to DumpDirectory
        The data directories, by path.
    without_logs : dict of TopicPartition to str
        Directories of partitions that hold no log.
    skipped : list of Skipped
        Entries that are not live.
    metadata_logs : list of str
        Directories of the metadata log.
    """

    replicas: dict[TopicPartition, list[Replica]] = field(default_factory=dict)
    directories: dict[str, DumpDirectory] = field(default_factory=dict)
    without_logs: dict[TopicPartition, str] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    metadata_logs: list[str] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """What could not be read."""
        return [note for each in self.directories.values() for note in each.notes]


def read_dumps(
    inputs: Sequence[str], tiered: TieredOptions | None, *, topics: re.Pattern[str] | None
) -> Dump:
    """List the partitions of dumps; one partition may be in several of them.

    Parameters
    ----------
    inputs : sequence of str
        Data directories, partition directories, or globs of either; paths or URIs.
    tiered : TieredOptions, optional
        Where remote segments are; joined with all inputs, which then hold a partition once.
    topics : re.Pattern, optional
        Keep only topics that match it in full.

    Raises
    ------
    InputError
        An input cannot be read, or a running broker holds it; no segment is found.
    """
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
    for partition, directory in _without_logs(listing.partition_directories, with_logs):
        dump.without_logs.setdefault(partition, directory)


def _without_logs(
    directories: Iterable[str], with_logs: set[TopicPartition]
) -> Iterable[tuple[TopicPartition, str]]:
    for directory in directories:
        topic, _, number = os.path.basename(directory).rpartition("-")
        partition = TopicPartition(topic, int(number))
        if partition not in with_logs and topic != CLUSTER_METADATA_TOPIC:
            yield partition, directory


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
    """Refuse a directory that a running broker holds.

    Raises
    ------
    InputError
        One does. That is wrong usage, and not worth another try.
    """
    try:
        refuse_held(path)
    except InputError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno != errno.EAGAIN and is_retriable(error):
            raise
        raise InputError(error.message, path=error.path, hint=hint) from None
