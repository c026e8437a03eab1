"""Enumerations of builds and lookups; importing this module is cheap, for command help."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class BuildOutput(StrEnum):
    """The kinds of files that a build writes."""

    INDEX = "index"
    TIME_INDEX = "timeindex"
    TXN_INDEX = "txnindex"
    SNAPSHOT = "snapshot"
    EPOCHS = "epochs"


ALL_OUTPUTS = frozenset(BuildOutput)
#: Files of a segment that do not depend on earlier segments.
INDEX_OUTPUTS = frozenset((BuildOutput.INDEX, BuildOutput.TIME_INDEX))


class Resolve(StrEnum):
    """The level of detail of a lookup."""

    #: The index entry, from index files only.
    INDEX = "index"
    #: The batch.
    BATCH = "batch"
    #: The record.
    RECORD = "record"


class UpperBound(StrEnum):
    """The upper bound of a lookup."""

    LOG_END = "log-end"
    HIGH_WATERMARK = "high-watermark"
    #: The high watermark, or the start of the first open transaction below it.
    LAST_STABLE_OFFSET = "last-stable-offset"


class Status(IntEnum):
    """The outcome of a query."""

    #: There is a result at the requested level.
    FOUND = 0
    #: The offset is below the log start offset.
    BEFORE_LOG_START = 1
    #: The offset is the next one to be written, or not below the upper bound; not an error.
    LOG_END = 2
    #: The offset is above the log end; a broker returns OFFSET_OUT_OF_RANGE.
    AFTER_LOG_END = 3
    #: No record has a timestamp at or after the target, or none is left at or after the offset.
    NO_RECORD_AT_OR_AFTER = 4
    #: The dump has no segments of the partition.
    UNKNOWN_PARTITION = 5
    #: A null or negative offset, an unsupported or null timestamp, or a null topic or partition.
    INVALID_QUERY = 6
    #: Corruption or a disk error affects the result.
    UNREADABLE = 7

    @property
    def text(self) -> str:
        return self.name.lower()
