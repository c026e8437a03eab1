"""Random logs with everything that records can be, sound and damaged, for tests of their decoding.

Records of all sizes, with and without headers, in batches and messages of every magic and codec;
gaps as compaction leaves them; damage inside of records under a right checksum, which only their
decoding finds; and the damage of `tests.support.damage` to the bytes of the log.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.damage import damage, with_checksum
from tests.support.odd_entries import ODDITIES, ORDERLY_ODDITIES
from tests.support.random_entries import CLOCKS, PRODUCERS, SPEC_BYTES, Choices, State, draw_entry
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
    from tests.support.random_entries import Entry

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


class LogGenerator(random.Random):
    """Draws of a log.

    `is_sound`: nothing may be wrong with it.
    """

    is_sound = False

    def wrong(self, share: float) -> bool:
        """Whether something is wrong that may be in this share of cases."""
        return self.random() < share and not self.is_sound


@dataclass(frozen=True)
class RandomLog:
    """The segments of a partition by base offset.

    `is_orderly`: the generator did not break the order of offsets. Forged fields may still do so.
    """

    segments: dict[int, bytes]
    is_orderly: bool


def draw_log(generated: LogGenerator) -> RandomLog:
    """A partition of one to three segments, with anything that may be wrong."""
    return _draw(generated, generated.choice(((), (), ORDERLY_ODDITIES, ODDITIES)))


def draw_intact_log(generated: LogGenerator) -> RandomLog:
    """A partition of one to three segments as a broker and its cleaner write them."""
    generated.is_sound = True
    return _draw(generated, ())


def _draw(generated: LogGenerator, oddities: tuple[Entry, ...]) -> RandomLog:
    state = State(generated.choice(_BASES), generated.choice(CLOCKS), oddities)
    damages = 0 if generated.is_sound else generated.choice((0, 0, 1, 1, 3))
    forging = generated.random() < 0.7
    segments: dict[int, bytes] = {}
    for _ in range(generated.choice((1, 1, 1, 2, 3))):
        base_offset = state.next_offset
        if base_offset < 0 or base_offset in segments:
            break
        pieces = [_entry(generated, state) for _ in range(generated.choice((0, 1, 3, 8, 20)))]
        for _ in range(damages):
            damage(Choices(generated.randbytes(40)), pieces, forging=forging)
        segments[base_offset] = b"".join(pieces)
        state.next_offset = max(state.next_offset, base_offset + 1)
    return RandomLog(segments, oddities is not ODDITIES)


def _entry(generated: LogGenerator, state: State) -> bytes:
    kind = generated.random()
    if kind < 0.5:
        return _batch(generated, state)
    if kind < 0.6:
        return _wrapper(generated, state)
    if kind < 0.68:
        return _message(generated, state)
    return draw_entry(Choices(generated.randbytes(SPEC_BYTES)), state)


def _field(generated: LogGenerator, *, is_large: bool = False) -> bytes | None:
    kind = generated.random()
    if kind < 0.15:
        return None
    if kind < 0.3:
        return b""
    if kind < 0.8:
        return generated.randbytes(generated.randrange(70))
    if kind < 0.97 or not is_large:
        return generated.randbytes(generated.choice(_SIZES))
    if kind < 0.9995:
        return bytes(generated.randrange(500, 20_000))
    return bytes(_HUGE_BYTES)


def _headers(generated: LogGenerator) -> tuple[tuple[bytes, bytes | None], ...]:
    return tuple(
        (
            generated.choice(_NAMES)
            if generated.random() < 0.5
            else generated.randbytes(generated.randrange(40)),
            _field(generated, is_large=generated.random() < 0.1),
        )
        for _ in range(generated.choice((0, 0, 1, 2, 7)))
    )


def _batch(generated: LogGenerator, state: State) -> bytes:
    count = generated.choice((0, 1, 1, 1, 2, 2, 3, 3, 5, 5, 10, 10, 40, 200))
    has_headers = generated.random() < 0.4
    records = []
    delta = 0
    for _ in range(count):
        time = generated.choice((0, 1, -5, 300, 70_000, 2**40))
        headers = _headers(generated) if has_headers else ()
        records.append(
            record(
                delta,
                time,
                _field(generated, is_large=True),
                _field(generated, is_large=True),
                headers,
            )
        )
        delta += generated.choice((1, 1, 1, 2, 130))
    payload, stated = _damaged(generated, records)
    codec = generated.choice(_CODECS)
    if codec:
        codec, payload = _squeezed(generated, codec, payload)
    attributes = codec
    for bit, share in ((LOG_APPEND_TIME, 0.15), (DELETE_HORIZON, 0.05)):
        attributes |= bit if generated.random() < share else 0
    producer_id = generated.choice((-1, 10, 11))
    if generated.random() < 0.2:
        attributes |= TRANSACTIONAL
        producer_id = generated.choice(PRODUCERS)
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
        last_offset_delta=generated.choice((0, 5, -1))
        if generated.wrong(0.03)
        else max(delta - 1, 0),
        base_timestamp=generated.choice((0, 1000, 1000, -1, 2**62)),
        max_timestamp=generated.choice((2000, 2000, -1)),
        producer_id=producer_id,
        producer_epoch=generated.choice((1, 32767)) if generated.wrong(0.1) else 0,
        base_sequence=generated.choice((-1, 0, INT32_MAX - 1)),
        leader_epoch=generated.choice((0, 0, 7, -1)),
    )


def _damaged(generated: LogGenerator, records: list[bytes]) -> tuple[bytes, int]:
    """The records of a batch and their count, now and then with damage that no checksum covers."""
    kind = generated.random()
    count = len(records)
    if generated.is_sound:
        return b"".join(records), count
    if records and kind < 0.2:
        number = generated.randrange(count)
        piece = bytearray(records[number])
        for _ in range(generated.choice((1, 1, 3))):
            at = generated.randrange(min(len(piece), generated.choice((4, 12, 10**9))))
            piece[at] = generated.choice((0, 1, 0x7F, 0x80, 0xFF, generated.randrange(256)))
        records[number] = bytes(piece)
    payload = b"".join(records)
    if kind > 0.94:
        payload += generated.randbytes(generated.randrange(1, 5))
    elif kind > 0.9:
        payload = payload[: generated.randrange(len(payload) + 1)]
    elif kind > 0.87:
        count = generated.choice((-1, 0, count + 1, max(count - 1, 0), 100_000, INT32_MAX))
    return payload, count


def _squeezed(generated: LogGenerator, codec: int, payload: bytes) -> tuple[int, bytes]:
    """The codec in the header and the compressed records, now and then damaged."""
    if codec == SNAPPY:
        # Small chunks of many bytes are slow, and no more than few of them.
        chunk = generated.choice((16, 100, 32_768)) if len(payload) < 5000 else 32_768
        is_framed = generated.random() < 0.5
        squeezed = xerial(payload, chunk) if is_framed else snappy_block(payload)
    else:
        squeezed = PACKERS[codec](payload)
    if generated.wrong(0.06):
        piece = bytearray(squeezed)
        piece[generated.randrange(len(piece))] ^= 1 << generated.randrange(8)
        squeezed = bytes(piece)
    if generated.wrong(0.03):
        squeezed = squeezed[: generated.randrange(len(squeezed) + 1)]
    if generated.wrong(0.02):
        codec = generated.randrange(8)
    return codec, squeezed


def _wrapper(generated: LogGenerator, state: State) -> bytes:
    """A message with others in it."""
    magic = generated.randrange(2)
    count = generated.choice((1, 2, 5, 60))
    if generated.wrong(0.1):
        count = 0
    first = state.next_offset
    inner_first = 0 if magic == 1 and generated.random() < 0.8 else first
    messages = []
    for number in range(count):
        inner = bytearray(
            message(
                inner_first + number,
                1 - magic if generated.wrong(0.03) else magic,
                generated.randrange(-1, 5000),
                _field(generated, is_large=True),
                _field(generated),
                attributes=generated.randrange(128) if generated.wrong(0.02) else 0,
                length=generated.choice((-1, 13, 14, 22, 30)) if generated.wrong(0.02) else None,
            )
        )
        if generated.wrong(0.02):
            inner[generated.randrange(len(inner))] = generated.choice(
                (0, 127, 255, generated.randrange(256))
            )
        messages.append(bytes(inner))
    payload = b"".join(messages)
    if generated.wrong(0.06):
        payload = payload[: generated.randrange(len(payload) + 1)]
    elif generated.wrong(0.04):
        payload += generated.randbytes(generated.randrange(40))
    codec = generated.choice(_WRAPPER_CODECS)
    squeezed = bytearray(PACKERS[codec](payload))
    if codec == LZ4 and magic == 0:
        squeezed[6] ^= 0x5A  # Kafka's first lz4 wrote another checksum of the frame's header
    state.next_offset = first + max(count, 1)
    last = first + max(count - 1, 0)
    return message(
        generated.choice((0, first)) if generated.wrong(0.05) else last,
        magic,
        4000,
        bytes(squeezed),
        _field(generated),
        attributes=codec
        | (LOG_APPEND_TIME if generated.random() < 0.2 else 0)
        | (generated.choice((CONTROL, TRANSACTIONAL)) if generated.random() < 0.02 else 0),
    )


def _message(generated: LogGenerator, state: State) -> bytes:
    """A message by itself."""
    offset = state.next_offset
    state.next_offset += 1
    bits = generated.choice((0, 0, 0, LOG_APPEND_TIME, CONTROL, TRANSACTIONAL))
    alone = message(
        offset,
        generated.randrange(2),
        generated.randrange(5000),
        _field(generated, is_large=True),
        _field(generated, is_large=True),
        attributes=bits if generated.random() < 0.2 else 0,
    )
    if not generated.wrong(0.2):
        return alone
    piece = bytearray(alone)
    at = generated.randrange(16, len(piece))
    piece[at] = generated.choice((0, 1, 127, 255, generated.randrange(256)))
    return with_checksum(bytes(piece))
