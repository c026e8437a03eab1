"""``backup``: the options, the report, and what is printed."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import partial

import click

from kafka_index.cli.exit_status import ExitCode, run_summary
from kafka_index.cli.options import Whole, command, moment, option, request_of
from kafka_index.cli.shared_options import (
    Detail,
    config_option,
    detail_options,
    input_option,
    report_option,
    topics_option,
)
from kafka_index.cli.terminal import Table, print_error, print_log, print_text
from kafka_index.commands.backup.agent import Agent, CompletedBackup, Manners, Monitor, take
from kafka_index.commands.backup.barrier import DEFAULT_PATIENCE_S
from kafka_index.commands.backup.high_watermarks import Source
from kafka_index.commands.backup.low_impact_io import Bandwidth, idle_io_priority
from kafka_index.commands.backup.partition_inspector import Looked
from kafka_index.commands.backup.request import BackupRequest, Broker
from kafka_index.commands.backup.result import BACKUP_REPORT_SCHEMA, BackupResult
from kafka_index.core.format.config import read_properties
from kafka_index.core.format.human import format_bytes, format_count
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.names import METADATA_LOG
from kafka_index.core.format.times import parse_duration_ms
from kafka_index.core.job.request import Group
from kafka_index.core.output.report_file import open_report

_HELP = """Back up a broker while it runs: what is new since the last run goes into a repository.

    Run it where the broker's data directories are, or a snapshot of them is mounted, and give all
    of them, with that of the metadata log. Logs are opened and measured within a moment, and read
    later: whole batches with a right checksum, up to a high watermark that the broker has written
    after that moment. Nothing in the directories is written, locked or linked.

    The repository is a folder or a URI of a store with conditional writes. Its objects are never
    overwritten; a run is there whole, or not at all.

    Exit codes: 0, the broker is in the run; 1, and a partition cannot be read, or was missed three
    runs in a row; 2, wrong usage, or refused; 3, a failure of permission, disk, memory or store,
    worth a retry: the repository is as before; 70, an internal error.
    """
_EXAMPLES = """\
kafka-index backup --input /var/kafka/data --output s3://backups/cluster-1
kafka-index backup --input /disk1 /disk2 /metadata --output /backups --topics 'orders.*'
kafka-index backup --input /data /metadata --output s3://backups/cluster-1 --brokers 1,2,3 \\
    --every 5m --max-bandwidth 50 --metrics /var/lib/node_exporter/backup.prom
"""


_SECOND_MS, _MB = 1000, 1_000_000


def _duration(value: str | None) -> int | None:
    if value is None:
        return None
    found = parse_duration_ms(value)
    if not found:
        raise click.BadParameter(f"{value!r} is not a duration, such as 30s, 5m, 1h or 1d")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupOptions:
    """The options of a run."""

    inputs: tuple[str, ...] = input_option(
        "All data directories of the broker, with that of its metadata log; may be given several "
        "times and take several paths."
    )
    output: str | None = option(
        "--output", group=Group.OUTPUT, metavar="URI", help="The repository; made if there is none."
    )
    topics: re.Pattern[str] | None = topics_option()
    config: str | None = config_option("The broker's server.properties.")
    node_id: int | None = option(
        "--node",
        group=Group.INPUT,
        type=Whole(0, INT32_MAX),
        metavar="N",
        help="The broker, where the directories are of several.",
    )
    brokers: str | None = option(
        "--brokers",
        group=Group.CLUSTER,
        metavar="N,N...",
        help="The brokers that a run expects: they meet, and cut at the same time.  [default: "
        "those of the repository, of the run before, or of the metadata log]",
    )
    patience_ms: int = option(
        "--wait",
        group=Group.CLUSTER,
        parse=_duration,
        default=f"{DEFAULT_PATIENCE_S:.0f}s",
        metavar="DURATION",
        help="How long the brokers of a run wait for each other; a run is incomplete without any "
        "of them.",
    )
    cut_at_ms: int | None = option(
        "--cut-at",
        group=Group.CLUSTER,
        callback=moment,
        metavar="TIME",
        help="Cut at an agreed time, the same for all brokers, instead of meeting.",
    )
    bootstrap_server: str | None = option(
        "--bootstrap-server",
        group=Group.CLUSTER,
        metavar="HOST:PORT",
        help="Ask the broker for high watermarks, on a listener without encryption, instead of "
        "waiting up to 10 s for its checkpoint.",
    )
    every_ms: int | None = option(
        "--every",
        group=Group.BEHAVIOUR,
        parse=_duration,
        metavar="DURATION",
        help="Keep running: a run now, and at each multiple of the duration (30s, 5m, 1h) by the "
        "clock. A run that fails is tried again at the next one.",
    )
    max_bandwidth: float | None = option(
        "--max-bandwidth",
        group=Group.ENGINE,
        type=click.FloatRange(min=0, min_open=True),
        metavar="MB/S",
        help="Read logs no faster, in millions of bytes per second.",
    )
    metrics: str | None = option(
        "--metrics",
        group=Group.OUTPUT,
        metavar="FILE",
        help="Write metrics in Prometheus' text format, such as the age of the newest run.",
    )
    health: str | None = option(
        "--health",
        group=Group.OUTPUT,
        metavar="FILE",
        help="Write how the last run ended, as JSON for probes.",
    )
    report: str | None = report_option("a row per partition")
    detail: Detail = detail_options()

    def __post_init__(self) -> None:
        if not self.inputs:
            raise click.UsageError("no input: give --input DIR")
        if self.output is None:
            raise click.UsageError("no repository: give --output URI")
        if self.every_ms is not None and self.cut_at_ms is not None:
            raise click.UsageError("--cut-at is for one run, and --every for many")
        if self.cut_at_ms is not None and self.cut_at_ms <= run_summary().started_ms:
            raise click.UsageError("--cut-at is not in the future")

    @property
    def manners(self) -> Manners:
        """The behaviour towards others."""
        rate = None if self.max_bandwidth is None else self.max_bandwidth * _MB
        return Manners(
            patience_s=self.patience_ms / _SECOND_MS,
            cut_at_ms=self.cut_at_ms,
            bandwidth=Bandwidth(rate),
        )

    @property
    def request(self) -> BackupRequest:
        """The run."""
        properties = None if self.config is None else read_properties(self.config)
        brokers = _numbers(self.brokers)
        return request_of(BackupRequest, self, properties=properties, brokers=brokers)


def _numbers(text: str | None) -> tuple[int, ...]:
    parts = [] if text is None else text.split(",")
    if not all(part.strip().isascii() and part.strip().isdecimal() for part in parts):
        raise click.BadParameter("expected node ids, such as 1,2,3", param_hint="--brokers")
    return tuple(int(part) for part in parts)


def run_backup(options: BackupOptions) -> ExitCode:
    """Take a run, print its summary, and return its exit code; with ``--every``, return never.

    Raises `KafkaIndexError` if there is no run.
    """
    request, manners = options.request, options.manners
    looked: Looked = {}

    def take_one() -> CompletedBackup:
        with open_report(options.report, BACKUP_REPORT_SCHEMA) as report:
            taken = take(request, manners, looked)
            if report is not None:
                report.write_table(taken.result.to_arrow())
        return taken

    def show(taken: CompletedBackup) -> None:
        _print(taken.result, options.detail)
        sys.stdout.flush()

    monitor = Monitor(Broker.of(request).node_id, options.metrics, options.health)
    agent = Agent(take_one, monitor)
    with idle_io_priority():
        if options.every_ms is not None:
            agent.run_every(options.every_ms / _SECOND_MS, show)
        taken = agent.run_once()
    show(taken)
    return ExitCode(taken.result.outcome.exit_code)


def _print(result: BackupResult, detail: Detail) -> None:
    run_summary().add_result(result)
    for row in result.missed:
        text = f"{row.topic}-{row.partition}: {row.reason}"
        if row.is_fault:
            runs = f" ({format_count(row.runs_missed or 1)} runs in a row)"
            print_error(f"not in the run: {text}{runs if (row.runs_missed or 0) > 1 else ''}")
        else:
            print_log(f"not in this run, but in the next one: {text}")
    if result.high_watermarks_from == Source.OLD_CHECKPOINT:
        print_log(
            "no broker writes to these directories: records that were acknowledged in the last "
            "seconds before they were copied, or the broker was killed, may be missing"
        )
    if result.lacks_metadata:
        print_log(
            f"no input contains the metadata log ({METADATA_LOG}): the backup has no topic ids, "
            "settings or leaders, which restore --seed and --cluster same require; add the "
            "metadata.log.dir of the broker or of a controller as another --input"
        )
    if detail is Detail.QUIET:
        return
    rows = [
        [
            f"{row.topic}-{row.partition}",
            row.status.value,
            "" if row.log_end_offset is None else str(row.log_end_offset),
            format_bytes(row.new_bytes or 0),
            format_bytes(row.size_bytes or 0),
        ]
        for row in result.partitions
        if detail is Detail.VERBOSE
    ]
    table = Table(["partition", "status", "end", "new", "stored"], rows)
    print_text(sys.stdout, [*([table] if rows else []), result.headline])


make_command = partial(
    command,
    "backup",
    BackupOptions,
    run_backup,
    help_text=_HELP,
    usage="--input DIR... --output URI [OPTIONS]",
    page="backup",
    examples=_EXAMPLES,
    has_links=False,
)
