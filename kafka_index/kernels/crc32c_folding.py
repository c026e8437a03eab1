"""CRC-32C by folding with 512-bit carry-less multiplication, in LLVM assembly.

The method is that of V. Gopal and others, "Fast CRC Computation for Generic Polynomials Using
PCLMULQDQ Instruction" (Intel, 2009): 128 bits of a message stand D bits before 128 others; as
polynomials modulo P they may be replaced there by their two halves times x^(D + 32) and
x^(D - 32). So a register of four such lanes is folded over the message 256 or 64 bytes at a time,
the lanes are folded into one, and the ``crc32`` instruction does those last 16 bytes. Memory is
then the only limit.
"""

from __future__ import annotations

from kafka_index.kernels.crc32c_assembly import DECLARATIONS, POLYNOMIAL, last_words

# The CPU's own prefetching ends with a page of memory.
_PREFETCH_BYTES = 4096


def folding_source(name: str) -> str:
    """Return a module that defines ``uint32 (uint32 crc, address, size)`` by this name."""
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
{"".join(_prefetch(f"%p{n}", "%fa", _PREFETCH_BYTES + 64 * n) for n in registers)}
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
    """Return x to a power modulo P, its bits in reverse, as a multiplier for reversed data."""
    value = 1
    for digit in f"{exponent:b}":
        value = _reduced(int(f"{value:b}", 4))  # squared: a zero after each bit but the last
        if digit == "1":
            value = _reduced(value << 1)
    return int(f"{value:032b}"[::-1], 2) << 1


def _reduced(value: int) -> int:
    """Return a polynomial modulo P."""
    while value >> 32:
        value ^= (POLYNOMIAL | 1 << 32) << (value.bit_length() - 33)
    return value


def _fold_constants(distance_bits: int, lanes: int) -> str:
    pair = f"i64 {_power(distance_bits + 32)}, i64 {_power(distance_bits - 32)}"
    return f"<{', '.join([pair] * lanes)}>"


def _fold(result: str, value: str, onto: str, distance_bits: int, lanes: int = 4) -> str:
    """Return code that folds a register forward over a distance onto another."""
    kind = f"<{2 * lanes} x i64>"
    function = "@llvm.x86.pclmulqdq.512" if lanes > 1 else "@llvm.x86.pclmulqdq"
    by = _fold_constants(distance_bits, lanes)
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


def _prefetch(name: str, place: str, offset: int) -> str:
    return f"""
  {name}.at = add i64 {place}, {offset}
  {name} = inttoptr i64 {name}.at to ptr
  call void @llvm.prefetch.p0(ptr {name}, i32 0, i32 3, i32 1)"""


def _lane(result: str, number: int) -> str:
    places = f"<i32 {2 * number}, i32 {2 * number + 1}>"
    return f"""
  {result} = shufflevector <8 x i64> %one, <8 x i64> poison, <2 x i32> {places}"""
