"""Records of a log as Arrow columns, one core, warm page cache, beside Kafka's own iterator.

Kafka verifies each batch, iterates as its consumer does, and copies each key and value out. We make
the eight columns of Spark's Kafka source, or offsets and timestamps alone. The limits are measured
in the same run: without a codec, the log read from the page cache and verified, and its bytes also
copied once, nothing else; for a codec, the packed bytes of the batches given to the library.

The reads of a part of a large log compare bytes and time with the read of the whole, and the peak
memory of reading segments of two sizes shows that it does not grow with them.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.limits import checksum_windows
from benchmarks.logs import FIRST_TIMESTAMP_MS, benchmark_log, records_in, warm, write_log
from kafka_index.core.format.records import RECORD_BATCH_HEADER
from kafka_index.core.query.bounds import BoundOptions
from kafka_index.core.query.record_reader import RecordReader
from kafka_index.core.query.records import plan_read
from kafka_index.core.query.settings import ReadSettings
from kafka_index.core.records.record_batch import BatchFields, Record, write_record_batch
from tests.conformance.kafka_reference import KafkaReference

BATCH_BYTES = (200, 1024, 16384)
_PLAIN_GOALS = {200: 12.0, 1024: 6.0, 16384: 2.5}
_CODEC_GOALS = {"lz4": 1.5, "zstd": 1.5, "snappy": 1.5, "gzip": 1.2}
_ALONE_GOAL = 2.0
_BYTES_GOAL, _TIME_GOAL = 50.0, 20.0
_SEGMENTS, _SEGMENT_BYTES = 4, 1 << 30
#: Uncompressed, and before compression. To open a log takes as long as to decode 5 MB.
_PLAIN_LOG_BYTES, _LOG_BYTES = 256 << 20, 64 << 20
_RECORD_BYTES = 130
_DISTINCT_BATCHES = 128
_ROUNDS = 3
_KAFKA_SECONDS = 4
_OVERHEAD_BYTES = RECORD_BATCH_HEADER.itemsize
_WORDS = ("harbor", "delta", "ember", "kelp", "opal", "alder", "umber", "violet", "juniper")


def run(scratch: Path) -> bool:
    """Measure, print, and return whether all goals are reached."""
    reached = _beside_kafka(scratch)
    reached &= _beside_the_whole(scratch)
    return reached & _memory(scratch)


def decode(log: Path, columns: tuple[str, ...] | None = None) -> int:
    """Read all records of a log; return how many there are."""
    settings = ReadSettings() if columns is None else ReadSettings(columns)
    (split,) = plan_read(log.parent, settings=settings).splits
    return sum(map(len, RecordReader(split, settings)))


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of one call, which other programs do not change."""
    started = time.thread_time()
    work()
    return time.thread_time() - started


def _beside_kafka(scratch: Path) -> bool:
    print("Records to Arrow, checksums verified, M records per second of CPU (best, in turn)")
    print(
        "codec   batch bytes    Kafka    ours   x Kafka    goal   limit alone   of it"
        "   offsets, times   x all   limit x limit"
    )
    reached = True
    with KafkaReference() as reference:
        for codec in ("none", *_CODEC_GOALS):
            for batch_bytes in BATCH_BYTES:
                reached &= _row(reference, scratch, codec, batch_bytes)
    return reached


def _row(reference: KafkaReference, scratch: Path, codec: str, batch_bytes: int) -> bool:
    log = _write_log(scratch / f"records-{codec}-{batch_bytes}" / "topic-0", codec, batch_bytes)
    packed = None if codec == "none" else _packed_batches(log)
    warm(log)
    works: list[Callable[[], object]] = [
        partial(decode, log),
        partial(decode, log, ("offset", "timestamp")),
    ]
    if packed is not None:
        works.append(partial(_unpack, codec, packed))
    else:
        works += [partial(checksum_windows, log, batch_bytes, copies=way) for way in (True, False)]
    count = decode(log)
    for work in works:
        work()
    kafka, times = [], []
    for _ in range(_ROUNDS):
        best_seconds, records = reference.bench_records(log, _KAFKA_SECONDS / 2)
        if records != count:
            raise RuntimeError(f"{log}: {count} records, and {records} of Kafka's")
        kafka.append(best_seconds)
        times += [[seconds(work) for work in works] for _ in range(2)]
    k = count / 1e6 / min(kafka)
    ours, alone, limit, *verified = (count / 1e6 / min(each) for each in zip(*times, strict=True))
    goal = _CODEC_GOALS.get(codec) or _PLAIN_GOALS[batch_bytes]
    # How much faster reading and verifying alone is than with one copy.
    most = f" {verified[0] / limit:15.2f}" if verified else ""
    print(
        f"{codec:6s} {batch_bytes:12d} {k:8.2f} {ours:7.2f} {ours / k:9.1f} {goal:7.1f}"
        f" {limit:13.2f} {ours / limit:7.0%} {alone:16.2f} {alone / ours:7.2f}{most}",
        flush=True,
    )
    return ours / k >= goal and (codec != "none" or alone / ours >= _ALONE_GOAL)


def _write_log(partition: Path, codec: str, batch_bytes: int) -> Path:
    """Write a log of batches of about a size before compression, and records of about 130 B."""
    log = partition / f"{0:020d}.log"
    if log.exists():
        return log
    partition.mkdir(parents=True)
    random = np.random.default_rng(0)
    count = max(1, (batch_bytes - _OVERHEAD_BYTES) // _RECORD_BYTES)
    batches = []
    for _ in range(_DISTINCT_BATCHES):
        records = [
            Record(
                FIRST_TIMESTAMP_MS + number,
                f"key-{random.integers(10**6):08d}".encode(),
                " ".join(random.choice(_WORDS, 17)).encode()[:107],
            )
            for number in range(count)
        ]
        batches.append(write_record_batch(records, 0, BatchFields(compression=codec)))
    with log.open("wb") as file:
        written = number = 0
        while written < (_PLAIN_LOG_BYTES if codec == "none" else _LOG_BYTES):
            data = batches[number % _DISTINCT_BATCHES]
            # The checksum does not cover the base offset.
            file.write((number * count).to_bytes(8, "big") + data[8:])
            written += max(len(data), count * _RECORD_BYTES)
            number += 1
    return log


def _packed_batches(log: Path) -> list[memoryview]:
    data = memoryview(log.read_bytes())
    batches, position = [], 0
    while position < len(data):
        end = position + 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        batches.append(data[position + _OVERHEAD_BYTES : end])
        position = end
    return batches


def _unpack(codec: str, batches: list[memoryview]) -> None:
    """Give each batch to the codec's library."""
    if codec == "gzip":
        for packed in batches:
            zlib.decompress(packed, 31)
    elif codec == "snappy":
        snappy = pa.Codec("snappy")
        for packed in batches:
            block = packed[20:]
            snappy.decompress(pa.py_buffer(block), _snappy_size(block))
    else:
        import cramjam  # noqa: PLC0415, because only this needs it

        library = getattr(cramjam, codec)
        for packed in batches:
            library.decompress(packed)


def _snappy_size(block: memoryview) -> int:
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return size


def _beside_the_whole(scratch: Path) -> bool:
    size, batches = BATCH_BYTES[1], _SEGMENT_BYTES // BATCH_BYTES[1]
    partition = scratch / "records-large" / "topic-0"
    for number in range(_SEGMENTS):
        warm(write_log(partition, size, _SEGMENT_BYTES, number * batches))
    records = _SEGMENTS * batches * records_in(size)
    start, end = records // 2, records // 2 + records // 100
    works = {
        "the whole": BoundOptions(),
        "1 % by offsets": BoundOptions(start, end),
        "1 % by time": BoundOptions(
            starting_timestamp=FIRST_TIMESTAMP_MS + start, ending_timestamp=FIRST_TIMESTAMP_MS + end
        ),
    }
    print("\nA part of a log of 4 GiB in segments of 1 GiB, with its indexes")
    print("                     rows      MB read   fewer    seconds   faster")
    _build_indexes(partition)
    whole: tuple[int, float] | None = None
    reached = True
    for name, bounds in works.items():
        rows, read = _read_part(partition, bounds)
        took = statistics.median(seconds(partial(_read_part, partition, bounds)) for _ in range(3))
        whole = whole or (read, took)
        fewer, faster = whole[0] / read, whole[1] / took
        print(f"{name:14s} {rows:10d} {read / 1e6:12.1f} {fewer:7.0f} {took:10.4f} {faster:8.1f}")
        if name != "the whole":
            reached &= fewer >= _BYTES_GOAL and faster >= _TIME_GOAL
    return reached


def _read_part(partition: Path, bounds: BoundOptions) -> tuple[int, int]:
    plan = plan_read(partition, bounds=bounds)
    readers = [RecordReader(split, plan.settings) for split in plan.splits]
    rows = sum(len(batch) for reader in readers for batch in reader)
    return rows, sum(reader.bytes_read for reader in readers)


def _build_indexes(partition: Path) -> None:
    if not any(partition.glob("*.index")):
        command = [sys.executable, "-m", "kafka_index", "build", "--in-place", "--input"]
        subprocess.run([*command, str(partition)], check=True, stdout=subprocess.DEVNULL)


_PEAK = """
import sys
from pathlib import Path
from benchmarks.records import peak_anonymous_kib
print(peak_anonymous_kib(Path(sys.argv[1])))
"""


def peak_anonymous_kib(log: Path) -> int:
    """Read all records of a log; return the most memory of this process at any record batch.

    The pages of a mapped log are not counted: they are the page cache's.
    """
    (split,) = plan_read(log.parent).splits
    peak = 0
    for _ in RecordReader(split, ReadSettings()):
        lines = Path("/proc/self/status").read_text().splitlines()
        peak = max(peak, *(int(line.split()[1]) for line in lines if line.startswith("RssAnon")))
    return peak


def _memory(scratch: Path) -> bool:
    """Compare the peak memory of reading a segment with that of one eight times as large."""
    print("\nPeak memory of a process that reads a segment, without the pages of the log")
    peaks = []
    logs = (
        _write_log(scratch / "records-zstd-16384" / "topic-0", "zstd", 16384),
        benchmark_log(scratch, 16384),
    )
    for log in logs:
        command = [sys.executable, "-c", _PEAK, str(log)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        peaks.append(int(done.stdout) / 1024)
        print(f"{log.stat().st_size / 1e6:8.0f} MB: {peaks[-1]:7.0f} MiB")
    return peaks[1] <= peaks[0] + 64
