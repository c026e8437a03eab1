r"""The fields of the files that this package writes for itself, checked by type and range as read.

A state file may be damaged, or come from somebody else: no offset leaves int64, and no name leaves
its folder. msgspec searches a pattern, so each begins with ``^`` and ends with ``\\Z``.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from msgspec import Meta, MsgspecError, convert, json

from kafka_index.core.format.integers import INT32_MAX, INT64_MAX, INT64_MIN
from kafka_index.core.format.names import TOPIC_PATTERN

_MAX_YEAR_9999_MS = 253_402_300_799_999

Int32 = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Int64 = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)]
Offset = Annotated[int, Meta(ge=0, le=INT64_MAX)]
#: The size of a file: at most a TiB, so that no sum of them leaves int64.
Size = Annotated[int, Meta(ge=0, le=1 << 40)]
TimeMs = Annotated[int, Meta(ge=0, le=_MAX_YEAR_9999_MS)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Crc32 = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
Topic = Annotated[str, Meta(pattern=rf"^{TOPIC_PATTERN}\Z")]
TopicId = Annotated[str, Meta(pattern=r"^([A-Za-z0-9_-]{22})?\Z")]
FileName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}\Z")]

#: The errors of a text that is not JSON, or has other types.
MALFORMED = (MsgspecError, UnicodeError, RecursionError)
_State = TypeVar("_State")


def decode_state(
    data: bytes | str, kind: type[_State], version: int | None = None
) -> _State | None:
    """Return the state in a JSON object; None if it has another version, or is malformed."""
    try:
        fields = json.decode(data)
        if not isinstance(fields, dict) or fields.pop("version", None) != version:
            return None
        return convert(fields, kind)
    except MALFORMED:
        return None
