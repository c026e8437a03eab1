"""Hypothesis strategies that draw whole segments.

A segment is drawn entry by entry with the state a broker would have (next offset, open
transactions), so that most of it is sound. A wild segment leaves that path now and then; a tame one
never does, so that long files with many index entries are drawn too.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from hypothesis import strategies as st

from .damage import damage
from .segments import (
    CODEC_GZIP,
    INT32_MAX,
    LOG_APPEND_TIME,
    Segment,
    batch,
    control_batch,
    control_key,
    marker,
    marker_value,
    message,
)

DEFAULT_INDEX_BYTES = 10 * 1024 * 1024
MAX_ENTRIES = 28

BASE_OFFSETS = st.sampled_from((0, 0, 1, 1000, 2**31 - 5, 2**40))
_INTERVALS = st.sampled_from((0, 0, 1, 90, 200, 500, 1000, 4096, INT32_MAX))
_SMALL_INDEXES = st.integers(min_value=12, max_value=130)
CLOCKS = st.sampled_from(("rising", "constant", "any", "extreme"))
_EXTREMES = st.sampled_from((-(2**63), -1, 0, 1, 2**63 - 1))
_SMALL_BYTES = st.binary(max_size=12)


@dataclass
class State:
    """What the next entry follows from."""

    next_offset: int
    clock: str
    wild: bool
    steps_back: bool = True
    now: int = 1_000_000
    open_transactions: list[int] = field(default_factory=list)


@st.composite
def segments(draw: st.DrawFn, *, damaged: bool | None = None) -> Segment:
    """A segment and the settings to recover it with; damaged, sound, or (None) one of both."""
    base_offset = draw(BASE_OFFSETS)
    state = State(base_offset, draw(CLOCKS), wild=draw(st.integers(0, 2)) == 0)
    count = draw(st.integers(0, MAX_ENTRIES))
    entries = [draw_entry(draw, state) for _ in range(count)]
    drawn = Segment(
        b"".join(entries),
        base_offset,
        draw(_INTERVALS),
        draw(_SMALL_INDEXES) if draw(st.integers(0, 9)) == 0 else DEFAULT_INDEX_BYTES,
    )
    if damaged is None:
        damaged = draw(st.booleans())
    if damaged:
        for _ in range(draw(st.integers(1, 2))):
            drawn = damage(draw, drawn, entries)
    return drawn


def draw_entry(draw: st.DrawFn, state: State) -> bytes:
    """One entry; moves the state on."""
    kind = draw(st.integers(0, 11))
    offset = state.next_offset + draw_gap(draw, state)
    if state.wild and draw(st.integers(0, 7)) == 0:
        return _odd_entry(draw, state, offset)
    if kind == 0:
        state.next_offset = offset + 1
        magic = draw(st.integers(0, 1))
        return message(
            offset,
            magic,
            draw_time(draw, state),
            bytes(draw(st.integers(0, 90))),
            draw(st.none() | _SMALL_BYTES),
        )
    if kind == 1 and state.open_transactions:
        state.next_offset = offset + 1
        ended = state.open_transactions.pop(draw(st.integers(0, len(state.open_transactions) - 1)))
        return marker(
            offset, ended, 0, commit=draw(st.booleans()), timestamp=draw_time(draw, state)
        )
    if kind == 2:
        # What compaction leaves of a batch: the header.
        delta = draw(st.integers(0, 50))
        state.next_offset = offset + delta + 1
        return batch(offset, 0, last_offset_delta=delta, max_timestamp=draw_time(draw, state))
    return _data_batch(draw, state, offset, transactional=kind in (3, 4), idempotent=kind == 5)


def _data_batch(
    draw: st.DrawFn, state: State, offset: int, *, transactional: bool, idempotent: bool
) -> bytes:
    """A data batch, of a producer or of none, with or without what compaction takes away."""
    records = draw(st.integers(1, 4))
    delta = records - 1 + (draw(st.integers(0, 20)) if draw(st.integers(0, 4)) == 0 else 0)
    state.next_offset = offset + delta + 1
    producer = -1
    if transactional:
        producer = draw(st.integers(0, 3))
        if producer not in state.open_transactions:
            state.open_transactions.append(producer)
    elif idempotent:
        producer = draw(st.integers(10, 12))
    return batch(
        offset,
        records,
        value_size=draw(st.integers(0, 120)),
        timestamps=[draw_time(draw, state) for _ in range(records)],
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=draw(st.sampled_from((0, 5, INT32_MAX))) if producer >= 0 else -1,
        transactional=transactional,
        leader_epoch=draw(st.sampled_from((0, 0, 0, 3, -1))),
        attributes=draw(st.sampled_from((0, 0, 0, 0, LOG_APPEND_TIME, CODEC_GZIP))),
        last_offset_delta=delta,
    )


def _odd_entry(draw: st.DrawFn, state: State, offset: int) -> bytes:
    """An entry with a sound checksum that a broker would not have written."""
    state.next_offset = offset + 1
    time = draw_time(draw, state)
    producer = draw(st.sampled_from((-1, 0, 1, 2, 10)))
    match draw(st.integers(0, 8)):
        case 0:
            entry = batch(
                offset,
                1,
                producer_id=producer,
                producer_epoch=draw(st.integers(-1, 2)),
                base_sequence=0,
            )
        case 1:
            key = control_key(draw(st.integers(-1, 8)), draw(st.integers(-1, 1)))
            entry = control_batch(
                offset,
                producer,
                0,
                draw(st.just(key) | st.none() | _SMALL_BYTES),
                marker_value(),
                time,
            )
        case 2:
            key, value = (
                control_key(draw(st.integers(0, 1))),
                marker_value(3, draw(st.integers(-1, 1))),
            )
            cut = draw(st.integers(0, len(value)))
            entry = control_batch(
                offset,
                producer,
                0,
                key,
                draw(st.sampled_from((value[:cut], value + b"x", None))),
                time,
            )
        case 3:
            count = draw(st.integers(-1, 3))
            entry = control_batch(
                offset,
                producer,
                0,
                None,
                None,
                time,
                payload=draw(st.binary(max_size=40)),
                record_count=count,
            )
        case 4:
            entry = message(offset, draw(st.integers(-128, -1)), time)
        case 5:
            entry = message(
                offset, 1, body=struct.pack(">q", time) + bytes(draw(st.integers(0, 12)))
            )
        case 6:
            entry = batch(offset, 2, magic=draw(st.integers(3, 127)), max_timestamp=time)
        case 7:
            near = INT32_MAX - draw(st.integers(0, 3))
            state.next_offset = offset + near + 1
            entry = batch(offset, 1, last_offset_delta=near)
        case _:
            codec = draw(st.integers(1, 7))
            key, value = control_key(1), marker_value()
            if codec == CODEC_GZIP or draw(st.booleans()):
                entry = control_batch(offset, producer, 0, key, value, time, attributes=codec)
            else:
                entry = batch(offset, 1, producer_id=producer, producer_epoch=0, attributes=codec)
    return entry


def draw_gap(draw: st.DrawFn, state: State) -> int:
    """Offsets left out by compaction; in a wild segment sometimes a step back or a leap."""
    pick = draw(st.integers(0, 24))
    if pick < 3:
        return draw(st.integers(1, 1000))
    if state.wild and state.steps_back and pick == 3:
        return -draw(st.integers(1, 12))
    if state.wild and pick == 4:
        return draw(st.integers(2**30, 2**31))
    return 0


def draw_time(draw: st.DrawFn, state: State) -> int:
    """The next timestamp, by the segment's kind of clock."""
    match state.clock:
        case "rising":
            state.now += draw(st.integers(0, 3))
            return state.now
        case "constant":
            return state.now
        case "any":
            return draw(st.integers(-5, 60))
        case _:
            return draw(_EXTREMES)
