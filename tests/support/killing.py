"""A command that is killed before its n-th file system call, again and again, in forked processes.

Run as a module, with a path and the arguments of the command: for each number read from the
standard input a process is forked that runs the command, and kills itself before the n-th call that
names something below the path. Its exit code is written as a line, with how many calls it made.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kafka_index.cli import main
from tests.support.command_line import environment

_CALLS = frozenset(
    {"open", "os.rename", "os.remove", "os.truncate", "os.mkdir", "os.rmdir", "os.link", "os.utime"}
)


class KilledCommand:
    """Runs the command; its imports are done once."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, step: int) -> int:
        """Run it, to be killed at a step; return its exit code, -SIGKILL where it was."""
        return self._run(step)[0]

    def calls(self) -> int:
        """Run it to its end; return how many calls it makes, and so at which it can be killed."""
        code, calls = self._run(0)
        assert code == 0
        return calls

    def _run(self, step: int) -> tuple[int, int]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{step}\n")
        self._process.stdin.flush()
        code, calls = self._process.stdout.readline().split()
        return int(code), int(calls)


@contextmanager
def killed_command(below: Path, arguments: Sequence[object]) -> Iterator[KilledCommand]:
    """Yield a command that can be killed; its scratch files are below the path too.

    `below`: only file system calls that name something below it count. `arguments`: of the command
    line.
    """
    scratch = below / "scratch"
    scratch.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(below), *map(str, arguments)],
        env={**environment(), "TMPDIR": str(scratch)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield KilledCommand(process)
    finally:
        process.communicate()


def _run(below: str, step: int) -> tuple[int, int]:
    """Run the command in this process; return its exit code, and how many calls it made."""
    calls = 0

    def count(name: str, arguments: tuple[object, ...]) -> None:
        nonlocal calls
        if name in _CALLS and below in str(arguments[:2]):
            calls += 1
            if calls == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    return main(), calls


def _serve() -> None:
    import kafka_index.cli.verify  # noqa: F401, PLC0415, so that forked processes have it

    below = sys.argv.pop(1)
    for line in sys.stdin:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            code, calls = _run(below, int(line))
            os.write(writing, str(calls).encode())
            os._exit(code)
        os.close(writing)
        counted = os.read(reading, 100).decode()
        os.close(reading)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), counted or -1, flush=True)


if __name__ == "__main__":
    _serve()
