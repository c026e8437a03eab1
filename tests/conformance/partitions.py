"""Hypothesis strategies that draw whole partitions to look things up in.

Segments follow from one another as a broker's do: offsets continue, transactions stay open. What is
odd is what a broker or its cleaner may leave: gaps, empty batches, batches written twice, old
formats, clocks of every kind, an empty segment, a log start in the middle.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from kafka_index.core.format.names import LOG_START_CHECKPOINT, REPLICATION_CHECKPOINT
from tests.support.damage import damage
from tests.support.odd_entries import ORDERLY_ODDITIES
from tests.support.random_entries import CLOCKS, SPEC_BYTES, Choices, State, draw_entry
from tests.support.segments import INT32_MAX, Segment, batch
from tests.support.strategies import BASE_OFFSETS, MAX_DAMAGES, draw_odd_entries

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MAX_SEGMENTS = 4
MAX_ENTRIES = 8

_INTERVALS = (0, 0, 0, 90, 200, 500, 4096)
# Kafka cannot index an offset that does not rise; with few entries it seldom meets one.
_WIDE_INTERVALS = (600, 1500, INT32_MAX)
_WALLS = (0, 0, 0, 1, 1000, 2**31 - 1)
_SEGMENT_BYTES = SPEC_BYTES * (1 + MAX_ENTRIES)
_DRAWN_BYTES = SPEC_BYTES * (1 + MAX_DAMAGES) + MAX_SEGMENTS * _SEGMENT_BYTES


@dataclass(frozen=True)
class Partition:
    """The logs of a partition and what a broker knows about it.

    `segments`: logs with their base offsets, in order. `index_interval_bytes`: the setting that the
    index files are made with. `log_start_offset`, `high_watermark`: entries in checkpoints of the
    data directory. `epochs`: leader epochs and their start offsets, as their checkpoint has them.
    """

    segments: tuple[Segment, ...]
    index_interval_bytes: int = 4096
    log_start_offset: int = 0
    high_watermark: int | None = None
    epochs: tuple[tuple[int, int], ...] = ()

    def write(self, directory: Path) -> None:
        """Write the logs and the checkpoints, and nothing else, as a partition directory."""
        directory.mkdir(parents=True)
        for segment in self.segments:
            (directory / f"{segment.base_offset:020d}.log").write_bytes(segment.log)
        if self.epochs:
            lines = ["0", str(len(self.epochs)), *(f"{epoch} {at}" for epoch, at in self.epochs)]
            text = "".join(f"{line}\n" for line in lines)
            (directory / "leader-epoch-checkpoint").write_text(text, encoding="utf-8")
        self.write_checkpoints(directory.parent)

    def write_checkpoints(self, data_directory: Path) -> None:
        """Write the checkpoints of the data directory."""
        for name, offset in (
            (LOG_START_CHECKPOINT, self.log_start_offset),
            (REPLICATION_CHECKPOINT, self.high_watermark),
        ):
            if offset is not None:
                text = f"0\n1\ntopic 0 {offset}\n"
                (data_directory / name).write_text(text, encoding="utf-8")


def partition(
    *segments: tuple[int, list[bytes]],
    interval: int = 4096,
    log_start: int = 0,
    high_watermark: int | None = None,
    epochs: tuple[tuple[int, int], ...] = (),
) -> Partition:
    """A partition of these segments, each a base offset and its entries."""
    logs = tuple(Segment(b"".join(entries), base, interval) for base, entries in segments)
    return Partition(logs, interval, log_start, high_watermark, epochs)


def partitions(
    *, repeating: bool | None = None, damaged: bool = False
) -> st.SearchStrategy[Partition]:
    """A partition of one to four segments.

    `repeating`: with batches that were written twice; None for either. `damaged`: with damage to
    its logs that recovery notices, or that only changes what batches there are.
    """
    return st.binary(min_size=_DRAWN_BYTES, max_size=_DRAWN_BYTES).map(
        lambda generated: partition_of(generated, repeating=repeating, damaged=damaged)
    )


def partition_of(
    generated: bytes, *, repeating: bool | None = None, damaged: bool = False
) -> Partition:
    """The partition that these bytes describe, as in `segment_of`."""
    spec, *others = (
        generated[start : start + SPEC_BYTES] for start in range(0, _DRAWN_BYTES, SPEC_BYTES)
    )
    choices = Choices(spec)
    # Where offsets step back, Kafka's own index entries lead astray.
    oddities = draw_odd_entries(choices, ORDERLY_ODDITIES, once_in=5)
    if repeating is None:
        repeating = choices.once_in(4)
    interval = choices.pick(_WIDE_INTERVALS if oddities or repeating else _INTERVALS)
    state = State(choices.pick(BASE_OFFSETS), choices.pick(CLOCKS), oddities)
    logs: list[list[bytes]] = []
    bases = []
    log_end = 0
    for number in range(choices.between(1, MAX_SEGMENTS)):
        start = MAX_DAMAGES + number * (1 + MAX_ENTRIES)
        bases.append(state.next_offset)
        wall, pieces = _draw_log(
            others[start : start + 1 + MAX_ENTRIES], state, repeating=repeating
        )
        logs.append(pieces)
        log_end = state.next_offset
        # The cleaner may have taken the first batches of the next segment, never its name.
        state.next_offset = max(state.next_offset, bases[-1] + 1) + wall
    within = choices.between(bases[0], max(bases[0], log_end))
    log_start = choices.pick((0, bases[0], within, within))
    for one in others[: choices.between(1, MAX_DAMAGES) if damaged else 0]:
        damage(Choices(one[1:]), logs[one[0] % len(logs)], forging=False)
    segments = tuple(
        Segment(b"".join(pieces), base, interval) for base, pieces in zip(bases, logs, strict=True)
    )
    return Partition(segments, interval, log_start)


def _draw_log(specs: list[bytes], state: State, *, repeating: bool) -> tuple[int, list[bytes]]:
    """The number of offsets that are missing after a segment, and its entries."""
    choices = Choices(specs[0])
    wall = choices.pick(_WALLS)
    if choices.once_in(4):
        state.clock = choices.pick(CLOCKS)
    # As a rule a segment is not full, and now and then it is empty.
    left_out = choices.pick((*[3] * 15, 1))
    pieces = []
    for spec in specs[1:]:
        if any(spec) and not choices.once_in(left_out):
            pieces.append(draw_entry(Choices(spec), state))
            if repeating and choices.once_in(4):
                pieces.append(pieces[-1])  # as a producer without idempotence may do
    return wall, pieces


def long_partitions() -> st.SearchStrategy[Partition]:
    """A partition of two segments of one kind, with many index entries in the first."""
    return st.binary(min_size=SPEC_BYTES, max_size=SPEC_BYTES).map(_long_partition_of)


def _long_partition_of(generated: bytes) -> Partition:
    choices = Choices(generated)
    records = choices.between(1, 5)
    first_count = choices.between(20, 90)
    interval = choices.pick((0, 200, 500))
    gaps = [choices.below(4) for _ in range(choices.between(1, 5))]
    steps = [choices.between(-5, 9) for _ in range(choices.between(1, 7))]
    entries, bases = [], []
    offset, time = 0, 1000
    for number in range(first_count + 5):
        offset += gaps[number % len(gaps)]
        time += steps[number % len(steps)]
        entries.append(batch(offset, records, 0, [time] * records))
        bases.append(offset)
        offset += records
    second = (bases[first_count], entries[first_count:])
    return partition((0, entries[:first_count]), second, interval=interval)


def tails() -> st.SearchStrategy[Callable[[int], bytes]]:
    """The bytes that a crashed broker leaves after its last batch: zeros, or part of another.

    It depends on the offset that comes next.
    """
    zeros = st.integers(1, 5000).map(lambda size: partial(_zeros, size))
    size = len(batch(0, 2, 50))
    return zeros | st.integers(1, size - 1).map(lambda size: partial(_part, size))


def _zeros(size: int, _next_offset: int) -> bytes:
    return bytes(size)


def _part(size: int, next_offset: int) -> bytes:
    return batch(next_offset, 2, 50)[:size]
