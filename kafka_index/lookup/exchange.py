"""Replacing an old folder by a new one."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from functools import cache

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# The file system or the kernel cannot exchange names.
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
#: Ends the name of a folder that is set aside for a moment.
ASIDE = ".old"


def exchange(new: str, old: str) -> None:
    """Exchange the names of two folders of one file system, atomically where the system can.

    Afterwards the new one is at `old`, and the old one at `new`. Without renameat2(2) there is a
    moment in which `old` does not exist; a run that is killed then leaves the old folder under the
    name of the new one and ``.old``. Raises `OSError` if they were not exchanged: `old` is
    unchanged.
    """
    rename = _renameat2()
    if rename is not None:
        if rename(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), _RENAME_EXCHANGE) == 0:
            return
        code = ctypes.get_errno()
        if code not in _UNSUPPORTED:
            raise OSError(code, os.strerror(code), old)
    exchange_in_steps(new, old)


def exchange_in_steps(new: str, old: str) -> None:
    """Exchange two folders by three renames."""
    aside = new + ASIDE
    os.rename(old, aside)
    try:
        os.rename(new, old)
    except BaseException:
        os.rename(aside, old)
        raise
    os.rename(aside, new)


@cache
def _renameat2() -> Callable[..., int] | None:
    try:
        call: Callable[..., int] = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None
    return call
