"""Hypothesis strategy that draws whole partitions whose batches and records are known."""

from __future__ import annotations

from itertools import count

from hypothesis import strategies as st

from tests.support.packed import CODECS, WRAPPER_CODECS
from tests.support.partitions import (
    INT64_MAX,
    INT64_MIN,
    Batch,
    Partition,
    Segment,
    control,
    message,
    of_records,
    wrapper,
)

# Neither 0, whose entry may be taken for padding, nor the least, which stands for null: both have
# tests of their own.
_SMALL_TIMES = st.sampled_from((-2, -1, *range(1, 25)))
_EXTREME_TIMES = st.sampled_from((INT64_MIN + 1, -1, 1, INT64_MAX))
_DELTAS = st.sets(st.integers(0, 5), max_size=4).map(sorted)


@st.composite
def partitions(
    draw: st.DrawFn, *, start_inside: bool = True, bounded: bool = True, rising: bool = False
) -> Partition:
    """Any partition that brokers and their cleaners may leave.

    `start_inside` and `bounded`: the log may start, and answers may end, in the middle of it.
    `rising`: each timestamp is above all before it.
    """
    times = draw(st.sampled_from((_SMALL_TIMES, _SMALL_TIMES, _EXTREME_TIMES)))
    if rising:
        clock = count(1)
        times = st.just(None).map(lambda _: next(clock))
    following = first = draw(st.sampled_from((0, 0, 5, 2**40)))
    segments = []
    for _ in range(draw(st.integers(1, 4))):
        base_offset = following
        batches = []
        for _ in range(draw(st.integers(0, 6))):
            offset = following + draw(st.sampled_from((0, 0, 0, 3)))
            batches.append(_batch(draw, offset, times))
            following = batches[-1].last_offset + 1
        segments.append(Segment(base_offset, tuple(batches)))
        following = max(following, base_offset + 1) + draw(st.sampled_from((0, 0, 4)))
    end = segments[-1].next_offset
    start = draw(st.integers(first, max(first, end))) if start_inside else first
    start = draw(st.sampled_from((first, start)))
    watermark = None
    if bounded and draw(st.integers(0, 2)) == 0:
        watermark = draw(st.integers(start, max(start, end)))
    return Partition(
        tuple(segments), draw(st.sampled_from((0, 0, 120, 400, 4096))), start, watermark
    )


def _batch(draw: st.DrawFn, offset: int, times: st.SearchStrategy[int]) -> Batch:
    kind = draw(st.integers(0, 7))
    if kind == 0:
        return message(offset, draw(st.integers(0, 1)), draw(times))
    if kind == 1:
        return control(offset, draw(times))
    if kind == 2:
        delta = draw(st.sampled_from((0, 6)))
        return of_records(offset, [], last_delta=delta, max_timestamp=draw(times))
    records = [(delta, draw(times)) for delta in draw(_DELTAS)]
    if kind == 3 and records:
        magic = draw(st.integers(0, 1))
        append_ms = draw(times) if magic and draw(st.booleans()) else None
        return wrapper(offset, magic, records, draw(st.sampled_from(WRAPPER_CODECS)), append_ms)
    deltas = [delta for delta, _ in records]
    return of_records(
        offset,
        records,
        codec=draw(st.sampled_from((0, 0, *CODECS))) if records else 0,
        last_delta=max(deltas, default=0) + draw(st.sampled_from((0, 0, 2))),
        append_ms=draw(times) if draw(st.integers(0, 5)) == 0 else None,
        # Compaction leaves the header's when it takes the record that had it.
        max_timestamp=draw(times) if draw(st.integers(0, 5)) == 0 else None,
        leader_epoch=draw(st.sampled_from((0, 3, -1))),
    )
