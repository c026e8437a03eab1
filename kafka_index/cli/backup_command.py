"""``backup`` makes one backup or repeated backups; ``backups`` manages a repository."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from kafka_index.cli.command import RunOptions, run_for_result, run_request
from kafka_index.cli.command import make_command as derive
from kafka_index.cli.exit_status import ExitCode
from kafka_index.commands.backup.request import (
    BACKUP,
    EXPIRE_BACKUPS,
    LIST_BACKUPS,
    VERIFY_BACKUPS,
    BackupRequest,
)
from kafka_index.core.errors import help_page
from kafka_index.core.job.request import (
    CommandSpec,
    DurationKind,
    Group,
    PathKind,
    Request,
    parameter,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from kafka_index.cli.print_result import ProgressListener
    from kafka_index.commands.backup.capture import InspectedPartitions
    from kafka_index.commands.backup.result import BackupResult


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoredBackup(BackupRequest):
    """A `backup` request with the interval and the files for monitoring."""

    every: timedelta | None = parameter(
        DurationKind(),
        Group.BEHAVIOUR,
        "Back up now, and then at each multiple of DURATION (30s, 5m, 1h) by the clock. A failed "
        "backup is retried at the next multiple.",
        default=None,
    )
    metrics: str | None = parameter(
        PathKind("FILE"),
        Group.OUTPUT,
        "Write metrics to FILE in Prometheus text format, such as the age of the newest backup.",
        default=None,
    )
    health: str | None = parameter(
        PathKind("FILE"),
        Group.OUTPUT,
        "Write the outcome of the last backup to FILE as JSON, for probes.",
        default=None,
    )

    def __post_init__(self) -> None:
        super(MonitoredBackup, self).__post_init__()
        if self.every is not None and self.cut_at is not None:
            self.refuse("{every} and {cut_at} are mutually exclusive")


def _run(spec: CommandSpec, request: MonitoredBackup, options: RunOptions) -> int:
    """Run a backup and return its exit code; with ``--every``, never return."""
    from kafka_index.commands.backup.agent import Agent, Monitor, back_up  # noqa: PLC0415, slow to import
    from kafka_index.commands.backup.broker_backup import Broker  # noqa: PLC0415, slow to import
    from kafka_index.commands.backup.low_impact_io import idle_io_priority  # noqa: PLC0415, slow to import

    inspected: InspectedPartitions = {}

    def back_up_and_print() -> BackupResult:
        result: BackupResult = run_for_result(
            spec, request, options, work=lambda *_: back_up(request, inspected)
        )
        sys.stdout.flush()
        return result

    monitor = Monitor(Broker.from_request(request).node_id, request.metrics, request.health)
    agent = Agent(back_up_and_print, monitor)
    with idle_io_priority():
        if request.every is not None:
            agent.run_every(request.every.total_seconds())
        return ExitCode(agent.run_once().outcome.exit_code)


make_backup = partial(derive, replace(BACKUP, request=MonitoredBackup), run=_run)


_BACKUPS_HELP = """List, verify and expire the backups of a repository.

    `kafka-index backup` makes backups. `restore` and every command that reads logs read a backup
    with `--input backup:URI` (the newest), `backup:URI@TIME` or `backup:URI@ID`.
    """


def _run_backups(spec: CommandSpec, request: Request, options: RunOptions) -> int:
    def print_rows(result: Any, _progress: ProgressListener) -> bool:
        from kafka_index.cli.dump_output import TablePrinter  # noqa: PLC0415, slow to import

        table, as_json = result.printed_rows, options.as_json
        stream = options.verbosity.stdout if result.ok else sys.stdout
        output = TablePrinter(stream, as_json=as_json)
        for batch in (table if as_json else _format_columns(table)).to_batches():
            output.rows(batch)
        return True

    return run_request(spec, request, replace(options, as_json=False), print_rows=print_rows)


def _format_columns(rows: pa.Table) -> pa.Table:
    """Add units to numbers, convert lists to text, and drop empty columns."""
    import pyarrow as pa  # noqa: PLC0415, slow to import

    from kafka_index.core.format.human import format_bytes, format_seconds  # noqa: PLC0415, as above

    def format_cell(name: str, value: Any) -> str | None:
        if value is None:
            return None
        if name.endswith("_ms"):
            return format_seconds(value / 1000)
        if name.endswith("bytes"):
            return format_bytes(value)
        if isinstance(value, list):
            return ",".join(map(str, value)) or None
        return value.isoformat(timespec="seconds") if hasattr(value, "isoformat") else str(value)

    columns = {
        name.removesuffix("_ms"): [format_cell(name, value) for value in rows[name].to_pylist()]
        for name in rows.column_names
        if name != "opened"
    }
    columns = {
        name: cells for name, cells in columns.items() if any(cell is not None for cell in cells)
    }
    return pa.table({name: pa.array(cells, pa.string()) for name, cells in columns.items()})


def make_backups(*, as_job: bool) -> click.Group:
    """Return the command group; its commands cannot run as jobs."""
    specs = (LIST_BACKUPS, VERIFY_BACKUPS, EXPIRE_BACKUPS)
    return click.Group(
        "backups",
        {spec.name.split()[-1]: derive(spec, as_job=as_job, run=_run_backups) for spec in specs},
        help=_BACKUPS_HELP,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog=f"Documentation: {help_page('backup')}",
        subcommand_metavar="COMMAND [ARGS]...",
    )
