"""The records of entries of every magic and codec, as Kafka 4.3.1 was seen to hand them out."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from kafka_index.core.errors import CorruptLogError, TooLargeError
from tests.support.record_tables import read_first_offset, read_records
from tests.support.segments import (
    DELETE_HORIZON,
    GZIP,
    LOG_APPEND_TIME,
    LZ4,
    PACKERS,
    SNAPPY,
    ZSTD,
    batch,
    marker,
    message,
    record,
    snappy_block,
    varint,
)

NONE = 0
CODECS = pytest.mark.parametrize("codec", PACKERS, ids=("gzip", "snappy", "lz4", "zstd"))
ALL_CODECS = pytest.mark.parametrize("codec", [NONE, *PACKERS])
#: zstd came after magic 1.
OLD_CODECS = pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
OLD_MAGICS = pytest.mark.parametrize("magic", [0, 1])
GOOD = record(0, 0, b"key", b"value") + record(2, 9, None, b"other") + record(5, -3, None, None)
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def rows(entry: bytes) -> list[tuple[int, int]]:
    """Offset and timestamp of all records."""
    records = read_records(entry)
    assert records.fault is None
    return records.rows


def packed(codec: int, data: bytes) -> bytes:
    return PACKERS[codec](data) if codec else data


def batch_of(
    data: bytes,
    codec: int = NONE,
    *,
    base_offset: int = 100,
    attributes: int = 0,
    count: int = 3,
    base_timestamp: int = 1000,
    magic: int = 2,
) -> bytes:
    return batch(
        base_offset,
        attributes=codec | attributes,
        payload=packed(codec, data),
        record_count=count,
        base_timestamp=base_timestamp,
        max_timestamp=5000,
        last_offset_delta=7,
        magic=magic,
    )


def wrapper(
    offset: int, magic: int, *inner: bytes, codec: int = GZIP, bits: int = 0, timestamp: int = 5000
) -> bytes:
    value = packed(codec, b"".join(inner))
    return message(offset, magic, timestamp, value, attributes=codec | bits)


def messages(magic: int, *offsets: int) -> list[bytes]:
    return [message(offset, magic, 1000 + offset, b"value") for offset in offsets]


# ------------------------------------------------------------------------------- magic 2


@ALL_CODECS
def test_record_offsets_and_timestamps_include_the_base_of_their_batch(codec: int) -> None:
    assert rows(batch_of(GOOD, codec)) == [(100, 1000), (102, 1009), (105, 997)]


@ALL_CODECS
def test_log_append_time_is_the_timestamp_of_all_records(codec: int) -> None:
    entry = batch_of(GOOD, codec, attributes=LOG_APPEND_TIME)
    assert rows(entry) == [(100, 5000), (102, 5000), (105, 5000)]


def test_timestamp_deltas_are_relative_to_the_delete_horizon() -> None:
    assert rows(batch_of(GOOD, attributes=DELETE_HORIZON))[1] == (102, 1009)


def test_control_records_are_counted() -> None:
    assert rows(marker(7, 1, 0, commit=True, timestamp=30)) == [(7, 30)]


@ALL_CODECS
def test_higher_magic_is_read_like_magic_2(codec: int) -> None:
    assert rows(batch_of(GOOD, codec, magic=3)) == rows(batch_of(GOOD, codec))


def test_offset_and_timestamp_sums_wrap_around() -> None:
    entry = batch_of(GOOD, base_offset=INT64_MAX, base_timestamp=INT64_MIN)
    assert rows(entry)[2] == (INT64_MIN + 4, INT64_MAX - 2)


@pytest.mark.parametrize("codec", range(8))
def test_record_count_of_0_ignores_following_bytes(codec: int) -> None:
    assert rows(batch(5, attributes=codec, payload=b"\xff" * 9, record_count=0)) == []


@ALL_CODECS
def test_negative_record_count_is_rejected(codec: int) -> None:
    with pytest.raises(CorruptLogError, match=r"negative record count \(found -1\)"):
        read_records(batch_of(GOOD, codec, count=-1))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec_is_rejected(codec: int) -> None:
    with pytest.raises(CorruptLogError, match="unknown codec"):
        read_records(batch(5, attributes=codec, payload=GOOD, record_count=3))


BAD_SECTIONS = pytest.mark.parametrize(
    ("data", "count", "sound", "fault"),
    [
        (b"", 1, 0, "record 1 of 1 cannot be read: the size of the record is malformed"),
        (GOOD, 4, 3, "record 4 of 4 cannot be read: the size of the record is malformed"),
        (
            GOOD,
            2**31 - 1,
            3,
            "record 4 of 2147483647 cannot be read: the size of the record is malformed",
        ),
        (GOOD, 2, 1, "record 2 of 2 cannot be read: bytes follow the last record"),
        (GOOD + b"\0", 3, 2, "record 3 of 3 cannot be read: bytes follow the last record"),
        (GOOD[:-1], 3, 2, "record 3 of 3 cannot be read: the record is larger than the rest"),
        (
            varint(3) + GOOD[1:],
            3,
            0,
            "record 1 of 3 cannot be read: the fields of the record do not match",
        ),
    ],
)


@BAD_SECTIONS
def test_records_before_a_malformed_one_are_read(
    data: bytes, count: int, sound: int, fault: str
) -> None:
    records = read_records(batch_of(data, count=count))
    assert records.rows == [(100, 1000), (102, 1009), (105, 997)][:sound]
    assert records.fault is not None
    assert records.fault.startswith(fault)


@CODECS
@BAD_SECTIONS
def test_malformed_record_hides_all_records_of_a_compressed_batch(
    codec: int, data: bytes, count: int, sound: int, fault: str
) -> None:
    assert sound < count
    with pytest.raises(CorruptLogError, match=fault):
        read_records(batch_of(data, codec, count=count))


@CODECS
def test_batch_that_cannot_be_decompressed_is_rejected(codec: int) -> None:
    with pytest.raises(CorruptLogError):
        read_records(batch(5, attributes=codec, payload=b"not packed at all, not at all"))


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_stream_truncated_after_the_records_is_rejected(codec: int) -> None:
    with pytest.raises(CorruptLogError, match="cannot be decompressed"):
        read_records(batch(5, attributes=codec, payload=packed(codec, GOOD)[:-2], record_count=3))


def test_snappy_without_framing_is_read() -> None:
    entry = batch(100, attributes=SNAPPY, payload=snappy_block(GOOD), record_count=3)
    assert [offset for offset, _ in rows(entry)] == [100, 102, 105]


@CODECS
def test_decompression_stops_at_the_limit(codec: int) -> None:
    entry = batch_of(GOOD, codec)
    assert len(read_records(entry, len(GOOD)).rows) == 3
    with pytest.raises(TooLargeError):
        read_records(entry, len(GOOD) - 1)


@pytest.mark.parametrize("size", [0, 8, 25, 26, 60])
def test_entry_shorter_than_its_header_is_rejected(size: int) -> None:
    with pytest.raises(CorruptLogError, match="is shorter than"):
        read_records(batch_of(GOOD)[:size])


def test_records_in_a_read_only_mapping_are_read() -> None:
    entry = np.frombuffer(b"xyz" + batch_of(GOOD), np.uint8)[3:]
    assert not entry.flags.writeable
    assert len(read_records(entry).rows) == 3


@ALL_CODECS
def test_first_offset_of_a_batch_is_in_its_header(codec: int) -> None:
    assert read_first_offset(batch(-5, attributes=codec, payload=b"\xff", record_count=-1)) == -5


# ----------------------------------------------------------------------- magic 0 and 1


def test_message_is_one_record() -> None:
    assert rows(message(7, 0, value=b"v")) == [(7, -1)]
    assert rows(message(7, 1, 30, b"v")) == [(7, 30)]
    assert rows(message(7, 1, 30, b"v", attributes=LOG_APPEND_TIME)) == [(7, 30)]


@pytest.mark.parametrize("magic", [-1, -128])
def test_negative_magic_is_read_like_magic_1(magic: int) -> None:
    assert rows(message(7, magic, 30, b"v")) == [(7, 30)]


def test_key_and_value_of_an_uncompressed_message_are_not_parsed() -> None:
    assert rows(message(7, 1, body=struct.pack(">q", 30))) == [(7, 30)]


@OLD_CODECS
def test_last_inner_offset_of_magic_1_is_the_wrapper_offset(codec: int) -> None:
    entry = wrapper(105, 1, *messages(1, 0, 2, 3), codec=codec)
    assert rows(entry) == [(102, 1000), (104, 1002), (105, 1003)]
    assert read_first_offset(entry) == 102


@OLD_CODECS
def test_inner_offsets_of_magic_0_are_absolute(codec: int) -> None:
    entry = wrapper(105, 0, *messages(0, 40, 50), codec=codec)
    assert rows(entry) == [(40, -1), (50, -1)]
    assert read_first_offset(entry) == 40


def test_inner_offsets_in_a_wrapper_of_offset_0_are_absolute() -> None:
    assert rows(wrapper(0, 1, *messages(1, 3, 4))) == [(3, 1003), (4, 1004)]


def test_absolute_inner_offsets_are_unchanged() -> None:
    assert rows(wrapper(51, 1, *messages(1, 50, 51))) == [(50, 1050), (51, 1051)]


def test_wrapper_offset_below_the_last_inner_offset_is_rejected() -> None:
    with pytest.raises(CorruptLogError, match="is below the offset of an inner message"):
        read_records(wrapper(2, 1, *messages(1, 9, 3)))


def test_inner_sums_wrap_around() -> None:
    entry = wrapper(INT64_MAX, 1, *(message(offset, 1, 5) for offset in (INT64_MAX, -2)))
    assert rows(entry) == [(0, 5), (INT64_MAX, 5)]


def test_log_append_time_of_a_wrapper_applies_to_inner_messages_of_magic_1() -> None:
    inner = [message(offset, magic, 30) for offset, magic in enumerate((1, 0, 2, -1, 1))]
    entry = wrapper(4, 1, *inner, bits=LOG_APPEND_TIME)
    assert [time for _, time in rows(entry)] == [5000, -1, 30, 30, 5000]


def test_log_append_time_on_inner_messages_only_is_ignored() -> None:
    assert rows(wrapper(1, 1, message(1, 1, 30, attributes=LOG_APPEND_TIME))) == [(1, 30)]


def test_wrapper_of_magic_0_does_not_change_inner_timestamps() -> None:
    assert rows(wrapper(9, 0, message(4, 1, 30), bits=LOG_APPEND_TIME)) == [(4, 30)]


@OLD_MAGICS
@pytest.mark.parametrize("bits", [GZIP, 5, 7])
def test_inner_messages_before_a_nested_compressed_message_are_read(magic: int, bits: int) -> None:
    inner = messages(magic, 0, 1, 2, 3)
    inner[2] = message(2, magic, 0, b"v", attributes=bits)
    records = read_records(wrapper(3, magic, *inner))
    assert records.offsets == [0, 1]
    assert records.fault == "message 3 of 4 in a compressed message is compressed, too"
    assert read_first_offset(wrapper(3, magic, *inner)) == 0


def test_first_offset_is_unknown_if_the_first_inner_message_is_compressed() -> None:
    entry = wrapper(1, 1, message(0, 1, attributes=GZIP), *messages(1, 1))
    assert read_records(entry).offsets == []
    with pytest.raises(CorruptLogError, match="message 1 of 2"):
        read_first_offset(entry)


@OLD_MAGICS
@pytest.mark.parametrize("cut", range(1, 30))
def test_truncated_inner_message_is_skipped(magic: int, cut: int) -> None:
    whole = b"".join(messages(magic, 0, 1))
    last = messages(magic, 2)[0]
    assert [offset for offset, _ in rows(wrapper(1, magic, whole, last[:-cut]))] == [0, 1]


@OLD_MAGICS
@pytest.mark.parametrize("inner", [b"", bytes(11), messages(1, 0)[0][:-1]])
def test_wrapper_without_inner_messages_is_rejected(magic: int, inner: bytes) -> None:
    with pytest.raises(CorruptLogError, match="contains no inner message"):
        read_records(wrapper(5, magic, inner))


@OLD_MAGICS
@pytest.mark.parametrize("length", [13, 0, -1])
def test_inner_message_length_below_the_minimum_is_rejected(magic: int, length: int) -> None:
    with pytest.raises(CorruptLogError, match="wrong length"):
        read_records(wrapper(5, magic, *messages(magic, 0), message(1, magic, length=length)[:20]))


@OLD_MAGICS
def test_zstd_in_old_message_formats_is_rejected(magic: int) -> None:
    with pytest.raises(CorruptLogError, match="cannot be compressed with codec 4"):
        read_records(wrapper(5, magic, *messages(magic, 0), codec=ZSTD))


def test_compressed_message_of_a_negative_magic_is_rejected() -> None:
    with pytest.raises(CorruptLogError, match="magic -1 cannot be compressed"):
        read_records(wrapper(5, -1, *messages(1, 0)))


@OLD_MAGICS
@pytest.mark.parametrize("bits", [5, 6, 7])
def test_unknown_codec_of_a_message_is_rejected(magic: int, bits: int) -> None:
    with pytest.raises(CorruptLogError, match="unknown codec"):
        read_records(message(5, magic, value=b"v", attributes=bits))


@OLD_MAGICS
def test_compressed_message_without_a_value_is_rejected(magic: int) -> None:
    with pytest.raises(CorruptLogError, match="has no value"):
        read_records(message(5, magic, value=None, attributes=GZIP))


@OLD_MAGICS
@pytest.mark.parametrize("sizes", [(100, 0), (-1, 1), (2**31 - 1, 0), (0, 2**31 - 1)])
def test_sizes_beyond_a_compressed_message_are_rejected(magic: int, sizes: tuple[int, int]) -> None:
    body = bytes(8 * magic) + struct.pack(">ii", *sizes)
    with pytest.raises(CorruptLogError, match=r"ends (before|inside) the value"):
        read_records(message(5, magic, attributes=GZIP, body=body))


@OLD_MAGICS
def test_key_of_the_wrapper_and_bytes_after_its_value_are_ignored(magic: int) -> None:
    value = packed(GZIP, b"".join(messages(magic, 0, 1)))
    sizes = struct.pack(">i", 3) + b"key" + struct.pack(">i", len(value))
    body = bytes(8 * magic) + sizes + value + b"more"
    entry = message(1, magic, attributes=GZIP, body=body)
    assert [offset for offset, _ in rows(entry)] == [0, 1]


def test_lz4_of_magic_0_may_have_a_wrong_header_checksum() -> None:
    for magic, passes in ((0, True), (1, False)):
        value = bytearray(packed(LZ4, messages(magic, 5)[0]))
        value[6] ^= 0x55
        entry = message(5, magic, 9, bytes(value), attributes=LZ4)
        if passes:
            assert rows(entry) == [(5, -1)]
        else:
            with pytest.raises(CorruptLogError, match="the frame header has a wrong checksum"):
                read_records(entry)


@OLD_CODECS
def test_decompression_of_a_message_stops_at_the_limit(codec: int) -> None:
    entry = wrapper(1, 1, *messages(1, 0, 1), codec=codec)
    with pytest.raises(TooLargeError):
        read_records(entry, 40)


@OLD_MAGICS
def test_first_offset_of_an_uncompressed_message_is_its_offset(magic: int) -> None:
    assert read_first_offset(message(7, magic, value=b"v")) == 7


@pytest.mark.parametrize("codec", [NONE, GZIP])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_records_do_not_depend_on_the_chunk_size(codec: int, size: int) -> None:
    for entry in (batch_of(GOOD, codec), batch_of(GOOD + b"\0", NONE), batch_of(GOOD, count=4)):
        assert read_records(entry, chunk_records=size) == read_records(entry)
    entry = wrapper(105, 1, *messages(1, 0, 2, 3))
    assert read_records(entry, chunk_records=size) == read_records(entry)
