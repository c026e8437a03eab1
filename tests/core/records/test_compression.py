"""Unpacking, sound and not."""

from __future__ import annotations

import gzip
import io
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kafka_index.core.errors import CorruptLogError, TooLargeError
from kafka_index.core.records import decompression
from tests.support.segments import (
    GZIP,
    LZ4,
    PACKERS,
    SNAPPY,
    XERIAL_HEADER,
    XERIAL_MAGIC,
    ZSTD,
    gzipped,
    lz4,
    snappy_block,
    xerial,
    zstd,
)

CODECS = pytest.mark.parametrize("codec", PACKERS, ids=("gzip", "snappy", "lz4", "zstd"))
ROOM = 1 << 26
DATA = b"some records, some records, some records and others"
BULK = np.random.default_rng(1).bytes(300_000) + bytes(700_000)


def decompress(codec: int, data: bytes | NDArray[np.uint8], magic: int = 2) -> bytes:
    return bytes(decompression.decompress(codec, data, max_bytes=ROOM, magic=magic))


@settings(deadline=None)
@given(st.sampled_from(sorted(PACKERS)), st.binary(max_size=3000))
def test_decompression_returns_the_original_bytes(codec: int, data: bytes) -> None:
    assert decompress(codec, PACKERS[codec](data)) == data


@CODECS
def test_large_stream_is_decompressed(codec: int) -> None:
    packed = xerial(BULK, 32 * 1024) if codec == SNAPPY else PACKERS[codec](BULK)
    assert decompress(codec, packed) == BULK


@CODECS
def test_bytes_of_a_mapped_log_are_read(codec: int) -> None:
    assert decompress(codec, np.frombuffer(PACKERS[codec](DATA), np.uint8)) == DATA


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codec_is_rejected(codec: int) -> None:
    with pytest.raises(CorruptLogError, match="unknown codec"):
        decompress(codec, DATA)


@CODECS
def test_output_above_the_limit_is_rejected(codec: int) -> None:
    packed = PACKERS[codec](DATA)
    assert decompression.decompress(codec, packed, max_bytes=len(DATA)) == DATA
    with pytest.raises(TooLargeError):
        decompression.decompress(codec, packed, max_bytes=len(DATA) - 1)


@CODECS
def test_malformed_stream_is_rejected(codec: int) -> None:
    with pytest.raises(CorruptLogError):
        decompress(codec, b"these are no packed records at all")


@CODECS
def test_truncated_stream_is_rejected(codec: int) -> None:
    packed = PACKERS[codec](DATA)
    # Snappy-java ends quietly between chunks, and in the length of one.
    for end in range(1, len(packed)):
        try:
            unpacked = decompress(codec, packed[:end])
        except CorruptLogError:
            continue
        assert codec == SNAPPY
        assert DATA.startswith(unpacked)
        assert len(unpacked) < len(DATA)


# ------------------------------------------------------------------------------------- gzip


def test_every_legal_gzip_header_is_accepted() -> None:
    plain = gzipped(DATA)
    fields = struct.pack("<H", 3) + b"abc" + b"a name\0" + b"a comment\0"
    assert decompress(GZIP, plain[:3] + b"\x1c" + plain[4:10] + fields + plain[10:]) == DATA
    buffer = io.BytesIO()
    with gzip.GzipFile("a name", "wb", fileobj=buffer, mtime=0) as file:
        file.write(DATA)
    assert decompress(GZIP, buffer.getvalue()) == DATA


@pytest.mark.parametrize("flag", [2, 4, 8, 16])
def test_unterminated_gzip_header_is_rejected(flag: int) -> None:
    header = b"\x1f\x8b\x08" + bytes((flag,)) + bytes(6)
    with pytest.raises(CorruptLogError, match="header"):
        decompress(GZIP, header + (b"" if flag == 2 else b"\xff\xff"))


@pytest.mark.parametrize("at", [-1, -5])
def test_wrong_gzip_trailer_is_rejected(at: int) -> None:
    packed = bytearray(gzipped(DATA))
    packed[at] ^= 1
    with pytest.raises(CorruptLogError, match="wrong checksum or size"):
        decompress(GZIP, bytes(packed))


def test_concatenated_gzip_streams_are_joined() -> None:
    assert decompress(GZIP, gzipped(DATA) + gzipped(b"more")) == DATA + b"more"


@pytest.mark.parametrize("behind", [b"x", b"no gzip stream, but longer than one needs"])
def test_trailing_bytes_after_a_gzip_stream_are_ignored(behind: bytes) -> None:
    assert decompress(GZIP, gzipped(DATA) + behind) == DATA


# ----------------------------------------------------------------------------------- snappy


def test_snappy_without_framing_is_legal() -> None:
    assert decompress(SNAPPY, snappy_block(DATA)) == DATA


@pytest.mark.parametrize("version", [0, 1, 2, -5])
def test_snappy_header_version_is_ignored(version: int) -> None:
    header = XERIAL_MAGIC + struct.pack(">ii", version, 1)
    assert decompress(SNAPPY, header + xerial(DATA)[16:]) == DATA


def test_concatenated_snappy_streams_are_joined() -> None:
    assert decompress(SNAPPY, xerial(DATA) + xerial(b"more")) == DATA + b"more"
    with pytest.raises(CorruptLogError, match="version"):
        decompress(SNAPPY, xerial(DATA) + XERIAL_MAGIC + bytes(8))


@pytest.mark.parametrize("length", [-1, 1 << 30, 100])
def test_snappy_chunk_of_an_impossible_length_is_rejected(length: int) -> None:
    with pytest.raises(CorruptLogError, match=f"a chunk has {length} bytes"):
        decompress(SNAPPY, XERIAL_HEADER + struct.pack(">i", length) + b"abc")


def test_snappy_block_of_claimed_gigabytes_is_rejected_before_allocation() -> None:
    with pytest.raises(CorruptLogError, match="cannot decompress to"):
        decompress(SNAPPY, b"\xff\xff\xff\xff\x07" + b"abc" * 20)


# -------------------------------------------------------------------------------------- lz4


def test_wrong_lz4_header_checksum_is_rejected_except_in_magic_0() -> None:
    packed = bytearray(lz4(DATA))
    packed[6] ^= 0xFF
    with pytest.raises(CorruptLogError, match="the frame header has a wrong checksum"):
        decompress(LZ4, bytes(packed))
    assert decompress(LZ4, bytes(packed), magic=0) == DATA


def test_trailing_bytes_after_an_lz4_end_mark_are_ignored() -> None:
    assert decompress(LZ4, lz4(DATA) + b"anything") == DATA


def test_lz4_linked_blocks_are_rejected_as_by_kafka() -> None:
    packed = pa.compress(BULK, "lz4", asbytes=True)
    with pytest.raises(CorruptLogError, match="flags 0x40"):
        decompress(LZ4, packed)


@pytest.mark.parametrize(
    ("flags", "block"), [(0xA0, 0x40), (0x40, 0x40), (0x61, 0x40), (0x60, 0x30), (0x60, 0x41)]
)
def test_lz4_flags_unsupported_by_kafka_are_rejected(flags: int, block: int) -> None:
    packed = lz4(DATA)
    with pytest.raises(CorruptLogError, match="0x"):
        decompress(LZ4, packed[:4] + bytes((flags, block)) + packed[6:], magic=0)


def test_lz4_content_checksums_are_ignored() -> None:
    packed = lz4(DATA)
    assert decompress(LZ4, packed[:4] + b"\x64" + packed[5:] + b"what", magic=0) == DATA
    with pytest.raises(CorruptLogError, match="content checksum"):
        decompress(LZ4, packed[:4] + b"\x64" + packed[5:] + b"wha", magic=0)


# ------------------------------------------------------------------------------------- zstd


def test_empty_zstd_stream_is_empty_but_empty_streams_of_other_codecs_are_rejected() -> None:
    assert decompress(ZSTD, b"") == b""
    for codec in (GZIP, SNAPPY, LZ4):
        with pytest.raises(CorruptLogError):
            decompress(codec, b"")


def test_concatenated_zstd_frames_are_joined_but_other_trailing_bytes_are_rejected() -> None:
    assert decompress(ZSTD, zstd(DATA) + zstd(b"more")) == DATA + b"more"
    with pytest.raises(CorruptLogError):
        decompress(ZSTD, zstd(DATA) + b"anything")
