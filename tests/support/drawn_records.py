"""Drawn logs with everything that records can be, sound and damaged, for tests of their decoding.

Records of all sizes, with and without headers, in batches and messages of every magic and codec;
gaps as compaction leaves them; damage inside of records under a right checksum, which only their
decoding finds; and the damage of `tests.support.damage` to the bytes of the log.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.damage import damage, with_checksum
from tests.support.drawn_entries import CLOCKS, PRODUCERS, SPEC_BYTES, Choices, State, draw_entry
from tests.support.odd_entries import ODDITIES, ORDERLY_ODDITIES
from tests.support.segments import (
    CONTROL,
    DELETE_HORIZON,
    INT32_MAX,
    LOG_APPEND_TIME,
    LZ4,
    PACKERS,
    SNAPPY,
    TRANSACTIONAL,
    batch,
    message,
    record,
    snappy_block,
    xerial,
)

if TYPE_CHECKING:
    from tests.support.drawn_entries import Entry

_BASES = (0, 0, 0, 5, 2**40)
_CODECS = (0, 0, *PACKERS, 4)
_WRAPPER_CODECS = (1, 2, 3)
_SIZES = (31, 32, 33, 63, 64, 65, 127, 128, 200, 511, 512, 513)
#: More than a window of a local log.
_HUGE_BYTES = 2 * 1024 * 1024 + 100
#: Valid UTF-8, and what Java and others may read in different ways.
_NAMES = (
    b"",
    b"name",
    "größe".encode(),
    "\U0001f600".encode(),
    b"\xff",
    b"\xc3",
    b"a\xed\xa0\x80b",
    b"\xed\xa0\xbd\xed\xb8\x80",
    b"\xf0\x9f\x98",
    b"\xe2\x82",
    b"\xc0\x80",
    b"\xf5\x80\x80\x80",
    b"\xf0\x80\x80\x80",
    b"\xe0\x80\x80z",
    b"\xf4\x90\x80\x80",
)


class Drawing(random.Random):
    """Draws of a log.

    `is_sound`: nothing may be wrong with it.
    """

    is_sound = False

    def wrong(self, share: float) -> bool:
        """Whether something is wrong that may be in this share of cases."""
        return self.random() < share and not self.is_sound


@dataclass(frozen=True)
class DrawnLog:
    """The segments of a partition by base offset.

    `is_orderly`: nothing was drawn that breaks the order of offsets. Forged fields may still have.
    """

    segments: dict[int, bytes]
    is_orderly: bool


def draw_log(drawn: Drawing) -> DrawnLog:
    """A partition of one to three segments, with anything that may be wrong."""
    return _draw(drawn, drawn.choice(((), (), ORDERLY_ODDITIES, ODDITIES)))


def draw_sound_log(drawn: Drawing) -> DrawnLog:
    """A partition of one to three segments as a broker and its cleaner write them."""
    drawn.is_sound = True
    return _draw(drawn, ())


def _draw(drawn: Drawing, oddities: tuple[Entry, ...]) -> DrawnLog:
    state = State(drawn.choice(_BASES), drawn.choice(CLOCKS), oddities)
    damages = 0 if drawn.is_sound else drawn.choice((0, 0, 1, 1, 3))
    forging = drawn.random() < 0.7
    segments: dict[int, bytes] = {}
    for _ in range(drawn.choice((1, 1, 1, 2, 3))):
        base_offset = state.next_offset
        if base_offset < 0 or base_offset in segments:
            break
        pieces = [_entry(drawn, state) for _ in range(drawn.choice((0, 1, 3, 8, 20)))]
        for _ in range(damages):
            damage(Choices(drawn.randbytes(40)), pieces, forging=forging)
        segments[base_offset] = b"".join(pieces)
        state.next_offset = max(state.next_offset, base_offset + 1)
    return DrawnLog(segments, oddities is not ODDITIES)


def _entry(drawn: Drawing, state: State) -> bytes:
    kind = drawn.random()
    if kind < 0.5:
        return _batch(drawn, state)
    if kind < 0.6:
        return _wrapper(drawn, state)
    if kind < 0.68:
        return _message(drawn, state)
    return draw_entry(Choices(drawn.randbytes(SPEC_BYTES)), state)


def _field(drawn: Drawing, *, is_large: bool = False) -> bytes | None:
    kind = drawn.random()
    if kind < 0.15:
        return None
    if kind < 0.3:
        return b""
    if kind < 0.8:
        return drawn.randbytes(drawn.randrange(70))
    if kind < 0.97 or not is_large:
        return drawn.randbytes(drawn.choice(_SIZES))
    if kind < 0.9995:
        return bytes(drawn.randrange(500, 20_000))
    return bytes(_HUGE_BYTES)


def _headers(drawn: Drawing) -> tuple[tuple[bytes, bytes | None], ...]:
    return tuple(
        (
            drawn.choice(_NAMES) if drawn.random() < 0.5 else drawn.randbytes(drawn.randrange(40)),
            _field(drawn, is_large=drawn.random() < 0.1),
        )
        for _ in range(drawn.choice((0, 0, 1, 2, 7)))
    )


def _batch(drawn: Drawing, state: State) -> bytes:
    count = drawn.choice((0, 1, 1, 1, 2, 2, 3, 3, 5, 5, 10, 10, 40, 200))
    has_headers = drawn.random() < 0.4
    records = []
    delta = 0
    for _ in range(count):
        time = drawn.choice((0, 1, -5, 300, 70_000, 2**40))
        headers = _headers(drawn) if has_headers else ()
        records.append(
            record(delta, time, _field(drawn, is_large=True), _field(drawn, is_large=True), headers)
        )
        delta += drawn.choice((1, 1, 1, 2, 130))
    payload, stated = _damaged(drawn, records)
    codec = drawn.choice(_CODECS)
    if codec:
        codec, payload = _squeezed(drawn, codec, payload)
    attributes = codec
    for bit, share in ((LOG_APPEND_TIME, 0.15), (DELETE_HORIZON, 0.05)):
        attributes |= bit if drawn.random() < share else 0
    producer_id = drawn.choice((-1, 10, 11))
    if drawn.random() < 0.2:
        attributes |= TRANSACTIONAL
        producer_id = drawn.choice(PRODUCERS)
        if producer_id not in state.open_transactions:
            state.open_transactions.append(producer_id)
    offset = state.next_offset
    state.next_offset += max(delta, 1)
    return batch(
        offset,
        timestamps=[1000] * count,
        payload=payload,
        record_count=stated,
        attributes=attributes,
        last_offset_delta=drawn.choice((0, 5, -1)) if drawn.wrong(0.03) else max(delta - 1, 0),
        base_timestamp=drawn.choice((0, 1000, 1000, -1, 2**62)),
        max_timestamp=drawn.choice((2000, 2000, -1)),
        producer_id=producer_id,
        producer_epoch=drawn.choice((1, 32767)) if drawn.wrong(0.1) else 0,
        base_sequence=drawn.choice((-1, 0, INT32_MAX - 1)),
        leader_epoch=drawn.choice((0, 0, 7, -1)),
    )


def _damaged(drawn: Drawing, records: list[bytes]) -> tuple[bytes, int]:
    """The records of a batch and their count, now and then with damage that no checksum covers."""
    kind = drawn.random()
    count = len(records)
    if drawn.is_sound:
        return b"".join(records), count
    if records and kind < 0.2:
        number = drawn.randrange(count)
        piece = bytearray(records[number])
        for _ in range(drawn.choice((1, 1, 3))):
            at = drawn.randrange(min(len(piece), drawn.choice((4, 12, 10**9))))
            piece[at] = drawn.choice((0, 1, 0x7F, 0x80, 0xFF, drawn.randrange(256)))
        records[number] = bytes(piece)
    payload = b"".join(records)
    if kind > 0.94:
        payload += drawn.randbytes(drawn.randrange(1, 5))
    elif kind > 0.9:
        payload = payload[: drawn.randrange(len(payload) + 1)]
    elif kind > 0.87:
        count = drawn.choice((-1, 0, count + 1, max(count - 1, 0), 100_000, INT32_MAX))
    return payload, count


def _squeezed(drawn: Drawing, codec: int, payload: bytes) -> tuple[int, bytes]:
    """The codec in the header and the compressed records, now and then damaged."""
    if codec == SNAPPY:
        # Small chunks of many bytes are slow, and no more than few of them.
        chunk = drawn.choice((16, 100, 32_768)) if len(payload) < 5000 else 32_768
        is_framed = drawn.random() < 0.5
        squeezed = xerial(payload, chunk) if is_framed else snappy_block(payload)
    else:
        squeezed = PACKERS[codec](payload)
    if drawn.wrong(0.06):
        piece = bytearray(squeezed)
        piece[drawn.randrange(len(piece))] ^= 1 << drawn.randrange(8)
        squeezed = bytes(piece)
    if drawn.wrong(0.03):
        squeezed = squeezed[: drawn.randrange(len(squeezed) + 1)]
    if drawn.wrong(0.02):
        codec = drawn.randrange(8)
    return codec, squeezed


def _wrapper(drawn: Drawing, state: State) -> bytes:
    """A message with others in it."""
    magic = drawn.randrange(2)
    count = drawn.choice((1, 2, 5, 60))
    if drawn.wrong(0.1):
        count = 0
    first = state.next_offset
    inner_first = 0 if magic == 1 and drawn.random() < 0.8 else first
    messages = []
    for number in range(count):
        inner = bytearray(
            message(
                inner_first + number,
                1 - magic if drawn.wrong(0.03) else magic,
                drawn.randrange(-1, 5000),
                _field(drawn, is_large=True),
                _field(drawn),
                attributes=drawn.randrange(128) if drawn.wrong(0.02) else 0,
                length=drawn.choice((-1, 13, 14, 22, 30)) if drawn.wrong(0.02) else None,
            )
        )
        if drawn.wrong(0.02):
            inner[drawn.randrange(len(inner))] = drawn.choice((0, 127, 255, drawn.randrange(256)))
        messages.append(bytes(inner))
    payload = b"".join(messages)
    if drawn.wrong(0.06):
        payload = payload[: drawn.randrange(len(payload) + 1)]
    elif drawn.wrong(0.04):
        payload += drawn.randbytes(drawn.randrange(40))
    codec = drawn.choice(_WRAPPER_CODECS)
    squeezed = bytearray(PACKERS[codec](payload))
    if codec == LZ4 and magic == 0:
        squeezed[6] ^= 0x5A  # Kafka's first lz4 wrote another checksum of the frame's header
    state.next_offset = first + max(count, 1)
    last = first + max(count - 1, 0)
    return message(
        drawn.choice((0, first)) if drawn.wrong(0.05) else last,
        magic,
        4000,
        bytes(squeezed),
        _field(drawn),
        attributes=codec
        | (LOG_APPEND_TIME if drawn.random() < 0.2 else 0)
        | (drawn.choice((CONTROL, TRANSACTIONAL)) if drawn.random() < 0.02 else 0),
    )


def _message(drawn: Drawing, state: State) -> bytes:
    """A message by itself."""
    offset = state.next_offset
    state.next_offset += 1
    bits = drawn.choice((0, 0, 0, LOG_APPEND_TIME, CONTROL, TRANSACTIONAL))
    alone = message(
        offset,
        drawn.randrange(2),
        drawn.randrange(5000),
        _field(drawn, is_large=True),
        _field(drawn, is_large=True),
        attributes=bits if drawn.random() < 0.2 else 0,
    )
    if not drawn.wrong(0.2):
        return alone
    piece = bytearray(alone)
    at = drawn.randrange(16, len(piece))
    piece[at] = drawn.choice((0, 1, 127, 255, drawn.randrange(256)))
    return with_checksum(bytes(piece))
