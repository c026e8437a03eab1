"""The bytes that a terminal is sent."""

from __future__ import annotations

import os
import pty
import subprocess
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from tests.support.command_line import COMMAND, Argument, environment
from tests.support.timeouts import TIMEOUT_SECONDS


def shown_on_a_terminal(columns: int, show: Callable[[TextIO], None]) -> list[str]:
    """Return the lines that a terminal of this width is sent."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    with os.fdopen(ours, "rb", buffering=0) as terminal, os.fdopen(theirs, "w") as stream:
        show(stream)
        stream.write("\0")
        stream.flush()
        shown = b""
        while not shown.endswith(b"\0"):
            shown += terminal.read(10_000)
    return shown.rstrip(b"\0").decode().replace("\r\n", "\n").splitlines()


def run_on_a_terminal(columns: int, *arguments: Argument) -> list[str]:
    """Run the console script on a terminal of this width; return the lines that it is sent."""
    ours, theirs = pty.openpty()
    variables = environment() | {"TERM": "xterm", "COLUMNS": str(columns)}
    variables.pop("NO_COLOR", None)
    command = [*COMMAND, *map(str, arguments)]
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=variables)
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # how Linux reports that the other side was closed
            while piece := terminal.read(10_000):
                shown += piece
        assert process.wait(TIMEOUT_SECONDS) == 0
    return shown.decode().replace("\r\n", "\n").splitlines()
