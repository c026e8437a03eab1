"""The ``bootstrap.checkpoint`` of a metadata log directory, which a broker reads at each start.

Source: Kafka's ``BootstrapDirectory.read`` and ``BatchFileReader``.
"""

from __future__ import annotations

import os

from kafka_index.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.layout.internal_topics import CLUSTER_METADATA_TOPIC
from kafka_index.metadata.decoding import METADATA_CODEC
from kafka_index.metadata.topic_log import TopicLog
from kafka_index.records.decompression import shared_budget
from kafka_index.storage import SegmentFile

_VERSION = "metadata.version"


def why_not_bootstrap(path: str) -> str | None:
    """Return why a broker exits over the file; None where it does not.

    Raises
    ------
    KafkaIndexError
        It is damaged: a broker, which checks no checksum there, may read it or not.
    """
    if os.path.isdir(path):
        return "it is a directory"
    info = os.stat(path)
    segment = SegmentFile(CLUSTER_METADATA_TOPIC, 0, 0, path, info.st_size, info.st_mtime_ns)
    log = TopicLog([segment], shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES))
    names = set()
    for record in log.records():
        if not record.is_control:
            decoded = METADATA_CODEC.decode(record.value)
            if decoded.name == "FeatureLevelRecord" and decoded.value is not None:
                names.add(decoded.value.text("name"))
    if log.faults:
        raise log.faults[0]
    return None if _VERSION in names else f"it has no feature level of {_VERSION}"
