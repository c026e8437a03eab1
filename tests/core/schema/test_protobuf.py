"""Protobuf decoded to Arrow equals upb: messages, versions, damage, and what registries store."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from kafka_index.core.errors import BadSchemaError
from kafka_index.core.schema import protobuf
from kafka_index.core.schema.align import align
from kafka_index.core.schema.bodies import DecodedTooLargeError
from kafka_index.core.schema.protobuf import ProtobufFile
from kafka_index.core.schema.wire import Reason
from tests.support.campaign import sample_size
from tests.support.random_avro import bodies_of
from tests.support.random_protobuf import fill, is_equal, message_class, random_file

MAX_BYTES = 64 << 20
TREE = """syntax = "proto3"; package t; import "google/protobuf/struct.proto";
import "google/protobuf/any.proto";
message Node { int32 v = 1; Node left = 2; repeated Node more = 3; map<string, Node> by_name = 4;
  google.protobuf.Struct extra = 5; google.protobuf.Any any = 6; Empty empty = 7; string last = 8; }
message Empty {}"""


def decode(message: Any, datums: list[bytes | None], selection: Any = None) -> Any:
    decoded = message.decoder(selection).decode(bodies_of(datums), MAX_BYTES)
    decoded.array.validate(full=True)
    return decoded


@pytest.mark.parametrize("seed", range(sample_size(40, one_in=5)))
def test_random_messages_equal_those_of_upb(seed: int) -> None:
    random = Random(seed)
    for _ in range(25):
        message = ProtobufFile(random_file(random)).message((0,))
        kind = message_class(message)
        written = [fill(random, kind()) for _ in range(sample_size(1000, one_in=50))]
        datums: list[bytes | None] = [one.SerializeToString() for one in written]
        datums.append(None)
        decoded = decode(message, datums)
        assert not decoded.errors
        assert decoded.array.type == message.shape.type
        *values, last = decoded.array.to_pylist()
        assert last is None
        for one, value in zip(written, values, strict=True):
            assert is_equal(one, value), (message._descriptor.file.name, one, value)


@pytest.mark.parametrize("seed", range(sample_size(40, one_in=5)))
def test_damaged_messages_fail_where_upb_fails(seed: int) -> None:
    random = Random(1000 + seed)
    for _ in range(25):
        text = random_file(random)
        message = ProtobufFile(text).message((0,))
        kind = message_class(message)
        datums = [_damaged(random, fill(random, kind()).SerializeToString()) for _ in range(40)]
        decoded = decode(message, [*datums])
        for row, datum in enumerate(datums):
            reason = decoded.errors.get(row)
            try:
                expected = kind.FromString(datum)
            except DecodeError:
                assert reason is not None, (text, datum)
                continue
            # Arrow's texts are UTF-8, and its times of the years 1 to 9999.
            assert reason in (None, Reason.OUT_OF_RANGE, Reason.BAD_UTF8), (text, datum, reason)
            if reason is None and not _has_odd_fields(message, datum):
                assert is_equal(expected, decoded.array[row].as_py()), (text, datum)


def _has_odd_fields(message: Any, datum: bytes) -> bool:
    """Whether upb reads other fields than are written, such as none for unknown values of enums."""
    expected = message_class(message).FromString(datum)
    if any(
        field_.enum_type is not None and field_.enum_type.is_closed
        for field_ in _all_fields(expected.DESCRIPTOR)
    ):
        expected.DiscardUnknownFields()
    return bool(expected.SerializeToString() != datum)


def _all_fields(descriptor: Any) -> Iterator[Any]:
    for field_ in descriptor.fields:
        yield field_
        if field_.message_type is not None:
            yield from _all_fields(field_.message_type)


def _damaged(random: Random, datum: bytes) -> bytes:
    data = bytearray(datum)
    match random.randrange(4):
        case 0:
            return bytes(data[: random.randrange(len(data) + 1)])
        case 1:
            return bytes(data) + random.randbytes(random.randrange(3))
        case 2 if data:
            data[random.randrange(len(data))] = random.randrange(256)
        case _:
            return random.randbytes(random.randrange(30))
    return bytes(data)


def test_upb_fallback_decodes_messages_like_the_column_decoder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = Random(5)
    for _ in range(20):
        message = ProtobufFile(random_file(random)).message((0,))
        kind = message_class(message)
        datums = [fill(random, kind()).SerializeToString() for _ in range(5)]
        with monkeypatch.context() as patch:
            patch.setattr(protobuf, "_needs_upb", lambda _: True)
            by_upb = decode(message, [*datums]).array.to_pylist()
        for datum, value in zip(datums, by_upb, strict=True):
            assert is_equal(kind.FromString(datum), value)


def test_protobuf_group_is_decoded() -> None:
    text = """syntax = "proto2"; message M { optional int32 a = 1;
      repeated group G = 2 { optional string s = 3; } }"""
    message = ProtobufFile(text).message((0,))
    written = message_class(message)(a=1)
    written.g.add(s="x")
    assert decode(message, [written.SerializeToString(), b"\x13"]).array.to_pylist() == [
        {"a": 1, "g": [{"s": "x"}]},
        None,
    ]


def test_recursive_protobuf_message_is_decoded_as_json_text() -> None:
    message = ProtobufFile(TREE).message((0,))
    one = message_class(message)(v=1, last="ü")
    one.left.left.v = 2
    one.more.add(v=3)
    one.by_name["x"].v = 4
    one.extra["n"] = 1.5
    one.any.type_url = "types/unknown"
    one.empty.SetInParent()
    value = decode(message, [one.SerializeToString(), b""]).array.to_pylist()
    left, extra, unknown = (json.loads(value[0][name]) for name in ("left", "extra", "any"))
    assert left["left"]["v"] == 2
    assert extra == {"n": 1.5}
    assert unknown == {"@bytes": base64.b64encode(one.any.SerializeToString()).decode()}
    assert [json.loads(each)["v"] for each in value[0]["more"]] == [3]
    assert [(key, json.loads(each)["v"]) for key, each in value[0]["by_name"]] == [("x", 4)]
    assert (value[0]["empty"], value[0]["last"], value[0]["v"]) == ("{}", "ü", 1)
    assert value[1] == {
        "v": 0, "left": None, "more": [], "by_name": [], "extra": None, "any": None,
        "empty": None, "last": "",
    }  # fmt: skip


def test_protobuf_fields_of_two_versions_match_by_number() -> None:
    texts = (
        'syntax = "proto3"; message R { int32 sensor = 1; float value = 2; string unit = 3; }',
        """syntax = "proto3"; message R { int64 id = 1; float value = 2; bytes unit = 4;
          string x = 2000; }""",
        'syntax = "proto3"; message R { int64 id = 1; string value = 2; }',
    )
    messages = [ProtobufFile(text).message((0,)) for text in texts]
    target, plans = align([one.shape for one in messages])
    assert {name: str(kind) for name, kind in ((f.name, f.type) for f in target.type)} == {
        "id": "int64",
        "value": "float",
        "value__string": "string",
        "unit": "string",
        "unit__2": "binary",
        "x": "string",
    }
    for message, plan in zip(messages, plans, strict=True):
        one = message_class(message)()
        setattr(one, one.DESCRIPTOR.fields[0].name, 7)
        array = plan.convert(decode(message, [one.SerializeToString()], plan.selection).array)
        assert array.type == target.type
        assert array[0].as_py()["id"] == 7


def test_protobuf_fields_with_swapped_numbers_match_by_number() -> None:
    texts = (
        'syntax = "proto3"; message R { int32 a = 1; int32 b = 2; }',
        'syntax = "proto3"; message R { int32 a = 2; int32 b = 1; }',
    )
    messages = [ProtobufFile(text).message((0,)) for text in texts]
    _, plans = align([message.shape for message in messages])
    for message, plan in zip(messages, plans, strict=True):
        decoded = decode(message, [b"\x08\5\x10\7"], plan.selection)
        assert plan.convert(decoded.array).to_pylist() == [{"a": 7, "b": 5}]


def test_map_entries_of_karapace_become_maps() -> None:
    text = """syntax = "proto3"; message M { repeated .M.ByPosEntry by_pos = 6;
      repeated OtherEntry x = 7;
      message ByPosEntry { int32 key = 1; .M.V value = 2; } message V { string s = 1; }
      message OtherEntry { int32 key = 1; string value = 2; } }"""
    file = ProtobufFile(text)
    kinds = {field.name: str(field.type) for field in file.message((0,)).shape.type}
    assert kinds["by_pos"].startswith("map<int32, struct<s: string>>")
    assert kinds["x"].startswith("list<")
    assert file.message((0, 1)).name == "M.V"


@pytest.mark.parametrize("start", ["", "// syntax = 'proto3';\n", "/* old */ package p; "])
def test_file_without_syntax_is_compiled_without_a_warning(
    capfd: pytest.CaptureFixture[str], start: str
) -> None:
    text = f'{start}import "x.proto"; message M {{ optional int32 a = 1 [default = 3]; }}'
    message = ProtobufFile(text, {"x.proto": "message X { optional int32 b = 1; }"}).message((0,))
    assert message.shape.type == pa.struct([("a", pa.int32())])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("start", ["/* c */ ", "// c\n", "\n"])
def test_syntax_statement_after_a_comment_is_recognized(start: str) -> None:
    file = ProtobufFile(f'{start}syntax = "proto3"; message M {{ int32 a = 1; }}')
    assert file.message((0,)).name == "M"


def test_file_of_karapace_without_syntax_and_labels_is_compiled() -> None:
    message = ProtobufFile("package old; message Item { string name = 1; int32 qty = 2; }").message(
        (0,)
    )
    assert decode(message, [b"\x0a\x01x"]).array.to_pylist() == [{"name": "x", "qty": 0}]


def test_protobuf_map_entries_are_sorted_by_key() -> None:
    text = """syntax = "proto3"; message M { map<string, N> by_name = 1; map<int32, bool> m = 2; }
      message N { map<sint64, string> inner = 1; }"""
    message = ProtobufFile(text).message((0,))
    written = message_class(message)()
    for number in range(20):
        written.m[number * 7 % 20 - 5] = True
        written.by_name[f"k{number % 5}"].inner[-number] = "x"
    body = written.SerializeToString()
    runs = [decode(message, [body, b"", body]).array for _ in range(5)]
    assert all(run == runs[0] for run in runs)
    first = runs[0].to_pylist()[0]
    assert [key for key, _ in first["m"]] == sorted(written.m)
    assert [key for key, _ in first["by_name"]] == sorted(written.by_name)
    assert is_equal(written, first)


def test_descriptor_in_base64_is_compiled() -> None:
    own = descriptor_pb2.FileDescriptorProto(name="a.proto", syntax="proto3")
    own.dependency.append("google/protobuf/timestamp.proto")
    own.message_type.add(name="M").field.add(
        name="t", number=1, type=11, label=1, type_name=".google.protobuf.Timestamp"
    )
    message = ProtobufFile(base64.b64encode(own.SerializeToString()).decode()).message((0,))
    assert message.shape.type == pa.struct([("t", pa.timestamp("us", "UTC"))])


def test_time_beyond_the_year_9999_is_out_of_range() -> None:
    text = """syntax = "proto3"; import "google/protobuf/timestamp.proto";
      message M { repeated google.protobuf.Timestamp t = 1; }"""
    message = ProtobufFile(text).message((0,))
    far = message_class(message)()
    far.t.add(seconds=10**15)
    decoded = decode(message, [b"", far.SerializeToString(), b""])
    assert decoded.errors == {1: Reason.OUT_OF_RANGE}
    assert decoded.array.to_pylist() == [{"t": []}, None, {"t": []}]


def test_protobuf_value_above_the_decoded_size_limit_is_reported() -> None:
    fields = " ".join(f"int64 a{number} = {number + 1};" for number in range(50))
    message = ProtobufFile(
        f'syntax = "proto3"; message M {{ repeated I i = 1; }} message I {{ {fields} }}'
    ).message((0,))
    body = b"\x0a\x00" * 20_000
    decoder = message.decoder()
    with pytest.raises(DecodedTooLargeError):
        decoder.decode(bodies_of([body]), 1 << 20)
    assert len(decoder.decode(bodies_of([body]), MAX_BYTES).array[0]["i"]) == 20_000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "message {",
        'syntax = "proto3"; message M { Unknown u = 1; }',
        "\0\xff",
        'syntax = "proto3"; import "é.proto"; message M {}',
    ],
)
def test_invalid_protobuf_text_is_rejected(text: str) -> None:
    with pytest.raises(BadSchemaError):
        ProtobufFile(text + ("x" if not text else ""))


@pytest.mark.parametrize("fields", [1, 2])
def test_too_deeply_nested_protobuf_messages_are_rejected(fields: int) -> None:
    own = [f"M{{0}} a{number} = {number};" for number in range(1, fields + 1)]
    text = "".join(
        f"message M{level} {{ {' '.join(own).format(level + 1)} }}" for level in range(70)
    )
    file = ProtobufFile(f'syntax = "proto3"; {text} message M70 {{ int32 x = 1; }}')
    with pytest.raises(BadSchemaError, match="too deeply"):
        file.message((0,))
    assert file.message((60,)).shape.size > 10


def test_user_types_named_like_well_known_types_are_messages() -> None:
    text = """syntax = "proto3"; package google.protobuf; message Timestamp { string x = 1; }
      message Struct { int32 y = 1; }"""
    times, struct = (ProtobufFile(text).message((number,)) for number in range(2))
    assert decode(times, [b"\x0a\x01a"]).array.to_pylist() == [{"x": "a"}]
    assert decode(struct, [b"\x08\x01"]).array.to_pylist() == ['{"@bytes": "CAE="}']


def test_import_outside_the_schema_folder_is_rejected() -> None:
    with pytest.raises(BadSchemaError, match="points outside"):
        ProtobufFile('syntax = "proto3"; import "../x.proto";', {"../x.proto": ""})


def test_last_member_of_a_oneof_is_used_if_another_is_selected() -> None:
    text = 'syntax = "proto3"; message M { oneof o { string card = 1; bool cash = 2; } }'
    message = ProtobufFile(text).message((0,))
    card, cash = b"\x0a\x01x", b"\x10\x01"
    whole = decode(message, [card + cash, cash + card, card]).array.to_pylist()
    assert [one["card"] for one in whole] == [None, "x", "x"]
    part = decode(message, [card + cash, cash + card, card], {"card": None}).array.to_pylist()
    assert part == [{"card": None}, {"card": "x"}, {"card": "x"}]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # What comes twice: the last counts, and messages are merged.
        (b"\x0a\x01a\x0a\x01b", {"s": "b", "n": None, "r": []}),
        (b"\x12\x02\x08\x01\x12\x02\x10\x02", {"s": "", "n": {"a": 1, "b": 2}, "r": []}),
        # Numbers of a list, packed and not.
        (b"\x18\x01\x1a\x02\x02\x03\x18\x04", {"s": "", "n": None, "r": [1, 2, 3, 4]}),
        # Fields that the schema does not have, and a group.
        (b"\x78\x01\x7b\x08\x01\x7c\x0a\x01a", {"s": "a", "n": None, "r": []}),
        (b"\x7b\x08\x01\x74", None),
    ],
)
def test_protobuf_message_is_decoded_as_by_upb(body: bytes, expected: Any) -> None:
    text = """syntax = "proto3"; message M { string s = 1; N n = 2; repeated int32 r = 3; }
      message N { int32 a = 1; int32 b = 2; }"""
    decoded = decode(ProtobufFile(text).message((0,)), [body])
    assert decoded.array.to_pylist() == [expected]
    assert bool(decoded.errors) == (expected is None)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # Numbers that an enum of proto2 does not have.
        (b"\x08\x09", {"e": None, "r": [], "a": None, "b": None}),
        (b"\x08\x05\x10\x01\x10\x09\x10\x05", {"e": "B", "r": ["A", "B"], "a": None, "b": None}),
        # A string that is not UTF-8, and another one in its place.
        (b"\x1a\x01\xff\x22\x01b", {"e": None, "r": [], "a": None, "b": "b"}),
        (b"\x1a\x01\xff", None),
    ],
)
def test_message_of_proto2_is_read_as_upb_reads_it(body: bytes, expected: Any) -> None:
    text = """syntax = "proto2"; enum E { A = 1; B = 5; } message M { optional E e = 1;
      repeated E r = 2; oneof o { string a = 3; string b = 4; } }"""
    good = b"\x08\x01"
    decoded = decode(ProtobufFile(text).message((0,)), [good, body])
    assert decoded.array.to_pylist() == [{"e": "A", "r": [], "a": None, "b": None}, expected]
    assert decoded.errors == ({1: Reason.BAD_UTF8} if expected is None else {})


def test_recursive_message_outside_of_json_has_deterministic_bytes() -> None:
    text = """syntax = "proto3"; import "google/protobuf/duration.proto"; message M { M m = 1;
      map<int32, int32> n = 2; google.protobuf.Duration d = 3; }"""
    message = ProtobufFile(text).message((0,))
    written = message_class(message)()
    for number in range(9):
        written.m.n[number * 5 % 9] = number
    written.m.d.seconds = 1 << 60
    text_of = base64.b64encode(written.m.SerializeToString(deterministic=True)).decode()
    # The second row is left to upb.
    body = written.SerializeToString()
    rows = decode(message, [body, b"\x7b\x08\x01\x7c" + body]).array.to_pylist()
    assert [row["m"] for row in rows] == [json.dumps({"@bytes": text_of})] * 2


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a\x02" + b"\x0a\x00",  # JSON text of a message within itself
        b"\x10\x09",  # a number that the enum does not have
        b"\x7b\x08\x01\x7c",  # a group
    ],
)
def test_messages_left_to_upb_are_limited_together(body: bytes) -> None:
    text = """syntax = "proto2"; enum E { A = 1; }
      message M { optional M m = 1; optional E e = 2; }"""
    decoder = ProtobufFile(text).message((0,)).decoder()
    with pytest.raises(DecodedTooLargeError):
        decoder.decode(bodies_of([body] * 1000), 60_000)
    assert not decoder.decode(bodies_of([body]), 60_000).errors
