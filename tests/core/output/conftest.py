"""A process that holds a lock."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

LOCK_HOLDER = """
import fcntl, sys, time
file = open(sys.argv[1], "a+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("locked", flush=True)
time.sleep(600)
"""


@pytest.fixture
def hold_lock() -> Iterator[Callable[[Path], subprocess.Popen[bytes]]]:
    """Start another process that holds a lock file the way a broker does."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(path: Path) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", LOCK_HOLDER, str(path)], stdout=subprocess.PIPE
        )
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        return process

    yield start
    for process in processes:
        process.send_signal(signal.SIGKILL)
        process.communicate()
