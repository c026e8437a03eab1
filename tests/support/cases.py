"""The form of a named segment, and what the named segments of this folder are made of."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tests.support.segments import (
    CODEC_GZIP,
    INT32_MAX,
    LOG_APPEND_TIME,
    Segment,
    batch,
    message,
    segment,
)


@dataclass(frozen=True)
class Case:
    """One segment and its fate.

    `name`: what is special about it. `segment`: the bytes and settings. `expected`: bytes that
    recovery cuts off the end, or the class of the exception that it throws.
    """

    name: str
    segment: Segment
    expected: int | str


FIRST = batch(0)
NEXT = batch(3)


def ascending_batches(count: int, *, step_ms: int = 1, base_offset: int = 0) -> list[bytes]:
    """Batches of one record, each `step_ms` later than the one before."""
    return [batch(base_offset + i, 1, timestamps=[1000 + i * step_ms]) for i in range(count)]


LEGACY_MAGICS = (-1, -128)
HIGH_MAGICS = (3, 0x57, 127)


def with_tail(name: str, junk: bytes) -> Case:
    """A sound batch and then bytes that recovery cuts off."""
    return Case(name, segment(FIRST, junk), len(junk))


def entry(length: int, magic: int = 2, size: int = 64) -> bytes:
    """The start of an entry with any length field, zeros after the magic."""
    return (struct.pack(">qiib", 3, length, 0, magic) + bytes(size))[:size]


FRAMING: tuple[Case, ...] = (
    Case("empty file", segment(), 0),
    Case("1 byte", segment(b"\0"), 1),
    Case("17 zero bytes", segment(bytes(17)), 17),
    Case("18 zero bytes", segment(bytes(18)), 18),
    *(
        with_tail(f"{size} zero bytes behind a batch", bytes(size))
        for size in (1, 11, 12, 16, 17, 18, 61, 8192)
    ),
    *(
        with_tail(f"first {size} bytes of a batch", NEXT[:size])
        for size in (16, 17, 18, 60, 61, len(NEXT) - 1)
    ),
    *(
        with_tail(f"length field {n}", entry(n))
        for n in (13, 0, -1, -(2**31), INT32_MAX, INT32_MAX - 12)
    ),
    *(with_tail(f"magic 2 with length field {n}", entry(n, size=12 + n)) for n in (14, 22, 48)),
    Case(
        "length field one too long at the end",
        segment(FIRST, batch(3, length=len(NEXT) - 11)),
        len(NEXT),
    ),
    Case("magic 2 with no records, 61 bytes", segment(FIRST, batch(3, 0, last_offset_delta=4)), 0),
    Case("wrong CRC in the middle", segment(FIRST, batch(3, crc=1), batch(6)), 2 * len(NEXT)),
    Case("wrong CRC in the first batch", segment(batch(0, crc=1), NEXT), 2 * len(NEXT)),
    Case(
        "a batch cut in the middle, sound ones behind",
        segment(FIRST, NEXT[:70], batch(6)),
        70 + len(NEXT),
    ),
    *(
        Case(f"magic {m} reads as 2", segment(FIRST, batch(3, magic=m), batch(6)), 0)
        for m in HIGH_MAGICS
    ),
    *(
        with_tail(f"magic 2 batch with its magic byte made {m}", batch(3, magic=m))
        for m in (0, 1, -1)
    ),
    *(
        Case(f"magic {m} reads as 1", segment(FIRST, message(3, m, 9000, b"abc"), batch(4)), 0)
        for m in LEGACY_MAGICS
    ),
    *(with_tail(f"magic {m} with a wrong CRC", message(3, m, 9000, crc=1)) for m in (0, 1, -1)),
    with_tail("magic 0 with length field 13", message(3, 0, body=bytes(7))),
    Case("magic 0 with length field 14", segment(message(0, 0, body=bytes(8))), 0),
    *(
        Case(
            f"magic 1 with length field {14 + n}",
            segment(message(0, 1, body=struct.pack(">q", 5000) + bytes(n))),
            0,
        )
        for n in range(9)
    ),
    Case("magic 0, 1 and 2 in one file", segment(message(0, 0), message(1, 1, 5), batch(2)), 0),
    Case("magic 1 after magic 2", segment(FIRST, message(3, 1, 99, b"x", b"k"), batch(4)), 0),
    Case(
        "magic 1 whose key length is nonsense",
        segment(message(0, 1, body=struct.pack(">qi", 7, 9999))),
        0,
    ),
    Case(
        "magic 1 with the gzip bit and no gzip in it",
        segment(message(0, 1, 7, b"x", attributes=1)),
        0,
    ),
    Case("magic 1 with an unknown codec", segment(message(0, 1, 7, b"x", attributes=7)), 0),
    Case("data batch with an unknown codec", segment(batch(0, attributes=7), NEXT), 0),
    Case(
        "data batch with the gzip bit and no gzip in it",
        segment(batch(0, attributes=1, payload=b"x"), NEXT),
        0,
    ),
    Case("data batch with gzip", segment(batch(0, attributes=CODEC_GZIP), NEXT), 0),
    Case("data batch with a record count of -5", segment(batch(0, record_count=-5), NEXT), 0),
    Case(
        "data batch whose records cannot be parsed", segment(batch(0, payload=b"\xff" * 9), NEXT), 0
    ),
    Case("data batch with log-append time", segment(batch(0, attributes=LOG_APPEND_TIME), NEXT), 0),
)


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
        segment(*ascending_batches(6, step_ms=0), interval=0, index_bytes=40),
        0,
    ),
    Case(
        "offset index full",
        segment(*ascending_batches(7, step_ms=0), interval=0, index_bytes=40),
        FULL,
    ),
    Case(
        "time index filled to the reserved slot",
        segment(*ascending_batches(2), interval=0, index_bytes=24),
        0,
    ),
    Case(
        "reserved slot of the time index used at the end",
        segment(*ascending_batches(4), interval=100, index_bytes=24),
        0,
    ),
    Case("time index full", segment(*ascending_batches(3), interval=0, index_bytes=24), FULL),
    Case(
        "time index full, nothing to append",
        segment(*ascending_batches(3, step_ms=0), interval=0, index_bytes=24),
        FULL,
    ),
    Case(
        "time index of one slot, nothing indexed", segment(*ascending_batches(3), index_bytes=12), 0
    ),
    Case(
        "time index of one slot, an index append",
        segment(*ascending_batches(2), interval=0, index_bytes=12),
        FULL,
    ),
    Case(
        "full index behind damage",
        segment(
            *ascending_batches(2), bytes(70), *ascending_batches(9), interval=0, index_bytes=24
        ),
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
    Case(
        "batches of exactly the interval",
        segment(*ascending_batches(5), interval=len(ascending_batches(1)[0])),
        0,
    ),
    Case(
        "interval one byte smaller than a batch",
        segment(*ascending_batches(5), interval=len(ascending_batches(1)[0]) - 1),
        0,
    ),
    Case("interval Int32.max", segment(*ascending_batches(5), interval=INT32_MAX), 0),
)
