"""``build``: its options, for the console script and for ``spark-submit``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import click

from kafka_index.cli.build import BuildOptions, run_build
from kafka_index.cli.detail import Detail
from kafka_index.cli.options import pattern, report_path
from kafka_index.config import INT32_MAX, LogConfig

_HELP = """Rebuild the .index and .timeindex files of every segment below PATH.

    PATH is a data directory of a broker, one topic-partition directory, or a glob of either;
    several are fine, as `--input A --input B`, `--input A B` or `--input dump/*`. With
    `--format parquet` it is Parquet files or folders of them. Logs are only read, never written.

    Exit code 0: every segment is done, or was right already. 1: something was damaged or failed,
    the summary and the report say what. 2: wrong usage, or nothing was found.

    \b
    Examples:
    """

_CONSOLE_EXAMPLES = """\
  kafka-index build --input /dump/broker-1 --output /tmp/indexes
      kafka-index build --input /dump/* --output /tmp/indexes --topics 'orders|payments'
      kafka-index build --input /var/kafka/orders-0 --in-place --config server.properties
      kafka-index build --input /dump/broker-1 --output /tmp/indexes \\
          --engine spark --master 'local[8]' --report report.parquet
      kafka-index build --input /dump/broker-1 --dry-run
"""
_JOB_EXAMPLES = """\
  spark-submit jobs/build_index.py --input /dump/broker-1 --output /indexes
      spark-submit --master spark://host:7077 jobs/build_index.py \\
          --input /mnt/dump/* --output /mnt/indexes --report /mnt/report.parquet
"""

_Decorator = Callable[[Callable[..., int]], Callable[..., int]]


def _options() -> list[_Decorator]:
    return [
        click.option(
            "--input",
            "inputs",
            multiple=True,
            metavar="PATH...",
            help="What to read; may be given several times and take several paths.",
        ),
        click.argument("more_inputs", nargs=-1, metavar=""),
        click.option("--output", metavar="PATH", help="Root of the index files, another folder."),
        click.option(
            "--in-place",
            is_flag=True,
            help="Write beside the logs; refused while a broker holds the directory.",
        ),
        click.option(
            "--format",
            "input_format",
            type=click.Choice(["auto", "log", "parquet"]),
            default="auto",
            show_default=True,
            help="What the input is.",
        ),
        click.option(
            "--topics", callback=pattern, metavar="REGEX", help="Only topics that match in full."
        ),
        click.option(
            "--config",
            "config_path",
            metavar="FILE",
            help="Settings under Kafka's names, such as a broker's server.properties; "
            "topic.NAME.index.interval.bytes overrides one topic.",
        ),
        click.option(
            "--index-interval-bytes",
            type=click.IntRange(0, INT32_MAX),
            metavar="N",
            help="Bytes of log between two entries, over the settings file.  [default: 4096]",
        ),
        click.option(
            "--index-size-max-bytes",
            type=click.IntRange(4, INT32_MAX),
            metavar="N",
            help="Largest index file, over the settings file.  [default: 10485760]",
        ),
        click.option(
            "--no-verify-crc",
            is_flag=True,
            help="Read batch headers only: much faster, but damaged records go unnoticed.",
        ),
        click.option(
            "--force", is_flag=True, help="Build again what is known to be right already."
        ),
        click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing."),
        click.option(
            "--report",
            callback=report_path,
            metavar="FILE",
            help="Write a row per segment: .parquet, .json (an object a line) or .csv.",
        ),
        click.option("--fail-fast", is_flag=True, help="Stop at the first segment that fails."),
    ]


def _engine_options() -> list[_Decorator]:
    return [
        click.option(
            "--engine",
            type=click.Choice(["local", "spark"]),
            default="local",
            show_default=True,
            help="Threads of this process, or Spark.",
        ),
        click.option("--master", metavar="URL", help="Spark's master, with --engine spark."),
        click.option(
            "--threads",
            type=click.IntRange(min=1),
            metavar="N",
            help="Threads of the local engine.  [default: one a core]",
        ),
    ]


def _detail_options() -> list[_Decorator]:
    return [
        click.option("--quiet", "-q", is_flag=True, help="Say nothing unless something is wrong."),
        click.option("--verbose", "-v", is_flag=True, help="Say more, also about errors."),
    ]


def make_command(*, as_job: bool) -> click.Command:
    """Return the ``build`` command.

    Parameters
    ----------
    as_job : bool
        For ``spark-submit``: always on Spark, so without the options that choose an engine.
    """

    def build(
        inputs: tuple[str, ...],
        more_inputs: tuple[str, ...],
        output: str | None,
        in_place: bool,  # noqa: FBT001, because click passes options by name
        input_format: str,
        topics: re.Pattern[str] | None,
        config_path: str | None,
        index_interval_bytes: int | None,
        index_size_max_bytes: int | None,
        no_verify_crc: bool,  # noqa: FBT001, because click passes options by name
        force: bool,  # noqa: FBT001, because click passes options by name
        dry_run: bool,  # noqa: FBT001, because click passes options by name
        report: str | None,
        fail_fast: bool,  # noqa: FBT001, because click passes options by name
        quiet: bool,  # noqa: FBT001, because click passes options by name
        verbose: bool,  # noqa: FBT001, because click passes options by name
        engine: str = "spark",
        master: str | None = None,
        threads: int | None = None,
    ) -> int:
        _check_usage(
            has_input=bool(inputs or more_inputs),
            output=output,
            in_place=in_place,
            dry_run=dry_run,
            quiet=quiet,
            verbose=verbose,
        )
        if master is not None and engine != "spark":
            raise click.UsageError("--master goes with --engine spark")
        if threads is not None and engine != "local":
            raise click.UsageError("--threads goes with --engine local")
        config = LogConfig.load(
            config_path,
            index_interval_bytes=index_interval_bytes,
            index_size_max_bytes=index_size_max_bytes,
        )
        return run_build(
            BuildOptions(
                inputs=(*inputs, *more_inputs),
                output=output,
                input_format=input_format,
                topics=topics,
                config=config,
                verify_crc=not no_verify_crc,
                force=force,
                dry_run=dry_run,
                report=report,
                fail_fast=fail_fast,
                engine=engine,
                master=master,
                threads=threads or os.cpu_count() or 1,
                detail=Detail.QUIET if quiet else Detail.VERBOSE if verbose else Detail.NORMAL,
            )
        )

    decorators = [*_options(), *([] if as_job else _engine_options()), *_detail_options()]
    for decorate in reversed(decorators):
        build = decorate(build)
    examples = _JOB_EXAMPLES if as_job else _CONSOLE_EXAMPLES
    return click.command(
        name="build",
        help=_HELP + examples,
        short_help="Rebuild index files.",
        context_settings={"help_option_names": ["-h", "--help"]},
        options_metavar="--input PATH... (--output PATH | --in-place) [OPTIONS]",
    )(build)


def _check_usage(
    *,
    has_input: bool,
    output: str | None,
    in_place: bool,
    dry_run: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    if not has_input:
        raise click.UsageError("nothing to read: give --input PATH")
    if output is not None and in_place:
        raise click.UsageError("--output and --in-place exclude each other")
    if output is None and not in_place and not dry_run:
        raise click.UsageError("nowhere to write: give --output PATH or --in-place")
    if quiet and verbose:
        raise click.UsageError("--quiet and --verbose exclude each other")
