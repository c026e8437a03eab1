"""Entries with sound checksums that a broker would not have written.

Recovery meets them all the same, after bad copies and in logs of other tools, and most of what it
refuses is among them. Each moves the state on like a sound entry.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from tests.support.random_entries import PRODUCERS, data_batch, draw_entry, draw_offset, draw_time
from tests.support.segments import (
    CODEC_GZIP,
    INT32_MAX,
    batch,
    control_batch,
    control_key,
    marker,
    marker_value,
    message,
)

if TYPE_CHECKING:
    from tests.support.random_entries import Choices, Entry, State

_ANY_PRODUCER = (-1, *PRODUCERS, 10)
_CROWD = 40


def step_back(choices: Choices, state: State) -> bytes:
    """An entry whose offset was there before."""
    state.next_offset -= choices.between(1, 12)
    return data_batch(choices, state)


def jump_offsets(choices: Choices, state: State) -> bytes:
    """An entry far after the one before; a second leap leaves the segment's range."""
    state.next_offset += choices.between(2**29, 2**31)
    return data_batch(choices, state)


def odd_producer(choices: Choices, state: State) -> bytes:
    """A batch without a transaction, perhaps of a producer that has one open."""
    offset = _one_offset(choices, state)
    return batch(
        offset,
        1,
        timestamps=[draw_time(choices, state)],
        producer_id=choices.pick(_ANY_PRODUCER),
        producer_epoch=choices.between(-1, 2),
        base_sequence=0,
    )


def odd_control_key(choices: Choices, state: State) -> bytes:
    """A control batch of any type and version, with a key of any size, or with none."""
    offset, time = _one_offset(choices, state), draw_time(choices, state)
    key = choices.pick((control_key(choices.between(-1, 8), choices.between(-1, 1)), None, b""))
    producer_id = choices.pick(_ANY_PRODUCER)
    return control_batch(offset, producer_id, 0, key or choices.some_bytes(6), marker_value(), time)


def odd_marker_value(choices: Choices, state: State) -> bytes:
    """A marker whose value is cut, too long, missing, or of another version."""
    offset, time = _one_offset(choices, state), draw_time(choices, state)
    value = marker_value(3, choices.between(-1, 1))
    cut = choices.below(len(value))
    value_or_none = choices.pick((value[:cut], value + b"x", None))
    producer_id = choices.pick(_ANY_PRODUCER)
    key = control_key(choices.below(2))
    return control_batch(offset, producer_id, 0, key, value_or_none, time)


def odd_control_records(choices: Choices, state: State) -> bytes:
    """A control batch of any bytes and any count."""
    offset, time = _one_offset(choices, state), draw_time(choices, state)
    return control_batch(
        offset,
        choices.pick(_ANY_PRODUCER),
        0,
        None,
        None,
        time,
        record_count=choices.between(-1, 3),
        payload=choices.some_bytes(16),
    )


def compressed_control_batch(choices: Choices, state: State) -> bytes:
    """A marker, compressed by any codec, also by a codec that does not exist."""
    offset, time = _one_offset(choices, state), draw_time(choices, state)
    return control_batch(
        offset,
        choices.pick(_ANY_PRODUCER),
        0,
        control_key(choices.below(2)),
        marker_value(),
        time,
        attributes=choices.between(CODEC_GZIP, 7),
    )


def mislabelled_batch(choices: Choices, state: State) -> bytes:
    """A batch with the bits of a codec that its records are not compressed with."""
    offset, producer_id = _one_offset(choices, state), choices.pick(_ANY_PRODUCER)
    return batch(
        offset,
        1,
        producer_id=producer_id,
        producer_epoch=0,
        attributes=choices.between(CODEC_GZIP, 7),
        payload=choices.some_bytes(8),
    )


def negative_magic(choices: Choices, state: State) -> bytes:
    """A message that reads as one of magic 1."""
    magic = -choices.between(1, 128)
    return message(_one_offset(choices, state), magic, draw_time(choices, state))


def short_message(choices: Choices, state: State) -> bytes:
    """A message of magic 1 without room for key and value."""
    offset, time = _one_offset(choices, state), draw_time(choices, state)
    return message(offset, 1, body=struct.pack(">q", time) + bytes(choices.below(13)))


def high_magic(choices: Choices, state: State) -> bytes:
    """A batch that reads as one of magic 2."""
    offset, time = _one_offset(choices, state), draw_time(choices, state)
    state.next_offset += 1
    return batch(offset, 2, magic=choices.between(3, 127), max_timestamp=time)


def wide_batch(choices: Choices, state: State) -> bytes:
    """A batch that spans all offsets of a segment, or nearly."""
    offset = draw_offset(choices, state)
    delta = INT32_MAX - choices.below(64)
    state.next_offset = offset + delta + 1
    return batch(offset, 1, last_offset_delta=delta)


def negative_delta(choices: Choices, state: State) -> bytes:
    """A batch whose last offset lies before its base offset."""
    offset = _one_offset(choices, state)
    delta = choices.between(1, 5)
    return batch(offset + delta, 1, last_offset_delta=-delta)


def negative_base_offset(choices: Choices, state: State) -> bytes:
    """A batch with a negative base offset whose last offset continues the log, if possible."""
    offset = _one_offset(choices, state)
    below = choices.between(1, 9)
    # Offsets of segments far up do not fit into the delta.
    delta = min(offset + below, INT32_MAX)
    epoch = choices.pick((9, 0, -1))
    return batch(offset - delta, 1, last_offset_delta=delta, leader_epoch=epoch)


def two_from_one_offset(choices: Choices, state: State) -> bytes:
    """Two transactions that begin at the same offset, and the ends of both."""
    offset = _one_offset(choices, state)
    state.next_offset += 3
    both = [
        batch(
            offset,
            1,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
            last_offset_delta=producer_id % 2,
        )
        for producer_id in (20, 21)
    ]
    commit = choices.below(2) == 0
    return b"".join(
        (*both, marker(offset + 2, 20, 0, commit=commit), marker(offset + 3, 21, 0, commit=commit))
    )


def aborts_out_of_order(choices: Choices, state: State) -> bytes:
    """Two transactions whose abort markers change places, though last offsets do not."""
    offset = _one_offset(choices, state)
    state.next_offset += 9
    entries = [
        batch(offset + place, 1, producer_id=producer_id, producer_epoch=0, transactional=True)
        for place, producer_id in enumerate((22, 23))
    ]
    key, value = control_key(0), marker_value()
    first, second = choices.between(2, 6), choices.between(2, 6)
    entries.append(control_batch(offset + first, 22, 0, key, value))
    delta = max(first - second, 0) + 1
    entries.append(control_batch(offset + second, 23, 0, key, value, last_offset_delta=delta))
    return b"".join(entries)


def later_time_behind(choices: Choices, state: State) -> bytes:
    """Offsets that step back at a batch that is not indexed, which has the largest timestamp."""
    offset = _one_offset(choices, state)
    state.next_offset += 20
    now = state.now_ms + choices.below(1000)
    state.now_ms = now + 4
    large = choices.pick((1100, 300, 4200))
    steps = ((0, 0, large), (10, 1, 0), (5, 3, large), (20, 2, 0))
    return b"".join(batch(offset + step, 1, size, [now + later]) for step, later, size in steps)


def crowd(choices: Choices, state: State) -> bytes:
    """Many transactions that are open at once."""
    offset = _one_offset(choices, state)
    state.next_offset = offset + _CROWD
    first_producer = choices.pick((100, 2**62))
    state.open_transactions += range(first_producer, first_producer + 3)
    return b"".join(
        batch(
            offset + i,
            0,
            producer_id=first_producer + i * choices.pick((1, 64)),
            producer_epoch=0,
            transactional=True,
        )
        for i in range(_CROWD)
    )


def repeat_entry(choices: Choices, state: State) -> bytes:
    """A sound entry, twice."""
    return draw_entry(choices, state) * 2


#: What leaves the order of offsets as it is.
ORDERLY_ODDITIES: tuple[Entry, ...] = (
    odd_producer,
    odd_control_key,
    odd_marker_value,
    odd_control_records,
    compressed_control_batch,
    mislabelled_batch,
    short_message,
    high_magic,
    wide_batch,
    jump_offsets,
)
ODDITIES: tuple[Entry, ...] = (
    *ORDERLY_ODDITIES,
    step_back,
    negative_magic,
    negative_delta,
    negative_base_offset,
    two_from_one_offset,
    aborts_out_of_order,
    later_time_behind,
    crowd,
    repeat_entry,
)


def _one_offset(choices: Choices, state: State) -> int:
    offset = draw_offset(choices, state)
    state.next_offset = offset + 1
    return offset
