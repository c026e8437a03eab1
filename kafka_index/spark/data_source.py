"""The Python data source ``kafka-log``: log directories at rest in place of a broker.

    spark.dataSource.register(KafkaLogSource)
    spark.read.format("kafka-log").option("path", "/dump/broker-1").option("subscribe", "orders")

A thin layer over `kafka_index.tables`: the driver plans, each task reads a group of splits. It uses
no JVM API, so it works on Spark Connect as well. Filters that Spark pushes
(``spark.sql.python.filterPushdown.enabled``) narrow the read: offsets to byte ranges, topics and
partitions to their logs, timestamps and keys to records. Spark evaluates all of them again: the
meaning of a filter is Spark's to decide.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    StringType,
    StructField,
    StructType,
)

from kafka_index.dump.missing_offsets import SeenLog
from kafka_index.errors import InputError
from kafka_index.layout.integers import INT64_MAX
from kafka_index.layout.names import TopicPartition
from kafka_index.layout.times import now_ms
from kafka_index.reading import PartitionFiles
from kafka_index.records.record_table import CORRUPT_RECORD, RECORD_SCHEMA
from kafka_index.results import MissingOffsets
from kafka_index.spark.source_options import SourceOptions, check_partitions, parse_options
from kafka_index.spark.workers import arrow_schema
from kafka_index.storage import expand_directories
from kafka_index.storage.paths import pinned_run
from kafka_index.stores import configure_stores, is_remote
from kafka_index.stores.inputs import reading_inputs
from kafka_index.tables import OnDamage, ReadPlan, ReadSettings, RecordReader, RecordSplit
from kafka_index.tables.read_plan import part_of_partition
from kafka_index.tables.record_reader import BatchReader, batch_schema
from kafka_index.tables.records import gap_rows, list_partitions, plan_partitions
from kafka_index.tables.settings import RecordFilter

_log = logging.getLogger(__name__)

# As Spark's Kafka source has it: elements can be null.
_HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
_ALL_COLUMNS = RECORD_SCHEMA.append(pa.field(CORRUPT_RECORD, pa.string()))

_SIGNS: dict[type[Filter], str] = {
    EqualTo: "=",
    In: "in",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
#: Finds what is missing in the parts of logs that a split has read.
MissingInSplit = Callable[[Sequence[SeenLog]], MissingOffsets]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


class KafkaLogSource(DataSource):
    """The data source ``kafka-log``."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Pickled with the source: times are relative to when the table was loaded, however often
        # it is planned and read.
        self._now = now_ms()

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "kafka-log"

    def schema(self) -> StructType:
        """Return the schema that the options ask for."""
        options = parse_options(self.options, now=self._now)
        rows, settings = options.rows, options.settings
        types = _types(settings.schema if rows is None else batch_schema(rows, settings))
        return StructType([StructField(name, kind) for name, kind in types.items()])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a schema, whose columns alone are read."""
        options = parse_options(self.options, now=self._now)
        if not options.push_filters:
            return KafkaLogReader(options, schema)
        # A reader that has the method fails where Spark's setting is off, as it is by default.
        return FilteringReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001, because Spark calls it so
        """Return the writer of rows; without `overwrite` they continue the logs."""
        # Tasks that read need nothing of it.
        from kafka_index.spark.log_writer import KafkaLogWriter  # noqa: PLC0415

        return KafkaLogWriter(self.options, schema, overwrite=overwrite)


def _types(schema: pa.Schema) -> dict[str, DataType]:
    """Return columns with their types in Spark."""
    return {
        field.name: _HEADERS if field.name == "headers" else from_arrow_type(field.type)
        for field in schema
    }


class KafkaLogReader(DataSourceReader):
    """Reads the records of log directories."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        configure_stores(options.storage)
        # Chosen once: tasks read what was planned.
        self._options = replace(
            options,
            paths=tuple(map(pinned_run, options.paths)),
        )
        self._schema = schema
        self._settings = _settings_of(options, schema)
        # Offsets that are wanted, both inclusive; None for all.
        self._within: tuple[int, int] | None = None

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read, a group of splits for each task."""
        options = self._options
        if options.ignored:
            _log.warning("options without effect on logs at rest: %s", ", ".join(options.ignored))
        configure_stores(options.storage)
        with reading_inputs(follow_links=options.follow_links):
            listed = list_partitions(
                options.paths,
                topics=options.topics,
                partitions=options.partitions,
                tiered=options.tiered,
                indexes=options.indexes,
            )
        files = listed.files
        check_partitions(options, files)
        task_bytes = options.max_bytes
        plan = self._plan(files, task_bytes)
        if options.min_partitions > 1:
            task_bytes = max(1, min(task_bytes, plan.size_bytes // options.min_partitions))
            plan = self._plan(files, task_bytes)
        groups = [[split] for split in plan.splits]
        if options.max_records is None:
            groups = _groups(plan.splits, task_bytes)
        finder = listed.gap_finder(self._settings.max_decompressed_bytes)
        files_of = {TopicPartition(one.topic, one.partition): one for one in files}

        def missing_in(split: RecordSplit) -> MissingInSplit | None:
            if not split.ranges:
                return None
            read = part_of_partition(files_of[split.topic_partition], split)
            return partial(finder.find, read)

        tasks = [[(split, missing_in(split)) for split in group] for group in groups]
        return list(map(InputPartition, tasks or [[]]))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a group of splits."""
        # The keys of tiered storage were added when its segments were listed.
        tiered = self._options.tiered
        keys = () if tiered is None else tiered.keys
        configure_stores(replace(self._options.storage, tiered_keys=keys))
        with reading_inputs(follow_links=self._options.follow_links):
            local = [path for path in self._options.paths if not is_remote(path)]
            if local:
                # So that links are judged here as where the paths were listed.
                expand_directories(local)
        schema = arrow_schema(self._schema)
        for split, find_missing in partition.value:
            for batch in self._batches(split, find_missing):
                ordered = batch.select(schema.names)
                yield pa.RecordBatch.from_arrays(
                    [
                        _cast(column, to.type)
                        for column, to in zip(ordered.columns, schema, strict=True)
                    ],
                    schema=schema,
                )

    def _batches(
        self, split: RecordSplit, missing: MissingInSplit | None
    ) -> Iterator[pa.RecordBatch]:
        if self._options.rows is not None:
            yield from BatchReader(split, self._options.rows, self._settings)
            return
        reader = RecordReader(split, self._settings)
        yield from reader
        if missing is not None:
            yield from gap_rows(missing(reader.seen), self._settings)

    def _plan(self, files: Sequence[PartitionFiles], max_split_bytes: int) -> ReadPlan:
        options = self._options
        return plan_partitions(
            files,
            options.bounds,
            self._settings,
            max_split_bytes=max_split_bytes,
            max_split_records=options.max_records,
            within=self._within,
        )


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        raise InputError(
            f"a value that Spark cannot represent: {error}",
            hint="leave out the column, or read with kafka_index.read_records",
        ) from error


def _settings_of(options: SourceOptions, schema: StructType) -> ReadSettings:
    """Return the settings for the columns of a schema."""
    settings = options.settings
    known = _types(_ALL_COLUMNS if options.rows is None else batch_schema(options.rows, settings))
    for one in schema.fields:
        expected = known.get(one.name)
        if expected != one.dataType:
            raise InputError(
                f"kafka-log has no column {one.name} of this type",
                expected=", ".join(known) if expected is None else expected.simpleString(),
                found=one.dataType.simpleString(),
            )
    if CORRUPT_RECORD in schema.names and settings.on_damage is not OnDamage.PERMISSIVE:
        raise InputError(f"the column {CORRUPT_RECORD} is that of the mode PERMISSIVE")
    if options.rows is not None:
        return settings
    names = [name for name in schema.names if name != CORRUPT_RECORD]
    # Without any column the rows still have to be counted.
    return replace(settings, columns=tuple(names) or ("offset",))


def _groups(splits: Sequence[RecordSplit], task_bytes: int) -> list[list[RecordSplit]]:
    """Join successive splits up to the bytes of a task."""
    groups: list[list[RecordSplit]] = []
    room = 0
    for split in splits:
        if not groups or split.size_bytes > room:
            groups.append([])
            room = task_bytes
        groups[-1].append(split)
        room -= split.size_bytes
    return groups


@dataclass(slots=True)
class _Range:
    """Values that filters leave, both ends inclusive."""

    least: int = -INT64_MAX - 1
    most: int = INT64_MAX

    def narrow(self, one: Filter, value: int, *, is_exact: bool = True) -> bool:
        """Apply a comparison, and return whether it is one; an inexact value was rounded down."""
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
            case _:
                return False
        return True


class FilteringReader(KafkaLogReader):
    """A reader that reads less where filters allow it; parameters are those of `KafkaLogReader`."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._offsets = _Range()
        self._times = _Range()
        self._key: bytes | None = None
        # The values that are left of the columns topic and partition.
        self._chosen: dict[str, frozenset[Any]] = {}

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802, Spark's name
        """Keep what narrows the read; return all filters, for Spark to evaluate."""
        applied = []
        for one in filters:
            name: tuple[str, ...] = getattr(one, "attribute", ())
            value = getattr(one, "value", None)
            if value is not None and self._apply(".".join(name), one, value):
                applied.append(f"{'.'.join(name)} {_SIGNS.get(type(one), '')} {value!r}")
        _log.info("filters that bound the read: %s", "; ".join(applied) or "none")
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read."""
        self._within = (self._offsets.least, self._offsets.most)
        if self._key is not None or self._times != _Range():
            # A filter of records passes over batches by their largest timestamps, too.
            end = None if self._times.most == INT64_MAX else self._times.most + 1
            start = None if self._times.least < -INT64_MAX else self._times.least
            self._settings = replace(
                self._settings, record_filter=RecordFilter(start, end, self._key)
            )
        return super().partitions()

    def _plan(self, files: Sequence[PartitionFiles], max_split_bytes: int) -> ReadPlan:
        kept = [
            one
            for one in files
            if all(getattr(one, name) in values for name, values in self._chosen.items())
        ]
        return super()._plan(kept, max_split_bytes)

    def _apply(self, name: str, one: Filter, value: Any) -> bool:
        """Narrow the read by a filter, if that can be; return whether it was."""
        if name in {"topic", "partition"} and isinstance(one, EqualTo | In):
            values = frozenset(value if isinstance(one, In) else [value])
            self._chosen[name] = self._chosen.get(name, values) & values
            return True
        if self._options.rows is not None:
            return False
        if name == "offset" and type(value) is int:
            return self._offsets.narrow(one, value)
        # Without a zone there is no telling which time it is.
        if name == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
            milliseconds, rest = divmod(value - _EPOCH, _MS)
            return self._times.narrow(one, milliseconds, is_exact=not rest)
        if name == "key" and isinstance(one, EqualTo) and isinstance(value, bytes | bytearray):
            self._key = bytes(value)
            return True
        return False
