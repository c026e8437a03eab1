"""zstd, gzip and the blocks of lz4, decompressed in compiled loops by the libraries.

They are the system's, or what a Python package brings. zlib-ng accepts the gzip that zlib does, and
so Java, and is faster. Where there is no library, every frame, stream and block is refused.
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

from kafka_index.kernels.compile_cache import compiled
from kafka_index.kernels.memory import (
    UNPACK_NO_ROOM,
    UNPACK_REFUSED,
    Integer,
    read_int8,
    read_int32_little,
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
# Earlier ones take some frames that are corrupt, and write what was in the context before.
_ZSTD_MIN_VERSION = 1_05_06
_ZLIB_SYMBOLS = ("zng_inflateInit2", "zng_inflateReset", "zng_inflate", "zng_inflateEnd")


def _find_library(
    names: Iterable[str],
    symbols: Iterable[str],
    is_right: Callable[[ctypes.CDLL], bool] = lambda _library: True,
) -> ctypes.CDLL | None:
    """Return the first of some libraries that can be loaded, has these functions and is right."""
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
    """Return the files of extension modules, which bring or load the libraries they wrap."""
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
    """Make a function of a library callable from compiled loops under a name of our own.

    The name is the same whatever the library: cached code goes by it.
    """
    symbol = f"kafka_index_{name}"
    address = ctypes.cast(getattr(library, function), ctypes.c_void_p).value if library else None
    if address is None:
        # Never called: there is no context for it. A kernel that names it must load all the same.
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
#: What a stream accepts unless it is told otherwise (ZSTD_WINDOWLOG_LIMIT_DEFAULT).
_ZSTD_MAX_WINDOW_LOG, _ZSTD_MIN_WINDOW_LOG = 27, 10
_ZSTD_NO_ROOM = -70
_ZSTD_MIN_BYTES = 6

#: ``zng_stream`` where pointers have 8 bytes.
_WORD_BYTES = 8
_Z_STREAM_BYTES = 104
_Z_NEXT_IN, _Z_AVAIL_IN, _Z_NEXT_OUT, _Z_AVAIL_OUT = 0, 8, 24, 32
_Z_FINISH, _Z_STREAM_END = 4, 1
_Z_GZIP_WINDOW_BITS = 31

#: Rows of the array of contexts; that of lz4 is 1 where there is a library, which needs none.
CONTEXT_ZSTD, CONTEXT_GZIP, CONTEXT_LZ4 = range(3)
CONTEXTS = 3


def new_contexts(owner: object) -> NDArray[np.int64]:
    """Return the libraries' contexts for one thread, freed with their owner; 0 for none."""
    contexts = np.zeros(CONTEXTS, np.int64)
    contexts[CONTEXT_LZ4] = _lz4 is not None
    if _zstd is not None:
        _zstd.ZSTD_createDCtx.restype = ctypes.c_void_p
        contexts[CONTEXT_ZSTD] = context = _zstd.ZSTD_createDCtx() or 0
        if context:
            _free_with(owner, _zstd.ZSTD_freeDCtx, ctypes.c_void_p(context))
    if _zlib is not None and ctypes.sizeof(ctypes.c_size_t) == _WORD_BYTES:
        stream = (ctypes.c_char * _Z_STREAM_BYTES)()
        if _zlib.zng_inflateInit2(stream, _Z_GZIP_WINDOW_BITS) == 0:
            contexts[CONTEXT_GZIP] = ctypes.addressof(stream)
            _free_with(owner, _zlib.zng_inflateEnd, stream)
    return contexts


def _free_with(owner: object, free: Callable[[Any], object], context: object) -> None:
    weakref.finalize(owner, free, context)


@compiled
def unpack_zstd(
    context: Integer, source: np.uint64, end: np.uint64, out: np.uint64, room: Integer
) -> Integer:
    """Decompress one frame whose window a stream would accept."""
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
    """Decompress one stream that nothing follows."""
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
    """Decompress one block; `UNPACK_NO_ROOM` also for a broken block."""
    if context == 0:
        return np.int64(UNPACK_REFUSED)
    found = _lz4_decompress(source, out, np.int32(size), np.int32(room))
    return np.int64(found) if found >= 0 else np.int64(UNPACK_NO_ROOM)
