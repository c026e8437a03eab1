"""Unpacking the records of a batch: gzip, snappy, lz4 and zstd as Kafka reads them.

Kafka unpacks as it reads, so what is wrong behind the bytes that are asked for goes unnoticed.
`open_stream` gives that to who must be equal to it; `decompress` is for all others.
Sources: Kafka's ``GzipCompression``, ``SnappyCompression``, ``Lz4Compression`` with
``Lz4BlockInputStream`` and ``ZstdCompression``, the JDK's ``GZIPInputStream`` and snappy-java's
``SnappyInputStream``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from kafka_index.errors import CorruptLogError
from kafka_index.layout.records import COMPRESSION_NAMES
from kafka_index.records.packed_streams import ArrowStream, open_gzip, open_lz4, open_snappy
from kafka_index.storage import Bytes

#: A thousand times what a broker takes as a batch by default. A few kilobytes can say that they
#: unpack to terabytes; nobody gets to unpack more than this without asking for it.
MOST_BYTES = 1 << 30

_GZIP, _SNAPPY, _LZ4, _ZSTD = range(1, len(COMPRESSION_NAMES))
_PIECE_BYTES = 16 * 1024
_SNAPPY_BUFFER_BYTES = 2 * 1024


class UnpackingStream(Protocol):
    """The unpacked bytes, in order."""

    def read(self, size: int, /) -> bytes:
        """Return the next ``size`` bytes, fewer only at the end.

        Raises
        ------
        CorruptLogError
            There are as many, or an end, only behind something that cannot be unpacked.
        """
        ...


def decompress(
    codec: int, data: bytes | Bytes, *, magic: int = 2, most_bytes: int = MOST_BYTES
) -> bytes:
    """Unpack the records of a batch, all of them.

    Parameters
    ----------
    codec : int
        The codec bits of the attributes, 0 for none.
    data : bytes or ndarray of uint8
        What follows the header of the batch, or the value of a message.
    magic : int
        Magic of the entry: the lz4 frames of magic 0 have a wrong header checksum.
    most_bytes : int
        A limit to what is unpacked.

    Returns
    -------
    bytes
        The records.

    Raises
    ------
    CorruptLogError
        The codec is unknown, the bytes are not what it says, or there are more than ``most_bytes``.
    """
    stream = open_stream(codec, data, magic=magic)
    pieces: list[bytes] = []
    left = most_bytes
    while piece := stream.read(min(_PIECE_BYTES, left + 1)):
        left -= len(piece)
        if left < 0:
            raise CorruptLogError(
                "the records unpack to more than is allowed", expected=f"{most_bytes} bytes or less"
            )
        pieces.append(piece)
    return b"".join(pieces)


def open_stream(codec: int, data: bytes | Bytes, *, magic: int = 2) -> UnpackingStream:
    """Begin to unpack; parameters are those of `decompress`.

    Raises
    ------
    CorruptLogError
        Kafka could not even open the stream. Faults further on are raised where they are read.
    """
    packed = bytes(data)
    if codec == _GZIP:
        return _Pieces(open_gzip(packed))
    if codec == _SNAPPY:
        # Snappy-java fills what it is given, Kafka's buffer, chunk by chunk: a fault in one of them
        # comes before all of it. The others return what they have.
        return _FilledStream(_Pieces(open_snappy(packed)), _SNAPPY_BUFFER_BYTES)
    if codec == _LZ4:
        return _Pieces(open_lz4(packed, ignore_header_checksum=magic == 0))
    if codec == _ZSTD:
        return ArrowStream(packed, "zstd")
    if codec == 0:
        return _Pieces(iter((packed,)))
    raise CorruptLogError("unknown codec", expected="0..4", found=codec)


class _Pieces:
    """A stream over pieces of any size."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._piece = b""
        self._used = 0

    def read(self, size: int, /) -> bytes:
        parts = []
        while size > 0:
            if self._used == len(self._piece):
                piece = next(self._pieces, None)
                if piece is None:
                    break
                self._piece, self._used = piece, 0
            part = self._piece[self._used : self._used + size]
            self._used += len(part)
            size -= len(part)
            parts.append(part)
        return b"".join(parts)


class _FilledStream:
    """A stream read through a buffer that is filled whole before any of it is handed out."""

    def __init__(self, stream: UnpackingStream, buffer_bytes: int) -> None:
        self._stream = stream
        self._buffer_bytes = buffer_bytes
        self._buffer = b""

    def read(self, size: int, /) -> bytes:
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        left = size - len(taken)
        if not left:
            return taken
        if left >= self._buffer_bytes:
            return taken + self._stream.read(left)
        filled = self._stream.read(self._buffer_bytes)
        self._buffer = filled[left:]
        return taken + filled[:left]
