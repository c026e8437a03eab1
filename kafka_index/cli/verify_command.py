"""``verify``: its options, for the console script and for ``spark-submit``."""

from __future__ import annotations

import re

import click

from kafka_index.cli.options import (
    SUBMITTED,
    Detail,
    command,
    paths_options,
    report_option,
    run_options,
    settings_options,
    topics_option,
)
from kafka_index.cli.tiered_options import check_input, tiered_options
from kafka_index.config import LogConfig, read_properties
from kafka_index.execution import Engine
from kafka_index.tiered.options import TieredOptions

_HELP = """Compare every file of the dump below PATH with what it should be; nothing is changed.

    PATH is a data directory of a broker, a topic-partition directory, or a glob of either, or the
    URI of one. Each log is read once, as `build` reads it, and what a build would write is compared
    with what lies there: logs, indexes, snapshots, epochs, and the files at the root of the data
    directory. A file that differs and is correct is valid; one that would make a broker lose or
    hide records, answer wrongly or not start is harmful, and the report says what it does.

    `--fast` reads the headers of batches only, and so finds no wrong checksum. With `--against`
    the files are not verified: the batches of two copies of the same partitions are compared.

    Exit codes: 0, nothing is harmful; 1, something is; 2, wrong usage, or nothing was found; 3, a
    failure of permission, disk, memory, network or cluster, or a file that changed meanwhile: worth
    a retry; 70, an internal error.

    \b
    Examples:
    """
_CONSOLE_EXAMPLES = """\
  kafka-index verify --input /dump/broker-1 --report verify.parquet
      kafka-index verify --input /dump/* --topics 'orders|payments' --fast
      kafka-index verify --input /dump/broker-1 --against /dump/broker-2
      kafka-index verify --input s3://backup/broker-1 --engine spark --master 'local[8]'
"""
_JOB_EXAMPLES = """\
  spark-submit jobs/verify.py --input /mnt/dump/* --report /mnt/verify.parquet
"""


def make_command(*, as_job: bool) -> click.Command:
    """Return the ``verify`` command, or as a job for ``spark-submit`` that is always on Spark."""

    def verify(
        inputs: tuple[str, ...],
        tiered: TieredOptions | None,
        indexes: str | None,
        metadata: str | None,
        against: tuple[str, ...],
        topics: re.Pattern[str] | None,
        fast: bool,  # noqa: FBT001, because click passes options by name
        config_path: str | None,
        index_interval_bytes: int | None,
        report: str | None,
        detail: Detail,
        engine: Engine = SUBMITTED,
    ) -> int:
        check_input(inputs, tiered)
        given = {"--indexes": indexes, "--metadata": metadata, "--fast": fast or None}
        other = next((name for name, value in given.items() if value is not None), None)
        if against and other is not None:
            raise click.UsageError(f"--against and {other} are mutually exclusive")
        if against and engine.on_spark:
            raise click.UsageError("--against runs on the local engine")
        config = LogConfig.load(config_path, index_interval_bytes=index_interval_bytes)
        from kafka_index.cli.verify import VerifyOptions, run_verify  # noqa: PLC0415, slow

        return run_verify(
            VerifyOptions(
                inputs=inputs,
                tiered=tiered,
                indexes=indexes,
                metadata=metadata,
                against=against,
                topics=topics,
                fast=fast,
                config=config,
                properties=None if config_path is None else read_properties(config_path),
                report=report,
                engine=engine,
                detail=detail,
            )
        )

    return command(
        verify,
        [
            *paths_options(
                "--input",
                "inputs",
                "Directories to verify; may be repeated, and may name several paths.",
            ),
            *tiered_options(),
            click.option(
                "--indexes",
                metavar="PATH",
                help="Verify the files below this folder, where `build` has written them, instead "
                "of those beside the logs.",
            ),
            click.option(
                "--metadata",
                metavar="DIR",
                help="The directory of the metadata log, which says which topics are "
                "compacted, and their ids.  [default: the one in the dump, if any]",
            ),
            click.option(
                "--against",
                multiple=True,
                metavar="PATH",
                help="Compare the batches with those of another copy; may be repeated.",
            ),
            topics_option(),
            click.option(
                "--fast",
                is_flag=True,
                help="Read batch headers only: much faster, but damaged records are not found.",
            ),
            *settings_options(),
            report_option("a row per file and partition", has_page=True),
            *run_options(as_job=as_job),
        ],
        help_text=_HELP + (_JOB_EXAMPLES if as_job else _CONSOLE_EXAMPLES),
        usage="(--input PATH... | --tiered URI) [OPTIONS]",
    )
