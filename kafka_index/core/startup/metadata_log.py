"""The metadata log, which every node loads before its topics: whether a node starts on it.

Sources: Kafka's ``KafkaRaftManager``, ``KafkaRaftLog.createLog``, ``Snapshots.parse``,
``KafkaRaftClient.initialize``, ``BootstrapDirectory.read``, ``FileQuorumStateStore``,
``QuorumStateDataJsonConverter``, ``QuorumState.initialize``.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from kafka_index.core.cluster.metadata.cluster_image import ClusterImage
from kafka_index.core.cluster.metadata.decoding import (
    METADATA_CODEC,
    LaterVersionError,
    LogRecord,
    TopicLog,
)
from kafka_index.core.cluster.metadata.directory import read_metadata
from kafka_index.core.errors import (
    BadFileError,
    CorruptLogError,
    CorruptRecordError,
    DirectoryFailsError,
    InputError,
    KafkaIndexError,
    StartRefusedError,
    TooLargeError,
    is_retriable,
    raise_retriable,
)
from kafka_index.core.format.checkpoints import java_lines
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.integers import INT32_MAX, INT64_MAX, parse_java_integer
from kafka_index.core.format.message_bytes import MessageReader
from kafka_index.core.format.messages import KRAFT_CONTROL
from kafka_index.core.format.names import (
    CLUSTER_METADATA_TOPIC,
    METADATA_LOG,
    QUORUM_STATE,
    TopicPartition,
)
from kafka_index.core.format.records import (
    CONTROL_MASK,
    HEADER_SIZE_UP_TO_MAGIC,
    MAGIC_POSITION,
    MAGIC_RECORD_BATCH,
    MIN_LENGTH,
    RECORD_BATCH_HEADER,
)
from kafka_index.core.format.strings import parse_java_uuid, quote_content
from kafka_index.core.fs.registry import scan_directory
from kafka_index.core.fs.store import Entry
from kafka_index.core.log.append.log_segment_writer import Clock
from kafka_index.core.log.append.settings import LogSettings
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.logdir.metadata_files import MetaProperties, read_file, read_topic_id
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.batch_table import TORN_BATCH, TORN_HEADER
from kafka_index.core.records.decompression import DecompressionBudget, shared_budget
from kafka_index.core.startup.identity import configured_node, refusal_of
from kafka_index.core.startup.partition_loading import (
    Loading,
    changed_segments,
    load_partition,
    lost_records,
)
from kafka_index.core.startup.prediction import Outcome, PartitionPrediction, Refusal

_DATA_VERSION = "data_version"
_VERSIONS = (0, 1)
_UNKNOWN = -1
# Jackson skips these characters before the first token; Python's parser skips none.
_BLANKS = " \t\r\n"

_PARTITION = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
#: ``Uuid.METADATA_TOPIC_ID``.
_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
_SNAPSHOT_SUFFIXES = (".checkpoint", ".checkpoint.part", ".checkpoint.deleted")
#: Number of digits of the offset and of the epoch in a snapshot's name, around a separator.
_OFFSET_WIDTH, _EPOCH_WIDTH = 20, 10
_VERSION = "metadata.version"
_NO_LEVEL = f"it has no feature level of {_VERSION}"
#: Control records that a broker reads in a bootstrap checkpoint, by type (``BatchFileReader``).
_BOOTSTRAP_CONTROLS = {
    kind: next(schema for schema in KRAFT_CONTROL if schema.name == name)
    for kind, name in (
        (2, "LeaderChangeMessage"),
        (3, "SnapshotHeaderRecord"),
        (4, "SnapshotFooterRecord"),
    )
}
_SIZE = struct.Struct(">8xi")


def quorum_state_error(metadata_log: str) -> Refusal | None:
    """Return why a node exits because of its quorum state, None if it does not.

    `metadata_log` is the directory ``__cluster_metadata-0`` or its URI. Without the file, the node
    uses the epoch of the log. Raises `InputError` if this process has no permission to read the
    file.
    """
    path = os.path.join(metadata_log, QUORUM_STATE)
    try:
        data = read_file(path)
    except DirectoryFailsError as error:
        return Refusal(path, None, error.message)
    if data is None:
        return None
    try:
        _check(_first_object(data))
    except ValueError as error:
        content = quote_content(data.decode(errors="replace"), path)
        return Refusal(path, None, f"{error}, found {content}")
    return None


def sole_voter(metadata_log: str) -> int | None:
    """Return the only controller in the quorum state, None if there are several or none.

    Raises `InputError` if this process has no permission to read the file.
    """
    try:
        data = read_file(os.path.join(metadata_log, QUORUM_STATE))
        voters = _first_object(data or b"").get("currentVoters")
    except (DirectoryFailsError, ValueError):
        return None
    if not isinstance(voters, list) or len(voters) != 1 or not isinstance(voters[0], dict):
        return None
    voter = voters[0].get("voterId")
    return voter if type(voter) is int else None


def _first_object(data: bytes) -> Mapping[str, object]:
    """Parse the JSON object at the start of the first line; the rest is ignored, as in Jackson."""
    try:
        lines = java_lines(data.decode())
        found, _ = json.JSONDecoder(parse_constant=_refuse).raw_decode(
            lines[0].lstrip(_BLANKS) if lines else ""
        )
    except (ValueError, RecursionError):
        raise ValueError("its first line is not a JSON object") from None
    if not isinstance(found, dict):
        raise ValueError("its first line is not a JSON object")  # noqa: TRY004
    return found


def _refuse(name: str) -> None:
    raise ValueError(name)


def _check(state: Mapping[str, object]) -> None:
    """Check the fields in Kafka's order; raise `ValueError` if one is missing or malformed."""
    if _DATA_VERSION not in state:
        raise ValueError(f"{_DATA_VERSION} is missing")
    version = _short(state[_DATA_VERSION])
    if version not in _VERSIONS:
        raise ValueError(f"{_DATA_VERSION} is {version}, expected 0 or 1")
    has_cluster_id = "clusterId" in state or not version
    if has_cluster_id and not isinstance(_field(state, "clusterId"), str):
        raise ValueError("clusterId is not a string")
    leader = _integer(state, "leaderId", INT32_MAX)
    epoch = _integer(state, "leaderEpoch", INT32_MAX)
    _integer(state, "votedId", INT32_MAX)
    if "votedDirectoryId" in state or version:
        text = _field(state, "votedDirectoryId")
        if not isinstance(text, str) or parse_java_uuid(text) is None:
            raise ValueError("votedDirectoryId is not a UUID in base64")
    if "appliedOffset" in state or not version:
        _integer(state, "appliedOffset", INT64_MAX)
    if "currentVoters" in state or not version:
        _check_voters(_field(state, "currentVoters"), version)
    if leader < _UNKNOWN:
        raise ValueError(f"leaderId is {leader}, expected -1 or a node")
    if epoch == INT32_MAX:
        raise ValueError(f"leaderEpoch is {epoch}, and no election can follow")


def _check_voters(voters: object, version: int) -> None:
    if not isinstance(voters, list):
        raise ValueError("currentVoters is not an array")  # noqa: TRY004
    for voter in voters:
        if version:
            raise ValueError("currentVoters is not empty, expected none in data_version 1")
        if not isinstance(voter, dict):
            raise ValueError("voterId is missing")  # noqa: TRY004
        _integer(voter, "voterId", INT32_MAX)


def _field(state: Mapping[str, object], name: str) -> object:
    if name not in state:
        raise ValueError(f"{name} is missing")
    return state[name]


def _integer(state: Mapping[str, object], name: str, largest: int) -> int:
    value = _field(state, name)
    if type(value) is not int or not -largest - 1 <= value <= largest:
        raise ValueError(f"{name} is not a {64 if largest == INT64_MAX else 32}-bit integer")
    return value


def _short(value: object) -> int:
    """Convert a JSON value to 16 bits (``JsonNode.shortValue``); 0 if it is not a number."""
    if type(value) is float:
        value = int(max(min(value, INT32_MAX), -INT32_MAX - 1))
    if type(value) is not int:
        return 0
    return (value + 0x8000) % 0x10000 - 0x8000


def metadata_log_error(directory: str, settings: LogSettings, clock: Clock) -> Refusal | None:
    """Return why a node exits because of its metadata log; None if it does not, or has none.

    `directory` contains ``__cluster_metadata-0``. Raises `KafkaIndexError` if this process has no
    permission to read a file.
    """
    found = predict_metadata_log(directory, settings, clock)
    return found if isinstance(found, Refusal) else None


def predict_metadata_log(
    directory: str, settings: LogSettings, clock: Clock
) -> Refusal | PartitionPrediction | None:
    """Predict the loading of a metadata log: a refusal or a prediction; None if there is no log.

    Records before the newest snapshot are not counted as lost. Raises `KafkaIndexError` like
    `metadata_log_error`.
    """
    path = os.path.join(directory, METADATA_LOG)
    if not os.path.isdir(path):
        return None
    # The metadata log is recovered from its start, regardless of clean shutdown files and
    # checkpoints.
    loading = Loading(is_clean=False, settings=settings, clock=clock)
    predicted = PartitionPrediction(CLUSTER_METADATA_TOPIC, 0, path, Outcome.LOADED)
    try:
        with load_partition(_PARTITION, path, loading) as loaded:
            log_start_offset = loaded.log.log_start_offset
            snapshots = _snapshots(path, log_start_offset)
            newest = max(snapshots, default=(log_start_offset,))[0]
            lost, end_before = lost_records(loaded, newest)
            log = loaded.log
            if newest > log.log_end_offset:
                # ReplicatedLog.truncateToLatestSnapshot
                log = replace(
                    log,
                    log_start_offset=newest,
                    log_end_offset=newest,
                    base_offsets=(newest,),
                )
            predicted = replace(
                predicted,
                log_start_before=log_start_offset,
                log_end_before=end_before,
                loaded=log,
                high_watermark=log.log_end_offset,
                lost=lost,
                segments=tuple(changed_segments(loaded)),
                notes=("no other controller has the records that the metadata log loses",),
            )
        read_topic_id(path)
    except KafkaIndexError as error:
        if is_retriable(error):
            raise
        return refusal_of(StartRefusedError.of(error, path))
    return (
        topic_id_error(path)
        or snapshots_error(path, log_start_offset)
        or quorum_state_error(path)
        or predicted
    )


def topic_id_error(path: str) -> Refusal | None:
    """Return why a node exits because of the topic ID of its metadata log, None if it does not.

    Raises `StartRefusedError` if a node exits on this file as it does for any partition.
    """
    topic_id = read_topic_id(path)
    if topic_id in (None, _TOPIC_ID):
        return None
    return Refusal(path, None, f"its topic id is {topic_id}, expected {_TOPIC_ID}")


def read_started_cluster(
    path: str, properties: Mapping[str, str] | None, budget: DecompressionBudget
) -> tuple[ClusterImage | None, str | None]:
    """Read the metadata that a node has after startup, or return why it is unknown.

    `path` is the metadata log or the directory that contains it; `properties` are the node's
    settings, None if unknown. A node truncates its log at the first corruption and may fetch the
    rest from other controllers. Raises `InputError` if there is no metadata log, or no permission
    to read it.
    """
    found = read_metadata([path], budget=budget, topics=(CLUSTER_METADATA_TOPIC,), recovers=True)
    raise_retriable(found.faults.first)
    if found.cluster is None:
        raise InputError("there is no metadata log", path=path)
    if found.faults.first:
        return None, f"the metadata log cannot be read: {found.faults.first[0]}"
    for cut in found.cuts:
        if (cut.path or "").endswith(_SNAPSHOT_SUFFIXES[0]):
            if not _is_torn_footer(cut):
                return None, f"the metadata log lacks a part of its snapshot: {cut}"
        elif not _is_sole_controller(os.path.dirname(cut.path or ""), properties):
            return (
                None,
                f"the metadata log is truncated, and other controllers may have the rest: {cut}",
            )
    return found.cluster, None


def _is_torn_footer(cut: CorruptLogError) -> bool:
    """Return whether a snapshot has all its records and only its footer batch is incomplete."""
    data = read_file(cut.path or "") or b""
    batch = data[cut.position_bytes or 0 :][: RECORD_BATCH_HEADER.itemsize]
    (header,) = np.frombuffer(
        batch.ljust(RECORD_BATCH_HEADER.itemsize, b"\0"), RECORD_BATCH_HEADER, 1
    )
    return bool(header["attributes"] & CONTROL_MASK)


def _is_sole_controller(metadata_log: str, properties: Mapping[str, str] | None) -> bool:
    voter = sole_voter(metadata_log)
    node_id = configured_node(properties)
    if node_id is None:
        try:
            found = MetaProperties.read(os.path.dirname(metadata_log))
        except DirectoryFailsError:
            found = None
        node_id = None if found is None else found.node_id
    return voter is not None and voter == node_id


def snapshots_error(path: str, log_start_offset: int = 0) -> Refusal | None:
    """Return why a node exits because of its metadata snapshots, None if it does not.

    `path` is the directory of the log or its URI; `log_start_offset` is the loaded log's.
    Raises `KafkaIndexError` if a file cannot be read.
    """
    try:
        found = _snapshots(path, log_start_offset)
    except StartRefusedError as error:
        return refusal_of(error)
    if not found:
        text = f"there is no snapshot at or after its log start {log_start_offset}"
        return Refusal(path, None, text) if log_start_offset else None
    *_, last = max(found, key=lambda one: one[:2])
    reason = last.file_error()
    if reason is None:
        info = last.info()
        reason = _snapshot_error(
            path,
            SegmentFile(CLUSTER_METADATA_TOPIC, 0, 0, info.path, info.size_bytes, info.mtime_ns),
        )
    return None if reason is None else Refusal(last.path, None, reason)


def _snapshots(path: str, log_start_offset: int) -> list[tuple[int, int, Entry]]:
    """Return the snapshots at or after the log start: offset, epoch and entry.

    Raises `StartRefusedError` if a snapshot's name is malformed.
    """
    found = []
    for entry in scan_directory(path):
        if not entry.name.endswith(_SNAPSHOT_SUFFIXES):
            continue
        offset = parse_java_integer(entry.name[:_OFFSET_WIDTH], INT64_MAX)
        epoch = parse_java_integer(entry.name[_OFFSET_WIDTH + 1 :][:_EPOCH_WIDTH], INT32_MAX)
        if offset is None or epoch is None:
            raise StartRefusedError("its name is not OFFSET-EPOCH.checkpoint", path=entry.path)
        if entry.name.endswith(_SNAPSHOT_SUFFIXES[0]) and offset >= log_start_offset:
            found.append((offset, epoch, entry))
    return found


def _snapshot_error(path: str, snapshot: SegmentFile) -> str | None:
    """Return why a node exits because of its newest snapshot.

    An incomplete end is silently ignored. Without a feature level, the state is not published.
    """
    source = LogFileSource.of_segment(snapshot, verify_crc=True)
    count = 0
    for window, start, batches in source.windows():
        count += batches.rows
        magics = window[batches.position_bytes - start + MAGIC_POSITION]
        if (magics != MAGIC_RECORD_BATCH).any():
            return "it has a batch with a magic other than 2"
    if not count:
        return "it has no header"
    if source.stop is None:
        return None
    if source.stop.code not in (TORN_BATCH, TORN_HEADER):
        return f"{source.stop.name} at byte {source.stop.position_bytes}"
    budget = shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES)
    found = read_metadata([path], budget=budget, topics=(CLUSTER_METADATA_TOPIC,), recovers=True)
    raise_retriable(found.faults.first)
    if found.cluster is None or _VERSION in found.cluster.features:
        return None
    at = source.stop.position_bytes
    return f"it is torn at byte {at}, and no feature level of {_VERSION} is left"


def bootstrap_error(path: str) -> str | None:
    """Return why a broker exits because of the bootstrap checkpoint, None if it does not.

    Raises `KafkaIndexError` if this process has no permission to read it, or if it is unclear
    whether a broker can read its contents.
    """
    try:
        data = read_file(path)
    except BadFileError as error:
        return error.message
    if not data:
        return None if data is None else _NO_LEVEL
    reason = _batches_error(data)
    if reason is not None:
        return reason
    info = os.stat(path)
    segment = SegmentFile(CLUSTER_METADATA_TOPIC, 0, 0, path, info.st_size, info.st_mtime_ns)
    # A broker does not verify checksums in this file.
    budget = shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES)
    log = TopicLog([segment], budget, verify_crc=False, recovers=True)
    has_level = False
    for record in log.records():
        try:
            has_level |= _read_bootstrap_record(record)
        except LaterVersionError:
            raise
        except CorruptRecordError as error:
            return f"the record at offset {record.offset} cannot be read: {error}"
    for fault in log.faults:
        if isinstance(fault, TooLargeError) or not isinstance(fault, CorruptLogError):
            raise fault
        return f"the records at byte {fault.position_bytes} cannot be read: {fault.message}"
    if log.cut is not None and log.cut.message not in (TORN_HEADER, TORN_BATCH):
        raise log.cut
    return None if has_level else _NO_LEVEL


def _read_bootstrap_record(record: LogRecord) -> bool:
    """Return whether the record sets the metadata version.

    Raises `CorruptRecordError` if a broker cannot read the record.
    """
    if not record.is_control:
        decoded = METADATA_CODEC.decode(record.value)
        if decoded.name != "FeatureLevelRecord" or decoded.value is None:
            return False
        return decoded.value.text("name") == _VERSION
    key = MessageReader(record.key or b"")
    version, kind = key.int16(), key.int16()
    schema = _BOOTSTRAP_CONTROLS.get(kind)
    if version < 0 or schema is None:
        raise CorruptRecordError(f"a control record of type {kind}, version {version}")
    if record.value is None:
        raise CorruptRecordError("a control record without a value")
    schema.read(MessageReader(record.value), 0)
    return False


def _batches_error(data: bytes) -> str | None:
    """Return which batch has a header that a broker cannot read; an incomplete one ends the file.

    Source: ``FileLogInputStream.nextBatch``, ``Batch.data``.
    """
    at = 0
    while at < len(data) - HEADER_SIZE_UP_TO_MAGIC:
        (size,) = _SIZE.unpack_from(data, at)
        end = at + _SIZE.size + size
        if size < MIN_LENGTH:
            return f"the batch at byte {at} has an impossible size (CorruptRecordException)"
        if end > len(data):
            break
        if data[at + MAGIC_POSITION] == MAGIC_RECORD_BATCH:
            if end - at < RECORD_BATCH_HEADER.itemsize:
                return f"the batch at byte {at} is shorter than its header"
            (header,) = np.frombuffer(data, RECORD_BATCH_HEADER, 1, at)
            if not header["record_count"]:
                return f"the batch at byte {at} has no record"
        at = end
    return None
