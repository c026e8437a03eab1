"""Avro decoded by the compiled loop equals fastavro: values, versions, and damaged bytes."""

from __future__ import annotations

import json
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kafka_index.core.errors import BadSchemaError
from kafka_index.core.schema.align import align
from kafka_index.core.schema.avro import AvroSchema
from kafka_index.core.schema.bodies import Bodies, DecodedTooLargeError
from kafka_index.core.schema.wire import Reason
from tests.support.campaign import sample_size
from tests.support.random_avro import RandomAvro, bodies_of, encode, is_equal, read, text_of

MAX_BYTES = 64 << 20
TIMES = {
    "type": "record",
    "name": "Times",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "text", "type": "string"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A"]}},
        {"name": "next", "type": ["null", "Times"]},
    ],
}
NODE = {
    "type": "record",
    "name": "Node",
    "fields": [
        {"name": "v", "type": "int"},
        {"name": "left", "type": ["null", "Node"]},
        {"name": "children", "type": {"type": "array", "items": "Node"}},
        {"name": "last", "type": "string"},
    ],
}


def record(*types: Any) -> dict[str, Any]:
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(types)]
    return {"type": "record", "name": "R", "fields": fields}


def _varint(number: int) -> bytes:
    return encode(record("long"), [{"f0": number}])[0]


def _doubled(levels: int) -> str:
    """A schema whose records each have two fields of the one below."""
    text = '"int"'
    for level in range(levels):
        first, second = text, f'"R{level - 1}"' if level else text
        text = f"""{{"type":"record","name":"R{level}","fields":[
            {{"name":"a","type":{first}}},{{"name":"b","type":{second}}}]}}"""
    return text


def decode(schema: Any, datums: list[bytes | None], selection: Any = None) -> Any:
    decoded = AvroSchema(json.dumps(schema)).decoder(selection).decode(bodies_of(datums), MAX_BYTES)
    decoded.array.validate(full=True)
    return decoded


@pytest.mark.parametrize("seed", range(sample_size(40, one_in=5)))
def test_random_values_equal_those_of_fastavro(seed: int) -> None:
    random = Random(seed)
    for _ in range(25):
        source = RandomAvro(random)
        schema = source.record()
        values = [source.value(schema) for _ in range(sample_size(1000, one_in=50))]
        datums: list[bytes | None] = [*encode(schema, values)]
        datums.insert(random.randrange(len(datums)), None)
        parsed = AvroSchema(json.dumps(schema))
        decoded = decode(schema, datums)
        assert not decoded.errors
        assert decoded.array.type == parsed.shape.type
        for datum, value in zip(datums, decoded.array.to_pylist(), strict=True):
            if datum is None:
                assert value is None
            else:
                assert is_equal(schema, read(schema, datum), value), (schema, value)


@pytest.mark.parametrize("seed", range(sample_size(40, one_in=5)))
def test_damaged_bytes_fail_where_fastavro_fails(seed: int) -> None:
    random = Random(1000 + seed)
    for _ in range(25):
        source = RandomAvro(random)
        schema = source.record()
        datums = [
            _damaged(random, datum)
            for datum in encode(schema, [source.value(schema) for _ in range(40)])
        ]
        decoder = AvroSchema(json.dumps(schema)).decoder()
        for datum in datums:
            try:
                decoded = decoder.decode(bodies_of([datum]), 1 << 20)
            except DecodedTooLargeError:
                assert '"items": "null"' in json.dumps(schema)
                continue
            decoded.array.validate(full=True)
            reason = decoded.errors.get(0)
            if reason not in (None, Reason.TRAILING) and '"items": "null"' in json.dumps(schema):
                # There may be very many elements of no bytes: fastavro would make them all.
                continue
            try:
                expected = read(schema, datum)
            except Exception as error:  # noqa: BLE001, of any kind
                # Arrow has days and times beyond those of Python, and UUIDs are text.
                if reason is None and not isinstance(error, OverflowError | ValueError):
                    pytest.fail(f"{schema} {datum!r} {error}")
                continue
            if reason in (None, Reason.TRAILING):
                assert is_equal(schema, expected, decoded.array[0].as_py()), (schema, datum)
            else:
                # fastavro counts negative indexes from the end, and its integers have no bounds.
                assert reason in (Reason.OUT_OF_RANGE, Reason.BAD_INDEX) or _is_overlong(datum)


def _damaged(random: Random, datum: bytes) -> bytes:
    data = bytearray(datum)
    match random.randrange(5):
        case 0:
            return bytes(data[: random.randrange(len(data) + 1)])
        case 1:
            return bytes(data) + random.randbytes(random.randrange(3))
        case 2 if data:
            data[random.randrange(len(data))] = random.randrange(256)
        case 3 if data:
            at = random.randrange(len(data))
            data[at : at + 1] = random.randbytes(random.randrange(12))
        case _:
            return random.randbytes(random.randrange(30))
    return bytes(data)


def _is_overlong(datum: bytes) -> bool:
    """Whether a varint may have more than ten bytes, which fastavro reads."""
    return any(all(byte & 0x80 for byte in datum[at : at + 10]) for at in range(len(datum) - 9))


@pytest.mark.parametrize("seed", range(sample_size(20, one_in=4)))
def test_values_of_several_schema_versions_are_decoded_into_one_column(seed: int) -> None:
    random = Random(2000 + seed)
    for _ in range(20):
        source = RandomAvro(random)
        versions = [source.record(2)]
        for _ in range(random.randint(1, 4)):
            versions.append(source.next_version(versions[-1]))
        parsed = [AvroSchema(json.dumps(schema)) for schema in versions]
        target, plans = align([one.shape for one in parsed])
        names = [member.name for member in target.members]
        assert len({name.lower() for name in names}) == len(names)
        arrays = []
        for schema, one, plan in zip(versions, parsed, plans, strict=True):
            values = [source.value(schema) for _ in range(10)]
            datums = encode(schema, values)
            decoded = one.decoder(plan.selection).decode(bodies_of(datums), MAX_BYTES)
            array = plan.convert(decoded.array)
            array.validate(full=True)
            assert array.type == target.type
            arrays.append(array)
            columns = dict(zip([name for name, _ in plan.sources], names, strict=True))
            for datum, row in zip(datums, array.to_pylist(), strict=True):
                expected = read(schema, datum)
                for field in schema["fields"]:
                    column = columns[field["name"]]
                    assert is_equal(field["type"], expected[field["name"]], row.pop(column))
                # Columns of other versions.
                assert not any(value is not None for value in row.values())
        pa.concat_arrays(arrays)


def test_selected_members_equal_those_of_a_full_decode() -> None:
    random = Random(7)
    for _ in range(60):
        source = RandomAvro(random)
        schema = source.record()
        datums: list[bytes | None] = [*encode(schema, [source.value(schema) for _ in range(20)])]
        names = [one["name"] for one in schema["fields"]]
        wanted = random.sample(names, random.randint(1, len(names)))
        whole = decode(schema, datums).array
        part = decode(schema, datums, dict.fromkeys(wanted)).array
        for name in wanted:
            assert repr(part.field(name).to_pylist()) == repr(whole.field(name).to_pylist())


@pytest.mark.parametrize(
    ("schema", "body", "reason"),
    [
        (record("string"), b"\x80\x80\x80\x80\x80\x40", Reason.TRUNCATED),
        (record("string"), b"\x04\xff\xfe", Reason.BAD_UTF8),
        (record("string"), b"\x04\xc0\x80", Reason.BAD_UTF8),
        (record("string"), b"\x06\xed\xa0\x80", Reason.BAD_UTF8),
        (record("long"), b"\xff" * 11, Reason.TRUNCATED),
        (record("long"), b"", Reason.TRUNCATED),
        (record("bytes"), b"\x03ab", Reason.TRUNCATED),
        (record("int"), b"\x80\x80\x80\x80\x10", Reason.OUT_OF_RANGE),
        (record(["null", "long"]), b"\x04\x00", Reason.BAD_INDEX),
        (record(["null", "long", "string"]), b"\x06\x00", Reason.BAD_INDEX),
        (record({"type": "enum", "name": "E", "symbols": ["A"]}), b"\x02", Reason.BAD_INDEX),
        (record({"type": "array", "items": "long"}), b"\xfe\xff\xff\xff\x0f", Reason.TRUNCATED),
        (record({"type": "int", "logicalType": "time-millis"}), b"\x01", Reason.OUT_OF_RANGE),
        *(
            (record({"type": kind, "logicalType": logical}), _varint(number), Reason.OUT_OF_RANGE)
            for kind, logical, days in (
                ("int", "date", 1),
                ("long", "timestamp-millis", 86_400_000),
                ("long", "local-timestamp-micros", 86_400_000_000),
            )
            for number in (-719_162 * days - 1, 2_932_897 * days)
        ),
        (
            record({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0}),
            b"\x02\x64",
            Reason.OUT_OF_RANGE,
        ),
    ],
)
def test_undecodable_value_is_reported_and_adjacent_values_are_decoded(
    schema: Any, body: bytes, reason: Reason
) -> None:
    good = encode(schema, [RandomAvro(Random(1)).value(schema)])[0]
    result = AvroSchema(json.dumps(schema)).decoder()
    rows = [result.decode(bodies_of([one]), MAX_BYTES) for one in (good, body, good)]
    assert [dict(row.errors) for row in rows] == [{}, {0: reason}, {}]
    assert rows[1].array.to_pylist() == [None]
    together = result.decode(bodies_of([good, body, good]), MAX_BYTES)
    assert together.errors == {1: reason}
    assert repr(together.array.take([0, 2]).to_pylist()) == repr(
        rows[0].array.to_pylist() + rows[2].array.to_pylist()
    )


@pytest.mark.parametrize(
    ("kind", "first", "last"),
    [
        ({"type": "int", "logicalType": "date"}, -719_162, 2_932_896),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            -62_135_596_800_000_000,
            253_402_300_799_999_999,
        ),
    ],
)
def test_first_and_last_time_of_the_calendar_are_decoded(kind: Any, first: int, last: int) -> None:
    decoded = decode(record(kind), [_varint(first), _varint(last)])
    assert not decoded.errors
    assert [row["f0"].year for row in decoded.array.to_pylist()] == [1, 9999]


def test_recursive_avro_record_is_decoded_as_json_text() -> None:
    leaf: dict[str, Any] = {"v": 3, "left": None, "children": [], "last": "z"}
    value = {"v": 1, "left": {**leaf, "left": leaf}, "children": [leaf, leaf], "last": "ü"}
    decoded = decode(NODE, [*encode(NODE, [value, leaf])])
    assert decoded.array.to_pylist() == [
        {**value, "left": text_of(value["left"]), "children": [text_of(leaf), text_of(leaf)]},
        leaf,
    ]


def test_too_deeply_nested_avro_record_is_reported_as_too_large() -> None:
    schema = {"type": "record", "name": "L", "fields": [{"name": "n", "type": ["null", "L"]}]}
    decoded = decode(schema, [b"\x02" * 100_000 + b"\0", b"\x02\x02\0"])
    assert decoded.errors == {0: Reason.TOO_LARGE}
    assert decoded.array[1].as_py() == {"n": '{"n": {"n": null}}'}


@pytest.mark.parametrize(
    ("schema", "body", "max_bytes"),
    [
        (record({"type": "array", "items": "R"}), b"\x02\xd0\x0f" + bytes(1002), 100_000),
        (record({"type": "array", "items": "null"}), b"\xfe" + b"\xff" * 5 + b"\x7f\0", MAX_BYTES),
        ({"type": "fixed", "name": "F", "size": 1_000_000}, b"", 1000),
    ],
)
def test_avro_value_beyond_the_memory_limit_is_too_large(
    schema: Any, body: bytes, max_bytes: int
) -> None:
    decoder = AvroSchema(json.dumps(schema)).decoder()
    for bodies in ([body], [body, b""]):
        with pytest.raises(DecodedTooLargeError):
            decoder.decode(bodies_of(bodies), max_bytes)


def test_null_record_inside_a_recursive_avro_record_is_json_null() -> None:
    inner = {"type": "record", "name": "W", "fields": [{"name": "n", "type": "R"}]}
    assert decode(record(["null", inner]), [b"\0", b"\x02\0"]).array.to_pylist() == [
        {"f0": None},
        {"f0": {"n": '{"f0": null}'}},
    ]


@pytest.mark.parametrize(
    ("inner", "reason"),
    [
        (b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\0\0", Reason.OUT_OF_RANGE),
        (b"\0\x02\xff\0", Reason.BAD_UTF8),
        (b"\0\0\x08", Reason.BAD_INDEX),
    ],
)
def test_undecodable_recursive_avro_record_is_reported(inner: bytes, reason: Reason) -> None:
    good = b"\0\0\0\0"
    decoded = decode(TIMES, [good, b"\0\0\0\x02" + inner + b"\0", good])
    assert decoded.errors == {1: reason}
    assert [row is None for row in decoded.array.to_pylist()] == [False, True, False]


def test_avro_record_without_fields_is_decoded_as_json_text() -> None:
    empty = {"type": "record", "name": "E", "fields": []}
    decoded = decode(record("int", ["null", empty]), [b"\x02\x02", b"\x02\0"])
    assert decoded.array.to_pylist() == [{"f0": 1, "f1": "{}"}, {"f0": 1, "f1": None}]
    assert decode(empty, [b"", None]).array.to_pylist() == ["{}", None]
    both = decode(record(["null", empty], "E"), [b"\x02", b"\0"]).array.to_pylist()
    assert both == [{"f0": "{}", "f1": "{}"}, {"f0": None, "f1": "{}"}]


def test_infinitely_recursive_avro_record_is_too_large() -> None:
    assert decode(record("R"), [b"", b"\0"]).errors == dict.fromkeys(range(2), Reason.TOO_LARGE)


def test_fixed_values_that_together_exceed_the_limit_are_decoded_in_smaller_parts() -> None:
    decoder = AvroSchema('{"type":"fixed","name":"F","size":1000000}').decoder()
    with pytest.raises(DecodedTooLargeError):
        decoder.decode(bodies_of([b""] * 100), MAX_BYTES)
    assert decoder.decode(bodies_of([b""]), MAX_BYTES).errors == {0: Reason.TRUNCATED}


def test_avro_field_names_that_differ_only_in_case_are_distinct() -> None:
    inner = record("int", "string")
    inner["fields"] = [
        {**one, "name": name} for one, name in zip(inner["fields"], "xX", strict=True)
    ]
    schema = record({"type": "array", "items": {**inner, "name": "I"}})
    shape, (plan,) = align([AvroSchema(json.dumps(schema)).shape])
    value = plan.convert(decode(schema, [*encode(schema, [{"f0": [{"x": 1, "X": "a"}]}])]).array)
    assert (value.type, value.to_pylist()) == (shape.type, [{"f0": [{"x": 1, "X__2": "a"}]}])


def test_avro_fixed_of_size_zero_is_decoded() -> None:
    fixed = {"type": "fixed", "name": "F", "size": 0}
    decoded = decode(record(fixed, ["null", "F"]), [b"\x02", b"\0"])
    assert decoded.array.to_pylist() == [{"f0": b"", "f1": b""}, {"f0": b"", "f1": None}]


@pytest.mark.parametrize(("size", "precision"), [(0, 2), (0, 40), (1, 3), (16, 39)])
def test_avro_decimal_too_wide_for_its_fixed_type_is_bytes(size: int, precision: int) -> None:
    fixed = {"type": "fixed", "name": "F", "size": size, "logicalType": "decimal"}
    values = [bytes(size), b"\xff" * size]
    decoded = decode(record({**fixed, "precision": precision}), [*values])
    assert decoded.array.to_pylist() == [{"f0": value} for value in values]
    decimals = decode(record({**fixed, "precision": precision - 1}), [*values])
    assert [type(row["f0"]) for row in decimals.array.to_pylist()] == [
        Decimal if size else bytes
    ] * 2


def test_wide_avro_decimal_beyond_its_precision_is_out_of_range() -> None:
    wide = {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2}
    numbers = [10**40 - 1, 10**40, 256**100_000, -(10**40) + 1]
    bodies = [
        number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True) for number in numbers
    ]
    decoded = decode(record(wide), [*(_varint(len(body)) + body for body in bodies)])
    assert decoded.errors == dict.fromkeys((1, 2), Reason.OUT_OF_RANGE)
    text = f"{'9' * 38}.99"
    assert decoded.array.to_pylist() == [{"f0": text}, None, None, {"f0": f"-{text}"}]


def test_avro_rows_without_body_take_no_memory() -> None:
    body = b"\x02\x02a\0"
    bodies = Bodies(
        np.frombuffer(body, np.uint8),
        np.array([-1, 0, -1]),
        np.array([1 << 50, len(body), 1 << 50]),
    )
    schema = record({"type": "array", "items": "string"})
    decoded = AvroSchema(json.dumps(schema)).decoder().decode(bodies, MAX_BYTES)
    assert decoded.array.to_pylist() == [None, {"f0": ["a"]}, None]


def test_wide_avro_elements_stay_within_the_memory_limit() -> None:
    fixed = {"type": "fixed", "name": "F", "size": 1 << 20}
    element = b"\x02" + b"x" * (1 << 20) + b"\0"
    schema = record({"type": "array", "items": fixed})
    decoded = decode(schema, [*([b"\0"] * 1_000_000), element])
    assert not decoded.errors
    assert decoded.array[-1].as_py() == {"f0": [b"x" * (1 << 20)]}


def test_avro_logical_type_that_is_no_text_is_ignored() -> None:
    schema = {"type": "int", "logicalType": ["date"]}
    assert decode(schema, [b"\x02"]).array.to_pylist() == [1]


def test_top_level_avro_bytes_have_no_length_prefix() -> None:
    assert decode("bytes", [b"\x01\x02", b"", None]).array.to_pylist() == [b"\x01\x02", b"", None]


def test_size_limit_applies_to_the_decoded_size() -> None:
    inner = {
        "type": "record",
        "name": "I",
        "fields": [{"name": f"x{n}", "type": ["null", "double"]} for n in range(12)],
    }
    schema = record({"type": "array", "items": inner})
    elements = 60_000
    body = encode(schema, [{"f0": [dict.fromkeys(f"x{n}" for n in range(12))] * elements}])[0]
    decoder = AvroSchema(json.dumps(schema)).decoder()
    assert len(decoder.decode(bodies_of([body]), MAX_BYTES).array[0]["f0"]) == elements
    for bodies, max_bytes in (([body], 1 << 20), ([body, body], 8 << 20)):
        with pytest.raises(DecodedTooLargeError):
            decoder.decode(bodies_of(bodies), max_bytes)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '"Unknown"',
        '{"type":"record","name":"R"}',
        '{"type":"fixed","name":"F"}',
        "7",
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}',
        '{"type":"fixed","name":"F","size":1099511627776}',
        '{"type":"enum","name":"E","symbols":["\\ud800"]}',
        '{"type":"record","name":"R","fields":[{"name":"\\ud800","type":"int"}]}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":[]}]}',
        '{"type":"array","items":' * 100 + '"int"' + "}" * 100,
        _doubled(30),
        # A record within itself, with symbols that are no names, and with elements without bytes.
        json.dumps(record(["null", "R"], {"type": "enum", "name": "E", "symbols": ["a-b"]})),
        json.dumps(record(["null", "R"], {"type": "array", "items": "null"})),
    ],
)
def test_invalid_schema_text_is_rejected(text: str) -> None:
    with pytest.raises(BadSchemaError):
        AvroSchema(text)


def test_avro_types_of_references_are_resolved() -> None:
    address = (
        '{"type":"record","name":"Address","namespace":"c","fields":[{"name":"s","type":"string"}]}'
    )
    schema = AvroSchema('{"type":"array","items":"c.Address"}', [address])
    assert schema.decoder().decode(bodies_of([b"\x02\x02x\x00"]), MAX_BYTES).array.to_pylist() == [
        [{"s": "x"}]
    ]
