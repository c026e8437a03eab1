"""Exit codes."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command tells the shell."""

    DONE = 0
    DAMAGED = 1
    USAGE = 2
