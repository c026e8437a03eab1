"""``lookup``: its options, of a table of queries and of a single question."""

from __future__ import annotations

import gc
import re
from collections.abc import Collection
from dataclasses import dataclass

import click
from click.core import ParameterSource

from kafka_index.cli.completion import complete_topic
from kafka_index.cli.exit_status import option_name
from kafka_index.cli.options import (
    TIME_HELP,
    Whole,
    command,
    flag,
    function_of,
    listed,
    option,
    parse_moment,
)
from kafka_index.cli.shared_options import (
    Detail,
    LogOptions,
    decompressed_bytes,
    detail_options,
    engine_options,
    indexes_option,
    input_option,
    report_option,
    settings_options,
    topics_option,
)
from kafka_index.core.format.config import LogConfig, parse_integer
from kafka_index.core.format.integers import INT32_MAX, INT64_MAX
from kafka_index.core.job.engine import Engine
from kafka_index.core.job.request import Group
from kafka_index.core.log.read.answers import Status

_HELP = """Find offsets and times in the logs below PATH, as a broker would.

    PATH is a data directory of a broker, one topic-partition directory, or a glob of either;
    or several, as `--input A --input B`, `--input A B` or `--input dump/*`. With `--tiered URI`, or
    with that alone, remote segments are read too. The queries are rows of Parquet, CSV or JSON
    lines with the columns topic, partition, and offset or timestamp; the answers are the same rows,
    in their order, with more columns. Logs and indexes are only read.

    Exit code 0: every query has its answer. 1: damage makes some unreadable, the summary and the
    report say where. 2: wrong usage, or nothing was found. 3: permission, disk, memory, network or
    cluster, worth a retry.
    """

_EXAMPLES = """\
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
"""
_JOB_EXAMPLES = """\
spark-submit jobs/lookup.py --input /dump/broker-1 --queries /queries \\
    --by offset --output /answers
spark-submit --master spark://host:7077 jobs/lookup.py --input /mnt/dump/* \\
    --indexes /mnt/indexes --queries /mnt/queries --by timestamp --output /mnt/answers
"""
_IN_BULK = "--queries PATH --output PATH --by offset|timestamp"
_SINGLE = "(--topic NAME | --topics REGEX) [--partition N]... [--offset N | --at TIME]"
# The default of --show-record is this level, too.
_RECORD = (None, "record")
# The special timestamps: -1 to -6.
_PLACES = range(-6, 0)
#: Statuses that `--fail-on` takes, and its short names of two of them.
_FAILING = [status.text for status in Status if status is not Status.FOUND]
_SHORT = {"invalid": Status.INVALID_QUERY.text, "unknown": Status.UNKNOWN_PARTITION.text}
# Options by the names of their parameters.
_OF_QUESTIONS = ("topic", "partitions", "offset", "at", "show_record", "as_offsets", "as_json")
_OF_QUERIES = ("output", "column", "report", "fail_on", "overwrite", "engine", "master", "threads")


def _statuses(value: str | None) -> frozenset[str]:
    names = [] if value is None else listed(value, (*_SHORT, *_FAILING))
    return frozenset(_SHORT.get(name, name) for name in names)


def _place_or_time(value: str | None) -> tuple[int, bool] | None:
    """Return milliseconds, and whether they stand for a place in the log."""
    if value is None:
        return None
    number = parse_integer(value)
    if number is not None and number in _PLACES:
        return number, True
    return parse_moment(value), False


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupOptions(LogOptions):
    """Queries of files that are answered into files; without them, a question.

    A question is asked of one partition of a topic, of several or all, or of all topics that match;
    of each partition by itself. The default level of the answers depends on the kind of query.
    """

    inputs: tuple[str, ...] = input_option(
        "The logs; may be given several times and take several paths.", "--logs"
    )
    indexes: str | None = indexes_option()
    topics: re.Pattern[str] | None = topics_option()
    topic: str | None = option(
        "--topic",
        group=Group.SELECTION,
        metavar="NAME",
        shell_complete=complete_topic,
        help="A single question, without --queries.",
    )
    partitions: tuple[int, ...] = option(
        "--partition",
        group=Group.SELECTION,
        type=Whole(0, INT32_MAX),
        multiple=True,
        metavar="N",
        help="A partition; may be repeated.  [default: all]",
    )
    offset: int | None = option(
        "--offset",
        group=Group.SELECTION,
        type=Whole(0, INT64_MAX),
        metavar="N",
        help="The record at an offset, or the first one after it.",
    )
    at: tuple[int, bool] | None = option(
        "--at",
        "--timestamp",
        group=Group.SELECTION,
        parse=_place_or_time,
        metavar="TIME",
        help=f"The first record at or after a time. {TIME_HELP} Or a place: -1 (the end), -2 "
        "(the start), -3 (the largest timestamp), -4 (the start of what is local), -5 (the end "
        "of what is in tiered storage), -6 (what is uploaded next).",
    )
    show_record: bool = flag(
        "--show-record",
        group=Group.OUTPUT,
        help="Print key, value and headers of the record found.",
    )
    as_offsets: bool = flag(
        "--get-offsets",
        group=Group.OUTPUT,
        help="Print TOPIC:PARTITION:OFFSET lines, as kafka-get-offsets does; without --offset "
        "and --at, of the ends.",
    )
    as_json: bool = flag(
        "--json", group=Group.OUTPUT, help="Print a JSON object for each partition."
    )
    queries: str | None = option(
        "--queries",
        group=Group.INPUT,
        metavar="PATH",
        help="A file, a folder or a glob of queries.",
    )
    output: str = option(
        "--output",
        group=Group.OUTPUT,
        metavar="PATH",
        help="The answers, in the format of the queries or Parquet: a file if the path has "
        "such an ending, otherwise a folder.",
    )
    column: str = option(
        "--by",
        group=Group.SELECTION,
        type=click.Choice(["offset", "timestamp"]),
        help="What the queries ask for.",
    )
    report: str | None = report_option(
        "queries by partition and status, and all findings,", has_page=True
    )
    fail_on: frozenset[str] = option(
        "--fail-on",
        group=Group.BEHAVIOUR,
        parse=_statuses,
        metavar="LIST",
        help="Exit with 1 if a query has one of these statuses, separated by commas: invalid, "
        f"unknown, {', '.join(_FAILING)}. The answers are written all the same.",
    )
    overwrite: bool = flag("--overwrite", group=Group.OUTPUT, help="Replace an existing output.")
    engine: Engine = engine_options()
    resolve: str | None = option(
        "--resolve",
        group=Group.BEHAVIOUR,
        type=click.Choice(["index", "batch", "record"]),
        help="The level of the answers.  [default: batch for offsets, record for timestamps]",
    )
    upper_bound: str = option(
        "--upper-bound",
        group=Group.BEHAVIOUR,
        type=click.Choice(["log-end", "high-watermark", "last-stable-offset"]),
        default="log-end",
        help="The end of a log: its last record, the end that consumers see, or the end that "
        "consumers of committed transactions see.",
    )
    starting_offsets: str | None = option(
        "--starting-offsets",
        group=Group.OUTPUT,
        metavar="FILE",
        help="Write the offsets found as Spark's startingOffsets, one query a partition.",
    )
    reset_offsets: str | None = option(
        "--reset-offsets",
        group=Group.OUTPUT,
        metavar="FILE",
        help="The same for `kafka-consumer-groups --reset-offsets --from-file`.",
    )
    config: LogConfig = settings_options(decompressed_bytes())
    detail: Detail = detail_options()

    def __post_init__(self) -> None:
        is_job = "topic" not in click.get_current_context().params
        asked = _given(_OF_QUESTIONS)
        if self.queries is not None:
            if asked:
                raise click.UsageError(f"{asked[0]} goes with a single question, without --queries")
        elif is_job or not (asked or self.topics):
            LogOptions.__post_init__(self)
            places = "--queries PATH" if is_job else "--queries PATH, --topic or --topics"
            raise click.UsageError(f"no queries: give {places}")
        elif others := _given(_OF_QUERIES):
            raise click.UsageError(f"{others[0]} goes with --queries, not with a single question")
        LogOptions.__post_init__(self)
        if self.queries is None:
            self._check_question()
        elif self.output is None:
            raise click.UsageError("no output: give --output PATH")
        elif self.column is None:
            raise click.UsageError("no key: give --by offset or timestamp")

    def _check_question(self) -> None:
        if (self.topic is None) == (self.topics is None):
            raise click.UsageError("a single question needs --topic or --topics, and not both")
        if self.offset is not None and self.at is not None:
            raise click.UsageError("a single question needs --offset or --at, not both")
        if self.as_json and self.as_offsets:
            raise click.UsageError("--json and --get-offsets are mutually exclusive")
        if not self.has_one_answer and self.resolve not in _RECORD:
            raise click.UsageError(
                f"--resolve {self.resolve} needs --topic, one --partition, and --offset or --at: "
                "tables and files of offsets have the level of records"
            )
        if self.show_record and not (self.has_one_answer and self.resolve in _RECORD):
            raise click.UsageError(
                "--show-record needs --topic, one --partition, and --offset or --at, and the level "
                "of records"
            )
        if self.by is None and self.has_files:
            raise click.UsageError(
                "--starting-offsets and --reset-offsets need --offset or --at: -1 is the end of "
                "each partition, -2 its start"
            )

    @property
    def has_files(self) -> bool:
        """Whether the offsets found are written for Spark or Kafka, too."""
        return self.starting_offsets is not None or self.reset_offsets is not None

    @property
    def by(self) -> str | None:
        """``offset`` or ``timestamp``; a question without either asks for bounds of partitions."""
        if self.queries is not None:
            return self.column
        return "timestamp" if self.at is not None else None if self.offset is None else "offset"

    @property
    def key(self) -> int:
        """The offset, or milliseconds since 1970; 0 for none."""
        return self.offset or 0 if self.at is None else self.at[0]

    @property
    def specials(self) -> bool:
        """Whether the key is a special timestamp instead of a time."""
        return self.at is not None and self.at[1]

    @property
    def has_one_answer(self) -> bool:
        """Whether it is a query about one partition."""
        if self.topic is None or self.as_offsets or self.has_files:
            return False
        return len(self.partitions) == 1 and self.by is not None


def _run(options: LookupOptions) -> int:
    if options.queries is not None:
        return function_of("lookup", "run_lookup")(options.queries, options)
    # Imports take nearly all of the time: import only what a question needs, and collect no
    # garbage meanwhile, nor when the process ends.
    gc.disable()
    try:
        return function_of("lookup_question", "answer_question")(options)
    finally:
        gc.freeze()
        gc.enable()


def _given(names: Collection[str]) -> list[str]:
    """Return those of some options that are given on the command line."""
    context = click.get_current_context()
    return [
        option_name(each)
        for each in context.command.params
        if each.name in names
        and context.get_parameter_source(each.name) is ParameterSource.COMMANDLINE
        and context.params[each.name] != each.default
    ]


def make_command(*, as_job: bool) -> click.Command:
    """Return the ``lookup`` command, or as a job for ``spark-submit``: on Spark, files only."""
    made = command(
        "lookup",
        LookupOptions,
        _run,
        as_job=as_job,
        help_text=_HELP,
        usage=f"--input PATH... {_IN_BULK if as_job else f'({_IN_BULK} | {_SINGLE})'} [OPTIONS]",
        examples=_EXAMPLES,
        job_examples=_JOB_EXAMPLES,
    )
    if as_job:
        made.params = [each for each in made.params if each.name not in _OF_QUESTIONS]
    return made
