"""Damage to the bytes of a random segment, at any place: what disks, crashes and bad copies do.

A segment is damaged as the list of its entries, which is changed in place. Further damage finds
the entries that the first has left.
"""

from __future__ import annotations

import struct
import zlib
from itertools import pairwise
from typing import TYPE_CHECKING

import google_crc32c

from tests.support.segments import BATCH_HEADER_SIZE, INT32_MAX, LOG_OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.random_entries import Choices

    Damage = Callable[[Choices, list[bytes], int], None]

_LENGTHS = (-1, 0, 13, 14, 21, 22, 48, 49, INT32_MAX)
_MAGIC_AT = 16
#: Place and size of the fields of a record batch that its checksum covers.
_COVERED_FIELDS = ((21, 2), (23, 4), (27, 8), (35, 8), (43, 8), (51, 2), (53, 4), (57, 4), (61, 1))


def damage(choices: Choices, pieces: list[bytes], *, forging: bool = True) -> str:
    """Damage the entries in one way, by forgery only where allowed; return what was done."""
    how = choices.pick((*_DAMAGES, *_FORGERIES) if forging else _DAMAGES)
    if not pieces:
        how = insert
    number = choices.below(max(len(pieces), 1))
    how(choices, pieces, number)
    return f"{how.__name__} at entry {number}"


def cut(choices: Choices, pieces: list[bytes], number: int) -> None:
    """The file ends here."""
    pieces[number:] = [pieces[number][: _place(choices, pieces[number])]]


def flip(choices: Choices, pieces: list[bytes], number: int) -> None:
    """One bit is another."""
    piece = bytearray(pieces[number])
    if piece:
        piece[_place(choices, piece)] ^= 1 << choices.below(8)
    pieces[number] = bytes(piece)


def zero(choices: Choices, pieces: list[bytes], number: int) -> None:
    """Some bytes are zero, those of the next entries among them."""
    left = choices.between(1, 200)
    at = _place(choices, pieces[number])
    while left and number < len(pieces):
        piece = bytearray(pieces[number])
        size = len(piece[at : at + left])
        piece[at : at + size] = bytes(size)
        pieces[number] = bytes(piece)
        left, at, number = left - size, 0, number + 1


def insert(choices: Choices, pieces: list[bytes], number: int) -> None:
    """Bytes that do not belong there."""
    junk = choices.pick((choices.some_bytes(12), bytes(choices.between(1, 100)))) or b"\1"
    if number >= len(pieces):
        pieces.append(junk)
    else:
        at = _place(choices, pieces[number])
        pieces[number] = pieces[number][:at] + junk + pieces[number][at:]


def append(choices: Choices, pieces: list[bytes], number: int) -> None:
    """Zeros, or the beginning of an entry, after the last."""
    beginning = pieces[number][: _place(choices, pieces[number])]
    pieces.append(choices.pick((bytes(choices.between(1, 100)), beginning)))


def swap_ranges(choices: Choices, pieces: list[bytes], number: int) -> None:
    """Two ranges of bytes, of one size, have changed places."""
    other = choices.below(len(pieces))
    at, other_at = _place(choices, pieces[number]), _place(choices, pieces[other])
    size = choices.between(1, 60)
    log = bytearray().join(pieces)
    starts = [0]
    for piece in pieces:
        starts.append(starts[-1] + len(piece))
    low, high = sorted((starts[number] + at, starts[other] + other_at))
    size = min(size, high - low, len(log) - high)
    log[low : low + size], log[high : high + size] = log[high : high + size], log[low : low + size]
    pieces[:] = [bytes(log[a:b]) for a, b in pairwise(starts)]


def swap_entries(choices: Choices, pieces: list[bytes], number: int) -> None:
    """Two entries have changed places."""
    other = choices.below(len(pieces))
    pieces[number], pieces[other] = pieces[other], pieces[number]


def repeat_bytes(choices: Choices, pieces: list[bytes], number: int) -> None:
    """Some bytes are there twice."""
    piece = pieces[number]
    at = _place(choices, piece)
    end = at + choices.between(1, 80)
    pieces[number] = piece[:end] + piece[at:]


def repeat_entry(choices: Choices, pieces: list[bytes], number: int) -> None:
    """An entry is there twice, at once or later."""
    at = choices.pick((number, choices.between(0, len(pieces))))
    pieces.insert(at, pieces[number])


def drop_bytes(choices: Choices, pieces: list[bytes], number: int) -> None:
    """Some bytes are gone."""
    at = _place(choices, pieces[number])
    pieces[number] = pieces[number][:at] + pieces[number][at + choices.between(1, 80) :]


def drop_entry(_: Choices, pieces: list[bytes], number: int) -> None:
    """An entry is gone."""
    del pieces[number]


def set_magic(choices: Choices, pieces: list[bytes], number: int) -> None:
    """The magic is another."""
    _overwrite(pieces, number, _MAGIC_AT, bytes([choices.pick((choices.below(256), 0, 1, 2))]))


def set_length(choices: Choices, pieces: list[bytes], number: int) -> None:
    """The length field is another."""
    own = len(pieces[number]) - LOG_OVERHEAD
    near = own + choices.between(-3, 3)
    length = choices.pick((near, choices.below(500), choices.pick(_LENGTHS)))
    _overwrite(pieces, number, 8, struct.pack(">i", length))


def set_offset_or_epoch(choices: Choices, pieces: list[bytes], number: int) -> None:
    """A byte of what no checksum covers is another."""
    at = choices.pick((7, 6, 3, 0, 12, 15))
    _overwrite(pieces, number, at, bytes([choices.below(256)]))


def forge(choices: Choices, pieces: list[bytes], number: int) -> None:
    """A field is another, and the checksum fits it: what wrong software does, not disks."""
    at, size = choices.pick(_COVERED_FIELDS)
    small = choices.below(256).to_bytes(size, "big")
    value = choices.pick((small, b"\xff" * size, b"\x7f" + b"\xff" * (size - 1)))
    if choices.below(2) and len(pieces[number]) > BATCH_HEADER_SIZE:
        at = choices.between(BATCH_HEADER_SIZE, len(pieces[number]) - 1)
        value = bytes([choices.below(256)])
    _overwrite(pieces, number, at, value)
    pieces[number] = with_checksum(pieces[number])


def with_checksum(entry: bytes) -> bytes:
    """The entry with the checksum that its bytes have; as it is when too short for one."""
    if len(entry) < BATCH_HEADER_SIZE:
        return entry
    if entry[_MAGIC_AT] in (0, 1) or entry[_MAGIC_AT] > 127:
        return entry[:12] + struct.pack(">I", zlib.crc32(entry[16:])) + entry[16:]
    return entry[:17] + struct.pack(">I", google_crc32c.value(entry[21:])) + entry[21:]


_DAMAGES: tuple[Damage, ...] = (
    flip,
    cut,
    zero,
    insert,
    append,
    swap_ranges,
    swap_entries,
    repeat_bytes,
    repeat_entry,
    drop_bytes,
    drop_entry,
    set_magic,
    set_length,
)
#: What no checksum notices.
_FORGERIES: tuple[Damage, ...] = (set_offset_or_epoch, *[forge] * 4)


def _place(choices: Choices, piece: bytes | bytearray) -> int:
    """A place in an entry, in every second case in its header."""
    size = len(piece) if choices.below(2) else min(len(piece), BATCH_HEADER_SIZE)
    return choices.below(max(size, 1))


def _overwrite(pieces: list[bytes], number: int, at: int, value: bytes) -> None:
    piece = pieces[number]
    if at + len(value) <= len(piece):
        pieces[number] = piece[:at] + value + piece[at + len(value) :]
