"""Enumerations for builds, lookups and reads. Importing it is cheap, for fast help."""

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
#: Index files, which do not depend on earlier segments.
INDEX_OUTPUTS = frozenset((BuildOutput.INDEX, BuildOutput.TIME_INDEX))


class Resolve(StrEnum):
    """What a lookup returns: an index entry, a batch or a record."""

    #: The index entry at which the search for the batch starts.
    INDEX = "index"
    #: The first batch whose last offset or largest timestamp is at or after the query.
    BATCH = "batch"
    #: The first record whose offset or timestamp is at or after the query.
    RECORD = "record"


class UpperBound(StrEnum):
    """The exclusive upper bound of the offsets that a lookup returns."""

    LOG_END = "log-end"
    HIGH_WATERMARK = "high-watermark"
    #: The high watermark, or the first offset of the earliest open transaction if that is lower.
    LAST_STABLE_OFFSET = "last-stable-offset"


class Status(IntEnum):
    """The outcome of a lookup query."""

    #: The lookup found the requested index entry, batch or record, or the requested bound of the
    #: log.
    FOUND = 0
    #: The offset is below the log start offset.
    BEFORE_LOG_START = 1
    #: The offset is at or above the upper bound of results, and at most the log end offset.
    LOG_END = 2
    #: The offset is above the log end offset; a broker returns OFFSET_OUT_OF_RANGE.
    AFTER_LOG_END = 3
    #: No record has this or a later timestamp, or no batch has this or a later offset.
    NO_RECORD_AT_OR_AFTER = 4
    #: The dump has no segments of the partition.
    UNKNOWN_PARTITION = 5
    #: The query has a null or negative offset, an unsupported or null timestamp, or a null topic or
    #: partition.
    INVALID_QUERY = 6
    #: Corruption or a read error prevents a certain result.
    UNREADABLE = 7

    @property
    def text(self) -> str:
        return self.name.lower()


class By(StrEnum):
    """What a lookup searches for: offsets or timestamps."""

    OFFSET = "offset"
    TIMESTAMP = "timestamp"

    @property
    def column(self) -> str:
        """The column of a query file with the offsets or timestamps."""
        return self.value

    @property
    def default_resolve(self) -> Resolve:
        """The default level of detail of a lookup."""
        return Resolve.BATCH if self is By.OFFSET else Resolve.RECORD


class Isolation(StrEnum):
    """Which records of transactions are read (``isolation.level``)."""

    #: All records, also of aborted and open transactions.
    READ_UNCOMMITTED = "read_uncommitted"
    #: Records up to the last stable offset, except records of aborted transactions.
    READ_COMMITTED = "read_committed"


class OnDamage(StrEnum):
    """What to do at a batch that cannot be read."""

    #: End the read with an error.
    FAILFAST = "failfast"
    #: Return a row for the batch, with its position and the reason in the column
    #: ``_corrupt_record``.
    PERMISSIVE = "permissive"
    #: Skip the batch and log a warning.
    DROP = "drop"


class Decode(StrEnum):
    """Whether keys, values or both are decoded with their schemas."""

    KEY = "key"
    VALUE = "value"
    BOTH = "both"

    @property
    def parts(self) -> tuple[str, ...]:
        """The decoded columns: ``key``, ``value`` or both."""
        return ("key", "value") if self is Decode.BOTH else (self.value,)


class DecodeErrors(StrEnum):
    """How to handle keys and values that cannot be decoded."""

    #: Return the undecoded bytes and the code of the error.
    KEEP = "keep"
    #: End the read with an error.
    FAIL = "fail"


class BytesForm(StrEnum):
    """How keys and values of records are printed."""

    #: Quoted text if the bytes are UTF-8, otherwise hex digits.
    TEXT = "text"
    HEX = "hex"
    #: Keys and values are not printed.
    NONE = "none"
