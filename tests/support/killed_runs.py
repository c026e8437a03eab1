"""Runs of the command line that are killed, or whose calls fail, at a step: many in little time.

One process imports everything and runs a command once. Each run is a fork of it, in which the n-th
file system call of some kinds below a folder kills the process, or fails.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.command_line import Argument, environment


class Failure(StrEnum):
    """What happens at the step."""

    #: The process is killed before the call.
    KILL = "kill"
    #: The disk fails, this once.
    DISK = "disk"
    #: The disk is full, from now on.
    FULL = "full"


_NAMED = {"open", "os.rename", "os.remove", "os.truncate", "os.mkdir", "os.link", "os.utime"}
_WRITES = ("write", "pwrite", "fsync", "ftruncate", "copy_file_range")
_NEEDS_ROOM = {"os.mkdir", "os.link", *_WRITES}
_MAKES_FILE = os.O_CREAT | os.O_TRUNC


class KilledRuns:
    """A process that forks runs of the command line; ends with its context.

    Parameters
    ----------
    warm_up : arguments of the command line
        Run once, to its end.
    """

    def __init__(self, *warm_up: Argument) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(),
        )
        self._send("", 0, Failure.KILL, warm_up)

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
        code = self.failing(folder, step, Failure.KILL, *arguments)
        assert code in (0, -signal.SIGKILL), arguments
        return code != 0

    def failing(self, folder: Path, step: int, failure: Failure, *arguments: Argument) -> int:
        """Run a command with a failure at a step below a folder; return its exit code."""
        self._send(str(folder), step, failure, arguments)
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def _send(
        self, folder: str, step: int, failure: Failure, arguments: tuple[Argument, ...]
    ) -> None:
        assert self._process.stdin is not None
        line = json.dumps([folder, step, failure, list(map(str, arguments))])
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


def _let_fail(folder: str, step: int, failure: Failure) -> None:
    """Let the n-th call below a folder fail in this process."""
    left = step

    def fail(place: str, *, takes_room: bool) -> None:
        nonlocal left
        if folder not in place or (failure is Failure.FULL and not takes_room):
            return
        left -= 1
        if left > 0 or (left < 0 and failure is not Failure.FULL):
            return
        if failure is Failure.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        number = errno.ENOSPC if failure is Failure.FULL else errno.EIO
        raise OSError(number, os.strerror(number), place)

    def on_call(name: str, given: tuple[object, ...]) -> None:
        if name in _NAMED:
            flags = given[2] if name == "open" and isinstance(given[2], int) else 0
            fail(str(given[:2]), takes_room=name in _NEEDS_ROOM or bool(flags & _MAKES_FILE))

    def failing(name: str) -> Callable[..., object]:
        call = getattr(os, name)

        def called(descriptor: int, *more: object) -> object:
            target = more[0] if name == "copy_file_range" else descriptor
            fail(os.readlink(f"/proc/self/fd/{target}"), takes_room=True)
            return call(descriptor, *more)

        return called

    if failure is not Failure.KILL:
        for name in _WRITES:
            setattr(os, name, failing(name))
    sys.addaudithook(on_call)


def _serve() -> None:
    from kafka_index.cli import main  # noqa: PLC0415, so that only the process that forks has it

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        folder, step, failure, arguments = json.loads(line)
        if not step:
            main(arguments)
            continue
        child = os.fork()
        if not child:
            _let_fail(folder, step, Failure(failure))
            os._exit(main(arguments))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
