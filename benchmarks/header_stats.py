"""One core: statistics from batch headers, next to a bare walk and to the scan that they use.

The goal is the speed of the bare walk, which reads nothing but lengths, for batches of the usual
sizes. At 80 bytes, a batch of one small record, the work on a batch is what counts.
"""

from __future__ import annotations

import os
import statistics
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import limits
from benchmarks.headers import BATCH_BYTES, scan
from benchmarks.logs import benchmark_log, warm
from benchmarks.recover import seconds
from kafka_index.commands.stats.replica_counts import StatsSettings, count_part, parts_of
from kafka_index.core.kernels.batch_counts import SUM_BATCHES
from kafka_index.core.log.read.partition_files import PartitionFiles
from kafka_index.core.logdir.listing import list_dump

_ROUNDS = 9
_GOAL = 0.8
_SMALL_BATCH, _SMALL_GOAL = 80, 0.4


def count(files: PartitionFiles) -> int:
    """Count the headers of a log by hours; return the number of batches."""
    (part,) = parts_of(0, files, 1 << 40)
    counts = count_part(part, "", settings=StatsSettings(group_ms=3_600_000))
    return int(counts.totals.sums[:, SUM_BATCHES].sum())


def run(scratch: Path) -> bool:
    """Measure, print, and return whether the goals are reached."""
    print("Statistics of headers by hour, one core, ns a batch (median of rounds, in turn)")
    print("batch bytes    walk     scan    stats   walk/stats   scan/stats    goal (walk)")
    reached = True
    with TemporaryDirectory(dir=scratch) as folder:
        for batch_bytes in BATCH_BYTES:
            log = benchmark_log(scratch, batch_bytes)
            warm(log)
            partition = Path(folder) / f"measured-{batch_bytes}"
            partition.mkdir()
            os.link(log, partition / f"{0:020d}.log")
            segments = tuple(list_dump([str(partition)], topics=None).segments)
            files = PartitionFiles("measured", batch_bytes, segments)
            batches = limits.walk(log)
            if count(files) != batches:
                raise RuntimeError(f"the statistics of {log} missed batches")
            works = (partial(limits.walk, log), partial(scan, log), partial(count, files))
            times = [[seconds(work) for work in works] for _ in range(_ROUNDS)]
            w, s, c = (1e9 * statistics.median(one) / batches for one in zip(*times, strict=True))
            goal = _SMALL_GOAL if batch_bytes == _SMALL_BATCH else _GOAL
            reached &= w / c >= goal
            row = f"{batch_bytes:11d} {w:7.1f} {s:8.1f} {c:8.1f} {w / c:12.2f} {s / c:12.2f}"
            print(f"{row} {goal:14.2f}", flush=True)
    return reached
