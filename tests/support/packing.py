"""Packers of records for each codec, in the forms that Kafka reads."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable

import pyarrow as pa

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
LZ4_BLOCK = 64 * 1024
XERIAL_MAGIC = b"\x82SNAPPY\0"
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)


def snappy_block(data: bytes) -> bytes:
    """One block without framing."""
    packed: bytes = pa.compress(data, "snappy", asbytes=True)
    return packed


def xerial(data: bytes, chunk_bytes: int = 16) -> bytes:
    """Snappy in the framing of Kafka's Java clients."""
    parts = [XERIAL_HEADER]
    for start in range(0, len(data), chunk_bytes):
        block = snappy_block(data[start : start + chunk_bytes])
        parts.append(struct.pack(">i", len(block)) + block)
    return b"".join(parts)


def lz4(data: bytes) -> bytes:
    """An lz4 frame of blocks that do not depend on one another, as Kafka wants them."""
    frames = [
        pa.compress(data[start : start + LZ4_BLOCK], "lz4", asbytes=True)
        for start in range(0, max(len(data), 1), LZ4_BLOCK)
    ]
    header_bytes, end_mark_bytes = 7, 4
    blocks = b"".join(frame[header_bytes:-end_mark_bytes] for frame in frames)
    packed: bytes = frames[0][:header_bytes] + blocks + bytes(end_mark_bytes)
    return packed


def zstd(data: bytes) -> bytes:
    """A zstd frame."""
    packed: bytes = pa.compress(data, "zstd", asbytes=True)
    return packed


def gzipped(data: bytes) -> bytes:
    """A gzip stream."""
    return gzip.compress(data, mtime=0)


PACKERS: dict[int, Callable[[bytes], bytes]] = {GZIP: gzipped, SNAPPY: xerial, LZ4: lz4, ZSTD: zstd}
