"""``build``: its options, for the console script and for ``spark-submit``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import click

from kafka_index.cli.options import (
    TIME_HELP,
    Option,
    Whole,
    command,
    flag,
    function_of,
    listed,
    moment,
    option,
)
from kafka_index.cli.shared_options import (
    Detail,
    LogOptions,
    detail_options,
    engine_options,
    report_option,
    settings_options,
    topics_option,
)
from kafka_index.core.format.config import LogConfig
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.fs.store import is_remote
from kafka_index.core.job.engine import Engine
from kafka_index.core.job.request import Group
from kafka_index.core.log.recovery.report import KINDS, SEGMENT
from kafka_index.core.log.recovery.settings import Output

_HELP = """Rebuild the files that a broker keeps beside its logs, for every segment below PATH.

    These are the offset, time and transaction indexes, the producer snapshots, and the
    leader epoch checkpoint.

    PATH is a data directory of a broker, a topic-partition directory, or a glob of either. It may
    be repeated: `--input A --input B`, `--input A B` or `--input dump/*`. With `--format parquet`,
    PATH is a Parquet file or a folder of them. Logs are opened read-only.

    Exit codes: 0, every segment is built or was already correct; 1, a segment is damaged, and the
    summary and the report name it; 2, wrong usage, or nothing was found; 3, a failure of
    permission, disk, memory, network or cluster, worth a retry; 70, an internal error.
    """

_EXAMPLES = """\
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


def _outputs(value: Sequence[str]) -> frozenset[Output] | None:
    return frozenset(map(Output, listed(",".join(value), tuple(Output)))) if value else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions(LogOptions):
    """The options of a build, checked except against the disk.

    Without `output` it is a build in place, or a dry run. Without `outputs` all files that the
    input allows are written, and without `expire_at_ms` every producer is kept.
    """

    output: str | None = option(
        "--output",
        group=Group.OUTPUT,
        metavar="PATH",
        help="Write the files below this folder, a folder per partition.",
    )
    in_place: bool = flag(
        "--in-place",
        group=Group.OUTPUT,
        help="Write the files beside the logs; refused while a broker holds the directory.",
    )
    input_format: str = option(
        "--format",
        group=Group.INPUT,
        type=click.Choice(["auto", "log", "parquet"]),
        default="auto",
        help="Format of the input.",
    )
    topics: re.Pattern[str] | None = topics_option()
    outputs: frozenset[Output] | None = option(
        "--what",
        group=Group.SELECTION,
        multiple=True,
        parse=_outputs,
        metavar="LIST",
        help=f"Files to build, separated by commas: {', '.join(Output)}.  [default: all; "
        "from Parquet index,timeindex]",
    )
    config: LogConfig = settings_options(
        Option(
            ["--index-size-max-bytes"],
            Group.SETTINGS,
            type=Whole(4, INT32_MAX),
            metavar="N",
            help="Maximum size of an index file; overrides --config.  [default: 10485760]",
        )
    )
    expire_at_ms: int | None = option(
        "--expire-producers-at",
        group=Group.BEHAVIOUR,
        callback=moment,
        metavar="TIME",
        help="Omit producers that are idle at TIME, as a broker does that starts then and "
        f"loads a snapshot (producer.id.expiration.ms of --config). {TIME_HELP}",
    )
    no_verify_crc: bool = flag(
        "--no-verify-crc",
        group=Group.BEHAVIOUR,
        help="Read batch headers only: much faster, but damaged records are not detected.",
    )
    overwrite: bool = flag(
        "--overwrite",
        "--force",
        group=Group.OUTPUT,
        help="Build every segment, even if its files are correct.",
    )
    dry_run: bool = flag(
        "--dry-run",
        group=Group.OUTPUT,
        help="Print the segments that would be checked, and write nothing.",
    )
    report: str | None = report_option("a row per segment", has_page=True)
    report_kinds: frozenset[str] = option(
        "--report-rows",
        group=Group.OUTPUT,
        default=SEGMENT,
        parse=lambda value: frozenset(listed(value, KINDS)),
        metavar="LIST",
        help=f"What the report has rows of, separated by commas: {', '.join(KINDS)}.",
    )
    fail_fast: bool = flag(
        "--fail-fast", group=Group.BEHAVIOUR, help="Stop at the first segment that fails."
    )
    engine: Engine = engine_options()
    detail: Detail = detail_options()

    def __post_init__(self) -> None:
        LogOptions.__post_init__(self)
        if self.output is not None and self.in_place:
            raise click.UsageError("--output and --in-place are mutually exclusive")
        remote = next(filter(is_remote, self.inputs), None) if self.in_place else None
        if remote is not None:
            raise click.UsageError(
                f"--in-place writes beside the logs of a broker, on a local disk, and {remote} is "
                "in a store: give --output"
            )
        if self.tiered is not None and (self.in_place or self.input_format == "parquet"):
            other = "--in-place" if self.in_place else "--format parquet"
            raise click.UsageError(f"--tiered and {other} are mutually exclusive")
        if self.output is None and not self.in_place and not self.dry_run:
            raise click.UsageError("no output: give --output PATH or --in-place")
        outputs = self.outputs or frozenset()
        if self.in_place and Output.INDEX in outputs and Output.TIME_INDEX not in outputs:
            raise click.UsageError(
                "--in-place builds index only together with timeindex: beside an .index alone, a "
                "broker creates an empty .timeindex"
            )


make_command = partial(
    command,
    "build",
    BuildOptions,
    function_of("build", "run_build"),
    help_text=_HELP,
    usage="(--input PATH... | --tiered URI) (--output PATH | --in-place) [OPTIONS]",
    examples=_EXAMPLES,
    job_examples=_JOB_EXAMPLES,
)
