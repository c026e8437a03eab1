"""The turns of a decoder, also over a log that changes meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from kafka_index.core.records.decompression import DecompressionBudget
from kafka_index.core.records.record_decoder import (
    CHUNK_RECORDS,
    BatchDamage,
    RecordChunk,
    RecordDecoder,
    RecordParts,
)
from tests.support.segments import LZ4, PACKERS, ZSTD, batch, message, packed, record

MIB = 1 << 20


def entry(*records: bytes, codec: int = 0) -> bytes:
    payload = packed(b"".join(records), codec)
    return batch(0, payload=payload, record_count=len(records), attributes=codec)


class Reading:
    """Decodes entries, and counts the chunks."""

    def __init__(self, *entries: bytes, chunk_records: int = CHUNK_RECORDS) -> None:
        self.made = 0
        self.window: NDArray[np.uint8] = np.frombuffer(bytearray(b"".join(entries)), np.uint8)
        self._sizes = np.array([len(one) for one in entries])
        self._decoder = RecordDecoder(DecompressionBudget(1 << 26), chunk_records=chunk_records)

    def chunks(self) -> Iterator[list[tuple[bytes | None, list[tuple[bytes, bytes | None]]]]]:
        """The value and the headers of each record of a chunk."""
        positions = np.cumsum(self._sizes) - self._sizes
        for found in self._decoder.decode(self.window, positions, self._sizes, self.convert):
            assert not isinstance(found, BatchDamage)
            yield found

    def convert(
        self, chunk: RecordChunk
    ) -> list[tuple[bytes | None, list[tuple[bytes, bytes | None]]]]:
        self.made += 1
        assert chunk.values is not None
        names, contents = (column.to_pylist() for column in chunk.header_columns())
        headers = iter(zip(names, contents, strict=True))
        return [
            (value, [next(headers) for _ in range(count)])
            for value, count in zip(
                chunk.values.to_pylist(), chunk.header_counts().tolist(), strict=True
            )
        ]


@pytest.mark.parametrize("headers", [(), ((b"name", b"text"),)], ids=["plain", "headers"])
@pytest.mark.parametrize("codec", [0, *PACKERS])
def test_next_chunk_is_decoded_after_the_previous_one_is_consumed(
    codec: int, headers: tuple[tuple[bytes, bytes], ...]
) -> None:
    values = [str(number).encode() * 100 for number in range(16 * 40)]
    records = [record(number, 0, None, value, headers) for number, value in enumerate(values)]
    entries = [entry(*records[at : at + 16], codec=codec) for at in range(0, len(records), 16)]
    reading = Reading(*entries, chunk_records=25)
    found = []
    for taken, chunk in enumerate(reading.chunks(), 1):
        assert reading.made == taken
        found += chunk
    assert found == [(value, list(headers)) for value in values]


def test_chunk_ends_before_its_headers_have_too_many_bytes() -> None:
    large = ((b"h", bytes(3 * MIB // 2)),)
    records = [record(number, 0, None, b"", large) for number in range(5)]
    assert [len(chunk) for chunk in Reading(entry(*records)).chunks()] == [2, 2, 1]


def test_record_with_headers_larger_than_a_chunk_is_a_chunk() -> None:
    larger = ((b"h", bytes(5 * MIB)),)
    records = [record(number, 0, None, b"", larger) for number in range(2)]
    assert [len(chunk) for chunk in Reading(entry(*records)).chunks()] == [1, 1]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (b"\x06abc", b"\x7eabc", [(b"", None), (b"", None)]),
        (b"\x06abc", b"\x05abc", [(b"", None), (b"", None)]),
        (b"\x06abc", b"\xff\xff\xff\xff", [(b"", None), (b"", None)]),
        (b"\x04de", b"\x7ede", [(b"abc", None), (b"", None)]),
        (b"\x04kl", b"\x06kl", [(b"abc", b"de"), (b"fghij", None)]),
    ],
)
def test_headers_changed_during_decoding_are_not_read_beyond_their_record(
    old: bytes, new: bytes, expected: list[tuple[bytes, bytes | None]]
) -> None:
    class Changing(Reading):
        def convert(
            self, chunk: RecordChunk
        ) -> list[tuple[bytes | None, list[tuple[bytes, bytes | None]]]]:
            at = self.window.tobytes().index(old)
            self.window[at : at + len(new)] = np.frombuffer(new, np.uint8)
            return super().convert(chunk)

    own = ((b"abc", b"de"), (b"fghij", b"kl"))
    log = entry(record(0, 0, None, b"first", own), record(1, 0, None, bytes(200)))
    (chunk,) = Changing(log).chunks()
    assert chunk[0] == (b"first", expected)


def test_large_key_allocates_no_value_buffer() -> None:
    key = bytes(16 * MIB)
    window = np.frombuffer(entry(record(0, 0, key, b"v")), np.uint8)
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    held = []

    def measure(_: RecordChunk) -> None:
        held.append(pool.bytes_allocated() - before)

    decoder = RecordDecoder(DecompressionBudget(1 << 26))
    sizes = np.array([len(window)])
    assert list(decoder.decode(window, np.zeros(1, np.int64), sizes, measure))
    assert held[0] < len(key) + 8 * MIB


class Large:
    """A compressed entry of 1 MiB records, which is decoded in parts."""

    def __init__(self, records: int, magic: int = 2) -> None:
        values = [bytes([number % 256]) * MIB for number in range(records)]
        if magic == 2:
            records_of = [record(at, 0, None, value) for at, value in enumerate(values)]
            log = entry(*records_of, codec=ZSTD)
        else:
            inner = b"".join(message(at, magic, value=value) for at, value in enumerate(values))
            log = message(records - 1, magic, value=packed(inner, LZ4), attributes=LZ4)
        self.window = np.frombuffer(bytearray(log), np.uint8)
        self.budget = DecompressionBudget((records + 1) * (MIB + 64))

    def firsts(self) -> Iterator[list[int]]:
        """The first byte of each value of a chunk."""
        decoder = RecordDecoder(self.budget, RecordParts.VALUES)
        sizes = np.array([len(self.window)])
        for found in decoder.decode(self.window, np.zeros(1, np.int64), sizes, self._convert):
            assert not isinstance(found, BatchDamage)
            assert found.null_count == 0
            yield [value.as_buffer()[0] for value in found]

    def _convert(self, chunk: RecordChunk) -> pa.Array:
        assert chunk.inner_offsets in ({}, {0: 0})
        return chunk.values


def test_batch_of_300_mb_is_decoded_in_parts_that_release_their_memory() -> None:
    large = Large(300)
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    found = []
    for chunk in large.firsts():
        found += chunk
        assert pool.bytes_allocated() - before < 96 * MIB
        assert large.budget.free_bytes == large.budget.max_bytes
    assert found == [number % 256 for number in range(300)]


def test_large_batch_changed_between_parts_is_read_from_its_first_state() -> None:
    large = Large(40)
    found = []
    for chunk in large.firsts():
        found += chunk
        large.window[:] = 0xFF
    assert found == list(range(40))


def test_large_compressed_message_is_decoded_in_parts() -> None:
    assert [first for chunk in Large(40, magic=1).firsts() for first in chunk] == list(range(40))
