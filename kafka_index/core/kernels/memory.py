"""Memory access by address inside compiled loops: read, write and copy.

Passing an array to a function updates its reference count, which for 80-byte batches is most of the
time of a scan. `borrowed` arrays have no reference count. The caller of a kernel keeps the array
alive; the kernel checks the bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numba.extending
import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from kafka_index.core.format.records import field_position
from kafka_index.core.kernels.compile_cache import compiled, inlined

#: An integer in compiled code, where Python and numpy types mix.
Integer: TypeAlias = int | np.integer[Any]

#: An array of rows with named integers, whose dtype is made by `record_type`.
Records: TypeAlias = NDArray[np.record]

_WIDEST = 64


def record_type(*names: str) -> np.dtype[Any]:
    """Return a dtype of integers whose fields are attributes in Python and in numba."""
    return np.dtype((np.record, [(name, np.int64) for name in names]))


def _borrower() -> Any:
    """Return an intrinsic that returns an array without its reference count."""

    @numba.extending.intrinsic
    def borrow(_context: Any, array: Any) -> tuple[Any, Callable[..., Any]]:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            value = context.make_array(array)(context, builder, arguments[0])
            for owner in ("meminfo", "parent"):
                setattr(value, owner, ir.Constant(getattr(value, owner).type, None))
            return value._getvalue()  # noqa: SLF001, numba's own method

        return array(array), generate

    return borrow


#: Return a parameter of a kernel as an array that other functions take without updating its
#: reference count. An array that the kernel creates itself would be freed.
borrowed = _borrower()


def _reader(bits: int, *, swap: bool = True, offset: int = 0, signed: bool = True) -> Any:
    """Return an intrinsic that loads an unaligned integer, widened to int64."""

    @numba.extending.intrinsic
    def read(_context: Any, _address: Any) -> tuple[Any, Callable[..., Any]]:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            kind, widest = ir.IntType(bits), ir.IntType(_WIDEST)
            address = builder.add(arguments[0], widest(offset))
            loaded = builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)
            value = builder.bswap(loaded) if swap else loaded
            if bits == _WIDEST:
                return value
            return builder.sext(value, widest) if signed else builder.zext(value, widest)

        return types.int64(types.uint64), generate

    return read


def field_reader(layout: np.dtype[np.void], name: str) -> Any:
    """Return a function that reads a big-endian field of a structure at an address, as int64.

    `layout`: structured dtype. `name`: an integer field of 8 to 64 bits, signed or unsigned.
    """
    kind = layout[name]
    return _reader(
        8 * kind.itemsize,
        swap=kind.itemsize > 1,
        offset=field_position(layout, name),
        signed=kind.kind == "i",
    )


def _writer(bits: int, *, swap: bool = True, offset: int = 0) -> Any:
    """Return an intrinsic that stores the low bits of an int64, unaligned."""

    @numba.extending.intrinsic
    def write(_context: Any, _address: Any, _value: Any) -> tuple[Any, Callable[..., Any]]:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            kind = ir.IntType(bits)
            address = builder.add(arguments[0], ir.IntType(_WIDEST)(offset))
            pointer = builder.inttoptr(address, kind.as_pointer())
            value = arguments[1] if bits == _WIDEST else builder.trunc(arguments[1], kind)
            builder.store(builder.bswap(value) if swap else value, pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.uint64, types.int64), generate

    return write


def field_writer(layout: np.dtype[np.void], name: str) -> Any:
    """Return a function that writes an int64 to a big-endian field of a structure at an address."""
    kind = layout[name]
    return _writer(8 * kind.itemsize, swap=kind.itemsize > 1, offset=field_position(layout, name))


def _prefetcher() -> Any:
    """Return an intrinsic that prefetches the cache line of any address, valid or not."""

    @numba.extending.intrinsic
    def ask(_context: Any, _address: Any) -> tuple[Any, Callable[..., Any]]:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer_type, number = ir.IntType(8).as_pointer(), ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [pointer_type, number, number, number])
            function = builder.module.declare_intrinsic("llvm.prefetch", [pointer_type], kind)
            pointer = builder.inttoptr(arguments[0], pointer_type)
            # Arguments of llvm.prefetch: read access, keep in all cache levels, data cache.
            builder.call(function, [pointer, number(0), number(3), number(1)])
            return context.get_dummy_value()

        return types.void(types.uint64), generate

    return ask


#: Prefetch a cache line.
prefetch = _prefetcher()

#: Read a big-endian int8, int16, int32 or int64 at an address (uint64), as int64.
read_int8 = _reader(8, swap=False)
read_int16 = _reader(16)
read_int32 = _reader(32)
read_int64 = _reader(64)
#: Read a little-endian int32; all supported machines are little-endian.
read_int32_little = _reader(32, swap=False)
#: Read an int64 in native byte order.
read_int64_native = _reader(64, swap=False)
#: Write an int64 as a big-endian int8, int32 or int64 at an address (uint64).
write_int8 = _writer(8, swap=False)
write_int32 = _writer(32)
write_int64 = _writer(64)
#: Write an int64 as int32 or int64 in native byte order.
write_int32_native = _writer(32, swap=False)
write_int64_native = _writer(64, swap=False)


#: Bytes copied by `copy_line`, a cache line.
LINE_BYTES = 64
#: Bytes copied by `copy_vector`.
VECTOR_BYTES = 32
#: Bytes copied by `copy_word`.
WORD_BYTES = 8


def _copier(size: int | None) -> Any:
    """Return an intrinsic that copies `size` bytes, or as many as its third argument."""

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


#: Copy 64, 32, 8 or 1 bytes to an address from another (uint64 each); ignores the third argument.
copy_line = _copier(LINE_BYTES)
copy_vector = _copier(VECTOR_BYTES)
copy_word = _copier(WORD_BYTES)
copy_byte = _copier(1)
#: Copy bytes between ranges that do not overlap; the size is int64.
copy_bytes = _copier(None)

#: Returned instead of a decompressed size: unsupported format, or output too small.
UNPACK_REFUSED, UNPACK_NO_ROOM = -1, -2

#: Bytes after the end of an output that may be overwritten.
UNPACK_SLACK_BYTES = LINE_BYTES

# From this size on, memcpy is faster than a loop.
_LONG_COPY_BYTES = 512


@compiled
def copy_field(
    target: np.uint64, source: np.uint64, size: Integer, readable_end: np.uint64
) -> None:
    """Copy a key or value of any size; up to 31 bytes after it are overwritten.

    Never reads at or after `readable_end`.
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
    """Copy a short key or value; 64 bytes after it are read and may be overwritten."""
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
    """Copy bytes to an overlapping range; up to 31 bytes after it are overwritten."""
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
    """Copy literals; never reads at or after `end`."""
    if source + np.uint64(size + VECTOR_BYTES) > end:
        copy_bytes(target, source, size)
        return
    done = np.uint64(0)
    while done < np.uint64(size):
        copy_vector(target + done, source + done, size)
        done += np.uint64(VECTOR_BYTES)
