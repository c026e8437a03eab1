"""Segments as Kafka's own builders write them: what each is made of, by name, and random ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .reference_files import EmptyBatch, EndMarker, LeaderChange, WrittenBatch, WrittenRecord

if TYPE_CHECKING:
    import random

    from .reference_files import Written

CODECS = {
    0: ("none", "gzip", "snappy", "lz4"),
    1: ("none", "gzip", "snappy", "lz4"),
    2: ("none", "gzip", "snappy", "lz4", "zstd"),
}
START_MS = 1_700_000_000_000
INT32_MAX = 2**31 - 1
_PRODUCER = 7
_BYTES = (None, b"", b"\0", b"value" * 9, bytes(range(256)) * 3)


@dataclass(frozen=True)
class WrittenSegment:
    """Batches of one file, and the offset in its name."""

    name: str
    batches: tuple[Written, ...]
    base_offset: int = 0


def _records(first: int, count: int, step: int = 1, magic: int = 2) -> tuple[WrittenRecord, ...]:
    """Records with nulls and empty ones among them, timestamps going up and down."""
    headers = (("h", b"v"), ("", None), ("h", b"")) if magic == 2 else ()
    return tuple(
        WrittenRecord(
            first + i * step,
            START_MS + first + (i * 37) % 11 - 5,
            _BYTES[i % 3],
            _BYTES[(i + first) % len(_BYTES)],
            headers[: i % 4],
        )
        for i in range(count)
    )


def _of_format(magic: int, codec: str, log_append_time_ms: int | None) -> WrittenSegment:
    batches = tuple(
        WrittenBatch(
            _records(first, count, magic=magic),
            magic=magic,
            codec=codec,
            log_append_time_ms=None if log_append_time_ms is None else log_append_time_ms + first,
        )
        for first, count in ((0, 1), (1, 5), (6, 40), (46, 200), (246, 3))
    )
    time = "create time" if log_append_time_ms is None else "log append time"
    return WrittenSegment(f"magic {magic} {codec} {time}", batches)


FORMATS: tuple[WrittenSegment, ...] = tuple(
    _of_format(magic, codec, time)
    for magic, codecs in CODECS.items()
    for codec in codecs
    for time in ((None,) if magic == 0 else (None, START_MS))
)


def _transaction(first: int, *, commit: bool, codec: str) -> tuple[Written, ...]:
    data = WrittenBatch(
        _records(first, 4),
        codec=codec,
        producer_id=_PRODUCER,
        producer_epoch=0,
        base_sequence=first,
        transactional=True,
    )
    return (data, EndMarker(first + 4, _PRODUCER, commit=commit, timestamp_ms=START_MS + first))


def _timestamps(*timestamps_ms: int) -> WrittenBatch:
    return WrittenBatch(tuple(WrittenRecord(i, t) for i, t in enumerate(timestamps_ms)))


NAMED: tuple[WrittenSegment, ...] = (
    WrittenSegment(
        "transactions",
        (
            *_transaction(0, commit=True, codec="none"),
            *_transaction(5, commit=False, codec="zstd"),
            *_transaction(10, commit=True, codec="lz4"),
        ),
    ),
    WrittenSegment(
        "idempotent producer in two epochs",
        tuple(
            WrittenBatch(
                _records(first, 3), producer_id=1, producer_epoch=epoch, base_sequence=sequence
            )
            for first, epoch, sequence in ((0, 0, 0), (3, 0, 3), (6, 1, 0))
        ),
    ),
    WrittenSegment(
        "leader changes",
        (
            LeaderChange(0, 1, START_MS),
            WrittenBatch(_records(1, 3), leader_epoch=1),
            LeaderChange(4, 5, START_MS),
        ),
    ),
    WrittenSegment(
        "gaps between and inside batches",
        (
            WrittenBatch(_records(10, 3, step=100)),
            WrittenBatch(_records(5000, 2, step=7), codec="gzip"),
            WrittenBatch(_records(9000, 2), base_offset=8000, last_offset=9900),
        ),
        base_offset=10,
    ),
    WrittenSegment(
        "gaps in old messages",
        (
            WrittenBatch(_records(10, 3, step=100, magic=1), magic=1),
            WrittenBatch(_records(5000, 4, step=7, magic=1), magic=1, codec="gzip"),
            WrittenBatch(_records(6000, 4, step=7, magic=0), magic=0, codec="snappy"),
        ),
        base_offset=10,
    ),
    WrittenSegment(
        "batches emptied by compaction",
        (
            EmptyBatch(0, 9, START_MS, producer_id=3, producer_epoch=2, base_sequence=0),
            WrittenBatch(_records(10, 2)),
            EmptyBatch(12, 500, START_MS + 900),
            EmptyBatch(501, 501, START_MS, 3, 2, control=True, transactional=True),
        ),
    ),
    WrittenSegment(
        "delete horizons",
        (
            WrittenBatch(_records(0, 4), delete_horizon_ms=START_MS + 10**9),
            WrittenBatch(_records(4, 4), codec="zstd", delete_horizon_ms=0),
        ),
    ),
    WrittenSegment(
        "offset deltas up to the largest",
        (
            WrittenBatch((WrittenRecord(0, 5), WrittenRecord(INT32_MAX - 1, 6))),
            EmptyBatch(INT32_MAX, INT32_MAX, 7),
        ),
    ),
    WrittenSegment(
        "a batch that ends at the largest relative offset",
        (WrittenBatch((WrittenRecord(2**40, 5),), last_offset=2**40 + INT32_MAX),),
        base_offset=2**40,
    ),
    # A builder refuses them for a first record: they are in the batch's header.
    WrittenSegment("timestamps below zero", (_timestamps(-1, -5, -(2**40), -1, -3),)),
    WrittenSegment("timestamps far apart", (_timestamps(2**62, 0, -(2**62), 2**63 - 1),)),
    WrittenSegment("no timestamps", (_timestamps(-1, -1),)),
    WrittenSegment(
        "an old wrapper at offset 0",
        (WrittenBatch(_records(0, 1, magic=1), magic=1, codec="gzip"),),
    ),
    WrittenSegment(
        "formats after one another",
        (
            WrittenBatch(_records(0, 5, magic=0), magic=0, codec="lz4"),
            WrittenBatch(_records(5, 5, magic=0), magic=0),
            WrittenBatch(_records(10, 5, magic=1), magic=1, codec="lz4"),
            WrittenBatch(_records(15, 5, magic=1), magic=1),
            WrittenBatch(_records(20, 5), codec="lz4"),
        ),
    ),
)


def random_segment(rng: random.Random) -> WrittenSegment:
    """A segment of any of these things, in any order, that a partition could hold."""
    base_offset = rng.choice((0, 1, 1000, 2**40))
    offset = base_offset
    batches: list[Written] = []
    open_producers: set[int] = set()
    for _ in range(rng.randrange(1, 12)):
        offset += rng.choice((0, 0, 0, 1, 50))
        batch = _random_batch(rng, offset, open_producers)
        batches.append(batch)
        offset = _end(batch)
    return WrittenSegment("random", tuple(batches), base_offset)


def _random_batch(rng: random.Random, offset: int, open_producers: set[int]) -> Written:
    kind = rng.randrange(20)
    if kind == 0:
        return LeaderChange(offset, rng.randrange(9), START_MS)
    if kind == 1:
        return EmptyBatch(offset, offset + rng.randrange(99), START_MS + rng.randrange(99))
    if kind == 2:
        producer_id = rng.choice((*open_producers, 1, 2))
        open_producers.discard(producer_id)
        return EndMarker(offset, producer_id, commit=rng.random() < 0.5, timestamp_ms=START_MS)
    magic = rng.choice((0, 1, 2, 2, 2, 2))
    count = rng.choice((1, 1, 2, 5, 30))
    batch = WrittenBatch(
        tuple(_random_records(rng, offset, count, magic)),
        magic=magic,
        codec=rng.choice(CODECS[magic]),
        log_append_time_ms=START_MS + rng.randrange(99) if magic and rng.random() < 0.2 else None,
    )
    if magic < 2:
        return batch
    last = batch.records[-1].offset
    batch = replace(
        batch,
        leader_epoch=rng.randrange(9),
        last_offset=last + rng.randrange(20) if rng.random() < 0.2 else None,
        delete_horizon_ms=START_MS if rng.random() < 0.1 else -1,
    )
    if rng.random() < 0.7:
        return batch
    producer_id = rng.randrange(1, 4)
    transactional = producer_id in open_producers or rng.random() < 0.5
    if transactional:
        open_producers.add(producer_id)
    return replace(
        batch,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=rng.randrange(1000),
        transactional=transactional,
    )


def _random_records(rng: random.Random, offset: int, count: int, magic: int) -> list[WrittenRecord]:
    records: list[WrittenRecord] = []
    for _ in range(count):
        timestamp = START_MS + rng.randrange(-500, 500)
        if magic == 2 and records and rng.randrange(30) == 0:
            timestamp = rng.choice((-1, 0, -(2**40), 2**62))
        records.append(
            WrittenRecord(
                offset,
                timestamp,
                rng.choice(_BYTES),
                rng.choice(_BYTES),
                (("key", rng.choice(_BYTES)),) * rng.randrange(3) if magic == 2 else (),
            )
        )
        offset += rng.choice((1, 1, 1, 2, 9))
    return records


def _end(batch: Written) -> int:
    if isinstance(batch, EmptyBatch):
        return batch.last_offset + 1
    if isinstance(batch, WrittenBatch):
        last = batch.records[-1].offset if batch.last_offset is None else batch.last_offset
        return last + 1
    return batch.base_offset + 1
