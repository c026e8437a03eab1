"""Topics with a schema and topics without, and what commands return of them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.support.record_tables import batch_of, write_partition
from tests.support.registry_records import schema_record, write_topic

_NUMBERS = [struct.pack(">q", (1 << 32) + number) for number in range(20)]
#: Values by topic: with a schema, without, of numbers that look like ids, and with a lost schema.
VALUES: Mapping[str, Sequence[bytes | None]] = {
    "typed": [b"\0\0\0\0\1\x04ab", None, b"\0\0\0\0\1\x02c"],
    "plain": [b"text", b"", None, b"\0\0", b"\0\0\0\0\x09one value that looks like an id"],
    "numbers": _NUMBERS,
    "lost": [b"\0\0\0\0\x4d\x02x"] * 3 + [b"{}"],
}
DECODED: Mapping[str, list[object]] = {"typed": ["ab", None, "c"]}
FAILED = {"lost": ["unknown_id"] * 3 + [None]}

#: The value, the code and the kept bytes of each record.
Rows = list[tuple[object, str | None, bytes | None]]
#: Groups of topics that are read together.
TOPICS = [("typed", "plain"), ("plain", "numbers"), ("typed", "lost", "plain"), ("lost",)]


def write_topics(root: Path) -> Path:
    """Write the topics; return their folder."""
    for topic, values in VALUES.items():
        log = batch_of(0, [(number, None, value) for number, value in enumerate(values)])
        write_partition(root, {0: log}, f"{topic}-0")
    return write_topic(root, "_schemas", [schema_record("typed-value", 1, 1)])


def rows_of_topics(records: list[dict[str, Any]]) -> dict[str, Rows]:
    """Return rows by topic."""
    result: dict[str, Rows] = {}
    for row in sorted(records, key=lambda row: (row["topic"], row["offset"])):
        value, raw = (
            bytes(v) if isinstance(v, bytearray) else v for v in (row["value"], row["value_raw"])
        )
        result.setdefault(row["topic"], []).append((value, row["_decode_error"], raw))
    return result


def exported_rows(output: Path) -> dict[str, Rows]:
    """Return the rows of the data files of an export."""
    rows = []
    for path in output.glob("topic=*/partition=*/*.parquet"):
        topic = path.parent.parent.name.removeprefix("topic=")
        rows += [{"topic": topic, **row} for row in pq.ParquetFile(path).read().to_pylist()]
    return rows_of_topics(rows)


def check_rows(topics: tuple[str, ...], rows: dict[str, Rows], *, is_one_table: bool) -> None:
    """Check the rows that a command returns of topics."""
    for topic in topics:
        values = VALUES[topic]
        errors = FAILED.get(topic, [None] * len(values))
        assert [error for _, error, _ in rows[topic]] == errors
        has_type = "typed" in topics if is_one_table else topic == "typed"
        expected: list[tuple[object, bytes | None]]
        if topic in DECODED:
            expected = [(value, None) for value in DECODED[topic]]
        elif has_type:
            expected = [(None, value) for value in values]
        else:
            failed = [error is not None for error in errors]
            expected = [(v, v if bad else None) for v, bad in zip(values, failed, strict=True)]
        assert [(value, raw) for value, _, raw in rows[topic]] == expected
