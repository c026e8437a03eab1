"""The permissions of files, obeyed in tests that run as root too."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_VERSION = 0x20080522
#: CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH.
_OVERRIDE = 1 << 1 | 1 << 2


@contextmanager
def without_override() -> Iterator[None]:
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
