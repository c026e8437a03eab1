"""Keys, values and headers of records of every magic and codec."""

from __future__ import annotations

import numpy as np
import pytest

from kafka_index.core.errors import CorruptLogError
from kafka_index.core.records.decompression import DecompressionBudget
from kafka_index.core.records.record_decoder import BatchDamage, RecordDecoder
from tests.support.record_tables import RecordContent, read_contents
from tests.support.segments import (
    GZIP,
    LZ4,
    PACKERS,
    SNAPPY,
    batch,
    message,
    packed,
    record,
    varint,
)

ALL_CODECS = pytest.mark.parametrize("codec", [0, *PACKERS])
OLD_CODECS = pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
OLD_MAGICS = pytest.mark.parametrize("magic", [0, 1])

LONG = bytes(range(256)) * 40
HEADERS = ((b"a", b"1"), (b"", None), (b"a", b""))


def batch_of(*records: bytes, codec: int = 0, count: int | None = None) -> bytes:
    payload = packed(b"".join(records), codec)
    count = len(records) if count is None else count
    return batch(5, payload=payload, record_count=count, attributes=codec)


@ALL_CODECS
def test_records_have_their_keys_values_and_headers(codec: int) -> None:
    entry = batch_of(
        record(0, 2**40, b"key", LONG, HEADERS),
        record(2**20, -(2**62), None, None),
        record(2**20 + 1, 0, b"", b""),
        codec=codec,
    )
    assert read_contents(entry) == [
        RecordContent(b"key", LONG, HEADERS),
        RecordContent(None, None),
        RecordContent(b"", b""),
    ]


def test_batch_without_records_is_not_decompressed() -> None:
    entry = batch(0, payload=b"nonsense", record_count=0, attributes=GZIP)
    assert read_contents(entry) == []


def test_varint_is_truncated_to_32_bits() -> None:
    body = b"\0" + b"\0" + b"\0" + varint(1) + b"k" + b"\x82\x80\x80\x80\x10" + b"v" + varint(0)
    assert read_contents(batch_of(varint(len(body)) + body)) == [RecordContent(b"k", b"v")]


@OLD_MAGICS
def test_message_returns_key_and_value(magic: int) -> None:
    assert read_contents(message(7, magic, 1000, b"v", b"k")) == [RecordContent(b"k", b"v")]
    assert read_contents(message(7, magic, 1000, None, None)) == [RecordContent(None, None)]


@OLD_MAGICS
@OLD_CODECS
def test_compressed_message_returns_its_inner_messages(magic: int, codec: int) -> None:
    inner = [message(0, magic, 1, b"v", b"k"), message(1, magic, 1, LONG), message(2, magic, 1)]
    entry = message(7, magic, 1, packed(b"".join(inner), codec), attributes=codec)
    contents = [RecordContent(b"k", b"v"), RecordContent(None, LONG), RecordContent(None, b"")]
    assert read_contents(entry) == contents


def test_compressed_message_can_contain_messages_of_another_magic() -> None:
    inner = message(0, 0, 1, b"v", b"k") + message(1, 1, 1, b"w", b"l")
    entry = message(7, 1, 1, packed(inner, GZIP), attributes=GZIP)
    assert read_contents(entry) == [RecordContent(b"k", b"v"), RecordContent(b"l", b"w")]


@OLD_MAGICS
@pytest.mark.parametrize("body", [b"\0\0\0\5abcd", b"\0\0\0\4abcd", b"\0\0\0\1k\0\0\0\2v"])
def test_truncated_message_is_an_error(magic: int, body: bytes) -> None:
    times = bytes(8) if magic else b""
    entry = message(7, magic, body=times + body)
    with pytest.raises(CorruptLogError, match="ends inside the key or the value"):
        read_contents(entry)


@pytest.mark.parametrize("size", [10, 2_500_000])
@pytest.mark.parametrize("codec", PACKERS)
def test_compressed_batch_with_a_malformed_record_returns_no_record(codec: int, size: int) -> None:
    good = batch_of(record(0, 0, b"k", b"v"), codec=codec)
    sound = record(0, 0, None, bytes(size))
    damaged = batch_of(sound, b"\x09" * 9, codec=codec, count=2)
    entries = [good, damaged, good]
    data = np.frombuffer(b"".join(entries), np.uint8)
    sizes = np.array([len(entry) for entry in entries])
    decoder = RecordDecoder(DecompressionBudget(1 << 26))
    listing = list(decoder.decode(data, np.cumsum(sizes) - sizes, sizes, len))
    assert [one for one in listing if isinstance(one, int)] == [1, 1]
    (damage,) = (one for one in listing if isinstance(one, BatchDamage))
    assert damage.batch == 1
    assert damage.error.message.startswith("record 2 of 2 cannot be read")


@pytest.mark.parametrize("codec", [0, *PACKERS])
def test_compressed_batch_of_more_records_than_a_chunk_is_read(codec: int) -> None:
    records = [record(number, number, b"", None) for number in range(50)]
    entries = [batch_of(*records[:3], codec=codec), batch_of(*records, codec=codec)]
    data = np.frombuffer(b"".join(entries), np.uint8)
    sizes = np.array([len(entry) for entry in entries])
    decoder = RecordDecoder(DecompressionBudget(1 << 26), chunk_records=20)
    offsets: list[int] = []
    for chunk in decoder.decode(
        data, np.cumsum(sizes) - sizes, sizes, lambda chunk: chunk.offsets.tolist()
    ):
        assert not isinstance(chunk, BatchDamage)
        offsets += chunk
    assert offsets == [5, 6, 7, *range(5, 55)]


@pytest.mark.parametrize("codec", [0, *PACKERS])
def test_batch_larger_than_the_expected_chunk_size_is_read(codec: int) -> None:
    values = [None, b"", *(bytes([number]) * (300 * number) for number in range(40)), b"x"]
    records = [record(number, 0, None, value) for number, value in enumerate(values)]
    contents = read_contents(batch_of(*records, codec=codec))
    assert [content.value for content in contents] == values
