"""The options of ``lookup`` as its help shows them."""

from __future__ import annotations

import click

from kafka_index.cli.options import (
    Decorator,
    detail_options,
    engine_options,
    pattern,
    report_path,
    settings_options,
)
from kafka_index.config import INT32_MAX
from kafka_index.layout.names import INT64_MAX


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
            help="What to look into; may be given several times and take several paths.",
        ),
        click.argument("more_logs", nargs=-1, metavar=""),
        click.option(
            "--indexes",
            metavar="PATH",
            help="Where the index files are, as `build --output` writes them.  "
            "[default: beside the logs]",
        ),
    ]


def _queries_options() -> list[Decorator]:
    return [
        click.option("--queries", metavar="PATH", help="A file, a folder or a glob of queries."),
        click.option(
            "--output",
            metavar="PATH",
            help="Where the answers go: a file when it ends like one, otherwise a folder.",
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
            help="How far to go.  [default: batch for offsets, record for timestamps]",
        ),
        click.option(
            "--upper-bound",
            type=click.Choice(["log-end", "high-watermark"]),
            default="log-end",
            show_default=True,
            help="Where a log ends: there, or where its consumers see the end.",
        ),
        *settings_options(),
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
            help="Write queries by partition and status, and what was found wrong: "
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
        click.option("--overwrite", is_flag=True, help="Replace an output that is there."),
        click.option(
            "--group-by-partition",
            type=click.Choice(["auto", "always", "never"]),
            is_flag=False,
            flag_value="always",
            help="On Spark: shuffle all queries of a partition to one task. Pays where opening "
            "segments is slow. auto is never; the option alone means always.  [default: never]",
        ),
    ]
