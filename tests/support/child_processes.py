"""Children of a test process: killed without harm to the test, or without its privileges."""

from __future__ import annotations

import ctypes
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

NOBODY = 65534


def run_in_child(action: Callable[[], object]) -> int:
    """Run something in a forked child; its wait status (0: it returned)."""
    with warnings.catch_warnings():
        # Python 3.12 warns of threads, which other tests may have left; the child starts none.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _run_and_exit(action)
    return os.waitpid(pid, 0)[1]


def _run_and_exit(action: Callable[[], object]) -> NoReturn:
    try:
        action()
    except BaseException as error:  # noqa: BLE001 - the exit code carries it
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)
    os._exit(0)


def run_unprivileged(action: Callable[[], object]) -> int:
    """Run something in a child that has no privileges, whoever we are."""

    def unprivileged() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        action()

    return run_in_child(unprivileged)


def allow_other_users(directory: Path) -> None:
    """Let another user reach a test's folder: pytest keeps its own parents private."""
    temporary = Path(tempfile.gettempdir())
    while directory != temporary and directory.is_relative_to(temporary):
        directory.chmod(0o755)
        directory = directory.parent


_VERSION = 0x20080522
#: CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH.
_OVERRIDE = 1 << 1 | 1 << 2


@contextmanager
def enforce_permissions() -> Iterator[None]:
    """Obey the permissions of files in this thread, and in threads that it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)
    before = (ctypes.c_uint32 * 6)()
    if libc.capget(header, before):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    dropped = (ctypes.c_uint32 * 6)(*before)
    dropped[0] &= ~_OVERRIDE
    if libc.capset(header, dropped):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        yield
    finally:
        libc.capset(header, before)
