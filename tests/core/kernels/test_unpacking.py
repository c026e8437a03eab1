"""Decompression in compiled loops against the readers that know all forms."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_index.core.errors import CorruptLogError
from kafka_index.core.kernels.decompress import new_contexts, unpack
from kafka_index.core.kernels.memory import UNPACK_NO_ROOM, UNPACK_REFUSED, UNPACK_SLACK_BYTES
from kafka_index.core.records.decompression import decompress
from kafka_index.core.records.record_batch import compress
from tests.support.campaign import sample_size
from tests.support.segments import GZIP, LZ4, PACKERS, SNAPPY, ZSTD, snappy_block

CODECS = pytest.mark.parametrize("codec", PACKERS, ids=("gzip", "snappy", "lz4", "zstd"))
LARGE = 300_000
GUARD = 0xA5


class Owner:
    """The function that frees contexts."""


OWNER = Owner()
CONTEXTS = new_contexts(OWNER)


def unpacked(codec: int, packed: bytes, room: int = LARGE) -> bytes | int:
    """The bytes, or the refusal; nothing is written after the slack."""
    source = np.frombuffer(packed, np.uint8)
    out = np.full(room + UNPACK_SLACK_BYTES + 64, GUARD, np.uint8)
    start = source.ctypes.data
    size = unpack(
        codec,
        np.uint64(start),
        np.uint64(start + len(packed)),
        np.uint64(out.ctypes.data),
        room,
        CONTEXTS,
    )
    assert (out[room + UNPACK_SLACK_BYTES :] == GUARD).all()
    return int(size) if size < 0 else out[: int(size)].tobytes()


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """Bytes with repetitions near and far, as they compress."""
    data = b""
    for _ in range(draw(st.integers(1, 12))):
        piece = draw(st.binary(min_size=1, max_size=40))
        if data and draw(st.booleans()):
            start = draw(st.integers(0, len(data) - 1))
            piece = data[start : start + draw(st.integers(1, 300))]
        data += piece * draw(st.sampled_from([1, 1, 2, 50, 900]))
    return data[:LARGE]


@CODECS
@settings(deadline=None, max_examples=60)
@given(data=texts())
def test_compressed_bytes_are_decompressed(codec: int, data: bytes) -> None:
    assert unpacked(codec, PACKERS[codec](data)) == data
    assert unpacked(codec, compress(codec, data)) == data


@CODECS
@settings(deadline=None, max_examples=sample_size(300, one_in=4))
@given(data=texts(), change=st.data())
def test_modified_stream_is_decompressed_as_by_the_libraries_or_rejected(
    codec: int, data: bytes, change: st.DataObject
) -> None:
    packed = bytearray(PACKERS[codec](data))
    for _ in range(change.draw(st.integers(1, 3))):
        at = change.draw(st.integers(0, len(packed) - 1))
        packed[at : at + change.draw(st.integers(0, 2))] = change.draw(st.binary(max_size=2))
        if not packed:
            return
    result = unpacked(codec, bytes(packed))
    if isinstance(result, bytes):
        # A failure with the bytes themselves would be compared, at length, before it is printed.
        is_same = result == bytes(decompress(codec, bytes(packed), max_bytes=1 << 30))
        assert is_same, bytes(packed).hex()


@CODECS
@given(data=texts())
@settings(deadline=None, max_examples=30)
def test_too_small_output_buffer_is_reported(codec: int, data: bytes) -> None:
    packed = PACKERS[codec](data)
    assert unpacked(codec, packed, len(data)) == data
    assert unpacked(codec, packed, len(data) - 1) == UNPACK_NO_ROOM


@CODECS
def test_empty_stream_is_rejected(codec: int) -> None:
    assert unpacked(codec, b"\0"[:0] + b"") == UNPACK_REFUSED


def test_corrupt_frame_accepted_by_old_libraries_is_rejected() -> None:
    """libzstd before 1.5.6 makes 653 bytes of it, from what its context held before."""
    frame = "28b52ffd608d01bd000080d1d1f9f4831dfb93421d9cc28547ebc301017aa09a75"
    assert unpacked(ZSTD, bytes.fromhex(frame)) == UNPACK_REFUSED


def test_unsupported_stream_forms_are_left_to_the_libraries() -> None:
    data = b"any data" * 9
    assert unpacked(SNAPPY, snappy_block(data)) == UNPACK_REFUSED
    assert unpacked(GZIP, gzip.compress(data) * 2) == UNPACK_REFUSED
    assert unpacked(ZSTD, PACKERS[ZSTD](data) * 2) == UNPACK_REFUSED
    assert unpacked(0, data) == UNPACK_REFUSED


def test_wrong_checksum_of_an_lz4_header_is_rejected() -> None:
    packed = bytearray(PACKERS[LZ4](b"any data"))
    packed[6] ^= 1
    assert unpacked(LZ4, bytes(packed)) == UNPACK_REFUSED
    with pytest.raises(CorruptLogError):
        decompress(LZ4, bytes(packed), max_bytes=100)
