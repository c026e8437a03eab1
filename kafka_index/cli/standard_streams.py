"""Standard streams that were closed from the start, or that nobody reads any more."""

from __future__ import annotations

import contextlib
import os
import sys


def open_missing_streams() -> None:
    """Send stdout and stderr to nowhere where they were closed from the start (``>&-``).

    Otherwise the next file that is opened would take their place and receive what is printed.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor: this one
        if getattr(sys, name) is None:
            mode = "w" if descriptor else "r"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115, because it lives as long as the process


def forget_stdout() -> None:
    """Keep the interpreter from flushing into a closed pipe or a full disk on its way out."""
    with contextlib.suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
