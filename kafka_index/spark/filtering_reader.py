"""The reader that Spark pushes filters to (Spark 4.1, ``spark.sql.python.filterPushdown.enabled``).

Filters narrow what is read: offsets to byte ranges, topics and partitions to their logs, timestamps
and keys to records. Spark evaluates all of them again: what a filter means is for Spark to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from kafka_index.layout.integers import INT64_MAX
from kafka_index.reading import PartitionFiles
from kafka_index.spark.data_source import KafkaLogReader
from kafka_index.spark.source_options import SourceOptions
from kafka_index.tables import ReadPlan
from kafka_index.tables.settings import RecordFilter

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


@dataclass(slots=True)
class _Range:
    """Values that filters leave, both ends inclusive."""

    least: int = -INT64_MAX - 1
    most: int = INT64_MAX

    def narrow(self, one: Filter, value: int, *, is_exact: bool = True) -> None:
        """Apply a comparison; an inexact value is one that was rounded down."""
        match one:
            case EqualTo():
                self.least, self.most = max(self.least, value), min(self.most, value)
            case GreaterThan():
                self.least = max(self.least, value + 1 if is_exact else value)
            case GreaterThanOrEqual():
                self.least = max(self.least, value)
            case LessThan():
                self.most = min(self.most, value - 1 if is_exact else value)
            case LessThanOrEqual():
                self.most = min(self.most, value)


class FilteringReader(KafkaLogReader):
    """A reader that reads less where filters allow it; parameters are those of `KafkaLogReader`."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._offsets = _Range()
        self._times = _Range()
        self._key: bytes | None = None
        self._topics: frozenset[str] | None = None
        self._partitions: frozenset[int] | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802, Spark's name
        """Keep what narrows the read; return all filters, for Spark to evaluate."""
        for one in filters:
            name: tuple[str, ...] = getattr(one, "attribute", ())
            apply = self._appliers.get(".".join(name))
            value = getattr(one, "value", None)
            if apply is not None and value is not None:
                apply(one, value)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read."""
        if self._options.rows is None and self._has_record_filter:
            # A filter of records passes over batches by their largest timestamps, too.
            end = None if self._times.most == INT64_MAX else self._times.most + 1
            start = None if self._times.least < -INT64_MAX else self._times.least
            self._settings = replace(
                self._settings, record_filter=RecordFilter(start, end, self._key)
            )
        return super().partitions()

    @property
    def _has_record_filter(self) -> bool:
        return self._key is not None or self._times != _Range()

    @property
    def _appliers(self) -> Mapping[str, Callable[[Filter, Any], None]]:
        if self._options.rows is not None:
            return {"topic": self._apply_topic, "partition": self._apply_partition}
        return {
            "topic": self._apply_topic,
            "partition": self._apply_partition,
            "offset": self._apply_offset,
            "timestamp": self._apply_timestamp,
            "key": self._apply_key,
        }

    def _plan(self, files: Sequence[PartitionFiles], max_split_bytes: int) -> ReadPlan:
        kept = [
            one
            for one in files
            if (self._topics is None or one.topic in self._topics)
            and (self._partitions is None or one.partition in self._partitions)
        ]
        self._within = (self._offsets.least, self._offsets.most)
        return super()._plan(kept, max_split_bytes)

    def _apply_offset(self, one: Filter, value: Any) -> None:
        if type(value) is int:
            self._offsets.narrow(one, value)

    def _apply_timestamp(self, one: Filter, value: Any) -> None:
        # Without a zone there is no telling which time it is.
        if isinstance(value, datetime) and value.tzinfo is not None:
            milliseconds, rest = divmod(value - _EPOCH, _MS)
            self._times.narrow(one, milliseconds, is_exact=not rest)

    def _apply_key(self, one: Filter, value: Any) -> None:
        if isinstance(one, EqualTo) and isinstance(value, bytes | bytearray):
            self._key = bytes(value)

    def _apply_topic(self, one: Filter, value: Any) -> None:
        found = _chosen(one, value, self._topics)
        self._topics = None if found is None else frozenset(map(str, found))

    def _apply_partition(self, one: Filter, value: Any) -> None:
        found = _chosen(one, value, self._partitions)
        self._partitions = None if found is None else frozenset(map(int, found))


def _chosen(one: Filter, value: Any, before: frozenset[Any] | None) -> frozenset[Any] | None:
    """Return the values that are left of those before, None for all."""
    values: frozenset[Any]
    if isinstance(one, EqualTo):
        values = frozenset([value])
    elif isinstance(one, In):
        values = frozenset(value)
    else:
        return before
    return values if before is None else values & before
