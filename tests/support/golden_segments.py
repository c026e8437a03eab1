"""Golden segments: small segments and what Kafka's recovery left of them, kept in ``tests/golden``.

Most are in one Parquet file, which ``make golden`` writes. A drawn segment on which a build and
Kafka once differed is a file of its own in ``found``, until it is needed no longer.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.recovered_segments import Recovered
from tests.support.segments import Segment

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
TABLE = GOLDEN / "segments.parquet"
FOUND = GOLDEN / "found"
MANIFEST = GOLDEN / "manifest.json"

SCHEMA = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("log", pa.binary(), nullable=False),
        pa.field("base_offset", pa.int64(), nullable=False),
        pa.field("index_interval_bytes", pa.int32(), nullable=False),
        pa.field("segment_index_bytes", pa.int32(), nullable=False),
        pa.field("valid_bytes", pa.int64()),
        pa.field("next_offset", pa.int64()),
        pa.field("offset_index", pa.binary()),
        pa.field("time_index", pa.binary()),
        pa.field("refusal", pa.string()),
        pa.field("reason", pa.string()),
    ]
)
_BYTES = tuple(field.name for field in SCHEMA if field.type == pa.binary())


@dataclass(frozen=True)
class GoldenSegment:
    """A segment and what Kafka did with it.

    `name`: what is special about it. `segment`: the bytes and settings. `kafka`: what its recovery
    left, or why it failed.
    """

    name: str
    segment: Segment
    kafka: Recovered

    def as_row(self) -> dict[str, object]:
        """The values of a row of `SCHEMA`."""
        values = {"name": self.name, **vars(self.segment), **vars(self.kafka)}
        return {name: values[name] for name in SCHEMA.names}

    @classmethod
    def of_row(cls, row: dict[str, object]) -> GoldenSegment:
        """The segment of such a row."""
        values = dict(row)
        name = str(values.pop("name"))
        settings = {field: values.pop(field) for field in SCHEMA.names[1:5]}
        return cls(name, Segment(**settings), Recovered(**values))  # type: ignore[arg-type]


def write_table(segments: list[GoldenSegment]) -> None:
    """Write the Parquet file."""
    table = pa.Table.from_pylist([one.as_row() for one in segments], schema=SCHEMA)
    TABLE.parent.mkdir(exist_ok=True)
    pq.write_table(table, TABLE, compression="zstd", compression_level=19)


def write_found(one: GoldenSegment) -> Path:
    """Write a file of its own, named by its contents."""
    row = {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in one.as_row().items()
    }
    digest = hashlib.sha256(repr(replace(one.segment, note="")).encode()).hexdigest()
    path = FOUND / f"{digest[:16]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(row, indent=2) + "\n", encoding="utf-8")
    return path


def read_found(path: Path) -> GoldenSegment:
    """Read such a file."""
    row = json.loads(path.read_text(encoding="utf-8"))
    for name in _BYTES:
        if row[name] is not None:
            row[name] = base64.b64decode(row[name])
    return GoldenSegment.of_row(row)


def read_all() -> list[GoldenSegment]:
    """All golden segments."""
    rows = pq.read_table(TABLE).to_pylist()
    found = sorted(FOUND.glob("*.json"))
    return [*map(GoldenSegment.of_row, rows), *map(read_found, found)]


def hashes() -> dict[str, str]:
    """SHA-256 of each file, as the manifest has them."""
    paths = (TABLE, *sorted(FOUND.glob("*.json")))
    return {
        str(path.relative_to(GOLDEN)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
    }
