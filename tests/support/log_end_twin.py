"""The end of a log, and its batches in order, once more: in plain Python."""

from __future__ import annotations

import zlib
from typing import NamedTuple

import google_crc32c

_HEADER_BYTES = 61
_MAX_BYTES = 2**31 - 1
_MIN_LENGTH = 14


class Offsets(NamedTuple):
    """The offsets that a batch may have, the end exclusive."""

    first: int
    end: int


class Order:
    """The batches that come one after the other, given one by one."""

    def __init__(self, first_offset: int, end_offset: int | None) -> None:
        self.next_offset = first_offset
        self._end_offset = end_offset
        self._is_broken = False

    def is_kept(self, base_offset: int, last_offset: int) -> bool:
        """Whether a batch begins after all before it, and ends before the next segment."""
        is_before = self._end_offset is None or last_offset < self._end_offset
        is_kept = self.next_offset <= base_offset <= last_offset and is_before
        if is_kept:
            self.next_offset = last_offset + 1
            self._is_broken = False
        return is_kept

    def begins_break(self) -> bool:
        """Whether the batch that was not kept is the first of a run of such."""
        is_first, self._is_broken = not self._is_broken, True
        return is_first


def is_tail(log: bytes, position: int, offsets: Offsets) -> bool:
    """Whether a log ends in zeros, or in a batch that was not written to its end."""
    rest = log[position:]
    length = _int(rest, 8, 4)
    if (len(rest) <= 17 or (length is not None and length < _MIN_LENGTH)) and not any(rest):
        return True
    if len(rest) > 17 and not (length is not None and len(rest) < 12 + length):
        return False
    if not _may_begin(rest, position, offsets):
        return False
    if any(_is_sound(rest[:size]) for size in _other_sizes(rest)):
        return False
    return not any(
        _is_plausible(log[at : at + _HEADER_BYTES], offsets)
        and at + 12 + (_int(log, at + 8, 4) or 0) <= len(log)
        and _is_sound(log[at : at + 12 + (_int(log, at + 8, 4) or 0)])
        for at in range(position + 1, len(log))
    )


def _int(data: bytes, at: int, size: int) -> int | None:
    field = data[at : at + size]
    return int.from_bytes(field, "big", signed=True) if len(field) == size else None


def _may_begin(rest: bytes, position: int, offsets: Offsets) -> bool:
    """Whether these may be the first bytes of a batch, as far as its header is there."""
    # All that is missing may be anything: the smallest and the largest offset that it leaves.
    low = int.from_bytes(rest[:8].ljust(8, b"\0"), "big")
    high = int.from_bytes(rest[:8].ljust(8, b"\xff"), "big")
    if high < max(offsets.first, 0) or low >= max(offsets.end, 1):
        return False
    length = _int(rest, 8, 4)
    if length is None:
        return True
    if length < _MIN_LENGTH or position + 12 + length > _MAX_BYTES:
        return False
    if len(rest) < 17:
        return True
    if rest[16] < 2:
        return len(rest) < 18 or rest[17] < 16
    attributes, delta, count = (
        _int(rest, 21, 2) or 0,
        _int(rest, 23, 4) or 0,
        _int(rest, 57, 4) or 0,
    )
    return (
        rest[16] == 2
        and length >= _HEADER_BYTES - 12
        and 0 <= attributes < 128
        and attributes & 7 < 5
        and delta >= 0
        and low + delta < offsets.end
        and 0 <= count <= delta + 1
    )


def _other_sizes(rest: bytes) -> set[int]:
    """The sizes that a batch has under a length of which one bit is another."""
    if len(rest) < 26:
        return set()
    length = int.from_bytes(rest[8:12], "big")
    sizes = {len(rest), *(12 + (length ^ 1 << bit) for bit in range(32))}
    least = 26 if rest[16] < 2 else _HEADER_BYTES
    return {size for size in sizes if least <= size <= len(rest)}


def _is_plausible(start: bytes, offsets: Offsets) -> bool:
    base, length = _int(start, 0, 8), _int(start, 8, 4)
    if base is None or length is None or len(start) < 26 or not base >= offsets.first:
        return False
    if start[16] < 2:
        return length >= _MIN_LENGTH and base < offsets.end and start[17] < 16
    delta, count = _int(start, 23, 4), _int(start, 57, 4)
    return (
        start[16] == 2
        and length >= _HEADER_BYTES - 12
        and delta is not None
        and count is not None
        and delta >= 0
        and base + delta < offsets.end
        and 0 <= count <= delta + 1
    )


def _is_message(entry: bytes) -> bool:
    """Whether the magic of a batch, a signed byte, is below 2."""
    return entry[16] < 2 or entry[16] > 127


def _is_sound(entry: bytes) -> bool:
    """Whether all of a batch is there, and its checksum right."""
    length = _int(entry, 8, 4)
    if length is None or len(entry) < 26:
        return False
    if _is_message(entry):
        return int.from_bytes(entry[12:16], "big") == zlib.crc32(entry[16:])
    return len(entry) >= _HEADER_BYTES and (
        int.from_bytes(entry[17:21], "big") == google_crc32c.value(entry[21:])
    )


class Expected(NamedTuple):
    """The records that readers deliver of a log of magic 2.

    `offsets`: of the records, each taken to be one of consecutive ones of its batch. `damage`:
    positions of damage. `end_bytes`: where the batches end. `first_damaged_offset`: the first
    offset after the first damage; None without.
    """

    offsets: list[int]
    damage: list[int]
    end_bytes: int
    first_damaged_offset: int | None


def expected_read(log: bytes, base_offset: int) -> Expected:
    """The records that readers deliver of a log of one segment, and the damage they report."""
    order = Order(base_offset, None)
    offsets: list[int] = []
    damage: list[int] = []
    following, position, first_damaged = base_offset, 0, None
    while len(log) - position > 17:
        length = int.from_bytes(log[position + 8 : position + 12], "big", signed=True)
        entry = log[position : position + 12 + max(length, 0)]
        if length < _MIN_LENGTH or len(entry) < 12 + length:
            break
        if not _is_message(entry) and len(entry) < _HEADER_BYTES:
            damage.append(position)
            return Expected(offsets, damage, len(log), first_damaged)
        if _is_sound(entry):
            base, last = _offsets_of(entry)
            if not 0 <= last - base_offset < 2**31:
                damage.append(position)
                return Expected(offsets, damage, len(log), first_damaged)
            following = last + 1
            if order.is_kept(base, last):
                own = range(base, last + 1)
                first_damaged = base if damage and first_damaged is None else first_damaged
                offsets += own
            elif order.begins_break():
                damage.append(position)
        else:
            damage.append(position)
        position += len(entry)
    is_whole = position == len(log)
    if not is_whole and not is_tail(log, position, Offsets(following, base_offset + 2**31)):
        damage.append(position)
    return Expected(offsets, damage, position, first_damaged)


def _offsets_of(entry: bytes) -> tuple[int, int]:
    base = int.from_bytes(entry[:8], "big", signed=True)
    if _is_message(entry):
        return base, base
    return base, base + int.from_bytes(entry[23:27], "big", signed=True)
