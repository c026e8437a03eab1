"""One core: a scan of headers alone, against a compiled loop that reads each length and hops on.

Both map the file anew each time, so that both pay for its pages. The build is the same scan with
the index files filled; it costs a millisecond or two a segment, whatever its size.
"""

from __future__ import annotations

import mmap
import statistics
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numba
import numpy as np
from numpy.typing import NDArray

from benchmarks.logs import benchmark_log, warm
from benchmarks.recover import compute, seconds
from kafka_index.scan import LogFileSource

BATCH_BYTES = (80, 200, 1024, 16384)
_ROUNDS = 9
_GOAL = 0.5


@numba.njit(nogil=True)
def _hop(data: NDArray[np.uint8]) -> int:
    position, count = np.uint64(0), 0
    while position < len(data):
        at = position + np.uint64(8)
        length = (
            (np.uint64(data[at]) << np.uint64(24))
            | (np.uint64(data[at + np.uint64(1)]) << np.uint64(16))
            | (np.uint64(data[at + np.uint64(2)]) << np.uint64(8))
            | np.uint64(data[at + np.uint64(3)])
        )
        position += length + np.uint64(12)
        count += 1
    return count


def hop(log: Path) -> int:
    """Map a log and hop from length to length; return the number of batches."""
    with log.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        count = int(_hop(view))
        del view
    return count


def walk(log: Path) -> int:
    """Scan the headers of a log into columns; return the number of batches."""
    return sum(len(batches) for batches in LogFileSource(log, verify_crc=False).chunks())


def run(scratch: Path) -> bool:
    """Measure, print, and return whether the goal is reached."""
    print("Headers only, one core, ns a batch (median of rounds, in turn)")
    print("batch bytes     hop     scan   ratio    build   ratio    goal (scan)")
    reached = True
    with TemporaryDirectory(dir=scratch) as folder:
        for batch_bytes in BATCH_BYTES:
            log = benchmark_log(scratch, batch_bytes)
            warm(log)
            count = hop(log)
            if walk(log) != count:
                raise RuntimeError(f"the scan of {log} missed batches")
            works = (
                partial(hop, log),
                partial(walk, log),
                partial(compute, log, Path(folder), verify_crc=False),
            )
            times = [[seconds(work) for work in works] for _ in range(_ROUNDS)]
            h, s, b = (1e9 * statistics.median(each) / count for each in zip(*times, strict=True))
            reached &= h / s >= _GOAL
            row = f"{batch_bytes:11d} {h:7.1f} {s:8.1f} {h / s:7.2f} {b:8.1f} {h / b:7.2f}"
            print(f"{row} {_GOAL:7.2f}", flush=True)
    return reached
