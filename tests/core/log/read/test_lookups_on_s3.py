"""Lookups in logs on an S3 server: the answers of local ones, and how little is fetched."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafka_index.core.fs import fetched_file
from kafka_index.core.fs.registry import store_of
from kafka_index.core.log.choices import Resolve
from kafka_index.core.log.read import segment_indexes, segment_log
from kafka_index.core.log.read.answers import INDEX_REFUSED, NO_INDEX
from kafka_index.core.log.read.partition_log import PartitionLog
from tests.core.log.read.test_ranged_logs import FURTHER, dumps, write
from tests.servers.faults import MANY, FaultProxy, fault_proxy
from tests.servers.s3 import S3Server
from tests.support.index_files import damaged_indexes
from tests.support.partitions import DIRECTORY, ask_offset, ask_offsets, ask_time, ask_times
from tests.support.remote import new_bucket, upload
from tests.support.segments import batch

#: Two records each, of 1 KiB: four batches an index entry.
BATCHES = 4000


@cache
def contents() -> tuple[bytes, bytes]:
    """The two segments of a log, not made where tests are only collected."""
    first, second = (
        b"".join(batch(at, 2, 500, [1000 + at] * 2) for at in range(begin, begin + 2 * BATCHES, 2))
        for begin in (0, 2 * BATCHES)
    )
    return first, second


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(s3.endpoint) as proxy:
        yield proxy


@pytest.fixture
def bucket(s3: S3Server, proxy: FaultProxy) -> Iterator[str]:
    with new_bucket(s3.behind(proxy.endpoint)) as uri:
        yield uri


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("local")
    return write(folder, [*contents()], 4096, indexes=True, step=2 * BATCHES)


@pytest.fixture
def remote(local: Path, bucket: str, proxy: FaultProxy) -> str:
    """The same partition in a bucket."""
    upload(local.parent, f"{bucket}/dump")
    proxy.clear()
    return f"{bucket}/dump/{DIRECTORY}"


@pytest.mark.parametrize("resolve", Resolve)
def test_answers_from_s3_equal_those_of_the_local_log(
    local: Path, remote: str, resolve: Resolve
) -> None:
    asked = [0, 1, 7, 900, 7999, 8000, 15998, 15999, 16000, 16001, *range(3, 16000, 613)]
    times = [-1, -2, -3, *(1000 + offset for offset in asked)]
    with PartitionLog.open(local) as here, PartitionLog.open(remote) as there:
        assert ask_offsets(there, asked, resolve) == ask_offsets(here, asked, resolve)
        assert ask_times(there, times, resolve) == ask_times(here, times, resolve)
        assert there.take_findings() == []


@pytest.mark.parametrize("resolve", [Resolve.BATCH, Resolve.RECORD])
def test_offset_lookup_requests_the_index_and_one_range(
    remote: str, proxy: FaultProxy, resolve: Resolve
) -> None:
    with PartitionLog.open(remote) as log:
        assert log.log_end_offset == 16000
        proxy.clear()
        row = ask_offset(log, 1234, resolve)
    assert (row.status, row.batch_base_offset) == ("found", 1234)
    assert len(proxy.gets(".index")) == 1
    assert len(proxy.gets(".log")) == 1
    assert len(proxy.requests) == 2
    assert proxy.sent_bytes(".log") <= 5 * 4096


def test_log_end_lookup_requests_the_tail_of_the_last_segment(
    remote: str, proxy: FaultProxy
) -> None:
    with PartitionLog.open(remote) as log:
        proxy.clear()
        assert log.log_end_offset == 16000
    assert [len(proxy.gets(ending)) for ending in (".index", ".log")] == [1, 1]
    assert proxy.sent_bytes(".log") <= 3 * 4096


def test_many_offset_lookups_share_requests(
    remote: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetched_file, "MAX_GAP_BYTES", 16 << 10)
    with PartitionLog.open(remote) as log:
        proxy.clear()
        for _ in range(2):
            rows = ask_offsets(log, list(range(0, 16000, 200)), Resolve.RECORD)
            assert {row.status for row in rows} == {"found"}
    assert len(proxy.gets(".index")) == 2
    # One for each offset, and the tail; the second time nothing.
    assert len(proxy.gets(".log")) <= 81
    assert proxy.sent_bytes(".log") < 81 * 5 * 4096


def test_replaced_log_is_reported_with_its_path(remote: str) -> None:
    path = f"{remote}/{0:020d}.log"
    with PartitionLog.open(remote) as log:
        store_of(path).put(path, contents()[0][::-1])
        assert ask_offset(log, 7).status == "unreadable"
        (finding,) = log.take_findings()
    assert (finding.path, finding.retriable) == (path, True)
    assert "changed" in finding.reason


@pytest.mark.parametrize("padded", [False, True])
def test_last_segment_with_an_incomplete_index_is_streamed_once(
    local: Path, bucket: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, *, padded: bool
) -> None:
    monkeypatch.setattr(segment_log, "MAX_TAIL_BYTES", 32 << 10)
    monkeypatch.setattr(segment_indexes, "MAX_TAIL_BYTES", 32 << 10)
    log_name = f"{0:020d}.log"
    remote = f"{bucket}/dump/{DIRECTORY}"
    content, _ = contents()
    log = content + bytes(3 * len(content)) if padded else content
    store_of(remote).put(f"{remote}/{log_name}", log)
    # As a killed broker leaves it that had not flushed it, or as it was copied before.
    index = (local / f"{0:020d}.index").read_bytes()[: None if padded else 8]
    store_of(remote).put(f"{remote}/{0:020d}.index", index)
    proxy.clear()
    with PartitionLog.open(remote) as there, PartitionLog.open(local) as here:
        for offset in (0, 1234, 7998, 7999):
            assert ask_offset(there, offset) == ask_offset(here, offset)
        assert there.log_end_offset == 8000
        kinds = {finding.kind for finding in there.take_findings()}
    assert (INDEX_REFUSED in kinds) == (not padded)
    # The log, its end, and the batches that were asked for.
    assert proxy.sent_bytes(log_name) < len(log) + 64 * 4096


def test_segment_without_indexes_is_read_completely_once(
    local: Path, bucket: str, proxy: FaultProxy
) -> None:
    log_name = f"{0:020d}.log"
    remote = f"{bucket}/dump/{DIRECTORY}"
    store_of(remote).put(f"{remote}/{log_name}", contents()[0])
    proxy.clear()
    with PartitionLog.open(remote) as there, PartitionLog.open(local) as here:
        for _ in range(2):
            for offset in (0, 1234, 7998):
                assert ask_offset(there, offset) == ask_offset(here, offset)
            there.close()
        findings = there.take_findings()
    assert {finding.kind for finding in findings} == {NO_INDEX}
    # The whole log, and the batches that were asked for.
    size = len(contents()[0])
    assert size <= proxy.sent_bytes(".log") < 1.1 * size


def test_failing_requests_change_no_answer(local: Path, remote: str, proxy: FaultProxy) -> None:
    asked = list(range(3, 16000, 313))
    proxy.faults = replace(MANY, delay_seconds=0.01)
    with PartitionLog.open(local) as here, PartitionLog.open(remote) as there:
        for resolve in FURTHER:
            assert ask_offsets(there, asked, resolve) == ask_offsets(here, asked, resolve)
        times = [1000 + offset for offset in asked]
        assert ask_times(there, times, Resolve.RECORD) == ask_times(here, times, Resolve.RECORD)
        assert there.take_findings() == []
    assert {request.fault for request in proxy.requests} > {None}


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(dump=dumps(), data=st.data())
def test_random_dump_on_s3_has_the_answers_of_its_local_copy(
    bucket: str, dump: tuple[list[bytes], int], data: st.DataObject
) -> None:
    contents, interval = dump
    with tempfile.TemporaryDirectory() as folder:
        directory = write(Path(folder), contents, interval, indexes=data.draw(st.booleans()))
        data.draw(damaged_indexes(directory))
        uri = upload(directory.parent, f"{bucket}/{uuid.uuid4().hex}")
        with (
            PartitionLog.open(directory) as here,
            PartitionLog.open(f"{uri}/{DIRECTORY}") as there,
        ):
            for resolve in FURTHER:
                for ask, asked in (
                    (ask_offsets, list(range(0, 130, 3))),
                    (ask_times, [-1, -2, -3, *range(900, 3100, 90)]),
                ):
                    result = [row.without_entry for row in ask(there, asked, resolve)]
                    assert result == [row.without_entry for row in ask(here, asked, resolve)]


def test_timestamp_lookup_requests_indexes_and_tails_up_to_its_segment(
    remote: str, proxy: FaultProxy
) -> None:
    with PartitionLog.open(remote) as log:
        proxy.clear()
        assert ask_time(log, 1000 + 1234).found_offset == 1234
    assert len(proxy.gets(".timeindex")) <= 2
    assert len(proxy.gets(".index")) == 2
    # The ends of both segments, and the batches around the answer.
    assert len(proxy.gets(".log")) <= 4
    assert proxy.sent_bytes(".log") <= 64 << 10
