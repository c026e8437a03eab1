"""Entries of a random segment, each out of its own choices, as a broker or its cleaner leaves them.

The state that a broker would have (next offset, clock, open transactions) goes from entry to entry,
so that most of a random segment is sound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from tests.support.segments import (
    CODECS,
    DELETE_HORIZON,
    INT32_MAX,
    LOG_APPEND_TIME,
    WRAPPER_CODECS,
    batch,
    control_batch,
    control_key,
    marker,
    message,
    packed_batch,
    record,
    wrapper,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Entry = Callable[["Choices", "State"], bytes]

T = TypeVar("T")

#: As many as the most complicated entry takes.
SPEC_BYTES = 24


class Choices:
    """Decisions read from a string of bytes; after its end each is the simplest.

    `spec`: the bytes.
    """

    __slots__ = ("_at", "_spec")

    def __init__(self, spec: bytes) -> None:
        self._spec = spec
        self._at = 0

    def below(self, limit: int) -> int:
        """A number from 0 to `limit` - 1."""
        size = ((limit - 1).bit_length() + 7) // 8
        part = self._spec[self._at : self._at + size]
        self._at += size
        return int.from_bytes(part, "big") % limit

    def between(self, least: int, most: int) -> int:
        """A number from `least`, the simplest, to `most`."""
        return least + self.below(most - least + 1)

    def once_in(self, times: int) -> bool:
        """True with this chance; False is simpler."""
        return self.below(times) == times - 1

    def pick(self, options: Sequence[T]) -> T:
        """One of the options, the first being the simplest."""
        return options[self.below(len(options))]

    def some_bytes(self, most: int) -> bytes:
        """Up to so many bytes; zeros when the specification ends."""
        size = self.below(most + 1)
        part = self._spec[self._at : self._at + size]
        self._at += size
        return part + bytes(size - len(part))


CLOCKS = ("rising", "rising", "constant", "any", "extreme")
PRODUCERS = (0, 1, 2, 3)
_EXTREMES = (-1, 0, 1, 2**63 - 1, -(2**63))
_SNAPPY = 2


@dataclass
class State:
    """The facts that the next entry follows from, and the rest of the segment."""

    next_offset: int
    clock: str
    oddities: tuple[Entry, ...] = ()
    now_ms: int = 1_000_000
    open_transactions: list[int] = field(default_factory=list)


def draw_entry(choices: Choices, state: State) -> bytes:
    """One entry; moves the state on."""
    if state.oddities and choices.once_in(4):
        return choices.pick(state.oddities)(choices, state)
    return choices.pick(_SOUND)(choices, state)


def draw_offset(choices: Choices, state: State) -> int:
    """The next offset, or a later one where compaction removed records."""
    if choices.once_in(8):
        return state.next_offset + choices.between(1, 1000)
    return state.next_offset


def draw_time(choices: Choices, state: State) -> int:
    """The next timestamp, by the segment's kind of clock."""
    match state.clock:
        case "rising":
            state.now_ms += choices.below(4)
            return state.now_ms
        case "constant":
            return state.now_ms
        case "any":
            return choices.between(-5, 60)
        case _:
            return choices.pick(_EXTREMES)


def data_batch(
    choices: Choices, state: State, producer_id: int = -1, *, transactional: bool = False
) -> bytes:
    """A batch of one to four records."""
    offset = draw_offset(choices, state)
    records = choices.between(1, 4)
    delta = records - 1 + (choices.below(20) if choices.once_in(5) else 0)
    state.next_offset = offset + delta + 1
    return batch(
        offset,
        records,
        value_size=choices.below(120),
        timestamps=[draw_time(choices, state) for _ in range(records)],
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=choices.pick((0, 5, INT32_MAX)) if producer_id >= 0 else -1,
        transactional=transactional,
        leader_epoch=choices.pick((0, 0, 0, 3, -1)),
        attributes=choices.pick((0, 0, LOG_APPEND_TIME, *CODECS)),
        last_offset_delta=delta,
    )


def transactional_batch(choices: Choices, state: State) -> bytes:
    """A batch of a transaction, open already or opened by it."""
    producer_id = choices.pick(PRODUCERS)
    if producer_id not in state.open_transactions:
        state.open_transactions.append(producer_id)
    return data_batch(choices, state, producer_id, transactional=True)


def idempotent_batch(choices: Choices, state: State) -> bytes:
    """A batch of a producer without transactions."""
    return data_batch(choices, state, choices.between(10, 12))


def end_marker(choices: Choices, state: State) -> bytes:
    """The end of an open transaction; where none is open, a marker that ends nothing."""
    offset = draw_offset(choices, state)
    state.next_offset = offset + 1
    producer_id = choices.pick(PRODUCERS)
    if state.open_transactions:
        producer_id = state.open_transactions.pop(choices.below(len(state.open_transactions)))
    return marker(
        offset,
        producer_id,
        0,
        commit=choices.below(2) == 0,
        coordinator_epoch=choices.below(3),
        timestamp=draw_time(choices, state),
    )


def other_control_batch(choices: Choices, state: State) -> bytes:
    """A control batch of no producer, such as a quorum's: its record is not read."""
    offset = draw_offset(choices, state)
    state.next_offset = offset + 1
    key = control_key(choices.between(2, 6))
    time = draw_time(choices, state)
    return control_batch(offset, -1, -1, key, choices.some_bytes(8), time, transactional=False)


def empty_batch(choices: Choices, state: State) -> bytes:
    """The remains of a batch after compaction: the header, perhaps with a delete horizon."""
    offset = draw_offset(choices, state)
    delta = choices.below(50)
    state.next_offset = offset + delta + 1
    time = draw_time(choices, state)
    attributes = choices.pick((0, DELETE_HORIZON))
    return batch(offset, 0, last_offset_delta=delta, max_timestamp=time, attributes=attributes)


def compacted_batch(choices: Choices, state: State) -> bytes:
    """A batch of any codec from which compaction has taken records at any place."""
    offset = draw_offset(choices, state)
    kept = choices.below(64)
    deltas = [delta for delta in range(6) if kept >> delta & 1]
    last = max(deltas, default=0) + choices.pick((0, 0, 3))
    state.next_offset = offset + last + 1
    codec = choices.pick((0, *CODECS)) if deltas else 0
    # Compaction keeps the header's timestamp, when the record that had it is gone.
    header_time = draw_time(choices, state) if not deltas or choices.below(2) else None
    return packed_batch(
        offset,
        [(delta, draw_time(choices, state)) for delta in deltas],
        codec,
        last_offset_delta=last,
        log_append_ms=draw_time(choices, state) if choices.once_in(6) else None,
        max_timestamp=header_time,
        unframed=codec == _SNAPPY and choices.below(2) == 1,
        leader_epoch=choices.pick((0, 2, -1)),
    )


def batch_with_headers(choices: Choices, state: State) -> bytes:
    """A batch of one record with a key and headers."""
    offset = draw_offset(choices, state)
    state.next_offset = offset + 1
    headers = [(b"h", None), (b"", b"v")][: choices.between(1, 2)]
    time = draw_time(choices, state)
    key = choices.some_bytes(6)
    return batch(offset, 1, timestamps=[time], payload=record(0, 0, key, None, headers))


def old_message(choices: Choices, state: State) -> bytes:
    """A message of magic 0 or 1."""
    offset = draw_offset(choices, state)
    state.next_offset = offset + 1
    magic = choices.below(2)
    time = draw_time(choices, state)
    value = bytes(choices.below(90))
    attributes = choices.pick((0, LOG_APPEND_TIME)) if magic else 0
    return message(
        offset, magic, time, value, choices.pick((None, b"", b"key")), attributes=attributes
    )


def old_wrapper(choices: Choices, state: State) -> bytes:
    """Messages of an old format in one of their codecs."""
    magic = choices.below(2)
    start = draw_offset(choices, state)
    kept = choices.below(31) + 1
    relative = [offset for offset in range(5) if kept >> offset & 1]
    state.next_offset = start + relative[-1] + 1
    added = start if magic == 0 else 0
    codec = choices.pick(WRAPPER_CODECS)
    return wrapper(
        start + relative[-1],
        magic,
        [(added + offset, draw_time(choices, state)) for offset in relative],
        codec,
        log_append_ms=draw_time(choices, state) if magic and choices.once_in(3) else None,
    )


_SOUND: tuple[Entry, ...] = (
    *[data_batch] * 5,
    *[compacted_batch] * 4,
    *[transactional_batch] * 3,
    *[end_marker] * 2,
    *[old_wrapper] * 2,
    old_message,
    idempotent_batch,
    empty_batch,
    batch_with_headers,
    other_control_batch,
)
