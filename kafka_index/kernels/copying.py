"""Copying bytes from address to address inside compiled loops, and what decompression shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba.extending
import numpy as np
from llvmlite import ir
from numba import types

from kafka_index.kernels.big_endian import Integer
from kafka_index.kernels.compile_cache import compiled, inlined

#: What `copy_line` copies, as much as a line of the cache.
LINE_BYTES = 64
#: What `copy_vector` copies.
VECTOR_BYTES = 32
#: What `copy_word` copies.
WORD_BYTES = 8


def _copier(size: int | None) -> Any:
    """Make the intrinsic that copies so many bytes, or as many as a third argument says."""

    @numba.extending.intrinsic
    def copy(
        _context: Any, _target: Any, _source: Any, _size: Any
    ) -> tuple[Any, Callable[..., Any]]:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            byte = ir.IntType(8)
            target, source, count = arguments
            if size is None:
                pointer = byte.as_pointer()
                kinds = [pointer, pointer, ir.IntType(64)]
                function = builder.module.declare_intrinsic("llvm.memcpy", kinds)
                places = [builder.inttoptr(place, pointer) for place in (target, source)]
                builder.call(function, [*places, count, ir.Constant(ir.IntType(1), 0)])
            else:
                vector = ir.VectorType(byte, size).as_pointer()
                loaded = builder.load(builder.inttoptr(source, vector), align=1)
                builder.store(loaded, builder.inttoptr(target, vector), align=1)
            return context.get_dummy_value()

        return types.void(types.uint64, types.uint64, types.int64), generate

    return copy


#: Copy 64, 32, 8 or 1 bytes to an address from another (uint64 each); the third argument is
#: ignored.
copy_line = _copier(LINE_BYTES)
copy_vector = _copier(VECTOR_BYTES)
copy_word = _copier(WORD_BYTES)
copy_byte = _copier(1)
#: Copy so many bytes (int64) that do not overlap.
copy_bytes = _copier(None)

#: In place of the size that something decompresses to: it is of a form that no compiled loop reads,
#: or the room does not suffice.
UNPACK_REFUSED, UNPACK_NO_ROOM = -1, -2

#: Bytes after the room of an output that may be overwritten.
UNPACK_SLACK_BYTES = LINE_BYTES

#: From this size on memcpy is faster than a loop.
_LONG_COPY_BYTES = 512


@compiled
def copy_field(
    target: np.uint64, source: np.uint64, size: Integer, readable_end: np.uint64
) -> None:
    """Copy a key or a value, if it has any bytes; up to 31 bytes after them are overwritten.

    Nothing at or after `readable_end` is read.
    """
    if size <= 0:
        return
    if np.int64(readable_end) - np.int64(source) < size + VECTOR_BYTES or size > _LONG_COPY_BYTES:
        copy_bytes(target, source, size)
        return
    copy_vector(target, source, size)
    done = np.uint64(VECTOR_BYTES)
    while done < np.uint64(size):
        copy_vector(target + done, source + done, size)
        done += np.uint64(VECTOR_BYTES)


@inlined
def copy_lines(target: np.uint64, source: np.uint64, size: Integer) -> None:
    """Copy a short key or value; 64 bytes after it are read, and may be overwritten."""
    copy_line(target, source, size)
    if size <= LINE_BYTES:
        return
    if size > _LONG_COPY_BYTES:
        copy_bytes(target, source, size)
        return
    end = target + np.uint64(size)
    while True:
        target += np.uint64(LINE_BYTES)
        source += np.uint64(LINE_BYTES)
        copy_line(target, source, size)
        if target + np.uint64(LINE_BYTES) >= end:
            break


@compiled
def copy_match(target: np.uint64, distance: np.uint64, size: Integer) -> None:
    """Copy bytes that may overlap with themselves; up to 31 bytes after them are overwritten."""
    source = target - distance
    end = target + np.uint64(size)
    if distance >= np.uint64(VECTOR_BYTES):
        while target < end:
            copy_vector(target, source, size)
            target += np.uint64(VECTOR_BYTES)
            source += np.uint64(VECTOR_BYTES)
        return
    if distance >= np.uint64(WORD_BYTES):
        while target < end:
            copy_word(target, source, size)
            target += np.uint64(WORD_BYTES)
            source += np.uint64(WORD_BYTES)
        return
    while target < end:
        copy_byte(target, source, size)
        target += np.uint64(1)
        source += np.uint64(1)


@compiled
def copy_literals(target: np.uint64, source: np.uint64, size: Integer, end: np.uint64) -> None:
    """Copy literals; nothing at or after `end` is read."""
    if source + np.uint64(size + VECTOR_BYTES) > end:
        copy_bytes(target, source, size)
        return
    done = np.uint64(0)
    while done < np.uint64(size):
        copy_vector(target + done, source + done, size)
        done += np.uint64(VECTOR_BYTES)
