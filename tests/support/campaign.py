"""The share that tests draw: everything in ``make campaign``, elsewhere a part."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence
from typing import TypeVar

_Case = TypeVar("_Case")
_Other = TypeVar("_Other")

_IN_FULL = os.environ.get("KAFKA_INDEX_CAMPAIGN") == "1"


def sample_size(full: int, *, one_in: int = 10) -> int:
    """Return how many cases this run draws, of so many in full."""
    return full if _IN_FULL else max(full // one_in, 1)


def sample_evenly(count: int, few: int, name: str) -> list[int]:
    """Return the numbers from 1 to `count` in the campaign, else so few of them, evenly spread.

    Where they begin depends on a name.
    """
    if _IN_FULL or count <= few:
        return list(range(1, count + 1))
    phase = zlib.crc32(name.encode()) / 2**32
    return [1 + int(count * (number + phase) / few) for number in range(few)]


def combine_cases(
    cases: Iterable[_Case], others: Sequence[_Other], *, at_once: int = 1
) -> list[tuple[_Case, _Other]]:
    """Return each case with each of the others in the campaign, else with so many in turn."""
    taken = sample_size(len(others), one_in=len(others)) * at_once
    return [
        (case, others[(number * at_once + more) % len(others)])
        for number, case in enumerate(cases)
        for more in range(min(taken, len(others)))
    ]
