"""Hypothesis strategies that draw whole segments.

A segment is generated as one byte string: a specification of the segment, of each entry and of
each damage. `segment_of` makes the segment from it. An entry with a specification of zeros is
left out, so that shrinking can remove any entry.

Most of a segment is sound. A wild one has odd entries of a few kinds in it, and no others, so that
each kind has segments of its own: what is odd in one way is often refused before what is odd in
another is reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from tests.support.damage import damage
from tests.support.odd_entries import ODDITIES
from tests.support.random_entries import CLOCKS, SPEC_BYTES, Choices, State, draw_entry
from tests.support.segments import INT32_MAX, Segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.random_entries import Entry

DEFAULT_INDEX_BYTES = 10 * 1024 * 1024
MAX_ENTRIES = 30
MAX_DAMAGES = 4
MAX_ODDITIES = 3

BASE_OFFSETS = (0, 0, 0, 1, 1000, 2**31 - 5, 2**40, 2**62)
_INTERVALS = (0, 0, 1, 90, 200, 500, 1000, 4096, INT32_MAX)

#: Size of what a segment is generated as.
DRAWN_BYTES = SPEC_BYTES * (1 + MAX_DAMAGES + MAX_ENTRIES)


def segments(*, damaged: bool | None = None) -> st.SearchStrategy[Segment]:
    """A segment and the settings to recover it with; damaged, sound, or (None) one of both."""
    return st.binary(min_size=DRAWN_BYTES, max_size=DRAWN_BYTES).map(
        lambda generated: segment_of(generated, damaged=damaged)
    )


def segment_of(generated: bytes, *, damaged: bool | None = None) -> Segment:
    """The segment that these bytes describe.

    `drawn`: specifications: of the segment's own settings, of damages, of entries. `damaged`: as
    for `segments`.
    """
    spec, *others = (
        generated[start : start + SPEC_BYTES] for start in range(0, DRAWN_BYTES, SPEC_BYTES)
    )
    choices = Choices(spec)
    base_offset = choices.pick(BASE_OFFSETS)
    interval = choices.pick(_INTERVALS)
    clock = choices.pick(CLOCKS)
    index_bytes = choices.between(12, 130) if choices.once_in(8) else DEFAULT_INDEX_BYTES
    state = State(base_offset, clock, draw_odd_entries(choices, ODDITIES, once_in=2))
    if damaged is None:
        damaged = choices.below(2) == 1
    damages = others[: choices.between(1, MAX_DAMAGES) if damaged else 0]
    left_out = choices.pick((0, 0, 10, 20, 25))
    entries = others[MAX_DAMAGES + left_out :]
    pieces = [draw_entry(Choices(entry), state) for entry in entries if any(entry)]
    note = ", ".join([damage(Choices(one), pieces) for one in damages])
    return Segment(b"".join(pieces), base_offset, interval, index_bytes, note)


def draw_odd_entries(
    choices: Choices, oddities: Sequence[Entry], *, once_in: int
) -> tuple[Entry, ...]:
    """None, or the few kinds of odd entries that may be in a wild segment or partition."""
    if not choices.once_in(once_in):
        return ()
    return tuple(choices.pick(oddities) for _ in range(choices.between(1, MAX_ODDITIES)))
