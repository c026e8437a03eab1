"""``import --layout``: the files of other exports, written as their sources and documents say."""

from __future__ import annotations

import gzip
import io
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kafka_index
from kafka_index.core.errors import ConfigError, InputError
from tests.support.command_line import run_here
from tests.support.segments import xerial

STRINGS = {"key.converter": "string", "value.converter": "string", "header.converter": "string"}


def written(path: Path, *rows: Any) -> None:
    """Write JSON lines, compressed as the name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def imported(folder: Path, layout: str, **properties: str) -> list[dict[str, Any]]:
    """Return the records after an import, with those properties that are names with dots."""
    given = {name.replace("_", "."): value for name, value in properties.items()}
    logs = folder.parent / "logs"
    kafka_index.import_records(folder, logs, layout=layout, layout_properties=given)
    rows: list[dict[str, Any]] = kafka_index.read_records(logs).read_all().to_pylist()
    return rows


def places(rows: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(row["topic"], row["partition"], row["offset"]) for row in rows]


@pytest.mark.parametrize("layout", ["kcat", "auto"])
def test_kcat_lines_keep_offsets_times_and_flat_headers(tmp_path: Path, layout: str) -> None:
    line = {"topic": "orders", "partition": 3, "tstype": "create", "ts": 1_714_521_600_123}
    written(
        tmp_path / "in" / "orders.json",
        {
            **line,
            "offset": 7,
            "broker": 1,
            "headers": ["a", "1", "a", None],
            "key": "",
            "payload": "ü",
        },
        {**line, "offset": 9, "broker": 1, "key": None, "payload": None},
    )

    result = imported(tmp_path / "in", layout)

    assert places(result) == [("orders", 3, 7), ("orders", 3, 9)]
    assert [(row["key"], row["value"]) for row in result] == [(b"", "ü".encode()), (None, None)]
    assert result[0]["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    assert result[0]["timestamp"].isoformat() == "2024-05-01T00:00:00.123000+00:00"


@pytest.mark.parametrize("layout", ["spark", "auto"])
def test_spark_json_row_without_a_key_member_has_a_null_key(tmp_path: Path, layout: str) -> None:
    row = {"topic": "orders", "partition": 0, "timestamp": "2024-05-01T00:00:00.000Z"}
    row |= {"timestampType": 0, "value": b64encode(b"v").decode(), "key": b64encode(b"k").decode()}
    without = {name: value for name, value in row.items() if name != "key"}
    written(tmp_path / "in" / "part-0.json", {**row, "offset": 5}, {**without, "offset": 4})

    result = imported(tmp_path / "in", layout)

    assert [(row["offset"], row["key"], row["value"]) for row in result] == [
        (4, None, b"v"),
        (5, b"k", b"v"),
    ]


@pytest.mark.parametrize("layout", ["confluent-s3", "auto"])
@pytest.mark.parametrize("form", ["json", "json.gz", "avro", "parquet"])
def test_confluent_files_of_values_keys_and_headers_are_joined_into_records(
    tmp_path: Path, form: str, layout: str
) -> None:
    folder = tmp_path / "in" / "topics" / "a.b-c" / "partition=1"
    folder.mkdir(parents=True)
    for start, count in ((10, 2), (12, 1)):
        name = f"a.b-c+1+{start:010d}"
        numbers = range(start, start + count)
        headers = [[{"key": "h", "value": f"h{number}"}] for number in numbers]
        if form == "avro":
            for view, kind, rows in (
                ("", "bytes", [b"v%d" % number for number in numbers]),
                (".keys", "string", [f"k{number}" for number in numbers]),
                (".headers", _HEADERS, headers),
            ):
                with (folder / f"{name}{view}.avro").open("wb") as file:
                    fastavro.writer(file, fastavro.parse_schema(kind), rows, codec="deflate")
        elif form == "parquet":
            values = pa.table({"id": list(numbers)})
            keys = pa.table({"key": [f"k{number}" for number in numbers]})
            pq.write_table(values, folder / f"{name}.snappy.parquet")
            pq.write_table(keys, folder / f"{name}.keys.snappy.parquet")
            pq.write_table(
                pa.table({"headers": headers}), folder / f"{name}.headers.snappy.parquet"
            )
        else:
            written(folder / f"{name}.{form}", *({"id": number} for number in numbers))
            written(folder / f"{name}.keys.{form}", *(f"k{number}" for number in numbers))
            written(folder / f"{name}.headers.{form}", *({"headers": header} for header in headers))

    result = imported(
        tmp_path / "in",
        layout,
        key_converter="org.apache.kafka.connect.storage.StringConverter",
        value_converter="json",
        header_converter="string",
    )

    assert places(result) == [("a.b-c", 1, offset) for offset in (10, 11, 12)]
    assert [row["key"] for row in result] == [b"k10", b"k11", b"k12"]
    assert [row["headers"] for row in result] == [
        [{"key": "h", "value": b"h%d" % offset}] for offset in (10, 11, 12)
    ]
    for row in result:
        assert row["value"] == b"v%d" % row["offset"] or json.loads(row["value"]) == {
            "id": row["offset"]
        }


_HEADER = {
    "type": "record",
    "name": "Header",
    "fields": [{"name": "key", "type": "string"}, {"name": "value", "type": "string"}],
}
_HEADERS = {"type": "array", "items": _HEADER}


def test_offset_gaps_between_confluent_file_names_are_rejected_unless_packed(
    tmp_path: Path,
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "t+0+0.bin").write_bytes(b"a\nb\n")
    (tmp_path / "in" / "t+0+3.bin").write_bytes(b"\xff\r\n")

    with pytest.raises(InputError, match="do not show where"):
        imported(tmp_path / "in", "confluent-s3")
    result = imported(tmp_path / "in", "confluent-s3", offsets="packed")
    assert [(row["offset"], row["value"]) for row in result] == [
        (0, b"a"),
        (1, b"b"),
        (3, b"\xff\r"),
    ]

    (tmp_path / "in" / "t+0+1.bin").write_bytes(b"c\n")
    with pytest.raises(InputError, match="do not contain the offsets of their records"):
        imported(tmp_path / "in", "confluent-s3", offsets="packed")


@pytest.mark.parametrize("view", ["keys", "headers"])
def test_key_or_header_file_with_fewer_records_than_its_value_file_is_rejected(
    tmp_path: Path, view: str
) -> None:
    written(tmp_path / "in" / "t+0+0.json", "a", "b")
    written(tmp_path / "in" / f"t+0+0.{view}.json", {"headers": []} if view == "headers" else "k")

    with pytest.raises(InputError, match="fewer records than the file of values"):
        imported(tmp_path / "in", "confluent-s3", **_dotless(STRINGS))


def _dotless(properties: dict[str, str]) -> dict[str, str]:
    return {name.replace(".", "_"): value for name, value in properties.items()}


def test_topic_names_with_underscore_are_read_but_spark_success_files_are_skipped(
    tmp_path: Path,
) -> None:
    written(tmp_path / "in" / "_schemas" / "_schemas+0+0.json", "a")
    written(tmp_path / "in" / "_SUCCESS", 1)

    assert places(imported(tmp_path / "in", "auto", value_converter="string")) == [
        ("_schemas", 0, 0)
    ]


@pytest.mark.parametrize("cut", [3, 40])
def test_truncated_avro_file_is_rejected(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "in" / "t+0+0.avro"
    path.parent.mkdir()
    with path.open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema("bytes"), [b"v" * 100])
    path.write_bytes(path.read_bytes()[:-cut])

    with pytest.raises(InputError, match=r"t\+0\+0.avro"):
        imported(tmp_path / "in", "confluent-s3")


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_snappy_file_truncated_in_a_chunk_length_is_rejected(tmp_path: Path, cut: int) -> None:
    lines = [json.dumps({"value": "dg==", "offset": offset}).encode() + b"\n" for offset in (0, 1)]
    packed, first = (xerial(data, len(lines[0])) for data in (b"".join(lines), lines[0]))
    path = tmp_path / "in" / "t-0-0.snappy"
    path.parent.mkdir()
    path.write_bytes(packed)
    whole = imported(path.parent, "aiven-s3", value_converter="bytes")
    path.write_bytes(packed[: len(first) + cut])

    assert [row["offset"] for row in whole] == [0, 1]
    with pytest.raises(InputError, match=rf"{cut} bytes follow the last chunk"):
        imported(path.parent, "aiven-s3", value_converter="bytes")


def test_bytes_of_an_avro_record_become_base64_with_the_json_converter(
    tmp_path: Path,
) -> None:
    path = tmp_path / "in" / "t+0+0.avro"
    path.parent.mkdir()
    kind = {"type": "record", "name": "V", "fields": [{"name": "a", "type": "bytes"}]}
    with path.open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(kind), [{"a": b"\xff"}])

    result = imported(tmp_path / "in", "confluent-s3", value_converter="json")

    assert [row["value"] for row in result] == [b'{"a":"/w=="}']


@pytest.mark.parametrize("layout", ["kcat", "spark"])
def test_reserialized_json_values_are_reported(tmp_path: Path, layout: str) -> None:
    place = {"topic": "t", "partition": 0, "offset": 0}
    times = {"timestamp": "2024-05-01T00:00:00.000Z", "timestampType": 0, "key": None}
    row = {"payload": {"a": 1}, "ts": 1} if layout == "kcat" else {"value": {"a": 1}, **times}
    written(tmp_path / "in" / "rows.json", {**place, **row})

    result = kafka_index.import_records(
        tmp_path / "in",
        tmp_path / "logs",
        layout=layout,
        layout_properties={"value.converter": "json"},
    )

    assert [notice.split(" is written")[0] for notice in result.notices] == ["value"]


def test_key_file_without_a_value_file_is_rejected(tmp_path: Path) -> None:
    written(tmp_path / "in" / "tombstone" / "t+0+0.keys.json", "k")

    with pytest.raises(InputError, match="tombstones"):
        imported(tmp_path / "in", "confluent-s3", **_dotless(STRINGS))


@pytest.mark.parametrize("value", ["text", {"a": 1}, 7])
def test_values_without_their_original_bytes_are_rejected(tmp_path: Path, value: object) -> None:
    written(tmp_path / "in" / "t+0+0.json", value)

    with pytest.raises(InputError, match=r"value\.converter(: string.* or |=)json"):
        imported(tmp_path / "in", "confluent-s3")


@pytest.mark.parametrize("layout", ["aiven-s3", "auto"])
@pytest.mark.parametrize("form", ["jsonl", "json", "avro", "parquet"])
def test_aiven_files_keep_the_offsets_of_their_offset_field(
    tmp_path: Path, form: str, layout: str
) -> None:
    rows: list[dict[str, Any]] = [
        {"key": None, "value": f"v{offset}", "offset": offset, "timestamp": 1000 + offset}
        for offset in (5, 8)
    ]
    path = tmp_path / "in" / "my-topic-0-5.gz"
    path.parent.mkdir()
    if form == "jsonl":
        written(path, *({**row, "timestamp": "1970-01-01T00:00:01.00Z"} for row in rows))
    elif form == "json":
        path.write_bytes(
            gzip.compress(b"[\n" + b",\n".join(json.dumps(row).encode() for row in rows) + b"\n]")
        )
    elif form == "avro":
        fields = [{"name": "key", "type": ["null", "bytes"]}, {"name": "value", "type": "string"}]
        fields += [{"name": name, "type": "long"} for name in ("offset", "timestamp")]
        kind = {"type": "record", "name": "connector_records", "fields": fields}
        packed = io.BytesIO()
        fastavro.writer(packed, fastavro.parse_schema(kind), rows)
        path.write_bytes(gzip.compress(packed.getvalue()))
    else:
        with gzip.open(path, "wb") as file:
            pq.write_table(pa.Table.from_pylist(rows), file)

    result = imported(tmp_path / "in", layout, value_converter="string")

    assert places(result) == [("my-topic", 0, 5), ("my-topic", 0, 8)]
    assert [(row["key"], row["value"]) for row in result] == [(None, b"v5"), (None, b"v8")]
    assert result[0]["timestamp"].timestamp() in (1.0, 1.005)


def test_aiven_csv_is_read_with_the_configured_output_fields(tmp_path: Path) -> None:
    line = b",".join((b64encode(b"k"), b64encode(b"a,\xff"), b"4", b"1000", b"aA==:dg==;"))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "t-part0000000001-off4").write_bytes(line + b"\n,,6,,")

    result = kafka_index.import_records(
        tmp_path / "in",
        tmp_path / "logs",
        layout="aiven-s3",
        layout_properties={
            "format.output.fields": "key,value,offset,timestamp,headers",
            "file.name.template": "{{topic}}-part{{partition:padding=true}}-off{{ start_offset }}",
        },
    )

    actual = kafka_index.read_records(tmp_path / "logs").read_all().to_pylist()
    assert places(actual) == [("t", 1, 4), ("t", 1, 6)]
    assert [(row["key"], row["value"]) for row in actual] == [(b"k", b"a,\xff"), (None, None)]
    assert actual[0]["headers"] == [{"key": "h", "value": b"v"}]
    assert result.notices == ["CSV does not distinguish null from an empty value: records get null"]


def test_layout_auto_reports_the_detected_layout_and_rejects_unknown_files(tmp_path: Path) -> None:
    written(tmp_path / "in" / "t+0+0.json", "text")
    arguments = ("--output", tmp_path / "logs", "--layout", "auto")
    options = ("--layout-property", "value.converter=string")

    taken = run_here("import", "--input", tmp_path / "in", *arguments, *options)
    written(tmp_path / "other" / "rows.json", {"id": 1})
    refused = run_here("import", "--input", tmp_path / "other", *arguments)

    assert taken.returncode == 0, taken.stderr
    assert "the files are read with the layout confluent-s3" in taken.stdout
    assert "records get the time of the import" in taken.stdout
    assert refused.returncode == 2
    assert "the layout of the files is not recognised" in refused.stderr


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("value.convertor", "string", "did you mean value.converter"),
        ("value.converter", "io.confluent.connect.avro.AvroConverter", "invalid value"),
        ("file.name.template", "{{topic}}", "invalid value"),
        ("format.output.fields", "key,key", "invalid value"),
    ],
)
def test_invalid_layout_properties_are_rejected(
    tmp_path: Path, name: str, value: str, message: str
) -> None:
    written(tmp_path / "in" / "t-0-0", {"value": "v"})
    with pytest.raises(ConfigError, match=r".") as refused:
        kafka_index.import_records(
            tmp_path / "in", tmp_path / "logs", layout="aiven-s3", layout_properties={name: value}
        )
    assert message in str(refused.value)
