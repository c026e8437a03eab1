"""The options of the data source ``kafka-log``: those of Spark's Kafka source, and a few more.

Names and meaning are those of Spark's ``KafkaSourceProvider`` and ``KafkaOffsetReader``, so that a
job is moved by changing the format. An option that changes rows and that log directories cannot
honour is refused by name; one about connections or tuning is ignored.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kafka_index.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.errors import InputError, help_page
from kafka_index.layout.names import (
    CONSUMER_OFFSETS_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from kafka_index.layout.times import now_ms
from kafka_index.layout.uri_passwords import refuse_passwords
from kafka_index.reading import PartitionFiles
from kafka_index.records.record_table import DEFAULT_COLUMNS
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
from kafka_index.stores.store import StorageOptions, parse_storage_options
from kafka_index.tables import Isolation, OnDamage, ReadSettings
from kafka_index.tables.bounds import BoundOptions
from kafka_index.tables.record_reader import BatchForm
from kafka_index.tiered.options import TieredOptions

_MODES = {
    "FAILFAST": OnDamage.FAILFAST,
    "PERMISSIVE": OnDamage.PERMISSIVE,
    "DROPMALFORMED": OnDamage.DROP,
}
#: Kafka's own topics, which a pattern does not subscribe to.
_INTERNAL = (CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC)
_FLAGS = re.compile(r"\(\?([imsx]+)\)")
_TIERED_COMPANIONS = ("tieredformat", "keyprefix", "tieredkeys", "topicids")

#: About the most bytes of logs that a task reads, unless it is told otherwise.
TASK_BYTES = 128 << 20
#: The options that choose topics or partitions, one of them at a time.
SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
#: The prefix of options of the stores.
STORAGE_PREFIX = "storage."
# Names of the commands' options, which Spark's Kafka source does not have.
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
    )
)
#: What Spark's Kafka source refuses too: they change rows, or where a read begins.
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
#: Options of Spark's Kafka source that change no rows of a batch read.
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
    """The options of a read of ``kafka-log``.

    `topics` is a pattern; `topic_names` and `partitions` have to be there. `rows` is None for
    records. There are at least `min_partitions` tasks where the logs allow it, and a task reads
    about `max_bytes` of logs and `max_records` offsets at most. `follow_links`: files are read also
    where they are links that lead out of the paths. `ignored` are options that have no effect.
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


def parse_options(given: Mapping[str, str], *, now: int | None = None) -> SourceOptions:
    """Parse the options of a read, with names in any case.

    Times are relative to `now`, in ms, by default the instant of the call.
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
            max_decompressed_bytes=parse_number(
                options, "maxdecompressedbytes", DEFAULT_MAX_DECOMPRESSED_BYTES, least=1
            ),
        ),
        rows=rows,
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
    """Return the options of stores, ``storage.KEY``."""
    return parse_storage_options(
        f"{name[len(STORAGE_PREFIX) :]}={value}"
        for name, value in given.items()
        if name.lower().startswith(STORAGE_PREFIX)
    )


def _refuse_of_records(options: Mapping[str, str], rows: BatchForm | None) -> None:
    """Refuse options about records where rows are batches."""
    if rows is None:
        return
    for name in ("columns", "includeheaders", "includecontrolrecords", "kafka.isolation.level"):
        if name in options:
            raise InputError(f"the option {name} is about records, not about rows={rows.value}")


def _subscription(
    options: Mapping[str, str],
) -> tuple[str | None, tuple[str, ...], Mapping[str, list[int]] | None]:
    """Return a pattern of topics, topics by name, and partitions."""
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
    # Flags that apply to all of it are only allowed at its start.
    flags = _FLAGS.match(pattern)
    if flags is not None:
        pattern = f"(?{flags[1]}:{pattern[flags.end() :]})"
    internal = "|".join(_INTERNAL)
    # As there, the pattern has to match some part of a name.
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
    # As in Spark's Kafka source, headers are a column on request.
    with_headers = parse_flag(options, "includeheaders", default=False)
    return DEFAULT_COLUMNS if with_headers else DEFAULT_COLUMNS[:-1]


def check_names(names: Iterable[str]) -> list[str]:
    """Return the options without effect, by their names in lower case."""
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
    """Refuse names of partitions that the dump does not have, as Spark's Kafka source does."""
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
            _refuse_difference(found - named, "bounds by partition leave some out", where)


def _refuse_difference(partitions: set[tuple[str, int]], what: str, where: str) -> None:
    if partitions:
        names = [TopicPartition(*one).directory_name for one in sorted(partitions)[:5]]
        raise InputError(
            what,
            path=where,
            found=", ".join(names),
            hint="name all partitions that are read, and no others",
        )
