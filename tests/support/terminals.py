"""The bytes that a terminal is sent."""

from __future__ import annotations

import os
import pty
import termios
from collections.abc import Callable
from typing import TextIO


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
