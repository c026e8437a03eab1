"""The Spark engine: DataFrame in, DataFrame out, over the same per-segment functions.

Sessions come from outside and nothing here uses a SparkContext, so that all of it runs on Spark
Connect as well (`kafka_index.spark.jobs` is the one place that distinguishes them).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka_index.core.query.inventory import collect_inventory as list_dump
    from kafka_index.spark.data_source import KafkaLogSource
    from kafka_index.spark.indexes import build_indexes
    from kafka_index.spark.lookup import lookup_offsets, lookup_timestamps

__all__ = [
    "KafkaLogSource",
    "build_indexes",
    "list_dump",
    "lookup_offsets",
    "lookup_timestamps",
]

# Imported when they are asked for: the package is here without PySpark, too.
_PLACES = {
    "KafkaLogSource": ("kafka_index.spark.data_source", "KafkaLogSource"),
    "build_indexes": ("kafka_index.spark.indexes", "build_indexes"),
    "list_dump": ("kafka_index.commands.lookup", "collect_inventory"),
    "lookup_offsets": ("kafka_index.spark.lookup", "lookup_offsets"),
    "lookup_timestamps": ("kafka_index.spark.lookup", "lookup_timestamps"),
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PLACES[name]
    return getattr(import_module(module), attribute)
