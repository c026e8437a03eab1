"""Decompression of a batch's records inside compiled loops.

A call from Python takes longer than decompressing a small batch. So the formats written by common
clients are decoded here: lz4 frames of independent blocks, snappy with xerial framing, a single
zstd frame and a single gzip stream. Any other format or corrupt data is rejected and left to
`kafka_index.core.records.decompression`, which follows Kafka in all cases. Sources: Kafka's
``Lz4BlockInputStream``, snappy-java's ``SnappyInputStream``, the snappy format.

zstd, gzip and lz4 blocks use libraries of the system or of Python packages. zlib-ng accepts the
same gzip streams as zlib, which Java uses, and is faster. Without a library, the codec is rejected.
"""

from __future__ import annotations

import ctypes
import importlib.util
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import llvmlite.binding
import numpy as np
from numba import types
from numpy.typing import NDArray

from kafka_index.core.format.names import COMPRESSION_NAMES
from kafka_index.core.kernels.compile_cache import compiled
from kafka_index.core.kernels.memory import (
    UNPACK_NO_ROOM,
    UNPACK_REFUSED,
    Integer,
    copy_bytes,
    copy_literals,
    copy_match,
    read_int8,
    read_int32,
    read_int32_little,
    read_int64,
    write_int32_native,
    write_int64_native,
)

_BYTE = 0xFF
_ZSTD_SYMBOLS = (
    "ZSTD_createDCtx",
    "ZSTD_freeDCtx",
    "ZSTD_decompressDCtx",
    "ZSTD_findFrameCompressedSize",
    "ZSTD_versionNumber",
)
# Earlier versions accept some corrupt frames and output leftovers of the previous frame.
_ZSTD_MIN_VERSION = 1_05_06
_ZLIB_SYMBOLS = ("zng_inflateInit2", "zng_inflateReset", "zng_inflate", "zng_inflateEnd")


def _find_library(
    names: Iterable[str],
    symbols: Iterable[str],
    is_right: Callable[[ctypes.CDLL], bool] = lambda _library: True,
) -> ctypes.CDLL | None:
    """Return the first library that can be loaded, has these functions and passes the check."""
    for name in names:
        try:
            library = ctypes.CDLL(name)
            for symbol in symbols:
                getattr(library, symbol)
        except (OSError, AttributeError):
            continue
        if is_right(library):
            return library
    return None


def _extension(*modules: str) -> list[str]:
    """Return the files of extension modules, which contain or load the libraries."""
    found = []
    for module in modules:
        try:
            spec = importlib.util.find_spec(module)
        except ImportError:
            continue
        if spec is not None and spec.origin is not None:
            found.append(spec.origin)
    return found


_lz4 = _find_library([*_extension("lz4.block._block"), "liblz4.so.1"], ["LZ4_decompress_safe"])
_zlib = _find_library([*_extension("zlib_ng.zlib_ng"), "libz-ng.so.2"], _ZLIB_SYMBOLS)
_zstd = _find_library(
    ["libzstd.so.1", *_extension("zstandard._cffi", "_zstd")],
    _ZSTD_SYMBOLS,
    lambda library: library.ZSTD_versionNumber() >= _ZSTD_MIN_VERSION,
)


def _external(name: str, library: ctypes.CDLL | None, function: str, signature: Any) -> Any:
    """Make a library function callable from compiled loops under a fixed name.

    The name does not depend on the library, because cached code refers to it.
    """
    symbol = f"kafka_index_{name}"
    address = ctypes.cast(getattr(library, function), ctypes.c_void_p).value if library else None
    if address is None:
        # This function is never called, because there is no context for it. But a kernel that
        # refers to it must load.
        address = llvmlite.binding.address_of_symbol("memcpy")
    llvmlite.binding.add_symbol(symbol, address)
    return types.ExternalFunction(symbol, signature)


_zstd_decompress = _external(
    "zstd_decompress",
    _zstd,
    "ZSTD_decompressDCtx",
    types.int64(types.uintp, types.uintp, types.uintp, types.uintp, types.uintp),
)
_zstd_frame_size = _external(
    "zstd_frame_size", _zstd, "ZSTD_findFrameCompressedSize", types.int64(types.uintp, types.uintp)
)
_lz4_decompress = _external(
    "lz4_decompress",
    _lz4,
    "LZ4_decompress_safe",
    types.int32(types.uintp, types.uintp, types.int32, types.int32),
)
_inflate = _external("inflate", _zlib, "zng_inflate", types.int32(types.uintp, types.int32))
_inflate_reset = _external("inflate_reset", _zlib, "zng_inflateReset", types.int32(types.uintp))

_ZSTD_MAGIC = int.from_bytes(b"\x28\xb5\x2f\xfd", "little", signed=True)
_ZSTD_SINGLE_SEGMENT = 0x20
#: Maximum window that a stream accepts by default (ZSTD_WINDOWLOG_LIMIT_DEFAULT).
_ZSTD_MAX_WINDOW_LOG, _ZSTD_MIN_WINDOW_LOG = 27, 10
_ZSTD_NO_ROOM = -70
_ZSTD_MIN_BYTES = 6

#: Size of ``zng_stream`` with 8-byte pointers.
_WORD_BYTES = 8
_Z_STREAM_BYTES = 104
_Z_NEXT_IN, _Z_AVAIL_IN, _Z_NEXT_OUT, _Z_AVAIL_OUT = 0, 8, 24, 32
_Z_FINISH, _Z_STREAM_END = 4, 1
_Z_GZIP_WINDOW_BITS = 31

#: Rows of the array of library contexts. lz4 needs no context: its row is 1 if a library was found.
CONTEXT_ZSTD, CONTEXT_GZIP, CONTEXT_LZ4 = range(3)
CONTEXTS = 3


def new_contexts(owner: object) -> NDArray[np.int64]:
    """Create the library contexts of one thread, freed with `owner`; 0 if a library is missing."""
    contexts = np.zeros(CONTEXTS, np.int64)
    contexts[CONTEXT_LZ4] = _lz4 is not None
    if _zstd is not None:
        _zstd.ZSTD_createDCtx.restype = ctypes.c_void_p
        contexts[CONTEXT_ZSTD] = context = _zstd.ZSTD_createDCtx() or 0
        if context:
            weakref.finalize(owner, _zstd.ZSTD_freeDCtx, ctypes.c_void_p(context))
    if _zlib is not None and ctypes.sizeof(ctypes.c_size_t) == _WORD_BYTES:
        stream = (ctypes.c_char * _Z_STREAM_BYTES)()
        if _zlib.zng_inflateInit2(stream, _Z_GZIP_WINDOW_BITS) == 0:
            contexts[CONTEXT_GZIP] = ctypes.addressof(stream)
            weakref.finalize(owner, _zlib.zng_inflateEnd, stream)
    return contexts


@compiled
def unpack_zstd(
    context: Integer, source: np.uint64, end: np.uint64, out: np.uint64, room: Integer
) -> Integer:
    """Decompress a single zstd frame, if a zstd stream would accept its window size."""
    size = np.int64(end) - np.int64(source)
    if context == 0 or size < _ZSTD_MIN_BYTES or read_int32_little(source) != _ZSTD_MAGIC:
        return np.int64(UNPACK_REFUSED)
    if read_int8(source + np.uint64(4)) & _ZSTD_SINGLE_SEGMENT == 0:
        exponent = (read_int8(source + np.uint64(5)) & _BYTE) >> 3
        if exponent + _ZSTD_MIN_WINDOW_LOG >= _ZSTD_MAX_WINDOW_LOG:
            return np.int64(UNPACK_REFUSED)
    if _zstd_frame_size(source, size) != size:
        return np.int64(UNPACK_REFUSED)
    found: Integer = _zstd_decompress(
        np.uint64(context), out, np.uint64(room), source, np.uint64(size)
    )
    if found == _ZSTD_NO_ROOM:
        return np.int64(UNPACK_NO_ROOM)
    return found if found >= 0 else np.int64(UNPACK_REFUSED)


@compiled
def unpack_gzip(
    context: Integer, source: np.uint64, end: np.uint64, out: np.uint64, room: Integer
) -> Integer:
    """Decompress a single gzip stream that no further data follows."""
    stream = np.uint64(context)
    if context == 0 or _inflate_reset(stream) != 0:
        return np.int64(UNPACK_REFUSED)
    size = np.int64(end) - np.int64(source)
    write_int64_native(stream + np.uint64(_Z_NEXT_IN), np.int64(source))
    write_int32_native(stream + np.uint64(_Z_AVAIL_IN), size)
    write_int64_native(stream + np.uint64(_Z_NEXT_OUT), np.int64(out))
    write_int32_native(stream + np.uint64(_Z_AVAIL_OUT), room)
    code = _inflate(stream, np.int32(_Z_FINISH))
    left_in: Integer = read_int32_little(stream + np.uint64(_Z_AVAIL_IN))
    left_out: Integer = read_int32_little(stream + np.uint64(_Z_AVAIL_OUT))
    if code == _Z_STREAM_END and left_in == 0:
        return room - left_out
    if code != _Z_STREAM_END and left_out == 0:
        return np.int64(UNPACK_NO_ROOM)
    return np.int64(UNPACK_REFUSED)


@compiled
def unpack_lz4_block(
    context: Integer, source: np.uint64, size: Integer, out: np.uint64, room: Integer
) -> Integer:
    """Decompress one lz4 block; also returns `UNPACK_NO_ROOM` for a corrupt block."""
    if context == 0:
        return np.int64(UNPACK_REFUSED)
    found = _lz4_decompress(source, out, np.int32(size), np.int32(room))
    return np.int64(found) if found >= 0 else np.int64(UNPACK_NO_ROOM)


_INT32_BYTES = 4
_LZ4_MAGIC = 0x184D2204
_LZ4_HEADER_BYTES = 7
_LZ4_STORED = 0x80000000
_LZ4_UINT32 = 0xFFFFFFFF
_LZ4_CONTENT_CHECKSUM = 4
#: Flags (with or without content checksum), block descriptor, checksum of both, and the maximum
#: block size.
_LZ4_HEADERS = np.array(
    [
        (0x60, 0x40, 0x82, 1 << 16),
        (0x60, 0x50, 0xFB, 1 << 18),
        (0x60, 0x60, 0x51, 1 << 20),
        (0x60, 0x70, 0x73, 1 << 22),
        (0x64, 0x40, 0xA7, 1 << 16),
        (0x64, 0x50, 0x08, 1 << 18),
        (0x64, 0x60, 0x85, 1 << 20),
        (0x64, 0x70, 0xB9, 1 << 22),
    ],
    np.int64,
)


@compiled
def unpack_lz4(  # noqa: PLR0911, PLR0912, C901, because each refusal is one exit
    context: Integer, source: np.uint64, end: np.uint64, out: np.uint64, room: Integer
) -> Integer:
    if np.int64(end) - np.int64(source) < _LZ4_HEADER_BYTES + _INT32_BYTES:
        return np.int64(UNPACK_REFUSED)
    if read_int32_little(source) != _LZ4_MAGIC:
        return np.int64(UNPACK_REFUSED)
    flags = read_int8(source + np.uint64(4)) & _BYTE
    max_block = np.int64(0)
    for row in range(len(_LZ4_HEADERS)):
        if (
            flags == _LZ4_HEADERS[row, 0]
            and read_int8(source + np.uint64(5)) & _BYTE == _LZ4_HEADERS[row, 1]
            and read_int8(source + np.uint64(6)) & _BYTE == _LZ4_HEADERS[row, 2]
        ):
            max_block = _LZ4_HEADERS[row, 3]
    if max_block == 0:
        return np.int64(UNPACK_REFUSED)
    source += np.uint64(_LZ4_HEADER_BYTES)
    total = np.int64(0)
    while np.int64(end) - np.int64(source) >= _INT32_BYTES:
        size = read_int32_little(source) & _LZ4_UINT32
        source += np.uint64(_INT32_BYTES)
        is_stored = size & _LZ4_STORED
        size &= _LZ4_STORED - 1
        if size == 0:
            # Kafka does not verify the content checksum, but it must be present.
            rest = np.int64(end) - np.int64(source)
            if flags & _LZ4_CONTENT_CHECKSUM and rest < _INT32_BYTES:
                return np.int64(UNPACK_REFUSED)
            return total
        if size > np.int64(end) - np.int64(source):
            return np.int64(UNPACK_REFUSED)
        if is_stored:
            if size > max_block:
                return np.int64(UNPACK_REFUSED)
            if size > room - total:
                return np.int64(UNPACK_NO_ROOM)
            copy_bytes(out + np.uint64(total), source, size)
            found: Integer = size
        else:
            block_room = min(max_block, room - total)
            found = unpack_lz4_block(context, source, size, out + np.uint64(total), block_room)
            if found < 0:
                # A block larger than its frame allows is left to `core.records.decompression`.
                is_full = found == UNPACK_NO_ROOM and block_room < max_block
                return np.int64(UNPACK_NO_ROOM if is_full else UNPACK_REFUSED)
        total += found
        source += np.uint64(size)
    return np.int64(UNPACK_REFUSED)


_XERIAL_MAGIC = int.from_bytes(b"\x82SNAPPY\0", "big", signed=True)
_XERIAL_HEADER_BYTES = 16


@compiled
def _snappy_block(  # noqa: PLR0911, PLR0912, C901, because each refusal is one exit
    source: np.uint64, end: np.uint64, out: np.uint64, room: Integer
) -> Integer:
    """Decompress a snappy block; return the decompressed size or an error code."""
    size = np.int64(0)
    shift = np.int64(0)
    while True:
        if source >= end or shift > 28:
            return np.int64(UNPACK_REFUSED)
        byte = read_int8(source)
        source += np.uint64(1)
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte >= 0:
            break
    # Snappy cannot produce more than 64 bytes from 3.
    if size > 64 * (np.int64(end) - np.int64(source)):
        return np.int64(UNPACK_REFUSED)
    if size > room:
        return np.int64(UNPACK_NO_ROOM)
    target = out
    limit = out + np.uint64(size)
    while source < end:
        tag = read_int8(source) & _BYTE
        source += np.uint64(1)
        kind = tag & 3
        left = np.int64(end) - np.int64(source)
        distance = np.int64(0)
        if kind == 0:
            length = tag >> 2
            if length >= 60:
                count = length - 59
                if left < count:
                    return np.int64(UNPACK_REFUSED)
                length = np.int64(0)
                for at in range(count):
                    length |= (read_int8(source + np.uint64(at)) & _BYTE) << 8 * at
                source += np.uint64(count)
                left -= count
            length += 1
            if length > left or length > np.int64(limit) - np.int64(target):
                return np.int64(UNPACK_REFUSED)
            copy_literals(target, source, length, end)
            source += np.uint64(length)
            target += np.uint64(length)
            continue
        count = 1 if kind == 1 else (2 if kind == 2 else 4)
        if left < count:
            return np.int64(UNPACK_REFUSED)
        for at in range(count):
            distance |= (read_int8(source + np.uint64(at)) & _BYTE) << 8 * at
        source += np.uint64(count)
        if kind == 1:
            distance |= (tag >> 5) << 8
            length = 4 + (tag >> 2 & 7)
        else:
            length = 1 + (tag >> 2)
        if (
            distance == 0
            or distance > np.int64(target) - np.int64(out)
            or length > np.int64(limit) - np.int64(target)
        ):
            return np.int64(UNPACK_REFUSED)
        copy_match(target, np.uint64(distance), length)
        target += np.uint64(length)
    return size if target == limit else np.int64(UNPACK_REFUSED)


@compiled
def unpack_snappy(source: np.uint64, end: np.uint64, out: np.uint64, room: Integer) -> Integer:
    if np.int64(end) - np.int64(source) < _XERIAL_HEADER_BYTES:
        return np.int64(UNPACK_REFUSED)
    if read_int64(source) != _XERIAL_MAGIC:
        return np.int64(UNPACK_REFUSED)
    source += np.uint64(_XERIAL_HEADER_BYTES)
    total = np.int64(0)
    while source < end:
        left = np.int64(end) - np.int64(source) - _INT32_BYTES
        size: Integer = np.int64(-1)
        if left >= 0:
            size = read_int32(source)
        if size < 0 or size > left:
            return np.int64(UNPACK_REFUSED)
        source += np.uint64(_INT32_BYTES)
        found = _snappy_block(
            source, source + np.uint64(size), out + np.uint64(total), room - total
        )
        if found < 0:
            return found
        total += found
        source += np.uint64(size)
    return total


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
    """Decompress the records of a v2 batch.

    `codec`: the codec bits of the attributes. `source`, `end`: start and end address of the input.
    `out`: output address; `room`: its capacity in bytes, below 2^31, without `UNPACK_SLACK_BYTES`.
    `contexts`: from `new_contexts`, used by one thread at a time. Returns the decompressed size in
    bytes, `UNPACK_REFUSED` or `UNPACK_NO_ROOM`.
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
    nothing = np.uint64(0)
    unpack(0, nothing, nothing, nothing, 0, np.zeros(CONTEXTS, np.int64))
