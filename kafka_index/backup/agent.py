"""Runs of one broker, one after the other: at once, or at each tick of a period, for ever.

Ticks are multiples of the period since 1970, as those of cron and systemd are, so that the brokers
of a cluster meet without knowing of each other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kafka_index.backup.barrier import (
    DEFAULT_PATIENCE_S,
    AgreedTime,
    Alone,
    LateError,
    Meeting,
    open_run,
)
from kafka_index.backup.looks import Looked
from kafka_index.backup.metrics import Monitor
from kafka_index.backup.politeness import Bandwidth
from kafka_index.backup.request import BackupRequest
from kafka_index.backup.result import BackupResult
from kafka_index.backup.taking import Taking
from kafka_index.errors import ConfigError, InputError, KafkaIndexError, is_retriable
from kafka_index.layout.times import now_ms
from kafka_index.stores.backup.manifest import Manifest

_LOGGER = logging.getLogger(__name__)
#: How often a run is tried: another may be closed while this one is late, again and again.
MAX_RUNS_LATE = 5
# The age in the metrics is as exact.
_LONGEST_SLEEP_S = 15.0


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
class TakenRun:
    """A run that was taken: its result, and the manifest that is in the repository."""

    result: BackupResult
    manifest: Manifest


def take(
    request: BackupRequest,
    manners: Manners | None = None,
    looked: Looked | None = None,
) -> TakenRun:
    """Take a run of a broker, from opening or joining it to its manifest.

    `looked` is what the run before it in this process has looked at and left to others, and
    afterwards what this run has: some 400 bytes per log.

    Raises `LateError` if the other brokers went on without this one, each time it was tried.
    """
    for left in reversed(range(MAX_RUNS_LATE)):
        try:
            return _take(request, manners or Manners(), {} if looked is None else looked)
        except LateError as error:
            if not left:
                raise
            _LOGGER.warning("%s; it opens a run of its own", error)
    raise AssertionError


def _take(request: BackupRequest, manners: Manners, looked: Looked) -> TakenRun:
    with Taking(request, manners.bandwidth, looked) as taking:
        brokers = taking.brokers
        taking.look()
        meeting = _meeting(taking, brokers, manners)
        meeting.await_cut()
        taking.cut_coordinators()
        met = meeting.await_others()
        taking.cut_others()
        taking.await_high_watermarks()
        if isinstance(meeting, Alone):
            taking.store()
        else:
            _store_led(taking, meeting)
            taking.forget_left_out(met)
        result = taking.commit(meeting.run, (*brokers, *met), met)
        looked.clear()
        looked.update(taking.looked())
        return TakenRun(result, taking.manifest)


def _meeting(taking: Taking, brokers: tuple[int, ...], manners: Manners) -> Meeting:
    root, node_id = taking.repository.root, taking.broker.node_id
    if manners.cut_at_ms is not None and manners.cut_at_ms >= now_ms():
        return AgreedTime(root, manners.cut_at_ms, node_id, brokers, manners.patience_s)
    last_run = None if taking.previous is None else taking.previous.run
    return open_run(root, node_id, brokers, patience_s=manners.patience_s, last_run=last_run)


def _store_led(taking: Taking, meeting: Meeting) -> None:
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


@dataclass(frozen=True)
class Agent:
    """Takes runs with a function, and tells a monitor of each."""

    take: Callable[[], TakenRun]
    monitor: Monitor
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def run_once(self) -> TakenRun:
        """Take a run; a failure is counted, and raised."""
        began_ms = now_ms()
        try:
            taken = self.take()
        except Exception as error:
            self.monitor.on_failure(error)
            raise
        self.monitor.on_run(taken.manifest, now_ms() - began_ms)
        return taken

    def run_every(self, period_s: float, on_run: Callable[[TakenRun], None]) -> None:
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
