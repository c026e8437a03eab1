"""Timeouts of tests: a hang ends them, a slow or busy machine does not."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable

#: Set to a number: multiplies every timeout, instead of what is measured where that is measured.
_FACTOR = "KAFKA_INDEX_TIMEOUT_FACTOR"

#: For whatever ends by itself: far above what it takes, on a busy machine too.
TIMEOUT_SECONDS = 600 * max(float(os.environ.get(_FACTOR) or 1), 1)

#: What an interpreter that imports numpy takes on an idle machine.
_USUAL_SECONDS = 0.2
_MAX_FACTOR = 20.0


def scaled(seconds: float) -> float:
    """Return a timeout for what takes far less than `seconds` on an idle machine of today.

    The load may grow after it was measured, so a timeout is at least four times as long.
    """
    return seconds * 4 * _slowness()


def wait_until(
    process: subprocess.Popen[str], happened: Callable[[], bool], *, every: float = 0.0005
) -> bool:
    """Watch closely until something happens (True) or the process has ended (False)."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        began = time.monotonic()
        if happened():
            return True
        if process.poll() is not None:
            return False
        # At most half of a core for watching.
        time.sleep(max(every, time.monotonic() - began))
    raise TimeoutError


def wait_for(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Poll until a condition holds; fail when it does not within ``scaled(seconds)``."""
    limit = scaled(seconds)
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {limit:.0f} s")
        time.sleep(0.05)


@functools.cache
def _slowness() -> float:
    """Return how much slower than usual this machine is now: 1 or more."""
    given = os.environ.get(_FACTOR)
    if given is not None:
        return float(given)
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import numpy"], check=True, timeout=120)
    measured = time.perf_counter() - started
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return min(max(measured / _USUAL_SECONDS, load, 1.0), _MAX_FACTOR)
