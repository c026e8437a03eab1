"""Reading the state of a cluster from the directories of brokers and controllers.

The metadata log is read as a broker reads it: its newest snapshot (``.checkpoint``), then the
records of the log after it. All partitions of the other topics are read.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from kafka_index.errors import CorruptLogError, CorruptRecordError, InputError, is_retriable
from kafka_index.layout.message_bytes import MessageReader
from kafka_index.layout.names import (
    BOOTSTRAP_CHECKPOINT,
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    METADATA_LOG,
    REMOTE_LOG_METADATA_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from kafka_index.metadata.cluster_image import ClusterImage
from kafka_index.metadata.cluster_metadata import ClusterMetadata, Source
from kafka_index.metadata.decoding import METADATA_CODEC, RecordName, UnknownRecordError
from kafka_index.metadata.group_state import GroupState
from kafka_index.metadata.remote_segments import RemoteLogState
from kafka_index.metadata.topic_log import LogRecord, TopicLog
from kafka_index.metadata.transaction_state import TransactionLogState
from kafka_index.records.decompression import DecompressionBudget
from kafka_index.storage import SegmentFile, expand_directories, list_dump
from kafka_index.storage.directories import scan_input
from kafka_index.stores import FileInfo

#: The topics that are read.
METADATA_TOPICS = (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
)

_SNAPSHOT = re.compile(r"(?P<offset>[0-9]{20})-(?P<epoch>[0-9]{10})\.checkpoint")
_SNAPSHOT_FOOTER = 4


def read_metadata(
    paths: Sequence[str],
    *,
    budget: DecompressionBudget,
    topics: Sequence[str] = METADATA_TOPICS,
) -> ClusterMetadata:
    """Read the topics that Kafka keeps its own state in, or only some of `METADATA_TOPICS`.

    The paths are data directories, metadata log directories, or directories of partitions of these
    topics; local paths or URIs. Raises `InputError` if a path cannot be read, or none of the topics
    is there.
    """
    snapshots = _snapshots(paths) if CLUSTER_METADATA_TOPIC in topics else {}
    try:
        segments = list_dump(paths, topics=re.compile("|".join(topics))).segments
    except InputError as error:
        # A metadata log may be nothing but a snapshot.
        if is_retriable(error) or not any(snapshots.values()):
            raise
        segments = []
    by_topic = {
        topic: list(found) for topic, found in groupby(segments, key=lambda segment: segment.topic)
    }
    reading = _Reading(budget)
    directories = sorted({*snapshots, *_directories(by_topic.get(CLUSTER_METADATA_TOPIC, []))})
    if directories:
        reading.cluster(
            directories[0],
            snapshots.get(directories[0], []),
            by_topic.get(CLUSTER_METADATA_TOPIC, []),
        )
    reading.topics(by_topic)
    return reading.found


def read_cluster(paths: Sequence[str], *, budget: DecompressionBudget) -> ClusterImage:
    """Read the state of the cluster alone, which has to be whole.

    Raises `InputError` if there is no metadata log, or it is damaged.
    """
    found = read_metadata(paths, budget=budget, topics=(CLUSTER_METADATA_TOPIC,))
    if found.faults.first:
        # A partition or a setting whose record is missing would be taken for one that is not.
        raise InputError(f"the metadata log is damaged: {found.faults.first[0]}")
    if found.cluster is None:
        raise InputError("there is no metadata log", path=paths[0])
    return found.cluster


def _directories(segments: Iterable[SegmentFile]) -> list[str]:
    return [segment.partition_directory for segment in segments]


def _snapshots(paths: Sequence[str]) -> dict[str, list[SegmentFile]]:
    """Return the snapshots in each directory of a metadata log, the newest first."""
    found: dict[str, list[SegmentFile]] = {}
    for path in expand_directories(paths):
        entries = scan_input(path)
        names = {entry.name: entry.path for entry in entries}
        if os.path.basename(path) == METADATA_LOG:
            directory = path
        elif METADATA_LOG in names:
            directory = names[METADATA_LOG]
            entries = [*scan_input(directory), *entries]
        else:
            continue
        files = [
            _snapshot_file(entry.info())
            for entry in sorted(entries, key=lambda entry: entry.name, reverse=True)
            if _SNAPSHOT.fullmatch(entry.name) or entry.name == BOOTSTRAP_CHECKPOINT
        ]
        # The bootstrap snapshot, whose name sorts after all digits, counts where nothing else does.
        found[directory] = sorted(
            files, key=lambda file: file.log_path.endswith(BOOTSTRAP_CHECKPOINT)
        )
    return found


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


class _Reading:
    def __init__(self, budget: DecompressionBudget) -> None:
        self._budget = budget
        self.found = ClusterMetadata()

    def cluster(
        self, directory: str, snapshots: Sequence[SegmentFile], segments: Sequence[SegmentFile]
    ) -> None:
        """Read a metadata log: its newest snapshot that is whole, and the log after it."""
        has_log = any(segment.log_size_bytes for segment in segments)
        image, counts, start, name, records = ClusterImage(), Counter[RecordName](), 0, None, 0
        for snapshot in snapshots:
            bootstrap = os.path.basename(snapshot.log_path) == BOOTSTRAP_CHECKPOINT
            if bootstrap and has_log:
                continue
            image, counts = ClusterImage(), Counter[RecordName]()
            loaded = self._load_snapshot(snapshot, image, counts, needs_footer=not bootstrap)
            if loaded is not None:
                name, records = os.path.basename(snapshot.log_path), loaded
                start = 0 if bootstrap else int(name[:20])
                break
        else:
            image, counts = ClusterImage(), Counter[RecordName]()
        log = TopicLog(segments, self._budget, start)
        records += self._replay(log, directory, _cluster_adder(image, counts))
        if segments and segments[0].base_offset > start:
            self.found.faults.add([_missing(directory, start, segments[0].base_offset)])
        self.found.cluster = image
        self.found.counts[CLUSTER_METADATA_TOPIC] = counts
        self.found.sources.append(Source(directory, name, records, log.end_offset))

    def _load_snapshot(
        self,
        snapshot: SegmentFile,
        image: ClusterImage,
        counts: Counter[RecordName],
        *,
        needs_footer: bool,
    ) -> int | None:
        """Return how many records a snapshot has; None where it is not whole."""
        add = _cluster_adder(image, counts)
        has_footer = False

        def watch(record: LogRecord) -> None:
            nonlocal has_footer
            if record.is_control:
                key = MessageReader(record.key or b"", 2)
                has_footer = has_footer or key.int16() == _SNAPSHOT_FOOTER
            add(record)

        before = self.found.faults.total
        records = self._replay(TopicLog([snapshot], self._budget), snapshot.log_path, watch)
        if needs_footer and not has_footer:
            self.found.faults.add(
                [
                    CorruptLogError(
                        "the snapshot has no footer",
                        path=snapshot.log_path,
                        hint="an older snapshot is used if there is one",
                    )
                ]
            )
        return records if self.found.faults.total == before else None

    def topics(self, by_topic: dict[str, list[SegmentFile]]) -> None:
        """Read the other topics."""
        found = self.found
        if segments := by_topic.get(CONSUMER_OFFSETS_TOPIC):
            groups = GroupState()
            self._partitions(segments, groups.add)
            faults: list[CorruptRecordError] = []
            found.groups, found.offsets = groups.decode(faults)
            found.open_offsets = groups.open_offsets(faults)
            self._finish(CONSUMER_OFFSETS_TOPIC, groups.counts, faults)
        if segments := by_topic.get(TRANSACTION_STATE_TOPIC):
            transactions = TransactionLogState()
            self._partitions(segments, transactions.add)
            faults = []
            found.transactions = transactions.transactions(faults)
            self._finish(TRANSACTION_STATE_TOPIC, transactions.counts, faults)
        if segments := by_topic.get(REMOTE_LOG_METADATA_TOPIC):
            remote = RemoteLogState()
            self._partitions(segments, remote.add)
            found.remote_segments = remote.segments()
            self._finish(REMOTE_LOG_METADATA_TOPIC, remote.counts, [])

    def _partitions(self, segments: list[SegmentFile], add: Callable[[LogRecord], None]) -> None:
        for directory, group in groupby(segments, key=lambda one: one.partition_directory):
            log = TopicLog(list(group), self._budget)
            records = self._replay(log, directory, add)
            self.found.sources.append(Source(directory, None, records, log.end_offset))

    def _finish(
        self, topic: str, counts: Counter[RecordName], faults: Sequence[CorruptRecordError]
    ) -> None:
        """Count the records of a topic; values of unknown versions are counted, not faults."""
        for fault in faults:
            if isinstance(fault, UnknownRecordError):
                counts[RecordName(fault.name, is_known=False)] += 1
        self.found.counts[topic] = counts
        self.found.faults.add(one for one in faults if not isinstance(one, UnknownRecordError))

    def _replay(self, log: TopicLog, path: str, add: Callable[[LogRecord], None]) -> int:
        """Hand every record of a log to `add`; return how many there were."""
        count = 0
        for record in log.records():
            count += 1
            try:
                add(record)
            except CorruptRecordError as error:
                self.found.faults.add(
                    [
                        CorruptRecordError(
                            f"offset {record.offset}: {error.message}",
                            path=path,
                            expected=error.expected,
                            found=error.found,
                        )
                    ]
                )
        self.found.faults.add(log.faults)
        return count


def _cluster_adder(image: ClusterImage, counts: Counter[RecordName]) -> Callable[[LogRecord], None]:
    def add(record: LogRecord) -> None:
        if record.is_control:
            return
        try:
            decoded = METADATA_CODEC.decode(record.value)
        except UnknownRecordError as error:
            counts[RecordName(error.name, is_known=False)] += 1
            return
        counts[RecordName(decoded.name, is_known=True)] += 1
        image.replay(decoded)

    return add


def _missing(directory: str, start: int, base_offset: int) -> CorruptLogError:
    return CorruptLogError(
        "records of the metadata log are missing",
        path=directory,
        expected=f"a snapshot or a segment from offset {start} on",
        found=f"a log that begins at offset {base_offset}",
    )
