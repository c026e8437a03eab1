"""Builders of compressed entries: batches of magic 2, and wrappers of magic 0 and 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.packing import LZ4, PACKERS, snappy_block
from tests.support.segments import LOG_APPEND_TIME, batch, message, record

if TYPE_CHECKING:
    from collections.abc import Sequence

CODECS = tuple(PACKERS)
#: zstd came after magic 1.
WRAPPER_CODECS = CODECS[:3]

_LZ4_CHECKSUM_AT = 6


def packed_batch(
    base_offset: int,
    records: Sequence[tuple[int, int]],
    codec: int = 0,
    *,
    value_size: int = 20,
    last_offset_delta: int | None = None,
    log_append_ms: int | None = None,
    max_timestamp: int | None = None,
    unframed: bool = False,
    leader_epoch: int = 0,
) -> bytes:
    """A magic 2 batch of records with any offsets, as compaction leaves them.

    `base_offset`, `last_offset_delta`, `max_timestamp`, `leader_epoch`: header fields; the middle
    ones follow from the records unless given. `records`: offset delta and timestamp of each.
    `codec`, `unframed`: what the records are really compressed with; with snappy, without xerial's
    framing. `log_append_ms`: the broker's time, which stands for the records' own.
    """
    first = records[0][1] if records else -1
    payload = b"".join(
        record(delta, time - first, None, bytes(value_size)) for delta, time in records
    )
    if codec:
        payload = snappy_block(payload) if unframed else PACKERS[codec](payload)
    delta = max((delta for delta, _ in records), default=0)
    if log_append_ms is not None:
        max_timestamp = log_append_ms
    return batch(
        base_offset,
        timestamps=[time for _, time in records],
        attributes=codec | (0 if log_append_ms is None else LOG_APPEND_TIME),
        last_offset_delta=delta if last_offset_delta is None else last_offset_delta,
        max_timestamp=max_timestamp,
        payload=payload,
        leader_epoch=leader_epoch,
    )


def wrapper(
    last_offset: int,
    magic: int,
    messages: Sequence[tuple[int, int]],
    codec: int,
    *,
    timestamp: int | None = None,
    log_append_ms: int | None = None,
    value_size: int = 10,
) -> bytes:
    """A message of magic 0 or 1 that holds others, compressed.

    `last_offset`: offset of the wrapper: that of the last message, or what a producer left there.
    `messages`: offset (relative in magic 1, absolute in magic 0) and timestamp of each. `codec`:
    one of `WRAPPER_CODECS`. Magic 0 gets the frame checksum that Kafka's first lz4 wrote.
    `timestamp`, `log_append_ms`: the wrapper's own; by default the latest of the messages. With the
    broker's time, that stands for theirs.
    """
    packed = PACKERS[codec](
        b"".join(message(offset, magic, time, bytes(value_size)) for offset, time in messages)
    )
    if magic == 0 and codec == LZ4:
        wrong = packed[_LZ4_CHECKSUM_AT] ^ 0x5A
        packed = packed[:_LZ4_CHECKSUM_AT] + bytes([wrong]) + packed[_LZ4_CHECKSUM_AT + 1 :]
    if log_append_ms is not None:
        timestamp = log_append_ms
    elif timestamp is None:
        timestamp = max((time for _, time in messages), default=-1)
    bits = codec | (0 if log_append_ms is None else LOG_APPEND_TIME)
    return message(last_offset, magic, timestamp, packed, attributes=bits)
