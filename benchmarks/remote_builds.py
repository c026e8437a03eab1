"""Builds of dumps in an S3 server on this machine, against what their requests alone cost.

A verified build from S3 to S3, in turn with our store streaming the same objects to nowhere, as
many at a time; and a rerun over many unchanged segments, in turn with listing input and output.
All of it happens in one process, whose imports are not counted. The segments are few logs under
many names, hard links in the server's folder.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.logs import LOG_BYTES, benchmark_log
from benchmarks.many_segments import link_partitions, logs_of_partition
from benchmarks.recover import seconds
from benchmarks.remote_lookups import server_environment
from kafka_index.core.fs.registry import store_of
from tests.servers.s3 import S3Server, running_s3
from tests.support.command_line import build_here

_BATCH_BYTES = 16 << 10
_BUILD_BYTES = 4 << 30
_THREADS = 2
_BUILD_GOAL = 0.8
_SEGMENTS = 10_000
_SEGMENTS_OF_PARTITION = 100
_RERUN_GOAL = 3.0
_ROUNDS = 3


def run(scratch: Path, *, divisor: int = 1) -> bool:
    """Measure, print, and return whether all goals are reached; a divisor makes it smaller."""
    with (
        TemporaryDirectory(dir=scratch) as folder,
        running_s3(Path(folder)) as server,
        server_environment(server),
    ):
        log = benchmark_log(scratch, _BATCH_BYTES)
        built = _measure_build(server, log, max(1, _BUILD_BYTES // LOG_BYTES // divisor))
        rerun = _measure_rerun(server, max(1, _SEGMENTS // _SEGMENTS_OF_PARTITION // divisor))
    return built and rerun


def _measure_build(server: S3Server, log: Path, segments: int) -> bool:
    bucket = server.new_bucket()
    dump = f"s3://{bucket}/dump"
    paths = [f"{dump}/topic-{number}/{log.name}" for number in range(segments)]
    store_of(dump).put(paths[0], log.read_bytes())
    link_partitions(_folder(server) / bucket / "dump", segments)

    def stream(path: str) -> int:
        return sum(map(len, store_of(path).open(path).stream()))

    def stream_all() -> None:
        with ThreadPoolExecutor(_THREADS) as pool:
            assert sum(pool.map(stream, paths)) == segments * LOG_BYTES

    outputs = iter(f"s3://{bucket}/built-{number}" for number in range(_ROUNDS + 1))

    def build() -> None:
        _build(dump, next(outputs), "built")

    build()  # what is compiled or imported on first use
    streamed, built = _in_turn(stream_all, build)
    ratio = streamed / built
    size = segments * LOG_BYTES / 1e9
    print(
        f"verified build of {size:.1f} GB, {_THREADS} threads: {built:.2f} s, "
        f"{size / built:.2f} GB/s; streamed to nowhere: {streamed:.2f} s, "
        f"{size / streamed:.2f} GB/s; {ratio:.2f} of that throughput (goal {_BUILD_GOAL:g})",
        flush=True,
    )
    return ratio >= _BUILD_GOAL


def _measure_rerun(server: S3Server, partitions: int) -> bool:
    bucket = server.new_bucket()
    dump, output = f"s3://{bucket}/dump", f"s3://{bucket}/built"
    for name, data in logs_of_partition(_SEGMENTS_OF_PARTITION):
        store_of(dump).put(f"{dump}/topic-0/{name}", data)
    link_partitions(_folder(server) / bucket / "dump", partitions)
    _build(dump, output, "built")

    def listing() -> None:
        for uri in (dump, output):
            assert sum(page.num_rows for page in store_of(uri).list_tree(uri)) > partitions

    listed, rerun = _in_turn(listing, partial(_build, dump, output, "unchanged"))
    segments = partitions * _SEGMENTS_OF_PARTITION
    print(
        f"rerun over {segments:,} unchanged remote segments: {rerun:.2f} s, "
        f"{1000 * rerun / segments:.3f} ms each; listing input and output: {listed:.2f} s; "
        f"{rerun / listed:.1f} x (goal {_RERUN_GOAL:g})"
    )
    return rerun / listed <= _RERUN_GOAL


def _folder(server: S3Server) -> Path:
    assert server.folder is not None, "hard links need versitygw: install Go 1.25"
    return server.folder


def _build(dump: str, output: str, status: str) -> None:
    done = build_here("--input", dump, "--output", output, "--threads", _THREADS)
    if done.returncode or status not in done.stdout:
        raise RuntimeError(f"not all segments are {status}: {done.stdout}{done.stderr}")


def _in_turn(*works: Callable[[], object]) -> list[float]:
    """Return the median seconds of each."""
    rounds = [[seconds(work) for work in works] for _ in range(_ROUNDS)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


if __name__ == "__main__":
    # A try on less: python -m benchmarks.remote_builds SCRATCH DIVISOR
    sys.exit(not run(Path(sys.argv[1]), divisor=int(sys.argv[2])))
