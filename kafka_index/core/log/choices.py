"""Enumerations of builds, lookups and reads; importing this module is cheap, for command help."""

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
    #: The high watermark, or the first offset of the earliest open transaction if that is lower.
    LAST_STABLE_OFFSET = "last-stable-offset"


class Status(IntEnum):
    """The outcome of a query."""

    #: A result exists at the requested level.
    FOUND = 0
    #: The offset is below the log start offset.
    BEFORE_LOG_START = 1
    #: The offset is the log end offset, or at or above the upper bound; not an error.
    LOG_END = 2
    #: The offset is above the log end; a broker returns OFFSET_OUT_OF_RANGE.
    AFTER_LOG_END = 3
    #: No record has a timestamp at or after the target, or no batch follows the offset.
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


class By(StrEnum):
    """The kind of key in queries."""

    OFFSET = "offset"
    TIMESTAMP = "timestamp"

    @property
    def column(self) -> str:
        """The query column with the key."""
        return self.value

    @property
    def default_resolve(self) -> Resolve:
        """The default level of a lookup."""
        return Resolve.BATCH if self is By.OFFSET else Resolve.RECORD


class Isolation(StrEnum):
    """Which transactional records are read (``isolation.level``)."""

    #: All records.
    READ_UNCOMMITTED = "read_uncommitted"
    #: Records of committed transactions, up to the last stable offset.
    READ_COMMITTED = "read_committed"


class OnDamage(StrEnum):
    """What to do at a batch that cannot be read."""

    #: End the read with an error.
    FAILFAST = "failfast"
    #: Return a row with position and reason in the column ``_corrupt_record``.
    PERMISSIVE = "permissive"
    #: Skip the batch and log a warning.
    DROP = "drop"


class Decode(StrEnum):
    """The parts of records that are decoded with their schemas."""

    KEY = "key"
    VALUE = "value"
    BOTH = "both"

    @property
    def parts(self) -> tuple[str, ...]:
        """The columns."""
        return ("key", "value") if self is Decode.BOTH else (self.value,)


class DecodeErrors(StrEnum):
    """What is done with keys and values that cannot be decoded."""

    #: The row has its bytes, and the code of the error.
    KEEP = "keep"
    #: The first one ends the read with an error.
    FAIL = "fail"


class BytesForm(StrEnum):
    """How keys and values of records are printed."""

    #: Quoted text if the bytes are UTF-8, otherwise hex digits.
    TEXT = "text"
    HEX = "hex"
    #: Not printed.
    NONE = "none"
