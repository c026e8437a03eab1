"""Random lookups over 64 remote segments of 512 MiB, against downloading the segments first.

The segments are one log under many names, hard links in the folder of an S3 server on this machine.
Some of them are downloaded to files, and the time is scaled to all. Requests and bytes are counted
where they arrive. The gap up to which two ranges are fetched as one is measured too: what a request
costs, in bytes of a longer one.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from benchmarks.logs import benchmark_log, records_in
from kafka_index.commands.build.log_build import build_segment_files
from kafka_index.core.format.names import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, segment_file_name
from kafka_index.core.fs import fetched_file
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.remote_file import MAX_REQUESTS
from kafka_index.core.fs.store import Bytes, ByteSource
from kafka_index.core.log.choices import By, Resolve, Status
from kafka_index.core.log.read import segment_indexes
from kafka_index.core.query.inventory import Inventory, collect_inventory
from kafka_index.core.query.lookups import Keys, Lookups, LookupSettings, QueryBatch
from tests.servers.s3 import S3Server, running_s3

SEGMENTS = 64
_BATCH_BYTES = 16 << 10
_DOWNLOADED = 8
_ROUNDS = 3
_FEW, _MANY = 1_000, 100_000
_FEW_GOAL, _FEW_SHARE_GOAL = 20.0, 0.02
_REQUESTS = 400


@dataclass
class Traffic:
    """Requests for parts of logs and for indexes, and their bytes."""

    requests: int = 0
    size_bytes: int = 0


def run(scratch: Path) -> bool:
    """Measure, print, and return whether all goals are reached."""
    with (
        TemporaryDirectory(dir=scratch) as folder,
        running_s3(Path(folder)) as server,
        server_environment(server),
    ):
        inventory = collect_inventory([_upload(server, scratch)])
        _measure_gap(inventory)
        size = sum(inventory.segments["size_bytes"].to_pylist())
        streamed = _download_seconds(inventory, None)
        download = _download_seconds(inventory, Path(folder) / "downloaded")
        print(
            f"{SEGMENTS} segments, {size / 2**30:.0f} GiB; downloading them takes {download:.1f} s "
            f"({streamed:.1f} to nowhere)"
        )
        reached = True
        for count in (_FEW, _MANY):
            for resolve in (Resolve.BATCH, Resolve.RECORD):
                reached &= _measure(inventory, count, resolve, download, size)
    return reached


def _measure(
    inventory: Inventory, count: int, resolve: Resolve, download: float, size: int
) -> bool:
    took = []
    for number in range(_ROUNDS):
        with _counted() as traffic:
            started = time.perf_counter()
            _look_up(inventory, count, resolve, seed=number)
            took.append(time.perf_counter() - started)
    seconds = statistics.median(took)
    ratio, share = download / seconds, traffic.size_bytes / size
    goal, share_goal = (_FEW_GOAL, _FEW_SHARE_GOAL) if count == _FEW else (1.0, 1.0)
    print(
        f"{count:>7,} lookups, {resolve.value:6}: {seconds:6.2f} s, {ratio:5.1f} x faster "
        f"(goal {goal:g}), {traffic.requests:,} requests, {100 * share:.2f} % of the bytes "
        f"(goal {100 * share_goal:g})"
    )
    return ratio >= goal and share <= share_goal


def _look_up(inventory: Inventory, count: int, resolve: Resolve, *, seed: int) -> None:
    random = np.random.default_rng(seed)
    records = LOG_RECORDS
    # New in each round, as in each run: nothing has been fetched.
    fresh = Inventory(inventory.partitions, inventory.segments)
    with Lookups(fresh, LookupSettings(By.OFFSET, resolve)) as lookups:
        answers = lookups.answer(
            QueryBatch(
                pa.array(["topic"] * count),
                pa.array(random.integers(0, SEGMENTS, count)),
                Keys(random.integers(0, records, count), specials=False),
            )
        )
    assert (answers.status == Status.FOUND).all()


def _download_seconds(inventory: Inventory, target: Path | None) -> float:
    started = time.perf_counter()
    for code in range(_DOWNLOADED):
        path = inventory.partition_files(code).segments[0].log_path
        with (target or Path(os.devnull)).open("wb", buffering=0) as file:
            for piece in store_of(path).open(path).stream():
                if target is not None:
                    file.write(piece.data)
    return (time.perf_counter() - started) * SEGMENTS / _DOWNLOADED


def _measure_gap(inventory: Inventory) -> None:
    """Print what a request costs, in bytes of a longer one."""
    path = inventory.partition_files(0).segments[0].log_path
    log = store_of(path).open(path)
    small, large = (_request_seconds(log, size) for size in (4 << 10, 1 << 20))
    gap = small / ((large - small) / ((1 << 20) - (4 << 10)))
    print(
        f"a request of 4 KiB takes {1000 * small:.2f} ms, of 1 MiB {1000 * large:.2f} ms, "
        f"{MAX_REQUESTS} at a time: worth a gap of {gap / 1024:.0f} KiB "
        f"({fetched_file.MAX_GAP_BYTES >> 10} in use)"
    )


def _request_seconds(log: ByteSource, size: int) -> float:
    starts = np.random.default_rng(0).integers(0, log.size_bytes - size, _REQUESTS).tolist()
    pool = fetched_file.requests(os.getpid())

    def read(start: int) -> Bytes:
        return log.read_at(start, size)

    list(pool.map(read, starts[:20]))
    started = time.perf_counter()
    list(pool.map(read, starts))
    return (time.perf_counter() - started) / _REQUESTS


LOG_RECORDS = (1 << 29) // _BATCH_BYTES * records_in(_BATCH_BYTES)


def _upload(server: S3Server, scratch: Path) -> str:
    """Put the log and its indexes once, and link them."""
    log = benchmark_log(scratch, _BATCH_BYTES)
    indexes = scratch / f"remote-indexes-{_BATCH_BYTES}"
    if not indexes.exists():
        indexes.mkdir()
        build_segment_files(log, indexes)
    bucket = server.new_bucket()
    assert server.folder is not None, "hard links need versitygw: install Go 1.25"
    first = f"s3://{bucket}/dump/topic-0"
    for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        name = segment_file_name(0, suffix)
        store_of(first).put(f"{first}/{name}", (indexes / name).read_bytes())
    store_of(first).put(f"{first}/{log.name}", log.read_bytes())
    folder = server.folder / bucket / "dump"
    for number in range(1, SEGMENTS):
        shutil.copytree(folder / "topic-0", folder / f"topic-{number}", copy_function=os.link)
    return f"s3://{bucket}/dump"


@contextmanager
def server_environment(server: S3Server) -> Iterator[None]:
    """Lead this process to a server, meanwhile."""
    before = dict(os.environ)
    os.environ.update(server.environment())
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _counted() -> Iterator[Traffic]:
    """Count what is read of logs and indexes."""
    traffic = Traffic()
    put, read = fetched_file.FetchedFile._store_pages, segment_indexes._read  # noqa: SLF001, to count

    def counted_put(log: fetched_file.FetchedFile, start: int, data: Bytes) -> None:
        traffic.requests += 1
        traffic.size_bytes += len(data)
        put(log, start, data)

    def counted_read(path: str) -> Bytes | None:
        data = read(path)
        traffic.requests += 1
        traffic.size_bytes += 0 if data is None else len(data)
        return data

    fetched_file.FetchedFile._store_pages = counted_put  # type: ignore[assignment, method-assign]  # noqa: SLF001
    segment_indexes._read = counted_read  # noqa: SLF001
    try:
        yield traffic
    finally:
        fetched_file.FetchedFile._store_pages = put  # type: ignore[method-assign]  # noqa: SLF001
        segment_indexes._read = read  # noqa: SLF001
