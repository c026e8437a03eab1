"""The options of ``lookup``: as its help shows them, and as values, checked without any file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import click

from kafka_index.cli.options import (
    Decorator,
    Detail,
    detail_options,
    engine_options,
    max_decompressed_option,
    pattern,
    report_path,
    settings_options,
)
from kafka_index.cli.text import parse_time
from kafka_index.config import INT32_MAX, LogConfig
from kafka_index.layout.names import INT64_MAX


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The logs, and the level of the answers.

    Parameters
    ----------
    logs : tuple of str
        Paths as given.
    indexes : str, optional
        Root of the index files; None beside the logs.
    upper_bound : str
        ``log-end`` or ``high-watermark``.
    resolve : str, optional
        ``index``, ``batch`` or ``record``; None: the default for the query.
    config : LogConfig
        Kafka's settings, for indexes that are missing.
    """

    logs: tuple[str, ...]
    indexes: str | None
    upper_bound: str
    resolve: str | None
    config: LogConfig


@dataclass(frozen=True, slots=True)
class BulkOptions:
    """Queries of files, answered into files.

    Parameters
    ----------
    queries, output : str
        Paths as given.
    by : str
        ``offset`` or ``timestamp``.
    output_format : str, optional
        ``parquet``, ``csv`` or ``json``; by default that of the queries.
    topics : re.Pattern, optional
        Topics to keep.
    report, starting_offsets, reset_offsets : str, optional
        Paths of further files to write.
    overwrite : bool
        Whether an existing output is replaced.
    group_by_partition : bool
        Whether Spark shuffles all queries of a partition to one task.
    engine : str
        ``local`` or ``spark``.
    master : str, optional
        Spark's master.
    threads : int
        Of the local engine.
    detail : Detail
        How much to print.
    """

    queries: str
    output: str
    by: str
    output_format: str | None
    topics: re.Pattern[str] | None
    report: str | None
    starting_offsets: str | None
    reset_offsets: str | None
    overwrite: bool
    group_by_partition: bool
    engine: str
    master: str | None
    threads: int
    detail: Detail


@dataclass(frozen=True, slots=True)
class Question:
    """A single query.

    Parameters
    ----------
    topic : str
        Its topic.
    partition : int
        Its partition.
    by : str
        ``offset`` or ``timestamp``.
    key : int
        The offset, or milliseconds since 1970.
    specials : bool
        Whether -1, -2 and -3 are places instead of times.
    """

    topic: str
    partition: int
    by: str
    key: int
    specials: bool


def make_question(
    topic: str | None, partition: int | None, offset: int | None, timestamp: str | None
) -> Question:
    """Return the single query of the options.

    Raises
    ------
    click.UsageError
        They do not make one query, or the time is malformed.
    """
    if topic is None or partition is None:
        raise click.UsageError("a single question needs --topic and --partition")
    if (offset is None) == (timestamp is None):
        raise click.UsageError("a single question needs --offset or --timestamp, one of them")
    if timestamp is None:
        return Question(topic, partition, "offset", offset or 0, specials=False)
    try:
        key, specials = parse_time(timestamp)
    except ValueError as error:
        raise click.BadParameter(
            f"{timestamp!r} is neither milliseconds nor a time such as 2024-05-01T00:00:00Z",
            param_hint="--timestamp",
        ) from error
    return Question(topic, partition, "timestamp", key, specials)


def was_given(options: Mapping[str, object]) -> bool:
    """Return whether any of these options was given: is neither None nor false."""
    return any(value is not None and value is not False for value in options.values())


def refuse_given(options: Mapping[str, object], others: str) -> None:
    """Refuse options that exclude the others.

    Raises
    ------
    click.UsageError
        One was given.
    """
    for name, value in options.items():
        if was_given({name: value}):
            raise click.UsageError(f"{name} goes with {others}")


def lookup_options(*, as_job: bool) -> list[Decorator]:
    """Return all options.

    Parameters
    ----------
    as_job : bool
        Without those that choose an engine, and without those of a single question.
    """
    return [
        *_logs_options(),
        *_queries_options(),
        *([] if as_job else _question_options()),
        *_level_options(),
        *_result_options(),
        *([] if as_job else engine_options()),
        *detail_options(),
    ]


def _logs_options() -> list[Decorator]:
    return [
        click.option(
            "--logs",
            "logs",
            multiple=True,
            metavar="PATH...",
            help="The logs; may be given several times and take several paths.",
        ),
        click.argument("more_logs", nargs=-1, metavar=""),
        click.option(
            "--indexes",
            metavar="PATH",
            help="The folder of the index files, as `build --output` writes it.  "
            "[default: beside the logs]",
        ),
    ]


def _queries_options() -> list[Decorator]:
    return [
        click.option("--queries", metavar="PATH", help="A file, a folder or a glob of queries."),
        click.option(
            "--output",
            metavar="PATH",
            help="The answers: a file if the path has such an ending, otherwise a folder.",
        ),
        click.option(
            "--output-format",
            type=click.Choice(["parquet", "csv", "json"]),
            help="The format of the answers.  [default: that of the queries]",
        ),
        click.option(
            "--by", type=click.Choice(["offset", "timestamp"]), help="What the queries ask for."
        ),
    ]


def _question_options() -> list[Decorator]:
    return [
        click.option("--topic", metavar="NAME", help="A single question, without --queries."),
        click.option("--partition", type=click.IntRange(0, INT32_MAX), metavar="N"),
        click.option("--offset", type=click.IntRange(0, INT64_MAX), metavar="N"),
        click.option(
            "--timestamp",
            metavar="TIME",
            help="Milliseconds since 1970, or 2024-05-01T00:00:00Z (UTC where no zone is given), "
            "or -1 (the end), -2 (the start), -3 (the largest timestamp).",
        ),
        click.option("--json", "as_json", is_flag=True, help="The answer as one JSON object."),
    ]


def _level_options() -> list[Decorator]:
    return [
        click.option(
            "--resolve",
            type=click.Choice(["index", "batch", "record"]),
            help="The level of the answers.  [default: batch for offsets, record for timestamps]",
        ),
        click.option(
            "--upper-bound",
            type=click.Choice(["log-end", "high-watermark"]),
            default="log-end",
            show_default=True,
            help="The end of a log: its last record, or the end that consumers see.",
        ),
        *settings_options(),
        max_decompressed_option(),
    ]


def _result_options() -> list[Decorator]:
    return [
        click.option(
            "--topics", callback=pattern, metavar="REGEX", help="Only topics that match in full."
        ),
        click.option(
            "--report",
            callback=report_path,
            metavar="FILE",
            help="Write queries by partition and status, and all findings: "
            ".parquet, .json (an object a line) or .csv.",
        ),
        click.option(
            "--starting-offsets",
            metavar="FILE",
            help="Write the offsets found as Spark's startingOffsets, one query a partition.",
        ),
        click.option(
            "--reset-offsets",
            metavar="FILE",
            help="The same for `kafka-consumer-groups --reset-offsets --from-file`.",
        ),
        click.option("--overwrite", is_flag=True, help="Replace an existing output."),
        click.option(
            "--group-by-partition",
            type=click.Choice(["auto", "always", "never"]),
            is_flag=False,
            flag_value="always",
            help="On Spark: shuffle all queries of a partition to one task. Pays where opening "
            "segments is slow. auto is never; the option alone means always.  [default: never]",
        ),
    ]
