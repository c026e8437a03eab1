"""The Python data source ``kafka-log``, which reads log directories instead of a broker.

    spark.dataSource.register(KafkaLogSource)
    spark.read.format("kafka-log").option("path", "/dump/broker-1").option("subscribe", "orders")

The driver plans the read with `core.query`, and each task reads a group of splits. The data source
uses no JVM API, so it works with Spark Connect, too. Pushed filters
(``spark.sql.python.filterPushdown.enabled``) narrow the read: offsets to byte ranges, topics and
partitions to their logs, timestamps and keys to records. Spark evaluates all filters again.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    WriterCommitMessage,
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

from kafka_index.commands.import_.import_columns import (
    OrderError,
    check_columns,
    split_by_partition,
)
from kafka_index.commands.import_.partition_import import (
    ImportedPartition,
    ImportTarget,
    PartitionImport,
    check_overwrite,
)
from kafka_index.commands.import_.request import ImportMode, ImportSettings
from kafka_index.core.errors import InputError, PublishError, first_of, help_page
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.names import (
    CONSUMER_OFFSETS_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from kafka_index.core.format.times import now_ms
from kafka_index.core.format.uri_passwords import refuse_passwords
from kafka_index.core.fs.inputs import reading_inputs, refuse_unread
from kafka_index.core.fs.paths import admit_directories, local_path, pinned_backup
from kafka_index.core.fs.registry import configure_stores
from kafka_index.core.fs.store import StorageOptions, parse_storage_options
from kafka_index.core.fs.uris import TieredOptions, refuse_remote
from kafka_index.core.job.result import MissingOffsets
from kafka_index.core.log.choices import Decode, DecodeErrors, Isolation, OnDamage
from kafka_index.core.log.missing_offsets import ScannedLog
from kafka_index.core.log.read.partition_files import PartitionFiles
from kafka_index.core.output.output import Output, remove_directory
from kafka_index.core.query.bounds import BoundOptions
from kafka_index.core.query.matches import SEARCHED_SPLIT_BYTES
from kafka_index.core.query.read_plan import ReadPlan, RecordSplit, read_partition_of_split
from kafka_index.core.query.record_reader import BatchForm, BatchReader, RecordReader, batch_schema
from kafka_index.core.query.records import gap_rows, list_partitions, plan_partitions
from kafka_index.core.query.settings import ReadSettings, RecordFilter
from kafka_index.core.records.record_table import CORRUPT_RECORD, DEFAULT_COLUMNS, RECORD_SCHEMA
from kafka_index.core.schema.decode import TypedColumns
from kafka_index.core.schema.registry import DEFAULT_CONTEXT
from kafka_index.core.schema.sources import FROM_DUMP
from kafka_index.spark.option_values import (
    malformed,
    parse_bounds,
    parse_choice,
    parse_flag,
    parse_json,
    parse_names,
    parse_number,
    parse_size,
)
from kafka_index.spark.workers import NOT_SHARED_HINT, arrow_schema

#: Options of a write. Only the command ``import`` sets the last two options.
_SOURCE_OPTIONS = ("path", "orderby", "topicids", "runid", "importmode")
_MAX_LISTED_PARTITIONS = 3
#: Maximum number of partitions that a task writes, since each partition keeps a ``.log`` open.
_MAX_OPEN_LOGS = 512


@dataclass
class PartitionsWritten(WriterCommitMessage):
    """The staged partitions of a task."""

    partitions: tuple[ImportedPartition, ...]


class KafkaLogWriter(DataSourceArrowWriter):
    """Writes records to log directories.

    Options are ``path``, ``orderBy``, ``topicIds``, and settings with Kafka's names. `overwrite`
    replaces the output of an earlier import instead of continuing this import.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        lowercase_options = {name.lower(): value for name, value in options.items()}
        self._root = _parse_output(lowercase_options)
        self._settings = _settings(lowercase_options, overwrite=overwrite)
        check_columns(arrow_schema(schema), self._settings)
        # Detects a running broker before any task starts; the commit checks again.
        with Output.for_data_directory(self._root) as output:
            if overwrite:
                check_overwrite(self._root)
            self._staging = output.hand_over()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        if not os.path.isdir(self._staging):
            raise PublishError(
                "the executors do not see the staging directory, or another run has removed it",
                path=self._staging,
                hint=NOT_SHARED_HINT,
            )
        folder = os.path.join(self._staging, uuid.uuid4().hex)
        os.mkdir(folder)
        logs: dict[TopicPartition, PartitionImport] = {}
        try:
            for batch in iterator:
                for partition, rows in split_by_partition(batch):
                    if partition not in logs:
                        self._check_partition_count(len(logs))
                        logs[partition] = PartitionImport(
                            self._root, folder, partition, self._settings
                        )
                    logs[partition].append(rows)
            imported_partitions = tuple(logs[partition].finish() for partition in sorted(logs))
        except BaseException as error:
            for log in logs.values():
                log.abort()
            remove_directory(folder)
            if isinstance(error, OrderError):
                error.hint = f"sort the rows: df.{self._sort_expression()}"
            raise
        return PartitionsWritten(imported_partitions)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the partitions of all tasks.

        Raises `InputError`, before anything is published, if two tasks wrote the same partition.
        """
        partitions = [
            partition
            for message in messages
            if isinstance(message, PartitionsWritten)
            for partition in message.partitions
        ]
        with Output.for_data_directory(self._root, staging=self._staging) as output:
            target = ImportTarget(output, self._settings.mode)
            counts = Counter(each.staged.partition for each in partitions)
            duplicate_partitions = sorted(each for each, count in counts.items() if count > 1)
            if duplicate_partitions:
                names = first_of(
                    [each.directory_name for each in duplicate_partitions], _MAX_LISTED_PARTITIONS
                )
                raise InputError(
                    f"several tasks have rows of the same partition: {names}; nothing was written",
                    path=self._root,
                    hint=f"repartition and sort the rows: df.{self._sort_expression()}",
                )
            for each in partitions:
                target.publish(each)
            target.remove_other_partitions()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002, because Spark passes it
        """Remove the staged partitions."""
        remove_directory(self._staging)

    def _sort_expression(self) -> str:
        by = self._settings.order_by or "offset"
        return (
            'repartition("topic", "partition")'
            f'.sortWithinPartitions("topic", "partition", {json.dumps(by)})'
        )

    def _check_partition_count(self, count: int) -> None:
        if count == _MAX_OPEN_LOGS:
            raise InputError(
                "a task has rows of too many partitions",
                expected=f"at most {_MAX_OPEN_LOGS} partitions",
                hint="use more tasks: df.repartition(n, ...) instead of "
                f"df.{self._sort_expression()}",
            )


def _parse_output(options: Mapping[str, str]) -> str:
    if "path" not in options:
        raise InputError("the option path is missing", hint="give the path of a data directory")
    refuse_remote(
        options["path"],
        "kafka-log writes only to file systems",
        hint="write to a folder that driver and executors share, and copy the folder",
    )
    return os.path.realpath(local_path(options["path"]))


def _settings(options: Mapping[str, str], *, overwrite: bool) -> ImportSettings:
    unknown = [name for name in options if name not in _SOURCE_OPTIONS and "." not in name]
    if unknown:
        raise InputError(
            f"unknown option {unknown[0]} for writing to kafka-log",
            hint=f"see {help_page('import')}",
        )
    try:
        topic_ids = json.loads(options.get("topicids", "{}"))
    except ValueError:
        topic_ids = None
    if not isinstance(topic_ids, dict):
        raise InputError(
            "the option topicIds is not a JSON object",
            expected='{"TOPIC": "ID"}',
            found=options.get("topicids"),
        )
    mode = ImportMode.OVERWRITE if overwrite else ImportMode.APPEND
    settings = ImportSettings.of_properties(
        {name: value for name, value in options.items() if name not in _SOURCE_OPTIONS},
        mode=ImportMode(options.get("importmode", mode.value)),
        order_by=options.get("orderby"),
        topic_ids=topic_ids,
    )
    run_id = options.get("runid")
    return settings if run_id is None else replace(settings, run_id=run_id)


_MODES = {
    "FAILFAST": OnDamage.FAILFAST,
    "PERMISSIVE": OnDamage.PERMISSIVE,
    "DROPMALFORMED": OnDamage.DROP,
}
#: Internal topics, which the option subscribePattern does not select.
_INTERNAL_TOPICS = (CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC)
_PATTERN_FLAGS = re.compile(r"\(\?([imsx]+)\)")
_TIERED_OPTIONS = ("tieredformat", "keyprefix", "tieredkeys", "topicids")

#: Default approximate size of log data per task.
TASK_BYTES = 128 << 20
#: The mutually exclusive options that select topics or partitions.
SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
#: Prefix of storage options.
STORAGE_PREFIX = "storage."
# Names of command-line options, with the corresponding options of Spark's Kafka source.
_OPTION_SYNONYMS = {
    "topics": "subscribePattern",
    "topic": "subscribe",
    "input": "path",
    "isolation": "kafka.isolation.level",
}
_READ_OPTIONS = frozenset(
    name.lower()
    for name in (
        "path",
        "indexes",
        *SUBSCRIPTIONS,
        "startingOffsets",
        "endingOffsets",
        "startingOffsetsByTimestamp",
        "endingOffsetsByTimestamp",
        "startingTimestamp",
        "endingTimestamp",
        "startingOffsetsByTimestampStrategy",
        "failOnDataLoss",
        "includeHeaders",
        "minPartitions",
        "maxPartitionBytes",
        "maxRecordsPerPartition",
        "kafka.isolation.level",
        "tiered",
        "tieredFormat",
        "keyPrefix",
        "tieredKeys",
        "topicIds",
        "columns",
        "includeControlRecords",
        "rows",
        "mode",
        "pushFilters",
        "followLinks",
        "maxDecompressedBytes",
        "decode",
        "schemas",
        "valueSchema",
        "decodeErrors",
        "schemaContext",
    )
)
#: Options that Spark's Kafka source also rejects, because they change rows or the start of a read.
_REJECTED_OPTIONS = frozenset(
    f"kafka.{name}"
    for name in (
        "auto.offset.reset",
        "enable.auto.commit",
        "interceptor.classes",
        "key.deserializer",
        "value.deserializer",
    )
)
#: Options of Spark's Kafka source without effect on a batch read.
_IGNORED_OPTIONS = frozenset(
    name.lower()
    for name in (
        "groupIdPrefix",
        "kafka.group.id",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "kafkaConsumer.pollTimeoutMs",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
    )
)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a ``kafka-log`` read.

    Attributes
    ----------
    topics : str, optional
        A pattern that must match the full topic name.
    topic_names, partitions
        Topics and partitions that must exist.
    rows : BatchForm, optional
        The form of the rows; None to read records.
    min_partitions : int
        Minimum number of tasks, if the logs can be split.
    max_bytes : int
        Approximate maximum bytes of logs per task.
    max_records : int, optional
        Maximum number of offsets per task.
    follow_links : bool
        Whether to read links that point outside the paths.
    ignored : tuple of str
        Options without effect.
    """

    paths: tuple[str, ...] = ()
    tiered: TieredOptions | None = None
    storage: StorageOptions = field(default_factory=StorageOptions)
    indexes: str | None = None
    topics: str | None = None
    topic_names: tuple[str, ...] = ()
    partitions: Mapping[str, list[int]] | None = None
    bounds: BoundOptions = field(default_factory=BoundOptions)
    settings: ReadSettings = field(default_factory=ReadSettings)
    rows: BatchForm | None = None
    min_partitions: int = 1
    max_bytes: int = TASK_BYTES
    max_records: int | None = None
    push_filters: bool = False
    follow_links: bool = False
    ignored: tuple[str, ...] = ()
    decode: SourceDecode | None = None


@dataclass(frozen=True, slots=True)
class SourceDecode:
    """The options of typed columns; for the fields, see `core.parameters.DecodeRequest`."""

    inputs: tuple[str, ...]
    decode: Decode | None
    schemas: str
    value_schema: str | None
    decode_errors: DecodeErrors
    schema_context: str
    max_decompressed_bytes: int


def _parse_decode(options: Mapping[str, str], paths: tuple[str, ...]) -> SourceDecode | None:
    """Parse the options of typed columns; return None if the option ``decode`` is missing."""
    decode = parse_choice(
        options, "decode", {"": None, **{member.value: member for member in Decode}}
    )
    if decode is None:
        for name in ("schemas", "valueschema", "decodeerrors", "schemacontext"):
            if name in options:
                raise InputError(f"the option {name} requires the option decode")
        return None
    return SourceDecode(
        paths,
        decode,
        options.get("schemas", FROM_DUMP),
        options.get("valueschema"),
        parse_choice(options, "decodeerrors", {member.value: member for member in DecodeErrors}),
        options.get("schemacontext", DEFAULT_CONTEXT),
        _parse_max_decompressed_bytes(options),
    )


def _parse_max_decompressed_bytes(options: Mapping[str, str]) -> int:
    return parse_number(options, "maxdecompressedbytes", DEFAULT_MAX_DECOMPRESSED_BYTES, minimum=1)


def parse_options(spark_options: Mapping[str, str], *, now: int | None = None) -> SourceOptions:
    """Parse the options of a read; names are case-insensitive.

    Relative times are relative to `now`, in ms since 1970; by default the current time.
    """
    options = {name.lower(): value for name, value in spark_options.items()}
    ignored = check_names(options)
    paths = parse_names(options, "path")
    refuse_passwords([*paths, options.get("indexes")])
    tiered = _parse_tiered(options)
    if not paths and tiered is None:
        raise InputError("the option path is missing", hint="give the path of a data directory")
    topics, topic_names, partitions = _parse_subscription(options)
    rows = parse_choice(
        options, "rows", {"records": None, **{form.value: form for form in BatchForm}}
    )
    _refuse_record_options(options, rows)
    return SourceOptions(
        paths=paths,
        tiered=tiered,
        storage=_parse_storage(spark_options),
        indexes=options.get("indexes"),
        topics=topics,
        topic_names=topic_names,
        partitions=partitions,
        bounds=parse_bounds(options, now_ms() if now is None else now),
        settings=ReadSettings(
            columns=_parse_columns(options),
            isolation=parse_choice(
                options,
                "kafka.isolation.level",
                {isolation.value: isolation for isolation in Isolation},
            ),
            include_control=parse_flag(options, "includecontrolrecords", default=False),
            on_damage=parse_choice(options, "mode", _MODES),
            max_decompressed_bytes=_parse_max_decompressed_bytes(options),
        ),
        rows=rows,
        decode=_parse_decode(options, paths),
        min_partitions=parse_number(options, "minpartitions", 1, minimum=1),
        max_bytes=_parse_max_bytes(options),
        max_records=_parse_max_records(options),
        push_filters=parse_flag(options, "pushfilters", default=False),
        follow_links=parse_flag(options, "followlinks", default=False),
        ignored=tuple(ignored),
    )


def _parse_max_bytes(options: Mapping[str, str]) -> int:
    text = options.get("maxpartitionbytes")
    if text is None:
        return TASK_BYTES
    size_bytes = parse_size(text)
    if size_bytes < 1:
        raise malformed(options, "maxpartitionbytes", "a size, such as 64m")
    return size_bytes


def _parse_max_records(options: Mapping[str, str]) -> int | None:
    name = "maxrecordsperpartition"
    return parse_number(options, name, 1, minimum=1) if name in options else None


def _parse_tiered(options: Mapping[str, str]) -> TieredOptions | None:
    uris = parse_names(options, "tiered")
    if not uris:
        companion_options = [name for name in _TIERED_OPTIONS if name in options]
        if companion_options:
            raise InputError(f"the option {companion_options[0]} requires the option tiered")
        return None
    keys = []
    for text in parse_names(options, "tieredkeys"):
        key_id, separator, path = text.partition("=")
        if not (key_id and separator and path):
            raise malformed(options, "tieredkeys", "KEYID=FILE")
        keys.append((key_id, os.path.abspath(path)))
    object_layout = parse_choice(
        options, "tieredformat", {"auto": None, "aiven": "aiven", "local": "local"}
    )
    return TieredOptions(
        uris, object_layout, options.get("keyprefix"), parse_names(options, "topicids"), tuple(keys)
    )


def _parse_storage(spark_options: Mapping[str, str]) -> StorageOptions:
    return parse_storage_options(
        f"{name[len(STORAGE_PREFIX) :]}={value}"
        for name, value in spark_options.items()
        if name.lower().startswith(STORAGE_PREFIX)
    )


def _refuse_record_options(options: Mapping[str, str], rows: BatchForm | None) -> None:
    if rows is None:
        return
    names = ("columns", "includeheaders", "includecontrolrecords", "kafka.isolation.level")
    for name in (*names, "decode"):
        if name in options:
            raise InputError(f"the option {name} cannot be combined with rows={rows.value}")


def _parse_subscription(
    options: Mapping[str, str],
) -> tuple[str | None, tuple[str, ...], Mapping[str, list[int]] | None]:
    """Parse the subscription: return a topic pattern, topic names, and partitions."""
    subscriptions = [name for name in SUBSCRIPTIONS if name.lower() in options]
    if len(subscriptions) > 1:
        raise InputError(f"{' and '.join(subscriptions)} are mutually exclusive")
    if "subscribe" in options:
        names = parse_names(options, "subscribe")
        if not names:
            raise malformed(options, "subscribe", "names of topics")
        return "|".join(map(re.escape, names)), names, None
    if "assign" in options:
        return None, (), _parse_assignment(options)
    pattern = options.get("subscribepattern")
    if pattern is None:
        return None, (), None
    pattern = pattern.strip()
    if not pattern:
        raise malformed(options, "subscribepattern", "a regular expression")
    # Python allows global flags only at the start of a pattern, but this pattern becomes a part of
    # a larger pattern.
    flags = _PATTERN_FLAGS.match(pattern)
    if flags is not None:
        pattern = f"(?{flags[1]}:{pattern[flags.end() :]})"
    internal_topics = "|".join(_INTERNAL_TOPICS)
    # As in Spark's Kafka source, the pattern may match any part of a name.
    name_pattern = rf"(?!(?:{internal_topics})\Z).*(?:{pattern}).*"
    try:
        re.compile(name_pattern)
    except re.error as error:
        raise malformed(options, "subscribepattern", "a regular expression") from error
    return name_pattern, (), None


def _parse_assignment(options: Mapping[str, str]) -> dict[str, list[int]]:
    assigned = parse_json(options, "assign")
    try:
        return {topic: [int(number) for number in numbers] for topic, numbers in assigned.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise malformed(options, "assign", '{"topic": [0, 1]}') from error


def _parse_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    if "columns" in options:
        return tuple(name.strip() for name in options["columns"].split(","))
    # As in Spark's Kafka source, the headers column is optional.
    include_headers = parse_flag(options, "includeheaders", default=False)
    return DEFAULT_COLUMNS if include_headers else DEFAULT_COLUMNS[:-1]


def check_names(names: Iterable[str]) -> list[str]:
    """Reject unknown options; return options without effect, in lower case."""
    ignored = []
    for name in names:
        if name in _READ_OPTIONS or name.startswith(STORAGE_PREFIX):
            continue
        if name in _REJECTED_OPTIONS:
            raise InputError(f"the option {name} is not supported, as in Spark's Kafka source")
        if name in _IGNORED_OPTIONS or name.startswith("kafka."):
            ignored.append(name)
            continue
        similar_name = _OPTION_SYNONYMS.get(name) or next(
            iter(difflib.get_close_matches(name, _READ_OPTIONS, n=1)), None
        )
        suggestion = "" if similar_name is None else f"did you mean {similar_name}? "
        hint = f"{suggestion}see {help_page('records')}"
        raise InputError(f"unknown option {name} for reading from kafka-log", hint=hint)
    return sorted(ignored)


def check_partitions(options: SourceOptions, files: Sequence[PartitionFiles]) -> None:
    """Reject topics and partitions that do not exist in the dump, like Spark's Kafka source."""
    existing_partitions = {(file.topic, file.partition) for file in files}
    topics = {topic for topic, _ in existing_partitions}
    paths = ", ".join(options.paths)
    for name in options.topic_names:
        if name not in topics:
            raise InputError(f"the topic {name} does not exist in the logs", path=paths)
    assigned_partitions = {
        (topic, number)
        for topic, numbers in (options.partitions or {}).items()
        for number in numbers
    }
    _refuse_partitions(
        assigned_partitions - existing_partitions,
        "assigned partitions do not exist in the logs",
        paths,
        hint="assign only existing partitions",
    )
    bounds = options.bounds
    for bound in (
        bounds.starting_offsets,
        bounds.ending_offsets,
        bounds.starting_timestamp,
        bounds.ending_timestamp,
    ):
        if isinstance(bound, Mapping):
            bounded_partitions = {
                (topic, number) for topic, numbers in bound.items() for number in numbers
            }
            hint = "give bounds for exactly the partitions that are read"
            unread_partitions = bounded_partitions - existing_partitions
            message = "partitions have bounds, but are not read"
            _refuse_partitions(unread_partitions, message, paths, hint=hint)
            unbounded_partitions = existing_partitions - bounded_partitions
            message = "partitions have no bounds"
            _refuse_partitions(unbounded_partitions, message, paths, hint=hint)


def _refuse_partitions(
    partitions: set[tuple[str, int]], message: str, paths: str, *, hint: str
) -> None:
    if partitions:
        names = [TopicPartition(*partition).directory_name for partition in sorted(partitions)[:5]]
        raise InputError(f"{message}: {', '.join(names)}", path=paths, hint=hint)


_log = logging.getLogger(__name__)

# Elements are nullable, as in Spark's Kafka source.
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
#: Called with the logs that a split has read; returns the missing offsets in the split's ranges.
FindMissing = Callable[[Sequence[ScannedLog]], MissingOffsets]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


class KafkaLogSource(DataSource):
    """The data source ``kafka-log``."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # The time at which the table is loaded, which is pickled with the source. Relative times
        # refer to this time, even if the table is planned and read several times.
        self._now = now_ms()
        # The types of decoded columns are determined only once, for all selected topics.
        self._typed: TypedColumns | None = None

    @classmethod
    def name(cls) -> str:
        """Return the format name."""
        return "kafka-log"

    def schema(self) -> StructType:
        """Return the schema for the options."""
        options = self._parse_options()
        rows, settings = options.rows, options.settings
        types = _spark_types(settings.schema if rows is None else batch_schema(rows, settings))
        return StructType([StructField(name, data_type) for name, data_type in types.items()])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader for a schema; only columns of the schema are decoded."""
        options = self._parse_options()
        if not options.push_filters:
            return KafkaLogReader(options, schema)
        # Used only with the option pushFilters. Spark rejects a reader that has a method
        # pushFilters unless filter pushdown is enabled, and it is disabled by default.
        return FilteringReader(options, schema)

    def _parse_options(self) -> SourceOptions:
        """Return the options, with the types of decoded columns."""
        options = parse_options(self.options, now=self._now)
        if options.decode is None:
            return options
        if self._typed is None:
            self._typed = _find_types(options)
        return replace(options, settings=replace(options.settings, typed=self._typed))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001, because Spark calls it so
        """Return the writer; without `overwrite`, rows are appended to the logs."""
        return KafkaLogWriter(self.options, schema, overwrite=overwrite)


def _find_types(options: SourceOptions) -> TypedColumns | None:
    """Return the typed columns of all selected topics."""
    # Schemas and their decoders are slow to import.
    from kafka_index.core.query.typed_records import with_types  # noqa: PLC0415

    assert options.decode is not None  # noqa: S101, because mypy needs it
    configure_stores(options.storage)
    settings = replace(options.settings, columns=("offset",))
    with reading_inputs(follow_links=options.follow_links):
        listing = list_partitions(
            options.paths,
            topics=options.topics,
            partitions=options.partitions,
            tiered=options.tiered,
            indexes=options.indexes,
        )
        check_partitions(options, listing.files)
        plan = plan_partitions(
            listing.files, options.bounds, settings, max_split_bytes=SEARCHED_SPLIT_BYTES
        )
        plan = with_types(plan, options.decode, options.settings.columns)
    return plan.settings.typed


def _spark_types(schema: pa.Schema) -> dict[str, DataType]:
    """Return the Spark type of each column, by name."""
    return {
        field.name: _HEADERS
        if field.name == "headers"
        else from_arrow_type(_to_spark_type(field.type))
        for field in schema
    }


def _to_spark_type(arrow_type: pa.DataType) -> pa.DataType:
    """Return the closest Arrow type that Spark supports."""
    if pa.types.is_struct(arrow_type):
        return pa.struct(
            [
                struct_field.with_type(_to_spark_type(struct_field.type))
                for struct_field in arrow_type
            ]
        )
    if pa.types.is_map(arrow_type):
        return pa.map_(arrow_type.key_type, _to_spark_type(arrow_type.item_type))
    if pa.types.is_list(arrow_type):
        return pa.list_(_to_spark_type(arrow_type.value_type))
    return _SPARK_TYPES.get(arrow_type, arrow_type)


#: Spark has no unsigned integers. Most file formats of Spark cannot store times of day.
_SPARK_TYPES = {
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.time64("us"): pa.int64(),
    pa.null(): pa.string(),
}


class KafkaLogReader(DataSourceReader):
    """Reads the records of log directories."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        configure_stores(options.storage)
        # URIs that select a backup, such as the latest, are resolved once. All tasks therefore read
        # the same backup.
        self._options = replace(
            options,
            paths=tuple(map(pinned_backup, options.paths)),
        )
        self._schema = schema
        self._settings = _check_schema(options, schema)
        # Inclusive bounds of offsets; None for all offsets.
        self._offset_range: tuple[int, int] | None = None

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read: a group of splits for each task."""
        options = self._options
        if options.ignored:
            _log.warning(
                "these options have no effect on logs at rest: %s", ", ".join(options.ignored)
            )
        configure_stores(options.storage)
        with reading_inputs(follow_links=options.follow_links) as unread:
            listing = list_partitions(
                options.paths,
                topics=options.topics,
                partitions=options.partitions,
                tiered=options.tiered,
                indexes=options.indexes,
            )
        if self._settings.on_damage is OnDamage.FAILFAST:
            refuse_unread(unread)
        files = listing.files
        check_partitions(options, files)
        task_bytes = options.max_bytes
        plan = self._plan(files, task_bytes)
        if options.min_partitions > 1:
            task_bytes = max(1, min(task_bytes, plan.size_bytes // options.min_partitions))
            plan = self._plan(files, task_bytes)
        groups = [[split] for split in plan.splits]
        if options.max_records is None:
            groups = _group_splits(plan.splits, task_bytes)
        gap_finder = listing.gap_finder(self._settings.max_decompressed_bytes)
        file_by_partition = {TopicPartition(file.topic, file.partition): file for file in files}

        def create_finder(split: RecordSplit) -> FindMissing | None:
            if not split.ranges:
                return None
            split_files = read_partition_of_split(file_by_partition[split.topic_partition], split)
            return partial(gap_finder.find, split_files)

        tasks = [[(split, create_finder(split)) for split in group] for group in groups]
        return list(map(InputPartition, tasks or [[]]))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a group of splits."""
        # Reading remote segments requires the encryption keys with which they were listed.
        tiered = self._options.tiered
        keys = () if tiered is None else tiered.keys
        configure_stores(replace(self._options.storage, tiered_keys=keys))
        with reading_inputs(follow_links=self._options.follow_links):
            # Tasks follow the same links as the driver.
            admit_directories(self._options.paths)
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
        self, split: RecordSplit, find_missing: FindMissing | None
    ) -> Iterator[pa.RecordBatch]:
        if self._options.rows is not None:
            yield from BatchReader(split, self._options.rows, self._settings)
            return
        reader = RecordReader(split, self._settings)
        yield from reader
        if find_missing is not None:
            yield from gap_rows(find_missing(reader.read_logs), self._settings)

    def _plan(self, files: Sequence[PartitionFiles], max_split_bytes: int) -> ReadPlan:
        options = self._options
        return plan_partitions(
            files,
            options.bounds,
            self._settings,
            max_split_bytes=max_split_bytes,
            max_split_records=options.max_records,
            within=self._offset_range,
        )


def _cast(column: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    try:
        return column.cast(arrow_type)
    except pa.ArrowInvalid as error:
        raise InputError(
            f"Spark cannot represent a value: {error}",
            hint="omit the column, or read with kafka_index.read_records",
        ) from error


def _check_schema(options: SourceOptions, schema: StructType) -> ReadSettings:
    settings = options.settings
    columns = _ALL_COLUMNS if options.rows is None else batch_schema(options.rows, settings)
    if settings.typed is not None:
        columns = pa.schema([*settings.typed.schema(_ALL_COLUMNS)])
    spark_types = _spark_types(columns)
    for schema_field in schema.fields:
        expected = spark_types.get(schema_field.name)
        if expected != schema_field.dataType:
            raise InputError(
                f"kafka-log has no column {schema_field.name} of this type",
                expected=", ".join(spark_types) if expected is None else expected.simpleString(),
                found=schema_field.dataType.simpleString(),
            )
    if CORRUPT_RECORD in schema.names and settings.on_damage is not OnDamage.PERMISSIVE:
        raise InputError(f"the column {CORRUPT_RECORD} exists only in the mode PERMISSIVE")
    if options.rows is not None or settings.typed is not None:
        return settings
    names = [name for name in schema.names if name != CORRUPT_RECORD]
    # If no column is selected, Spark still counts rows, so one column is read.
    return replace(settings, columns=tuple(names) or ("offset",))


def _group_splits(splits: Sequence[RecordSplit], task_bytes: int) -> list[list[RecordSplit]]:
    """Combine consecutive splits into groups of at most `task_bytes`, unless a split is larger."""
    groups: list[list[RecordSplit]] = []
    free_bytes = 0
    for split in splits:
        if not groups or split.size_bytes > free_bytes:
            groups.append([])
            free_bytes = task_bytes
        groups[-1].append(split)
        free_bytes -= split.size_bytes
    return groups


@dataclass(slots=True)
class _Range:
    """The range of values that pass all filters so far, with inclusive bounds."""

    least: int = -INT64_MAX - 1
    most: int = INT64_MAX

    def narrow(self, comparison: Filter, value: int, *, is_exact: bool = True) -> bool:
        """Narrow the range by a filter; return False if the filter is not a comparison.

        If not `is_exact`, `value` was rounded down.
        """
        match comparison:
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
    """A reader that uses pushed filters; for the parameters, see `KafkaLogReader`."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._offsets = _Range()
        self._times = _Range()
        self._key: bytes | None = None
        # The values of the columns topic and partition that pass all filters so far.
        self._selected_values: dict[str, frozenset[Any]] = {}

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802, Spark's name
        """Apply filters that narrow the read; return all filters, which Spark evaluates again."""
        applied_filters = []
        for pushed_filter in filters:
            name: tuple[str, ...] = getattr(pushed_filter, "attribute", ())
            value = getattr(pushed_filter, "value", None)
            if value is not None and self._apply_filter(".".join(name), pushed_filter, value):
                applied_filters.append(
                    f"{'.'.join(name)} {_SIGNS.get(type(pushed_filter), '')} {value!r}"
                )
        _log.info("pushed filters that narrow the read: %s", "; ".join(applied_filters) or "none")
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        self._offset_range = (self._offsets.least, self._offsets.most)
        if self._key is not None or self._times != _Range():
            # A record filter also skips batches whose maximum timestamp is too early.
            end = None if self._times.most == INT64_MAX else self._times.most + 1
            start = None if self._times.least < -INT64_MAX else self._times.least
            self._settings = replace(
                self._settings, record_filter=RecordFilter(start, end, self._key)
            )
        return super().partitions()

    def _plan(self, files: Sequence[PartitionFiles], max_split_bytes: int) -> ReadPlan:
        selected_files = [
            file
            for file in files
            if all(getattr(file, name) in values for name, values in self._selected_values.items())
        ]
        return super()._plan(selected_files, max_split_bytes)

    def _apply_filter(self, name: str, pushed_filter: Filter, value: Any) -> bool:
        """Narrow the read by a filter; return False if the filter cannot narrow the read."""
        if name in {"topic", "partition"} and isinstance(pushed_filter, EqualTo | In):
            values = frozenset(value if isinstance(pushed_filter, In) else [value])
            self._selected_values[name] = self._selected_values.get(name, values) & values
            return True
        if self._options.rows is not None:
            return False
        if name == "offset" and type(value) is int:
            return self._offsets.narrow(pushed_filter, value)
        # Without a time zone, the timestamp is ambiguous.
        if name == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
            milliseconds, remainder = divmod(value - _EPOCH, _MS)
            return self._times.narrow(pushed_filter, milliseconds, is_exact=not remainder)
        # With decoded keys, the record filter would wrongly compare the raw bytes of the key.
        is_plain = isinstance(value, bytes | bytearray) and self._settings.typed is None
        if name == "key" and isinstance(pushed_filter, EqualTo) and is_plain:
            self._key = bytes(value)
            return True
        return False
