"""``build``: its options, for the console script and for ``spark-submit``."""

from __future__ import annotations

import re

import click

from kafka_index.build.report_writer import KINDS, SEGMENT
from kafka_index.build.settings import Output
from kafka_index.cli.build import BuildOptions, run_build
from kafka_index.cli.numbers import TIME_HELP, Whole, moment
from kafka_index.cli.options import (
    SUBMITTED,
    Decorator,
    Detail,
    command,
    paths_options,
    report_option,
    run_options,
    settings_options,
    topics_option,
)
from kafka_index.cli.tiered_options import check_input, tiered_options
from kafka_index.config import LogConfig
from kafka_index.execution import Engine
from kafka_index.layout.integers import INT32_MAX
from kafka_index.stores import is_remote
from kafka_index.tiered.options import TieredOptions

_HELP = """Rebuild the files that a broker keeps beside its logs, for every segment below PATH.

    These are the offset, time and transaction indexes, the producer snapshots, and the
    leader epoch checkpoint.

    PATH is a data directory of a broker, a topic-partition directory, or a glob of either. It may
    be repeated: `--input A --input B`, `--input A B` or `--input dump/*`. With `--format parquet`,
    PATH is a Parquet file or a folder of them. Logs are opened read-only.

    Exit codes: 0, every segment is built or was already correct; 1, a segment is damaged, and the
    summary and the report name it; 2, wrong usage, or nothing was found; 3, a failure of
    permission, disk, memory, network or cluster, worth a retry; 70, an internal error.

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


def _options() -> list[Decorator]:
    return [
        *paths_options(
            "--input",
            "inputs",
            "Directories to read; may be repeated, and may name several paths.",
        ),
        *tiered_options(),
        click.option(
            "--output",
            metavar="PATH",
            help="Write the files below this folder, a folder per partition.",
        ),
        click.option(
            "--in-place",
            is_flag=True,
            help="Write the files beside the logs; refused while a broker holds the directory.",
        ),
        click.option(
            "--format",
            "input_format",
            type=click.Choice(["auto", "log", "parquet"]),
            default="auto",
            show_default=True,
            help="Format of the input.",
        ),
        topics_option(),
        click.option(
            "--what",
            "outputs",
            multiple=True,
            callback=_outputs,
            metavar="LIST",
            help=f"Files to build, separated by commas: {', '.join(Output)}.  [default: all; "
            "from Parquet index,timeindex]",
        ),
        *settings_options(),
        click.option(
            "--index-size-max-bytes",
            type=Whole(4, INT32_MAX),
            metavar="N",
            help="Maximum size of an index file; overrides --config.  [default: 10485760]",
        ),
        click.option(
            "--expire-producers-at",
            "expire_at",
            callback=moment,
            metavar="TIME",
            help="Omit producers that are idle at TIME, as a broker does that starts then and "
            f"loads a snapshot (producer.id.expiration.ms of --config). {TIME_HELP}",
        ),
        click.option(
            "--no-verify-crc",
            is_flag=True,
            help="Read batch headers only: much faster, but damaged records are not detected.",
        ),
        click.option(
            "--force", is_flag=True, help="Build every segment, even if its files are correct."
        ),
        click.option(
            "--dry-run",
            is_flag=True,
            help="Print the segments that would be checked, and write nothing.",
        ),
        report_option("a row per segment", has_page=True),
        click.option(
            "--report-rows",
            "report_kinds",
            default=SEGMENT,
            show_default=True,
            callback=_kinds,
            metavar="LIST",
            help=f"What the report has rows of, separated by commas: {', '.join(KINDS)}.",
        ),
        click.option("--fail-fast", is_flag=True, help="Stop at the first segment that fails."),
    ]


def _outputs(
    _context: click.Context, _option: click.Parameter, value: tuple[str, ...]
) -> frozenset[Output] | None:
    """Return the outputs of a list of names."""
    if not value:
        return None
    names = [name.strip() for name in ",".join(value).split(",") if name.strip()]
    unknown = [name for name in names if name not in set(Output)]
    if unknown or not names:
        raise click.BadParameter(
            f"{unknown[0] if unknown else 'nothing'} is not one of {', '.join(Output)}"
        )
    return frozenset(map(Output, names))


def _kinds(_context: click.Context, _option: click.Parameter, value: str) -> frozenset[str]:
    """Return the kinds of rows of a list of names."""
    names = [name.strip() for name in value.split(",") if name.strip()]
    unknown = [name for name in names if name not in KINDS]
    if unknown or not names:
        wrong = unknown[0] if unknown else "nothing"
        raise click.BadParameter(f"{wrong} is not one of {', '.join(KINDS)}")
    return frozenset(names)


def make_command(*, as_job: bool) -> click.Command:
    """Return the ``build`` command, or as a job for ``spark-submit`` that is always on Spark."""

    def build(
        inputs: tuple[str, ...],
        tiered: TieredOptions | None,
        output: str | None,
        in_place: bool,  # noqa: FBT001, because click passes options by name
        input_format: str,
        topics: re.Pattern[str] | None,
        outputs: frozenset[Output] | None,
        config_path: str | None,
        index_interval_bytes: int | None,
        index_size_max_bytes: int | None,
        expire_at: int | None,
        no_verify_crc: bool,  # noqa: FBT001, because click passes options by name
        force: bool,  # noqa: FBT001, because click passes options by name
        dry_run: bool,  # noqa: FBT001, because click passes options by name
        report: str | None,
        report_kinds: frozenset[str],
        fail_fast: bool,  # noqa: FBT001, because click passes options by name
        detail: Detail,
        engine: Engine = SUBMITTED,
    ) -> int:
        check_input(inputs, tiered)
        if output is not None and in_place:
            raise click.UsageError("--output and --in-place are mutually exclusive")
        remote = next(filter(is_remote, inputs), None) if in_place else None
        if remote is not None:
            raise click.UsageError(
                f"--in-place writes beside the logs of a broker, on a local disk, and {remote} is "
                "in a store: give --output"
            )
        if tiered is not None and (in_place or input_format == "parquet"):
            other = "--in-place" if in_place else "--format parquet"
            raise click.UsageError(f"--tiered and {other} are mutually exclusive")
        if output is None and not in_place and not dry_run:
            raise click.UsageError("no output: give --output PATH or --in-place")
        if in_place and outputs and Output.INDEX in outputs and Output.TIME_INDEX not in outputs:
            raise click.UsageError(
                "--in-place builds index only together with timeindex: beside an .index alone, a "
                "broker creates an empty .timeindex"
            )
        config = LogConfig.load(
            config_path,
            index_interval_bytes=index_interval_bytes,
            index_size_max_bytes=index_size_max_bytes,
        )
        return run_build(
            BuildOptions(
                inputs=inputs,
                tiered=tiered,
                output=output,
                input_format=input_format,
                topics=topics,
                outputs=outputs,
                config=config,
                expire_at_ms=expire_at,
                verify_crc=not no_verify_crc,
                force=force,
                dry_run=dry_run,
                report=report,
                report_kinds=report_kinds,
                fail_fast=fail_fast,
                engine=engine,
                detail=detail,
            )
        )

    return command(
        build,
        [*_options(), *run_options(as_job=as_job)],
        help_text=_HELP + (_JOB_EXAMPLES if as_job else _CONSOLE_EXAMPLES),
        usage="(--input PATH... | --tiered URI) (--output PATH | --in-place) [OPTIONS]",
    )
