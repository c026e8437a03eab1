"""A log that an import continues: as loading has left it, compared with the log as it was.

A broker that loads a log after an unclean shutdown cuts it at the first invalid batch, and deletes
every later segment. An import does neither: only a last batch that was not written to its end, or
the zeros of preallocation, may go, and only if no checkpoint says that there was more.
"""

from __future__ import annotations

import os
from collections import deque

from kafka_index.errors import InputError
from kafka_index.growing import GrowingPartitionLog
from kafka_index.layout.names import (
    LOG_SUFFIX,
    TopicPartition,
    parse_segment_file,
    segment_file_name,
)
from kafka_index.records.batch_source import ScanStop
from kafka_index.scan import LogFileSource
from kafka_index.storage import SegmentFile
from kafka_index.storage.log_directory import LogDirectory
from kafka_index.writing.staging import Signature


def check_loaded(
    log: GrowingPartitionLog, directory: str, partition: TopicPartition, logs: Signature
) -> None:
    """Check that loading the copy of a partition has cut nothing that counts.

    `directory` is the original, and `logs` its logs. Raises `InputError` if it has.
    """
    sizes = {
        segment_file_name(segment.base_offset, LOG_SUFFIX): segment.size_bytes
        for segment in log.segments
    }
    was = [(name, size) for name, size, _ in logs if parse_segment_file(name) is not None]
    for name, size in was:
        left = sizes.get(name)
        if left == size:
            continue
        path = os.path.join(directory, name)
        stop = _stop_of(path, partition) if left is not None and name == was[-1][0] else None
        if stop is None or stop.position_bytes != left or not stop.is_tail:
            raise InputError(
                "the log is damaged, and would lose records by being loaded",
                path=path,
                position_bytes=left,
                hint="see what is wrong with kafka-index verify; kafka-index restore makes a sound "
                "copy, which can be continued",
            )
        committed = LogDirectory(os.path.dirname(directory)).committed_end(partition)
        if committed > log.log_end_offset:
            raise InputError(
                "the log ends before its high watermark or recovery point: committed records are "
                "lost",
                path=path,
                position_bytes=left,
                expected=f"an end at offset {committed} or later",
                found=log.log_end_offset,
                hint="restore the partition from another replica",
            )


def _stop_of(path: str, partition: TopicPartition) -> ScanStop | None:
    """Return why a scan of the active segment ends before its end."""
    parsed = parse_segment_file(os.path.basename(path))
    if parsed is None:
        return None
    status = os.stat(path)
    segment = SegmentFile(
        partition.topic,
        partition.partition,
        parsed.base_offset,
        path,
        status.st_size,
        status.st_mtime_ns,
    )
    scan = LogFileSource.of_segment(segment, verify_crc=True)
    deque(scan.chunks(), maxlen=0)
    return scan.stop
