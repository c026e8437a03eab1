"""How much the tests of long judged runs draw: all of it in ``make campaign``, else a tenth."""

from __future__ import annotations

import os

_IN_FULL = os.environ.get("KAFKA_INDEX_CAMPAIGN") == "1"


def drawn(full: int) -> int:
    """Return how many cases this run draws, of so many in full."""
    return full if _IN_FULL else max(full // 10, 1)
