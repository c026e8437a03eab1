"""Runs at ticks, what a monitor is told of them, and failures among them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafka_index.commands.backup.agent import Agent, Monitor
from kafka_index.commands.backup.result import BackedUpPartition, BackupResult, BackupStatus
from kafka_index.core.errors import ConfigError, InputError, PublishError
from kafka_index.core.format.times import now_ms

BACKUP_ID = "20261120T120000.123Z"


def made_now(*, is_partial: bool = False) -> BackupResult:
    rows = [
        BackedUpPartition("a", 0, "/a-0", BackupStatus.STORED, size_bytes=1400, new_bytes=700),
        BackedUpPartition("a", 1, None, BackupStatus.SKIPPED, "the partition has no topic ID yet"),
    ]
    return BackupResult(
        BACKUP_ID,
        1,
        "/repository",
        rows if is_partial else rows[:1],
        "checkpoint",
        cutoff_ms=now_ms() - 5000,
        capture_ms=0,
        wait_ms=0,
        missing_brokers=(3,),
        lag_bytes=100,
    )


def metrics(path: Path) -> dict[str, float]:
    """Parse Prometheus' text format, strictly."""
    actual: dict[str, float] = {}
    kinds: dict[str, str] = {}
    for line in path.read_text().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kinds[name] = line.split(" ")
        elif not line.startswith("# HELP "):
            key, value = line.split(" ")
            name, _, labels = key.partition("{")
            assert kinds[name] == ("counter" if name.endswith("_total") else "gauge")
            assert labels.startswith('node="1"')
            assert labels.endswith("}")
            short = name.removeprefix("kafka_index_backup_")
            result = labels.partition('result="')[2].rstrip('"}')
            actual[f"{short} {result}".strip()] = float(value)
    return actual


def test_agent_exposes_metrics_and_health_of_backups(tmp_path: Path) -> None:
    paths = tmp_path / "backup.prom", tmp_path / "health.json"
    monitor = Monitor(1, *map(str, paths))
    monitor.on_backup(made_now(), 1500)
    result = metrics(paths[0])
    assert 5 <= result.pop("age_seconds") < 60
    assert now_ms() / 1000 - 60 < result.pop("last_cutoff_timestamp_seconds") < now_ms() / 1000 - 4
    assert now_ms() / 1000 - 60 < result.pop("last_end_timestamp_seconds") <= now_ms() / 1000
    assert result == {
        "backups_total done": 1,
        "backups_total partial": 0,
        "backups_total failed": 0,
        "uploaded_bytes_total": 700,
        "failed_backups": 0,
        "duration_seconds": 1.5,
        "uploaded_bytes": 700,
        "stored_bytes": 1400,
        "lag_bytes": 100,
        "partitions": 1,
        "skipped_partitions": 0,
        "missing_brokers": 1,
    }
    health = json.loads(paths[1].read_text())
    assert (health["healthy"], health["backup_id"], health["error"]) == (True, BACKUP_ID, None)

    monitor.on_failure(PublishError("no space left", path="s3://b/k"))
    result = metrics(paths[0])
    assert (result["backups_total failed"], result["failed_backups"], result["partitions"]) == (
        1,
        1,
        1,
    )
    health = json.loads(paths[1].read_text())
    assert (health["healthy"], health["failed_backups"]) == (False, 1)
    assert health["backup_id"] == BACKUP_ID
    assert health["error"] == "s3://b/k: no space left"
    assert {path.name for path in tmp_path.iterdir()} == {"backup.prom", "health.json"}


def test_agent_counters_continue_after_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "backup.prom")
    for number in range(3):
        monitor = Monitor(1, path, None)
        monitor.on_backup(made_now(is_partial=number == 2), 100)
        monitor.on_failure(InputError("no"))
    result = metrics(tmp_path / "backup.prom")
    assert [result[f"backups_total {outcome}"] for outcome in ("done", "partial", "failed")] == [
        2,
        1,
        3,
    ]
    assert result["uploaded_bytes_total"] == 2100
    (tmp_path / "backup.prom").write_bytes(b"\xff not metrics")
    Monitor(1, path, None).on_backup(made_now(), 100)
    assert metrics(tmp_path / "backup.prom")["backups_total done"] == 1


class EndedError(Exception):
    """Ends a loop without end."""


class Clock:
    """A clock whose sleeps take no time; ends a loop at a time."""

    def __init__(self, start: float, end: float) -> None:
        self.now, self.end = start, end

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self.end:
            raise EndedError


def times_of(
    back_up: Callable[[], BackupResult], clock: Clock, monitor: Monitor | None = None
) -> list[float]:
    start_times: list[float] = []

    def recorded() -> BackupResult:
        result = back_up()
        start_times.append(clock.now)
        return result

    agent = Agent(recorded, monitor or Monitor(1, None, None), lambda: clock.now, clock.sleep)
    with pytest.raises(EndedError):
        agent.run_every(300)
    return start_times


def test_agent_backs_up_at_once_and_then_at_multiples_of_the_period(tmp_path: Path) -> None:
    clock = Clock(1000.5, 2000)
    path = tmp_path / "m.prom"

    def back_up() -> BackupResult:
        clock.now += 40
        return made_now()

    result = times_of(back_up, clock, Monitor(1, str(path), None))
    assert result == [1040.5, 1240, 1540, 1840]
    assert metrics(path)["backups_total done"] == 4


def test_backup_longer_than_its_period_skips_intervals() -> None:
    clock = Clock(1200, 3000)

    def back_up() -> BackupResult:
        clock.now += 400
        return made_now()

    assert times_of(back_up, clock) == [1600, 2200, 2800]


def test_failed_backup_is_retried_at_the_next_interval(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    faults: Iterator[Exception | None] = iter(
        [OSError(5, "Input/output error"), None, InputError("gone"), PublishError("full"), None]
    )

    def back_up() -> BackupResult:
        fault = next(faults)
        if fault is not None:
            raise fault
        return made_now()

    path = tmp_path / "m.prom"
    result = times_of(back_up, Clock(0, 1400), Monitor(1, str(path), None))
    assert result == [300, 1200]
    assert metrics(path)["backups_total failed"] == 3
    assert metrics(path)["failed_backups"] == 0
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == [
        "[Errno 5] Input/output error",
        "gone",
        "full",
    ]


@pytest.mark.parametrize("error", [ConfigError("wrong"), InputError("another cluster's")])
def test_permanent_error_ends_the_agent(error: Exception) -> None:
    def back_up() -> BackupResult:
        raise error

    agent = Agent(back_up, Monitor(1, None, None), sleep=lambda _: pytest.fail("it waited"))
    with pytest.raises(type(error)):
        agent.run_every(300)
