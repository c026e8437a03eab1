"""Records as text: one line each, readable or as JSON.

Bytes are shown as a quoted text where they are UTF-8, else, or when asked for, as hex digits; so
that every text stays on its line and no byte reaches a terminal that could command it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from kafka_index.layout.records import CONTROL_ABORT, CONTROL_COMMIT
from kafka_index.records.record_contents import Header, RecordContent

TEXT, HEX, NONE = "text", "hex", "none"
#: How keys and values can be shown.
FORMS = (TEXT, HEX, NONE)

#: ``ControlRecordType``.
_CONTROL_TYPES = (
    "abort",
    "commit",
    "leader_change",
    "snapshot_header",
    "snapshot_footer",
    "kraft_version",
    "kraft_voters",
)
_CONTROL_KEY_BYTES = 4
_MARKER_VALUE_BYTES = 6
_COLUMNS = ("position_bytes", "offset", "timestamp_ms", "producer_id", "sequence")
_GAP = "  "


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """What the batch says of a record.

    Parameters
    ----------
    position_bytes : int
        Where the batch begins in the log.
    offset, timestamp_ms : int
        The record's own, absolute.
    producer_id, producer_epoch, sequence : int
        -1 for none.
    is_control : bool
        Whether it is a control record.
    """

    position_bytes: int
    offset: int
    timestamp_ms: int
    producer_id: int
    producer_epoch: int
    sequence: int
    is_control: bool


class RecordText:
    """Turns records into lines.

    Parameters
    ----------
    as_json : bool
        Lines are JSON objects; else columns for people, as wide as what came so far.
    keys, values : str
        One of `FORMS` each; that of values is for headers too.
    """

    def __init__(self, *, as_json: bool, keys: str, values: str) -> None:
        self._as_json = as_json
        self._keys = keys
        self._values = values
        self._widths: list[int] = []

    def lines(self, place: RecordPlace, content: RecordContent) -> Iterable[str]:
        """Return the line of a record, the first with the names of the columns before it."""
        if self._as_json:
            return (self._json(place, content),)
        first = not self._widths
        numbers = [str(getattr(place, name)) for name in _COLUMNS]
        before = self._widths or map(len, _COLUMNS)
        self._widths = [max(w, len(n)) for w, n in zip(before, numbers, strict=True)]
        row = _GAP.join([*self._aligned(numbers), self._text_of(place, content)])
        if not first:
            return (row,)
        shown = [n for n, form in (("key", self._keys), ("value", self._values)) if form != NONE]
        return (_GAP.join([*self._aligned(_COLUMNS), *shown]), row)

    def _aligned(self, cells: Iterable[str]) -> list[str]:
        return [cell.rjust(width) for cell, width in zip(cells, self._widths, strict=True)]

    def _text_of(self, place: RecordPlace, content: RecordContent) -> str:
        if place.is_control:
            return _control_text(content)
        cells = []
        if self._keys != NONE:
            cells.append(_shown(content.key, self._keys))
        if self._values != NONE:
            cells.append(_shown(content.value, self._values))
        if content.headers:
            cells.append(f"headers: {', '.join(map(self._header, content.headers))}")
        return _GAP.join(cells)

    def _header(self, header: Header) -> str:
        name, value = header
        shown = _shown(name, TEXT)
        return shown if self._values == NONE else f"{shown} = {_shown(value, self._values)}"

    def _json(self, place: RecordPlace, content: RecordContent) -> str:
        control = _control_type(content) if place.is_control else None
        row: dict[str, object] = {
            "position_bytes": place.position_bytes,
            "offset": place.offset,
            "timestamp_ms": place.timestamp_ms,
            "producer_id": place.producer_id,
            "producer_epoch": place.producer_epoch,
            "sequence": place.sequence,
            "control_type": control,
            "coordinator_epoch": _coordinator_epoch(content) if place.is_control else None,
            "key_bytes": None if content.key is None else len(content.key),
            "value_bytes": None if content.value is None else len(content.value),
        }
        # The bytes of control records are no text, even where they could be read as one.
        if self._keys != NONE:
            row["key"] = _json_value(content.key, HEX if place.is_control else self._keys)
        if self._values != NONE:
            row["value"] = _json_value(content.value, HEX if place.is_control else self._values)
        headers = []
        for name, value in content.headers:
            header = {"key": _json_value(name, TEXT)}
            if self._values != NONE:
                header["value"] = _json_value(value, self._values)
            headers.append(header)
        return json.dumps({**row, "headers": headers})


def _json_value(data: bytes | None, form: str) -> object:
    if data is None:
        return None
    text = None if form == HEX else _text(data)
    return {"hex": data.hex()} if text is None else text


def _shown(data: bytes | None, form: str) -> str:
    if data is None:
        return "null"
    text = None if form == HEX else _text(data)
    return f"0x{data.hex()}" if text is None else _quoted(text)


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _quoted(text: str) -> str:
    """Return a text in JSON's quotes, with all that is no printable character escaped."""
    quoted = json.dumps(text, ensure_ascii=False)
    if quoted.isprintable():
        return quoted
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in quoted)


def _control_type(content: RecordContent) -> str:
    key = content.key or b""
    if len(key) < _CONTROL_KEY_BYTES or int.from_bytes(key[:2], "big", signed=True) < 0:
        return "unreadable"
    number = int.from_bytes(key[2:4], "big", signed=True)
    return _CONTROL_TYPES[number] if 0 <= number < len(_CONTROL_TYPES) else f"unknown-{number}"


def _coordinator_epoch(content: RecordContent) -> int | None:
    ends_transaction = _control_type(content) in (
        _CONTROL_TYPES[CONTROL_ABORT],
        _CONTROL_TYPES[CONTROL_COMMIT],
    )
    value = content.value or b""
    if not ends_transaction or len(value) < _MARKER_VALUE_BYTES:
        return None
    return int.from_bytes(value[2:_MARKER_VALUE_BYTES], "big", signed=True)


def _control_text(content: RecordContent) -> str:
    kind = _control_type(content)
    epoch = _coordinator_epoch(content)
    if epoch is not None:
        return f"control: {kind}, coordinator epoch {epoch}"
    return f"control: {kind}, key {_shown(content.key, HEX)}, value {_shown(content.value, HEX)}"
