"""The kinds of files that a build writes."""

from __future__ import annotations

from enum import StrEnum


class BuildOutput(StrEnum):
    INDEX = "index"
    TIME_INDEX = "timeindex"
    TXN_INDEX = "txnindex"
    SNAPSHOT = "snapshot"
    EPOCHS = "epochs"


ALL_OUTPUTS = frozenset(BuildOutput)
#: Files of a segment that do not depend on earlier segments.
INDEX_OUTPUTS = frozenset((BuildOutput.INDEX, BuildOutput.TIME_INDEX))
