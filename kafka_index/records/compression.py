"""Compressing the records of a batch: gzip, snappy, lz4 and zstd in the forms that Kafka reads.

The bytes are those of the libraries here, not of Java's; Kafka's readers decompress them to the
same records. Sources: Kafka's ``SnappyCompression`` with snappy-java's ``SnappyOutputStream``
and ``Lz4BlockOutputStream``.
"""

from __future__ import annotations

import gzip
import struct

import pyarrow as pa

from kafka_index.errors import ConfigError
from kafka_index.layout.records import COMPRESSION_NAMES

_NONE, _GZIP, _SNAPPY, _LZ4, _ZSTD = range(len(COMPRESSION_NAMES))
_LENGTH = struct.Struct(">i")
_XERIAL_HEADER = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
_SNAPPY_CHUNK_BYTES = 32 * 1024
_LZ4_BLOCK_BYTES = 64 * 1024
#: Magic, version 1 with blocks that do not depend on one another, blocks of 64 KiB, and the
#: checksum of these two. Kafka reads no frame whose blocks are linked, which is what libraries
#: write when they are left to themselves.
_LZ4_HEADER = bytes.fromhex("04224d18604082")
_LZ4_LENGTH = struct.Struct("<I")
_LZ4_STORED = 0x80000000


def codec_of_name(name: str) -> int:
    """Return the codec bits of a name of ``compression.type``.

    Raises `ConfigError` for an unknown name.
    """
    if name not in COMPRESSION_NAMES:
        raise ConfigError(
            "unknown codec", expected=f"one of {', '.join(COMPRESSION_NAMES)}", found=repr(name)
        )
    return COMPRESSION_NAMES.index(name)


def compress(codec: int, data: bytes) -> bytes:
    """Compress records into the bytes after the header of a batch; codec 0 leaves them alone."""
    if codec == _NONE:
        return data
    if codec == _GZIP:
        return gzip.compress(data, mtime=0)
    if codec == _SNAPPY:
        return _XERIAL_HEADER + b"".join(
            _LENGTH.pack(len(chunk)) + chunk
            for chunk in (_packed("snappy", piece) for piece in _pieces(data, _SNAPPY_CHUNK_BYTES))
        )
    if codec == _LZ4:
        blocks = (_lz4_block(piece) for piece in _pieces(data, _LZ4_BLOCK_BYTES))
        return _LZ4_HEADER + b"".join(blocks) + bytes(_LZ4_LENGTH.size)
    if codec == _ZSTD:
        return _packed("zstd", data)
    raise ConfigError("unknown codec", expected=f"0..{_ZSTD}", found=codec)


def _pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def _lz4_block(piece: bytes) -> bytes:
    packed = _packed("lz4_raw", piece)
    if len(packed) < len(piece):
        return _LZ4_LENGTH.pack(len(packed)) + packed
    return _LZ4_LENGTH.pack(len(piece) | _LZ4_STORED) + piece


def _packed(name: str, data: bytes) -> bytes:
    packed: bytes = pa.Codec(name).compress(data, asbytes=True)
    return packed
