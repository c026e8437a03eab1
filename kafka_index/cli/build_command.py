"""``build``: its options, for the console script and for ``spark-submit``."""

from __future__ import annotations

import re

import click

from kafka_index.build.settings import Output
from kafka_index.cli.build import BuildOptions, run_build
from kafka_index.cli.options import (
    Decorator,
    check_engine,
    choose_detail,
    decorate,
    detail_options,
    engine_options,
    pattern,
    report_path,
    settings_options,
)
from kafka_index.cli.text import parse_time
from kafka_index.config import INT32_MAX, LogConfig

_HELP = """Rebuild the files that a broker keeps beside its logs, for every segment below PATH.

    They are the indexes by offset, by time and of aborted transactions, the snapshots of
    producers, and the checkpoint of leader epochs.

    PATH is a data directory of a broker, one topic-partition directory, or a glob of either;
    several are fine, as `--input A --input B`, `--input A B` or `--input dump/*`. With
    `--format parquet` it is Parquet files or folders of them. Logs are only read, never written.

    Exit code 0: every segment is done, or was right already. 1: something is damaged, the summary
    and the report say what. 2: wrong usage, or nothing was found. 3: permission, disk, memory,
    network or cluster, worth a retry.

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
            "--what",
            "outputs",
            multiple=True,
            callback=_outputs,
            metavar="LIST",
            help=f"Which files, with commas between them: {', '.join(Output)}.  [default: all; "
            "from Parquet index,timeindex]",
        ),
        *settings_options(),
        click.option(
            "--index-size-max-bytes",
            type=click.IntRange(4, INT32_MAX),
            metavar="N",
            help="Largest index file, over the settings file.  [default: 10485760]",
        ),
        click.option(
            "--expire-producers-at",
            "expire_at",
            callback=_moment,
            metavar="TIME",
            help="Leave idle producers out, as a broker that starts then does whenever it loads a "
            "snapshot (producer.id.expiration.ms of the settings file): ISO time or ms.",
        ),
        click.option(
            "--no-verify-crc",
            is_flag=True,
            help="Read batch headers only: much faster, but damaged records go unnoticed.",
        ),
        click.option(
            "--force", is_flag=True, help="Build again what is known to be right already."
        ),
        click.option(
            "--dry-run",
            is_flag=True,
            help="Say what would be looked at, done already or not, and do nothing.",
        ),
        click.option(
            "--report",
            callback=report_path,
            metavar="FILE",
            help="Write a row per segment: .parquet, .json (an object a line) or .csv.",
        ),
        click.option("--fail-fast", is_flag=True, help="Stop at the first segment that fails."),
    ]


def _outputs(
    _context: click.Context, _option: click.Parameter, value: tuple[str, ...]
) -> frozenset[Output] | None:
    """Return the outputs that are asked for, or refuse a name."""
    if not value:
        return None
    names = [name.strip() for name in ",".join(value).split(",") if name.strip()]
    unknown = [name for name in names if name not in set(Output)]
    if unknown or not names:
        raise click.BadParameter(
            f"{unknown[0] if unknown else 'nothing'} is none of {', '.join(Output)}"
        )
    return frozenset(map(Output, names))


def _moment(_context: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    """Return a time in ms, or refuse it."""
    if value is None:
        return None
    try:
        return parse_time(value)[0]
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: {error}") from error


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
        outputs: frozenset[Output] | None,
        config_path: str | None,
        index_interval_bytes: int | None,
        index_size_max_bytes: int | None,
        expire_at: int | None,
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
        )
        if in_place and outputs is not None and Output.INDEX in outputs:
            _check_outputs_in_place(outputs)
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
                outputs=outputs,
                config=config,
                expire_at_ms=expire_at,
                verify_crc=not no_verify_crc,
                force=force,
                dry_run=dry_run,
                report=report,
                fail_fast=fail_fast,
                engine=engine,
                master=master,
                threads=check_engine(engine, master, threads),
                detail=choose_detail(quiet=quiet, verbose=verbose),
            )
        )

    options = [*_options(), *([] if as_job else engine_options()), *detail_options()]
    examples = _JOB_EXAMPLES if as_job else _CONSOLE_EXAMPLES
    return click.command(
        name="build",
        help=_HELP + examples,
        short_help="Rebuild index files.",
        context_settings={"help_option_names": ["-h", "--help"]},
        options_metavar="--input PATH... (--output PATH | --in-place) [OPTIONS]",
    )(decorate(build, options))


def _check_outputs_in_place(outputs: frozenset[Output]) -> None:
    if Output.TIME_INDEX not in outputs:
        raise click.UsageError(
            "--in-place takes index with timeindex only: beside an .index alone a broker makes an "
            "empty .timeindex"
        )


def _check_usage(*, has_input: bool, output: str | None, in_place: bool, dry_run: bool) -> None:
    if not has_input:
        raise click.UsageError("nothing to read: give --input PATH")
    if output is not None and in_place:
        raise click.UsageError("--output and --in-place exclude each other")
    if output is None and not in_place and not dry_run:
        raise click.UsageError("nowhere to write: give --output PATH or --in-place")
