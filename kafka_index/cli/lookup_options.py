"""The options of ``lookup``: as its help shows them, and as values, checked without any file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import click

from kafka_index.cli.numbers import TIME_HELP, Whole
from kafka_index.cli.options import (
    Decorator,
    Detail,
    max_decompressed_option,
    paths_options,
    report_option,
    run_options,
    settings_options,
    topics_option,
)
from kafka_index.cli.tiered_options import tiered_options
from kafka_index.config import LogConfig
from kafka_index.execution import Engine
from kafka_index.layout.integers import INT32_MAX, INT64_MAX
from kafka_index.reading.answers import Status
from kafka_index.tiered.options import TieredOptions

#: Statuses that `--fail-on` takes, and its short names of two of them.
_FAILING = [status.text for status in Status if status is not Status.FOUND]
_SHORT = {"invalid": Status.INVALID_QUERY.text, "unknown": Status.UNKNOWN_PARTITION.text}


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The logs and the level of the answers.

    The default of `indexes` is beside the logs; that of `resolve` depends on the kind of query.
    """

    logs: tuple[str, ...]
    tiered: TieredOptions | None
    indexes: str | None
    upper_bound: str
    resolve: str | None
    config: LogConfig


@dataclass(frozen=True, slots=True)
class BulkOptions:
    """Queries of files, answered into files."""

    queries: str
    output: str
    by: str
    topics: re.Pattern[str] | None
    report: str | None
    starting_offsets: str | None
    reset_offsets: str | None
    overwrite: bool
    fail_on: frozenset[str]
    engine: Engine
    detail: Detail


def given_options(options: Mapping[str, object]) -> list[str]:
    """Return the names of the options that were given: that are neither None nor false."""
    return [name for name, value in options.items() if value is not None and value is not False]


def refuse_given(options: Mapping[str, object], others: str) -> None:
    """Refuse options that exclude the others."""
    for name in given_options(options):
        raise click.UsageError(f"{name} goes with {others}")


def lookup_options(*, as_job: bool) -> list[Decorator]:
    """Return all options; for a job without an engine's and without those of a single question."""
    return [
        *paths_options(
            "--logs", "logs", "The logs; may be given several times and take several paths."
        ),
        *tiered_options(),
        click.option(
            "--indexes",
            metavar="PATH",
            help="The folder of the index files, as `build --output` writes it.  "
            "[default: beside the logs]",
        ),
        click.option("--queries", metavar="PATH", help="A file, a folder or a glob of queries."),
        click.option(
            "--output",
            metavar="PATH",
            help="The answers, in the format of the queries or Parquet: a file if the path has "
            "such an ending, otherwise a folder.",
        ),
        click.option(
            "--by", type=click.Choice(["offset", "timestamp"]), help="What the queries ask for."
        ),
        *([] if as_job else _question_options()),
        click.option(
            "--resolve",
            type=click.Choice(["index", "batch", "record"]),
            help="The level of the answers.  [default: batch for offsets, record for timestamps]",
        ),
        click.option(
            "--upper-bound",
            type=click.Choice(["log-end", "high-watermark", "last-stable-offset"]),
            default="log-end",
            show_default=True,
            help="The end of a log: its last record, the end that consumers see, or the end that "
            "consumers of committed transactions see.",
        ),
        *settings_options(),
        max_decompressed_option(),
        topics_option(),
        report_option("queries by partition and status, and all findings,", has_page=True),
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
        click.option(
            "--fail-on",
            "fail_on",
            callback=_statuses,
            metavar="LIST",
            help="Exit with 1 if a query has one of these statuses, separated by commas: invalid, "
            f"unknown, {', '.join(_FAILING)}. The answers are written all the same.",
        ),
        click.option("--overwrite", is_flag=True, help="Replace an existing output."),
        *run_options(as_job=as_job),
    ]


def _statuses(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> frozenset[str]:
    """Return the statuses of a list of names."""
    names = [name.strip() for name in (value or "").split(",") if name.strip()]
    statuses = {_SHORT.get(name, name) for name in names}
    unknown = sorted(statuses.difference(_FAILING))
    if unknown or (value is not None and not names):
        known = ", ".join((*_SHORT, *_FAILING))
        raise click.BadParameter(f"{unknown[0] if unknown else 'nothing'} is not one of {known}")
    return frozenset(statuses)


def _question_options() -> list[Decorator]:
    return [
        click.option("--topic", metavar="NAME", help="A single question, without --queries."),
        click.option(
            "--partition",
            "partitions",
            type=Whole(0, INT32_MAX),
            multiple=True,
            metavar="N",
            help="A partition; may be repeated.  [default: all]",
        ),
        click.option("--offset", type=Whole(0, INT64_MAX), metavar="N"),
        click.option(
            "--timestamp",
            "--at",
            metavar="TIME",
            help=f"The first record at or after a time. {TIME_HELP} Or a place: -1 (the end), -2 "
            "(the start), -3 (the largest timestamp), -4 (the start of what is local), -5 (the end "
            "of what is in tiered storage), -6 (what is uploaded next).",
        ),
        click.option(
            "--show-record", is_flag=True, help="Print key, value and headers of the record found."
        ),
        click.option(
            "--get-offsets",
            "as_offsets",
            is_flag=True,
            help="Print TOPIC:PARTITION:OFFSET lines, as kafka-get-offsets does; without --offset "
            "and --timestamp, of the ends.",
        ),
        click.option(
            "--json", "as_json", is_flag=True, help="Print a JSON object for each partition."
        ),
    ]
