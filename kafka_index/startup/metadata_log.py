"""The metadata log that every node loads before its topics: whether a node starts on it.

Sources: Kafka's ``KafkaRaftManager``, ``KafkaRaftLog.createLog``, ``Snapshots.parse``,
``KafkaRaftClient.initialize``, ``BootstrapDirectory.read``.
"""

from __future__ import annotations

import os
import struct

from kafka_index.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.errors import KafkaIndexError, is_retriable
from kafka_index.growing.growing_segment import Clock
from kafka_index.growing.settings import LogSettings
from kafka_index.layout.integers import INT32_MAX, INT64_MAX, parse_java_integer
from kafka_index.layout.names import CLUSTER_METADATA_TOPIC, METADATA_LOG, TopicPartition
from kafka_index.layout.records import MAGIC_POSITION, MAGIC_RECORD_BATCH
from kafka_index.metadata.decoding import METADATA_CODEC
from kafka_index.metadata.topic_log import TopicLog
from kafka_index.records.batch_table import TORN_BATCH, TORN_HEADER
from kafka_index.records.decompression import shared_budget
from kafka_index.scan import LogFileSource
from kafka_index.startup.directory_files import read_topic_id
from kafka_index.startup.found_files import find_files
from kafka_index.startup.meta_properties import refusal_of
from kafka_index.startup.partition_loading import Loading, load_partition
from kafka_index.startup.prediction import Refusal, StartRefusedError
from kafka_index.startup.quorum_state import why_not_quorum_state
from kafka_index.storage import SegmentFile
from kafka_index.storage.directories import scan_directory
from kafka_index.stores.inputs import refuse_linked_out

_PARTITION = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
#: ``Uuid.METADATA_TOPIC_ID``.
_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
_SNAPSHOT_SUFFIXES = (".checkpoint", ".checkpoint.part", ".checkpoint.deleted")
#: The digits of the offset and of the epoch in a snapshot's name, with a character between them.
_OFFSET_WIDTH, _EPOCH_WIDTH = 20, 10


def why_not_metadata_log(directory: str, settings: LogSettings, clock: Clock) -> Refusal | None:
    """Return why a node exits over its metadata log; None where it does not, or has none.

    Parameters
    ----------
    directory : str
        The local directory that ``__cluster_metadata-0`` is in.
    settings : LogSettings
        Of the metadata log.
    clock : callable
        Returns the time in ms.

    Raises
    ------
    KafkaIndexError
        This process may not read a file.
    """
    path = os.path.join(directory, METADATA_LOG)
    if not os.path.isdir(path):
        return None
    # It is recovered from its start, whatever the markers and checkpoints are.
    loading = Loading(
        is_clean=False, recovery_point=0, log_start_offset=0, settings=settings, clock=clock
    )
    try:
        with load_partition(path, find_files(_PARTITION, path), loading) as loaded:
            log_start_offset = loaded.log.log_start_offset
        topic_id = read_topic_id(path)
    except KafkaIndexError as error:
        if is_retriable(error):
            raise
        return refusal_of(StartRefusedError.of(error, path))
    if topic_id not in (None, _TOPIC_ID):
        return Refusal(path, None, f"its topic id is {topic_id}, expected {_TOPIC_ID}")
    return why_not_snapshots(path, log_start_offset) or why_not_quorum_state(path)


def why_not_snapshots(path: str, log_start_offset: int = 0) -> Refusal | None:
    """Return why a node exits over the snapshots of its metadata log; None where it does not.

    Parameters
    ----------
    path : str
        The directory of the log, or its URI.
    log_start_offset : int
        The log start once it is loaded.

    Raises
    ------
    KafkaIndexError
        A file cannot be read.
    """
    found = []
    for entry in scan_directory(path):
        if not entry.name.endswith(_SNAPSHOT_SUFFIXES):
            continue
        offset = parse_java_integer(entry.name[:_OFFSET_WIDTH], INT64_MAX)
        epoch = parse_java_integer(entry.name[_OFFSET_WIDTH + 1 :][:_EPOCH_WIDTH], INT32_MAX)
        if offset is None or epoch is None:
            return Refusal(entry.path, None, "its name is not OFFSET-EPOCH.checkpoint")
        if entry.name.endswith(_SNAPSHOT_SUFFIXES[0]) and offset >= log_start_offset:
            found.append((offset, epoch, entry))
    if not found:
        text = f"there is no snapshot at or after its log start {log_start_offset}"
        return Refusal(path, None, text) if log_start_offset else None
    *_, last = max(found, key=lambda one: one[:2])
    reason = last.why_not_a_file()
    if reason is None:
        info = last.info()
        reason = _why_not_snapshot(
            SegmentFile(CLUSTER_METADATA_TOPIC, 0, 0, info.path, info.size_bytes, info.mtime_ns)
        )
    return None if reason is None else Refusal(last.path, None, reason)


def _why_not_snapshot(snapshot: SegmentFile) -> str | None:
    """Return what a node exits over in its newest snapshot.

    A torn end is passed over in silence: what then lacks of the state decides.
    """
    source = LogFileSource.of_segment(snapshot, verify_crc=True)
    count = 0
    for window, start, batches in source.windows():
        count += batches.rows
        magics = window[batches.position_bytes - start + MAGIC_POSITION]
        if (magics != MAGIC_RECORD_BATCH).any():
            return "it has a batch of another magic than 2"
    if source.stop is not None and source.stop.code not in (TORN_BATCH, TORN_HEADER):
        return f"{source.stop.name} at byte {source.stop.position_bytes}"
    return None if count else "it has no header"


_VERSION = "metadata.version"
_SIZE = struct.Struct(">8xi")
#: Kafka's ``Records.HEADER_SIZE_UP_TO_MAGIC`` and ``LegacyRecord.RECORD_OVERHEAD_V0``.
_HEADER_BYTES = 17
_SMALLEST = 14


def why_not_bootstrap(path: str) -> str | None:
    """Return why a broker exits over the file; None where it does not.

    Raises
    ------
    KafkaIndexError
        It is damaged: a broker, which checks no checksum there, may read it or not.
    """
    if os.path.isdir(path):
        return "it is a directory"
    at = _undersized_batch(path)
    if at is not None:
        return f"the batch at byte {at} is smaller than any (CorruptRecordException)"
    info = os.stat(path)
    segment = SegmentFile(CLUSTER_METADATA_TOPIC, 0, 0, path, info.st_size, info.st_mtime_ns)
    log = TopicLog([segment], shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES))
    names = set()
    for record in log.records():
        if not record.is_control:
            decoded = METADATA_CODEC.decode(record.value)
            if decoded.name == "FeatureLevelRecord" and decoded.value is not None:
                names.add(decoded.value.text("name"))
    faults = [one for one in log.faults if one.message not in (TORN_HEADER, TORN_BATCH)]
    if faults:
        raise faults[0]
    return None if _VERSION in names else f"it has no feature level of {_VERSION}"


def _undersized_batch(path: str) -> int | None:
    """Return where a broker finds a batch that is smaller than any; it stops before a torn one.

    Source: ``FileLogInputStream.nextBatch``.
    """
    refuse_linked_out(path)
    with open(path, "rb") as file:
        data = file.read()
    at = 0
    while at < len(data) - _HEADER_BYTES:
        (size,) = _SIZE.unpack_from(data, at)
        if size < _SMALLEST:
            return at
        at += _SIZE.size + size
    return None
