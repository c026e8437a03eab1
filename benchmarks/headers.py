"""One core: a scan of batch headers, a build without checksums, and statistics by hour.

They are compared with a loop that reads only the lengths of batches. Each round maps the file, so
that every measurement includes the page faults.
"""

from __future__ import annotations

import os
import statistics
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import limits
from benchmarks.logs import benchmark_log, warm
from benchmarks.recover import compute, seconds
from kafka_index.commands.stats.replica_counts import StatsSettings, count_part, split_replica
from kafka_index.core.kernels.batch_counts import SUM_BATCHES
from kafka_index.core.log.read.partition_files import PartitionFiles
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.logdir.listing import list_dump

_BATCH_BYTES = (80, 200, 1024, 16384)
_ROUNDS = 9
_SCAN_GOAL, _STATS_GOAL = 0.5, 0.8
# At 80 bytes, a batch of one small record, the scan alone takes 1.5 times as long as the loop.
_SMALL_BATCH, _SMALL_STATS_GOAL = 80, 0.4


def run(scratch: Path) -> bool:
    """Measure, print, and return whether the goals are reached."""
    print("Headers only, one core, ns per batch (median of rounds), and the ratio to the loop")
    print("batch bytes    loop     scan   ratio    build   ratio    stats   ratio    goals")
    reached = True
    with TemporaryDirectory(dir=scratch) as folder:
        for batch_bytes in _BATCH_BYTES:
            log = benchmark_log(scratch, batch_bytes)
            warm(log)
            files = _partition(log, Path(folder), batch_bytes)
            batches = limits.walk(log)
            if {_scan(log), _count(files)} != {batches}:
                raise RuntimeError(f"a scan of {log} missed batches")
            tasks = (
                partial(limits.walk, log),
                partial(_scan, log),
                partial(compute, log, Path(folder), verify_crc=False),
                partial(_count, files),
            )
            times = [[seconds(task) for task in tasks] for _ in range(_ROUNDS)]
            loop, scan, build, stats = (
                1e9 * statistics.median(column) / batches for column in zip(*times, strict=True)
            )
            stats_goal = _SMALL_STATS_GOAL if batch_bytes == _SMALL_BATCH else _STATS_GOAL
            reached &= loop / scan >= _SCAN_GOAL and loop / stats >= stats_goal
            columns = (f"{ns:8.1f} {loop / ns:7.2f}" for ns in (scan, build, stats))
            goals = f"{_SCAN_GOAL:.2f} {stats_goal:.2f}"
            print(f"{batch_bytes:11d} {loop:7.1f} {' '.join(columns)} {goals:>8}", flush=True)
    return reached


def _scan(log: Path) -> int:
    return sum(batches.rows for batches in LogFileSource(log, verify_crc=False).chunks())


def _count(files: PartitionFiles) -> int:
    (part,) = split_replica(0, files, 1 << 40)
    counts = count_part(part, "", settings=StatsSettings(group_ms=3_600_000))
    return int(counts.totals.sums[:, SUM_BATCHES].sum())


def _partition(log: Path, folder: Path, number: int) -> PartitionFiles:
    """Link a log into a partition directory."""
    directory = folder / f"measured-{number}"
    directory.mkdir()
    os.link(log, directory / f"{0:020d}.log")
    segments = tuple(list_dump([str(directory)], topics=None).segments)
    return PartitionFiles("measured", number, segments)
