"""The request of ``lookup``: a table of queries, or a single query from the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from kafka_index.core.format.config import LogConfig, parse_integer
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.job.request import (
    TIME_HELP,
    ArgumentError,
    ChoiceKind,
    CommandSpec,
    FlagKind,
    Group,
    IntegerKind,
    Kind,
    ManyKind,
    NamesKind,
    PathKind,
    PathsKind,
    TimeKind,
    TopicKind,
    parameter,
    parameters,
)
from kafka_index.core.log.choices import By, Resolve, Status, UpperBound
from kafka_index.core.parameters import (
    KafkaSettings,
    LogRequest,
    config_parameter,
    indexes_parameter,
    topics_parameter,
)

if TYPE_CHECKING:
    from kafka_index.core.query.inventory import Inventory

# The special timestamps: -1 to -6.
_SPECIAL_TIMES = range(-6, 0)
#: Statuses that `--fail-on` accepts, and short names for two of these statuses.
_FAILING = [status.text for status in Status if status is not Status.FOUND]
_STATUS_ALIASES = {"invalid": Status.INVALID_QUERY.text, "unknown": Status.UNKNOWN_PARTITION.text}


class StatusesKind(NamesKind):
    """Statuses of queries."""

    def convert(self, value: Any, name: str, now: int) -> tuple[str, ...]:
        return tuple(
            _STATUS_ALIASES.get(status, status) for status in super().convert(value, name, now)
        )


class SpecialTime(int):
    """A special timestamp of ``ListOffsets``, such as -1 for the log end."""


class SpecialTimeKind(TimeKind):
    """A time (`Moment`), or a `SpecialTime`."""

    def convert(self, value: Any, name: str, now: int) -> Any:
        number = parse_integer(value) if isinstance(value, str) else None
        if number is not None and number in _SPECIAL_TIMES:
            return SpecialTime(number)
        return super().convert(value, name, now)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupRequest(LogRequest):
    """Look up a table of queries in files, and write the answers to files."""

    inputs: tuple[str, ...] = parameter(
        PathsKind(),
        Group.INPUT,
        "Log directories. Takes several paths, and may be repeated.",
        "--input",
        "--logs",
        default=(),
    )
    indexes: str | None = indexes_parameter()
    topics: Any = topics_parameter()
    queries: Any = parameter(
        PathKind(), Group.INPUT, "File, folder or glob of queries.", default=None
    )
    output: str | None = parameter(
        PathKind(),
        Group.OUTPUT,
        "Write the answers to PATH, in the format of the queries or as Parquet. A path with the "
        "ending of a format is a file, otherwise a folder.",
        default=None,
    )
    by: By | None = parameter(ChoiceKind(By), Group.SELECTION, "Key of the queries.", default=None)
    fail_on: tuple[str, ...] = parameter(
        StatusesKind((*_STATUS_ALIASES, *_FAILING)),
        Group.BEHAVIOUR,
        "Exit with 1 if a query has one of these statuses (separated by commas): invalid, "
        f"unknown, {', '.join(_FAILING)}. The answers are written in any case.",
        default=(),
    )
    overwrite: bool = parameter(
        FlagKind(), Group.OUTPUT, "Replace an existing output.", default=False
    )
    resolve: Resolve | None = parameter(
        ChoiceKind(Resolve),
        Group.BEHAVIOUR,
        "Level of the answers.  [default: batch for offsets, record for timestamps]",
        default=None,
    )
    upper_bound: UpperBound = parameter(
        ChoiceKind(UpperBound),
        Group.BEHAVIOUR,
        "Upper bound of offsets: the log end, the high watermark, or the last stable offset.",
        default=UpperBound.LOG_END,
    )
    starting_offsets: str | None = parameter(
        PathKind("FILE"),
        Group.OUTPUT,
        "Write the resulting offsets as Spark's startingOffsets. Requires one query per partition.",
        default=None,
    )
    reset_offsets: str | None = parameter(
        PathKind("FILE"),
        Group.OUTPUT,
        "Write the resulting offsets for `kafka-consumer-groups --reset-offsets --from-file`.",
        default=None,
    )
    config: KafkaSettings = config_parameter()
    max_decompressed_bytes: int | None = parameter(
        IntegerKind(1),
        Group.ENGINE,
        "Memory limit for decompressed records, in bytes, per process. Larger batches fail with "
        "too_large.  [default: 268435456, or max.decompressed.bytes of --config]",
        default=None,
    )

    def __post_init__(self) -> None:
        super(LookupRequest, self).__post_init__()
        self._check_table()

    def _check_table(self) -> None:
        if self.queries is None:
            raise ArgumentError("no queries: give {queries}")
        if self.output is None:
            raise ArgumentError("no output: give {output}")
        if self.by is None:
            raise ArgumentError("no key: give {by} offset or timestamp")

    @property
    def log_config(self) -> LogConfig:
        """Kafka settings of the logs, for building indexes."""
        config = self.config.config
        if self.max_decompressed_bytes is None:
            return config
        return replace(config, max_decompressed_bytes=self.max_decompressed_bytes)

    def collect_inventory(
        self, paths: Sequence[str] | None = None, topics: re.Pattern[str] | None = None
    ) -> Inventory:
        """List the logs of the request, or only logs in some inputs (`paths`) or of `topics`."""
        from kafka_index.core.query.inventory import collect_inventory  # noqa: PLC0415, slow to import

        return collect_inventory(
            self.inputs if paths is None else paths,
            tiered=self.tiered,
            indexes=self.indexes,
            upper_bound=self.upper_bound,
            topics=topics or self.topics,
        )

    @property
    def offsets_files(self) -> list[tuple[str, str]]:
        """Paths of the requested output files for offsets, each with the name of its parameter."""
        names = ("starting_offsets", "reset_offsets")
        return [(path, name) for name in names if (path := getattr(self, name)) is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLookupRequest(LookupRequest):
    """Look up a table of queries in memory."""

    queries: Any = parameter(Kind(), Group.INPUT, "A table.")
    resolve: Resolve = parameter(
        ChoiceKind(Resolve),
        Group.BEHAVIOUR,
        "Level of the answers.",
        default=Resolve.BATCH,
    )

    def _check_table(self) -> None:
        """Accept any table; its columns are checked when it is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleLookupRequest(LookupRequest):
    """A table of queries in files, or a single query, whose answers are printed.

    A single query has at most one key: an offset or a time. The key is looked up in the requested
    partitions of a topic or of matching topics, by default in all partitions.
    """

    topic: str | None = parameter(
        TopicKind("NAME"),
        Group.SELECTION,
        "Topic of a single lookup, without --queries.",
        default=None,
    )
    partitions: tuple[int, ...] = parameter(
        ManyKind(IntegerKind(0, INT32_MAX)),
        Group.SELECTION,
        "A partition; may be repeated.  [default: all]",
        "--partition",
        default=(),
    )
    offset: int | None = parameter(
        IntegerKind(),
        Group.SELECTION,
        "Find the record at offset N, or the first record after it.",
        default=None,
    )
    at: Any = parameter(
        SpecialTimeKind(),
        Group.SELECTION,
        f"Find the first record at or after TIME. {TIME_HELP} Special values, as in ListOffsets: "
        "-1 (latest), -2 (earliest), -3 (largest timestamp), -4 (earliest local), -5 (latest "
        "tiered), -6 (earliest pending upload).",
        "--at",
        "--timestamp",
        default=None,
    )
    show_record: bool = parameter(
        FlagKind(),
        Group.OUTPUT,
        "Print the key, value and headers of the found record.",
        default=False,
    )
    as_offsets: bool = parameter(
        FlagKind(),
        Group.OUTPUT,
        "Print TOPIC:PARTITION:OFFSET lines, as kafka-get-offsets does. Without --offset and "
        "--at, print the log end offsets.",
        "--get-offsets",
        default=False,
    )
    as_json: bool = parameter(
        FlagKind(),
        Group.OUTPUT,
        "Print a JSON object for each partition.",
        "--json",
        default=False,
    )

    def __post_init__(self) -> None:
        if self.queries is not None:
            if name := self._first_given(_SINGLE_FIELDS):
                raise ArgumentError(
                    f"{{{name}}} applies only to a single query, without {{queries}}"
                )
        elif not (self._first_given(_SINGLE_FIELDS) or self.topics):
            LogRequest.__post_init__(self)
            raise ArgumentError("no queries: give {queries} PATH, {topic} or {topics}")
        elif name := self._first_given(_TABLE_FIELDS):
            raise ArgumentError(f"{{{name}}} requires {{queries}}")
        LogRequest.__post_init__(self)
        if self.is_single:
            self._check_single()
        else:
            self._check_table()

    def _first_given(self, names: tuple[str, ...]) -> str | None:
        """Return the first of the fields that has a value other than its default."""
        declared = parameters(type(self))
        return next((name for name in names if getattr(self, name) != declared[name].default), None)

    def _check_single(self) -> None:
        if (self.topic is None) == (self.topics is None):
            raise ArgumentError("a single query requires {topic} or {topics}, and not both")
        if self.offset is not None and self.at is not None:
            raise ArgumentError("a single query accepts {offset} or {at}, not both")
        if self.as_json and self.as_offsets:
            raise ArgumentError("{as_json} and {as_offsets} are mutually exclusive")
        has_records = self.resolve in (None, Resolve.RECORD)
        if not self.has_one_answer and not has_records:
            raise ArgumentError(
                f"{{resolve}} {self.resolve} requires {{topic}}, one {{partitions}}, and "
                "{offset} or {at}; a query of several partitions always has the level record"
            )
        if self.show_record and not (self.has_one_answer and has_records):
            raise ArgumentError(
                "{show_record} requires {topic}, one {partitions}, {offset} or {at}, and "
                "{resolve} record"
            )
        if self.key_kind is None and self.offsets_files:
            raise ArgumentError(
                "{starting_offsets} and {reset_offsets} require {offset} or {at}; {at} -1 is the "
                "log end, and {at} -2 is the log start"
            )

    @property
    def is_single(self) -> bool:
        """Whether the request is a single query instead of a table of queries."""
        return self.queries is None

    @property
    def key_kind(self) -> By | None:
        """The kind of key of a single query, None if it only lists the bounds of partitions."""
        return By.TIMESTAMP if self.at is not None else None if self.offset is None else By.OFFSET

    @property
    def key(self) -> int:
        """The offset, or the time in milliseconds since 1970; 0 if the query has no key."""
        return int((self.offset if self.at is None else self.at) or 0)

    @property
    def is_special(self) -> bool:
        """Whether the key is a special timestamp instead of a time."""
        return isinstance(self.at, SpecialTime)

    @property
    def has_one_answer(self) -> bool:
        """Whether the result is a single answer, because the query has a key and one partition."""
        if self.topic is None or self.as_offsets or self.offsets_files:
            return False
        return len(self.partitions) == 1 and self.key_kind is not None


_SINGLE_FIELDS = tuple(
    field.name
    for field in fields(ConsoleLookupRequest)
    if field.name not in LookupRequest.__dataclass_fields__
)
_TABLE_FIELDS = ("output", "by", "fail_on", "overwrite")

_TABLE_USAGE = "--queries PATH --output PATH --by offset|timestamp"
_SINGLE_USAGE = "(--topic NAME | --topics REGEX) [--partition N]... [--offset N | --at TIME]"

LOOKUP = CommandSpec(
    "lookup",
    ConsoleLookupRequest,
    work="commands.lookup.lookup_job:look_up",
    spark_work="spark.lookup:look_up",
    help="""Find offsets and timestamps in the logs at PATH, as a broker would.

    PATH is a data directory of a broker, a topic-partition directory, or a glob of either. It may
    be repeated: `--input A --input B`, `--input A B` or `--input dump/*`. `--tiered URI` adds
    remote segments, or reads only those if --input is omitted. Logs and indexes are opened
    read-only.

    --queries are rows of Parquet, CSV or JSON lines with the columns topic, partition, and offset
    or timestamp. The output has the same rows in the same order, with additional columns.
    --topic and --topics look up a single offset or time, and print the result.

    \b
    Exit codes:
      0   Every query was answered.
      1   Corruption makes a query unreadable, or an entry of the input was
          not read. The summary and the report list both.
      2   Wrong usage, or nothing was found.
      3   Retriable failure: permission, disk, memory, network or cluster.
      70  Internal error.
    """,
    usage=f"--input PATH... ({_TABLE_USAGE} | {_SINGLE_USAGE}) [OPTIONS]",
    examples="""\
kafka-index lookup --input /dump/broker-1 --topic orders
kafka-index lookup --input /dump/broker-1 --topic orders --at 2024-05-01T00:00:00Z
kafka-index lookup --input /dump/broker-1 --topic orders --partition 0 \\
    --at 2024-05-01T00:00:00Z --show-record
kafka-index lookup --input /dump/broker-1 --topic orders --partition 0 --offset 1234 --json
kafka-index lookup --input /dump/broker-1 --topics 'orders|payments' --at -1h \\
    --starting-offsets starting-offsets.json
kafka-index lookup --input /dump/broker-1 --queries queries.parquet --by timestamp \\
    --output answers.parquet
kafka-index lookup --input /dump/* --indexes /tmp/indexes --queries 'queries/*.csv' \\
    --by offset --resolve record --output answers --report report.csv
kafka-index lookup --input /dump/broker-1 --queries q.csv --by timestamp \\
    --output answers.csv --starting-offsets starting-offsets.json
""",
    job_examples="""\
spark-submit jobs/lookup.py --input /dump/broker-1 --queries /queries \\
    --by offset --output /answers
spark-submit --master spark://host:7077 jobs/lookup.py --input /mnt/dump/* \\
    --indexes /mnt/indexes --queries /mnt/queries --by timestamp --output /mnt/answers
""",
    report="commands.lookup.result:LOOKUP_REPORT",
    report_rows="the number of queries for each partition and status, and all findings,",
    has_page=True,
)
#: The command as a Spark job, which looks up only files, and as Python functions.
LOOKUP_JOB = replace(
    LOOKUP, request=LookupRequest, usage=f"--input PATH... {_TABLE_USAGE} [OPTIONS]"
)
MEMORY_LOOKUP = replace(LOOKUP, request=MemoryLookupRequest)
