"""A store between which and us a fifth of all requests fails: no wrong byte, and no hang."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from threading import BoundedSemaphore, Lock

import pytest

from kafka_index.core.fs import remote_file
from kafka_index.core.fs.object_store import ObjectStore
from tests.core.fs.stores import object_store
from tests.servers.faults import MANY, Faults, fault_proxy
from tests.servers.s3 import S3Server


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make many requests of few bytes."""
    monkeypatch.setattr(remote_file, "BLOCK_BYTES", 64 << 10)


@pytest.mark.parametrize("seed", range(5))
def test_reads_and_writes_are_correct_despite_network_faults(s3: S3Server, seed: int) -> None:
    bucket = s3.new_bucket()
    root = f"s3://{bucket}"
    with (
        fault_proxy(s3.endpoint, MANY, seed) as proxy,
        object_store(s3.behind(proxy.endpoint), bucket) as store,
    ):
        written_files = {f"a/{n:020d}.log": os.urandom(n * 100_003) for n in range(10)}
        for name, data in written_files.items():
            assert store.put(f"{root}/{name}", data, if_absent=True)
        for name, data in written_files.items():
            source = store.open(f"{root}/{name}")
            assert b"".join(map(bytes, source.stream())) == data
            starts = list(range(0, len(data), 200_000))
            ends = [min(start + 1000, len(data)) for start in starts]
            result = source.read_ranges(starts, ends)
            assert [bytes(block) for block in result] == [
                data[start:end] for start, end in zip(starts, ends, strict=True)
            ]
        assert _names(store, f"{root}/a") == sorted(name[2:] for name in written_files)
        store.delete([f"{root}/{name}" for name in written_files])
        assert _names(store, root) == []
    # It is the faults that were tried.
    assert {request.fault for request in proxy.requests} >= {"unavailable", "dropped", "cut"}


def _names(store: ObjectStore, path: str) -> list[str]:
    return [name for page in store.list_tree(path) for name in page["path"].to_pylist()]


def test_interrupted_listing_is_continued(s3: S3Server) -> None:
    """Pages of a thousand, each of which is cut once."""
    bucket = s3.new_bucket()
    names = [f"{n:06d}" for n in range(2500)]
    if s3.folder is not None:
        for name in names:
            (s3.folder / bucket / name).touch()
    else:
        for name in names:
            s3.put(bucket, name, b"")
    with (
        fault_proxy(s3.endpoint, Faults(cut=1.0, in_a_row=1)) as proxy,
        object_store(s3.behind(proxy.endpoint), bucket) as store,
    ):
        assert _names(store, f"s3://{bucket}") == names
        assert "cut" in {request.fault for request in proxy.requests}


def test_put_without_a_response_is_retried(s3: S3Server) -> None:
    """The first request wrote the object, and the second one found it there."""
    bucket = s3.new_bucket()
    with (
        fault_proxy(s3.endpoint, Faults(unanswered=1.0, in_a_row=1)) as proxy,
        object_store(s3.behind(proxy.endpoint), bucket) as store,
    ):
        assert store.put(f"s3://{bucket}/a", b"mine", if_absent=True)
        assert [r.fault for r in proxy.requests if r.method == "PUT"] == ["unanswered", None]
        assert not store.put(f"s3://{bucket}/a", b"other", if_absent=True)


def test_throttled_request_is_retried(s3: S3Server) -> None:
    bucket = s3.new_bucket()
    with (
        fault_proxy(s3.endpoint, Faults(unavailable=1.0, status=429, in_a_row=2)) as proxy,
        object_store(s3.behind(proxy.endpoint), bucket) as store,
    ):
        store.put(f"s3://{bucket}/a", b"1")
        assert store.read(f"s3://{bucket}/a") == b"1"
        assert [request.status for request in proxy.requests] == [429, 429, 200] * 2


def test_object_is_written_completely_or_not_at_all(s3: S3Server) -> None:
    """However large, it is one request: a put that failed leaves no part of an upload."""
    bucket = s3.new_bucket()
    with (
        fault_proxy(s3.endpoint) as proxy,
        object_store(s3.behind(proxy.endpoint), bucket) as store,
    ):
        store.put(f"s3://{bucket}/a", bytes(40 << 20))
        assert [(r.method, r.query) for r in proxy.requests] == [("PUT", "")]


def test_stream_requests_each_byte_once_within_its_window(s3: S3Server) -> None:
    bucket = s3.new_bucket()
    pieces = 40
    with (
        fault_proxy(s3.endpoint) as proxy,
        object_store(s3.behind(proxy.endpoint), bucket) as store,
    ):
        store.put(f"s3://{bucket}/a", bytes(pieces * remote_file.BLOCK_BYTES))
        source = store.open(f"s3://{bucket}/a")
        stream = source.stream()
        next(stream)
        assert len(proxy.gets("/a")) <= remote_file.STREAM_BLOCKS
        assert sum(map(len, stream)) == (pieces - 1) * remote_file.BLOCK_BYTES
        assert len(proxy.gets("/a")) == pieces
        assert proxy.sent_bytes("/a") == source.size_bytes


def test_adjacent_ranges_share_a_request(s3: S3Server) -> None:
    bucket = s3.new_bucket()
    gap = remote_file.MAX_GAP_BYTES
    with (
        fault_proxy(s3.endpoint) as proxy,
        object_store(s3.behind(proxy.endpoint), bucket) as store,
    ):
        store.put(f"s3://{bucket}/a", bytes(4 * gap))
        source = store.open(f"s3://{bucket}/a")
        source.read_ranges([0, 110, 120 + gap, 3 * gap], [100, 120, 130 + gap, 3 * gap + 10])
        ranges = sorted(str(request.range) for request in proxy.gets("/a"))
        # The first three, in pieces; and the last one.
        assert ranges[0] == f"bytes=0-{remote_file.BLOCK_BYTES - 1}"
        assert ranges[-1] == f"bytes={3 * gap}-{3 * gap + 9}"
        assert proxy.sent_bytes("/a") == 130 + gap + 10


def test_file_that_was_listed_is_opened_without_a_request(s3: S3Server) -> None:
    bucket = s3.new_bucket()
    with (
        fault_proxy(s3.endpoint) as proxy,
        object_store(s3.behind(proxy.endpoint), bucket) as store,
    ):
        store.put(f"s3://{bucket}/a", b"0123456789")
        listed_info = store.info(f"s3://{bucket}/a")
        proxy.clear()
        source = store.open(f"s3://{bucket}/a", listed_info)
        assert bytes(source.read_at(2, 3)) == b"234"
        assert [(r.method, r.range) for r in proxy.requests] == [("GET", "bytes=2-4")]


def test_concurrent_reads_are_bounded_per_process(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_file, "request_slots", BoundedSemaphore(2))
    bucket = s3.new_bucket()
    under_way, max_under_way, lock = 0, 0, Lock()

    def before(_method: str, _path: str) -> None:
        nonlocal under_way, max_under_way
        with lock:
            under_way += 1
            max_under_way = max(max_under_way, under_way)
        time.sleep(0.02)
        with lock:
            under_way -= 1

    with (
        fault_proxy(s3.endpoint) as proxy,
        object_store(s3.behind(proxy.endpoint), bucket) as store,
        ThreadPoolExecutor(8) as pool,
    ):
        store.put(f"s3://{bucket}/a", bytes(40 * remote_file.BLOCK_BYTES))
        source = store.open(f"s3://{bucket}/a")
        proxy.before = before
        reads = pool.map(lambda at: len(source.read_at(at, 10)), range(24))
        assert sum(map(len, source.stream())) == source.size_bytes
        assert sum(reads) == 240

    assert max_under_way <= 2
