"""Integers in Kafka's files: their limits, and how Java parses them."""

from __future__ import annotations

import re
import unicodedata

#: Maximum relative offset, position, file size and sequence number.
INT32_MAX = 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

# Matches at most 19 significant digits, as in int64: Python's int() rejects numbers of several
# thousand digits.
_INTEGER = re.compile(r"([+-]?)0*([0-9]{1,19})")


def parse_java_integer(text: str, largest: int) -> int | None:
    """Parse an integer up to `largest` like Java; None if Java rejects the text.

    Source: Integer.parseInt and Long.parseLong. They accept an optional sign and digits of any
    script, without whitespace. They process UTF-16 units, so digits above U+FFFF are rejected.
    """
    if not text.isascii():
        text = "".join(
            str(unicodedata.decimal(character, character)) if character <= "\uffff" else character
            for character in text
        )
    match = _INTEGER.fullmatch(text)
    if match is None:
        return None
    value = int(match[1] + match[2])
    return value if -largest - 1 <= value <= largest else None
