"""Choices of a read of records; loaded without numpy and pyarrow, for the help of commands."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from kafka_index.core.job.request import ChoiceKind, Group, parameter


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
