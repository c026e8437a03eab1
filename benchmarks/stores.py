"""Libraries of stores against each other, on a real S3 server and a real HDFS of this machine.

What we use, through our own stores (obstore, hdfs-native), and pyarrow.fs, each with as many
requests under way. pyarrow reads HDFS through libhdfs, which needs a Hadoop installation.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, HadoopFileSystem

from kafka_index.core.fs.hdfs_store import HdfsStore
from kafka_index.core.fs.object_store import ObjectStore
from kafka_index.core.fs.remote_file import MAX_REQUESTS
from kafka_index.core.fs.store import StorageOptions, Store
from tests.servers.hdfs import running_hdfs
from tests.servers.s3 import S3Server, running_s3

_STREAM_BYTES = 1 << 30
_RANGES, _RANGE_BYTES = 10_000, 4096
_LISTED = 100_000
_PUTS, _PUT_BYTES = 10_000, 4096
# A file of HDFS takes 0.4 s where its block is not reported when it is closed.
_HDFS_PUTS = 1_000
_ROUNDS = 3
_TRIES = 5
_NAMES = ("stream 1 GiB", f"{_RANGES:,} ranges of 4 KiB", "list", "put small files")
# A library is chosen once; here the one in use must not fall behind.
_GOAL = 0.8

Work = Callable[[], object]


def run(scratch: Path) -> bool:
    """Measure S3 and HDFS; return whether ours keeps up with the alternative."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder, running_s3(Path(folder)) as server:
        os.environ |= server.environment()
        print(f"S3 ({server.kind}), seconds, medians of {_ROUNDS}: ours, pyarrow.fs, ratio")
        print(f"  {_LISTED:,} objects are listed, {_PUTS:,} of {_PUT_BYTES:,} bytes are put")
        kept_up = _measure_s3(server)
    with tempfile.TemporaryDirectory(dir=scratch) as folder, running_hdfs(Path(folder)) as hdfs:
        print("HDFS (MiniDFSCluster), seconds")
        print(f"  {_LISTED // 10:,} files are listed, {_HDFS_PUTS:,} are put")
        _measure_hdfs(hdfs.uri)
    return kept_up


def _measure_s3(server: S3Server) -> bool:
    bucket = server.new_bucket()
    root = f"s3://{bucket}"
    store = ObjectStore(root, StorageOptions())
    arrow = server.filesystem()
    _put_large(store, f"{root}/log")
    _make_listed(server, bucket)
    ours, theirs = _works(store, root, _PUTS), _arrow_works(arrow, bucket, _PUTS)
    ratios = []
    for name in ours:
        seconds = _alternate(ours[name], theirs[name])
        ratios.append(seconds[1] / seconds[0])
        print(f"  {name:24} {seconds[0]:8.2f} {seconds[1]:8.2f} {ratios[-1]:6.2f}")
    _print_gap(store, f"{root}/log")
    return min(ratios) >= _GOAL


def _measure_hdfs(uri: str) -> None:
    root = f"{uri}/benchmark"
    store = HdfsStore(uri, StorageOptions())
    _put_large(store, f"{root}/log")
    with ThreadPoolExecutor(MAX_REQUESTS) as pool:
        names = [f"{root}/listed/topic-{n % 100}/{n:020d}.log" for n in range(_LISTED // 10)]
        list(pool.map(lambda name: store.put(name, b""), names))
    works = _works(store, root, _HDFS_PUTS)
    arrow = _hadoop(uri)
    theirs = _arrow_works(arrow, "/benchmark", _HDFS_PUTS) if arrow is not None else {}
    if not theirs:
        print("  pyarrow.fs: not run, it has no libhdfs here")
    for name, work in works.items():
        seconds = _alternate(work, theirs.get(name, lambda: None))
        print(f"  {name:24} {seconds[0]:8.2f} " + (f"{seconds[1]:8.2f}" if theirs else ""))
    _print_gap(store, f"{root}/log")


def _works(store: Store, root: str, puts: int) -> dict[str, Work]:
    """Return what is measured, through our stores."""
    size = _STREAM_BYTES

    def stream() -> None:
        assert sum(map(len, store.open(f"{root}/log").stream())) == size

    def ranges() -> None:
        # Each by itself: neighbours would be joined.
        source = store.open(f"{root}/log")
        with ThreadPoolExecutor(MAX_REQUESTS) as pool:
            list(pool.map(lambda at: source.read_at(at, _RANGE_BYTES), _positions()))

    def listing() -> None:
        assert sum(page.num_rows for page in store.list_tree(f"{root}/listed")) > 0

    def put() -> None:
        data = bytes(_PUT_BYTES)
        with ThreadPoolExecutor(MAX_REQUESTS) as pool:
            list(pool.map(lambda n: store.put(f"{root}/put/{n:020d}.index", data), range(puts)))

    return dict(zip(_NAMES, (stream, ranges, listing, put), strict=True))


def _arrow_works(arrow: FileSystem, root: str, puts: int) -> dict[str, Work]:
    """Return the same, through pyarrow.fs."""

    def stream() -> None:
        with arrow.open_input_file(f"{root}/log") as file, ThreadPoolExecutor(3) as pool:
            pieces = range(0, _STREAM_BYTES, 8 << 20)
            assert sum(pool.map(lambda at: len(file.read_at(8 << 20, at)), pieces)) == _STREAM_BYTES

    def ranges() -> None:
        with arrow.open_input_file(f"{root}/log") as file, ThreadPoolExecutor(MAX_REQUESTS) as pool:
            list(pool.map(lambda at: file.read_at(_RANGE_BYTES, at), _positions()))

    def listing() -> None:
        found = arrow.get_file_info(FileSelector(f"{root}/listed", recursive=True))
        table = pa.table({"path": [info.path for info in found], "size": [i.size for i in found]})
        assert table.num_rows > 0

    def put() -> None:
        data, refused = bytes(_PUT_BYTES), list[OSError]()

        def one(number: int) -> None:
            # versitygw refuses one of some thousand of pyarrow's requests, whose bodies are signed
            # in chunks, with 400.
            for _ in range(_TRIES):
                try:
                    with arrow.open_output_stream(f"{root}/put/{number:020d}.index") as file:
                        file.write(data)
                except OSError as error:
                    refused.append(error)
                else:
                    return

        with ThreadPoolExecutor(MAX_REQUESTS) as pool:
            list(pool.map(one, range(puts)))
        if refused:
            print(f"  ({len(refused)} of pyarrow's puts were refused and made again)")

    return dict(zip(_NAMES, (stream, ranges, listing, put), strict=True))


def _print_gap(store: Store, path: str) -> None:
    """Print how many bytes cost as much as a request: closer ranges are worth joining."""
    source = store.open(path)

    def requests() -> None:
        with ThreadPoolExecutor(MAX_REQUESTS) as pool:
            list(pool.map(lambda at: source.read_at(at, _RANGE_BYTES), _positions()))

    def bytes_alone() -> None:
        with ThreadPoolExecutor(MAX_REQUESTS) as pool:
            pieces = range(0, _STREAM_BYTES, 8 << 20)
            list(pool.map(lambda at: len(source.read_at(at, 8 << 20)), pieces))

    seconds = _alternate(requests, bytes_alone)
    request, rate = seconds[0] / _RANGES, _STREAM_BYTES / seconds[1]
    print(
        f"  a request: {request * 1e6:.0f} us; bytes: {rate / 1e9:.2f} GB/s; "
        f"a request costs as much as {request * rate / 1024:.0f} KiB"
    )


def _alternate(ours: Work, theirs: Work) -> tuple[float, float]:
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(_ROUNDS):
        for work, taken in zip((ours, theirs), seconds, strict=True):
            began = time.perf_counter()
            work()
            taken.append(time.perf_counter() - began)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def _positions() -> list[int]:
    generated = np.random.default_rng(1).integers(0, _STREAM_BYTES - _RANGE_BYTES, _RANGES)
    return [int(position) for position in generated]


def _put_large(store: Store, path: str) -> None:
    store.put(path, np.random.default_rng(0).bytes(_STREAM_BYTES))


def _make_listed(server: S3Server, bucket: str) -> None:
    assert server.folder is not None, "the listing is measured on versitygw"
    for topic in range(100):
        folder = server.folder / bucket / "listed" / f"topic-{topic}"
        folder.mkdir(parents=True)
        for number in range(_LISTED // 100):
            (folder / f"{number:020d}.log").write_bytes(b"")


def _hadoop(uri: str) -> FileSystem | None:
    host, _, port = uri.removeprefix("hdfs://").partition(":")
    try:
        return HadoopFileSystem(host, int(port))
    except OSError:
        return None
