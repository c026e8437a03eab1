"""Builds whose executor, worker or driver is killed at a random moment, and builds with slow tasks.

``KAFKA_INDEX_SEED`` draws other kills; the seed and the kill are in the name of each test.
"""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pytest

from tests.cluster.conftest import event_log, finish, run, start
from tests.support.builds import leftover_files, names
from tests.support.campaign import sample_size
from tests.support.command_line import SETTINGS, Argument, build_here
from tests.support.dumps import raw_batch_table, write_parquet
from tests.support.gates import Gate, Step
from tests.support.spark_cluster import Cluster, children_of, processes_of
from tests.support.timeouts import wait_for, wait_until

SEED = os.environ.get("KAFKA_INDEX_SEED") or "0"
_KILLS = sample_size(60, one_in=20)
_WORKERS = 2
_VICTIMS = ("executor", "worker", "driver")
_FORMS = ("logs", "parquet")
# A driver that has not yet begun to scan.
_START_SECONDS = 6.0
_LAST_DELAY_SECONDS = 0.3


@dataclass(frozen=True)
class Kill:
    """A process that is killed, and the moment.

    `scanned` and `published` are shares of the segments; `jvm` is about the two processes of a
    driver.
    """

    victim: str
    form: str
    start_seconds: float | None
    scanned: float
    published: float
    delay_seconds: float
    jvm: bool
    choice: float

    @classmethod
    def random(cls, number: int) -> Self:
        """Draw a kill from the seed."""
        draw = random.Random(f"{SEED} {number}")
        victim = _VICTIMS[number % len(_VICTIMS)]
        # Scanning and publishing take about equally long.
        moment = 2 * draw.random()
        early = victim == "driver" and draw.random() < 0.2
        return cls(
            victim,
            _FORMS[number % len(_FORMS)],
            start_seconds=draw.uniform(0, _START_SECONDS) if early else None,
            scanned=min(moment, 1.0),
            published=max(moment - 1, 0.0),
            delay_seconds=draw.uniform(0, _LAST_DELAY_SECONDS),
            jvm=draw.random() < 0.5,
            choice=draw.random(),
        )

    def __str__(self) -> str:
        process = "jvm" if self.victim == "driver" and self.jvm else self.victim
        moment = f"{100 * self.scanned:.0f}%-{100 * self.published:.0f}%"
        if self.start_seconds is not None:
            moment = f"{self.start_seconds:.1f}s"
        return f"seed{SEED}-{process}-{self.form}-{moment}"


@pytest.fixture(scope="module")
def inputs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Logs, and their raw batches in random order."""
    table = raw_batch_table(data)
    shuffled = table.take(np.random.default_rng(0).permutation(table.num_rows))
    path = tmp_path_factory.mktemp("parquet") / "batches.parquet"
    write_parquet(path, shuffled, row_group_size=500)
    return {"logs": data, "parquet": path}


@pytest.fixture(scope="module")
def undisturbed(
    inputs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, bytes]]:
    """The files that the local engine makes of each input."""
    root = tmp_path_factory.mktemp("undisturbed")
    for form, path in inputs.items():
        result = build_here("--input", path, "--output", root / form, "--config", SETTINGS)
        assert result.returncode == 0, result.stderr
    return {form: files(root / form) for form in inputs}


def files(root: Path) -> dict[str, bytes]:
    """All files below a folder; hidden ones are about a run, so only their names count."""
    return {
        str(path.relative_to(root)): b"" if path.name.startswith(".") else path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


def build(cluster: Cluster, source: Path, out: Path) -> list[Argument]:
    where: list[Argument] = ["--input", source, "--output", out, "--config", SETTINGS]
    return ["build", "--engine", "spark", "--master", cluster.master, *where]


@pytest.mark.parametrize("kill", [Kill.random(number) for number in range(_KILLS)], ids=str)
def test_build_after_a_kill_gives_the_files_of_an_undisturbed_run(
    cluster: Cluster,
    python: Path,
    inputs: dict[str, Path],
    undisturbed: dict[str, dict[str, bytes]],
    tmp_path: Path,
    kill: Kill,
) -> None:
    expected = undisturbed[kill.form]
    out = tmp_path / "out"
    command = build(cluster, inputs[kill.form], out)
    process = start(python, *command)
    if kill.start_seconds is not None:
        time.sleep(kill.start_seconds)
    else:
        segments = sum(name.endswith(".index") for name in expected)
        scratch: set[str] = set()

        def is_at_moment() -> bool:
            result = set(names(out))
            scratch.update(name for name in result if name.endswith(".tmp"))
            published = sum(name.endswith(".index") for name in result)
            scanned = max(len(scratch), published)
            return (
                bool(cluster.executors())
                and scanned >= kill.scanned * segments
                and published >= kill.published * segments
            )

        assert wait_until(process, is_at_moment, every=0.005), process.communicate()
        time.sleep(kill.delay_seconds)

    if kill.victim == "driver":
        # A JVM that is not there yet cannot be killed.
        running = (children_of(process.pid) if kill.jvm else []) or [process.pid]
    else:
        is_worker = kill.victim == "worker"
        running = cluster.running_workers() if is_worker else cluster.executors()
    if running:
        os.kill(running[int(kill.choice * len(running))], signal.SIGKILL)
    if kill.victim == "worker":
        cluster.add_worker()
    result = finish(process)

    if kill.victim == "driver":
        assert result.returncode in (0, 3, -signal.SIGKILL), result.stderr
        result = run(python, *command)
    assert result.returncode == 0, result.stderr
    assert files(out) == expected
    assert leftover_files(tmp_path) == []
    wait_for(lambda: not processes_of(python), 15, "the end of the executors' processes")
    cluster.wait_for_workers(_WORKERS)


def test_build_with_a_slow_task_and_speculation_set_tries_no_task_twice(
    cluster: Cluster,
    python: Path,
    data: Path,
    undisturbed: dict[str, dict[str, bytes]],
    tmp_path: Path,
) -> None:
    expected = undisturbed["logs"]
    segments = sum(name.endswith(".index") for name in expected)
    events, out = tmp_path / "events", tmp_path / "out"
    gate = Gate(tmp_path / "gate", Step("os.rename", ".index", segments))
    eager = {"": "true", ".interval": "50ms", ".quantile": "0.1", ".multiplier": "1.1"}
    speculation = [f"spark.speculation{name}={value}" for name, value in eager.items()]
    process = start(
        python,
        *build(cluster, data, out),
        settings=[*event_log(events), *speculation, *gate.spark_settings],
    )
    gate.wait(process)
    time.sleep(2)
    gate.open()
    result = finish(process)

    assert result.returncode == 0, result.stderr
    assert result.stderr.startswith("spark.speculation=true is ignored")
    assert files(out) == expected
    assert leftover_files(tmp_path) == []
    logs = (path for path in events.rglob("*") if path.is_file())
    text = "".join(log.read_text(errors="replace") for log in logs)
    assert '"Speculative":false' in text
    assert '"Speculative":true' not in text
