"""Named segments about offsets, timestamps and index files that are full or go backward."""

from __future__ import annotations

from tests.support.cases import FIRST, NEXT, Case, rising
from tests.support.segments import INT32_MAX, batch, message, segment

OVERFLOW = "LogSegmentOffsetOverflowException"
BACKWARD = "InvalidOffsetException"
FULL = ILLEGAL = "IllegalArgumentException"
BIG = 3000  # a value size with which every second batch is indexed at the default interval

INDEXES: tuple[Case, ...] = (
    Case("last offset below the base", segment(batch(5), base_offset=10), OVERFLOW),
    Case("last offset one below the base", segment(batch(7), base_offset=10), OVERFLOW),
    Case(
        "base offset below the segment's, last offset at it", segment(batch(8), base_offset=10), 0
    ),
    Case("magic 1 offset below the base", segment(message(9, 1, 5), base_offset=10), OVERFLOW),
    Case(
        "offset below the base in an entry with a wrong CRC",
        segment(batch(5, crc=1), base_offset=10),
        len(NEXT),
    ),
    Case(
        "last offset at base + Int32.max",
        segment(batch(10, last_offset_delta=INT32_MAX), base_offset=10),
        0,
    ),
    Case(
        "last offset one beyond that",
        segment(batch(11, last_offset_delta=INT32_MAX), base_offset=10),
        OVERFLOW,
    ),
    Case("overflow in the second batch", segment(FIRST, batch(2**31)), OVERFLOW),
    Case("last offset beyond Int64.max", segment(batch(2**63 - 1, last_offset_delta=1)), OVERFLOW),
    Case("negative last offset delta, in range", segment(batch(5, last_offset_delta=-3), NEXT), 0),
    Case(
        "negative last offset delta, below the base",
        segment(batch(2, last_offset_delta=-3)),
        OVERFLOW,
    ),
    Case(
        "negative base offset with a leader epoch", segment(batch(-2, 6, timestamps=[5] * 6)), FULL
    ),
    Case("negative base offset without a leader epoch", segment(batch(-2, 6, leader_epoch=-1)), 0),
    Case(
        "leader epochs going backward",
        segment(batch(0, leader_epoch=5), batch(3, leader_epoch=2)),
        0,
    ),
    Case("offsets going backward, nothing indexed", segment(FIRST, NEXT, FIRST), 0),
    Case(
        "offsets going backward at an index append",
        segment(FIRST, NEXT, FIRST, interval=0),
        BACKWARD,
    ),
    Case("same offset again at an index append", segment(FIRST, NEXT, NEXT, interval=0), BACKWARD),
    Case("same offset again at the first index append", segment(FIRST, FIRST, interval=0), 0),
    Case(
        "time entry offset going backward at an index append",
        segment(
            *(
                batch(o, 1, BIG, timestamps=[t])
                for o, t in ((0, 10), (1, 20), (10, 30), (5, 40), (20, 5))
            )
        ),
        BACKWARD,
    ),
    Case(
        "time entry offset going backward at the end",
        segment(
            *(batch(o, 1, BIG, timestamps=[t]) for o, t in ((0, 10), (1, 20), (10, 30), (5, 40)))
        ),
        BACKWARD,
    ),
    Case(
        "the same without a later timestamp",
        segment(
            *(
                batch(o, 1, BIG, timestamps=[t])
                for o, t in ((0, 10), (1, 20), (10, 30), (5, 30), (20, 5))
            )
        ),
        0,
    ),
    Case(
        "offset index filled to the last slot",
        segment(*rising(6, step_ms=0), interval=0, index_bytes=40),
        0,
    ),
    Case("offset index full", segment(*rising(7, step_ms=0), interval=0, index_bytes=40), FULL),
    Case(
        "time index filled to the reserved slot", segment(*rising(2), interval=0, index_bytes=24), 0
    ),
    Case(
        "reserved slot of the time index used at the end",
        segment(*rising(4), interval=100, index_bytes=24),
        0,
    ),
    Case("time index full", segment(*rising(3), interval=0, index_bytes=24), FULL),
    Case(
        "time index full, nothing to append",
        segment(*rising(3, step_ms=0), interval=0, index_bytes=24),
        FULL,
    ),
    Case("time index of one slot, nothing indexed", segment(*rising(3), index_bytes=12), 0),
    Case(
        "time index of one slot, an index append",
        segment(*rising(2), interval=0, index_bytes=12),
        FULL,
    ),
    Case(
        "full index behind damage",
        segment(*rising(2), bytes(70), *rising(9), interval=0, index_bytes=24),
        70 + 9 * 88,
    ),
    Case("no room for a time entry", segment(index_bytes=11), FULL),
    Case("no room for an offset entry", segment(index_bytes=7), FULL),
    Case(
        "timestamps all negative",
        segment(*(batch(i, 1, timestamps=[-9 + i]) for i in range(5)), interval=0),
        0,
    ),
    Case("timestamps of magic 0 only", segment(*(message(i, 0) for i in range(5)), interval=0), 0),
    Case(
        "timestamp Int64.max",
        segment(FIRST, batch(3, max_timestamp=2**63 - 1), batch(6), interval=0),
        0,
    ),
    Case(
        "timestamp Int64.min",
        segment(FIRST, batch(3, max_timestamp=-(2**63)), batch(6), interval=0),
        0,
    ),
    Case("batches of exactly the interval", segment(*rising(5), interval=len(rising(1)[0])), 0),
    Case(
        "interval one byte smaller than a batch",
        segment(*rising(5), interval=len(rising(1)[0]) - 1),
        0,
    ),
    Case("interval Int32.max", segment(*rising(5), interval=INT32_MAX), 0),
)
