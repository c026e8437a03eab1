"""Whether compaction explains the offsets that are missing in a partition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kafka_index.errors import KafkaIndexError
from kafka_index.kernels.headers import HEADER_COLUMNS, HEADER_RECORD_COUNT, read_headers
from kafka_index.layout.internal_topics import COMPACTED_INTERNAL_TOPICS
from kafka_index.layout.names import CLEANER_CHECKPOINT, TopicPartition
from kafka_index.scan import LogFileSource
from kafka_index.storage import SegmentFile
from kafka_index.verification.data_directory import DataDirectory
from kafka_index.verification.known_topics import KnownTopic
from kafka_index.verification.segment import SegmentCheck


def is_compacted(
    partition: TopicPartition,
    topic: KnownTopic | None,
    root: DataDirectory,
    checks: Sequence[SegmentCheck],
) -> bool:
    """Return whether there is evidence that a partition is compacted, or was.

    Parameters
    ----------
    partition : TopicPartition
        The partition.
    topic : KnownTopic or None
        As the metadata of the cluster has it: a topic that it calls deleted may have been compacted
        before.
    root : DataDirectory
        Whose checkpoint of the cleaner names what was cleaned.
    checks : sequence of SegmentCheck
        Its segments: only compaction removes records inside a batch.
    """
    if partition.topic in COMPACTED_INTERNAL_TOPICS or (topic is not None and topic.is_compacted):
        return True
    if root.offset(CLEANER_CHECKPOINT, partition) is not None:
        return True
    with_holes = [check.segment for check in checks if check.whole.hole_count]
    return any(_has_thinned_batch(segment) for segment in with_holes)


def _has_thinned_batch(segment: SegmentFile) -> bool:
    """Return whether a batch holds fewer records than offsets."""
    try:
        source = LogFileSource.of_segment(segment, verify_crc=False)
        for window, start, batches in source.windows():
            headers = np.empty((HEADER_COLUMNS, batches.rows), np.int64)
            read_headers(window, start, batches.position_bytes, headers)
            spans = batches.last_offset - batches.base_offset + 1
            if (headers[HEADER_RECORD_COUNT] < spans).any():
                return True
    except KafkaIndexError:
        return False
    return False
