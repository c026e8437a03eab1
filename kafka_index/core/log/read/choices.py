"""Choices of a lookup; loaded without numpy and pyarrow, for the help of commands."""

from __future__ import annotations

from enum import StrEnum


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
