"""Runs of one broker, one after the other: at once, or at each tick of a period, for ever.

Ticks are multiples of the period since 1970, as those of cron and systemd are, so that the brokers
of a cluster meet without knowing of each other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kafka_index.backup.barrier import LateError
from kafka_index.backup.metrics import Monitor
from kafka_index.errors import ConfigError, InputError, KafkaIndexError, is_retriable
from kafka_index.layout.times import now_ms
from kafka_index.metadata.cluster_image import ClusterImage
from kafka_index.stores.backup.manifest import Manifest

_LOGGER = logging.getLogger(__name__)
# Another run may be closed while this one is late, again and again.
_MAX_RUNS_LATE = 5
# The age in the metrics is as exact.
_LONGEST_SLEEP_S = 15.0


@dataclass(frozen=True)
class Agent:
    """Takes runs with a function, and tells a monitor of each.

    The function takes one run, from opening it to its manifest. It raises `LateError` where the
    others went on without this broker, and is then called again.
    """

    take: Callable[[], Manifest]
    monitor: Monitor
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def run_once(self) -> Manifest:
        """Take a run; a failure is counted, and raised."""
        began_ms = now_ms()
        try:
            manifest = self._take()
        except Exception as error:
            self.monitor.on_failure(error)
            raise
        self.monitor.on_run(manifest, now_ms() - began_ms)
        return manifest

    def run_every(self, period_s: float, on_run: Callable[[Manifest], None]) -> None:
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

    def _take(self) -> Manifest:
        for _ in range(_MAX_RUNS_LATE - 1):
            try:
                return self.take()
            except LateError as error:
                _LOGGER.warning("%s; it opens a run of its own", error)
        return self.take()

    def _await_tick(self, period_s: float) -> None:
        now = self.clock()
        tick = (now // period_s + 1) * period_s
        while (left := tick - self.clock()) > 0:
            self.sleep(min(left, _LONGEST_SLEEP_S))
            self.monitor.write_metrics()


def expected_brokers(
    given: Sequence[int], in_repository: Sequence[int], image: ClusterImage | None, node_id: int
) -> tuple[int, ...]:
    """Return the brokers that a run expects: given ones, the repository's, or the registered ones.

    Brokers are registered in the metadata log, where there is one.
    """
    registered = () if image is None else tuple(image.brokers)
    return tuple(sorted({*(given or in_repository or registered), node_id}))
