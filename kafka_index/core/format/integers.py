"""The integers of Kafka's files: their limits, and how Java reads them in text."""

from __future__ import annotations

import re
import unicodedata

#: The largest relative offset, position, file size and sequence number.
INT32_MAX = 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

# Up to 19 significant digits: no int64 has more, and Python refuses to convert several thousand.
_INTEGER = re.compile(r"([+-]?)0*([0-9]{1,19})")


def parse_java_integer(text: str, largest: int) -> int | None:
    """Return the integer that Java reads in a text, up to `largest`; None if it refuses the text.

    Source: Integer.parseInt and Long.parseLong. They take an optional sign and the digits of any
    script, without blanks, a UTF-16 unit at a time, so digits above U+FFFF are refused.
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
