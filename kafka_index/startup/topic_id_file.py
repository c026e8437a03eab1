"""The ``partition.metadata`` of a partition directory, as a broker reads it.

Source: Kafka's ``UnifiedLog.initializeTopicId`` and ``PartitionMetadataReadBuffer``.
"""

from __future__ import annotations

import os
import re

from kafka_index.layout.integers import INT32_MAX, parse_java_integer
from kafka_index.layout.message_fields import ZERO_UUID
from kafka_index.layout.names import PARTITION_METADATA
from kafka_index.layout.quoted_content import quote_content
from kafka_index.startup.java_texts import java_lines, parse_java_uuid
from kafka_index.startup.prediction import OfflineAtOnceError, StartRefusedError
from kafka_index.startup.root_bytes import read_root_file

_SPLIT = re.compile(r":[ \t\n\v\f\r]+")


def read_topic_id(directory: str) -> str | None:
    """Return the topic id of a partition directory; None where the file is missing.

    Raises
    ------
    OfflineAtOnceError
        The file is malformed: a broker takes the data directory offline.
    StartRefusedError
        A broker exits: a line is missing, or the id is not one.
    """
    path = os.path.join(directory, PARTITION_METADATA)
    data = read_root_file(path)
    if data is None:
        return None
    try:
        lines = java_lines(data)
    except UnicodeDecodeError as error:
        raise OfflineAtOnceError(
            "malformed partition metadata: not UTF-8 text", path=path, position_bytes=error.start
        ) from error
    version = parse_java_integer(_value(lines, 0, path), INT32_MAX)
    if version is None or version < 0:
        raise OfflineAtOnceError(
            "malformed partition metadata",
            path=path,
            expected="version: 0 and topic_id",
            found=quote_content(lines[0], path),
            line=1,
        )
    topic_id = parse_java_uuid(_value(lines, 1, path))
    if topic_id is None or topic_id == ZERO_UUID:
        error_class = StartRefusedError if topic_id is None else OfflineAtOnceError
        raise error_class(
            "no topic id in the partition metadata",
            path=path,
            found=quote_content(lines[1], path),
            line=2,
        )
    return topic_id


def _value(lines: list[str], at: int, path: str) -> str:
    if at >= len(lines):
        raise StartRefusedError(
            "malformed partition metadata: a line is missing",
            path=path,
            expected="version: 0 and topic_id",
            found=f"{len(lines)} lines",
            line=at + 1,
        )
    parts = _SPLIT.split(lines[at])
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    if len(parts) != 2:
        raise OfflineAtOnceError(
            "malformed partition metadata",
            path=path,
            expected="version: 0" if at == 0 else "topic_id: ID",
            found=quote_content(lines[at], path),
            line=at + 1,
        )
    return parts[1]
