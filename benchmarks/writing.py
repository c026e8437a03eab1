"""Records that an import writes a second of processor time, and the cost of a rewrite.

The records have a key of 10 bytes, a value of 100, consecutive offsets and rising times; the log
that the import makes of them is then rewritten, and built for comparison.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kafka_index.commands.build.log_build import build_segment_files
from kafka_index.commands.import_.import_job import import_sorted
from kafka_index.commands.import_.partition_import import ImportTarget
from kafka_index.commands.import_.request import ImportMode, ImportSettings
from kafka_index.commands.import_.table_files import list_table_files, sorted_records
from kafka_index.commands.rewrite.job import plan_rewrite
from kafka_index.core.log.filter.partition_rewrite import SegmentRewriter, match_partition
from kafka_index.core.log.filter.selection import Condition, Selection
from kafka_index.core.log.recovery.state_merge import PartitionStart
from kafka_index.core.output.output import Output

_RECORDS = 2_000_000
_KEYS = 100_000
_VALUES = 10_000
_ROUNDS = 3
_NOW_MS = 1_700_000_000_000
_BATCH_ROWS = 64 * 1024
_MAX_BYTES = 1 << 28


def run(scratch: Path) -> bool:
    """Measure and print; there is no goal to miss."""
    folder = scratch / "writing"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    table = _table()
    print(f"Import of {_RECORDS:,} records of ~120 B, records a second of processor time")
    batches = table.to_batches(_BATCH_ROWS)
    for codec in ("none", "lz4", "zstd"):
        settings = _settings(codec)
        seconds = min(
            _cpu_seconds(partial(_import, batches, folder, settings)) for _ in range(_ROUNDS)
        )
        print(f"  sorted batches, {codec:5} {_RECORDS / seconds / 1e6:8.2f} M/s")
    pq.write_table(table, folder / "records.parquet", compression="zstd")
    files = list_table_files([str(folder / "records.parquet")])
    settings = _settings("none")
    seconds = min(
        _cpu_seconds(lambda: _import(sorted_records(files, settings, threads=1), folder, settings))
        for _ in range(_ROUNDS)
    )
    print(f"  Parquet, read and sorted {_RECORDS / seconds / 1e6:4.2f} M/s")
    _rewrites(folder)
    shutil.rmtree(folder)
    return True


def _rewrites(folder: Path) -> None:
    log = next((folder / "logs" / "topic-0").glob("*.log"))
    size = log.stat().st_size
    print(f"Rewrite of the same log of {size >> 20} MiB, processor time against its build")
    built = folder / "built"
    built.mkdir()
    build = min(_cpu_seconds(lambda: build_segment_files(log, built)) for _ in range(_ROUNDS))
    print(f"  build                    {build:6.2f} s")
    rare, common = b"key-000007", [b"key-%06d" % number for number in range(0, _KEYS, 100)]
    for name, selection in (
        ("one key of 100,000", Selection((rare,))),
        ("1 % of the keys", Selection(tuple(common))),
        ("a condition on the key", Selection(condition=Condition.parse("key = 'key-000007'"))),
    ):
        seconds = min(_cpu_seconds(partial(_rewrite, folder, selection)) for _ in range(_ROUNDS))
        rate = _RECORDS / seconds / 1e6
        print(f"  {name:24} {seconds:6.2f} s {seconds / build:6.1f} x {rate:6.2f} M/s")


def _table() -> pa.Table:
    rng = np.random.default_rng(7)
    values = pa.array([rng.bytes(100) for _ in range(_VALUES)], pa.binary())
    keys = pa.array([b"key-%06d" % number for number in range(_KEYS)], pa.binary())
    numbers = np.arange(_RECORDS)
    return pa.table(
        {
            "key": keys.take(pa.array(rng.integers(0, _KEYS, _RECORDS))),
            "value": values.take(pa.array(rng.integers(0, _VALUES, _RECORDS))),
            "topic": pa.repeat("topic", _RECORDS),
            "partition": pa.repeat(pa.scalar(0, pa.int32()), _RECORDS),
            "offset": numbers,
            "timestamp": pa.array(_NOW_MS + numbers).cast(pa.timestamp("ms", "UTC")),
        }
    )


def _settings(codec: str) -> ImportSettings:
    return ImportSettings.of_properties({"compression.type": codec}, mode=ImportMode.CREATE)


def _import(batches: object, folder: Path, settings: ImportSettings) -> None:
    shutil.rmtree(folder / "logs", ignore_errors=True)
    with Output.for_data_directory(str(folder / "logs")) as output:
        target = ImportTarget(output, settings.mode)
        output.make_staging()
        import_sorted(batches, target, settings, lambda _: None)  # type: ignore[arg-type]


def _rewrite(folder: Path, selection: Selection) -> None:
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    (plan,), _ = plan_rewrite([str(folder / "logs")], None)
    state = PartitionStart.read(plan.segments[0], None, with_epochs=False).state
    found = match_partition(
        plan.segments, selection, state, max_decompressed_bytes=_MAX_BYTES, checks_revival=False
    )
    rewriter = SegmentRewriter(found, selection, _MAX_BYTES)
    for segment in plan.segments:
        rewriter.rewrite(segment, str(out / Path(segment.log_path).name))


def _cpu_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started
