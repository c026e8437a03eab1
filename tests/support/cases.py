"""The form of a named segment, and what the named segments of this folder are made of."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.segments import Segment, batch


@dataclass(frozen=True)
class Case:
    """One segment and its fate.

    `name`: what is special about it. `segment`: the bytes and settings. `expected`: bytes that
    recovery cuts off the end, or the class of the exception that it throws.
    """

    name: str
    segment: Segment
    expected: int | str


FIRST = batch(0)
NEXT = batch(3)


def rising(count: int, *, step_ms: int = 1, base_offset: int = 0) -> list[bytes]:
    """Batches of one record, each `step_ms` later than the one before."""
    return [batch(base_offset + i, 1, timestamps=[1000 + i * step_ms]) for i in range(count)]
