"""Rebuild the indexes of Kafka logs as the broker writes them, and look up offsets and times.

The names below are loaded when they are first used, so that importing the package costs nothing,
and neither this package nor anything it loads imports Spark unless Spark is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafka_index.build import SegmentReport as SegmentReport
    from kafka_index.build import build_segment_files as build_segment_files
    from kafka_index.config import IndexConfig as IndexConfig
    from kafka_index.errors import KafkaIndexError as KafkaIndexError
    from kafka_index.index import LazyIndex as LazyIndex
    from kafka_index.index import OffsetIndex as OffsetIndex
    from kafka_index.index import TimeIndex as TimeIndex
    from kafka_index.index import TransactionIndex as TransactionIndex
    from kafka_index.log import LogSegment as LogSegment
    from kafka_index.log import PartitionLog as PartitionLog
    from kafka_index.log import Resolve as Resolve
    from kafka_index.log import UpperBound as UpperBound
    from kafka_index.log import read_batches as read_batches
    from kafka_index.log.leader_epochs import LeaderEpochCache as LeaderEpochCache
    from kafka_index.log.writing import BatchFields as BatchFields
    from kafka_index.log.writing import GrowingLogSegment as GrowingLogSegment
    from kafka_index.log.writing import GrowingPartitionLog as GrowingPartitionLog
    from kafka_index.log.writing import LogSettings as LogSettings
    from kafka_index.log.writing import Record as Record
    from kafka_index.log.writing import write_record_batch as write_record_batch

_HOMES = {
    "BatchFields": "log.writing",
    "GrowingLogSegment": "log.writing",
    "GrowingPartitionLog": "log.writing",
    "IndexConfig": "config",
    "KafkaIndexError": "errors",
    "LazyIndex": "index",
    "LeaderEpochCache": "log.leader_epochs",
    "LogSegment": "log",
    "LogSettings": "log.writing",
    "OffsetIndex": "index",
    "PartitionLog": "log",
    "Record": "log.writing",
    "Resolve": "log",
    "SegmentReport": "build",
    "TimeIndex": "index",
    "TransactionIndex": "index",
    "UpperBound": "log",
    "build_segment_files": "build",
    "read_batches": "log",
    "write_record_batch": "log.writing",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605, because it is one list with the homes of the names


def __getattr__(name: str) -> object:
    """Load a public name."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """List the public names too."""
    return sorted([*globals(), *_HOMES])
