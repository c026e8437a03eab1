"""Typed keys and values in `read_records`: a generated dump like one of a registry and brokers."""

from __future__ import annotations

import json
import pickle
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kafka_index
from kafka_index.core.errors import ConfigError, CorruptRecordError, InputError
from kafka_index.core.log.choices import Decode
from kafka_index.core.query.record_reader import RecordReader
from kafka_index.core.query.typed_records import decode_options, find_writers
from kafka_index.records import ReadRequest
from tests.support.random_avro import encode
from tests.support.record_tables import batch_of, write_partition
from tests.support.registry_records import schema_record, write_topic
from tests.support.typed_dump import CART, ORDERS, PAYMENT, framed, topics, write_typed_dump

TOPICS = topics()
ONE = {"type": "record", "name": "One", "fields": [{"name": "x", "type": "int"}]}


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_typed_dump(tmp_path_factory.mktemp("typed"))


@pytest.mark.parametrize("topic", TOPICS)
def test_typed_values_of_a_topic_equal_the_written_ones(dump: Path, topic: str) -> None:
    records = kafka_index.read_records(dump, topics=topic, decode="value")
    table = records.to_arrow()
    table.validate(full=True)
    expected = TOPICS[topic]
    assert table.num_rows == len(expected)
    for row, one in zip(table.to_pylist(), expected, strict=True):
        assert row["value"] == one.expected, row
        assert row["_decode_error"] == one.error, row
        assert row["value_raw"] == (None if one.error is None else one.value)
    failed = Counter(one.error for one in expected if one.error is not None)
    assert records.decode_errors == failed
    assert records.ok == (not failed)


def test_keys_with_a_schema_are_typed_and_others_stay_bytes(dump: Path) -> None:
    orders = kafka_index.read_records(dump, topics="orders", decode="both").to_arrow()
    assert orders["key"].to_pylist() == ["k-1", "k-2", "k-1", "k-3"]
    assert orders["value_schema_id"].to_pylist() == [2, 3, None, 4]
    assert orders["value_type"].to_pylist() == ["shop.Order", "shop.Order", None, "shop.Order"]
    numbers = kafka_index.read_records(dump, topics="numbers", decode="both")
    assert numbers.schema.field("key").type == pa.binary()
    assert numbers.to_arrow()["_key_decode_error"].to_pylist() == [None]


def test_only_selected_members_are_decoded(dump: Path) -> None:
    columns = ["offset", "value.lines.sku", "value.note", "_decode_error"]
    table = kafka_index.read_records(dump, topics="payments", decode="value", columns=columns)
    assert table.to_arrow().to_pylist() == [
        {
            "offset": 0,
            "value": {"note": "", "lines": [{"sku": "x"}, {"sku": "y"}]},
            "_decode_error": None,
        }
    ]
    with pytest.raises(InputError, match="value has no member nothing"):
        kafka_index.read_records(dump, topics="orders", decode="value", columns=["value.nothing"])
    with pytest.raises(ConfigError, match="requires decode"):
        kafka_index.read_records(dump, topics="orders", columns=["value.id"])


@pytest.mark.parametrize(
    "options",
    [
        {"schemas": "/s"},
        {"value_schema": "x.avsc"},
        {"decode_errors": "fail"},
        {"schema_context": "c"},
    ],
)
def test_decoding_option_without_decode_is_rejected(dump: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(options))} requires decode"):
        kafka_index.read_records(dump, topics="orders", **options)


def test_types_are_found_in_the_first_records_up_to_a_limit(dump: Path) -> None:
    records = kafka_index.read_records(dump, topics="events", decode="value")
    plan = records._plan
    request = ReadRequest(inputs=(str(dump),), decode=Decode.VALUE)
    options = decode_options(request, ["events"], request.inputs)
    assert options is not None
    for limit, count in ((1, 1), (2, 2), (None, 2)):
        settings = replace(plan.settings, typed=None)
        result = find_writers(plan.splits, settings, options, limit=limit)
        assert result["events", "value"].counts.framings.total() == count


@pytest.mark.parametrize(
    ("schemas", "values", "expected"),
    [
        pytest.param(['"int"', '"long"'], [b"\x02", b"\x04"], [1, 2], id="wider number"),
        pytest.param(
            [json.dumps(["null", ONE]), json.dumps(ONE)], [b"\x02\x0e", b"\x10"],
            [{"x": 7}, {"x": 8}], id="nullable record",
        ),
        pytest.param(
            ['"string"', '"bytes"'], [b"\x02a", b"\xff"],
            [{"string": "a", "bytes": None}, {"string": None, "bytes": b"\xff"}], id="other type",
        ),
    ],
)  # fmt: skip
def test_versions_with_non_record_types_are_merged_within_a_subject(
    tmp_path: Path, schemas: list[str], values: list[bytes], expected: list[object]
) -> None:
    versions = [schema_record("t-value", n, n, text) for n, text in enumerate(schemas, 1)]
    write_topic(tmp_path, "_schemas", versions)
    write_topic(tmp_path, "t", [(None, framed(n, value)) for n, value in enumerate(values, 1)])
    table = kafka_index.read_records(tmp_path, topics="t", decode="value").to_arrow()
    assert table["value"].to_pylist() == expected


def test_typed_read_of_several_topics_has_a_member_per_type(dump: Path) -> None:
    records = kafka_index.read_records(dump, topics="orders|payments", decode="value")
    assert [field.name for field in records.schema.field("value").type] == ["Order", "Payment"]
    types = records.to_arrow()["value_type"].to_pylist()
    assert types == ["shop.Order", "shop.Order", None, "shop.Order", "pay.Payment"]


def test_decoder_types_are_equal_after_pickling(dump: Path) -> None:
    records = kafka_index.read_records(dump, topics="mixed", decode="both")
    settings = pickle.loads(pickle.dumps(records._plan.settings))  # noqa: S301
    assert settings.schema == records.schema
    result = [batch for split in records._plan.splits for batch in _read(split, settings)]
    assert pa.Table.from_batches(result) == records.to_arrow()


def _read(split: Any, settings: Any) -> Any:
    return RecordReader(split, settings)


def test_undecodable_row_is_an_error_in_fail_fast_mode(dump: Path) -> None:
    records = kafka_index.read_records(dump, topics="mixed", decode="value", decode_errors="fail")
    with pytest.raises(CorruptRecordError, match="offset 1 of mixed-0 does not decode: no_magic"):
        records.to_arrow()


@pytest.mark.parametrize(
    ("name", "text", "topic", "place"),
    [
        ("plain.json", json.dumps({**CART, "title": "P"}), "plain", ""),
        ("pay.proto", PAYMENT, "raw", "#pay.Payment"),
        ("order.avsc", json.dumps(ORDERS[1]), "bare", ""),
    ],
)
def test_unframed_values_are_decoded_with_a_schema_file(
    tmp_path: Path, name: str, text: str, topic: str, place: str
) -> None:
    (tmp_path / name).write_text(text)
    root = write_typed_dump(tmp_path / "dump")
    values = {
        "raw": (TOPICS["payments"][0].value or b"")[7:],
        "bare": (TOPICS["orders"][1].value or b"")[5:],
    }
    if topic in values:
        log = batch_of(0, [(1, None, values[topic]), (2, None, None), (3, None, b"\xff")])
        write_partition(root, {0: log}, f"{topic}-0")
    table = kafka_index.read_records(
        root, topics=topic, decode="value", value_schema=f"{tmp_path / name}{place}"
    ).to_arrow()
    first = table["value"].to_pylist()[0]
    expected = {
        "plain": {"id": 1, "total": None, "either": None, "kind": None,
                  "additional_properties": None},
        "raw": TOPICS["payments"][0].expected,
        "bare": {"id": 1 << 40, "customer_id": "c-2", "amount": 0.1},
    }  # fmt: skip
    assert first == expected[topic]
    assert table["_decode_error"].null_count == len(table) - (topic in values)


PROTO = 'syntax = "proto3"; message A { string s = 1; } message B { int32 x = 1; }'


@pytest.mark.parametrize(
    ("files", "value", "expected"),
    [
        pytest.param({"a.avsc": json.dumps(ONE)}, framed(9, b"\x0e"), {"x": 7}, id="only schema"),
        pytest.param({"a.avsc": json.dumps(ONE)}, b"\x0e", {"x": 7}, id="without frame"),
        pytest.param(
            {"t-value.avsc": json.dumps(ONE), "b.avsc": '"string"'}, framed(9, b"\x0e"), {"x": 7},
            id="name of the subject",
        ),
        pytest.param(
            {"sub/t-value.proto": PROTO}, framed(9, b"\x02\x02\x08\x07"), {"x": 7}, id="message"
        ),
        pytest.param({"t-value.proto": PROTO}, framed(9, b"\0\x0a\x01a"), {"s": "a"}, id="first"),
        pytest.param(
            {"p.proto": PROTO, "schemas.json": '{"topics": {"t": {"value": "p.proto#B"}}}'},
            framed(9, b"\x02\x02\x08\x07"), {"x": 7}, id="map with a type",
        ),
    ],
)  # fmt: skip
def test_schema_folder_without_ids_maps_files_to_topics(
    tmp_path: Path, files: dict[str, str], value: bytes, expected: object
) -> None:
    folder = tmp_path / "schemas"
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    root = write_topic(tmp_path / "dump", "t", [(None, value), (None, None)])
    records = kafka_index.read_records(root, decode="value", schemas=folder)
    assert records.to_arrow()["value"].to_pylist() == [expected, None]
    assert records.ok
    if len(files) == 1:
        file = folder / next(iter(files))
        one = kafka_index.read_records(root, decode="value", schemas=file)
        assert one.to_arrow()["value"].to_pylist() == [expected, None]


def test_unframed_values_that_start_with_a_zero_byte_are_decoded_completely(tmp_path: Path) -> None:
    fields = [{"name": "a", "type": ["null", "int"]}, {"name": "b", "type": "string"}]
    schema = {"type": "record", "name": "R", "fields": fields}
    (tmp_path / "t-value.avsc").write_text(json.dumps(schema))
    expected = [{"a": None if n % 2 else n, "b": f"{n} text"} for n in range(40)]
    root = write_topic(tmp_path / "dump", "t", [(None, one) for one in encode(schema, expected)])
    records = kafka_index.read_records(root, decode="value", schemas=tmp_path)
    assert records.to_arrow()["value"].to_pylist() == expected


def test_schema_folder_without_files_of_the_topic_is_rejected_with_a_hint(tmp_path: Path) -> None:
    for name in ("a.avsc", "b.avsc"):
        (tmp_path / name).write_text('"string"')
    root = write_topic(tmp_path / "dump", "t", [(None, framed(9, b"\x02x"))])
    with pytest.raises(
        InputError, match=r"rename the schema file, or write a schemas.json: \{\"topics\""
    ):
        kafka_index.read_records(root, decode="value", schemas=tmp_path)
    (tmp_path / "t-value.avsc").write_text('"string"')
    (tmp_path / "t-value.json").write_text("{}")
    with pytest.raises(InputError, match="two schema files are named after the values of topic t"):
        kafka_index.read_records(root, decode="value", schemas=tmp_path)


def test_schema_folder_maps_several_topics_of_one_read(tmp_path: Path) -> None:
    folder = tmp_path / "schemas"
    folder.mkdir()
    for topic in ("t", "u"):
        (folder / f"{topic}-value.avsc").write_text(json.dumps({**ONE, "name": topic}))
        write_topic(tmp_path / "dump", topic, [(None, framed(9, b"\x0e"))])
    records = kafka_index.read_records(tmp_path / "dump", decode="value", schemas=folder)
    assert records.to_arrow()["value"].to_pylist() == [
        {"t": {"x": 7}, "u": None},
        {"t": None, "u": {"x": 7}},
    ]


def test_missing_libraries_are_named_with_their_command(
    dump: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "grpc_tools", None)
    with pytest.raises(InputError, match=r"pip install 'kafka-index\[typed\]'"):
        kafka_index.read_records(dump, topics="orders", decode="value")


def test_large_decoded_values_are_returned_in_bounded_chunks(tmp_path: Path) -> None:
    inner = [{"name": f"x{n}", "type": ["null", "double"]} for n in range(9)]
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "f", "type": {"type": "array", "items": {
                "type": "record", "name": "I", "fields": inner}}},
        ],
    }  # fmt: skip
    element = dict.fromkeys(f"x{n}" for n in range(9))
    sizes = [2000, 1, 3000, 2500, 20_000]
    values = [b"\0\0\0\0\1" + encode(schema, [{"f": [element] * size}])[0] for size in sizes]
    log = batch_of(0, [(number, None, value) for number, value in enumerate(values)])
    write_partition(tmp_path, {0: log}, "grown-0")
    write_topic(tmp_path, "_schemas", [schema_record("grown-value", 1, 1, json.dumps(schema))])
    records = kafka_index.read_records(
        tmp_path, topics="grown", decode="value", max_decompressed_bytes=1 << 20
    )
    batches = list(records)
    assert len(batches) > 1
    result = [row for batch in batches for row in batch.to_pylist()]
    assert [row["_decode_error"] for row in result] == [None, None, None, None, "too_large"]
    assert [len(row["value"]["f"]) for row in result[:4]] == sizes[:4]
