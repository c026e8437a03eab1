"""Reading and writing the big-endian integers of Kafka's files inside compiled loops.

Reads go by memory address, not by array and index: an array handed to a function costs a counted
reference, which at 80-byte batches is most of the time of a scan. Whoever calls a kernel keeps the
array alive, and the kernel keeps to its bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numba.extending
import numpy as np
from llvmlite import ir
from numba import types

from kafka_index.layout.records import field_position

#: What compiled code calls an integer: Python's type and numpy's mix there.
Integer: TypeAlias = int | np.integer[Any]

_WIDEST = 64


def _reader(bits: int, *, swap: bool = True, offset: int = 0, signed: bool = True) -> Any:
    """Make the intrinsic that loads an unaligned integer, widened to int64."""

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
    """Make the function that reads a big-endian field of a structure at an address, as int64.

    `layout` (numpy structured dtype): the structure; `name`: the field: an integer of 8 to 64 bits,
    signed or not.
    """
    kind = layout[name]
    return _reader(
        8 * kind.itemsize,
        swap=kind.itemsize > 1,
        offset=field_position(layout, name),
        signed=kind.kind == "i",
    )


def _writer(bits: int, *, swap: bool = True, offset: int = 0) -> Any:
    """Make the intrinsic that stores the low bits of an int64, unaligned."""

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
    """Make the function that writes an int64 to a big-endian field of a structure at an address."""
    kind = layout[name]
    return _writer(8 * kind.itemsize, swap=kind.itemsize > 1, offset=field_position(layout, name))


def _prefetcher() -> Any:
    """Make the intrinsic that asks for the cache line of an address, which may be any at all."""

    @numba.extending.intrinsic
    def ask(_context: Any, _address: Any) -> tuple[Any, Callable[..., Any]]:
        def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            pointer_type, number = ir.IntType(8).as_pointer(), ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [pointer_type, number, number, number])
            function = builder.module.declare_intrinsic("llvm.prefetch", [pointer_type], kind)
            pointer = builder.inttoptr(arguments[0], pointer_type)
            # A read of data that stays in all caches.
            builder.call(function, [pointer, number(0), number(3), number(1)])
            return context.get_dummy_value()

        return types.void(types.uint64), generate

    return ask


#: Ask for a cache line before it is needed.
prefetch = _prefetcher()

#: Read an int8, int16, int32 or int64 at an address (uint64); all come back as int64.
read_int8 = _reader(8, swap=False)
read_int16 = _reader(16)
read_int32 = _reader(32)
read_int64 = _reader(64)
#: The same of a little-endian int32, for checksums (every machine Kafka runs on is one).
read_int32_little = _reader(32, swap=False)
#: Read an int64 as this machine has it.
read_int64_native = _reader(64, swap=False)
#: Write an int64 as an int8, int32 or int64 at an address (uint64).
write_int8 = _writer(8, swap=False)
write_int32 = _writer(32)
write_int64 = _writer(64)
#: Write an int64 as this machine has an int32 or int64, into memory of its own.
write_int32_native = _writer(32, swap=False)
write_int64_native = _writer(64, swap=False)
