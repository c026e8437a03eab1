"""The ``bootstrap.checkpoint`` of a metadata log directory, which a broker reads at each start.

Source: Kafka's ``BootstrapDirectory.read`` and ``BatchFileReader``.
"""

from __future__ import annotations

import os
import struct

from kafka_index.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.layout.names import CLUSTER_METADATA_TOPIC
from kafka_index.metadata.decoding import METADATA_CODEC
from kafka_index.metadata.topic_log import TopicLog
from kafka_index.records.batch_source import TORN_BATCH, TORN_HEADER
from kafka_index.records.decompression import shared_budget
from kafka_index.storage import SegmentFile
from kafka_index.stores.inputs import refuse_linked_out

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
