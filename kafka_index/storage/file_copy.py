"""Copies of local files that share blocks with their source where the file system can (FICLONE)."""

from __future__ import annotations

import errno
import fcntl
import shutil

# _IOW(0x94, 9, int) of linux/fs.h.
_FICLONE = 0x40049409
_NO_CLONES = frozenset(
    {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM}
)


def copy_file(source: str, target: str) -> None:
    """Copy a file with its times over another; neither sees later writes to the other.

    A link is followed. Raises `OSError` if the source cannot be read or the target not written.
    """
    if not clone_file(source, target):
        shutil.copyfile(source, target)
    shutil.copystat(source, target)


def clone_file(source: str, target: str) -> bool:
    """Make a file that shares blocks with another until one is written; return whether it can.

    A link is followed, and the target is replaced; it is empty if the file systems cannot clone the
    file. Raises `OSError` if the source cannot be read or the target not written.
    """
    with open(source, "rb") as old, open(target, "wb") as new:
        try:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
        except OSError as error:
            if error.errno in _NO_CLONES:
                return False
            raise
    return True
