"""``export``: its options, for the console script and for ``spark-submit``."""

from __future__ import annotations

import re

import click

from kafka_index.cli.options import SUBMITTED, Detail, command, report_option, run_options
from kafka_index.cli.record_options import (
    input_options,
    isolation_option,
    make_input,
    relative_times,
    time_options,
    time_range,
)
from kafka_index.execution import Engine
from kafka_index.tiered.options import TieredOptions

_HELP = """Export the records of the logs below PATH to Parquet or JSON lines.

    PATH is a data directory of a broker, one topic-partition directory, or a glob of either, or
    the URI of one; with `--tiered URI`, or with that alone, remote segments are read too. The files
    lie in OUTPUT/topic=NAME/partition=N/, named by the first and the last offset in them.
    Run again, the command exports only what is new. Where the log lost what was not exported, or
    has another history than what was, --on-data-loss decides. Logs are only read.

    Exit code 0: everything is exported. 1: damaged batches were left out, the summary and the
    report say where; they are read again by the next run. 2: wrong usage, or nothing was found.
    3: permission, disk, memory, network or cluster, worth a retry.

    \b
    Examples:
    """
_CONSOLE_EXAMPLES = """\
  kafka-index export --input /dump/broker-1 --output /lake/kafka
      kafka-index export --input /dump/broker-1 --topics 'orders.*' --from 2024-05-01 \\
          --to 2024-06-01 --by-date --output s3://lake/orders
      kafka-index export --input /dump/broker-1 --format jsonl --columns offset,key,value \\
          --isolation read_committed --output records
"""
_JOB_EXAMPLES = """\
  spark-submit jobs/export.py --input /mnt/dump/broker-1 --output s3://lake/kafka
"""


def make_command(*, as_job: bool) -> click.Command:
    """Return the ``export`` command, or as a job for ``spark-submit``: on Spark."""

    def export(
        inputs: tuple[str, ...],
        tiered: TieredOptions | None,
        indexes: str | None,
        topics: re.Pattern[str] | None,
        max_decompressed_bytes: int | None,
        output: str,
        form: str,
        offsets: str | None,
        from_ms: int | None,
        to_ms: int | None,
        columns: str | None,
        isolation: str,
        by_date: bool,  # noqa: FBT001, because click passes options by name
        on_data_loss: str,
        report: str | None,
        detail: Detail,
        engine: Engine = SUBMITTED,
    ) -> int:
        read = make_input(inputs, tiered, indexes, topics)
        from_ms, to_ms = time_range(from_ms, to_ms)
        from kafka_index.cli.export import ExportOptions, run_export  # noqa: PLC0415, slow

        return run_export(
            ExportOptions(
                output=output,
                form=form,
                offsets=offsets,
                from_ms=from_ms,
                to_ms=to_ms,
                columns=columns,
                isolation=isolation,
                by_date=by_date,
                relative_times=relative_times(),
                on_data_loss=on_data_loss,
                max_decompressed_bytes=max_decompressed_bytes,
                report=report,
                engine=engine,
                detail=detail,
            ),
            read,
        )

    return command(
        export,
        [
            *input_options(),
            click.option("--output", required=True, metavar="PATH", help="A folder, or its URI."),
            click.option(
                "--format",
                "form",
                type=click.Choice(["parquet", "jsonl"]),
                default="parquet",
                show_default=True,
                help="The format of the files; Parquet is compressed with zstd.",
            ),
            click.option(
                "--offsets",
                metavar="FILE",
                help="Where to begin in each partition: Spark's startingOffsets, or lines of "
                "topic,partition,offset, as `lookup` writes them.",
            ),
            *time_options(),
            click.option(
                "--columns",
                metavar="LIST",
                help="Names separated by commas.  [default: those of Spark's Kafka source]",
            ),
            isolation_option(),
            click.option(
                "--by-date", is_flag=True, help="A folder date=YYYY-MM-DD for each day, in UTC."
            ),
            click.option(
                "--on-data-loss",
                type=click.Choice(["fail", "continue", "restart"]),
                default="fail",
                show_default=True,
                help="Where a log is not the one any more that was exported: refuse the partition, "
                "continue where both agree or the log begins, or export it anew.",
            ),
            report_option("a row for each partition"),
            *run_options(as_job=as_job),
        ],
        help_text=_HELP + (_JOB_EXAMPLES if as_job else _CONSOLE_EXAMPLES),
        usage="--input PATH... --output PATH [OPTIONS]",
    )
