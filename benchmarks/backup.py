"""Backups: of an unchanged directory, of all data, and of a broker under load.

- *unchanged*: the listing of 10,000 partitions of 10 segments that an earlier backup has stored, in
  seconds of the processor, compared with ``find -printf`` of size, inode and ctime of each file.
- *first backup*, of 1 GiB into a folder and a bucket, and a *restore* from the bucket. Each is
  compared with the slower one of reading the same data (with checksums, or the objects to nowhere)
  and writing the same bytes durably; all at the priority of a backup, without the start of Python.
  The restore is also compared with a download: the objects, several at a time, to synced files.
- *load*: a broker under 20 MB/s by Kafka's ``ProducerPerformance``, with and without backups every
  10 s, in turn: the share of a core that the backups use, and the producer's p99. The repository is
  in memory, because one on the broker's own disk would make it wait for its syncs.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.logs import benchmark_log
from benchmarks.mount import make_dump
from benchmarks.remote_lookups import server_environment
from kafka_index import restore_dump
from kafka_index.commands.backup.agent import back_up
from kafka_index.commands.backup.broker_backup import BrokerBackup
from kafka_index.commands.backup.low_impact_io import idle_io_priority
from kafka_index.commands.backup.request import BackupRequest
from kafka_index.core.fs.registry import store_of
from kafka_index.core.kernels.scan import CHUNK_BATCHES, SCAN_COLUMNS, scan_batches
from kafka_index.core.records.record_batch import BatchFields, Record, write_record_batch
from tests.conformance.broker.broker import Broker, BrokerFolders, java
from tests.conformance.broker.client import Client
from tests.conformance.broker.topics import Topic
from tests.servers.s3 import running_s3

_PARTITIONS, _SEGMENTS = 10_000, 10
_BATCH_BYTES = 1024
_FIRST_SEGMENTS = 8
_VERIFIED = True
_ROUNDS, _FIRST_ROUNDS = 5, 5
_AT_A_TIME = 4
_MEMORY_BYTES = 4 << 30
_PAIRS, _PAIR_SECONDS = 5, 30
_RATE_BYTES, _RECORD_BYTES = 20_000_000, 1000
_LISTING_GOAL, _FIRST_GOAL, _CORE_GOAL, _LATENCY_GOAL = 3.0, 0.8, 0.1, 1.1
_P99 = re.compile(r"([0-9]+) ms 99th")


def run(scratch: Path) -> bool:
    """Measure, print, and return whether all goals are reached."""
    print(f"Load of the machine before: {os.getloadavg()[0]:.1f}")
    reached = [_unchanged(scratch), _whole(scratch), _load(scratch)]
    print(f"Load of the machine after: {os.getloadavg()[0]:.1f}")
    return all(reached)


def _unchanged(scratch: Path) -> bool:
    with TemporaryDirectory(dir=scratch) as folder:
        data, repository = Path(folder, "data"), Path(folder, "repository")
        _write_partitions(data)
        _back_up(data, repository)
        finds, runs, listings = [], [], []
        find = ["find", str(data), "-type", "f", "-printf", "%p %s %i %C@\\n"]
        for _ in range(_ROUNDS):
            finds.append(_processor_seconds(find))
            runs.append(_processor_seconds(_command(data, repository)))
            listings.append(_listing_seconds(data, repository))
    find_s, run_s, listing_s = map(statistics.median, (finds, runs, listings))
    reached = listing_s <= _LISTING_GOAL * find_s
    print(
        f"Backup of {_PARTITIONS:,} unchanged partitions, {_PARTITIONS * _SEGMENTS:,} segments, s"
    )
    print("    find    listing    x find    run with the start of Python    goal")
    print(
        f"{find_s:8.2f} {listing_s:10.2f} {listing_s / find_s:9.2f} {run_s:31.2f}    "
        f"{'reached' if reached else 'MISSED'}"
    )
    return reached


def _listing_seconds(data: Path, repository: Path) -> float:
    with BrokerBackup(BackupRequest(inputs=(str(data),), output=str(repository))) as backup:
        began = time.process_time()
        backup.inspect()
        backup.capture_coordinators()
        backup.capture_others()
        return time.process_time() - began


def _processor_seconds(command: list[str]) -> float:
    before = os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


def _whole(scratch: Path) -> bool:
    """Measure first runs into a folder and a bucket, and restores of the run in the bucket."""
    with (
        TemporaryDirectory(dir=scratch) as folder,
        running_s3(Path(folder)) as server,
        server_environment(server),
    ):
        log = benchmark_log(scratch, _BATCH_BYTES)
        home = make_dump(Path(folder), log, _BATCH_BYTES, segments=_FIRST_SEGMENTS)
        logs = sorted(home.data.rglob("*.log"))
        print(f"{sum(path.stat().st_size for path in logs) / 1e9:.2f} GB, s")
        print("                        slower of: read        write        ours    ratio    goal")
        written = Path(folder, "written")
        local, bucket = Path(folder, "repository"), server.new_bucket()
        reached = [
            _in_turn(
                "first run, folder",
                partial(_scan, logs),
                partial(_write, logs, written),
                partial(_take, home, str(local)),
                partial(_remove, written, local),
            )
        ]
        uris = iter(f"s3://{bucket}/{number}" for number in range(4 * _FIRST_ROUNDS))
        reached.append(
            _in_turn(
                "first run, bucket",
                partial(_scan, logs),
                lambda: _put(logs, next(uris)),
                lambda: _take(home, next(uris)),
                _remove,
            )
        )
        stored = f"s3://{server.new_bucket()}/repository"
        _take(home, stored)
        target, downloaded = Path(folder, "restored"), Path(folder, "downloaded")
        reached.append(
            _in_turn(
                "restore, bucket",
                partial(_stream, f"{stored}/data"),
                partial(_write, logs, written),
                lambda: restore_dump(f"backup:{stored}", target, cluster="same"),
                partial(_remove, written, target, downloaded),
                partial(_download, f"{stored}/data", downloaded),
            )
        )
    return all(reached)


def _in_turn(
    name: str,
    read: Callable[[], object],
    write: Callable[[], object],
    work: Callable[[], object],
    clean: Callable[[], object],
    both: Callable[[], object] | None = None,
) -> bool:
    """Time a task and its bounds at the same priority; print, and return whether it is fast enough.

    Reading and writing is timed in one, too, where it is given.
    """
    rounds = []
    for number in range(_FIRST_ROUNDS + 1):
        with idle_io_priority():
            found = [_warmly_timed(each) for each in (read, write, work, both) if each is not None]
        clean()
        os.sync()
        if number:  # what is compiled or imported on first use
            rounds.append(found)
    ratio = statistics.median(max(each[:2]) / each[2] for each in rounds)
    read_s, write_s, work_s, *both_s = map(statistics.median, zip(*rounds, strict=True))
    reached = ratio >= _FIRST_GOAL
    print(
        f"{name:20} {read_s:17.2f} {write_s:12.2f} {work_s:11.2f} {ratio:8.2f}    "
        f"{'reached' if reached else 'MISSED'}",
        flush=True,
    )
    if both is not None:
        beside = statistics.median(each[3] / each[2] for each in rounds)
        print(f"{'    both in one':20} {both_s[0]:17.2f} {beside:33.2f}")
    return reached


def _take(home: BrokerFolders, repository: str) -> None:
    back_up(BackupRequest(inputs=(str(home.data), str(home.metadata)), output=repository))


def _remove(*folders: Path) -> None:
    for each in folders:
        shutil.rmtree(each)


def _put(logs: list[Path], folder: str) -> None:
    """Put logs into a store, as many concurrently as a backup."""
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        jobs = [
            pool.submit(store_of(folder).put, f"{folder}/{number}", path.read_bytes())
            for number, path in enumerate(logs)
        ]
        assert all(each.result() for each in jobs)


def _stream(folder: str) -> None:
    """Read and discard all objects of a store, one after the other."""
    for path in _paths_below(folder):
        for _ in store_of(folder).open(f"{folder}/{path}").stream():
            pass


def _download(folder: str, target: Path) -> None:
    """Copy all objects of a store to files of a new folder, and sync each."""

    def copy(path: str) -> None:
        with target.joinpath(path.replace("/", "-")).open("wb", buffering=0) as file:
            for chunk in store_of(folder).open(f"{folder}/{path}").stream():
                file.write(chunk.data)
            os.fsync(file.fileno())

    target.mkdir()
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        list(pool.map(copy, _paths_below(folder)))


def _paths_below(folder: str) -> list[str]:
    pages = store_of(folder).list_tree(folder)
    return [path for page in pages for path in page["path"].to_pylist()]


def _load(scratch: Path) -> bool:
    quiet, beside, shares = [], [], []
    memory = Path("/dev/shm")  # noqa: S108, its names are random
    with (
        TemporaryDirectory(dir=scratch) as folder,
        TemporaryDirectory(dir=memory if memory.is_dir() else scratch) as elsewhere,
    ):
        broker = Broker(BrokerFolders(Path(folder, "broker")))
        with broker, Client(broker.bootstrap, Path(folder)) as client:
            client.create(Topic("load", (), {"segment.bytes": str(64 << 20)}, 4))
            _produce(broker, 10)
            for _ in range(_PAIRS):
                quiet.append(_produce(broker, _PAIR_SECONDS))
                with _agent(broker.home, Path(elsewhere, "repository")) as share:
                    beside.append(_produce(broker, _PAIR_SECONDS))
                    shares.append(share())
    ratio = statistics.median(after / before for before, after in zip(quiet, beside, strict=True))
    core = statistics.median(shares)
    reached = core < _CORE_GOAL and ratio <= _LATENCY_GOAL
    print(f"A broker under {_RATE_BYTES // 1_000_000} MB/s, a run every 10 s")
    print("    core    p99 without, with, ms    with / without    goals")
    print(
        f"{core:8.3f}    {statistics.median(quiet):9.1f} {statistics.median(beside):13.1f} "
        f"{ratio:17.2f}    {'reached' if reached else 'MISSED'}"
    )
    print(f"    pairs: {[*zip(quiet, beside, strict=True)]}, cores {[round(c, 3) for c in shares]}")
    return reached


def _produce(broker: Broker, seconds: int) -> float:
    """Produce at the rate for some time; return the 99th percentile of the latencies in ms."""
    rate = _RATE_BYTES // _RECORD_BYTES
    done = subprocess.run(
        java(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", "load", "--num-records", str(rate * seconds)),
            *("--record-size", str(_RECORD_BYTES), "--throughput", str(rate)),
            *("--producer-props", f"bootstrap.servers={broker.bootstrap}", "acks=all"),
            level="error",
        ),
        capture_output=True,
        text=True,
        check=True,
    )
    return float(_P99.findall(done.stdout)[-1])


@contextmanager
def _agent(home: BrokerFolders, repository: Path) -> Iterator[Callable[[], float]]:
    """Run backups every ten seconds; yield a function that returns their share of a core."""
    command = [
        *(sys.executable, "-m", "kafka_index", "backup"),
        *("--input", str(home.data), str(home.metadata)),
        *("--output", str(repository), "--every", "10s", "--verbose"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("run "):
            assert process.poll() is None
        began, cpu = time.monotonic(), _cpu_seconds(process.pid)
        yield lambda: (_cpu_seconds(process.pid) - cpu) / (time.monotonic() - began)
        process.send_signal(signal.SIGTERM)
        process.communicate()


def _cpu_seconds(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _back_up(data: Path, repository: Path, *more: Path) -> float:
    """Run the command in a separate process; return its seconds."""
    return _timed(lambda: subprocess.run(_command(data, repository, *more), check=True))


def _command(data: Path, repository: Path, *more: Path) -> list[str]:
    inputs = [str(path) for path in (data, *more)]
    command = [sys.executable, "-m", "kafka_index", "backup", "--quiet"]
    return [*command, "--input", *inputs, "--output", str(repository)]


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _warmly_timed(work: Callable[[], object]) -> float:
    """Time a task on memory that was written before: a virtual machine gets memory only then."""
    memory = np.empty(_MEMORY_BYTES, np.uint8)
    memory[:: mmap.PAGESIZE] = 1
    del memory
    return _timed(work)


def _scan(logs: list[Path]) -> None:
    columns = np.empty((SCAN_COLUMNS, CHUNK_BATCHES), np.int64)
    for path in logs:
        buffer = np.fromfile(path, np.uint8)
        position = 0
        while position < len(buffer):
            _, after, count = scan_batches(
                buffer, 0, len(buffer), position, int(path.stem), _VERIFIED, columns, 0
            )
            assert count
            position = int(after)


def _write(logs: list[Path], folder: Path) -> None:
    folder.mkdir()
    for number, path in enumerate(logs):
        with (folder / str(number)).open("wb", buffering=0) as file:
            file.write(path.read_bytes())
            os.fsync(file.fileno())


def _write_partitions(data: Path) -> None:
    """Write a stopped broker's directory of many partitions of many small segments."""
    data.mkdir()
    (data / "meta.properties").write_text(
        "version=1\ncluster.id=a2Fma2EtaW5kZXgtdGVzdA\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAABA\n"
    )
    (data / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}')
    record = Record(1_700_000_000_000, b"key", b"value")
    logs = [
        (f"{base:020d}.log", write_record_batch([record], base, BatchFields(leader_epoch=0)))
        for base in range(_SEGMENTS)
    ]
    for number in range(_PARTITIONS):
        folder = data / f"topic-{number}"
        folder.mkdir()
        (folder / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABw")
        (folder / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
        for name, content in logs:
            (folder / name).write_bytes(content)
