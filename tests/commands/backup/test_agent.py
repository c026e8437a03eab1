"""Runs at ticks, what a monitor is told of them, and failures among them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from kafka_index.commands.backup.agent import Agent, CompletedBackup, Monitor
from kafka_index.commands.backup.result import BackupResult
from kafka_index.core.errors import ConfigError, InputError, PublishError
from kafka_index.core.format.times import now_ms
from kafka_index.core.fs.backup.manifest import Manifest, Missed, SeenSegment

from .test_manifest import manifest


def run_of_now(**changes: object) -> Manifest:
    found = manifest(segments=(SeenSegment(0, 1, 2, 3, 1500, 1400),))
    cut = msgspec.structs.replace(found.cut, begun_ms=now_ms() - 5000, met=(1, 2))
    more = {"brokers": (1, 2, 3), "cut": cut, "new_bytes": 700}
    return msgspec.structs.replace(found, **(more | changes))


def taken_now() -> CompletedBackup:
    found = run_of_now()
    return CompletedBackup(BackupResult(found.run, 1, "/repository", [], "checkpoint", 0, 0), found)


def metrics(path: Path) -> dict[str, float]:
    """Parse Prometheus' text format, strictly."""
    found: dict[str, float] = {}
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
            found[f"{short} {result}".strip()] = float(value)
    return found


def test_metrics_and_health_of_runs(tmp_path: Path) -> None:
    paths = tmp_path / "backup.prom", tmp_path / "health.json"
    monitor = Monitor(1, *map(str, paths))
    monitor.on_run(run_of_now(), 1500)
    found = metrics(paths[0])
    assert 5 <= found.pop("age_seconds") < 60
    assert now_ms() / 1000 - 60 < found.pop("last_cut_timestamp_seconds") < now_ms() / 1000 - 4
    assert now_ms() / 1000 - 60 < found.pop("last_end_timestamp_seconds") <= now_ms() / 1000
    assert found == {
        "runs_total done": 1,
        "runs_total missed": 0,
        "runs_total failed": 0,
        "uploaded_bytes_total": 700,
        "failed_runs": 0,
        "run_seconds": 1.5,
        "uploaded_bytes": 700,
        "stored_bytes": 1400,
        "lag_bytes": 100,
        "partitions": 1,
        "missed_partitions": 0,
        "missing_brokers": 1,
    }
    health = json.loads(paths[1].read_text())
    assert (health["healthy"], health["run"], health["error"]) == (True, manifest().run, None)

    monitor.on_failure(PublishError("no space left", path="s3://b/k"))
    found = metrics(paths[0])
    assert (found["runs_total failed"], found["failed_runs"], found["partitions"]) == (1, 1, 1)
    health = json.loads(paths[1].read_text())
    assert (health["healthy"], health["failed_runs"]) == (False, 1)
    assert health["run"] == manifest().run
    assert health["error"] == "s3://b/k: no space left"
    assert {each.name for each in tmp_path.iterdir()} == {"backup.prom", "health.json"}


def test_counters_continue_in_the_next_process(tmp_path: Path) -> None:
    path = str(tmp_path / "backup.prom")
    missed = Missed(topic="a", partition=0, topic_id=None, reason="no id", runs=1)
    for number in range(3):
        monitor = Monitor(1, path, None)
        monitor.on_run(run_of_now(missed=(missed,) * (number == 2)), 100)
        monitor.on_failure(InputError("no"))
    found = metrics(tmp_path / "backup.prom")
    assert [found[f"runs_total {each}"] for each in ("done", "missed", "failed")] == [2, 1, 3]
    assert found["uploaded_bytes_total"] == 2100
    (tmp_path / "backup.prom").write_bytes(b"\xff not metrics")
    Monitor(1, path, None).on_run(run_of_now(), 100)
    assert metrics(tmp_path / "backup.prom")["runs_total done"] == 1


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


def ticks(
    take: Callable[[], CompletedBackup], clock: Clock, monitor: Monitor | None = None
) -> list[tuple[float, str]]:
    agent = Agent(take, monitor or Monitor(1, None, None), lambda: clock.now, clock.sleep)
    done: list[tuple[float, str]] = []
    with pytest.raises(EndedError):
        agent.run_every(300, lambda each: done.append((clock.now, each.manifest.run)))
    return done


def test_runs_are_at_multiples_of_the_period_after_a_first_one(tmp_path: Path) -> None:
    clock = Clock(1000.5, 2000)
    path = tmp_path / "m.prom"

    def take() -> CompletedBackup:
        clock.now += 40
        return taken_now()

    done = ticks(take, clock, Monitor(1, str(path), None))
    assert [at for at, _ in done] == [1040.5, 1240, 1540, 1840]
    assert metrics(path)["runs_total done"] == 4


def test_a_run_that_outlasts_its_period_misses_ticks() -> None:
    clock = Clock(1200, 3000)

    def take() -> CompletedBackup:
        clock.now += 400
        return taken_now()

    assert [at for at, _ in ticks(take, clock)] == [1600, 2200, 2800]


def test_a_failed_run_is_tried_again_at_the_next_tick(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    faults: Iterator[Exception | None] = iter(
        [OSError(5, "Input/output error"), None, InputError("gone"), PublishError("full"), None]
    )

    def take() -> CompletedBackup:
        fault = next(faults)
        if fault is not None:
            raise fault
        return taken_now()

    path = tmp_path / "m.prom"
    done = ticks(take, Clock(0, 1400), Monitor(1, str(path), None))
    assert [at for at, _ in done] == [300, 1200]
    assert metrics(path)["runs_total failed"] == 3
    assert metrics(path)["failed_runs"] == 0
    assert [each.getMessage().rpartition(": ")[2] for each in caplog.records] == [
        "[Errno 5] Input/output error",
        "gone",
        "full",
    ]


@pytest.mark.parametrize("error", [ConfigError("wrong"), InputError("another cluster's")])
def test_what_would_fail_for_ever_is_raised_at_once(error: Exception) -> None:
    def take() -> CompletedBackup:
        raise error

    agent = Agent(take, Monitor(1, None, None), sleep=lambda _: pytest.fail("it waited"))
    with pytest.raises(type(error)):
        agent.run_every(300, lambda _: None)
