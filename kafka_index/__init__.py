"""Rebuild the indexes of Kafka logs, byte for byte as the broker writes them.

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
    from kafka_index.index import OffsetIndex as OffsetIndex
    from kafka_index.index import TimeIndex as TimeIndex
    from kafka_index.log import read_batches as read_batches

_HOMES = {
    "IndexConfig": "config",
    "KafkaIndexError": "errors",
    "OffsetIndex": "index",
    "SegmentReport": "build",
    "TimeIndex": "index",
    "build_segment_files": "build",
    "read_batches": "log",
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
