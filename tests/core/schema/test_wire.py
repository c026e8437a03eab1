"""Frames of keys and values, against a parser of one row that follows the formats step by step."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.core.records.record_table import RECORD_SCHEMA
from kafka_index.core.schema.registry import KeyKind, SchemaKey
from kafka_index.core.schema.wire import (
    Framing,
    MessagePath,
    find_frames,
    read_message_indexes,
)

GUID = bytes(range(16))
GUID_TEXT = str(uuid.UUID(bytes=GUID))
Headers = list[tuple[str, bytes | None]]
HEADERS = RECORD_SCHEMA.field("headers").type


class Row(NamedTuple):
    framing: Framing
    key: SchemaKey | None = None
    #: None where there is no body.
    body: bytes | None = None
    is_compressed: bool = False


def framed(  # noqa: PLR0911, because each form is one exit
    value: bytes | None, headers: Headers | None = None
) -> Row:
    """The frame of one value."""
    if value is None:
        return Row(Framing.NULL)
    by_header = _framed_by_header(value, dict(headers or []))
    if by_header is not None:
        return by_header
    if not value:
        return Row(Framing.EMPTY)
    match value[0]:
        case 0:
            return _framed_by_id(value)
        case 1:
            if len(value) < 17:
                return Row(Framing.TOO_SHORT)
            key = SchemaKey(KeyKind.GUID, str(uuid.UUID(bytes=value[1:17])))
            return Row(Framing.GUID, key, value[17:])
        case 3:
            if len(value) < 18:
                return Row(Framing.TOO_SHORT)
            if value[1] not in (0, 5):
                return Row(Framing.NONE)
            key = SchemaKey(KeyKind.GLUE_UUID, str(uuid.UUID(bytes=value[2:18])))
            return Row(Framing.GLUE, key, value[18:], value[1] == 5)
    return Row(Framing.NONE)


def _framed_by_id(value: bytes) -> Row:
    if len(value) < 5:
        return Row(Framing.TOO_SHORT)
    (schema_id,) = struct.unpack(">i", value[1:5])
    if schema_id == 0 and len(value) >= 9 and any(value[5:9]):
        (schema_id,) = struct.unpack(">q", value[1:9])
        return Row(Framing.WIDE_ID, SchemaKey(KeyKind.WIDE_ID, schema_id), value[9:])
    return Row(Framing.ID, SchemaKey(KeyKind.ID, schema_id), value[5:])


def _framed_by_header(value: bytes, headers: dict[str, bytes | None]) -> Row | None:
    own = headers.get("__value_schema_id")
    if own is not None:
        if own[:1] == b"\1" and len(own) >= 17:
            guid = str(uuid.UUID(bytes=own[1:17]))
            return Row(Framing.HEADER_GUID, SchemaKey(KeyKind.GUID, guid), value)
        if own[:1] == b"\0" and len(own) >= 5:
            (schema_id,) = struct.unpack(">i", own[1:5])
            return Row(Framing.HEADER_ID, SchemaKey(KeyKind.ID, schema_id), value)
        return Row(Framing.TOO_SHORT if not own or own[0] < 2 else Framing.NONE)
    for name, kind in (("contentId", KeyKind.CONTENT_ID), ("globalId", KeyKind.GLOBAL_ID)):
        own = headers.get(f"apicurio.value.{name}")
        if own is not None:
            if len(own) != 8:
                return Row(Framing.TOO_SHORT)
            (schema_id,) = struct.unpack(">q", own)
            return Row(Framing.APICURIO_HEADER, SchemaKey(kind, schema_id), value)
    return None


def rows_of(
    values: Sequence[bytes | None],
    headers: Sequence[Headers | None] | None = None,
    *,
    offset: int = 0,
    kind: pa.DataType | None = None,
) -> list[Row]:
    """The frames of a column, which is a slice if there is an offset."""
    column = pa.array([None] * offset + list(values), kind or pa.binary())[offset:]
    header_column = None
    if headers is not None:
        pairs = [
            None if row is None else [{"key": key, "value": value} for key, value in row]
            for row in [[("__value_schema_id", b"x")]] * offset + list(headers)
        ]
        header_column = pa.array(pairs, HEADERS)[offset:]
    frames = find_frames(column, header_column)
    numbers = {row: key for key, rows in frames.groups() for row in rows.tolist()}
    result = []
    for row in range(len(frames)):
        key = numbers.get(row)
        body = frames.data[frames.starts[row] : frames.ends[row]].tobytes()
        compressed = frames.is_compressed is not None and bool(frames.is_compressed[row])
        result.append(
            Row(Framing(frames.framing[row]), key, None if key is None else body, compressed)
        )
    return result


FORMS: dict[str, tuple[bytes | None, Framing, SchemaKey | None, bytes | None]] = {
    "null": (None, Framing.NULL, None, None),
    "empty": (b"", Framing.EMPTY, None, None),
    "text": (b"hello", Framing.NONE, None, None),
    "JSON": (b'{"id": 1}', Framing.NONE, None, None),
    "magic byte": (b"\0", Framing.TOO_SHORT, None, None),
    "four bytes": (b"\0\0\0\0", Framing.TOO_SHORT, None, None),
    "id": (b"\0\0\0\1\2body", Framing.ID, SchemaKey(KeyKind.ID, 258), b"body"),
    "id without body": (b"\0\0\0\0\2", Framing.ID, SchemaKey(KeyKind.ID, 2), b""),
    "negative id": (b"\0\xff\xff\xff\xff.", Framing.ID, SchemaKey(KeyKind.ID, -1), b"."),
    "largest id": (b"\0\x7f\xff\xff\xff.", Framing.ID, SchemaKey(KeyKind.ID, 2**31 - 1), b"."),
    "GUID": (b"\1" + GUID + b"b", Framing.GUID, SchemaKey(KeyKind.GUID, GUID_TEXT), b"b"),
    "cut GUID": (b"\1" + GUID[:15], Framing.TOO_SHORT, None, None),
    "8 bytes": (
        b"\0" + bytes(7) + b"\5body",
        Framing.WIDE_ID,
        SchemaKey(KeyKind.WIDE_ID, 5),
        b"body",
    ),
    "zeros": (bytes(12), Framing.ID, SchemaKey(KeyKind.ID, 0), bytes(7)),
    "Glue": (
        b"\3\0" + GUID + b"b",
        Framing.GLUE,
        SchemaKey(KeyKind.GLUE_UUID, GUID_TEXT),
        b"b",
    ),
    "cut Glue": (b"\3\0" + GUID[:15], Framing.TOO_SHORT, None, None),
    "other compression of Glue": (b"\3\1" + GUID + b"b", Framing.NONE, None, None),
}


@pytest.mark.parametrize("form", FORMS)
def test_framing_of_a_value_is_recognized(form: str) -> None:
    value, framing, key, body = FORMS[form]
    assert rows_of([value]) == [Row(framing, key, body)]


def test_column_can_mix_all_framings() -> None:
    expected = [Row(framing, key, body) for _, framing, key, body in FORMS.values()]
    values = [form[0] for form in FORMS.values()]
    for kind in (pa.binary(), pa.large_binary()):
        assert rows_of(values, kind=kind) == expected
        assert rows_of(values, kind=kind, offset=3) == expected


@pytest.mark.parametrize("values", [[], [None], [None, None], [b""]])
def test_column_without_bytes_has_no_schema_keys(values: list[bytes | None]) -> None:
    frames = find_frames(pa.array(values, pa.binary()))
    assert (len(frames), frames.keys, list(frames.groups())) == (len(values), (), [])


def test_key_schema_header_is_used_for_keys() -> None:
    headers: Headers = [("__value_schema_id", b"\0\0\0\0\1"), ("__key_schema_id", b"\0\0\0\0\2")]
    column = pa.array([[{"key": key, "value": value} for key, value in headers]])
    frames = find_frames(pa.array([b"k"]), column.cast(HEADERS), is_key=True)
    assert frames.keys == (SchemaKey(KeyKind.ID, 2),)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("__value_schema_id", b"\0\0\0\0\1"), ("__value_schema_id", b"\0\0\0\0\2")], 2),
        ([("__value_schema_id", b"\0\0\0\0\1"), ("__value_schema_id", None)], 9),
        ([("__value_schema_id", None)], 9),
        ([("x", b"\0\0\0\0\1")], 9),
        ([], 9),
    ],
)
def test_last_schema_header_is_used_and_null_is_ignored(headers: Headers, expected: int) -> None:
    (row,) = rows_of([b"\0\0\0\0\x09b"], [headers])
    assert row.key == SchemaKey(KeyKind.ID, expected)


# ------------------------------------------------------------------------------- random columns

MAGIC = st.sampled_from([b"\0", b"\0\0\0\0", b"\0" * 8, b"\1", b"\3\0", b"\3\5", b""])
VALUES = st.none() | st.builds(bytes.__add__, MAGIC, st.binary(max_size=24))
HEADER_NAMES = st.sampled_from(
    ["__value_schema_id", "__key_schema_id", "apicurio.value.globalId", "apicurio.value.contentId"]
)
HEADER_VALUES = st.none() | st.binary(max_size=9) | st.builds(bytes.__add__, MAGIC, st.binary())


@given(
    rows=st.lists(st.tuples(VALUES, st.none() | st.lists(st.tuples(HEADER_NAMES, HEADER_VALUES)))),
    has_headers=st.booleans(),
    offset=st.integers(0, 3),
)
def test_frames_of_a_column_equal_those_of_single_rows(
    *,
    rows: list[tuple[bytes | None, Headers | None]],
    has_headers: bool,
    offset: int,
) -> None:
    values = [value for value, _ in rows]
    headers = [own for _, own in rows] if has_headers else None
    # Of headers with a name the last one counts, which is what a dict keeps.
    expected = [framed(value, own if has_headers else None) for value, own in rows]
    assert rows_of(values, headers, offset=offset) == expected


# ------------------------------------------------------------------------------- message indexes


def zigzag(value: int) -> bytes:
    raw, out = (value << 1) ^ (value >> 31), bytearray()
    raw &= 0xFFFFFFFF
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def indexed(*indexes: int) -> bytes:
    return zigzag(len(indexes)) + b"".join(map(zigzag, indexes))


INDEXES: dict[str, tuple[bytes, tuple[int, ...] | None, bytes]] = {
    "single zero": (b"\0msg", (0,), b"msg"),
    "second type": (b"\x02\x02msg", (1,), b"msg"),
    "nested type": (b"\x04\0\0msg", (0, 0), b"msg"),
    "deep type": (indexed(3, 200, 70_000) + b"msg", (3, 200, 70_000), b"msg"),
    "first type in full": (b"\x02\0msg", (0,), b"msg"),
    "nothing": (b"", None, b""),
    "negative count": (b"\x01\x02msg", None, b""),
    "negative index": (b"\x02\x01msg", None, b""),
    "count beyond the end": (b"\x08\x02", None, b""),
    "huge count": (zigzag(2**30), None, b""),
    "deepest type": (indexed(*[0] * 32) + b"msg", (0,) * 32, b"msg"),
    "too deep": (indexed(*[0] * 33) + b"msg", None, b""),
    "second index negative": (b"\x04\x02\x01msg", None, b""),
    "largest index": (indexed(2**31 - 1) + b"msg", (2**31 - 1,), b"msg"),
    "varint without end": (b"\xff" * 12, None, b""),
    "cut varint": (b"\x02\x80", None, b""),
}


def paths_of(
    bodies: Sequence[bytes], *, by_header: bool
) -> list[tuple[tuple[int, ...] | None, bytes]]:
    """The path of each body, and the message; in the header, the message is ``msg``."""
    headers = None
    if by_header:
        pairs = [[{"key": "__value_schema_id", "value": b"\1" + GUID + body}] for body in bodies]
        headers = pa.array(pairs, HEADERS)
        bodies = [b"msg"] * len(bodies)
    values = bodies if by_header else [b"\0\0\0\0\7" + body for body in bodies]
    frames = find_frames(pa.array(values, pa.binary()), headers)
    indexes = read_message_indexes(frames, np.arange(len(bodies)))
    # Each path is in use, and named once.
    used = set(indexes.path_numbers.tolist()) - {-1}
    assert not bodies or (used, len(set(indexes.paths))) == (set(range(len(used))), len(used))
    return [
        (None, b"")
        if number < 0
        else (indexes.paths[number], frames.data[start : frames.ends[row]].tobytes())
        for row, (number, start) in enumerate(
            zip(indexes.path_numbers.tolist(), indexes.starts.tolist(), strict=True)
        )
    ]


@pytest.mark.parametrize("by_header", [False, True])
def test_protobuf_message_indexes_are_read(*, by_header: bool) -> None:
    for names in (list(INDEXES), *([name] for name in INDEXES)):
        cases = [INDEXES[name] for name in names]
        expected = [
            (path, b"msg" if by_header and path is not None else rest) for _, path, rest in cases
        ]
        bodies = [body.removesuffix(b"msg") if by_header else body for body, _, _ in cases]
        assert paths_of(bodies, by_header=by_header) == expected


def test_message_indexes_in_headers_and_values_are_read_together() -> None:
    headers = pa.array(
        [[{"key": "__value_schema_id", "value": b"\1" + GUID + b"\x02\x04"}], None, None],
        HEADERS,
    )
    values = pa.array([b"a", b"\0\0\0\0\7\x02\x04b", b"\0\0\0\0\7\0c"], pa.binary())
    frames = find_frames(values, headers)
    indexes = read_message_indexes(frames, np.arange(3))
    paths = [indexes.paths[number] for number in indexes.path_numbers]
    bodies = [frames.data[indexes.starts[row] : frames.ends[row]].tobytes() for row in range(3)]
    assert (paths, bodies) == ([(2,), (2,), (0,)], [b"a", b"b", b"c"])
    assert len(indexes.paths) == 2


@given(st.lists(st.tuples(st.lists(st.integers(0, 2**31 - 1), max_size=5), st.binary(max_size=4))))
def test_written_message_indexes_are_read_back(rows: list[tuple[list[int], bytes]]) -> None:
    bodies = [indexed(*path) + rest for path, rest in rows]
    assert paths_of(bodies, by_header=False) == [(tuple(path) or (0,), rest) for path, rest in rows]


# ------------------------------------------------------------------------------- names of Apicurio


def named(name: bytes) -> bytes:
    """The message ``Ref`` that Apicurio writes before a message, with its length."""
    return bytes([len(name) + 2, 0x0A, len(name)]) + name


NAMED: dict[str, tuple[bytes, MessagePath, bytes]] = {
    "name": (named(b"Payment") + b"msg", ("Payment",), b"msg"),
    "full name": (named(b"shop.Payment"), ("shop.Payment",), b""),
    "empty Ref, as the first type": (b"\0msg", (0,), b"msg"),
    "indexes": (b"\x02\x02msg", (1,), b"msg"),
    "no name": (b"\x04\x0a\x02\0\0", (5, 1), b"\0\0"),
}


@pytest.mark.parametrize("frame", [b"\0\0\0\0\7", b"\0" + bytes(7) + b"\7"])
def test_apicurio_message_type_names_are_read(frame: bytes) -> None:
    values = pa.array([frame + body for body, _, _ in NAMED.values()], pa.binary())
    frames = find_frames(values)
    indexes = read_message_indexes(frames, np.arange(len(frames)), has_names=True)
    assert [
        (indexes.paths[number], frames.data[start:end].tobytes())
        for number, start, end in zip(
            indexes.path_numbers, indexes.starts, frames.ends, strict=True
        )
    ] == [(path, rest) for _, path, rest in NAMED.values()]


def test_apicurio_header_without_a_type_name_selects_the_first_type() -> None:
    header = [{"key": "apicurio.value.contentId", "value": bytes(7) + b"\7"}]
    values = pa.array([b"\x08\x01", named(b"Refund") + b"\x08\x01"], pa.binary())
    frames = find_frames(values, pa.array([header, header], HEADERS))
    indexes = read_message_indexes(frames, np.arange(2), has_names=True)
    paths = [indexes.paths[number] for number in indexes.path_numbers]
    bodies = [frames.data[indexes.starts[row] : frames.ends[row]].tobytes() for row in range(2)]
    assert (paths, bodies) == ([(0,), ("Refund",)], [b"\x08\x01", b"\x08\x01"])


def test_type_name_prefix_after_a_confluent_id_is_read_as_message_indexes() -> None:
    frames = find_frames(pa.array([b"\0\0\0\0\7" + named(b"ab") + b"msg"], pa.binary()))
    assert read_message_indexes(frames, np.arange(1)).paths == ((5, 1),)
