"""Checksums of batches, callable from compiled loops.

v2 batches use CRC-32C. The fastest function for this CPU is registered with LLVM under a name that
numba can call and cache; a ctypes pointer cannot be cached. On x86, this function is generated
here. The function of google-crc32c is used on other CPUs, and if `METHOD_VARIABLE` selects it. v0
and v1 messages use CRC-32 (IEEE), computed here by table, eight bytes at a time, since no library
function is available everywhere.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
from typing import Any

import llvmlite.binding
import numpy as np
from numba import types
from numpy.typing import NDArray

from kafka_index.core.kernels.compile_cache import compile_function, compiled, host_has
from kafka_index.core.kernels.memory import read_int8, read_int32_little

#: The polynomial of CRC-32C, without its highest term.
POLYNOMIAL = 0x1EDC6F41

#: LLVM declarations that each method's module starts with.
DECLARATIONS = """
declare <8 x i64> @llvm.x86.pclmulqdq.512(<8 x i64>, <8 x i64>, i8 immarg)
declare <2 x i64> @llvm.x86.pclmulqdq(<2 x i64>, <2 x i64>, i8 immarg)
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
declare i64 @llvm.x86.sse42.crc32.64.64(i64, i64)
declare i32 @llvm.x86.sse42.crc32.32.8(i32, i8)
"""


def last_words(*arrivals: tuple[str, str, str, str]) -> str:
    """Return LLVM code that processes the remaining words and bytes; both methods use it.

    The last 1 to 7 bytes are handled in one step: they are shifted to the end of a word and
    combined with the checksum so far. They are loaded together with the bytes before them, so
    nothing after the end is read. `arrivals`: for each LLVM block that jumps here, its name and the
    values of checksum, address and remaining size.
    """
    crcs, addresses, sizes = (
        "".join(f"[ {arrival[value]}, %{arrival[0]} ], " for arrival in arrivals)
        for value in (1, 2, 3)
    )
    return f"""
words:
  %wc = phi i64 {crcs}[ %wc.next, %word ]
  %wa = phi i64 {addresses}[ %wa.next, %word ]
  %ws = phi i64 {sizes}[ %ws.next, %word ]
  %word_more = icmp uge i64 %ws, 8
  br i1 %word_more, label %word, label %words_end
word:
  %word.pointer = inttoptr i64 %wa to ptr
  %word.data = load i64, ptr %word.pointer, align 1
  %wc.next = call i64 @llvm.x86.sse42.crc32.64.64(i64 %wc, i64 %word.data)
  %wa.next = add i64 %wa, 8
  %ws.next = sub i64 %ws, 8
  br label %words
words_end:
  %has_word = icmp uge i64 %size, 8
  br i1 %has_word, label %tail, label %tiny
tail:
  %tail.end = add i64 %wa, %ws
  %tail.at = sub i64 %tail.end, 8
  %tail.pointer = inttoptr i64 %tail.at to ptr
  %tail.data = load i64, ptr %tail.pointer, align 1
  %tail.bits = shl i64 %ws, 3
  %tail.gap = sub i64 63, %tail.bits
  ; Shifts by 64 - bits in two steps, because there may be no bytes left.
  %tail.low = lshr i64 %tail.data, 1
  %tail.bytes = lshr i64 %tail.low, %tail.gap
  %tail.both = xor i64 %tail.bytes, %wc
  %tail.high = shl i64 %tail.both, 1
  %tail.shifted = shl i64 %tail.high, %tail.gap
  %tail.crc = call i64 @llvm.x86.sse42.crc32.64.64(i64 0, i64 %tail.shifted)
  %tail.over = lshr i64 %wc, %tail.bits
  %tail.result = xor i64 %tail.crc, %tail.over
  %tail.narrow = trunc i64 %tail.result to i32
  br label %done
tiny:
  %wc.narrow = trunc i64 %wc to i32
  br label %bytes
bytes:
  %bc = phi i32 [ %wc.narrow, %tiny ], [ %bc.next, %byte ]
  %ba = phi i64 [ %wa, %tiny ], [ %ba.next, %byte ]
  %bs = phi i64 [ %ws, %tiny ], [ %bs.next, %byte ]
  %byte_more = icmp ne i64 %bs, 0
  br i1 %byte_more, label %byte, label %done
byte:
  %byte.pointer = inttoptr i64 %ba to ptr
  %byte.data = load i8, ptr %byte.pointer, align 1
  %bc.next = call i32 @llvm.x86.sse42.crc32.32.8(i32 %bc, i8 %byte.data)
  %ba.next = add i64 %ba, 1
  %bs.next = sub i64 %bs, 1
  br label %bytes
done:
  %inverse = phi i32 [ %tail.narrow, %tail ], [ %bc, %bytes ]
  %result = xor i32 %inverse, -1
  ret i32 %result
}}"""


# The CPU's own prefetcher stops at page boundaries.
_PREFETCH_BYTES = 4096


def folding_source(name: str) -> str:
    """Return an LLVM module that defines ``uint32 (uint32 crc, address, size)`` under this name."""
    registers = range(4)
    end = last_words(
        ("entry", "%start", "%address", "%size"), ("one_end", "%crc.high", "%oa", "%os")
    )
    return f"""{DECLARATIONS}
define i32 @{name}(i32 %crc, i64 %address, i64 %size) #0 {{
entry:
  %inverted = xor i32 %crc, -1
  %start = zext i32 %inverted to i64
  %long = icmp uge i64 %size, 64
  br i1 %long, label %first, label %words
first:{_load("%block", "%address")}
  %seed = insertelement <8 x i64> zeroinitializer, i64 %start, i32 0
  %head = xor <8 x i64> %block, %seed
  %very_long = icmp uge i64 %size, 256
  br i1 %very_long, label %four_first, label %one_first
one_first:
  %one_address = add i64 %address, 64
  %one_size = sub i64 %size, 64
  br label %one_loop
four_first:{"".join(_load(f"%h{n}", "%address", 64 * n) for n in registers[1:])}
  %four_address = add i64 %address, 256
  %four_size = sub i64 %size, 256
  br label %four_loop
four_loop:
  %x0 = phi <8 x i64> [ %head, %four_first ], [ %y0, %four ]
  %x1 = phi <8 x i64> [ %h1, %four_first ], [ %y1, %four ]
  %x2 = phi <8 x i64> [ %h2, %four_first ], [ %y2, %four ]
  %x3 = phi <8 x i64> [ %h3, %four_first ], [ %y3, %four ]
  %fa = phi i64 [ %four_address, %four_first ], [ %fa.next, %four ]
  %fs = phi i64 [ %four_size, %four_first ], [ %fs.next, %four ]
  %four_more = icmp uge i64 %fs, 256
  br i1 %four_more, label %four, label %four_end
four:{"".join(_load(f"%d{n}", "%fa", 64 * n) for n in registers)}
  {"".join(_fold(f"%y{n}", f"%x{n}", f"%d{n}", 2048) for n in registers)}
{"".join(_prefetch(f"%p{n}", _PREFETCH_BYTES + 64 * n) for n in registers)}
  %fa.next = add i64 %fa, 256
  %fs.next = sub i64 %fs, 256
  br label %four_loop
four_end:{_fold("%z1", "%x0", "%x1", 512)}
  {_fold("%z2", "%z1", "%x2", 512)}
  {_fold("%z3", "%z2", "%x3", 512)}
  br label %one_loop
one_loop:
  %one = phi <8 x i64> [ %head, %one_first ], [ %z3, %four_end ], [ %folded, %next ]
  %oa = phi i64 [ %one_address, %one_first ], [ %fa, %four_end ], [ %oa.next, %next ]
  %os = phi i64 [ %one_size, %one_first ], [ %fs, %four_end ], [ %os.next, %next ]
  %one_more = icmp uge i64 %os, 64
  br i1 %one_more, label %next, label %one_end
next:{_load("%data", "%oa")}{_fold("%folded", "%one", "%data", 512)}
  %oa.next = add i64 %oa, 64
  %os.next = sub i64 %os, 64
  br label %one_loop
one_end:{"".join(_lane(f"%lane{n}", n) for n in registers)}
  {_fold("%r0", "%lane0", "%lane3", 384, 1)}
  {_fold("%r1", "%lane1", "%r0", 256, 1)}
  {_fold("%r2", "%lane2", "%r1", 128, 1)}
  %rest.low = extractelement <2 x i64> %r2, i32 0
  %rest.high = extractelement <2 x i64> %r2, i32 1
  %crc.low = call i64 @llvm.x86.sse42.crc32.64.64(i64 0, i64 %rest.low)
  %crc.high = call i64 @llvm.x86.sse42.crc32.64.64(i64 %crc.low, i64 %rest.high)
  br label %words
{end}
attributes #0 = {{ nounwind "min-legal-vector-width"="512" "prefer-vector-width"="512" }}
"""


def _power(exponent: int) -> int:
    """Return x**exponent modulo `POLYNOMIAL` with reversed bits, to multiply reversed data."""
    value = 1
    for digit in f"{exponent:b}":
        # Squaring a polynomial over GF(2) inserts zeros between its bits, like reading the bits in
        # base 4.
        value = _reduced(int(f"{value:b}", 4))
        if digit == "1":
            value = _reduced(value << 1)
    return int(f"{value:032b}"[::-1], 2) << 1


def _reduced(value: int) -> int:
    """Return a polynomial modulo the CRC-32C polynomial."""
    while value >> 32:
        value ^= (POLYNOMIAL | 1 << 32) << (value.bit_length() - 33)
    return value


def _fold(result: str, value: str, onto: str, distance_bits: int, lanes: int = 4) -> str:
    """Return LLVM code that folds register `value` over a distance and combines it with `onto`."""
    kind = f"<{2 * lanes} x i64>"
    function = "@llvm.x86.pclmulqdq.512" if lanes > 1 else "@llvm.x86.pclmulqdq"
    pair = f"i64 {_power(distance_bits + 32)}, i64 {_power(distance_bits - 32)}"
    by = f"<{', '.join([pair] * lanes)}>"
    return f"""
  {result}.low = call {kind} {function}({kind} {value}, {kind} {by}, i8 0)
  {result}.high = call {kind} {function}({kind} {value}, {kind} {by}, i8 17)
  {result}.both = xor {kind} {result}.low, {result}.high
  {result} = xor {kind} {result}.both, {onto}"""


def _load(result: str, place: str, offset: int = 0) -> str:
    return f"""
  {result}.at = add i64 {place}, {offset}
  {result}.pointer = inttoptr i64 {result}.at to ptr
  {result} = load <8 x i64>, ptr {result}.pointer, align 1"""


def _prefetch(name: str, offset: int) -> str:
    return f"""
  {name}.at = add i64 %fa, {offset}
  {name} = inttoptr i64 {name}.at to ptr
  call void @llvm.prefetch.p0(ptr {name}, i32 0, i32 3, i32 1)"""


def _lane(result: str, number: int) -> str:
    places = f"<i32 {2 * number}, i32 {2 * number + 1}>"
    return f"""
  {result} = shufflevector <8 x i64> %one, <8 x i64> poison, <2 x i32> {places}"""


_WORD_BITS = 64
# Words per stream. With fewer, combining the streams costs more than it saves; with more, the loop
# of google-crc32c is faster because it prefetches.
_MIN_STREAM_WORDS = 3
_MAX_STREAM_WORDS = 128
_STREAMS_BYTES = 24


def streams_source(name: str, library_address: int) -> str:
    """Return an LLVM module that defines ``uint32 (uint32 crc, address, size)`` under this name.

    `library_address`: the same function of google-crc32c, used for long messages.
    """
    end = last_words(
        ("short", "%start", "%address", "%size"), ("join", "%crc.joined", "%block_end", "%left")
    )
    return f"""{DECLARATIONS}
@multipliers = private constant [{_MAX_STREAM_WORDS + 1} x <2 x i64>] [{_stream_multipliers()}]

define i32 @{name}(i32 %crc, i64 %address, i64 %size) #0 {{
entry:
  %long = icmp uge i64 %size, {_STREAMS_BYTES * (_MAX_STREAM_WORDS + 1)}
  br i1 %long, label %library, label %short
library:
  %library.function = inttoptr i64 {library_address} to ptr
  %library.result = tail call i32 %library.function(i32 %crc, i64 %address, i64 %size)
  ret i32 %library.result
short:
  %inverted = xor i32 %crc, -1
  %start = zext i32 %inverted to i64
  %count = udiv i64 %size, {_STREAMS_BYTES}
  %worth = icmp uge i64 %count, {_MIN_STREAM_WORDS}
  br i1 %worth, label %streams_first, label %words
streams_first:
  %length = shl i64 %count, 3
  %second = add i64 %address, %length
  %third = add i64 %second, %length
  %block_end = add i64 %third, %length
  br label %streams
streams:
  %a = phi i64 [ %start, %streams_first ], [ %a.next, %streams ]
  %b = phi i64 [ 0, %streams_first ], [ %b.next, %streams ]
  %c = phi i64 [ 0, %streams_first ], [ %c.next, %streams ]
  %a.at = phi i64 [ %address, %streams_first ], [ %a.at.next, %streams ]
  %b.at = add i64 %a.at, %length
  %c.at = add i64 %b.at, %length
  %a.pointer = inttoptr i64 %a.at to ptr
  %b.pointer = inttoptr i64 %b.at to ptr
  %c.pointer = inttoptr i64 %c.at to ptr
  %a.data = load i64, ptr %a.pointer, align 1
  %b.data = load i64, ptr %b.pointer, align 1
  %c.data = load i64, ptr %c.pointer, align 1
  %a.next = call i64 @llvm.x86.sse42.crc32.64.64(i64 %a, i64 %a.data)
  %b.next = call i64 @llvm.x86.sse42.crc32.64.64(i64 %b, i64 %b.data)
  %c.next = call i64 @llvm.x86.sse42.crc32.64.64(i64 %c, i64 %c.data)
  %a.at.next = add i64 %a.at, 8
  %stream_more = icmp ult i64 %a.at.next, %second
  br i1 %stream_more, label %streams, label %join
join:
  %by.pointer = getelementptr <2 x i64>, ptr @multipliers, i64 %count
  %by = load <2 x i64>, ptr %by.pointer
  %a.vector = insertelement <2 x i64> zeroinitializer, i64 %a.next, i32 0
  %b.vector = insertelement <2 x i64> zeroinitializer, i64 %b.next, i32 0
  %a.product = call <2 x i64> @llvm.x86.pclmulqdq(<2 x i64> %a.vector, <2 x i64> %by, i8 0)
  %b.product = call <2 x i64> @llvm.x86.pclmulqdq(<2 x i64> %b.vector, <2 x i64> %by, i8 16)
  %products = xor <2 x i64> %a.product, %b.product
  %product = extractelement <2 x i64> %products, i32 0
  %moved = call i64 @llvm.x86.sse42.crc32.64.64(i64 0, i64 %product)
  %crc.joined = xor i64 %moved, %c.next
  %covered = sub i64 %block_end, %address
  %left = sub i64 %size, %covered
  br label %words
{end}
attributes #0 = {{ nounwind }}
"""


def _stream_multipliers() -> str:
    """Return, for each stream length, the multipliers that combine the streams."""
    power = {}
    value = 1
    for exponent in range(2 * _WORD_BITS * _MAX_STREAM_WORDS):
        power[exponent] = value
        value = (value << 1) ^ (POLYNOMIAL | 1 << 32 if value >> 31 else 0)

    def multiplier(bits: int) -> int:
        # The product of two reversed values is shifted by one bit, and crc32 multiplies by x^32.
        return int(f"{power[bits - 33]:032b}"[::-1], 2) if bits else 0

    rows = (
        f"<2 x i64> <i64 {multiplier(2 * bits)}, i64 {multiplier(bits)}>"
        for bits in range(0, _WORD_BITS * (_MAX_STREAM_WORDS + 1), _WORD_BITS)
    )
    return ", ".join(rows)


#: Methods from fastest to slowest, and the CPU features (LLVM names) that each needs.
METHODS = {
    "vpclmulqdq": ("sse4.2", "pclmul", "vpclmulqdq", "avx512f"),
    "pclmulqdq": ("sse4.2", "pclmul"),
}


def supported_methods() -> list[str]:
    """Return the methods that this CPU supports, fastest first."""
    return [method for method, features in METHODS.items() if host_has(*features)]


def fast_crc32c_address(method: str, library_address: int) -> int:
    """Compile ``uint32 (uint32 crc, address, size)`` and return its address.

    `method`: a method that this CPU supports. `library_address`: the same function of
    google-crc32c.
    """
    name = f"kafka_index_crc32c_{method}"
    source = (
        folding_source(name) if method == "vpclmulqdq" else streams_source(name, library_address)
    )
    return compile_function(name, source)


_log = logging.getLogger(__name__)

#: Environment variable that selects one of `crc32c_methods` instead of the fastest method.
METHOD_VARIABLE = "KAFKA_INDEX_CRC32C"
#: google-crc32c, which works on every CPU.
LIBRARY_METHOD = "library"

_SYMBOL = "kafka_index_crc32c_extend"
_CRC32_POLYNOMIAL = 0xEDB88320


def _library_address() -> int:
    extension = importlib.util.find_spec("google_crc32c._crc32c")
    if extension is None or extension.origin is None:
        raise ImportError("google-crc32c has no compiled extension on this platform")
    function = ctypes.CDLL(extension.origin).crc32c_extend
    address = ctypes.cast(function, ctypes.c_void_p).value
    if address is None:
        raise ImportError("google-crc32c's extension has no crc32c_extend")
    return address


def crc32c_methods() -> list[str]:
    """Return the methods that work on this CPU, fastest first."""
    return [*supported_methods(), LIBRARY_METHOD]


def chosen_method() -> str:
    """Return the method that `METHOD_VARIABLE` selects, by default the fastest one."""
    methods = crc32c_methods()
    chosen = os.environ.get(METHOD_VARIABLE) or methods[0]
    if chosen in methods:
        return chosen
    # Only a warning: the machines of a cluster may support different methods.
    _log.warning(
        "%s=%s is not one of the methods of this CPU (%s); using %s",
        METHOD_VARIABLE,
        chosen,
        ", ".join(methods),
        methods[0],
    )
    return methods[0]


def method_address(method: str) -> int:
    """Return the address of ``uint32 (uint32 crc, address, size)`` for a supported method."""
    library = _library_address()
    return library if method == LIBRARY_METHOD else fast_crc32c_address(method, library)


#: The CRC-32C method that this process uses.
CRC32C_METHOD = chosen_method()
llvmlite.binding.add_symbol(_SYMBOL, method_address(CRC32C_METHOD))

#: ``crc32c_extend(crc, address, size)``: extend the CRC-32C ``crc`` by these bytes.
crc32c_extend: Any = types.ExternalFunction(
    _SYMBOL, types.uint32(types.uint32, types.uintp, types.uintp)
)


def _tables() -> NDArray[np.uint32]:
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_CRC32_POLYNOMIAL if value & 1 else 0)
        tables[0, byte] = value
    for level in range(1, 8):
        previous = tables[level - 1]
        tables[level] = (previous >> np.uint32(8)) ^ tables[0][previous & np.uint32(0xFF)]
    return tables


_TABLES = _tables()


@compiled
def crc32(address: np.uint64, size: np.uint64) -> np.int64:
    """Return the CRC-32 (IEEE) of the bytes at an address, as a non-negative int64."""
    mask = np.uint64(0xFFFFFFFF)
    value = mask
    position = address
    end = address + size
    while position + np.uint64(8) <= end:
        low = value ^ (np.uint64(read_int32_little(position)) & mask)
        word = low | np.uint64(read_int32_little(position + np.uint64(4))) << np.uint64(32)
        value = np.uint64(0)
        for lane in range(8):
            byte = word >> np.uint64(8 * lane) & np.uint64(0xFF)
            value ^= np.uint64(_TABLES[7 - lane, byte])
        position += np.uint64(8)
    while position < end:
        last = (value ^ np.uint64(read_int8(position))) & np.uint64(0xFF)
        value = (value >> np.uint64(8)) ^ np.uint64(_TABLES[0, last])
        position += np.uint64(1)
    return np.int64(value ^ mask)


@compiled
def _crc32c(address: np.uint64, size: np.uint64) -> np.int64:
    return np.int64(crc32c_extend(np.uint32(0), address, size))


def crc32c(data: bytes | memoryview) -> int:
    memory = np.frombuffer(data, np.uint8)
    return int(_crc32c(np.uint64(memory.ctypes.data), np.uint64(len(memory))))
