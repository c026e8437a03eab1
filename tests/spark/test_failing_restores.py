"""Restores on Spark whose tasks fail or are killed at a call: nothing mounts, a rerun completes it.

The driver's own calls are those of a restore on threads
(tests/commands/restore/test_failing_calls.py).
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from kafka_index.commands.restore import restore_partition as units
from kafka_index.commands.restore.job import RestoreJob
from kafka_index.commands.restore.plan import PartitionPlan
from kafka_index.commands.restore.request import RestoreRequest
from kafka_index.commands.restore.restore_partition import PartitionSettings, divide, restore_on
from kafka_index.commands.restore.restored_partition import LostRange, RestoredPartition
from kafka_index.commands.restore.result import RestoreResult
from kafka_index.core.job.engine import Listener, SplittableTask
from kafka_index.core.job.threads import ThreadEngine
from kafka_index.core.output.output import STAGING
from kafka_index.spark.workers import SparkWorkers, session_workers
from tests.support.builds import kill, start
from tests.support.campaign import drawn
from tests.support.command_line import SETTINGS, Argument
from tests.support.gates import Gate, Step
from tests.support.restoring import MARKER, contents, copy_dump, damage, logs, restore

PARTITIONS = ("payments-0", "audit.trail-0", "orders.eu-west-1", "customer-profiles-0")
_CALLS = 190
_DRAWN = drawn(300, one_in=150)


@dataclass(frozen=True)
class SessionEngine:
    """Runs works in a session that is there, and stays."""

    session: SparkSession
    on_spark: bool = True

    def start(
        self,
        command: str,  # noqa: ARG002
        *,
        after_failure: str,  # noqa: ARG002
        listener: Listener | None = None,
        works: int = 0,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
    ) -> AbstractContextManager[SparkWorkers]:
        return session_workers(
            self.session, listener=listener, works=works, inputs=inputs, outputs=outputs
        )


class Failure(Enum):
    """The failure at a call, and whether it happens at all calls after it."""

    KILL = 0, False
    DISK = errno.EIO, False
    DENIED = errno.EACCES, False
    FULL = errno.ENOSPC, True


@dataclass(frozen=True)
class Whole:
    """A dump, and what a restore makes of it that nothing interrupts."""

    dump: Path
    files: dict[str, bytes]
    lost: list[LostRange]

    def job(self, output: Path) -> RestoreJob:
        return RestoreJob.prepare(RestoreRequest(inputs=(str(self.dump),), output=str(output)))

    def check_completed(self, output: Path) -> None:
        result = self.job(output).run(restore_on(ThreadEngine(2)))
        assert result.runbook is not None
        assert losses(result) == self.lost
        assert contents(output) == self.files


def losses(result: RestoreResult) -> list[LostRange]:
    return [lost for each in result.partitions for lost in each.lost]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("failing-tasks")
    dump = copy_dump(folder / "dump", *PARTITIONS)
    damage(logs(dump / "audit.trail-0")[1])
    job = RestoreJob.prepare(RestoreRequest(inputs=(str(dump),), output=str(folder / "whole")))
    lost = losses(job.run(restore_on(ThreadEngine(2))))
    assert lost
    return Whole(dump, contents(folder / "whole"), lost)


@pytest.fixture(autouse=True)
def _each_partition_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "_GROUP_BYTES", 0)


def failing_at(
    step: int, failure: Failure, folder: str, counted: str
) -> Callable[..., SplittableTask[list[RestoredPartition]]]:
    """Return works of which the n-th call below a folder fails, in whichever worker it is."""
    number, stays = failure.value

    # Sent by value, since workers do not import the tests.
    def restore(
        group: Sequence[PartitionPlan], settings: PartitionSettings, attempt_id: str
    ) -> list[RestoredPartition]:
        named = {"os.rename", "os.remove", "os.truncate", "os.mkdir", "os.link", "os.utime", "open"}
        is_at_work = True

        def fail(place: str) -> None:
            if not is_at_work or folder not in place:
                return
            counter = os_open(counted, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os_write(counter, b".")
            call = os.lseek(counter, 0, os.SEEK_CUR)
            os.close(counter)
            if call == step or (stays and call > step):
                if not number:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError(number, os.strerror(number), place)

        def failing(name: str) -> Callable[..., object]:
            call = getattr(os, name)

            def called(descriptor: int, *more: object) -> object:
                target = more[0] if name == "copy_file_range" else descriptor
                fail(os.readlink(f"/proc/self/fd/{target}"))
                return call(descriptor, *more)

            return called

        os_open, os_write = os.open, os.write
        kept = {
            name: getattr(os, name)
            for name in ("write", "pwrite", "fsync", "ftruncate", "copy_file_range")
        }
        for name in kept:
            setattr(os, name, failing(name))
        # Hooks cannot be removed: this one does nothing after its work.
        sys.addaudithook(lambda name, given: fail(str(given[:2])) if name in named else None)
        try:
            return divide(group, settings=settings).run(attempt_id)
        finally:
            is_at_work = False
            for name, call in kept.items():
                setattr(os, name, call)

    return lambda group, *, settings: SplittableTask(
        [partial(restore, group, settings)], lambda pieces, _: pieces[0]
    )


@pytest.mark.parametrize("failure", list(Failure))
@pytest.mark.parametrize("number", range(_DRAWN))
def test_partial_restore_prevents_a_start_and_a_rerun_completes_it(
    spark: SparkSession,
    whole: Whole,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    failure: Failure,
) -> None:
    out, counted = tmp_path / "out", tmp_path / "counted"
    step = 1 + number * _CALLS // _DRAWN
    runbook = None
    try:
        with monkeypatch.context() as patch:
            patch.setattr(units, "divide", failing_at(step, failure, str(out), str(counted)))
            runbook = whole.job(out).run(restore_on(SessionEngine(spark))).runbook
    except Py4JError:
        # The job of the worker that was killed.
        assert failure is Failure.KILL

    assert counted.stat().st_size >= step
    if runbook is None:
        assert not (out / "meta.properties").exists()
        assert not (out / MARKER).exists()
        whole.check_completed(out)
    # Otherwise it could do without the call.
    assert contents(out) == whole.files


#: Steps of a driver and of its tasks.
_STEPS = [
    Step("os.rename", "/payments-0", 1),
    Step("open", "00.log", 2),
    Step("open", "partition.metadata", 2),
    Step("open", ".journal", 1),
    Step("os.rename", "recovery-point-offset-checkpoint", 1),
    Step("os.rename", MARKER, 1),
]


@pytest.mark.usefixtures("quick_java")
@pytest.mark.parametrize("step", _STEPS[: drawn(6, one_in=6)], ids=lambda step: step.ending)
def test_restore_killed_with_its_tasks_is_completed_by_a_rerun(
    whole: Whole, tmp_path: Path, step: Step
) -> None:
    out = tmp_path / "out"
    gate = Gate(tmp_path / "gate", step)
    options: list[Argument] = ["--engine", "spark", "--master", "local[2]", "--config", SETTINGS]
    process = start(
        *("--input", whole.dump, "--output", out, *options), command_name="restore", gate=gate
    )
    gate.wait(process)
    kill(process)

    assert not (out / MARKER).exists()
    assert not (out / "meta.properties").exists() or step.ending == MARKER
    run = restore(whole.dump, out)

    assert run.code == 1, run.done.stderr
    assert len(run.lost) == len(whole.lost)
    assert not any(STAGING.fullmatch(path.name) for path in out.iterdir())
