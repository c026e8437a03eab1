"""Runs of the command line that are killed, or whose calls fail, at a step: many in little time.

One process imports everything and runs a command once. Each run is a fork of it. At the n-th file
system call below a folder, the fork is killed, gets a signal, or the call fails.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Self

from tests.support.command_line import Argument, environment
from tests.support.timeouts import wait_for


class Failure(StrEnum):
    """The event at the step."""

    #: The process is killed before a call that changes something.
    KILL = "kill"
    #: The process gets SIGTERM before a call that changes something.
    TERMINATE = "terminate"
    #: The process gets SIGINT before a call that changes something.
    INTERRUPT = "interrupt"
    #: The process stops, as SIGSTOP does, before a call that changes something.
    STOP = "stop"
    #: The process is killed after so many milliseconds, wherever it is.
    TIME = "time"
    #: The process is killed before a call, or a return, of a function that commits to tables.
    CALL = "call"
    #: The disk fails, this once.
    DISK = "disk"
    #: The disk is full, from now on.
    FULL = "full"
    #: The process may not do that, this once.
    DENIED = "denied"
    #: The process may have no more open files than this many besides those of its start.
    FILES = "files"


#: The failures that are signals to the process.
SIGNALS = {
    Failure.KILL: signal.SIGKILL,
    Failure.TERMINATE: signal.SIGTERM,
    Failure.INTERRUPT: signal.SIGINT,
    Failure.STOP: signal.SIGSTOP,
    Failure.CALL: signal.SIGKILL,
}
#: The failures that are errors of a call.
ERRNOS = {Failure.DISK: errno.EIO, Failure.FULL: errno.ENOSPC, Failure.DENIED: errno.EACCES}
#: The events of Python's audit hooks that name a file.
NAMED_CALLS = {
    *("open", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.mkdir", "os.link"),
    *("os.utime", "os.listdir", "os.scandir"),
}
_READS = ("read", "pread", "preadv")
#: The functions of `os` that write to a descriptor.
WRITES = ("write", "pwrite", "fsync", "ftruncate", "copy_file_range")
_NEEDS_ROOM = {"os.mkdir", "os.link", *WRITES}
#: Parts of the paths of modules whose functions commit to tables.
_COMMITS = (
    "/pyiceberg/",
    "/deltalake/",
    "/export/table_commit",
    "/export/replaced_rows",
    "/export/iceberg",
    "/export/delta",
)
_MAKES_FILE = os.O_CREAT | os.O_TRUNC
_OPENS_TO_WRITE = os.O_WRONLY | os.O_RDWR | _MAKES_FILE
_ONLY_READS = {"open", "os.listdir", "os.scandir"}


@dataclass(frozen=True)
class EndedRun:
    """A run that has ended.

    `code`: the exit code; the number of the signal, negative, that ended it. `place`: the file or
    folder of the call that failed; empty if none has. `calls`: how many calls there were that could
    have failed.
    """

    code: int
    stdout: str
    stderr: str
    place: str
    calls: int


class KilledRuns:
    """A process that forks runs of the command line; ends with its context.

    `warm_up`: run once, to its end. `prepared`: modules that the process imports before.
    """

    def __init__(self, *warm_up: Argument, prepared: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *prepared],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment(),
        )
        if warm_up:
            self.warm_up(*warm_up)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def warm_up(self, *arguments: Argument) -> None:
        """Run a command to its end in the process itself, which then has imported all of it."""
        assert self._send("", 0, Failure.KILL, arguments).code in (0, 1), arguments

    def run(self, folder: Path, step: int, *arguments: Argument) -> bool:
        """Run a command that is killed at a step below a folder; whether it was."""
        code = self.failing(folder, step, Failure.KILL, *arguments).code
        assert code in (0, -signal.SIGKILL), arguments
        return code != 0

    def failing(self, folder: Path, step: int, failure: Failure, *arguments: Argument) -> EndedRun:
        """Run a command with a failure at a step below a folder."""
        return self._send(str(folder), step, failure, arguments)

    @contextmanager
    def stopped(self, folder: Path, step: int, *arguments: Argument) -> Iterator[list[EndedRun]]:
        """Run a command that stops at a step below a folder while the block runs.

        At the end of the block it continues; the list then has how it ended.
        """
        ended: list[EndedRun] = []
        self._write(str(folder), step, Failure.STOP, arguments)
        assert self._process.stdout is not None
        answers = [self._process.stdout]
        wait_for(
            lambda: self._is_stopped() or select.select(answers, [], [], 0)[0], 10, "a run stops"
        )
        yield ended
        if child := self._child():
            os.kill(child, signal.SIGCONT)
        ended.append(self._read())

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the run that another thread waits for."""
        os.kill(self._child(), number)

    def _child(self) -> int:
        """Return the process of the run; 0 if it has ended."""
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        return int(children[0]) if children else 0

    def _is_stopped(self) -> bool:
        try:
            text = Path(f"/proc/{self._child()}/stat").read_text(encoding="utf-8")
        except FileNotFoundError:
            return False
        return text.rpartition(")")[2].split()[0] == "T"

    def _send(
        self, folder: str, step: int, failure: Failure, arguments: tuple[Argument, ...]
    ) -> EndedRun:
        self._write(folder, step, failure, arguments)
        return self._read()

    def _write(
        self, folder: str, step: int, failure: Failure, arguments: tuple[Argument, ...]
    ) -> None:
        assert self._process.stdin is not None
        line = json.dumps([folder, step, failure, list(map(str, arguments))])
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _read(self) -> EndedRun:
        assert self._process.stdout is not None
        return EndedRun(**json.loads(self._process.stdout.readline()))


class _Failing:
    """The n-th call below a folder fails in this process; the log has a line for each call."""

    def __init__(self, folder: str, step: int, failure: Failure, log: int) -> None:
        self._folder, self._step = folder, step
        self._left = count(step - 1, -1)
        self._failure, self._log = failure, log
        self._write = os.write

    def begin(self) -> None:
        if self._failure is Failure.FILES:
            unused = os.open("/", os.O_RDONLY)
            most = unused + self._step
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            os.close(unused)
            return
        if self._failure is Failure.TIME:
            kill = partial(os.kill, os.getpid(), signal.SIGKILL)
            threading.Timer(self._step / 1000, kill).start()
            return
        named: tuple[str, ...]
        if self._failure in SIGNALS:
            named = WRITES
        elif self._failure is Failure.DENIED:
            # An open descriptor has its permissions, but for some network file systems.
            named = ("ftruncate",)
        else:
            named = (*_READS, *WRITES)
        for name in named:
            setattr(os, name, self._failing(name))
        sys.addaudithook(self._on_call)

    def _fail(self, place: str, *, takes_room: bool) -> None:
        if self._folder not in place or (self._failure is Failure.FULL and not takes_room):
            return
        # Each call has a number of its own, also where two threads come at once.
        left = next(self._left)
        self._write(self._log, b".")
        if left > 0 or (left < 0 and self._failure is not Failure.FULL):
            return
        self._write(self._log, os.fsencode(f"\n{place}\n"))
        if self._failure in SIGNALS:
            os.kill(os.getpid(), SIGNALS[self._failure])
            return
        number = ERRNOS[self._failure]
        raise OSError(number, os.strerror(number), place)

    def _on_call(self, name: str, given: tuple[object, ...]) -> None:
        if name not in NAMED_CALLS:
            return
        # open: path, mode, flags; os.rename: source, destination, and two descriptors.
        flags = given[2] if name == "open" and isinstance(given[2], int) else 0
        takes_room = name in _NEEDS_ROOM or bool(flags & _MAKES_FILE)
        changes = name not in _ONLY_READS or bool(flags & _OPENS_TO_WRITE)
        if self._failure in SIGNALS and not changes:
            return
        path = next((each for each in given[:2] if self._folder in str(each)), None)
        if isinstance(path, str | bytes | os.PathLike):
            self._fail(os.fsdecode(path), takes_room=takes_room)

    def _on_event(self, frame: FrameType, _event: str, _argument: object) -> None:
        path = frame.f_code.co_filename
        if any(part in path for part in _COMMITS):
            self._fail(path, takes_room=False)

    def _failing(self, name: str) -> Callable[..., object]:
        call = getattr(os, name)

        def called(descriptor: int, *more: object) -> object:
            target = more[0] if name == "copy_file_range" else descriptor
            takes_room = name in WRITES
            self._fail(os.readlink(f"/proc/self/fd/{target}"), takes_room=takes_room)
            return call(descriptor, *more)

        return called


def _ended(folder: str, step: int, failure: Failure, arguments: list[str]) -> EndedRun:
    """Fork a run, and wait for its end."""
    from kafka_index.cli import main  # noqa: PLC0415, so that only the process that forks has it

    with (
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
        tempfile.TemporaryFile() as log,
    ):
        child = os.fork()
        if not child:
            os.dup2(stdout.fileno(), 1)
            os.dup2(stderr.fileno(), 2)
            for file in (stdout, stderr, log):
                fcntl.fcntl(file, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
            _Failing(folder, step, failure, log.fileno()).begin()
            code = main(arguments)
            sys.stdout.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out, err, calls = (
            (file.seek(0), file.read().decode(errors="replace"))[1]
            for file in (stdout, stderr, log)
        )
    lines = calls.split("\n")
    return EndedRun(code, out, err, "".join(lines[1:2]), sum(map(len, lines[::2])))


def _serve() -> None:
    from kafka_index.cli import main  # noqa: PLC0415, so that only the process that forks has it

    for name in sys.argv[1:]:
        import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        folder, step, failure, arguments = json.loads(line)
        if step:
            ended = _ended(folder, step, Failure(failure), arguments)
        else:
            ended = EndedRun(main(arguments), "", "", "", 0)
        print(json.dumps(asdict(ended)), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
