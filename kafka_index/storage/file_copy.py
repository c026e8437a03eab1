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
    """Copy a file with its times; neither sees what is written to the other.

    Parameters
    ----------
    source : str
        A link is followed.
    target : str
        What is there is replaced.

    Raises
    ------
    OSError
        One cannot be read or the other not written.
    """
    if not clone_file(source, target):
        shutil.copyfile(source, target)
    shutil.copystat(source, target)


def clone_file(source: str, target: str) -> bool:
    """Make a file that shares the blocks of another until one of the two is written.

    Parameters
    ----------
    source : str
        A link is followed.
    target : str
        What is there is replaced. Empty where the file cannot be cloned.

    Returns
    -------
    bool
        Whether the file systems can.

    Raises
    ------
    OSError
        One cannot be read or the other not written.
    """
    with open(source, "rb") as old, open(target, "wb") as new:
        try:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
        except OSError as error:
            if error.errno in _NO_CLONES:
                return False
            raise
    return True
