"""Enumerations of queries and reads; importing this module is cheap, for command help."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from kafka_index.core.job.request import ChoiceKind, Group, parameter
from kafka_index.core.log.choices import Resolve


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


def isolation_parameter() -> Any:
    return parameter(
        ChoiceKind(Isolation),
        Group.SELECTION,
        "read_committed drops the records of aborted and open transactions.",
        default=Isolation.READ_UNCOMMITTED,
    )
