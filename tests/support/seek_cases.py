"""Logs to walk over, and walks as a segment makes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from kafka_index.core.kernels import batch_header, batch_seek
from tests.support import seek_model
from tests.support.seek_model import Damage, Header, OffsetEntry, TimeEntry
from tests.support.segments import batch, message

GZIP = 1
UNTOUCHED = -77
TIMES = st.integers(-3, 12)
INT64S = st.integers(-(2**63), 2**63 - 1)


@dataclass(frozen=True)
class Log:
    """A log with the first offsets of its compressed messages."""

    data: bytes
    #: First offsets of compressed old messages by position; None where they are damaged.
    first_offsets: Mapping[int, int | None] = field(default_factory=dict)

    @property
    def headers(self) -> list[Header]:
        return list(seek_model.headers_from(self.data, 0))

    @property
    def array(self) -> NDArray[np.uint8]:
        return np.frombuffer(self.data, np.uint8)


@st.composite
def logs(draw: st.DrawFn, *, backward: bool = False, damaged_inside: bool = False) -> Log:
    """Batches of every magic with gaps; `backward`, also some again and some below the last."""
    data = b""
    first_offsets: dict[int, int | None] = {}
    following = draw(st.sampled_from((0, 3)))
    for _ in range(draw(st.integers(0, 12))):
        offset = following + draw(st.sampled_from((0, 0, 0, 1, 4)))
        if backward and draw(st.integers(0, 3)) == 0:
            offset = max(0, offset - draw(st.integers(1, 8)))
        last = offset + draw(st.sampled_from((0, 1, 2, 5)))
        magic = draw(st.sampled_from((2, 2, 2, 1, 0)))
        entry = _entry(draw, magic, offset, last)
        if magic < 2:
            is_packed = entry[17] & 7
            last = last if is_packed else offset
            if is_packed:
                first = None if damaged_inside and draw(st.integers(0, 2)) == 0 else offset
                first_offsets[len(data)] = first
        data += entry
        following = max(following, last + 1)
    return Log(data, first_offsets)


def _entry(draw: st.DrawFn, magic: int, offset: int, last: int) -> bytes:
    time = draw(TIMES)
    value = bytes(draw(st.integers(0, 30)))
    if magic == 2:
        delta = last - offset
        return batch(
            offset, 0, last_offset_delta=delta, max_timestamp=time, payload=value, magic=magic
        )
    packed = draw(st.booleans())
    shown = last if packed else offset
    return message(shown, magic, time, value, attributes=GZIP if packed else 0)


def entries_of(
    data: st.DataObject, log: Log, *, interval: int | None = None
) -> tuple[list[OffsetEntry], list[TimeEntry]]:
    """Index entries for a log, without entries that a broker could not append."""
    chosen = data.draw(st.sampled_from((0, 0, 90, 300))) if interval is None else interval
    offsets, times = seek_model.index_of(log.headers, chosen)
    rising: list[OffsetEntry] = []
    for entry in offsets:
        if not rising or entry.offset > rising[-1].offset:
            rising.append(entry)
    return rising, times


def address_of(data: NDArray[np.uint8]) -> np.uint64:
    return np.uint64(data.ctypes.data)


def longs(values: Iterable[int]) -> NDArray[np.int64]:
    return np.array(list(values), np.int64)


@dataclass
class SeekResult:
    """The result of a walk, where it stopped, and the messages that had to be unpacked for it."""

    code: int
    query: int
    batches: list[int]
    unpacked: list[int]


def seek_offsets(log: Log, targets: Sequence[int], floors: Sequence[OffsetEntry]) -> SeekResult:
    """Walk as a segment does, and supply first offsets when they are asked for."""
    data = log.array
    batches = np.full(len(targets), UNTOUCHED, np.int64)
    state = batch_seek.new_state()
    unpacked: list[int] = []
    while True:
        code = batch_seek.seek_to_offsets(
            address_of(data),
            len(data),
            longs(targets),
            longs(entry.offset for entry in floors),
            longs(entry.position for entry in floors),
            state,
            batches,
        )
        if code != batch_seek.SEEK_NEEDS_FIRST_OFFSET:
            return SeekResult(code, int(state[batch_seek.STATE_QUERY]), batches.tolist(), unpacked)
        position = int(state[batch_seek.STATE_POSITION])
        unpacked.append(position)
        first = log.first_offsets[position]
        if first is None:
            state[batch_seek.STATE_DAMAGE] = position
        else:
            state[batch_seek.STATE_UNPACKED_POSITION] = position
            state[batch_seek.STATE_UNPACKED_FIRST_OFFSET] = first


def seek_times(
    log: Log,
    targets: Sequence[int],
    entries: Sequence[TimeEntry],
    floors: Sequence[OffsetEntry],
    starting_offset: int = 0,
) -> SeekResult:
    data = log.array
    batches = np.full(len(targets), UNTOUCHED, np.int64)
    state = batch_seek.new_state()
    code = batch_seek.seek_to_timestamps(
        address_of(data),
        len(data),
        starting_offset,
        starting_offset,
        longs(targets),
        longs(entry.timestamp for entry in entries),
        longs(entry.offset for entry in entries),
        longs(entry.offset for entry in floors),
        longs(entry.position for entry in floors),
        state,
        batches,
    )
    return SeekResult(code, int(state[batch_seek.STATE_QUERY]), batches.tolist(), [])


def offset_answer(log: Log, start: int, target: int) -> int:
    try:
        return seek_model.search_offset(log.data, start, target, log.first_offsets)
    except Damage as damage:
        return int(batch_header.damage_at(damage.position))


def time_answer(log: Log, start: int, timestamp: int, starting_offset: int = 0) -> int:
    try:
        return seek_model.search_time(log.data, start, timestamp, starting_offset)
    except Damage as damage:
        return int(batch_header.damage_at(damage.position))


def all_offsets(log: Log) -> list[int]:
    """Every offset worth asking for."""
    try:
        highest = max((header.last_offset for header in log.headers), default=0)
    except Damage:
        highest = 40
    return [-1, *range(min(max(highest, 0), 200) + 3), 2**63 - 1]


def damaged(data: st.DataObject, log: Log) -> Log:
    """The log with a few bytes changed, or cut; what is inside of messages is left out."""
    changed = bytearray(log.data)
    for _ in range(data.draw(st.integers(0, 3)) if changed else 0):
        changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    if changed and data.draw(st.booleans()):
        del changed[data.draw(st.integers(0, len(changed))) :]
    return Log(bytes(changed), _NeverKnown())


class _NeverKnown(dict[int, int | None]):
    def __missing__(self, key: int) -> None:
        return None
