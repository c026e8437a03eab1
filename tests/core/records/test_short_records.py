"""Records that the hot loop of decoding reads, beside records that it leaves to others."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import numpy as np
import pytest

from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.kernels.record_fields import RECORD_BROKEN, RECORD_CUT, RECORDS_REMAINING
from kafka_index.core.records.decompression import DecompressionBudget
from kafka_index.core.records.record_decoder import (
    BatchDamage,
    RecordChunk,
    RecordDecoder,
    RecordParts,
)
from kafka_index.core.records.record_sections import record_fault
from tests.support.segments import LZ4, PACKERS, batch, packed, record, varint

LOG_APPEND_TIME = 8
INT64_MIN = -INT64_MAX - 1
#: Around what is copied at once, what a call copies, and what a varint of two bytes can say.
SIZES = (0, 1, 31, 32, 63, 64, 65, 127, 128, 129, 511, 512, 513, 4095, 8191, 8192)
#: Around deltas of one byte, of two, and of three.
DELTAS = (0, 1, 63, 64, 8191, 8192, 1 << 20, -1, -64, -65, -8192, -8193)


class Row(NamedTuple):
    """The fields that are read of a record."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def random_field(random: Random) -> bytes | None:
    return None if random.random() < 0.1 else random.randbytes(random.choice(SIZES))


def random_batch(random: Random, base_offset: int, codec: int = 0) -> tuple[bytes, list[Row]]:
    """A batch of records of all shapes, most of them short, and its rows."""
    uses_append_time = random.random() < 0.3
    rows, records = [], []
    for number in range(random.randrange(1, 40)):
        headers = ((b"h", b"1"),) if random.random() < 0.05 else ()
        is_odd = random.random() < 0.1
        key = random_field(random) if is_odd else b"key %d" % number
        value = random_field(random) if is_odd else random.randbytes(random.randrange(150))
        delta = random.choice(DELTAS) if is_odd else number
        timestamp_delta = random.choice(DELTAS) if is_odd else 3 * number
        records.append(record(delta, timestamp_delta, key, value, headers))
        timestamp = 2000 if uses_append_time else 1000 + timestamp_delta
        rows.append(Row(base_offset + delta, timestamp, key, value))
    attributes = codec | (LOG_APPEND_TIME if uses_append_time else 0)
    entry = batch(
        base_offset,
        payload=packed(b"".join(records), codec),
        record_count=len(records),
        attributes=attributes,
        base_timestamp=1000,
        max_timestamp=2000,
    )
    return entry, rows


def rows_of(chunk: RecordChunk) -> list[Row]:
    offsets, times = chunk.offsets.tolist(), chunk.timestamps_ms.tolist()
    nothing = [None] * len(chunk)
    keys = nothing if chunk.keys is None else chunk.keys.to_pylist()
    values = nothing if chunk.values is None else chunk.values.to_pylist()
    return [Row(*row) for row in zip(offsets, times, keys, values, strict=True)]


def read(
    entries: list[bytes],
    parts: RecordParts = RecordParts.ALL,
    first_offset: int = INT64_MIN,
    last_offset: int = INT64_MAX,
    chunk_records: int = 1000,
) -> list[Row | BatchDamage]:
    """Read entries that lie in one window, whose memory ends where they do."""
    sizes = np.array([len(entry) for entry in entries])
    decoder = RecordDecoder(DecompressionBudget(1 << 26), parts, chunk_records=chunk_records)
    found: list[Row | BatchDamage] = []
    for result in decoder.decode(
        np.frombuffer(b"".join(entries), np.uint8),
        np.cumsum(sizes) - sizes,
        sizes,
        rows_of,
        first_offset=first_offset,
        last_offset=last_offset,
    ):
        found += [result] if isinstance(result, BatchDamage) else result
    return found


@pytest.mark.parametrize("codec", [0, *PACKERS])
def test_records_of_alternating_shapes_are_read(codec: int) -> None:
    random = Random(codec)
    entries, expected = [], []
    for number in range(60):
        entry, rows = random_batch(random, 100_000 * number, codec)
        entries.append(entry)
        expected += rows
    for chunk_records in (7, 100, 5000):
        assert read(entries, chunk_records=chunk_records) == expected


@pytest.mark.parametrize("parts", [RecordParts.NONE, RecordParts.KEYS, RecordParts.VALUES])
def test_only_requested_fields_are_read(parts: RecordParts) -> None:
    entries, expected = [], []
    for number in range(20):
        entry, rows = random_batch(Random(number), 100_000 * number)
        entries.append(entry)
        expected += [
            Row(
                row.offset,
                row.timestamp,
                row.key if parts & RecordParts.KEYS else None,
                row.value if parts & RecordParts.VALUES else None,
            )
            for row in rows
        ]
    assert read(entries, parts) == expected


@pytest.mark.parametrize("base_offset", [0, 16384, INT64_MAX - 20_000, INT64_MIN + 20_000])
def test_records_outside_the_bounds_are_skipped(base_offset: int) -> None:
    random = Random(base_offset)
    for _ in range(40):
        entry, rows = random_batch(random, base_offset)
        first = base_offset + random.choice((-40_000, -8193, -1, 0, 5, 8192))
        last = base_offset + random.choice((-1, 0, 20, 8191, 40_000))
        first, last = max(first, INT64_MIN), min(last, INT64_MAX)
        wanted = [
            row._replace(offset=(row.offset + 2**63) % 2**64 - 2**63)
            for row in rows
            if first <= (row.offset + 2**63) % 2**64 - 2**63 <= last
        ]
        # Read where the window ends with the batch, and where another follows.
        far = min(base_offset + 100_000, INT64_MAX - 8192)
        for rest in ([], [batch(far, records=1)]):
            result = read([entry, *rest], first_offset=first, last_offset=min(last, far - 1))
            assert result == [row for row in wanted if row.offset < far]


@pytest.mark.parametrize("count", [1, 2, 10])
@pytest.mark.parametrize("is_in_the_middle", [False, True])
def test_records_before_a_damaged_one_are_read(count: int, *, is_in_the_middle: bool) -> None:
    sound = [record(number, number, b"k", b"v" * number) for number in range(10)]
    rest = [batch(100_000, records=1)] if is_in_the_middle else []
    for damaged, code, after in (
        (varint(5) + b"\0\0\0\1\1", RECORD_BROKEN, 9),
        (b"\x7e" + bytes(5), RECORD_CUT, 0),
    ):
        payload = b"".join(sound[:count]) + damaged + b"".join(sound[:after])
        entry = batch(5, payload=payload, record_count=count + 1 + after)
        *rows, damage = read([entry, *rest])[: count + 1]
        assert [row.offset for row in rows if isinstance(row, Row)] == list(range(5, 5 + count))
        assert isinstance(damage, BatchDamage)
        assert damage.error.message == record_fault(count, count + 1 + after, code)


@pytest.mark.parametrize("codec", [0, LZ4])
def test_bytes_after_the_last_record_make_the_last_record_damaged(codec: int) -> None:
    sound = [record(number, number, b"k", b"v") for number in range(10)]
    payload = packed(b"".join([*sound, b"\0" * 20]), codec)
    entry = batch(5, payload=payload, record_count=10, attributes=codec)
    *rows, damage, last = read([entry, batch(100_000, records=1)])
    assert len(rows) == (0 if codec else 9)
    assert isinstance(damage, BatchDamage)
    assert damage.error.message == record_fault(9, 10, RECORDS_REMAINING)
    assert isinstance(last, Row)
