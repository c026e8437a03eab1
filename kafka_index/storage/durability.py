"""Making files and folders durable with few syncs.

One fsync costs a journal commit; a thousand small index files would cost a thousand. From a few
files on, one ``syncfs`` per file system does for all of them.
"""

from __future__ import annotations

import ctypes
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache

# Up to here an fsync each is cheaper than a syncfs, which also writes what others left dirty.
_FEW = 4
# statfs(2) types whose syncfs writes back everything, waits, and reports (ext, xfs, btrfs,
# f2fs, tmpfs). On a network or FUSE mount it may not reach the server, fsync does.
_SYNCFS_TYPES = frozenset({0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x01021994})
# Before that, syncfs returned success even when writing back had failed.
_SYNCFS_REPORTS_SINCE = (5, 8)
_STATFS_BYTES = 512


def make_durable(paths: Iterable[str]) -> dict[str, OSError]:
    """Make the data of files, or the entries of folders, durable.

    Parameters
    ----------
    paths : iterable of str
        Files or directories; each is synced once.

    Returns
    -------
    dict of str to OSError
        The paths that failed, and why. All others are durable.
    """
    unique = list(dict.fromkeys(paths))
    if len(unique) <= _FEW:
        return _sync_each(unique)
    failures: dict[str, OSError] = {}
    by_device: dict[int, list[str]] = defaultdict(list)
    for path in unique:
        try:
            by_device[os.stat(path).st_dev].append(path)
        except OSError as error:
            failures[path] = error
    for members in by_device.values():
        if len(members) <= _FEW or not _sync_file_system(members[0]):
            failures |= _sync_each(members)
    return failures


def _sync_each(paths: Sequence[str]) -> dict[str, OSError]:
    failures = {}
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            failures[path] = error
    return failures


def _sync_file_system(path: str) -> bool:
    """Sync the whole file system of `path`; False when it must be done file by file."""
    calls = _libc()
    if calls is None:
        return False
    syncfs, fstatfs = calls
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        status = (ctypes.c_long * (_STATFS_BYTES // ctypes.sizeof(ctypes.c_long)))()
        # f_type is the first word of struct statfs on every 64-bit Linux.
        if fstatfs(descriptor, status) != 0 or status[0] not in _SYNCFS_TYPES:
            return False
        # A failure here says nothing about which file: the fsyncs that follow do.
        return bool(syncfs(descriptor) == 0)
    finally:
        os.close(descriptor)


@cache
def _libc() -> tuple[Callable[..., int], Callable[..., int]] | None:
    """Return the C library's syncfs and fstatfs, None where they cannot be relied on."""
    system = os.uname()
    try:
        release = tuple(int(part) for part in system.release.split(".", 2)[:2])
        libc = ctypes.CDLL(None, use_errno=True)
        calls = libc.syncfs, libc.fstatfs
    except (ValueError, OSError, AttributeError):
        return None
    if (
        system.sysname != "Linux"
        or ctypes.sizeof(ctypes.c_long) != 8
        or release < _SYNCFS_REPORTS_SINCE
    ):
        return None
    return calls
