"""From an operating system's error to one that says what to do next."""

from __future__ import annotations

import errno
import os

from kafka_index.errors import PublishError

_KNOWN: dict[int, tuple[str, str]] = {
    errno.ENOSPC: (
        "no space left on the target's file system",
        "free space there or choose another target, then run again",
    ),
    errno.EDQUOT: (
        "the disk quota of the target is used up",
        "raise it or choose another target, then run again",
    ),
    errno.EFBIG: (
        "the file would be larger than this process may write",
        "raise the limit (ulimit -f) and run again",
    ),
    errno.EROFS: (
        "the target's file system is read-only",
        "mount it for writing or choose another --output",
    ),
    errno.EACCES: (
        "no permission to write here",
        "run as the owner of the target or choose another --output",
    ),
    errno.EPERM: (
        "writing here is not permitted",
        "run as the owner of the target (is it immutable?) or choose another --output",
    ),
    errno.ENOTDIR: (
        "a file stands where a directory is needed",
        "move it away or choose another --output",
    ),
    errno.EISDIR: (
        "a directory stands where a file is to be written",
        "move it away or choose another --output",
    ),
}
_KNOWN[errno.EEXIST] = _KNOWN[errno.ENOTDIR]


def publish_error(error: OSError, path: str, action: str) -> PublishError:
    """Return the PublishError for a failed write.

    Parameters
    ----------
    error : OSError
        What the operating system said.
    path : str
        The file or folder that could not be written.
    action : str
        What was tried, to follow "cannot": ``"create the file"``.
    """
    code = error.errno or 0
    reason, hint = _KNOWN.get(code, (error.strerror or os.strerror(code), "check the target"))
    return PublishError(f"cannot {action}: {reason}", path=path, hint=hint)
