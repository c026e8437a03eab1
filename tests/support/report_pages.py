"""Reports of many segments, or of hostile names, as pages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from kafka_index.build.report import FILE_SCHEMA
from kafka_index.cli.build import build_page
from kafka_index.storage.report_file import ReportFile

_PARTITIONS = 100
_PER_TOPIC = 10
_REASON = "torn_batch (expected 186 bytes, found 86)"
#: One segment in so many is damaged on a page of `write_many`.
DAMAGED_OF = 1000


def write_rows(path: Path, columns: dict[str, object], rows: int) -> None:
    """Write the page of a build of some segments; columns that are not given are null."""
    defaults: dict[str, object] = {
        "segment_base_offset": [0] * rows,
        "status": ["built"] * rows,
        "kind": ["segment"] * rows,
        "retriable": [False] * rows,
    }
    given = defaults | columns
    arrays = [
        pa.array(given[field.name], field.type)
        if field.name in given
        else pa.nulls(rows, field.type)
        for field in FILE_SCHEMA
    ]
    with ReportFile(str(path), FILE_SCHEMA, build_page(lambda: 0)) as report:
        report.write_table(pa.table(arrays, schema=FILE_SCHEMA))


def write_many(path: Path, segments: int) -> None:
    """Write the page of a build of many segments, whose numbers are as random as real ones."""
    random = np.random.default_rng(7)
    each = segments // _PARTITIONS
    topics = np.repeat([f"topic-{number // _PER_TOPIC:02d}" for number in range(_PARTITIONS)], each)
    partitions = np.repeat(np.arange(_PARTITIONS) % _PER_TOPIC, each)
    records = random.integers(800_000, 1_500_000, (_PARTITIONS, each))
    ends = np.cumsum(records, axis=1)
    bases = (ends - records).ravel()
    sizes = random.integers(1_000_000_000, 1 << 30, segments)
    damaged = np.arange(segments) % DAMAGED_OF == 0
    times = 1_700_000_000_000 + np.cumsum(random.integers(1000, 7_200_000, (_PARTITIONS, each)), 1)
    named = zip(topics, partitions, bases, strict=True)
    columns: dict[str, object] = {
        "topic": topics,
        "partition": partitions,
        "segment_base_offset": bases,
        "log_path": [f"/data/{topic}-{number}/{base:020d}.log" for topic, number, base in named],
        "log_size_bytes": sizes,
        "valid_bytes": np.where(damaged, sizes // 2, sizes),
        "batch_count": random.integers(20_000, 60_000, segments),
        "offset_entries": random.integers(200_000, 250_000, segments),
        "time_entries": random.integers(180_000, 220_000, segments),
        "next_offset": ends.ravel(),
        "max_timestamp_ms": times.ravel(),
        "status": np.where(damaged, "truncated", "built"),
        "reason": [_REASON if each else None for each in damaged],
        "position_bytes": pa.array(np.where(damaged, sizes // 2, 0), mask=~damaged),
        "seconds": random.random(segments),
        "producers": random.integers(0, 50, segments),
        "reason_code": ["torn_batch" if each else None for each in damaged],
        "segments": np.ones(segments, np.int64),
    }
    write_rows(path, columns, segments)
