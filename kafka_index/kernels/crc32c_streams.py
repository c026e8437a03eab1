"""CRC-32C by three streams of the ``crc32`` instruction, in LLVM assembly.

The instruction takes three cycles but can be started in each of them. The method is that of V.
Gopal and others, "Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction" (Intel, 2011):
the message is cut into three pieces of the same number of words, and the checksum of a piece that n
bits follow is multiplied by x^n. With a multiplier for every number of words up to 128, three
streams serve all messages of 72 to 3,095 bytes. Longer ones are left to google-crc32c, which does
the same from 1,008 bytes on.
"""

from __future__ import annotations

from kafka_index.kernels.crc32c_assembly import DECLARATIONS, POLYNOMIAL, last_words

_WORD_BITS = 64
# Words in a stream. With fewer, joining the streams takes longer than one stream does; for more,
# google-crc32c has a loop that prefetches.
_MIN_STREAM_WORDS = 3
_MAX_STREAM_WORDS = 128
_STREAMS_BYTES = 24


def streams_source(name: str, library_address: int) -> str:
    """Return a module that defines ``uint32 (uint32 crc, address, size)`` by this name.

    Parameters
    ----------
    name : str
        Of the function.
    library_address : int
        The same function of google-crc32c, for long messages.
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
    """Return, for each number of words, the multipliers for two and for one stream after it."""
    power = {}
    value = 1
    for exponent in range(2 * _WORD_BITS * _MAX_STREAM_WORDS):
        power[exponent] = value
        value = (value << 1) ^ (POLYNOMIAL | 1 << 32 if value >> 31 else 0)

    def multiplier(bits: int) -> int:
        # The product of two reversed values stands one bit off, and crc32 multiplies by x^32.
        return int(f"{power[bits - 33]:032b}"[::-1], 2) if bits else 0

    rows = (
        f"<2 x i64> <i64 {multiplier(2 * bits)}, i64 {multiplier(bits)}>"
        for bits in range(0, _WORD_BITS * (_MAX_STREAM_WORDS + 1), _WORD_BITS)
    )
    return ", ".join(rows)
