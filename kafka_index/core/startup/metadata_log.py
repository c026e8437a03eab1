"""Checks whether a node starts on its metadata log, which it loads before all topics.

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
from operator import itemgetter

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
from kafka_index.core.startup.identity import configured_node_id, to_refusal
from kafka_index.core.startup.partition_loading import (
    Loading,
    count_lost_records,
    load_partition,
    predict_segments,
)
from kafka_index.core.startup.prediction import Outcome, PartitionPrediction, Refusal

_DATA_VERSION = "data_version"
_DATA_VERSIONS = (0, 1)
_NO_LEADER = -1
# Jackson skips these characters before the first token; Python's parser skips none.
_JSON_WHITESPACE = " \t\r\n"

_PARTITION = TopicPartition(CLUSTER_METADATA_TOPIC, 0)
#: ``Uuid.METADATA_TOPIC_ID``.
_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
_SNAPSHOT_SUFFIXES = (".checkpoint", ".checkpoint.part", ".checkpoint.deleted")
#: Number of digits of the offset and of the epoch in a snapshot's name, around a separator.
_OFFSET_WIDTH, _EPOCH_WIDTH = 20, 10
_METADATA_VERSION = "metadata.version"
_NO_FEATURE_LEVEL = f"the checkpoint has no feature level of {_METADATA_VERSION}"
#: Control records that a broker reads in a bootstrap checkpoint, by type (``BatchFileReader``).
_BOOTSTRAP_CONTROLS = {
    kind: next(schema for schema in KRAFT_CONTROL if schema.name == name)
    for kind, name in (
        (2, "LeaderChangeMessage"),
        (3, "SnapshotHeaderRecord"),
        (4, "SnapshotFooterRecord"),
    )
}
_BATCH_LENGTH = struct.Struct(">8xi")
_NOT_AN_OBJECT = "the first line is not a JSON object"


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
        _check_quorum_state(_parse_first_object(data))
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
        voters = _parse_first_object(data or b"").get("currentVoters")
    except (DirectoryFailsError, ValueError):
        return None
    if not isinstance(voters, list) or len(voters) != 1 or not isinstance(voters[0], dict):
        return None
    voter = voters[0].get("voterId")
    return voter if type(voter) is int else None


def _parse_first_object(data: bytes) -> Mapping[str, object]:
    """Parse the JSON object at the start of the first line; ignore later text, as in Jackson."""
    try:
        lines = java_lines(data.decode())
        parsed, _ = json.JSONDecoder(parse_constant=_reject_constant).raw_decode(
            lines[0].lstrip(_JSON_WHITESPACE) if lines else ""
        )
    except (ValueError, RecursionError):
        raise ValueError(_NOT_AN_OBJECT) from None
    if not isinstance(parsed, dict):
        raise ValueError(_NOT_AN_OBJECT)  # noqa: TRY004
    return parsed


def _reject_constant(name: str) -> None:
    raise ValueError(name)


def _check_quorum_state(state: Mapping[str, object]) -> None:
    """Check the fields in Kafka's order; raise `ValueError` if a field is missing or malformed."""
    if _DATA_VERSION not in state:
        raise ValueError(f"{_DATA_VERSION} is missing")
    version = _to_short(state[_DATA_VERSION])
    if version not in _DATA_VERSIONS:
        raise ValueError(f"{_DATA_VERSION} is {version}, expected 0 or 1")
    has_cluster_id = "clusterId" in state or not version
    if has_cluster_id and not isinstance(_required_field(state, "clusterId"), str):
        raise ValueError("clusterId is not a string")
    leader = _required_integer(state, "leaderId", INT32_MAX)
    epoch = _required_integer(state, "leaderEpoch", INT32_MAX)
    _required_integer(state, "votedId", INT32_MAX)
    if "votedDirectoryId" in state or version:
        directory_id = _required_field(state, "votedDirectoryId")
        if not isinstance(directory_id, str) or parse_java_uuid(directory_id) is None:
            raise ValueError("votedDirectoryId is not a UUID in base64")
    if "appliedOffset" in state or not version:
        _required_integer(state, "appliedOffset", INT64_MAX)
    if "currentVoters" in state or not version:
        _check_voters(_required_field(state, "currentVoters"), version)
    if leader < _NO_LEADER:
        raise ValueError(f"leaderId is {leader}, expected -1 or a node ID")
    if epoch == INT32_MAX:
        raise ValueError(f"leaderEpoch is {epoch}, after which no election is possible")


def _check_voters(voters: object, version: int) -> None:
    if not isinstance(voters, list):
        raise ValueError("currentVoters is not an array")  # noqa: TRY004
    for voter in voters:
        if version:
            raise ValueError("currentVoters is not empty, although data_version is 1")
        if not isinstance(voter, dict):
            raise ValueError("voterId is missing")  # noqa: TRY004
        _required_integer(voter, "voterId", INT32_MAX)


def _required_field(state: Mapping[str, object], name: str) -> object:
    if name not in state:
        raise ValueError(f"{name} is missing")
    return state[name]


def _required_integer(state: Mapping[str, object], name: str, max_value: int) -> int:
    value = _required_field(state, name)
    if type(value) is not int or not -max_value - 1 <= value <= max_value:
        raise ValueError(f"{name} is not a {64 if max_value == INT64_MAX else 32}-bit integer")
    return value


def _to_short(value: object) -> int:
    """Convert a JSON value to 16 bits (``JsonNode.shortValue``); 0 if it is not a number."""
    if type(value) is float:
        value = int(max(min(value, INT32_MAX), -INT32_MAX - 1))
    if type(value) is not int:
        return 0
    return (value + 0x8000) % 0x10000 - 0x8000


def metadata_log_error(directory: str, settings: LogSettings, clock: Clock) -> Refusal | None:
    """Return why a node exits because of its metadata log; None if the log loads or is missing.

    `directory` contains ``__cluster_metadata-0``. Raises `KafkaIndexError` if this process has no
    permission to read a file.
    """
    prediction = predict_metadata_log(directory, settings, clock)
    return prediction if isinstance(prediction, Refusal) else None


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
            snapshots = _list_snapshots(path, log_start_offset)
            newest = max(snapshots, default=(log_start_offset,))[0]
            lost, end_before = count_lost_records(loaded, newest)
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
                segments=tuple(predict_segments(loaded)),
                notes=("no other controller has the records that the metadata log loses",),
            )
        read_topic_id(path)
    except KafkaIndexError as error:
        if is_retriable(error):
            raise
        return to_refusal(StartRefusedError.of(error, path))
    return (
        topic_id_error(path)
        or snapshots_error(path, log_start_offset)
        or quorum_state_error(path)
        or predicted
    )


def topic_id_error(path: str) -> Refusal | None:
    """Return why a node exits because of the topic ID of its metadata log, None if it is valid.

    Raises the errors of `read_topic_id`.
    """
    topic_id = read_topic_id(path)
    if topic_id in (None, _TOPIC_ID):
        return None
    return Refusal(path, None, f"the topic ID is {topic_id}, expected {_TOPIC_ID}")


def read_started_cluster(
    path: str, properties: Mapping[str, str] | None, budget: DecompressionBudget
) -> tuple[ClusterImage | None, str | None]:
    """Read the metadata that a node has after startup, or return why it is unknown.

    `path` is the metadata log or the directory that contains it; `properties` are the node's
    settings, None if unknown. A node truncates its log at the first corruption, and may fetch the
    truncated records from other controllers. Raises `InputError` if there is no metadata log, or if
    this process has no permission to read it.
    """
    metadata = read_metadata([path], budget=budget, topics=(CLUSTER_METADATA_TOPIC,), recovers=True)
    raise_retriable(metadata.faults.first)
    if metadata.cluster is None:
        raise InputError("the directory has no metadata log", path=path)
    if metadata.faults.first:
        return None, f"the metadata log cannot be read: {metadata.faults.first[0]}"
    for truncation in metadata.truncations:
        if (truncation.path or "").endswith(_SNAPSHOT_SUFFIXES[0]):
            if not _is_torn_footer(truncation):
                return None, f"the snapshot of the metadata log is incomplete: {truncation}"
        elif not _is_sole_controller(os.path.dirname(truncation.path or ""), properties):
            return (
                None,
                f"the metadata log is truncated, unlike those of other controllers: {truncation}",
            )
    return metadata.cluster, None


def _is_torn_footer(truncation: CorruptLogError) -> bool:
    """Return whether a snapshot has all its records and only its footer batch is incomplete."""
    data = read_file(truncation.path or "") or b""
    batch = data[truncation.position_bytes or 0 :][: RECORD_BATCH_HEADER.itemsize]
    (header,) = np.frombuffer(
        batch.ljust(RECORD_BATCH_HEADER.itemsize, b"\0"), RECORD_BATCH_HEADER, 1
    )
    return bool(header["attributes"] & CONTROL_MASK)


def _is_sole_controller(metadata_log: str, properties: Mapping[str, str] | None) -> bool:
    voter = sole_voter(metadata_log)
    node_id = configured_node_id(properties)
    if node_id is None:
        try:
            meta_properties = MetaProperties.read(os.path.dirname(metadata_log))
        except DirectoryFailsError:
            meta_properties = None
        node_id = None if meta_properties is None else meta_properties.node_id
    return voter is not None and voter == node_id


def snapshots_error(path: str, log_start_offset: int = 0) -> Refusal | None:
    """Return why a node exits because of its metadata snapshots, None if they are valid.

    `path` is the directory of the log or its URI, and `log_start_offset` is the log start offset
    after loading. Raises `KafkaIndexError` if a file cannot be read.
    """
    try:
        snapshots = _list_snapshots(path, log_start_offset)
    except StartRefusedError as error:
        return to_refusal(error)
    if not snapshots:
        missing = f"no snapshot exists at or after the log start offset {log_start_offset}"
        return Refusal(path, None, missing) if log_start_offset else None
    *_, newest_entry = max(snapshots, key=itemgetter(0, 1))
    reason = newest_entry.file_error()
    if reason is None:
        info = newest_entry.info()
        reason = _snapshot_error(
            path,
            SegmentFile(CLUSTER_METADATA_TOPIC, 0, 0, info.path, info.size_bytes, info.mtime_ns),
        )
    return None if reason is None else Refusal(newest_entry.path, None, reason)


def _list_snapshots(path: str, log_start_offset: int) -> list[tuple[int, int, Entry]]:
    """Return the snapshots at or after the log start: offset, epoch and directory entry.

    Raises `StartRefusedError` if a snapshot's name is malformed.
    """
    snapshots = []
    for entry in scan_directory(path):
        if not entry.name.endswith(_SNAPSHOT_SUFFIXES):
            continue
        offset = parse_java_integer(entry.name[:_OFFSET_WIDTH], INT64_MAX)
        epoch = parse_java_integer(entry.name[_OFFSET_WIDTH + 1 :][:_EPOCH_WIDTH], INT32_MAX)
        if offset is None or epoch is None:
            raise StartRefusedError("the file name is not OFFSET-EPOCH.checkpoint", path=entry.path)
        if entry.name.endswith(_SNAPSHOT_SUFFIXES[0]) and offset >= log_start_offset:
            snapshots.append((offset, epoch, entry))
    return snapshots


def _snapshot_error(path: str, snapshot: SegmentFile) -> str | None:
    """Return why a node exits because of its newest snapshot.

    A node ignores a torn end of the snapshot, unless no complete batch before the end sets the
    metadata version.
    """
    source = LogFileSource.of_segment(snapshot, verify_crc=True)
    batch_count = 0
    for window, window_start, batches in source.windows():
        batch_count += batches.rows
        magics = window[batches.position_bytes - window_start + MAGIC_POSITION]
        if (magics != MAGIC_RECORD_BATCH).any():
            return "the snapshot has a batch with a magic other than 2"
    if not batch_count:
        return "the snapshot has no header"
    if source.stop is None:
        return None
    if source.stop.code not in (TORN_BATCH, TORN_HEADER):
        return f"{source.stop.name} at byte {source.stop.position_bytes}"
    budget = shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES)
    metadata = read_metadata([path], budget=budget, topics=(CLUSTER_METADATA_TOPIC,), recovers=True)
    raise_retriable(metadata.faults.first)
    if metadata.cluster is None or _METADATA_VERSION in metadata.cluster.features:
        return None
    position_bytes = source.stop.position_bytes
    return (
        f"it is torn at byte {position_bytes}, and no record before that byte sets "
        f"the feature level of {_METADATA_VERSION}"
    )


def bootstrap_error(path: str) -> str | None:
    """Return why a broker exits because of the bootstrap checkpoint, None if it is valid.

    Raises `KafkaIndexError` if this process has no permission to read the file, or if it is unclear
    whether a broker can read its contents.
    """
    try:
        data = read_file(path)
    except BadFileError as error:
        return error.message
    if not data:
        return None if data is None else _NO_FEATURE_LEVEL
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
    if log.truncation is not None and log.truncation.message not in (TORN_HEADER, TORN_BATCH):
        raise log.truncation
    return None if has_level else _NO_FEATURE_LEVEL


def _read_bootstrap_record(record: LogRecord) -> bool:
    """Return whether the record sets the metadata version.

    Raises `CorruptRecordError` if a broker cannot read the record.
    """
    if not record.is_control:
        decoded = METADATA_CODEC.decode(record.value)
        if decoded.name != "FeatureLevelRecord" or decoded.value is None:
            return False
        return decoded.value.text("name") == _METADATA_VERSION
    key = MessageReader(record.key or b"")
    version, control_type = key.int16(), key.int16()
    schema = _BOOTSTRAP_CONTROLS.get(control_type)
    if version < 0 or schema is None:
        raise CorruptRecordError(
            f"a control record has the unknown type {control_type}, version {version}"
        )
    if record.value is None:
        raise CorruptRecordError("a control record has no value")
    schema.read(MessageReader(record.value), 0)
    return False


def _batches_error(data: bytes) -> str | None:
    """Return which batch header a broker cannot read; an incomplete batch ends the file.

    Source: ``FileLogInputStream.nextBatch``, ``Batch.data``.
    """
    position_bytes = 0
    while position_bytes < len(data) - HEADER_SIZE_UP_TO_MAGIC:
        (length,) = _BATCH_LENGTH.unpack_from(data, position_bytes)
        end_bytes = position_bytes + _BATCH_LENGTH.size + length
        if length < MIN_LENGTH:
            return (
                f"the batch at byte {position_bytes} has an invalid length (CorruptRecordException)"
            )
        if end_bytes > len(data):
            break
        if data[position_bytes + MAGIC_POSITION] == MAGIC_RECORD_BATCH:
            if end_bytes - position_bytes < RECORD_BATCH_HEADER.itemsize:
                return f"the batch at byte {position_bytes} is shorter than its header"
            (header,) = np.frombuffer(data, RECORD_BATCH_HEADER, 1, position_bytes)
            if not header["record_count"]:
                return f"the batch at byte {position_bytes} has no records"
        position_bytes = end_bytes
    return None
