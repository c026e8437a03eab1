"""The primitive types of Kafka's messages: numbers, strings, array lengths, tagged fields.

Requests, and records of the metadata log and internal topics, are sequences of fields without
names. Numbers are big-endian. In a *flexible* version of a message, lengths are unsigned varints of
the length plus one (*compact*), with 0 for null, and each structure ends with its tagged fields. In
an older version, lengths are int16 (strings) or int32, with -1 for null. Source: Kafka's
``ByteBufferAccessor`` and ``ByteUtils``, and its message generator (KIP-482).
"""

from __future__ import annotations

import base64
import struct
from typing import Final

from kafka_index.core.errors import CorruptRecordError
from kafka_index.core.format.strings import decode_utf8

INT8: Final = struct.Struct(">b")
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
NUMBERS: Final = {
    "int8": INT8,
    "int16": _INT16,
    "uint16": struct.Struct(">H"),
    "int32": _INT32,
    "uint32": struct.Struct(">I"),
    "int64": struct.Struct(">q"),
    "float64": struct.Struct(">d"),
}
_VARINT_BITS = 7
_MAX_VARINT_SHIFT = 28
_MORE = 0x80
_UUID_BYTES = 16
_MAX_STRING_BYTES = 0x7FFF
_NULL_LENGTH = -1


def uuid_text(value: bytes) -> str:
    """Format a UUID like Kafka: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def uuid_bytes(text: str) -> bytes:
    """Parse a UUID in Kafka's format; raises `ValueError` for any other text."""
    value = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    if len(value) != _UUID_BYTES:
        raise ValueError(f"not a UUID: {text!r}")
    return value


def unsigned_varint(value: int) -> bytes:
    """Encode a non-negative number as a varint (``ByteUtils.writeUnsignedVarint``)."""
    data = bytearray()
    while value >= _MORE:
        data.append(value & 0x7F | _MORE)
        value >>= _VARINT_BITS
    data.append(value)
    return bytes(data)


class MessageReader:
    """Reads the fields of a message in order.

    All methods raise `CorruptRecordError` if the bytes end too early or are malformed.
    """

    __slots__ = ("data", "position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position

    @property
    def remaining(self) -> int:
        return len(self.data) - self.position

    def number(self, form: struct.Struct) -> int:
        """Read a number; a double returns a float."""
        try:
            value: int = form.unpack_from(self.data, self.position)[0]
        except struct.error:
            raise self._truncated_error(f"a number of {form.size} bytes") from None
        self.position += form.size
        return value

    def int16(self) -> int:
        return self.number(_INT16)

    def boolean(self) -> bool:
        """Read a boolean: any byte but 0 is True."""
        return self.number(INT8) != 0

    def uuid(self) -> str:
        """Read a UUID, formatted by `uuid_text`."""
        return uuid_text(self.raw(_UUID_BYTES))

    def unsigned_varint(self) -> int:
        """Read an unsigned varint of up to 32 bits (``ByteUtils.readUnsignedVarint``)."""
        data, position = self.data, self.position
        value = shift = 0
        while True:
            if position >= len(data):
                raise self._truncated_error("a varint")
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < _MORE:
                break
            shift += _VARINT_BITS
            if shift > _MAX_VARINT_SHIFT:
                raise self.corrupt("a varint is too long", expected="5 bytes or fewer")
        self.position = position
        return value & 0xFFFFFFFF

    def raw(self, size: int) -> bytes:
        start, end = self.position, self.position + size
        if size < 0 or end > len(self.data):
            raise self._truncated_error(f"{size} bytes")
        self.position = end
        return self.data[start:end]

    def string(self, *, compact: bool) -> str | None:
        """Read a string; invalid UTF-8 is replaced as in Java."""
        size = self._compact_length() if compact else self.int16()
        if size < 0:
            return None
        if size > _MAX_STRING_BYTES:
            raise self.corrupt(
                "a string is too long", expected=f"up to {_MAX_STRING_BYTES}", found=size
            )
        return decode_utf8(self.raw(size))

    def nullable_bytes(self, *, compact: bool) -> bytes | None:
        size = self._compact_length() if compact else self.number(_INT32)
        return None if size < 0 else self.raw(size)

    def array_length(self, *, compact: bool) -> int | None:
        """Read an array length; None for a null array."""
        length = self._compact_length() if compact else self.number(_INT32)
        if length < 0:
            return None
        if length > self.remaining:
            raise self.corrupt(
                "an array has more elements than remaining bytes",
                expected=f"up to {self.remaining}",
                found=length,
            )
        return length

    def corrupt(
        self, message: str, *, expected: object = None, found: object = None
    ) -> CorruptRecordError:
        """Return the error for the last field read."""
        text = f"{message}, at byte {self.position} of the message"
        return CorruptRecordError(text, expected=expected, found=found)

    def _compact_length(self) -> int:
        # A value above 2^31 is a negative length in Java, which means null.
        length = self.unsigned_varint()
        return length - 1 if length <= 0x7FFFFFFF else _NULL_LENGTH

    def _truncated_error(self, field: str) -> CorruptRecordError:
        return self.corrupt(
            f"the message ends inside {field}", found=f"{self.remaining} bytes left"
        )


class MessageWriter:
    """Writes the fields of a message, one after another, into `data`."""

    __slots__ = ("data",)

    def __init__(self) -> None:
        self.data = bytearray()

    def number(self, form: struct.Struct, value: float) -> None:
        self.data += form.pack(value)

    def boolean(self, value: bool) -> None:  # noqa: FBT001, because it is the value
        self.number(INT8, int(value))

    def uuid(self, value: str) -> None:
        """Write a UUID in the format of `uuid_text`."""
        self.data += uuid_bytes(value)

    def unsigned_varint(self, value: int) -> None:
        self.data += unsigned_varint(value)

    def raw(self, value: bytes) -> None:
        self.data += value

    def string(self, value: str | None, *, compact: bool) -> None:
        data = None if value is None else value.encode()
        if compact:
            self.unsigned_varint(0 if data is None else len(data) + 1)
        else:
            self.number(_INT16, _NULL_LENGTH if data is None else len(data))
        self.data += data or b""

    def nullable_bytes(self, value: bytes | None, *, compact: bool) -> None:
        self.array_length(None if value is None else len(value), compact=compact)
        self.data += value or b""

    def array_length(self, length: int | None, *, compact: bool) -> None:
        length = _NULL_LENGTH if length is None else length
        if compact:
            self.unsigned_varint(length + 1)
        else:
            self.number(_INT32, length)
