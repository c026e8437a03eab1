"""Runs of one broker, one after the other, and the files by which a monitor sees how they ended.

A run is taken at once, or at each tick of a period, for ever. Ticks are multiples of the period
since 1970, as those of cron and systemd are, so that the brokers of a cluster meet without knowing
of each other.

The files are metrics in Prometheus' text format, and health; both are replaced as a whole. Counters
continue from the file that an earlier process left, so that they hold for runs by cron too;
Prometheus reads the file through the textfile collector of its node exporter.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from kafka_index.commands.backup.barrier import (
    DEFAULT_PATIENCE_S,
    BarrierMissedError,
    Meeting,
    ScheduledCutoff,
    SingleBroker,
    open_run,
)
from kafka_index.commands.backup.broker_backup import BrokerBackup
from kafka_index.commands.backup.low_impact_io import Bandwidth
from kafka_index.commands.backup.partition_inspector import Looked
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
from kafka_index.core.fs.backup.manifest import Manifest
from kafka_index.core.fs.registry import store_of, whole_file

_LOGGER = logging.getLogger(__name__)
#: How often a run is tried: another may be closed while this one is late, again and again.
MAX_RUNS_LATE = 5
# The age in the metrics is as exact.
_LONGEST_SLEEP_S = 15.0

_PREFIX = "kafka_index_backup_"
_SECOND_MS = 1000
_COUNTER = re.compile(rf"^({_PREFIX}\w+_total{{[^}}]*}}) ([0-9]{{1,18}})$", re.MULTILINE)
#: How runs end: with all partitions, without some, or not at all.
_DONE, _MISSED, _FAILED = "done", "missed", "failed"
_HELP = {
    "runs_total": "Runs, by how they ended: done, missed (without some partition) or failed.",
    "uploaded_bytes_total": "Bytes that were new in the repository.",
    "failed_runs": "Runs that have failed since the last one that did not.",
    "last_cut_timestamp_seconds": "When the newest run of this broker was cut.",
    "last_end_timestamp_seconds": "When the last run ended, failed ones included.",
    "age_seconds": "Since the newest run of this broker was cut, when this file was written.",
    "run_seconds": "Duration of the newest run.",
    "uploaded_bytes": "Bytes that were new in the newest run.",
    "stored_bytes": "Bytes of all that the newest run consists of.",
    "lag_bytes": "Bytes at the ends of logs that were cut and not stored: above a high watermark.",
    "partitions": "Partitions in the newest run.",
    "missed_partitions": "Partitions that the newest run could not take.",
    "missing_brokers": "Expected brokers that were not there when the newest run was cut.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """The behaviour of a run towards others: brokers of the cluster, and whoever uses the disk.

    `patience_s` is for the others of the cluster; `cut_at_ms`, the agreed time of a cut, is in
    milliseconds since the epoch.
    """

    patience_s: float = DEFAULT_PATIENCE_S
    cut_at_ms: int | None = None
    bandwidth: Bandwidth = field(default_factory=Bandwidth)


@dataclass(frozen=True, slots=True)
class CompletedBackup:
    """A run that was taken: its result, and the manifest that is in the repository."""

    result: BackupResult
    manifest: Manifest


def take(
    request: BackupRequest,
    manners: Manners | None = None,
    looked: Looked | None = None,
) -> CompletedBackup:
    """Take a run of a broker, from opening or joining it to its manifest.

    `looked` is what the run before it in this process has looked at and left to others, and
    afterwards what this run has: some 400 bytes per log.

    Raises `BarrierMissedError` if the other brokers went on without this one at each attempt.
    """
    for left in reversed(range(MAX_RUNS_LATE)):
        try:
            return _take(request, manners or Manners(), {} if looked is None else looked)
        except BarrierMissedError as error:
            if not left:
                raise
            _LOGGER.warning("%s; it opens a run of its own", error)
    raise AssertionError


def _take(request: BackupRequest, manners: Manners, looked: Looked) -> CompletedBackup:
    with BrokerBackup(request, manners.bandwidth, looked) as taking:
        brokers = taking.brokers
        taking.look()
        meeting = _meeting(taking, brokers, manners)
        meeting.await_cut()
        taking.cut_coordinators()
        met = meeting.await_others()
        taking.cut_others()
        taking.await_high_watermarks()
        if isinstance(meeting, SingleBroker):
            taking.store()
        else:
            _store_led(taking, meeting)
            taking.forget_left_out(met)
        result = taking.commit(meeting.run, (*brokers, *met), met)
        looked.clear()
        looked.update(taking.looked())
        return CompletedBackup(result, taking.manifest)


def _meeting(taking: BrokerBackup, brokers: tuple[int, ...], manners: Manners) -> Meeting:
    root, node_id = taking.repository.root, taking.broker.node_id
    if manners.cut_at_ms is not None and manners.cut_at_ms >= now_ms():
        return ScheduledCutoff(root, manners.cut_at_ms, node_id, brokers, manners.patience_s)
    last_run = None if taking.previous is None else taking.previous.run
    return open_run(root, node_id, brokers, patience_s=manners.patience_s, last_run=last_run)


def _store_led(taking: BrokerBackup, meeting: Meeting) -> None:
    """Store what this broker leads, then what no other broker of the run has stored.

    A broker that does not run leads nothing: others may have more of what it led.
    """
    leaders = taking.leaders
    led = {
        folder
        for folder, leader in leaders.items()
        if leader == taking.broker.node_id and taking.is_running
    }
    taking.store(led.__contains__)
    others = {folder: leader for folder, leader in leaders.items() if folder not in led}
    lacking = meeting.await_leaders(taking.stored_folders, others)
    if any(others[folder] is not None for folder in lacking):
        taking.await_elections()
    taking.store(lacking.__contains__)


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a file of health, for probes and people; times are ISO 8601."""

    healthy: bool
    run: str | None
    cut: str | None
    ended: str
    failed_runs: int
    missed_partitions: int
    error: str | None


class Monitor:
    """Writes the metrics and the health of the backups of one broker.

    The paths are None for files that are not wanted.
    """

    def __init__(self, node_id: int, metrics_path: str | None, health_path: str | None) -> None:
        self._metrics_path, self._health_path = metrics_path, health_path
        self._labels = f'node="{node_id}"'
        self._counters: dict[str, int] = {}
        for outcome in (_DONE, _MISSED, _FAILED):
            self._count("runs_total", 0, f'result="{outcome}"')
        self._count("uploaded_bytes_total", 0)
        self._continue_counters()
        self._newest: Manifest | None = None
        self._run_ms = 0
        self._failed = 0
        self._ended_ms: int | None = None

    def on_run(self, manifest: Manifest, run_ms: int) -> None:
        """Count a run that is in the repository, and write both files."""
        self._newest, self._run_ms = manifest, run_ms
        self._failed = 0
        self._count("runs_total", 1, f'result="{_MISSED if manifest.missed else _DONE}"')
        self._count("uploaded_bytes_total", manifest.new_bytes)
        self._on_end(None)

    def on_failure(self, error: BaseException) -> None:
        """Count a run that failed, and write both files."""
        self._failed += 1
        self._count("runs_total", 1, f'result="{_FAILED}"')
        self._on_end(printable(str(error)))

    def write_metrics(self) -> None:
        """Write the metrics again, with the age of now."""
        if self._metrics_path is not None:
            _write(self._metrics_path, self._text().encode(), "metrics")

    def _on_end(self, error: str | None) -> None:
        self._ended_ms = now_ms()
        self.write_metrics()
        if self._health_path is None:
            return
        manifest = self._newest
        health = Health(
            healthy=error is None,
            run=None if manifest is None else manifest.run,
            cut=None if manifest is None else time_text(manifest.cut.begun_ms),
            ended=time_text(self._ended_ms),
            failed_runs=self._failed,
            missed_partitions=0 if manifest is None else len(manifest.missed),
            error=error,
        )
        _write(self._health_path, msgspec.json.encode(health) + b"\n", "health")

    def _count(self, name: str, more: int, *labels: str) -> None:
        key = f"{_PREFIX}{name}{{{','.join((self._labels, *labels))}}}"
        self._counters[key] = self._counters.get(key, 0) + more

    def _continue_counters(self) -> None:
        if self._metrics_path is None:
            return
        with suppress(FileNotFoundError, UnicodeDecodeError):
            text = store_of(self._metrics_path).read(self._metrics_path).decode()
            for key, count in _COUNTER.findall(text):
                if key in self._counters:
                    self._counters[key] = int(count)

    def _text(self) -> str:
        gauges: dict[str, float] = {"failed_runs": self._failed}
        if self._ended_ms is not None:
            gauges["last_end_timestamp_seconds"] = self._ended_ms / _SECOND_MS
        if self._newest is not None:
            gauges |= {"run_seconds": self._run_ms / _SECOND_MS} | _gauges(self._newest, now_ms())
        lines: list[str] = []
        for name, help_text in _HELP.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            samples: Sequence[str] = ()
            if kind == "counter":
                samples = [
                    f"{key} {count}"
                    for key, count in self._counters.items()
                    if key.startswith(f"{_PREFIX}{name}{{")
                ]
            elif name in gauges:
                samples = [f"{_PREFIX}{name}{{{self._labels}}} {gauges[name]}"]
            if samples:
                lines += [f"# HELP {_PREFIX}{name} {help_text}", f"# TYPE {_PREFIX}{name} {kind}"]
                lines += samples
        return "".join(f"{line}\n" for line in lines)


def _gauges(found: Manifest, now: int) -> dict[str, float]:
    """Return what the metrics say of a run."""
    cut_ms = found.cut.begun_ms
    there = {found.node_id, *found.cut.met}
    missing = {*found.brokers} - there if found.cut.met else ()
    logs = [log for each in found.partitions for log in each.segments]
    return {
        "last_cut_timestamp_seconds": cut_ms / _SECOND_MS,
        "age_seconds": max(now - cut_ms, 0) / _SECOND_MS,
        "uploaded_bytes": found.new_bytes,
        "stored_bytes": sum(own.size_bytes for each in found.partitions for own in each.pieces),
        "lag_bytes": sum(log.size_bytes - log.covered_bytes for log in logs),
        "partitions": len(found.partitions),
        "missed_partitions": len(found.missed),
        "missing_brokers": len(missing),
    }


def _write(path: str, data: bytes, what: str) -> None:
    with whole_file(path, what=f"file of {what}") as file:
        file.write(data)
        file.commit(durable=False)


@dataclass(frozen=True)
class Agent:
    """Takes runs with a function, and tells a monitor of each."""

    take: Callable[[], CompletedBackup]
    monitor: Monitor
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def run_once(self) -> CompletedBackup:
        """Take a run; a failure is counted, and raised."""
        began_ms = now_ms()
        try:
            taken = self.take()
        except Exception as error:
            self.monitor.on_failure(error)
            raise
        self.monitor.on_run(taken.manifest, now_ms() - began_ms)
        return taken

    def run_every(self, period_s: float, on_run: Callable[[CompletedBackup], None]) -> None:
        """Take a run now and at each tick; return never.

        A run that fails is logged and counted, and the next tick tries again. Only what would fail
        for ever is raised: wrong options at any run, a wrong input at the first one.
        """
        is_first = True
        while True:
            try:
                on_run(self.run_once())
            except ConfigError:
                raise
            except (KafkaIndexError, OSError) as error:
                if is_first and isinstance(error, InputError) and not is_retriable(error):
                    raise
                _LOGGER.warning("the run failed, and is tried again: %s", error)
            is_first = False
            self._await_tick(period_s)

    def _await_tick(self, period_s: float) -> None:
        now = self.clock()
        tick = (now // period_s + 1) * period_s
        while (left := tick - self.clock()) > 0:
            self.sleep(min(left, _LONGEST_SLEEP_S))
            self.monitor.write_metrics()
