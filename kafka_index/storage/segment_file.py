"""What a listing hands on: a live segment, and an entry that is not one."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """The log of one live segment, as it was when listed.

    Parameters
    ----------
    topic : str
        Topic name.
    partition : int
        Partition number.
    base_offset : int
        The segment's base offset, absolute.
    log_path : str
        Absolute path of the ``.log`` (or live ``.log.swap``).
    log_size_bytes : int
        Size of the log in bytes.
    log_mtime_ns : int
        Modification time of the log, nanoseconds since the epoch.
    is_last : bool
        Whether no later segment of the partition stands in the same directory: only such a log may
        have been preallocated.
    """

    topic: str
    partition: int
    base_offset: int
    log_path: str
    log_size_bytes: int
    log_mtime_ns: int
    is_last: bool = True

    @property
    def partition_directory(self) -> str:
        """The directory that holds the log."""
        return os.path.dirname(self.log_path)


@dataclass(frozen=True, slots=True)
class Skipped:
    """An entry that a broker would not load as a segment, and why."""

    path: str
    reason: str
