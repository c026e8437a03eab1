"""Copying bytes from address to address inside compiled loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba.extending
from llvmlite import ir
from numba import types

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


#: Copy 32, 8 or 1 bytes to an address from another (uint64 each); the third argument is ignored.
copy_vector = _copier(VECTOR_BYTES)
copy_word = _copier(WORD_BYTES)
copy_byte = _copier(1)
#: Copy so many bytes (int64) that do not overlap.
copy_bytes = _copier(None)
