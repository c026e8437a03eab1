"""Backups of one broker, once or repeatedly, and the files that monitoring reads.

A repeated backup starts at multiples of its period since 1970, as cron and systemd timers do, so
that the brokers of a cluster back up at the same time without communicating.

`Monitor` writes metrics in Prometheus' text format and a health file, both atomically. Counters
continue from the file of an earlier process, so that backups from cron are counted correctly too.
Prometheus reads the file through the textfile collector of its node exporter.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import msgspec

from kafka_index.commands.backup.barrier import (
    BackupBarrier,
    BarrierMissedError,
    ScheduledCutoff,
    SingleBroker,
    join_backup,
)
from kafka_index.commands.backup.broker_backup import BrokerBackup
from kafka_index.commands.backup.capture import InspectedPartitions
from kafka_index.commands.backup.request import BackupRequest
from kafka_index.commands.backup.result import BackupResult
from kafka_index.core.errors import (
    ConfigError,
    InputError,
    KafkaIndexError,
    is_retriable,
    printable,
)
from kafka_index.core.format.times import now_ms, time_text
from kafka_index.core.fs.inputs import reading_inputs, unread_texts
from kafka_index.core.fs.registry import atomic_file, store_of
from kafka_index.core.job.engine import Engine, Listener
from kafka_index.core.job.result import ReportSink

_LOGGER = logging.getLogger(__name__)
#: Maximum number of attempts, if the other brokers leave each barrier before this broker arrives.
MAX_MISSED_BARRIERS = 5
# Metrics are rewritten at least this often, so that the age of the newest backup is accurate.
_LONGEST_SLEEP_S = 15.0

_PREFIX = "kafka_index_backup_"
_SECOND_MS = 1000
_COUNTER = re.compile(rf"^({_PREFIX}\w+_total{{[^}}]*}}) ([0-9]{{1,18}})$", re.MULTILINE)
#: Results of backups: complete, with skipped partitions, or failed.
_DONE, _PARTIAL, _FAILED = "done", "partial", "failed"
_HELP = {
    "backups_total": "Backups, by result: done, partial (partitions were skipped) or failed.",
    "uploaded_bytes_total": "Bytes that backups added to the repository.",
    "failed_backups": "Consecutive failed backups since the last successful backup.",
    "last_cutoff_timestamp_seconds": "Cutoff time of the newest backup of this broker.",
    "last_end_timestamp_seconds": "Time at which the last backup succeeded or failed.",
    "age_seconds": "Time from the cutoff of the newest backup to the last write of this file.",
    "duration_seconds": "Duration of the newest backup.",
    "uploaded_bytes": "Bytes that the newest backup added to the repository.",
    "stored_bytes": "Bytes of all chunks in the newest backup.",
    "lag_bytes": "Bytes above high watermarks, omitted from the newest backup.",
    "partitions": "Number of partitions in the newest backup.",
    "skipped_partitions": "Number of partitions that the newest backup skipped.",
    "missing_brokers": "Number of expected brokers without a manifest in the newest backup.",
}


def backup(
    request: BackupRequest,
    _engine: Engine,
    _listener: Listener | None = None,
    _report: ReportSink | None = None,
) -> BackupResult:
    return back_up(request)


def back_up(
    request: BackupRequest, inspected_partitions: InspectedPartitions | None = None
) -> BackupResult:
    """Open or join a backup, and back up a broker until its manifest is stored.

    `inspected_partitions` contains the partitions that the previous backup of this process
    inspected and other brokers stored. It needs about 400 bytes per log. This backup updates the
    mapping.

    Raises `BarrierMissedError` if the other brokers continued without this broker at every attempt.
    """
    for attempt in range(1, MAX_MISSED_BARRIERS + 1):
        try:
            with reading_inputs(follow_links=False) as unread:
                result = _back_up_once(
                    request, {} if inspected_partitions is None else inspected_partitions
                )
                return replace(result, unread=unread_texts(unread))
        except BarrierMissedError as error:
            if attempt == MAX_MISSED_BARRIERS:
                raise
            _LOGGER.warning("%s; the broker opens another backup", error)
    raise AssertionError


def _back_up_once(
    request: BackupRequest, inspected_partitions: InspectedPartitions
) -> BackupResult:
    with BrokerBackup(request, inspected_partitions) as backup:
        brokers = backup.brokers
        backup.inspect()
        barrier = _join_backup(backup, brokers, request)
        barrier.await_capture()
        backup.capture_coordinators()
        members = barrier.await_others()
        backup.capture_others()
        backup.await_high_watermarks()
        if isinstance(barrier, SingleBroker):
            backup.store()
        else:
            _store_partitions(backup, barrier)
            backup.forget_skipped(members)
        result = backup.commit(barrier.backup_id, (*brokers, *members), members)
        inspected_partitions.clear()
        inspected_partitions.update(backup.inspected_partitions())
        return result


def _join_backup(
    backup: BrokerBackup, brokers: tuple[int, ...], request: BackupRequest
) -> BackupBarrier:
    root, node_id = backup.repository.root, backup.broker.node_id
    timeout_s = request.wait.total_seconds()
    if request.cut_at is not None and request.cut_at >= now_ms():
        return ScheduledCutoff(root, request.cut_at, node_id, brokers, timeout_s)
    newest = None if backup.previous is None else backup.previous.backup_id
    return join_backup(root, node_id, brokers, timeout_s=timeout_s, newest_backup_id=newest)


def _store_partitions(backup: BrokerBackup, barrier: BackupBarrier) -> None:
    """Store the partitions that this broker leads, then those that no other broker stored.

    A stopped broker does not count as a leader: other brokers may have later batches.
    """
    leaders = backup.leaders
    led_folders = {
        folder
        for folder, leader in leaders.items()
        if leader == backup.broker.node_id and backup.is_running
    }
    backup.store(led_folders.__contains__)
    remote_leaders = {
        folder: leader for folder, leader in leaders.items() if folder not in led_folders
    }
    unstored_folders = barrier.await_leaders(backup.stored_folders, remote_leaders)
    if any(remote_leaders[folder] is not None for folder in unstored_folders):
        backup.await_elections()
    backup.store(unstored_folders.__contains__)


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the health file, with times in ISO 8601."""

    healthy: bool
    backup_id: str | None
    cutoff: str | None
    ended: str
    failed_backups: int
    skipped_partitions: int
    error: str | None


class Monitor:
    """Writes the metrics file and the health file of one broker, unless their paths are None."""

    def __init__(self, node_id: int, metrics_path: str | None, health_path: str | None) -> None:
        self._metrics_path, self._health_path = metrics_path, health_path
        self._labels = f'node="{node_id}"'
        self._counters: dict[str, int] = {}
        for outcome in (_DONE, _PARTIAL, _FAILED):
            self._add_to_counter("backups_total", 0, f'result="{outcome}"')
        self._add_to_counter("uploaded_bytes_total", 0)
        self._read_counters()
        self._newest_result: BackupResult | None = None
        self._duration_ms = 0
        self._failed_backups = 0
        self._ended_ms: int | None = None

    def on_backup(self, result: BackupResult, duration_ms: int) -> None:
        """Count a completed backup, and write both files."""
        self._newest_result, self._duration_ms = result, duration_ms
        self._failed_backups = 0
        outcome = _PARTIAL if result.skipped_partitions else _DONE
        self._add_to_counter("backups_total", 1, f'result="{outcome}"')
        self._add_to_counter("uploaded_bytes_total", result.sizes_bytes["new"])
        self._record_end(None)

    def on_failure(self, error: BaseException) -> None:
        """Count a failed backup, and write both files."""
        self._failed_backups += 1
        self._add_to_counter("backups_total", 1, f'result="{_FAILED}"')
        self._record_end(printable(str(error)))

    def write_metrics(self) -> None:
        if self._metrics_path is not None:
            _write_atomically(self._metrics_path, self._format_metrics().encode(), "metrics file")

    def _record_end(self, error: str | None) -> None:
        self._ended_ms = now_ms()
        self.write_metrics()
        if self._health_path is None:
            return
        newest = self._newest_result
        health = Health(
            healthy=error is None,
            backup_id=None if newest is None else newest.backup_id,
            cutoff=None if newest is None else time_text(newest.cutoff_ms),
            ended=time_text(self._ended_ms),
            failed_backups=self._failed_backups,
            skipped_partitions=0 if newest is None else len(newest.skipped_partitions),
            error=error,
        )
        _write_atomically(self._health_path, msgspec.json.encode(health) + b"\n", "health file")

    def _add_to_counter(self, name: str, increment: int, *labels: str) -> None:
        key = f"{_PREFIX}{name}{{{','.join((self._labels, *labels))}}}"
        self._counters[key] = self._counters.get(key, 0) + increment

    def _read_counters(self) -> None:
        if self._metrics_path is None:
            return
        with suppress(FileNotFoundError, UnicodeDecodeError):
            metrics = store_of(self._metrics_path).read(self._metrics_path).decode()
            for sample, count in _COUNTER.findall(metrics):
                if sample in self._counters:
                    self._counters[sample] = int(count)

    def _format_metrics(self) -> str:
        gauges: dict[str, float] = {"failed_backups": self._failed_backups}
        if self._ended_ms is not None:
            gauges["last_end_timestamp_seconds"] = self._ended_ms / _SECOND_MS
        if self._newest_result is not None:
            gauges["duration_seconds"] = self._duration_ms / _SECOND_MS
            gauges |= _result_gauges(self._newest_result, now_ms())
        lines: list[str] = []
        for name, help_text in _HELP.items():
            metric_type = "counter" if name.endswith("_total") else "gauge"
            samples: Sequence[str] = ()
            if metric_type == "counter":
                samples = [
                    f"{key} {count}"
                    for key, count in self._counters.items()
                    if key.startswith(f"{_PREFIX}{name}{{")
                ]
            elif name in gauges:
                samples = [f"{_PREFIX}{name}{{{self._labels}}} {gauges[name]}"]
            if samples:
                lines += [
                    f"# HELP {_PREFIX}{name} {help_text}",
                    f"# TYPE {_PREFIX}{name} {metric_type}",
                ]
                lines += samples
        return "".join(f"{line}\n" for line in lines)


def _result_gauges(result: BackupResult, time_ms: int) -> dict[str, float]:
    sizes, skipped_count = result.sizes_bytes, len(result.skipped_partitions)
    return {
        "last_cutoff_timestamp_seconds": result.cutoff_ms / _SECOND_MS,
        "age_seconds": max(time_ms - result.cutoff_ms, 0) / _SECOND_MS,
        "uploaded_bytes": sizes["new"],
        "stored_bytes": sizes["stored"],
        "lag_bytes": result.lag_bytes,
        "partitions": len(result.partitions) - skipped_count,
        "skipped_partitions": skipped_count,
        "missing_brokers": len(result.missing_brokers),
    }


def _write_atomically(path: str, data: bytes, noun: str) -> None:
    with atomic_file(path, noun=noun) as file:
        file.write(data)
        file.commit(durable=False)


@dataclass(frozen=True)
class Agent:
    """Calls `back_up` once or periodically, and reports every result to a monitor."""

    back_up: Callable[[], BackupResult]
    monitor: Monitor
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def run_once(self) -> BackupResult:
        """Run a backup, and report the result or the failure to the monitor before raising it."""
        started_ms = now_ms()
        try:
            result = self.back_up()
        except Exception as error:
            self.monitor.on_failure(error)
            raise
        self.monitor.on_backup(result, now_ms() - started_ms)
        return result

    def run_every(self, period_s: float) -> None:
        """Run a backup now and at each multiple of the period; never return.

        A failure is logged and counted, and the next backup follows on schedule. Only errors that
        would recur are raised: wrong options, and invalid input of the first backup.
        """
        is_first = True
        while True:
            try:
                self.run_once()
            except ConfigError:
                raise
            except (KafkaIndexError, OSError) as error:
                if is_first and isinstance(error, InputError) and not is_retriable(error):
                    raise
                _LOGGER.warning("the backup failed; the next backup follows on schedule: %s", error)
            is_first = False
            self._await_next(period_s)

    def _await_next(self, period_s: float) -> None:
        next_time = (self.clock() // period_s + 1) * period_s
        while (wait_s := next_time - self.clock()) > 0:
            self.sleep(min(wait_s, _LONGEST_SLEEP_S))
            self.monitor.write_metrics()
