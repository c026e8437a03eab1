"""``backup``: one backup now, or repeated backups."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from kafka_index.cli.command import RunOptions, run_for_result
from kafka_index.cli.command import make_command as derive
from kafka_index.cli.exit_status import ExitCode
from kafka_index.commands.backup.request import BACKUP, BackupRequest
from kafka_index.core.job.request import CommandSpec, DurationKind, Group, PathKind, parameter

if TYPE_CHECKING:
    from kafka_index.commands.backup.capture import InspectedPartitions
    from kafka_index.commands.backup.result import BackupResult


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoredBackup(BackupRequest):
    """The request, the interval, and the files for monitoring."""

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
            self.refuse("{every} and {cut_at} exclude each other")


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


make_command = partial(derive, replace(BACKUP, request=MonitoredBackup), run=_run)
