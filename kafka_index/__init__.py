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
    from kafka_index.growing import GrowingLogSegment as GrowingLogSegment
    from kafka_index.growing import GrowingPartitionLog as GrowingPartitionLog
    from kafka_index.growing import LogSettings as LogSettings
    from kafka_index.index import LazyIndex as LazyIndex
    from kafka_index.index import OffsetIndex as OffsetIndex
    from kafka_index.index import TimeIndex as TimeIndex
    from kafka_index.index import TransactionIndex as TransactionIndex
    from kafka_index.reading import LogSegment as LogSegment
    from kafka_index.reading import PartitionLog as PartitionLog
    from kafka_index.reading import Resolve as Resolve
    from kafka_index.reading import UpperBound as UpperBound
    from kafka_index.records import BatchFields as BatchFields
    from kafka_index.records import Record as Record
    from kafka_index.records import write_record_batch as write_record_batch
    from kafka_index.scan import read_batches as read_batches
    from kafka_index.state import LeaderEpochCache as LeaderEpochCache
    from kafka_index.tables import read_records as read_records
    from kafka_index.verification import verify as verify

__version__ = "0.1.0"

_HOMES = {
    "BatchFields": "records",
    "GrowingLogSegment": "growing",
    "GrowingPartitionLog": "growing",
    "IndexConfig": "config",
    "KafkaIndexError": "errors",
    "LazyIndex": "index",
    "LeaderEpochCache": "state",
    "LogSegment": "reading",
    "LogSettings": "growing",
    "OffsetIndex": "index",
    "PartitionLog": "reading",
    "Record": "records",
    "Resolve": "reading",
    "SegmentReport": "build",
    "TimeIndex": "index",
    "TransactionIndex": "index",
    "UpperBound": "reading",
    "build_segment_files": "build",
    "read_batches": "scan",
    "read_records": "tables",
    "verify": "verification",
    "write_record_batch": "records",
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
