"""One core: a scan of headers alone, beside the bare walk that hops from length to length.

Both map the file in each round, so that both pay for its pages. The build is the same scan with the
index files filled; it costs a millisecond or two a segment, whatever its size.
"""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import limits
from benchmarks.logs import benchmark_log, warm
from benchmarks.recover import compute, seconds
from kafka_index.core.log.scan.segment_scan import LogFileSource

BATCH_BYTES = (80, 200, 1024, 16384)
_ROUNDS = 9
_GOAL = 0.5


def scan(log: Path) -> int:
    """Scan the headers of a log into columns; return the number of batches."""
    return sum(batches.rows for batches in LogFileSource(log, verify_crc=False).chunks())


def run(scratch: Path) -> bool:
    """Measure, print, and return whether the goal is reached."""
    print("Headers only, one core, ns a batch (median of rounds, in turn)")
    print("batch bytes    walk     scan   ratio    build   ratio    goal (scan)")
    reached = True
    with TemporaryDirectory(dir=scratch) as folder:
        for batch_bytes in BATCH_BYTES:
            log = benchmark_log(scratch, batch_bytes)
            warm(log)
            count = limits.walk(log)
            if scan(log) != count:
                raise RuntimeError(f"the scan of {log} missed batches")
            works = (
                partial(limits.walk, log),
                partial(scan, log),
                partial(compute, log, Path(folder), verify_crc=False),
            )
            times = [[seconds(work) for work in works] for _ in range(_ROUNDS)]
            w, s, b = (1e9 * statistics.median(each) / count for each in zip(*times, strict=True))
            reached &= w / s >= _GOAL
            row = f"{batch_bytes:11d} {w:7.1f} {s:8.1f} {w / s:7.2f} {b:8.1f} {w / b:7.2f}"
            print(f"{row} {_GOAL:7.2f}", flush=True)
    return reached
