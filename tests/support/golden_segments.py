"""Golden segments: small segments and what Kafka's recovery left of them, kept in ``tests/golden``.

Most are in one Parquet file, which ``make golden`` writes. A random segment on which a build and
Kafka once differed is a file of its own in ``found``, until it is needed no longer.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import struct
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from kafka_index.commands.build.log_build import build_segment_files
from kafka_index.core.format.config import IndexConfig
from tests.support.segments import BATCH_HEADER_SIZE, CODEC_MASK, CONTROL, LOG_OVERHEAD, Segment

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTITION = "topic-0"
#: The refusal of a wrong setting, which has no code of its own.
NO_ROOM = "the largest index size is less than one entry"


@dataclass(frozen=True)
class Recovered:
    """The result for a segment; when it was refused, only the refusal.

    `valid_bytes`, `next_offset`, `offset_index`, `time_index`: what recovery leaves; None when it
    fails. `refusal`: the kind of failure, in the words of our reports. `reason`: the message about
    it, or about why the log was cut; not compared.
    """

    valid_bytes: int | None = None
    next_offset: int | None = None
    offset_index: bytes | None = None
    time_index: bytes | None = None
    refusal: str | None = None
    reason: str | None = field(default=None, compare=False)


def write_log(directory: Path, segment: Segment) -> Path:
    """Path of the segment's log in a fresh partition directory under `directory`."""
    partition = directory / PARTITION
    shutil.rmtree(directory, ignore_errors=True)
    partition.mkdir(parents=True)
    log_path = partition / f"{segment.base_offset:020d}.log"
    log_path.write_bytes(segment.log)
    return log_path


def recovered_by_build(directory: Path, segment: Segment) -> Recovered:
    """The build's answer, from a copy under `directory`, its status and the log checked."""
    log_path = write_log(directory, segment)
    target = directory / "built"
    target.mkdir()
    config = IndexConfig(
        index_interval_bytes=segment.index_interval_bytes,
        index_size_max_bytes=segment.segment_index_bytes,
    )
    report = build_segment_files(log_path, target, config=config)
    assert log_path.read_bytes() == segment.log
    if report.status == "failed":
        assert report.reason
        return Recovered(
            refusal=NO_ROOM if NO_ROOM in report.reason else report.reason_code,
            reason=report.reason,
        )
    assert report.counts is not None
    is_whole = report.counts.valid_bytes == len(segment.log)
    assert report.status == ("built" if is_whole else "truncated")
    return Recovered(
        valid_bytes=report.counts.valid_bytes,
        next_offset=report.counts.next_offset,
        offset_index=(target / log_path.name).with_suffix(".index").read_bytes(),
        time_index=(target / log_path.name).with_suffix(".timeindex").read_bytes(),
        reason=report.reason,
    )


def compressed_marker_refused(segment: Segment, left: Recovered) -> bool:
    """Return whether a build refused a compressed control batch, which Kafka would unpack.

    The one refusal of a segment that is not Kafka's (docs/conformance.md). That there is such a
    batch is checked.
    """
    if left.refusal != "compressed_marker":
        return False
    assert any(
        attributes & CONTROL and attributes & CODEC_MASK and producer_id >= 0 and count
        for attributes, producer_id, count in _record_batches(segment.log)
    )
    return True


def is_emptied_by_backward_wrapper_offsets(
    segment: Segment, kafka: Recovered, built: Recovered
) -> bool:
    """Return whether Kafka alone counts a segment as empty, because offsets in it go back.

    It compares the last index entry with the first offset inside a compressed message, where a
    build takes the offset of the message's header (docs/conformance.md).
    """
    return (
        kafka.next_offset == segment.base_offset
        and replace(built, next_offset=kafka.next_offset) == kafka
        and offsets_go_back(segment.log)
        and any(magic < 2 and codec for _, magic, codec in _entries(segment.log))
    )


def offsets_go_back(log: bytes) -> bool:
    """Return whether a batch ends below the one before it."""
    offsets = [last_offset for last_offset, _, _ in _entries(log)]
    return any(later < earlier for earlier, later in pairwise(offsets))


def _entries(log: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield last offset, magic and codec of each entry."""
    at = 0
    while at + LOG_OVERHEAD + 6 <= len(log):
        offset, length, magic, attributes = struct.unpack_from(">qi4xbB", log, at)
        if length <= 0:
            return
        if magic < 2:
            yield offset, magic, attributes & CODEC_MASK
        elif at + BATCH_HEADER_SIZE <= len(log):
            attributes, delta = struct.unpack_from(">hi", log, at + 21)
            yield offset + delta, magic, attributes & CODEC_MASK
        at += LOG_OVERHEAD + length


def _record_batches(log: bytes) -> Iterator[tuple[int, int, int]]:
    at = 0
    while at + BATCH_HEADER_SIZE <= len(log):
        length, magic = struct.unpack_from(">i4xb", log, at + 8)
        if length <= 0:
            return
        if magic >= 2:
            yield struct.unpack_from(">h20xq6xi", log, at + 21)
        at += LOG_OVERHEAD + length


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
    table = pa.Table.from_pylist([segment.as_row() for segment in segments], schema=SCHEMA)
    TABLE.parent.mkdir(exist_ok=True)
    pq.write_table(table, TABLE, compression="zstd", compression_level=19)


def write_found_segment(one: GoldenSegment) -> Path:
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


def read_found_segment(path: Path) -> GoldenSegment:
    """Read such a file."""
    row = json.loads(path.read_text(encoding="utf-8"))
    for name in _BYTES:
        if row[name] is not None:
            row[name] = base64.b64decode(row[name])
    return GoldenSegment.of_row(row)


def read_all() -> list[GoldenSegment]:
    """All golden segments."""
    rows = pq.read_table(TABLE).to_pylist()
    result = sorted(FOUND.glob("*.json"))
    return [*map(GoldenSegment.of_row, rows), *map(read_found_segment, result)]


def hashes() -> dict[str, str]:
    """SHA-256 of each file, as the manifest has them."""
    paths = (TABLE, *sorted(FOUND.glob("*.json")))
    return {
        str(path.relative_to(GOLDEN)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
    }
