"""LLVM assembly that all methods of CRC-32C have in common."""

from __future__ import annotations

#: The polynomial of CRC-32C, without its highest term.
POLYNOMIAL = 0x1EDC6F41

#: What a module of a method declares.
DECLARATIONS = """
declare <8 x i64> @llvm.x86.pclmulqdq.512(<8 x i64>, <8 x i64>, i8 immarg)
declare <2 x i64> @llvm.x86.pclmulqdq(<2 x i64>, <2 x i64>, i8 immarg)
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
declare i64 @llvm.x86.sse42.crc32.64.64(i64, i64)
declare i32 @llvm.x86.sse42.crc32.32.8(i32, i8)
"""


def last_words(*arrivals: tuple[str, str, str, str]) -> str:
    """Return code for the words and bytes that are left, from where either method gets to.

    The last 1 to 7 bytes are one step: shifted to the end of a word, with the checksum so far added
    to them, they follow nothing but zeros. They are loaded with the bytes before them, so that
    nothing after the end is read.

    Parameters
    ----------
    arrivals : tuple of str
        For each block that leads here: its name, and the values of the checksum so far, the address
        and the size of what is left.
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
