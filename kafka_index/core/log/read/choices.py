"""Choices of a lookup, and statuses of queries: light, for the help of commands."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class Resolve(StrEnum):
    """The level of detail of a lookup."""

    #: To the floor entry, by the index files alone.
    INDEX = "index"
    #: To the batch.
    BATCH = "batch"
    #: To the record.
    RECORD = "record"


class UpperBound(StrEnum):
    """The end of a log for a lookup."""

    LOG_END = "log-end"
    HIGH_WATERMARK = "high-watermark"
    #: The high watermark, or where the first open transaction below it begins.
    LAST_STABLE_OFFSET = "last-stable-offset"


class Status(IntEnum):
    """The outcome of a query."""

    #: There is an answer at the requested level.
    FOUND = 0
    #: The offset is below the first that the partition still has.
    BEFORE_LOG_START = 1
    #: The offset is the next one to be written (or not yet visible below the upper bound): an
    #: empty read, no error.
    LOG_END = 2
    #: The offset is above the end of the log: a broker calls it out of range.
    AFTER_LOG_END = 3
    #: No record is that late, or (compacted away) none is left at or after the offset.
    NO_RECORD_AT_OR_AFTER = 4
    #: The dump holds no segments of that partition.
    UNKNOWN_PARTITION = 5
    #: A null or negative offset, a null or unsupported timestamp, a null topic or partition.
    INVALID_QUERY = 6
    #: Damage, or a failing disk, hides the answer.
    UNREADABLE = 7

    @property
    def text(self) -> str:
        """The status as users see it."""
        return self.name.lower()
