"""One core, warm page cache: our build and Kafka's ``LogSegment.recover`` on the same files.

Build: the index files and their record written, made durable and renamed into place. Compute: the
same without publishing, as Kafka's recovery does not make files durable either.

The machine's limits are measured in the same run, in turn with a verified scan: what the checksum
of one big buffer takes, and of pieces as large as batches, and reading the file. The scan is the
part of compute that they limit.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import limits
from benchmarks.logs import benchmark_log, warm
from kafka_index.commands.build.log_build import build_segment_files
from kafka_index.core.format.config import IndexConfig
from kafka_index.core.index.sparse_indexes import OffsetIndex, TimeIndex
from kafka_index.core.kernels.checksums import CRC32C_METHOD
from kafka_index.core.log.scan.index_builder import IndexBuilder
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.log.state.partition_state import ProducerTable
from tests.conformance.kafka_reference import KafkaReference

BATCH_BYTES = (200, 1024, 16384)
_GOALS = {200: 30.0, 1024: 12.0, 16384: 3.5}
_ROUNDS = 5
_KAFKA_SECONDS = 3
_LIMIT_ROUNDS = 9


def compute(log: Path, directory: Path, *, verify_crc: bool = True) -> None:
    """Fill both index files of a log, without publishing them."""
    config = IndexConfig()
    size = config.index_size_max_bytes
    offset_path, time_path = directory / "0.index", directory / "0.timeindex"
    with (
        OffsetIndex(offset_path, 0, size, growing=True) as offset_index,
        TimeIndex(time_path, 0, size, growing=True) as time_index,
    ):
        # Kafka's recovery follows producers and epochs too.
        builder = IndexBuilder(
            offset_index, time_index, config.index_interval_bytes, producers=ProducerTable()
        )
        for batches in LogFileSource(log, verify_crc=verify_crc).chunks():
            builder.append(batches)
        builder.finish()
        if builder.valid_bytes != log.stat().st_size:
            raise RuntimeError(f"{log} was not read to its end")


def seconds(work: Callable[[], object]) -> float:
    """Return how long one call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def scan(log: Path) -> None:
    """Scan the batches of a log into columns, verifying each."""
    for _ in LogFileSource(log).chunks():
        pass


def run(scratch: Path) -> bool:
    """Measure, print, and return whether all goals are reached."""
    reached = _beside_kafka(scratch)
    _beside_the_machine(scratch)
    return reached


def _beside_kafka(scratch: Path) -> bool:
    print("Verified build, one core, GB/s (median of rounds; ours and Kafka's in turn)")
    print("batch bytes    Kafka   compute   x Kafka    build   x Kafka    goal")
    reached = True
    with KafkaReference() as reference, TemporaryDirectory(dir=scratch) as folder:
        for batch_bytes in BATCH_BYTES:
            log = benchmark_log(scratch, batch_bytes)
            target = Path(folder)
            kafka, computed, built = [], [], []
            warm(log)
            compute(log, target)
            for _ in range(_ROUNDS):
                kafka.append(reference.bench_recovery(log.parent, _KAFKA_SECONDS))
                computed += [seconds(partial(compute, log, target)) for _ in range(3)]
                built += [seconds(partial(build_segment_files, log, target)) for _ in range(3)]
            size = log.stat().st_size / 1e9
            k, c, b = (size / statistics.median(times) for times in (kafka, computed, built))
            goal = _GOALS[batch_bytes]
            reached &= c / k >= goal
            row = f"{batch_bytes:11d} {k:8.2f} {c:9.2f} {c / k:9.1f} {b:8.2f} {b / k:9.1f}"
            print(f"{row} {goal:7.1f}", flush=True)
    return reached


def _beside_the_machine(scratch: Path) -> None:
    print(f"\nThe machine's limits, one core, GB/s; checksums of a scan by {CRC32C_METHOD}")
    print("(median of rounds, in turn; ratio: of the scan to the checksum of one big buffer)")
    print("batch bytes   big buffer   batch-sized    read 256K    walk      scan   ratio")
    for batch_bytes in BATCH_BYTES:
        log = benchmark_log(scratch, batch_bytes)
        warm(log)
        data = log.read_bytes()
        works = (
            partial(limits.checksum, data),
            partial(limits.checksum_pieces, data, batch_bytes),
            partial(limits.read, log),
            partial(limits.walk, log),
            partial(scan, log),
        )
        for work in works:
            work()
        times = [[seconds(work) for work in works] for _ in range(_LIMIT_ROUNDS)]
        big, pieces, read, walked, scanned = (
            len(data) / 1e9 / statistics.median(each) for each in zip(*times, strict=True)
        )
        row = f"{batch_bytes:11d} {big:12.2f} {pieces:13.2f} {read:12.2f} {walked:7.1f}"
        print(f"{row} {scanned:9.2f} {scanned / big:7.2f}", flush=True)
