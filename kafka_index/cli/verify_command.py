"""``verify``: its options, for the console script and for ``spark-submit``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import click

from kafka_index.cli.options import command, flag, function_of, option
from kafka_index.cli.shared_options import (
    Detail,
    LogOptions,
    detail_options,
    engine_options,
    load_with_properties,
    report_option,
    settings_options,
    topics_option,
)
from kafka_index.core.format.config import LogConfig
from kafka_index.core.job.engine import Engine
from kafka_index.core.job.request import Group

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
    """
_EXAMPLES = """\
kafka-index verify --input /dump/broker-1 --report verify.parquet
kafka-index verify --input /dump/* --topics 'orders|payments' --fast
kafka-index verify --input /dump/broker-1 --against /dump/broker-2
kafka-index verify --input s3://backup/broker-1 --engine spark --master 'local[8]'
"""
_JOB_EXAMPLES = """\
spark-submit jobs/verify.py --input /mnt/dump/* --report /mnt/verify.parquet
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions(LogOptions):
    """The options of ``verify``, checked except against the disk.

    The settings come with the properties of the file that has them, if there is one.
    """

    indexes: str | None = option(
        "--indexes",
        group=Group.INPUT,
        metavar="PATH",
        help="Verify the files below this folder, where `build` has written them, instead of those "
        "beside the logs.",
    )
    metadata: str | None = option(
        "--metadata",
        group=Group.INPUT,
        metavar="DIR",
        help="The directory of the metadata log, which says which topics are compacted, and their "
        "ids.  [default: the one in the dump, if any]",
    )
    against: tuple[str, ...] = option(
        "--against",
        group=Group.INPUT,
        multiple=True,
        metavar="PATH",
        help="Compare the batches with those of another copy; may be repeated.",
    )
    topics: re.Pattern[str] | None = topics_option()
    fast: bool = flag(
        "--fast",
        group=Group.BEHAVIOUR,
        help="Read batch headers only: much faster, but damaged records are not found.",
    )
    settings: tuple[LogConfig, Mapping[str, str] | None] = settings_options(
        make=load_with_properties
    )
    report: str | None = report_option("a row per file and partition", has_page=True)
    engine: Engine = engine_options()
    detail: Detail = detail_options()

    def __post_init__(self) -> None:
        LogOptions.__post_init__(self)
        if not self.against:
            return
        given = {"--indexes": self.indexes, "--fast": self.fast}
        for name, value in given.items():
            if value:
                raise click.UsageError(f"--against and {name} are mutually exclusive")
        if self.engine.on_spark:
            raise click.UsageError("--against runs on the local engine")


make_command = partial(
    command,
    "verify",
    VerifyOptions,
    function_of("verify", "run_verify"),
    help_text=_HELP,
    usage="(--input PATH... | --tiered URI) [OPTIONS]",
    examples=_EXAMPLES,
    job_examples=_JOB_EXAMPLES,
)
