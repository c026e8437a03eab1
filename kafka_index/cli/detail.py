"""How much a command says."""

from __future__ import annotations

from enum import Enum


class Detail(Enum):
    """How much to say."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"
