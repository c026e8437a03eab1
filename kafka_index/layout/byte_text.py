"""Bytes as text on a command line or in a file: text, ``hex:`` or ``base64:``."""

from __future__ import annotations

import base64
import binascii

from kafka_index.errors import InputError

_HEX, _BASE64 = "hex:", "base64:"


def parse_bytes(text: str) -> bytes:
    """Return the bytes that a text means: its UTF-8, or bytes in hex or base64 after a prefix.

    The prefixes are ``hex:`` and ``base64:``; raises `InputError` for a text after them that is
    neither.
    """
    try:
        if text.startswith(_HEX):
            return bytes.fromhex(text.removeprefix(_HEX))
        if text.startswith(_BASE64):
            return base64.b64decode(text.removeprefix(_BASE64), validate=True)
    except (ValueError, binascii.Error) as error:
        raise InputError(
            "malformed bytes", expected="hex:00ff or base64:AP8=", found=text
        ) from error
    return text.encode(errors="surrogateescape")
