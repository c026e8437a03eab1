"""Keeping what a random test found: the segment, shrunk, becomes a golden one."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support.golden_segments import GoldenSegment, write_found

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.golden_segments import Recovered
    from tests.support.segments import Segment

#: By test.
_last: dict[str, Path] = {}


@contextmanager
def kept_on_failure(test: str, segment: Segment, kafka: Recovered) -> Iterator[None]:
    """Write the segment down when what a test does with it here fails.

    While hypothesis shrinks, each failure takes the place of the one before; the last that it runs
    is the smallest.
    """
    try:
        yield
    except Exception as error:
        path = write_found(GoldenSegment(segment.note or "drawn", segment, kafka))
        former = _last.get(test)
        if former is not None and former != path:
            former.unlink(missing_ok=True)
        _last[test] = path
        error.add_note(f"kept as {path}, where make test finds it; make golden takes it in")
        raise
