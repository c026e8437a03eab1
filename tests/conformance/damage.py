"""Damage to the bytes of a drawn segment, at any place: what disks, crashes and bad copies do."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from .segments import INT32_MAX

if TYPE_CHECKING:
    from .segments import Segment

_DAMAGES = st.sampled_from(
    ("cut", "flip", "zero", "insert", "duplicate", "magic", "length", "drop")
)
_MAGIC_AT = 16


def damage(draw: st.DrawFn, drawn: Segment, entries: list[bytes]) -> Segment:
    """The segment with one thing wrong with its bytes."""
    log = bytearray(drawn.log)
    how = draw(_DAMAGES)
    at = draw(st.integers(0, max(len(log) - 1, 0)))
    # Where an entry starts in the sound file; good enough when the file is damaged twice.
    number = draw(st.integers(0, max(len(entries) - 1, 0)))
    start = sum(len(entry) for entry in entries[:number])
    match how:
        case "cut":
            del log[at:]
        case "flip" if log:
            log[at] ^= 1 << draw(st.integers(0, 7))
        case "zero":
            size = draw(st.integers(1, 200))
            log[at : at + size] = bytes(len(log[at : at + size]))
        case "insert":
            log[at:at] = draw(st.binary(min_size=1, max_size=30) | st.integers(1, 100).map(bytes))
        case "duplicate" if entries:
            log[start:start] = entries[number]
        case "magic" if start + _MAGIC_AT < len(log):
            log[start + _MAGIC_AT] = draw(st.integers(0, 255))
        case "length" if start + 12 <= len(log):
            log[start + 8 : start + 12] = struct.pack(
                ">i",
                draw(
                    st.sampled_from((-1, 0, 13, 14, 21, 22, 48, 49, INT32_MAX))
                    | st.integers(0, 500)
                ),
            )
        case "drop" if entries:
            del log[start : start + len(entries[number])]
        case _:
            log += bytes(draw(st.integers(1, 40)))
    return replace(
        drawn, log=bytes(log), note=f"{drawn.note} {how} at {at} or entry {number}".strip()
    )
