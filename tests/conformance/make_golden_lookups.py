"""Let Kafka answer what the golden lookups ask, and write its answers down.

Writes ``answers.parquet`` and ``manifest.json`` into ``tests/reading/golden_lookups``; its README
describes them. ``make golden`` runs this.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from kafka_index.layout.checkpoints import parse_offset_checkpoint
from kafka_index.layout.names import TopicPartition
from kafka_index.reading.answers import ANSWER_SCHEMA, Resolve
from tests.support.partitions import Row

from .judge import DEFAULT_SEGMENT_INDEX_BYTES
from .kafka_answers import offset_rows, time_rows
from .kafka_jars import DEFAULT_VERSION
from .targets import SPECIAL_TIMES, offsets_of, times_of

if TYPE_CHECKING:
    from .judge import Judge

REPOSITORY = Path(__file__).resolve().parents[2]
DUMP = REPOSITORY / "examples" / "dump"
TARGET = REPOSITORY / "tests" / "reading" / "golden_lookups"
SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("by", pa.string(), nullable=False),
        pa.field("resolve", pa.string(), nullable=False),
        pa.field("target", pa.int64(), nullable=False),
        *ANSWER_SCHEMA,
    ]
)
#: Of each kind and partition; the special timestamps are asked besides.
MOST_TARGETS = 240
INDEX_INTERVAL_BYTES = 4096


def write_golden_lookups(judge: Judge) -> None:
    """Ask, and write."""
    checkpoint = (DUMP / "log-start-offset-checkpoint").read_text(encoding="utf-8")
    log_starts = parse_offset_checkpoint(checkpoint)
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for directory in sorted(path for path in DUMP.iterdir() if path.is_dir()):
            topic, _, number = directory.name.rpartition("-")
            log_start = log_starts.get(TopicPartition(topic, int(number)), 0)
            copy = copy_partition(directory, Path(folder))
            rows += [
                {"topic": topic, "partition": int(number), **answer}
                for answer in answers(judge, copy, log_start)
            ]
    TARGET.mkdir(exist_ok=True)
    path = TARGET / "answers.parquet"
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    pq.write_table(table, path, compression="zstd", compression_level=19)
    manifest = {
        "kafka": DEFAULT_VERSION,
        "configuration": {
            "index.interval.bytes": INDEX_INTERVAL_BYTES,
            "segment.index.bytes": DEFAULT_SEGMENT_INDEX_BYTES,
        },
        "answers": len(rows),
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "dump.sha256": hashlib.sha256(DUMP.with_suffix(".sha256").read_bytes()).hexdigest(),
    }
    (TARGET / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    print(f"{len(rows)} answers, {path.stat().st_size} bytes")


def copy_partition(directory: Path, folder: Path) -> Path:
    """Copy what lookups read: opening changes file times, and sizes while open."""
    copy = folder / directory.name
    copy.mkdir()
    for pattern in ("*.log", "*.index", "*.timeindex", "leader-epoch-checkpoint"):
        for path in directory.glob(pattern):
            shutil.copy(path, copy)
    return copy


def answers(judge: Judge, directory: Path, log_start_offset: int) -> list[dict[str, object]]:
    """Kafka's answers about a partition, at each level."""
    result: list[dict[str, object]] = []
    with judge.open_partition(
        directory,
        INDEX_INTERVAL_BYTES,
        DEFAULT_SEGMENT_INDEX_BYTES,
        log_start_offset=log_start_offset,
    ) as judged:
        offsets = offsets_of(judged)
        times = times_of(judged, offsets)[len(SPECIAL_TIMES) :]
        some_offsets = thinned(offsets)
        some_times = [*SPECIAL_TIMES, *thinned(times)]
        for resolve in Resolve:
            result += as_dicts(
                "offset", resolve, some_offsets, offset_rows(judged, some_offsets, resolve)
            )
            result += as_dicts(
                "timestamp", resolve, some_times, time_rows(judged, some_times, resolve)
            )
    return result


def thinned(targets: list[int]) -> list[int]:
    """At most so many, evenly spread, the first and the last among them."""
    if len(targets) <= MOST_TARGETS:
        return targets
    last = len(targets) - 1
    return [targets[i * last // (MOST_TARGETS - 1)] for i in range(MOST_TARGETS)]


def as_dicts(
    by: str, resolve: Resolve, targets: list[int], rows: list[Row]
) -> list[dict[str, object]]:
    """Rows of the file."""
    return [
        {"by": by, "resolve": resolve.value, "target": target, **row._asdict()}
        for target, row in zip(targets, rows, strict=True)
    ]
