"""The Spark engine, and functions that take and return DataFrames.

Spark tasks call the same per-segment functions as threads. The names in `__all__` are public. The
module `daemon` is public, too, because a Spark setting contains its name. Everything else in this
package may change in any release.

Functions use sessions or DataFrames, but no SparkContext, so they also work with Spark Connect.
Only `kafka_index.spark.jobs` distinguishes classic sessions from Connect.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka_index.spark.data_source import KafkaLogSource
    from kafka_index.spark.indexes import build_indexes
    from kafka_index.spark.lookup import list_dump, lookup_offsets, lookup_timestamps

__all__ = [
    "KafkaLogSource",
    "build_indexes",
    "list_dump",
    "lookup_offsets",
    "lookup_timestamps",
]

# Imported on demand, so that the package can be imported without PySpark.
_MODULES = {
    "KafkaLogSource": "data_source",
    "build_indexes": "indexes",
    "list_dump": "lookup",
    "lookup_offsets": "lookup",
    "lookup_timestamps": "lookup",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
