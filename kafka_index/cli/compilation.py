"""The display of a command while its kernels are compiled, once, for all later runs."""

from __future__ import annotations

import sys

from kafka_index.cli.terminal import print_log
from kafka_index.kernels.compile_clock import compile_clock

#: In a line of its own, or in the live line.
COMPILING = "compiling kernels, once"


def announce_compilation() -> None:
    """Let the first compilation print a line, on a terminal; a live line takes its place."""
    if sys.stderr.isatty():
        compile_clock.on_first = lambda: print_log(COMPILING)
