"""Named segments about where an entry begins and ends, and whether it is valid."""

from __future__ import annotations

import struct

from tests.support.cases import FIRST, NEXT, Case
from tests.support.segments import CODEC_GZIP, INT32_MAX, LOG_APPEND_TIME, batch, message, segment

LEGACY_MAGICS = (-1, -128)
HIGH_MAGICS = (3, 0x57, 127)


def tail(name: str, junk: bytes) -> Case:
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
        tail(f"{size} zero bytes behind a batch", bytes(size))
        for size in (1, 11, 12, 16, 17, 18, 61, 8192)
    ),
    *(
        tail(f"first {size} bytes of a batch", NEXT[:size])
        for size in (16, 17, 18, 60, 61, len(NEXT) - 1)
    ),
    *(
        tail(f"length field {n}", entry(n))
        for n in (13, 0, -1, -(2**31), INT32_MAX, INT32_MAX - 12)
    ),
    *(tail(f"magic 2 with length field {n}", entry(n, size=12 + n)) for n in (14, 22, 48)),
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
    *(tail(f"magic 2 batch with its magic byte made {m}", batch(3, magic=m)) for m in (0, 1, -1)),
    *(
        Case(f"magic {m} reads as 1", segment(FIRST, message(3, m, 9000, b"abc"), batch(4)), 0)
        for m in LEGACY_MAGICS
    ),
    *(tail(f"magic {m} with a wrong CRC", message(3, m, 9000, crc=1)) for m in (0, 1, -1)),
    tail("magic 0 with length field 13", message(3, 0, body=bytes(7))),
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
