"""``backup``: the options, the report, and what is printed."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import partial

import click

from kafka_index.backup.high_watermarks import Source
from kafka_index.backup.taking import BACKUP_REPORT_SCHEMA, BackupRequest, BackupResult, take
from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.options import Group, Whole, command, option
from kafka_index.cli.run_summary import run_summary
from kafka_index.cli.shared_options import (
    Detail,
    config_option,
    detail_options,
    input_option,
    report_option,
    topics_option,
)
from kafka_index.cli.terminal import (
    Table,
    format_bytes,
    format_count,
    print_error,
    print_log,
    print_text,
)
from kafka_index.config import read_properties
from kafka_index.layout.integers import INT32_MAX
from kafka_index.storage.report_file import open_report

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
"""


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
        show_default=False,
        help="The broker, where the directories are of several.",
    )
    brokers: str | None = option(
        "--brokers",
        group=Group.CLUSTER,
        metavar="N,N...",
        help="The brokers that a run expects, for a new repository.  [default: this one]",
    )
    report: str | None = report_option("a row per partition")
    detail: Detail = detail_options()

    def __post_init__(self) -> None:
        if not self.inputs:
            raise click.UsageError("no input: give --input DIR")
        if self.output is None:
            raise click.UsageError("no repository: give --output URI")

    @property
    def request(self) -> BackupRequest:
        """The run."""
        return BackupRequest(
            inputs=self.inputs,
            output=self.output or "",
            topics=self.topics,
            properties=None if self.config is None else read_properties(self.config),
            node_id=self.node_id,
            brokers=_numbers(self.brokers),
        )


def _numbers(text: str | None) -> tuple[int, ...]:
    parts = [] if text is None else text.split(",")
    if not all(part.strip().isascii() and part.strip().isdecimal() for part in parts):
        raise click.BadParameter("expected node ids, such as 1,2,3", param_hint="--brokers")
    return tuple(int(part) for part in parts)


def run_backup(options: BackupOptions) -> ExitCode:
    """Take a run, print its summary, and return its exit code.

    Raises `KafkaIndexError` if there is no run.
    """
    with open_report(options.report, BACKUP_REPORT_SCHEMA) as report:
        result = take(options.request)
        if report is not None:
            report.write_table(result.to_arrow())
    _print(result, options.detail)
    return ExitCode(result.outcome.exit_code)


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
    page="storage",
    examples=_EXAMPLES,
    has_links=False,
)
