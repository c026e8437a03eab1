"""The Python data source ``kafka-log``, which reads log directories instead of a broker.

    spark.dataSource.register(KafkaLogSource)
    spark.read.format("kafka-log").option("path", "/dump/broker-1").option("subscribe", "orders")

The driver plans with `core.query`, and each task reads a group of splits. It uses no JVM API, so it
works with Spark Connect too. Pushed filters (``spark.sql.python.filterPushdown.enabled``) narrow
the read: offsets to byte ranges, topics and partitions to their logs, timestamps and keys to
records. Spark evaluates all filters again.
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
from kafka_index.core.cluster.remote.options import TieredOptions
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
from kafka_index.core.fs.uris import refuse_remote
from kafka_index.core.job.result import MissingOffsets
from kafka_index.core.log.missing_offsets import ScannedLog
from kafka_index.core.log.read.partition_files import PartitionFiles
from kafka_index.core.output.output import Output, remove_directory
from kafka_index.core.query.bounds import BoundOptions
from kafka_index.core.query.choices import Decode, DecodeErrors, Isolation, OnDamage
from kafka_index.core.query.matches import SEARCHED_SPLIT_BYTES
from kafka_index.core.query.read_plan import ReadPlan, RecordSplit, part_of_partition
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

#: The last two are for the command ``import``, which rejects existing partitions.
_OWN = ("path", "orderby", "topicids", "runid", "importmode")
_SHOWN = 3
#: Maximum number of partitions that a task writes at a time, since each keeps a log open.
_MAX_OPEN = 512


@dataclass
class PartitionsWritten(WriterCommitMessage):
    """The partitions that a task has staged."""

    partitions: tuple[ImportedPartition, ...]


class KafkaLogWriter(DataSourceArrowWriter):
    """Writes records to log directories.

    Options are ``path``, ``orderBy``, ``topicIds``, and settings with Kafka's names. `overwrite`
    replaces the output of an earlier import instead of continuing it.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        given = {name.lower(): value for name, value in options.items()}
        self._root = _root(given)
        self._settings = _settings(given, overwrite=overwrite)
        check_columns(arrow_schema(schema), self._settings)
        # A running broker is detected before the work, and again at the commit.
        with Output.for_data_directory(self._root) as output:
            if overwrite:
                check_overwrite(self._root)
            self._staging = output.hand_over()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        if not os.path.isdir(self._staging):
            raise PublishError(
                "the executors do not see the output, or another run has taken it over",
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
                        self._check_count(len(logs))
                        logs[partition] = PartitionImport(
                            self._root, folder, partition, self._settings
                        )
                    logs[partition].append(rows)
            written = tuple(logs[partition].finish() for partition in sorted(logs))
        except BaseException as error:
            for log in logs.values():
                log.abort()
            remove_directory(folder)
            if isinstance(error, OrderError):
                error.hint = f"sort the rows: df.{self._remedy()}"
            raise
        return PartitionsWritten(written)

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
            torn = sorted(each for each, count in counts.items() if count > 1)
            if torn:
                names = first_of([each.directory_name for each in torn], _SHOWN)
                raise InputError(
                    f"the rows of a partition came from several tasks: {names}; nothing was "
                    "written",
                    path=self._root,
                    hint=f"write df.{self._remedy()}",
                )
            for each in partitions:
                target.publish(each)
            target.remove_others()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002, because Spark passes it
        """Remove the staged partitions."""
        remove_directory(self._staging)

    def _remedy(self) -> str:
        by = self._settings.order_by or "offset"
        return (
            'repartition("topic", "partition")'
            f'.sortWithinPartitions("topic", "partition", {json.dumps(by)})'
        )

    def _check_count(self, count: int) -> None:
        if count == _MAX_OPEN:
            raise InputError(
                "a task has the rows of too many partitions",
                expected=f"{_MAX_OPEN} or less",
                hint=f"use more tasks: df.repartition(n, ...) instead of df.{self._remedy()}",
            )


def _root(options: Mapping[str, str]) -> str:
    if "path" not in options:
        raise InputError("the option path is missing", hint="name a data directory")
    refuse_remote(
        options["path"],
        "logs are written to a file system, for a broker to mount",
        hint="write to a folder that driver and executors share, and copy it",
    )
    return os.path.realpath(local_path(options["path"]))


def _settings(options: Mapping[str, str], *, overwrite: bool) -> ImportSettings:
    unknown = [name for name in options if name not in _OWN and "." not in name]
    if unknown:
        raise InputError(
            "kafka-log has no such option for writing",
            found=unknown[0],
            hint=f"see {help_page('import')}",
        )
    try:
        topic_ids = json.loads(options.get("topicids", "{}"))
    except ValueError:
        topic_ids = None
    if not isinstance(topic_ids, dict):
        raise InputError(
            "topicIds is not JSON", expected='{"TOPIC": "ID"}', found=options.get("topicids")
        )
    mode = ImportMode.OVERWRITE if overwrite else ImportMode.APPEND
    settings = ImportSettings.of_properties(
        {name: value for name, value in options.items() if name not in _OWN},
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
#: Internal topics, which a pattern does not subscribe to.
_INTERNAL = (CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC)
_FLAGS = re.compile(r"\(\?([imsx]+)\)")
_TIERED_COMPANIONS = ("tieredformat", "keyprefix", "tieredkeys", "topicids")

#: Default approximate size of log data per task.
TASK_BYTES = 128 << 20
#: Options that select topics or partitions; only one may be given.
SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
#: Prefix of storage options.
STORAGE_PREFIX = "storage."
# Command-line option names, for which users may mean options of Spark's Kafka source.
_MEANT = {
    "topics": "subscribePattern",
    "topic": "subscribe",
    "input": "path",
    "isolation": "kafka.isolation.level",
}
_KNOWN = frozenset(
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
#: Also rejected by Spark's Kafka source, because they change rows or the start of a read.
_REFUSED = frozenset(
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
_IGNORED = frozenset(
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

    `topics` is a pattern; `topic_names` and `partitions` must exist. `rows` is None for records. If
    the logs allow it, there are at least `min_partitions` tasks, and a task reads about `max_bytes`
    of logs and at most `max_records` offsets. `follow_links` reads files even if they are links
    that point outside the paths. `ignored` are options without effect.
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
    """The options of typed columns, as `core.parameters.DecodeRequest` has them."""

    inputs: tuple[str, ...]
    decode: Decode | None
    schemas: str
    value_schema: str | None
    decode_errors: DecodeErrors
    schema_context: str
    max_decompressed_bytes: int


def _decode(options: Mapping[str, str], paths: tuple[str, ...]) -> SourceDecode | None:
    """Return the options of typed columns; None without ``decode``."""
    parts = parse_choice(options, "decode", {"": None, **{one.value: one for one in Decode}})
    if parts is None:
        for name in ("schemas", "valueschema", "decodeerrors", "schemacontext"):
            if name in options:
                raise InputError(f"the option {name} requires decode")
        return None
    return SourceDecode(
        paths,
        parts,
        options.get("schemas", FROM_DUMP),
        options.get("valueschema"),
        parse_choice(options, "decodeerrors", {one.value: one for one in DecodeErrors}),
        options.get("schemacontext", DEFAULT_CONTEXT),
        _max_decompressed_bytes(options),
    )


def _max_decompressed_bytes(options: Mapping[str, str]) -> int:
    return parse_number(options, "maxdecompressedbytes", DEFAULT_MAX_DECOMPRESSED_BYTES, least=1)


def parse_options(given: Mapping[str, str], *, now: int | None = None) -> SourceOptions:
    """Parse the options of a read; names are case-insensitive.

    Times are relative to `now`, in ms, by default the current time.
    """
    options = {name.lower(): value for name, value in given.items()}
    ignored = check_names(options)
    paths = parse_names(options, "path")
    refuse_passwords([*paths, options.get("indexes")])
    tiered = _tiered(options)
    if not paths and tiered is None:
        raise InputError("the option path is missing", hint="name a data directory")
    topics, topic_names, partitions = _subscription(options)
    rows = parse_choice(
        options, "rows", {"records": None, **{form.value: form for form in BatchForm}}
    )
    _refuse_of_records(options, rows)
    return SourceOptions(
        paths=paths,
        tiered=tiered,
        storage=_storage(given),
        indexes=options.get("indexes"),
        topics=topics,
        topic_names=topic_names,
        partitions=partitions,
        bounds=parse_bounds(options, now_ms() if now is None else now),
        settings=ReadSettings(
            columns=_columns(options),
            isolation=parse_choice(
                options, "kafka.isolation.level", {one.value: one for one in Isolation}
            ),
            include_control=parse_flag(options, "includecontrolrecords", default=False),
            on_damage=parse_choice(options, "mode", _MODES),
            max_decompressed_bytes=_max_decompressed_bytes(options),
        ),
        rows=rows,
        decode=_decode(options, paths),
        min_partitions=parse_number(options, "minpartitions", 1, least=1),
        max_bytes=_max_bytes(options),
        max_records=_max_records(options),
        push_filters=parse_flag(options, "pushfilters", default=False),
        follow_links=parse_flag(options, "followlinks", default=False),
        ignored=tuple(ignored),
    )


def _max_bytes(options: Mapping[str, str]) -> int:
    text = options.get("maxpartitionbytes")
    if text is None:
        return TASK_BYTES
    size_bytes = parse_size(text)
    if size_bytes < 1:
        raise malformed(options, "maxpartitionbytes", "a size, such as 64m")
    return size_bytes


def _max_records(options: Mapping[str, str]) -> int | None:
    name = "maxrecordsperpartition"
    return parse_number(options, name, 1, least=1) if name in options else None


def _tiered(options: Mapping[str, str]) -> TieredOptions | None:
    uris = parse_names(options, "tiered")
    if not uris:
        given = [name for name in _TIERED_COMPANIONS if name in options]
        if given:
            raise InputError(f"the option {given[0]} requires tiered")
        return None
    keys = []
    for text in parse_names(options, "tieredkeys"):
        key_id, separator, path = text.partition("=")
        if not (key_id and separator and path):
            raise malformed(options, "tieredkeys", "KEYID=FILE")
        keys.append((key_id, os.path.abspath(path)))
    layout = parse_choice(
        options, "tieredformat", {"auto": None, "aiven": "aiven", "local": "local"}
    )
    return TieredOptions(
        uris, layout, options.get("keyprefix"), parse_names(options, "topicids"), tuple(keys)
    )


def _storage(given: Mapping[str, str]) -> StorageOptions:
    return parse_storage_options(
        f"{name[len(STORAGE_PREFIX) :]}={value}"
        for name, value in given.items()
        if name.lower().startswith(STORAGE_PREFIX)
    )


def _refuse_of_records(options: Mapping[str, str], rows: BatchForm | None) -> None:
    if rows is None:
        return
    names = ("columns", "includeheaders", "includecontrolrecords", "kafka.isolation.level")
    for name in (*names, "decode"):
        if name in options:
            raise InputError(f"the option {name} is about records, not about rows={rows.value}")


def _subscription(
    options: Mapping[str, str],
) -> tuple[str | None, tuple[str, ...], Mapping[str, list[int]] | None]:
    """Return a topic pattern, topic names, or partitions."""
    named = [name for name in SUBSCRIPTIONS if name.lower() in options]
    if len(named) > 1:
        raise InputError(f"give one of {', '.join(SUBSCRIPTIONS)}", found=", ".join(named))
    if "subscribe" in options:
        names = parse_names(options, "subscribe")
        if not names:
            raise malformed(options, "subscribe", "names of topics")
        return "|".join(map(re.escape, names)), names, None
    if "assign" in options:
        return None, (), _assigned(options)
    pattern = options.get("subscribepattern")
    if pattern is None:
        return None, (), None
    pattern = pattern.strip()
    if not pattern:
        raise malformed(options, "subscribepattern", "a regular expression")
    # Flags for the whole pattern are only allowed at its start.
    flags = _FLAGS.match(pattern)
    if flags is not None:
        pattern = f"(?{flags[1]}:{pattern[flags.end() :]})"
    internal = "|".join(_INTERNAL)
    # As in Spark's Kafka source, the pattern may match a part of the name.
    found = rf"(?!(?:{internal})\Z).*(?:{pattern}).*"
    try:
        re.compile(found)
    except re.error as error:
        raise malformed(options, "subscribepattern", "a regular expression") from error
    return found, (), None


def _assigned(options: Mapping[str, str]) -> dict[str, list[int]]:
    assigned = parse_json(options, "assign")
    try:
        return {topic: [int(number) for number in numbers] for topic, numbers in assigned.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise malformed(options, "assign", '{"topic": [0, 1]}') from error


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    if "columns" in options:
        return tuple(name.strip() for name in options["columns"].split(","))
    # As in Spark's Kafka source, the headers column is optional.
    with_headers = parse_flag(options, "includeheaders", default=False)
    return DEFAULT_COLUMNS if with_headers else DEFAULT_COLUMNS[:-1]


def check_names(names: Iterable[str]) -> list[str]:
    """Return options without effect, in lower case."""
    ignored = []
    for name in names:
        if name in _KNOWN or name.startswith(STORAGE_PREFIX):
            continue
        if name in _REFUSED:
            raise InputError(
                "logs at rest cannot honour this option, nor does Spark's Kafka source", found=name
            )
        if name in _IGNORED or name.startswith("kafka."):
            ignored.append(name)
            continue
        near = _MEANT.get(name) or next(iter(difflib.get_close_matches(name, _KNOWN, n=1)), None)
        meant = "" if near is None else f"did you mean {near}? "
        raise InputError(
            "kafka-log has no such option", found=name, hint=f"{meant}see {help_page('records')}"
        )
    return sorted(ignored)


def check_partitions(options: SourceOptions, files: Sequence[PartitionFiles]) -> None:
    """Reject partitions that the dump does not have, like Spark's Kafka source."""
    found = {(one.topic, one.partition) for one in files}
    topics = {topic for topic, _ in found}
    where = ", ".join(options.paths)
    for name in options.topic_names:
        if name not in topics:
            raise InputError("the topic is not in the logs", path=where, found=name)
    assigned = {
        (topic, number)
        for topic, numbers in (options.partitions or {}).items()
        for number in numbers
    }
    _refuse_difference(assigned - found, "assigned partitions that are not in the logs", where)
    bounds = options.bounds
    for bound in (
        bounds.starting_offsets,
        bounds.ending_offsets,
        bounds.starting_timestamp,
        bounds.ending_timestamp,
    ):
        if isinstance(bound, Mapping):
            named = {(topic, number) for topic, numbers in bound.items() for number in numbers}
            _refuse_difference(named - found, "bounds of partitions that are not read", where)
            _refuse_difference(found - named, "bounds by partition omit partitions", where)


def _refuse_difference(partitions: set[tuple[str, int]], what: str, where: str) -> None:
    if partitions:
        names = [TopicPartition(*one).directory_name for one in sorted(partitions)[:5]]
        raise InputError(
            what,
            path=where,
            found=", ".join(names),
            hint="give exactly the partitions that are read",
        )


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
#: Finds the missing offsets in the ranges of logs that a split has read.
MissingInSplit = Callable[[Sequence[ScannedLog]], MissingOffsets]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


class KafkaLogSource(DataSource):
    """The data source ``kafka-log``."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Pickled with the source: times are relative to the loading of the table, however often it
        # is planned and read.
        self._now = now_ms()
        # The types of decoded columns are found once, in the records of all tasks.
        self._typed: TypedColumns | None = None

    @classmethod
    def name(cls) -> str:
        """Return the format name."""
        return "kafka-log"

    def schema(self) -> StructType:
        """Return the schema for the options."""
        options = self._parsed()
        rows, settings = options.rows, options.settings
        types = _types(settings.schema if rows is None else batch_schema(rows, settings))
        return StructType([StructField(name, kind) for name, kind in types.items()])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader for a schema; only its columns are decoded."""
        options = self._parsed()
        if not options.push_filters:
            return KafkaLogReader(options, schema)
        # Spark rejects a reader with pushFilters unless its setting is on, which is off by default.
        return FilteringReader(options, schema)

    def _parsed(self) -> SourceOptions:
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
    """Return the typed columns of the topics, which are read as one table."""
    # Schemas and their decoders are slow to import.
    from kafka_index.core.query.typed_records import with_types  # noqa: PLC0415

    assert options.decode is not None  # noqa: S101, because mypy needs it
    configure_stores(options.storage)
    settings = replace(options.settings, columns=("offset",))
    with reading_inputs(follow_links=options.follow_links):
        listed = list_partitions(
            options.paths,
            topics=options.topics,
            partitions=options.partitions,
            tiered=options.tiered,
            indexes=options.indexes,
        )
        check_partitions(options, listed.files)
        plan = plan_partitions(
            listed.files, options.bounds, settings, max_split_bytes=SEARCHED_SPLIT_BYTES
        )
        plan = with_types(plan, options.decode, options.settings.columns)
    return plan.settings.typed


def _types(schema: pa.Schema) -> dict[str, DataType]:
    """Map column names to Spark types."""
    return {
        field.name: _HEADERS if field.name == "headers" else from_arrow_type(_known(field.type))
        for field in schema
    }


def _known(kind: pa.DataType) -> pa.DataType:
    """Return the type that Spark has for a type of Arrow."""
    if pa.types.is_struct(kind):
        return pa.struct([one.with_type(_known(one.type)) for one in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _known(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_known(kind.value_type))
    return _KNOWN_TYPES.get(kind, kind)


#: Spark has no unsigned integers, and no times of day in most of its formats: they are numbers.
_KNOWN_TYPES = {
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.time64("us"): pa.int64(),
    pa.null(): pa.string(),
}


class KafkaLogReader(DataSourceReader):
    """Reads the records of log directories."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        configure_stores(options.storage)
        # Resolved once, so that all tasks read the same plan.
        self._options = replace(
            options,
            paths=tuple(map(pinned_backup, options.paths)),
        )
        self._schema = schema
        self._settings = _settings_of(options, schema)
        # Range of offsets, both inclusive; None for all.
        self._within: tuple[int, int] | None = None

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the read: a group of splits for each task."""
        options = self._options
        if options.ignored:
            _log.warning("options without effect on logs at rest: %s", ", ".join(options.ignored))
        configure_stores(options.storage)
        with reading_inputs(follow_links=options.follow_links) as unread:
            listed = list_partitions(
                options.paths,
                topics=options.topics,
                partitions=options.partitions,
                tiered=options.tiered,
                indexes=options.indexes,
            )
        if self._settings.on_damage is OnDamage.FAILFAST:
            refuse_unread(unread)
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
        # The tiered storage keys were added when its segments were listed.
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
            hint="omit the column, or read with kafka_index.read_records",
        ) from error


def _settings_of(options: SourceOptions, schema: StructType) -> ReadSettings:
    settings = options.settings
    columns = _ALL_COLUMNS if options.rows is None else batch_schema(options.rows, settings)
    if settings.typed is not None:
        columns = pa.schema([*settings.typed.schema(_ALL_COLUMNS)])
    known = _types(columns)
    for one in schema.fields:
        expected = known.get(one.name)
        if expected != one.dataType:
            raise InputError(
                f"kafka-log has no column {one.name} of this type",
                expected=", ".join(known) if expected is None else expected.simpleString(),
                found=one.dataType.simpleString(),
            )
    if CORRUPT_RECORD in schema.names and settings.on_damage is not OnDamage.PERMISSIVE:
        raise InputError(f"the column {CORRUPT_RECORD} exists only in the mode PERMISSIVE")
    if options.rows is not None or settings.typed is not None:
        return settings
    names = [name for name in schema.names if name != CORRUPT_RECORD]
    # Without columns, rows must still be counted.
    return replace(settings, columns=tuple(names) or ("offset",))


def _groups(splits: Sequence[RecordSplit], task_bytes: int) -> list[list[RecordSplit]]:
    """Combine consecutive splits up to the size of a task."""
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
    """The remaining range of values, both ends inclusive."""

    least: int = -INT64_MAX - 1
    most: int = INT64_MAX

    def narrow(self, one: Filter, value: int, *, is_exact: bool = True) -> bool:
        """Apply a comparison; return whether it is one.

        An inexact value was rounded down.
        """
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
    """A reader that uses pushed filters; for the parameters, see `KafkaLogReader`."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._offsets = _Range()
        self._times = _Range()
        self._key: bytes | None = None
        # The remaining values of the columns topic and partition.
        self._chosen: dict[str, frozenset[Any]] = {}

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802, Spark's name
        """Keep filters that narrow the read; return all filters, for Spark to evaluate."""
        applied = []
        for one in filters:
            name: tuple[str, ...] = getattr(one, "attribute", ())
            value = getattr(one, "value", None)
            if value is not None and self._apply(".".join(name), one, value):
                applied.append(f"{'.'.join(name)} {_SIGNS.get(type(one), '')} {value!r}")
        _log.info("filters that bound the read: %s", "; ".join(applied) or "none")
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        self._within = (self._offsets.least, self._offsets.most)
        if self._key is not None or self._times != _Range():
            # A record filter also skips batches by their maximum timestamps.
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
        """Narrow the read by a filter if possible; return whether it was."""
        if name in {"topic", "partition"} and isinstance(one, EqualTo | In):
            values = frozenset(value if isinstance(one, In) else [value])
            self._chosen[name] = self._chosen.get(name, values) & values
            return True
        if self._options.rows is not None:
            return False
        if name == "offset" and type(value) is int:
            return self._offsets.narrow(one, value)
        # Without a time zone, the timestamp is ambiguous.
        if name == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
            milliseconds, rest = divmod(value - _EPOCH, _MS)
            return self._times.narrow(one, milliseconds, is_exact=not rest)
        # A decoded key is not the bytes that are compared.
        is_plain = isinstance(value, bytes | bytearray) and self._settings.typed is None
        if name == "key" and isinstance(one, EqualTo) and is_plain:
            self._key = bytes(value)
            return True
        return False
