r"""Parsing of this package's own state files, with validation of types and ranges.

A state file may be damaged or forged: offsets must fit into int64, and names must not point to
other folders. msgspec searches patterns, so each starts with ``^`` and ends with ``\\Z``.
"""

from __future__ import annotations

from threading import Lock
from typing import Annotated, Any, TypeVar

from msgspec import Meta, MsgspecError, convert, json

from kafka_index.core.format.integers import INT32_MAX, INT64_MAX, INT64_MIN
from kafka_index.core.format.names import TOPIC_PATTERN

_MAX_YEAR_9999_MS = 253_402_300_799_999

Int32 = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Int64 = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)]
Offset = Annotated[int, Meta(ge=0, le=INT64_MAX)]
#: Size of a file, at most 1 TiB, so that sums do not overflow int64.
Size = Annotated[int, Meta(ge=0, le=1 << 40)]
TimeMs = Annotated[int, Meta(ge=0, le=_MAX_YEAR_9999_MS)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Crc32 = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
Topic = Annotated[str, Meta(pattern=rf"^{TOPIC_PATTERN}\Z")]
TopicId = Annotated[str, Meta(pattern=r"^([A-Za-z0-9_-]{22})?\Z")]
FileName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}\Z")]

#: Errors for text that is not JSON or has wrong types.
MALFORMED = (MsgspecError, UnicodeError, RecursionError)
_State = TypeVar("_State")
_PREPARATION = Lock()
_DECODERS: dict[type, json.Decoder[Any]] = {}


def decoder_of(kind: type[_State]) -> json.Decoder[_State]:
    """Return the JSON decoder of a state type, which threads share.

    msgspec 0.22 crashes if several threads use a type for the first time at once. So the decoder is
    created under a lock.
    """
    with _PREPARATION:
        if kind not in _DECODERS:
            _DECODERS[kind] = json.Decoder(kind)
        return _DECODERS[kind]


def convert_fields(fields: object, kind: type[_State]) -> _State:
    """Convert decoded JSON fields to a state type; raises the errors of `MALFORMED`."""
    decoder_of(kind)
    return convert(fields, kind)


def decode_state(
    data: bytes | str, kind: type[_State], version: int | None = None
) -> _State | None:
    """Parse state from a JSON object; None if its version differs or it is malformed."""
    try:
        fields = json.decode(data)
        if not isinstance(fields, dict) or fields.pop("version", None) != version:
            return None
        return convert_fields(fields, kind)
    except MALFORMED:
        return None
