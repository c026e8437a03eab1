"""The Python data source ``kafka-log``: log directories at rest in place of a broker.

    spark.dataSource.register(KafkaLogSource)
    spark.read.format("kafka-log").option("path", "/dump/broker-1").option("subscribe", "orders")

A thin layer over `kafka_index.tables`: the driver plans, each task reads a group of splits. It uses
no JVM API, so it works on Spark Connect as well.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kafka_index.errors import InputError
from kafka_index.records.record_table import CORRUPT_RECORD
from kafka_index.spark.source_options import SourceOptions, parse_options
from kafka_index.tables import (
    OnDamage,
    ReadPlan,
    ReadSettings,
    RecordReader,
    RecordSplit,
    plan_read,
)
from kafka_index.tables.records import list_partitions

_log = logging.getLogger(__name__)

#: About the most bytes of logs that a task reads, unless there have to be more tasks.
_TASK_BYTES = 128 * 1024 * 1024

_HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
_TYPES: Mapping[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": _HEADERS,
    "leader_epoch": IntegerType(),
    "producer_id": LongType(),
    "producer_epoch": ShortType(),
    "sequence": IntegerType(),
    "batch_base_offset": LongType(),
    "position_bytes": LongType(),
    "is_control": BooleanType(),
    "is_aborted": BooleanType(),
    CORRUPT_RECORD: StringType(),
}


class KafkaLogSource(DataSource):
    """The data source ``kafka-log``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "kafka-log"

    def schema(self) -> StructType:
        """Return the schema that the options ask for."""
        names = parse_options(self.options).settings.schema.names
        return StructType([StructField(name, _TYPES[name]) for name in names])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a schema, whose columns alone are read."""
        return KafkaLogReader(parse_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001, because Spark calls it so
        """Return the writer of rows; without `overwrite` they continue the logs."""
        # Tasks that read need nothing of it.
        from kafka_index.spark.log_writer import KafkaLogWriter  # noqa: PLC0415

        return KafkaLogWriter(self.options, schema, overwrite=overwrite)


class SplitGroup(InputPartition):
    """The splits that a task reads."""

    def __init__(self, splits: Sequence[RecordSplit]) -> None:
        super().__init__(None)
        self.splits = tuple(splits)


class KafkaLogReader(DataSourceReader):
    """Reads the records of log directories.

    Parameters
    ----------
    options : SourceOptions
        What to read.
    schema : StructType
        The columns.

    Raises
    ------
    InputError
        The schema has a column that there is not, or one of another type.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._settings = _settings_of(options.settings, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read, a group of splits for each task."""
        options = self._options
        if options.ignored:
            _log.warning("options without effect on logs at rest: %s", ", ".join(options.ignored))
        if options.fail_on_data_loss:
            _check_data_loss(options)
        plan = self._plan(_TASK_BYTES)
        task_bytes = _TASK_BYTES
        if options.min_partitions > 1:
            task_bytes = max(1, min(_TASK_BYTES, plan.size_bytes // options.min_partitions))
            plan = self._plan(task_bytes)
        return _groups(plan.splits, task_bytes) or [SplitGroup(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a group of splits."""
        assert isinstance(partition, SplitGroup)  # noqa: S101, because mypy needs it
        schema = _arrow_schema(self._schema)
        for split in partition.splits:
            for batch in RecordReader(split, self._settings):
                ordered = batch.select(schema.names)
                yield pa.RecordBatch.from_arrays(
                    [
                        column.cast(to.type)
                        for column, to in zip(ordered.columns, schema, strict=True)
                    ],
                    schema=schema,
                )

    def _plan(self, max_split_bytes: int) -> ReadPlan:
        options = self._options
        return plan_read(
            options.paths,
            topics=options.topics,
            partitions=options.partitions,
            bounds=options.bounds,
            settings=self._settings,
            indexes=options.indexes,
            max_split_bytes=max_split_bytes,
        )


def _settings_of(settings: ReadSettings, schema: StructType) -> ReadSettings:
    """Return the settings for the columns of a schema."""
    for one in schema.fields:
        if _TYPES.get(one.name) != one.dataType:
            expected = _TYPES.get(one.name)
            raise InputError(
                f"kafka-log has no column {one.name} of this type",
                expected=", ".join(_TYPES) if expected is None else expected.simpleString(),
                found=one.dataType.simpleString(),
            )
    names = [name for name in schema.names if name != CORRUPT_RECORD]
    if CORRUPT_RECORD in schema.names and settings.on_damage is not OnDamage.PERMISSIVE:
        raise InputError(f"the column {CORRUPT_RECORD} is that of the mode PERMISSIVE")
    # Without any column the rows still have to be counted.
    return replace(settings, columns=tuple(names) or ("offset",))


def _check_data_loss(options: SourceOptions) -> None:
    """Refuse starting offsets that a log no longer has."""
    starts = options.bounds.starting_offsets
    if not isinstance(starts, Mapping):
        return
    for files in list_partitions(
        options.paths,
        topics=options.topics,
        partitions=options.partitions,
        indexes=options.indexes,
    ):
        start = starts.get(files.topic, {}).get(files.partition)
        if start is not None and 0 <= start < files.log_start_offset:
            raise InputError(
                "the log does not have the starting offset any more",
                path=files.segments[0].partition_directory,
                expected=f"{files.log_start_offset} or more",
                found=start,
                hint="set failOnDataLoss to false to begin where the log does",
            )


def _groups(splits: Sequence[RecordSplit], task_bytes: int) -> list[SplitGroup]:
    """Join successive splits up to the bytes of a task."""
    groups: list[list[RecordSplit]] = []
    room = 0
    for split in splits:
        if not groups or split.size_bytes > room:
            groups.append([])
            room = task_bytes
        groups[-1].append(split)
        room -= split.size_bytes
    return [SplitGroup(group) for group in groups]


def _arrow_schema(schema: StructType) -> pa.Schema:
    """Return the schema that Spark expects of record batches."""
    try:
        found: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    except TypeError:
        # Spark before 4.2, where that is not a parameter.
        found = to_arrow_schema(schema)
    return found
