"""Putting a new folder in the place of an old one."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from functools import cache

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# A file system, or a kernel, that cannot exchange names.
_CANNOT = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
#: Ends the name of what is put aside for a moment.
ASIDE = ".old"


def exchange(new: str, old: str) -> None:
    """Let two folders exchange their names, at once where the system can do that.

    Parameters
    ----------
    new, old : str
        Folders of one file system. Afterwards `old` is the new one; what it was is at `new`.

    Raises
    ------
    OSError
        It did not happen, and `old` is what it was.

    Notes
    -----
    Without renameat2(2) there is a moment without either; a run that is killed in it leaves the
    old folder beside, under the name of the new one and ``.old``.
    """
    rename = _renameat2()
    if rename is not None:
        if rename(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), _RENAME_EXCHANGE) == 0:
            return
        code = ctypes.get_errno()
        if code not in _CANNOT:
            raise OSError(code, os.strerror(code), old)
    exchange_in_steps(new, old)


def exchange_in_steps(new: str, old: str) -> None:
    """Do `exchange` with three renames."""
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
