"""One core, warm page cache: our lookups and Kafka's, on the same files, random targets for both.

Ours are asked in bulk, and what is measured begins with targets in random order and ends with
answers in that order: sorting is in it. Kafka's are asked one by one.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from benchmarks import limits
from benchmarks.dumps import make_dump
from benchmarks.logs import FIRST_TIMESTAMP_MS, benchmark_log, records_in, warm
from benchmarks.recover import BATCH_BYTES, seconds
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import OFFSET_INDEX_SUFFIX
from kafka_index.core.format.records import OFFSET_ENTRY
from kafka_index.core.index.sparse_indexes import OffsetIndex
from kafka_index.core.log.choices import Resolve, Status
from kafka_index.core.log.read.answers import ENTRY_OFFSET, ENTRY_POSITION, Answers
from kafka_index.core.log.read.partition_log import PartitionLog
from tests.conformance.kafka_reference import KafkaReference

_ROUNDS = 3
_LIMIT_ROUNDS = 9
_KAFKA_SECONDS = 2.0

_ENTRIES = 127_190
_STREAM_QUERIES = 10_000_000
_STREAM_ROWS = (1 << 16, 1 << 20)
_INDEX_GOALS = {False: 4.0, True: 10.0}

_QUERIES = (10_000, 100_000, 1_000_000)
_OUR_SECONDS = 0.3
_BATCH_GOAL = 40.0
_RECORD_GOAL = 20.0


def run(scratch: Path) -> bool:
    """Measure, print, and return whether all goals are reached."""
    with KafkaReference() as reference:
        reached = _index_level(reference, scratch)
        for kind in _kinds(reference):
            reached &= _log_level(kind, scratch)
    _beside_the_machine(scratch)
    return reached


def _index_level(reference: KafkaReference, scratch: Path) -> bool:
    """Measure lookups in the index file alone."""
    print(f"Index level, {_ENTRIES:,} entries: a stream of {_STREAM_QUERIES:,} targets, one core")
    print("Million lookups a second (median of rounds, in turn), and how many times Kafka's")
    print("targets  rows a batch   Kafka    OffsetIndex      PartitionLog        goal")
    reached = True
    with _partition(scratch, 200) as partition:
        path = next(partition.glob(f"*{OFFSET_INDEX_SUFFIX}"))
        os.truncate(path, _ENTRIES * OFFSET_ENTRY.itemsize)
        with OffsetIndex(path, 0, writable=False) as index, PartitionLog.open(partition) as log:
            targets = np.random.default_rng(1).integers(0, index.last_offset + 1, _STREAM_QUERIES)
            for in_order, goal in _INDEX_GOALS.items():
                if in_order:
                    targets.sort()
                name = "sorted" if in_order else "random"
                ask_kafka = partial(
                    reference.bench_lookup, f"index-{name}", partition, _KAFKA_SECONDS
                )
                ask_kafka()
                for rows in _STREAM_ROWS:
                    stream = pa.table({"offset": targets}).to_batches(max_chunksize=rows)
                    works = (
                        partial(_stream, stream, index.lookup_many),
                        partial(_stream, stream, partial(_enter, log)),
                    )
                    k, *ours = _stream_rates(ask_kafka, works)
                    reached &= ours[0] / k >= goal
                    cells = "".join(f"{rate / 1e6:9.1f} {rate / k:6.1f}x" for rate in ours)
                    print(f"{name:8s} {rows:11,d} {k / 1e6:8.2f} {cells} {goal:9.0f}x", flush=True)
    return reached


def _stream_rates(
    ask_kafka: Callable[[], float], works: Sequence[Callable[[], None]]
) -> list[float]:
    """Return the lookups a second of Kafka, and of each work over the stream."""
    rates = [
        [ask_kafka(), *(_STREAM_QUERIES / seconds(work) for work in works)] for _ in range(_ROUNDS)
    ]
    return [statistics.median(each) for each in zip(*rates, strict=True)]


def _stream(stream: list[pa.RecordBatch], look_up: Callable[[Longs], tuple[Longs, Longs]]) -> None:
    """Look up a stream of Arrow batches, into Arrow batches that are let go."""
    for batch in stream:
        offsets, positions = look_up(batch.column(0).to_numpy())
        found = pa.record_batch([offsets, positions], names=["entry_offset", "entry_position"])
        if found.num_rows != batch.num_rows:
            raise RuntimeError("answers are missing")


def _enter(log: PartitionLog, targets: Longs) -> tuple[Longs, Longs]:
    values = log.answer_offsets(targets, Resolve.INDEX).values
    return values[ENTRY_OFFSET], values[ENTRY_POSITION]


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of lookup that goes on from the index to the log."""

    name: str
    ask_kafka: Callable[[Path, float], float]
    ask_us: Callable[[PartitionLog, Longs], Answers]
    first_target: int
    goal: float


def _kinds(reference: KafkaReference) -> tuple[_Kind, ...]:
    return (
        _Kind(
            "Offset to batch, against translateOffset",
            partial(reference.bench_lookup, "translate"),
            lambda log, targets: log.answer_offsets(targets, Resolve.BATCH),
            0,
            _BATCH_GOAL,
        ),
        _Kind(
            "Timestamp to record, against findOffsetByTimestamp",
            partial(reference.bench_lookup, "find"),
            lambda log, targets: log.answer_timestamps(targets, Resolve.RECORD),
            FIRST_TIMESTAMP_MS,
            _RECORD_GOAL,
        ),
    )


def _log_level(kind: _Kind, scratch: Path) -> bool:
    print(f"\n{kind.name}: million lookups a second, and how many times Kafka's")
    print(f"So many at a time, the log open; 'cold start': {_QUERIES[-1]:,}, opened for them")
    columns = [*(f"{queries:,}" for queries in _QUERIES), "cold start"]
    head = "".join(f"{name:>18s}" for name in columns)
    print(f"batch bytes   Kafka {head}      goal")
    reached = True
    for batch_bytes in BATCH_BYTES:
        with _partition(scratch, batch_bytes) as partition:
            k, rates = _log_rates(kind, partition, batch_bytes)
        cells = "".join(f"{rate / 1e6:9.2f} {rate / k:7.1f}x" for rate in rates)
        print(f"{batch_bytes:11d} {k / 1e6:7.3f} {cells} {kind.goal:8.0f}x", flush=True)
        reached &= rates[len(_QUERIES) - 1] / k >= kind.goal
    return reached


def _log_rates(kind: _Kind, partition: Path, batch_bytes: int) -> tuple[float, list[float]]:
    """Return the lookups a second of Kafka, and ours by the number of them."""
    log_bytes = next(partition.glob("*.log")).stat().st_size
    end = kind.first_target + log_bytes // batch_bytes * records_in(batch_bytes)
    random = np.random.default_rng(2)
    targets = [random.integers(kind.first_target, end, queries) for queries in _QUERIES]
    kafka, ours = [], []
    with PartitionLog.open(partition) as log:
        for _ in range(_ROUNDS):
            kafka.append(kind.ask_kafka(partition, _KAFKA_SECONDS))
            rates = [_rate(partial(_answer, kind, log, some), len(some)) for some in targets]
            most = targets[-1]
            rates.append(len(most) / seconds(partial(_open_and_answer, kind, partition, most)))
            ours.append(rates)
    return statistics.median(kafka), [statistics.median(each) for each in zip(*ours, strict=True)]


def _beside_the_machine(scratch: Path) -> None:
    """Measure offsets to batches beside a sort, a bare walk and putting back what it found."""
    print(f"\nOffset to batch beside the machine's limit, {_QUERIES[-1]:,} random ones, million/s")
    print("Limit: sort, bare walk, put back one column; or all columns that an answer has")
    print("batch bytes   one column   all columns    ours   ratios")
    for batch_bytes in BATCH_BYTES:
        with _partition(scratch, batch_bytes) as partition, PartitionLog.open(partition) as log:
            data = np.memmap(next(partition.glob("*.log")), np.uint8, "r")
            end = len(data) // batch_bytes * records_in(batch_bytes)
            targets = np.random.default_rng(2).integers(0, end, _QUERIES[-1])
            columns = len(log.answer_offsets(targets[:1], Resolve.BATCH).values)
            works = (
                partial(limits.look_up, data, targets),
                partial(limits.look_up, data, targets, columns),
                partial(log.answer_offsets, targets, Resolve.BATCH),
            )
            for work in works:
                work()
            times = [[seconds(work) for work in works] for _ in range(_LIMIT_ROUNDS)]
            del data
        one, every, ours = (
            len(targets) / statistics.median(each) / 1e6 for each in zip(*times, strict=True)
        )
        ratios = f"{ours / one:.2f} {ours / every:.2f}"
        print(f"{batch_bytes:11d} {one:12.1f} {every:13.1f} {ours:7.1f}   {ratios}", flush=True)


def _rate(work: Callable[[], None], queries: int) -> float:
    """Return the queries a second of the median of several calls, after a first one."""
    work()
    times: list[float] = []
    while sum(times) < _OUR_SECONDS or len(times) < _ROUNDS:
        times.append(seconds(work))
    return queries / statistics.median(times)


def _answer(kind: _Kind, log: PartitionLog, targets: Longs) -> None:
    answers = kind.ask_us(log, targets)
    if (answers.status != Status.FOUND).any():
        raise RuntimeError(f"not all was found: {log.take_findings()}")


def _open_and_answer(kind: _Kind, partition: Path, targets: Longs) -> None:
    with PartitionLog.open(partition) as log:
        _answer(kind, log, targets)


@contextmanager
def _partition(scratch: Path, batch_bytes: int) -> Iterator[Path]:
    """Make a partition of the benchmark log of a size, with index files of this tool."""
    log = benchmark_log(scratch, batch_bytes)
    with TemporaryDirectory(dir=scratch) as folder:
        partition = make_dump(Path(folder), log, 1) / "topic-0"
        warm(log)
        yield partition
