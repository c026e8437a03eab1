"""``export``: its options, for the console script and for ``spark-submit``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import click

from kafka_index.cli.options import Group, command, flag, function_of, option
from kafka_index.cli.shared_options import (
    Detail,
    RecordOptions,
    Times,
    detail_options,
    engine_options,
    isolation_option,
    report_option,
    times_options,
)
from kafka_index.core.job.engine import Engine

_HELP = """Export the records of the logs below PATH to Parquet or JSON lines.

    PATH is a data directory of a broker, one topic-partition directory, or a glob of either, or
    the URI of one; with `--tiered URI`, or with that alone, remote segments are read too. The files
    lie in OUTPUT/topic=NAME/partition=N/, named by the first and the last offset in them.
    Run again, the command exports only what is new. Where the log lost what was not exported, or
    has another history than what was, --on-data-loss decides. Logs are only read.

    Exit code 0: everything is exported. 1: damaged batches were left out, the summary and the
    report say where; they are read again by the next run. 2: wrong usage, or nothing was found.
    3: permission, disk, memory, network or cluster, worth a retry.
    """
_EXAMPLES = """\
kafka-index export --input /dump/broker-1 --output /lake/kafka
kafka-index export --input /dump/broker-1 --topics 'orders.*' --from 2024-05-01 \\
    --to 2024-06-01 --by-date --output s3://lake/orders
kafka-index export --input /dump/broker-1 --format jsonl --columns offset,key,value \\
    --isolation read_committed --output records
"""
_JOB_EXAMPLES = """\
spark-submit jobs/export.py --input /mnt/dump/broker-1 --output s3://lake/kafka
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions(RecordOptions):
    """The options of ``export``."""

    output: str = option(
        "--output", group=Group.OUTPUT, required=True, metavar="PATH", help="A folder, or its URI."
    )
    form: str = option(
        "--format",
        group=Group.OUTPUT,
        type=click.Choice(["parquet", "jsonl"]),
        default="parquet",
        help="The format of the files; Parquet is compressed with zstd.",
    )
    offsets: str | None = option(
        "--offsets",
        group=Group.SELECTION,
        metavar="FILE",
        help="Where to begin in each partition: Spark's startingOffsets, or lines of "
        "topic,partition,offset, as `lookup` writes them.",
    )
    times: Times = times_options()
    columns: str | None = option(
        "--columns",
        group=Group.OUTPUT,
        metavar="LIST",
        help="Names separated by commas.  [default: those of Spark's Kafka source]",
    )
    isolation: str = isolation_option()
    by_date: bool = flag(
        "--by-date", group=Group.OUTPUT, help="A folder date=YYYY-MM-DD for each day, in UTC."
    )
    on_data_loss: str = option(
        "--on-data-loss",
        group=Group.BEHAVIOUR,
        type=click.Choice(["fail", "continue", "restart"]),
        default="fail",
        help="Where a log is not the one any more that was exported: refuse the partition, "
        "continue where both agree or the log begins, or export it anew.",
    )
    report: str | None = report_option("a row for each partition")
    engine: Engine = engine_options()
    detail: Detail = detail_options()


make_command = partial(
    command,
    "export",
    ExportOptions,
    function_of("export", "run_export"),
    help_text=_HELP,
    usage="--input PATH... --output PATH [OPTIONS]",
    examples=_EXAMPLES,
    job_examples=_JOB_EXAMPLES,
)
