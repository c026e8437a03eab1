"""Choices of queries and of reads of records: light, for the help of commands."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from kafka_index.core.job.request import ChoiceKind, Group, parameter
from kafka_index.core.log.read.choices import Resolve


class By(StrEnum):
    """The kind of key of the queries."""

    OFFSET = "offset"
    TIMESTAMP = "timestamp"

    @property
    def column(self) -> str:
        """The column of a query that holds it."""
        return self.value

    @property
    def default_resolve(self) -> Resolve:
        """The level of a lookup that names no other."""
        return Resolve.BATCH if self is By.OFFSET else Resolve.RECORD


class Isolation(StrEnum):
    """The records of transactions that are read (``isolation.level``)."""

    #: All of them.
    READ_UNCOMMITTED = "read_uncommitted"
    #: Those of committed transactions, up to the last stable offset.
    READ_COMMITTED = "read_committed"


class OnDamage(StrEnum):
    """The action at a batch that cannot be read."""

    #: The read ends with an error.
    FAILFAST = "failfast"
    #: The damage is a row: its place and reason in the column ``_corrupt_record``.
    PERMISSIVE = "permissive"
    #: The batch is left out, and a warning is logged.
    DROP = "drop"


class BytesForm(StrEnum):
    """How keys and values of records are printed."""

    #: Quoted text if the bytes are UTF-8, otherwise hex digits.
    TEXT = "text"
    HEX = "hex"
    #: Not at all.
    NONE = "none"


def isolation_parameter() -> Any:
    """Return the parameter of transactions."""
    return parameter(
        ChoiceKind(Isolation),
        Group.SELECTION,
        "read_committed drops the records of aborted and open transactions.",
        default=Isolation.READ_UNCOMMITTED,
    )
