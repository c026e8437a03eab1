"""Runs of the command line that are killed at a step, many of them in little time.

One process imports everything and runs a command once. Each run is a fork of it, which kills itself
before its n-th file system call of some kinds below a folder.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.command_line import Argument, environment

_SERVER = """
import json, os, signal, sys
from kafka_index.cli import main
KINDS = {"open", "os.rename", "os.remove", "os.truncate", "os.mkdir", "os.link", "os.utime"}
def run(folder, step, arguments):
    left = step
    def hook(name, given):
        nonlocal left
        if name in KINDS and folder in str(given[:2]):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
    os.dup2(2, 1)
    return main(arguments)
answers = os.fdopen(os.dup(1), "w")
for line in sys.stdin:
    folder, step, arguments = json.loads(line)
    if not step:
        os.dup2(2, 1)
        main(arguments)
        continue
    child = os.fork()
    if not child:
        os._exit(run(folder, step, arguments))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)
"""


class KilledRuns:
    """A process that forks runs of the command line; ends with its context.

    Parameters
    ----------
    warm_up : arguments of the command line
        Run once, to its end.
    """

    def __init__(self, *warm_up: Argument) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(),
        )
        self._send("", 0, warm_up)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def run(self, folder: Path, step: int, *arguments: Argument) -> bool:
        """Run a command that is killed at a step below a folder; whether it was."""
        self._send(str(folder), step, arguments)
        assert self._process.stdout is not None
        code = int(self._process.stdout.readline())
        assert code in (0, -signal.SIGKILL), arguments
        return code != 0

    def _send(self, folder: str, step: int, arguments: tuple[Argument, ...]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([folder, step, list(map(str, arguments))]) + "\n")
        self._process.stdin.flush()
