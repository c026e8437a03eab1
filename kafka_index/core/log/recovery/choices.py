"""The kinds of files that a build writes."""

from __future__ import annotations

from enum import StrEnum


class Output(StrEnum):
    INDEX = "index"
    TIME_INDEX = "timeindex"
    TXN_INDEX = "txnindex"
    SNAPSHOT = "snapshot"
    EPOCHS = "epochs"


ALL_OUTPUTS = frozenset(Output)
#: Files of a segment that do not depend on earlier segments.
INDEX_OUTPUTS = frozenset((Output.INDEX, Output.TIME_INDEX))
