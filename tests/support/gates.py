"""Gates: processes that stop at a chosen step, until a test has done what it does meanwhile.

A test that kills, or changes a file, at a step does so however fast the machine is.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.support.timeouts import wait_for, wait_until

_GATE, _CHUNK = "KAFKA_INDEX_TEST_GATE", "KAFKA_INDEX_TEST_CHUNK"
_AT_START = Path(__file__).with_name("at_start")


@dataclass(frozen=True)
class StopInScan:
    """A process stops itself, as SIGSTOP does, before the n-th chunk that it scans."""

    chunk: int

    def on_the_way_of(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the process."""
        return _at_start(environment, _CHUNK, str(self.chunk))


def _at_start(environment: Mapping[str, str], name: str, value: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(_AT_START), environment.get("PYTHONPATH"))))
    return {**environment, "PYTHONPATH": path, name: value}


@dataclass(frozen=True)
class Step:
    """A step of a command: before the n-th file whose name has an ending is created or renamed."""

    event: Literal["open", "os.rename"]
    ending: str
    count: int


class Gate:
    """A step of a command at which its threads and processes wait.

    `folder`: not there yet. `step`: the first `count` - 1 of such steps are done, by whichever
    process; all others wait.
    """

    def __init__(self, folder: Path, step: Step) -> None:
        self._folder = folder
        self._step = step
        folder.mkdir()
        for number in range(1, step.count):
            (folder / f"pass-{number}").mkdir()

    def on_the_way_of(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a process that stops here, as does all that it starts."""
        return _at_start(environment, _GATE, self._description)

    @property
    def spark_settings(self) -> list[str]:
        """Settings with which the executors of a cluster, and their workers, stop here."""
        names = {"PYTHONPATH": _AT_START, _GATE: self._description}
        return [f"spark.executorEnv.{name}={value}" for name, value in names.items()]

    @property
    def _description(self) -> str:
        return f"{self._step.event}:{self._step.ending}:{self._folder}"

    @property
    def waiting(self) -> set[int]:
        """The processes that have come here."""
        return {int(path.name.split("-")[1]) for path in self._folder.glob("waiting-*")}

    def wait(
        self,
        process: subprocess.Popen[str],
        done: Callable[[], bool] = lambda: True,
        *,
        processes: int = 1,
    ) -> None:
        """Wait until the steps before the gate are done, as the disk says, and someone waits."""
        reached = wait_until(
            process, lambda: len(self.waiting) >= processes and done(), every=0.005
        )
        assert reached, process.communicate()

    def wait_for_end(self, processes: int) -> None:
        """Wait until so many of the processes that waited have ended."""

        def ended() -> int:
            return sum(not Path(f"/proc/{pid}").exists() for pid in self.waiting)

        wait_for(lambda: ended() >= processes, 10, "the end of killed processes")

    def open(self) -> None:
        """Let all go on."""
        (self._folder / "open").touch()

    def stop(self, process: subprocess.Popen[str], number: signal.Signals) -> None:
        """Send a signal to a command that waits in a thread, which goes on once that is noticed."""
        (self._folder / "signalled").touch()
        process.send_signal(number)
