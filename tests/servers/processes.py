"""Helpers of the servers: a folder for single builds, ports, and children that die with us."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tests.support.timeouts import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_Found = TypeVar("_Found")


def built_folder() -> Path:
    """Folder of servers that were built or fetched once, outside the checkout."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "kafka-index-tests"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def running(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a server that ends with this block, or with this process however that ends."""
    setpriv = shutil.which("setpriv")
    bound = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            [*bound, *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(environment or {})},
        )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_line(process: subprocess.Popen[str], log: Path, start: str) -> str:
    """Wait for a line of a server's output that has a start, and return it.

    Raises `ConnectionError` when the process ended without it, or is silent for long.
    """

    def find() -> str | None:
        lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
        result = (line.strip() for line in lines if line.startswith(start) and line.endswith("\n"))
        return next(result, None)

    return _wait_for(find, process, log)


def wait_for_port(process: subprocess.Popen[str], port: int, log: Path) -> None:
    """Wait until a server accepts connections.

    Raises `ConnectionError` when the process ended, or accepts none for long.
    """

    def connect() -> bool | None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                return True
        except OSError:
            return None

    _wait_for(connect, process, log)


def _wait_for(
    find: Callable[[], _Found | None], process: subprocess.Popen[str], log: Path
) -> _Found:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        result = find()
        if result is not None:
            return result
        time.sleep(0.05)
    raise ConnectionError(f"no server: {log.read_text(encoding='utf-8')[-2000:]}")
