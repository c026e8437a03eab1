"""``dump --records``: what people and programs see of records, and of damage among them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import (
    COMMAND,
    DUMP,
    dump,
    environment,
    json_rows,
    listed,
    run_here,
)
from tests.support.segments import (
    GZIP,
    LEADER_CHANGE,
    batch,
    control_batch,
    control_key,
    marker,
    message,
    packed,
    record,
)
from tests.support.typed_dump import write_typed_dump

PARTITION = DUMP / "payments-0"
INT32_MAX = 2**31 - 1


def log_of(folder: Path, *entries: bytes) -> Path:
    path = folder / f"{100:020d}.log"
    path.write_bytes(b"".join(entries))
    return path


def batch_of(base_offset: int, *records: bytes, codec: int = 0, **fields: Any) -> bytes:
    return batch(
        base_offset,
        payload=packed(b"".join(records), codec),
        record_count=len(records),
        last_offset_delta=max(len(records) - 1, 0),
        attributes=codec,
        base_timestamp=1000,
        **fields,
    )


def records_of(*arguments: str | Path, code: int = 0) -> list[dict[str, Any]]:
    return json_rows("--records", *arguments, code=code)


def table(*arguments: str | Path) -> list[str]:
    result = dump("--records", *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Text, bytes that are none, nulls, headers, and the end of a transaction."""
    return log_of(
        tmp_path,
        batch_of(
            100,
            record(0, 0, b"one", 'a "b"\nß\x1b'.encode(), [(b"h", b"x"), (b"n", None)]),
            record(1, 5, b"\xff\0", None),
            codec=GZIP,
            producer_id=7,
            producer_epoch=3,
            base_sequence=INT32_MAX,
        ),
        marker(102, 7, 3, commit=True, coordinator_epoch=9, timestamp=2000),
    )


def test_json_of_a_record_has_all_fields(log: Path) -> None:
    first, second, last = records_of(log)
    batch_bytes = last["position_bytes"]
    assert first == {
        "position_bytes": 0,
        "offset": 100,
        "timestamp_ms": 1000,
        "producer_id": 7,
        "producer_epoch": 3,
        "sequence": INT32_MAX,
        "control_type": None,
        "coordinator_epoch": None,
        "key_bytes": 3,
        "value_bytes": 9,
        "key": "one",
        "value": 'a "b"\nß\x1b',
        "headers": [{"key": "h", "value": "x"}, {"key": "n", "value": None}],
    }
    assert (second["key"], second["value"]) == ({"hex": "ff00"}, None)
    assert (second["key_bytes"], second["value_bytes"]) == (2, None)
    assert (second["offset"], second["timestamp_ms"], second["sequence"]) == (101, 1005, 0)
    assert (batch_bytes, last["offset"], last["timestamp_ms"]) == (12 + log_length(log), 102, 2000)
    assert (last["control_type"], last["coordinator_epoch"]) == ("commit", 9)
    assert (last["key"], last["value"]) == ({"hex": "00000001"}, {"hex": "000000000009"})


def log_length(log: Path) -> int:
    """The length field of the first batch."""
    return int.from_bytes(log.read_bytes()[8:12], "big")


def test_table_of_records_has_a_line_per_record(log: Path) -> None:
    title, names, first, second, last, end = table(log)
    assert title.startswith(f"{log}: records, base offset 100, ")
    assert names.split() == [
        "position_bytes", "offset", "timestamp", "producer_id", "sequence", "key", "value",
    ]  # fmt: skip
    assert first.split("  ")[-3:] == [
        '"one"',
        r'"a \"b\"\nß\u001b"',
        'headers: "h" = "x", "n" = null',
    ]
    assert second.endswith("  0xff00  null")
    assert last.endswith("  control: commit, coordinator epoch 9")
    assert (
        names.index("sequence") + len("sequence")
        == first.index('"one"') - 2
        == second.index("0x") - 2
    )
    assert end == "3 records up to the end of the file"


@pytest.mark.parametrize(
    ("form", "key", "value"),
    [
        ("text", "one", 'a "b"\nß\x1b'),
        ("hex", {"hex": "6f6e65"}, {"hex": "61202262220ac39f1b"}),
        ("none", "absent", "absent"),
    ],
)
def test_keys_and_values_are_printed_in_the_requested_format(
    log: Path, form: str, key: object, value: object
) -> None:
    by_key = records_of("--keys", form, log)[0]
    assert (by_key.get("key", "absent"), by_key["value"]) == (key, 'a "b"\nß\x1b')
    by_value = records_of("--values", form, log)[0]
    assert (by_value["key"], by_value.get("value", "absent")) == ("one", value)
    assert by_value["value_bytes"] == 9


def test_headers_are_printed_in_the_format_of_values(log: Path) -> None:
    assert records_of("--values", "hex", log)[0]["headers"][0] == {
        "key": "h",
        "value": {"hex": "78"},
    }
    assert records_of("--values", "none", log)[0]["headers"] == [{"key": "h"}, {"key": "n"}]
    assert table("--values", "hex", log)[2].endswith('headers: "h" = 0x78, "n" = null')
    assert table("--values", "none", "--keys", "none", log)[2].endswith('headers: "h", "n"')


def test_characters_outside_the_output_encoding_are_escaped(log: Path) -> None:
    result = subprocess.run(
        [*COMMAND, "dump", "--records", log],
        capture_output=True,
        text=True,
        check=True,
        env={**environment(), "PYTHONIOENCODING": "ascii"},
    )
    assert r"\n\xdf\u001b" in result.stdout


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (control_key(LEADER_CHANGE), "leader_change"),
        (control_key(99), "unknown-99"),
        (b"\0\0\0", "unreadable"),
        (control_key(0, version=-1), "unreadable"),
        (None, "unreadable"),
    ],
)
def test_control_records_of_unknown_type_are_printed_with_their_bytes(
    tmp_path: Path, key: bytes | None, shown: str
) -> None:
    log = log_of(tmp_path, control_batch(100, -1, -1, key, b"\1\2", 1000))
    key_text = "null" if key is None else f"0x{key.hex()}"
    assert table(log)[2].endswith(f"  control: {shown}, key {key_text}, value 0x0102")
    (row,) = records_of(log)
    assert (row["control_type"], row["coordinator_epoch"]) == (shown, None)


def test_messages_before_magic_2_have_no_producer_fields(tmp_path: Path) -> None:
    inner = message(0, 1, 1000, b"v", b"k") + message(1, 1, 1001, b"w")
    log = log_of(
        tmp_path,
        message(100, 0, -1, b"plain"),
        message(102, 1, 1001, packed(inner, GZIP), attributes=GZIP),
    )
    names = ("offset", "timestamp_ms", "producer_id", "producer_epoch", "sequence", "key", "value")
    assert [tuple(row[name] for name in names) for row in records_of(log)] == [
        (100, -1, -1, -1, -1, None, "plain"),
        (101, 1000, -1, -1, -1, "k", "v"),
        (102, 1001, -1, -1, -1, None, "w"),
    ]


def test_batch_without_records_has_no_lines(tmp_path: Path) -> None:
    log = log_of(tmp_path, batch_of(100), batch_of(101, record(0, 0, None, b"v")))
    assert [row["offset"] for row in records_of(log)] == [101]
    assert dump("--records", log_of(tmp_path)).returncode == 0


def test_record_count_of_a_real_log_equals_its_batch_headers() -> None:
    log = min(PARTITION.glob("*.log"))
    counts = [row["record_count"] for row in json_rows(log)]
    assert len(records_of(log)) == sum(counts)
    assert len(records_of("--no-verify-crc", log)) == sum(counts)


# ---------------------------------------------------------------------------------- damage


@pytest.mark.parametrize(
    ("bad", "printed", "message"),
    [
        (batch_of(101, record(0, 0, None, b"v"), b"\x02\0"), [101], "record 2 of 2 cannot be read"),
        (
            batch(101, payload=b"nonsense", record_count=1, attributes=GZIP),
            [],
            "the gzip header is missing",
        ),
        (message(101, 1, body=bytes(8) + b"\0\0\0\x63"), [], "ends inside the key or the value"),
    ],
)
def test_unreadable_records_are_reported_and_later_ones_printed(
    tmp_path: Path, bad: bytes, printed: list[int], message: str
) -> None:
    first = batch_of(100, record(0, 0, None, b"v"))
    log = log_of(tmp_path, first, bad, batch_of(200, record(0, 0, None, b"v")))
    assert [row["offset"] for row in records_of(log, code=1)] == [100, *printed, 200]
    result = dump("--records", log)
    assert result.returncode == 1
    (line,) = listed(result)
    assert f"{log}: at byte {len(first)}: " in line
    assert message in line
    remarks = [line for line in result.stdout.splitlines() if line.startswith("corrupt batch at ")]
    assert len(remarks) == 1
    assert f"batch at byte {len(first)}: " in remarks[0]


def test_damaged_log_is_printed_up_to_the_damage(tmp_path: Path) -> None:
    first = batch_of(100, record(0, 0, None, b"v"))
    second = bytearray(batch_of(101, record(0, 0, None, b"v")))
    second[-1] ^= 1
    log = log_of(tmp_path, first, bytes(second))
    result = dump("--records", log)
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1].startswith(
        f"1 record; the scan ends at byte {len(first)}"
    )
    assert f"{log}: at byte {len(first)}: " in result.stderr


@pytest.mark.parametrize("codec", [GZIP, 4])
def test_batch_above_the_memory_limit_is_reported_and_the_next_is_printed(
    tmp_path: Path, codec: int
) -> None:
    log = log_of(
        tmp_path,
        batch_of(100, record(0, 0, None, bytes(5000)), codec=codec),
        batch_of(101, record(0, 0, b"k", b"v")),
    )
    limit = ("--max-decompressed-bytes", "5000")
    refused, row = records_of(log, *limit, code=1)
    assert refused == {"position_bytes": 0, "reason": "too_large"}
    assert (row["offset"], row["key"]) == (101, "k")
    result = dump("--records", log, *limit)
    assert "skipped batch (too_large) at byte 0: " in result.stdout
    assert "raise --max-decompressed-bytes" in result.stderr
    assert len(records_of(log, "--max-decompressed-bytes", "6000")) == 2


def test_large_value_is_printed_like_a_small_one(tmp_path: Path) -> None:
    text = ("ß\n" + "x" * 1000) * 400
    key = text.encode()
    large = record(0, 0, key, key + b"\xff", [(b"h", bytes(70_000))])
    log = log_of(tmp_path, batch_of(100, large))
    (row,) = records_of(log)
    assert row["key"] == text
    assert row["value"] == {"hex": (key + b"\xff").hex()}
    assert row["headers"] == [{"key": "h", "value": "\0" * 70_000}]
    assert json.dumps(text, ensure_ascii=False) in table(log)[2]


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_typed_dump(tmp_path_factory.mktemp("typed"))


def _typed_log(dump: Path, topic: str) -> Path:
    return dump / f"{topic}-0" / f"{0:020d}.log"


@pytest.mark.parametrize("topic", ["orders", "mixed", "events", "plain"])
def test_decoded_records_of_a_log_equal_those_of_cat(typed: Path, topic: str) -> None:
    decoding = ("--decode", "both")
    printed = dump("--records", *decoding, "--json", _typed_log(typed, topic))
    of_topic = run_here("cat", topic, "--input", typed, *decoding, "--format", "json")
    names = ("offset", "decoded", "value")
    rows = [
        [{name: json.loads(line).get(name) for name in names} for line in done.stdout.splitlines()]
        for done in (printed, of_topic)
    ]
    assert rows[0] == rows[1]
    assert rows[0]
    assert printed.returncode == of_topic.returncode == (1 if topic == "mixed" else 0)


def test_only_printed_records_of_a_log_are_decoded(typed: Path) -> None:
    path = _typed_log(typed, "mixed")
    for selection in (("--limit", "1"), ("--offset", "10"), ("--at", "ms:1010")):
        result = dump("--records", "--decode", "value", "--json", *selection, path)
        assert result.returncode == 0, result.stderr
        assert "decoded" in json.loads(result.stdout)


def test_decode_of_a_log_without_a_schemas_topic_requires_a_schema_source(
    typed: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "orders-0"
    folder.mkdir()
    for copy in (folder, tmp_path):
        shutil.copy(_typed_log(typed, "orders"), copy)
        result = dump("--records", "--decode", "value", copy / f"{0:020d}.log")
        assert result.returncode == 2
        assert "give --schemas a folder" in result.stderr
    schemas = tmp_path / "schemas"
    run_here("schemas", "--input", typed, "--output", schemas)
    source = ("--decode", "value", "--schemas", schemas)
    actual = dump("--records", *source, "--json", tmp_path / f"{0:020d}.log").stdout.splitlines()
    assert [json.loads(line)["decoded"]["error"] for line in actual] == [None] * 4
    assert dump("--decode", "value", tmp_path / f"{0:020d}.log").returncode == 2
