"""Small dumps, as logs and as Parquet of both forms, and what a build made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kafka_index.commands.build.log_build import build_logs
from kafka_index.commands.build.parquet import build_parquet
from kafka_index.commands.build.parquet_input import ParquetInput
from kafka_index.core.format.config import LogConfig
from kafka_index.core.job.engine import ThreadEngine
from kafka_index.core.log.choices import ALL_OUTPUTS, BuildOutput
from kafka_index.core.log.recovery.settings import BuildSettings, SegmentReport
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.logdir.listing import list_dump
from kafka_index.core.logdir.partition_files import SegmentFile
from tests.support.segments import batch

Segment = tuple[str, int, int]
Log = list[bytes]

KEYS = ("topic", "partition", "segment_base_offset")


def log(base_offset: int, batches: int = 200, value_size: int = 60) -> Log:
    """A log of batches of three records."""
    return [batch(base_offset + 3 * i, 3, value_size) for i in range(batches)]


def dump() -> dict[Segment, Log]:
    """A few segments of very different sizes."""
    return {
        ("orders", 0, 0): log(0, 900),
        ("orders", 0, 2700): log(2700, 40),
        ("orders", 1, 0): log(0, 1),
        ("a.b-c", 7, 500): log(500, 120),
    }


def write_logs(root: Path, segments: Mapping[Segment, Log]) -> Path:
    """Write segments as a broker's data directory."""
    for (topic, partition, base_offset), batches in segments.items():
        folder = root / f"{topic}-{partition}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{base_offset:020d}.log").write_bytes(b"".join(batches))
    return root


def raw_table(segments: Mapping[Segment, Log]) -> pa.Table:
    """Segments as raw batches."""
    rows = []
    for key, batches in segments.items():
        position = 0
        for data in batches:
            rows.append((*key, position, data))
            position += len(data)
    return _table(rows, [*KEYS, "position_bytes", "batch"])


def metadata_table(segments: Mapping[Segment, Log]) -> pa.Table:
    """Segments as batch metadata."""
    rows = []
    for key, batches in segments.items():
        position = 0
        for data in batches:
            last_offset = int.from_bytes(data[:8]) + int.from_bytes(data[23:27])
            timestamp = int.from_bytes(data[35:43], signed=True)
            rows.append((*key, position, len(data), last_offset, timestamp))
            position += len(data)
    names = [*KEYS, "position_bytes", "size_bytes", "last_offset", "max_timestamp_ms"]
    return _table(rows, names)


def batch_table(data: Path) -> pa.Table:
    """The logs of a data directory as batch metadata with all optional columns."""
    tables = []
    for segment in list_dump([str(data)], topics=None).segments:
        log = Path(segment.log_path).read_bytes()
        for batches in LogFileSource.of_segment(segment, verify_crc=True).chunks():
            copies = map(np.copy, batches)
            columns: dict[str, object] = dict(zip(batches._fields, copies, strict=True))
            is_control = batches.control_type >= 0
            for name in ("control_type", "coordinator_epoch", "control_timestamp_ms"):
                columns[name] = pa.array(columns[name], mask=~is_control)
            columns["magic"] = [log[position + 16] for position in batches.position_bytes]
            keys = (segment.topic, segment.partition, segment.base_offset)
            repeated = (pa.repeat(pa.scalar(key), batches.rows) for key in keys)
            tables.append(pa.table({**dict(zip(KEYS, repeated, strict=True)), **columns}))
    return pa.concat_tables(tables)


def raw_batch_table(data: Path) -> pa.Table:
    """The logs of a data directory as raw batches."""
    table = batch_table(data)
    logs = {
        (segment.topic, segment.partition, segment.base_offset): Path(segment.log_path).read_bytes()
        for segment in list_dump([str(data)], topics=None).segments
    }
    columns = [*KEYS, "position_bytes", "size_bytes"]
    rows = zip(*(table[name].to_pylist() for name in columns), strict=True)
    batches = [logs[*key][start : start + size] for *key, start, size in rows]
    return table.select(columns[:-1]).append_column("batch", pa.array(batches, pa.binary()))


class CollectedRows:
    """Collects the rows of a build."""

    def __init__(self) -> None:
        self.rows: list[SegmentReport] = []

    def on_scanned(self, row: SegmentReport) -> None:
        """Only the final rows count."""

    def on_report(self, row: SegmentReport) -> None:
        self.rows.append(row)


def built_rows(
    segments: Iterable[SegmentFile], settings: BuildSettings, *, threads: int = 2
) -> list[SegmentReport]:
    """Build logs with threads of this process; return the rows as they come."""
    collected = CollectedRows()
    with ThreadEngine(threads).start("build") as workers:
        build_logs(workers, segments, settings, listener=collected)
    return collected.rows


def built_parquet_rows(
    source: ParquetInput, settings: BuildSettings, *, threads: int = 2, fail_fast: bool = False
) -> list[SegmentReport]:
    """Build from Parquet with threads of this process; return the rows as they come."""
    collected = CollectedRows()
    with ThreadEngine(threads).start("build") as workers:
        build_parquet(workers, source, settings, listener=collected, fail_fast=fail_fast)
    return collected.rows


def change(table: pa.Table, row: int, column: str, value: object) -> pa.Table:
    """Replace one value."""
    values = table[column].to_pylist()
    values[row] = value
    index = table.column_names.index(column)
    return table.set_column(index, column, pa.array(values, table.schema.field(column).type))


def write_parquet(path: Path, table: pa.Table, row_group_size: int = 100) -> str:
    """Write a table in many row groups."""
    pq.write_table(table, path, row_group_size=row_group_size)
    return str(path)


def settings(
    target: Path, run_id: str = "run", *, outputs: frozenset[BuildOutput] = ALL_OUTPUTS
) -> BuildSettings:
    """Kafka's defaults, to a folder."""
    return BuildSettings(
        config=LogConfig(),
        target_root=str(target),
        outputs=outputs,
        verify_crc=True,
        force=False,
        run_id=run_id,
    )


def index_files(root: Path) -> dict[str, bytes]:
    """All index files below a folder, by relative path."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.suffix in {".index", ".timeindex"}
    }


def leftovers(root: Path) -> list[str]:
    """Scratch files below a folder."""
    return [str(path) for path in root.rglob("*") if path.name.endswith(".tmp")]


def outcomes(rows: pa.Table) -> list[tuple[object, ...]]:
    """The report's row of each segment without paths and times, in order of segments."""
    names = [*KEYS, "valid_bytes", "batch_count", "offset_entries", "time_entries"]
    names += ["next_offset", "max_timestamp_ms", "status", "reason", "position_bytes"]
    return sorted(zip(*(rows[name].to_pylist() for name in names), strict=True), key=_key)


def _key(row: Sequence[object]) -> tuple[str, ...]:
    return tuple(map(repr, row[:3]))


def _table(rows: Sequence[tuple[object, ...]], names: Sequence[str]) -> pa.Table:
    columns = zip(*rows, strict=True)
    return pa.table(dict(zip(names, map(list, columns), strict=True)))
