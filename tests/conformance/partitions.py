"""Hypothesis strategy that draws whole partitions to look things up in.

Segments follow from one another as a broker's do: offsets go on, transactions stay open. What is
odd is what a broker or its cleaner may leave: gaps, empty batches, batches written twice, old
formats, clocks of every kind, an empty segment, a log start in the middle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from .packed import CODECS, WRAPPER_CODECS, packed_batch, wrapper
from .segments import INT32_MAX, Segment, batch
from .strategies import BASE_OFFSETS, CLOCKS, State, draw_entry, draw_gap, draw_time

if TYPE_CHECKING:
    from pathlib import Path

MAX_SEGMENTS = 4
MAX_ENTRIES = 7

_INTERVALS = st.sampled_from((0, 0, 0, 90, 200, 500, 4096))
# Kafka cannot index an offset that does not rise; with few entries it seldom meets one.
_WIDE_INTERVALS = st.sampled_from((600, 1500, INT32_MAX))
_WALLS = st.sampled_from((0, 0, 0, 1, 1000, 2**31 - 1))
_SNAPPY = 2
_MAGIC_AT = 16
_INT8_MAX = 127


@dataclass(frozen=True)
class Partition:
    """The logs of a partition and what a broker knows about it.

    Attributes
    ----------
    segments
        Logs with their base offsets, in order.
    index_interval_bytes
        The setting that the index files are made with.
    log_start_offset
        The entry in ``log-start-offset-checkpoint``.
    """

    segments: tuple[Segment, ...]
    index_interval_bytes: int = 4096
    log_start_offset: int = 0

    def write(self, directory: Path) -> None:
        """Write the logs, and nothing else, into a partition directory."""
        directory.mkdir(parents=True)
        for segment in self.segments:
            (directory / f"{segment.base_offset:020d}.log").write_bytes(segment.log)


def partition(
    *segments: tuple[int, list[bytes]], interval: int = 4096, log_start: int = 0
) -> Partition:
    """A partition of these segments, each a base offset and its entries."""
    logs = tuple(Segment(b"".join(entries), base, interval) for base, entries in segments)
    return Partition(logs, interval, log_start)


@st.composite
def partitions(draw: st.DrawFn, *, repeating: bool | None = None) -> Partition:
    """A partition of one to four segments, with or without batches that were written twice."""
    wild = draw(st.integers(0, 4)) == 0
    if repeating is None:
        repeating = draw(st.integers(0, 3)) == 0
    # Where offsets step back, Kafka's own index entries lead astray.
    state = State(draw(BASE_OFFSETS), draw(CLOCKS), wild=wild, steps_back=False)
    drawn = []
    log_end = 0
    for _ in range(draw(st.integers(1, MAX_SEGMENTS))):
        base_offset = state.next_offset
        entries: list[bytes] = []
        for _ in range(draw(st.integers(0, MAX_ENTRIES))):
            entries.append(_entry(draw, state))
            if repeating and draw(st.integers(0, 3)) == 0:
                entries.append(entries[-1])  # as a producer without idempotence may do
        log_end = state.next_offset
        # The cleaner may have taken the first batches of the next segment, never its name.
        state.next_offset = max(state.next_offset, base_offset + 1) + draw(_WALLS)
        drawn.append(Segment(b"".join(entries), base_offset))
        if not draw(st.integers(0, 3)):
            state.clock = draw(CLOCKS)
    interval = draw(_WIDE_INTERVALS if wild or repeating else _INTERVALS)
    first = drawn[0].base_offset
    log_start = draw(st.sampled_from((0, first)) | st.integers(first, max(first, log_end)))
    return Partition(
        tuple(replace(segment, index_interval_bytes=interval) for segment in drawn),
        interval,
        log_start,
    )


@st.composite
def long_partitions(draw: st.DrawFn) -> Partition:
    """A partition of two segments of one kind, with many index entries in the first."""
    gaps = draw(st.lists(st.integers(0, 3), min_size=1, max_size=5))
    steps = draw(st.lists(st.integers(-5, 9), min_size=1, max_size=7))
    records = draw(st.integers(1, 5))
    first_count = draw(st.integers(20, 90))
    entries, bases = [], []
    offset, time = 0, 1000
    for number in range(first_count + 5):
        offset += gaps[number % len(gaps)]
        time += steps[number % len(steps)]
        entries.append(batch(offset, records, 0, [time] * records))
        bases.append(offset)
        offset += records
    second = (bases[first_count], entries[first_count:])
    return partition(
        (0, entries[:first_count]), second, interval=draw(st.sampled_from((0, 200, 500)))
    )


def tails() -> st.SearchStrategy[bytes]:
    """What a broker that crashed leaves behind its last batch: zeros, or a part of a batch."""
    whole = batch(2**40, 2, 50)
    zeros = st.integers(1, 5000).map(bytes)
    return zeros | st.integers(1, len(whole) - 1).map(lambda size: whole[:size])


def _entry(draw: st.DrawFn, state: State) -> bytes:
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return _packed_batch(draw, state)
    if kind == 1 and draw(st.booleans()):
        return _wrapper(draw, state)
    entry = draw_entry(draw, state)
    if entry[_MAGIC_AT] > _INT8_MAX:
        # Kafka can say neither when such a message was written nor why not.
        return _packed_batch(draw, state)
    return entry


def _packed_batch(draw: st.DrawFn, state: State) -> bytes:
    """A batch of any codec from which compaction has taken records at any place."""
    offset = state.next_offset + draw_gap(draw, state)
    deltas = sorted(draw(st.sets(st.integers(0, 6), max_size=4)))
    last = max(deltas, default=0) + draw(st.sampled_from((0, 0, 3)))
    state.next_offset = offset + last + 1
    codec = draw(st.sampled_from((0, *CODECS))) if deltas else 0
    # Compaction keeps the header's, when the record that had it is gone.
    kept = not deltas or draw(st.booleans())
    return packed_batch(
        offset,
        [(delta, draw_time(draw, state)) for delta in deltas],
        codec,
        last_offset_delta=last,
        log_append_ms=draw_time(draw, state) if draw(st.integers(0, 5)) == 0 else None,
        max_timestamp=draw_time(draw, state) if kept else None,
        unframed=codec == _SNAPPY and draw(st.booleans()),
        leader_epoch=draw(st.sampled_from((0, 2, -1))),
    )


def _wrapper(draw: st.DrawFn, state: State) -> bytes:
    """Messages of an old format in one of their codecs."""
    magic = draw(st.integers(0, 1))
    start = state.next_offset + draw_gap(draw, state)
    relative = sorted(draw(st.sets(st.integers(0, 5), min_size=1, max_size=4)))
    state.next_offset = start + relative[-1] + 1
    added = start if magic == 0 else 0
    return wrapper(
        start + relative[-1],
        magic,
        [(added + offset, draw_time(draw, state)) for offset in relative],
        draw(st.sampled_from(WRAPPER_CODECS)),
        log_append_ms=draw_time(draw, state) if magic and draw(st.booleans()) else None,
    )
