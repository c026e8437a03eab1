"""Read the state of a cluster from the directories of brokers and controllers.

As in a broker, the newest metadata snapshot (``.checkpoint``) is read first, then the records of
the metadata log after it. All partitions of the other internal topics are read. In combined mode,
the metadata log is in a data directory of the broker.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from kafka_index.core.cluster.metadata.cluster_image import ClusterImage
from kafka_index.core.cluster.metadata.decoding import (
    METADATA_CODEC,
    LogRecord,
    RecordName,
    TopicLog,
    TopicState,
    UnknownRecordError,
    count_unknown,
)
from kafka_index.core.cluster.metadata.topic_states import (
    CommittedOffset,
    Group,
    GroupState,
    RemoteLogState,
    Transaction,
    TransactionLogState,
)
from kafka_index.core.cluster.remote.remote_log_metadata import SegmentEvent
from kafka_index.core.errors import (
    CorruptLogError,
    CorruptRecordError,
    Faults,
    InputError,
    is_retriable,
)
from kafka_index.core.format.message_bytes import MessageReader
from kafka_index.core.format.names import (
    BOOTSTRAP_CHECKPOINT,
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    METADATA_LOG,
    REMOTE_LOG_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
    is_metadata_snapshot,
)
from kafka_index.core.fs.paths import expand_directories
from kafka_index.core.fs.registry import scan_input
from kafka_index.core.fs.store import FileInfo
from kafka_index.core.logdir.listing import list_any, list_dump
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.decompression import DecompressionBudget

METADATA_TOPICS = (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
)
_SNAPSHOT_FOOTER = 4


class Source(NamedTuple):
    """A partition directory that was read; `end_offset` is the offset after its last record.

    `snapshot` is the name of the metadata snapshot that was loaded first. `records` includes the
    number of the snapshot's records.
    """

    path: str
    snapshot: str | None
    records: int
    end_offset: int


@dataclass
class ClusterMetadata:
    """The content of Kafka's internal topics; None for topics that are not in the input.

    Attributes
    ----------
    open_offsets : list of CommittedOffset
        Offset commits of transactions that are open at the end of ``__consumer_offsets``.
    earlier_offsets : list of CommittedOffset
        Superseded offset commits, if requested.
    counts : dict
        Numbers of records by topic and record type.
    faults : Faults
        The reasons why records are missing.
    truncations : list of CorruptLogError
        The corruptions at which a starting node stops reading the snapshot and the metadata log.
    """

    cluster: ClusterImage | None = None
    groups: list[Group] | None = None
    offsets: list[CommittedOffset] | None = None
    open_offsets: list[CommittedOffset] = field(default_factory=list)
    earlier_offsets: list[CommittedOffset] = field(default_factory=list)
    transactions: list[Transaction] | None = None
    remote_segments: list[SegmentEvent] | None = None
    counts: dict[str, Counter[RecordName]] = field(default_factory=dict)
    sources: list[Source] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)
    truncations: list[CorruptLogError] = field(default_factory=list)


def read_metadata(
    paths: Sequence[str],
    *,
    budget: DecompressionBudget,
    topics: Sequence[str] = METADATA_TOPICS,
    recovers: bool = False,
    may_grow: bool = False,
    has_history: bool = False,
) -> ClusterMetadata:
    """Read Kafka's internal topics, or some of `METADATA_TOPICS`.

    `paths` are data directories, metadata log directories, or partition directories of these
    topics, as paths or URIs. With `recovers`, the newest snapshot is read up to an incomplete end,
    and the metadata log up to its first corruption, as a starting node does. With `may_grow`, the
    node may append to the metadata log concurrently. With `has_history`, superseded offset commits
    are included. Raises `InputError` if a path cannot be read, or none of the topics exists.
    """
    snapshots = (
        _list_snapshots(paths, includes_formatted=recovers)
        if CLUSTER_METADATA_TOPIC in topics
        else {}
    )
    try:
        segments = list_dump(paths, topics=re.compile("|".join(topics))).segments
    except InputError as error:
        # Without log segments, a metadata log may still have a snapshot.
        if is_retriable(error):
            raise
        if not any(snapshots.values()):
            raise _missing_topics_error(paths, topics, error) from None
        segments = []
    by_topic = {
        topic: list(group) for topic, group in groupby(segments, key=lambda segment: segment.topic)
    }
    reader = _TopicReader(budget, recovers=recovers, may_grow=may_grow)
    metadata_segments = by_topic.get(CLUSTER_METADATA_TOPIC, [])
    directories = {segment.partition_directory for segment in metadata_segments}
    directory = min(directories.union(snapshots), default=None)
    if directory is not None:
        reader.read_metadata_log(directory, snapshots.get(directory, []), metadata_segments)
    reader.read_topics(by_topic, has_history=has_history)
    return reader.metadata


def _missing_topics_error(
    paths: Sequence[str], topics: Sequence[str], error: InputError
) -> InputError:
    """Return the error for inputs without these topics; the hint is the directory to add."""
    other_segments = list_any(paths, topics=None).segments
    if not other_segments:
        return error
    names = " or ".join(topics)
    hint = f"also give the directory that contains {names}"
    if CLUSTER_METADATA_TOPIC in topics:
        hint = (
            "also give the directory of the metadata log, which contains topics, partitions and "
            f"brokers: metadata.log.dir, with the directory {METADATA_LOG}"
        )
    return InputError(f"the input has no log of {names}", path=", ".join(paths), hint=hint)


def read_cluster(paths: Sequence[str], *, budget: DecompressionBudget) -> ClusterImage:
    """Read the state of a cluster from a complete metadata log.

    Raises `InputError` if there is no metadata log, or it is corrupt.
    """
    metadata = read_metadata(paths, budget=budget, topics=(CLUSTER_METADATA_TOPIC,))
    if metadata.faults.first:
        # If records are missing, existing partitions or settings would appear not to exist.
        raise InputError(
            f"the metadata log is damaged: {metadata.faults.first[0]}",
            hint=f"run `kafka-index verify --input {paths[0]}` to list the damage",
        ) from metadata.faults.first[0]
    if metadata.cluster is None:
        raise InputError("the input has no metadata log", path=paths[0])
    return metadata.cluster


def _list_snapshots(
    paths: Sequence[str], *, includes_formatted: bool
) -> dict[str, list[SegmentFile]]:
    """Return the metadata snapshots in each metadata log directory, newest first.

    With `includes_formatted`, formatted directories without a metadata log are included.
    """
    snapshots: dict[str, list[SegmentFile]] = {}
    for path in expand_directories(paths):
        entries = scan_input(path)
        names = {entry.name: entry.path for entry in entries}
        if os.path.basename(path) == METADATA_LOG:
            directory = path
        elif METADATA_LOG in names:
            directory = names[METADATA_LOG]
            entries = [*scan_input(directory), *entries]
        elif includes_formatted and BOOTSTRAP_CHECKPOINT in names:
            directory = os.path.join(path, METADATA_LOG)
        else:
            continue
        files = [
            _snapshot_file(entry.info())
            for entry in sorted(entries, key=lambda entry: entry.name, reverse=True)
            if is_metadata_snapshot(entry.name) or entry.name == BOOTSTRAP_CHECKPOINT
        ]
        # Put the bootstrap checkpoint last. It is used only if no other snapshot and no record
        # exists.
        snapshots[directory] = sorted(
            files, key=lambda file: file.log_path.endswith(BOOTSTRAP_CHECKPOINT)
        )
    return snapshots


def _snapshot_file(info: FileInfo) -> SegmentFile:
    return SegmentFile(
        CLUSTER_METADATA_TOPIC,
        0,
        0,
        info.path,
        info.size_bytes,
        info.mtime_ns,
        log_version=info.version,
    )


class _TopicReader:
    def __init__(
        self, budget: DecompressionBudget, *, recovers: bool, may_grow: bool = False
    ) -> None:
        self._budget = budget
        self._recovers = recovers
        self._may_grow = may_grow
        self.metadata = ClusterMetadata()

    def read_metadata_log(
        self, directory: str, snapshots: Sequence[SegmentFile], segments: Sequence[SegmentFile]
    ) -> None:
        """Read a metadata log: its newest complete snapshot, and the records after it.

        If there are no such records, as after formatting, the active controller starts with the
        bootstrap records (``QuorumController.completeActivation``).
        """
        state, start, name, records = _ClusterState(), 0, None, 0
        bootstraps = [file for file in snapshots if file.log_path.endswith(BOOTSTRAP_CHECKPOINT)]
        for snapshot in snapshots[: len(snapshots) - len(bootstraps)]:
            candidate = _ClusterState()
            loaded = self._load_snapshot(snapshot, candidate, needs_footer=True)
            if loaded is not None or self._recovers:
                name, records = os.path.basename(snapshot.log_path), loaded or 0
                state, start = candidate, int(name[:20])
                break
        log = TopicLog(
            segments, self._budget, start, recovers=self._recovers, may_grow=self._may_grow
        )
        records += self._replay(log, directory, state.add)
        if segments and segments[0].base_offset > start:
            self.metadata.faults.add(
                _missing_records_error(directory, start, segments[0].base_offset)
            )
        for bootstrap in bootstraps if not state.counts else ():
            loaded = self._load_snapshot(bootstrap, state, needs_footer=False)
            name, records = BOOTSTRAP_CHECKPOINT, records + (loaded or 0)
        self.metadata.cluster = state.image
        self.metadata.counts[CLUSTER_METADATA_TOPIC] = state.counts
        self.metadata.sources.append(Source(directory, name, records, log.end_offset))

    def _load_snapshot(
        self, snapshot: SegmentFile, state: _ClusterState, *, needs_footer: bool
    ) -> int | None:
        """Load a snapshot and return its number of records, None if it is incomplete."""
        has_footer = False

        def add(record: LogRecord) -> None:
            nonlocal has_footer
            if record.is_control:
                key = MessageReader(record.key or b"", 2)
                has_footer = has_footer or key.int16() == _SNAPSHOT_FOOTER
            state.add(record)

        fault_count = self.metadata.faults.total
        log = TopicLog([snapshot], self._budget, recovers=self._recovers)
        records = self._replay(log, snapshot.log_path, add)
        if needs_footer and not has_footer and log.truncation is None:
            self.metadata.faults.add(
                CorruptLogError(
                    "the snapshot has no footer",
                    path=snapshot.log_path,
                    hint="an older snapshot is used, if any",
                )
            )
        return records if self.metadata.faults.total == fault_count else None

    def read_topics(self, by_topic: dict[str, list[SegmentFile]], *, has_history: bool) -> None:
        metadata = self.metadata
        if segments := by_topic.get(CONSUMER_OFFSETS_TOPIC):
            groups = GroupState(has_history=has_history)
            self._read_partitions(segments, groups.add)
            metadata.groups, metadata.offsets = groups.decode()
            metadata.open_offsets = groups.open_offsets()
            metadata.earlier_offsets = groups.earlier_offsets()
            metadata.counts[CONSUMER_OFFSETS_TOPIC] = groups.counts
        if segments := by_topic.get(TRANSACTION_STATE_TOPIC):
            transactions = TransactionLogState()
            self._read_partitions(segments, transactions.add)
            metadata.transactions = transactions.transactions()
            metadata.counts[TRANSACTION_STATE_TOPIC] = transactions.counts
        if segments := by_topic.get(REMOTE_LOG_METADATA_TOPIC):
            remote = RemoteLogState()
            self._read_partitions(segments, remote.add)
            metadata.remote_segments = remote.segments()
            metadata.counts[REMOTE_LOG_METADATA_TOPIC] = remote.counts

    def _read_partitions(
        self, segments: list[SegmentFile], add: Callable[[LogRecord], None]
    ) -> None:
        for directory, group in groupby(segments, key=lambda segment: segment.partition_directory):
            log = TopicLog(list(group), self._budget)
            records = self._replay(log, directory, add)
            self.metadata.sources.append(Source(directory, None, records, log.end_offset))

    def _replay(self, log: TopicLog, path: str, add: Callable[[LogRecord], None]) -> int:
        """Pass every record of a log to `add`; return the number of records."""
        count = 0
        for record in log.records():
            count += 1
            try:
                add(record)
            except CorruptRecordError as error:
                self.metadata.faults.add(
                    CorruptRecordError(
                        f"offset {record.offset}: {error.message}",
                        path=path,
                        expected=error.expected,
                        found=error.found,
                    )
                )
        self.metadata.faults.add(*log.faults)
        self.metadata.truncations += [] if log.truncation is None else [log.truncation]
        return count


class _ClusterState(TopicState):
    """Collects the records of ``__cluster_metadata``."""

    def __init__(self) -> None:
        super().__init__()
        self.image = ClusterImage()

    def add(self, record: LogRecord) -> None:
        if record.is_control:
            return
        try:
            decoded = METADATA_CODEC.decode(record.value)
        except UnknownRecordError as error:
            count_unknown(self.counts, error)
            return
        self.counts[RecordName(decoded.name, is_known=True)] += 1
        self.image.replay(decoded)


def _missing_records_error(directory: str, start: int, base_offset: int) -> CorruptLogError:
    return CorruptLogError(
        "records of the metadata log are missing",
        path=directory,
        expected=f"a snapshot or a segment from offset {start} on",
        found=f"a log that begins at offset {base_offset}",
    )
