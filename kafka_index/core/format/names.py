"""File and folder names of a Kafka data directory, and the names of internal topics.

A partition directory is ``<topic>-<partition>``, split at the LAST dash because topics contain
dashes. The files of a segment share a 20-digit base offset::

    00000000000000368769.timeindex.swap
    `-- base offset ----'`- kind --'`- transient (optional)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from kafka_index.core.format.integers import INT32_MAX, INT64_MAX

CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
CONSUMER_OFFSETS_TOPIC: Final = "__consumer_offsets"
REMOTE_LOG_METADATA_TOPIC: Final = "__remote_log_metadata"
SHARE_GROUP_STATE_TOPIC: Final = "__share_group_state"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"

#: ``Topic.INTERNAL_TOPICS``, and the metadata topics.
INTERNAL_TOPICS: Final = frozenset(
    {
        CLUSTER_METADATA_TOPIC,
        CONSUMER_OFFSETS_TOPIC,
        REMOTE_LOG_METADATA_TOPIC,
        SHARE_GROUP_STATE_TOPIC,
        TRANSACTION_STATE_TOPIC,
    }
)

#: Topics that the broker creates with ``cleanup.policy=compact``
#: (``GroupCoordinatorService.groupMetadataTopicConfigs``,
#: ``TransactionStateManager.transactionTopicConfigs``); the others are created with ``delete``.
COMPACTED_INTERNAL_TOPICS: Final = frozenset({CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC})

#: Prefix of all internal topics, and of some user topics.
INTERNAL_PREFIX: Final = "__"

#: The directory of the metadata log.
METADATA_LOG: Final = f"{CLUSTER_METADATA_TOPIC}-0"

LOG_SUFFIX = ".log"
OFFSET_INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
INDEX_SUFFIXES = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

SWAP_SUFFIX = ".swap"
CLEANED_SUFFIX = ".cleaned"
DELETED_SUFFIX = ".deleted"
TRANSIENT_SUFFIXES = (SWAP_SUFFIX, CLEANED_SUFFIX, DELETED_SUFFIX)

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
REPLICATION_CHECKPOINT = "replication-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
META_PROPERTIES = "meta.properties"
BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
#: Bootstrap snapshot of a controller that was formatted as standalone or with initial controllers.
FIRST_SNAPSHOT = "00000000000000000000-0000000000.checkpoint"
PARTITION_METADATA = "partition.metadata"
#: Quorum state in the metadata log directory.
QUORUM_STATE = "quorum-state"
BROKER_LOCK = ".lock"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

#: Offset checkpoints of a data directory.
OFFSET_CHECKPOINTS = (
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    LOG_START_CHECKPOINT,
    CLEANER_CHECKPOINT,
)

#: Files at the root of a data directory, except offset checkpoints.
ROOT_FILES = (META_PROPERTIES, BOOTSTRAP_CHECKPOINT, CLEAN_SHUTDOWN)

#: Directories that a broker does not treat as partitions: the index cache of tiered storage, and a
#: clean shutdown file that is a directory, which it deletes first (``LogManager.loadLogs``).
NOT_PARTITIONS = ("remote-log-index-cache", CLEAN_SHUTDOWN)

OFFSET_DIGITS = 20

_BROKER_FILES = frozenset(
    {*OFFSET_CHECKPOINTS, *ROOT_FILES, LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, QUORUM_STATE}
)
_METADATA_SNAPSHOT = re.compile(
    r"(?P<offset>[0-9]{20})-[0-9]{10}\.checkpoint(?P<transient>\.part|\.deleted)?"
)
# A file of a remote segment in tiered storage, other than its ``.log``.
_REMOTE_OBJECT = re.compile(r"[0-9]{20}-[A-Za-z0-9_-]{22}\.(?!log$)[a-z_-]+")
# Part of the names of files that a build writes for its own use.
_BUILD_FILE_PART = "kafka-index"

#: Legal topic names: 1 to 249 of these characters, and neither "." nor ".." (``Topic.validate``).
TOPIC_PATTERN: Final = r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}"
_TOPIC = re.compile(TOPIC_PATTERN)
_PARTITION_DIRECTORY = re.compile(r"(?P<topic>.+)-(?P<partition>[0-9]{1,10})")
_MARKED_DIRECTORY = re.compile(r"(?P<name>.+)\.(?P<id>[^.\s]+)-(?P<mark>delete|future|stray)")
_SEGMENT_FILE = re.compile(
    rf"(?P<offset>[0-9]{{{OFFSET_DIGITS}}})"
    rf"(?P<kind>\.log|\.index|\.timeindex|\.txnindex|\.snapshot)"
    rf"(?P<transient>\.swap|\.cleaned|\.deleted)?"
)

#: Compression types, by their number in batch attributes.
COMPRESSION_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")


class DirectoryKind(Enum):
    """The kind of a directory in a data directory, according to its name."""

    LIVE = "live"
    DELETE = "delete"
    FUTURE = "future"
    STRAY = "stray"


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """A partition of a topic, numbered 0..2^31 - 1."""

    topic: str
    partition: int

    @property
    def directory_name(self) -> str:
        """The directory name, ``<topic>-<partition>`` (LocalLog.logDirName)."""
        return f"{self.topic}-{self.partition}"


class SegmentFileName(NamedTuple):
    """The parts of a segment file's name.

    For a ``.snapshot``, `base_offset` is the snapshot offset. The kind is ``.log``, ``.index``,
    ``.timeindex``, ``.txnindex`` or ``.snapshot``; the transient suffix is empty, ``.swap``,
    ``.cleaned`` or ``.deleted``.
    """

    base_offset: int
    kind: str
    transient: str


def is_legal_topic(topic: str) -> bool:
    """Return whether a broker accepts this topic name (Topic.detectInvalidTopic)."""
    return _TOPIC.fullmatch(topic) is not None


def split_directory_name(name: str) -> tuple[TopicPartition, DirectoryKind] | None:
    """Split a directory name into partition and kind; None if no broker creates it.

    The topic of a ``-delete`` or ``-stray`` directory may be truncated
    (LocalLog.logDirNameWithSuffixCappedLength). Source: LocalLog.parseTopicPartitionName and its
    DELETE, FUTURE and STRAY_DIR_PATTERN. Unlike Kafka, it also requires a legal topic name.
    """
    kind = DirectoryKind.LIVE
    marked_name = _MARKED_DIRECTORY.fullmatch(name)
    if marked_name is not None:
        name, kind = marked_name["name"], DirectoryKind(marked_name["mark"])
    match = _PARTITION_DIRECTORY.fullmatch(name)
    if match is None or not is_legal_topic(match["topic"]):
        return None
    partition = int(match["partition"])
    if partition > INT32_MAX:
        return None
    return TopicPartition(match["topic"], partition), kind


def parse_partition_directory(name: str) -> TopicPartition | None:
    """Return the partition if this is the name of a live partition directory, else None."""
    split = split_directory_name(name)
    return split[0] if split is not None and split[1] is DirectoryKind.LIVE else None


def segment_file_name(base_offset: int, suffix: str) -> str:
    """Return the name of a segment's file: 20 digits and a suffix (``.log``, ``.log.swap``).

    Raises `ValueError` if the offset is negative or above 2^63 - 1.
    """
    if not 0 <= base_offset <= INT64_MAX:
        raise ValueError(f"base offset out of range: {base_offset}")
    return f"{base_offset:0{OFFSET_DIGITS}d}{suffix}"


def parse_segment_file(name: str) -> SegmentFileName | None:
    """Split the name of a segment's file; None if it is not one.

    20 digits above 2^63 - 1 are not an offset (LogFileUtils.offsetFromFileName fails on it).
    """
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None:
        return None
    offset, kind, transient = match.groups("")
    base_offset = int(offset)
    return SegmentFileName(base_offset, kind, transient) if base_offset <= INT64_MAX else None


def is_broker_or_build_file(name: str) -> bool:
    """Return whether brokers or builds create files of this name, other than ``.log`` files."""
    parsed = parse_segment_file(name)
    if parsed is not None:
        return parsed.kind != LOG_SUFFIX
    is_record = name.startswith(".") and _BUILD_FILE_PART in name
    is_named = name in _BROKER_FILES or _METADATA_SNAPSHOT.fullmatch(name) is not None
    return is_record or is_named or _REMOTE_OBJECT.fullmatch(name) is not None


def is_metadata_snapshot(name: str) -> bool:
    match = _METADATA_SNAPSHOT.fullmatch(name)
    return match is not None and not match["transient"] and int(match["offset"]) <= INT64_MAX


def index_name_for(log_name: str, suffix: str) -> str:
    """Return the name of the file that belongs to a ``.log`` file and has this suffix.

    ``X.log`` has ``X.index``; ``X.log.swap`` has ``X.index.swap``, because the broker renames each
    ``.swap`` file of a segment separately (LogLoader.load, third pass). Raises `ValueError` if
    `log_name` is not the name of a ``.log`` file.
    """
    parsed = parse_segment_file(log_name)
    if parsed is None or parsed.kind != LOG_SUFFIX:
        raise ValueError(f"not the name of a log: {log_name!r}")
    return segment_file_name(parsed.base_offset, suffix + parsed.transient)
