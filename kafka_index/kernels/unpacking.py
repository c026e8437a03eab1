"""Decompressing the records of a batch inside a compiled loop.

A call from Python takes longer than to decompress a small batch. So the forms in which clients
write the codecs are read here: lz4 frames of independent blocks, snappy in xerial framing, and one
zstd frame or gzip stream. Whatever is in any other form, or not right, is refused, and left to
`kafka_index.records.packed_streams`, which knows what Kafka makes of it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kafka_index.kernels.big_endian import Integer
from kafka_index.kernels.compile_cache import compiled
from kafka_index.kernels.copying import UNPACK_REFUSED
from kafka_index.kernels.library_codecs import (
    CONTEXT_GZIP,
    CONTEXT_LZ4,
    CONTEXT_ZSTD,
    CONTEXTS,
    unpack_gzip,
    unpack_zstd,
)
from kafka_index.kernels.lz4 import unpack_lz4
from kafka_index.kernels.snappy import unpack_snappy
from kafka_index.layout.records import COMPRESSION_NAMES

_GZIP, _SNAPPY, _LZ4, _ZSTD = range(1, len(COMPRESSION_NAMES))


@compiled
def unpack(
    codec: Integer,
    source: np.uint64,
    end: np.uint64,
    out: np.uint64,
    room: Integer,
    contexts: NDArray[np.int64],
) -> Integer:
    """Decompress the records of a batch of magic 2.

    Parameters
    ----------
    codec : int
        The codec bits of the attributes.
    source, end : uint64
        Addresses where they begin and end.
    out : uint64
        Address of the memory for what they decompress to, `UNPACK_SLACK_BYTES` longer than
    room : int
        the most bytes of it, below 2^31.
    contexts : ndarray of int64
        From `new_contexts`; for no two threads at a time.

    Returns
    -------
    int
        How many bytes there are, `UNPACK_REFUSED` or `UNPACK_NO_ROOM`.
    """
    if codec == _LZ4:
        return unpack_lz4(contexts[CONTEXT_LZ4], source, end, out, room)
    if codec == _SNAPPY:
        return unpack_snappy(source, end, out, room)
    if codec == _ZSTD:
        return unpack_zstd(contexts[CONTEXT_ZSTD], source, end, out, room)
    if codec == _GZIP:
        return unpack_gzip(contexts[CONTEXT_GZIP], source, end, out, room)
    return np.int64(UNPACK_REFUSED)


def warm_up() -> None:
    """Load or compile the codecs, over no bytes."""
    nothing = np.uint64(0)
    unpack(0, nothing, nothing, nothing, 0, np.zeros(CONTEXTS, np.int64))
