"""What a build writes: the files of a partition, each under a short name."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Output(StrEnum):
    """A kind of file that a build writes."""

    INDEX = "index"
    TIME_INDEX = "timeindex"
    TXN_INDEX = "txnindex"
    SNAPSHOT = "snapshot"
    EPOCHS = "epochs"


ALL_OUTPUTS = frozenset(Output)
#: What a segment has of its own, whatever came before it.
INDEX_OUTPUTS = frozenset((Output.INDEX, Output.TIME_INDEX))


def needs_state(outputs: Iterable[Output]) -> bool:
    """Return whether any of these runs on from segment to segment."""
    return not INDEX_OUTPUTS.issuperset(outputs)
