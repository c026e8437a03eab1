"""How much tests draw: everything in ``make campaign``, elsewhere a part."""

from __future__ import annotations

import os

_IN_FULL = os.environ.get("KAFKA_INDEX_CAMPAIGN") == "1"


def drawn(full: int, *, one_in: int = 10) -> int:
    """Return how many cases this run draws, of so many in full."""
    return full if _IN_FULL else max(full // one_in, 1)
