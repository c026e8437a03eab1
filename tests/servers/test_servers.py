"""The servers of the tests do what the tests rely on."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.servers.faults import Faults, fault_proxy
from tests.servers.hdfs import HdfsServer
from tests.servers.s3 import S3Server


def test_versitygw_stores_objects_as_files(s3: S3Server) -> None:
    bucket = s3.new_bucket()
    s3.put(bucket, "a/b", b"bytes")
    if s3.folder is not None:
        assert (s3.folder / bucket / "a" / "b").read_bytes() == b"bytes"
    assert s3.filesystem().get_file_info(f"{bucket}/a/b").size == 5


def test_versitygw_rejects_a_wrong_secret(s3: S3Server) -> None:
    if s3.kind != "versitygw":
        pytest.skip("moto accepts every secret")
    bucket = s3.new_bucket()
    s3.put(bucket, "a", b"bytes")
    stranger = replace(s3, secret_key=s3.access_key).filesystem()
    with pytest.raises(OSError, match=r"ACCESS_DENIED|SIGNATURE|403"):
        stranger.open_input_file(f"{bucket}/a").size()


@pytest.mark.parametrize(
    ("fault", "faults"),
    [
        ("unavailable", Faults(unavailable=1.0, in_a_row=1)),
        ("dropped", Faults(dropped=1.0, in_a_row=1)),
        ("unanswered", Faults(unanswered=1.0, in_a_row=1)),
        ("cut", Faults(cut=1.0, in_a_row=1)),
    ],
)
def test_retrying_client_succeeds_despite_injected_faults(
    s3: S3Server, fault: str, faults: Faults
) -> None:
    bucket = s3.new_bucket()
    data = os.urandom(1 << 20)
    s3.put(bucket, "a", data)
    with fault_proxy(s3.endpoint, faults) as proxy:
        filesystem = s3.behind(proxy.endpoint).filesystem()
        with filesystem.open_input_stream(f"{bucket}/a") as stream:
            assert stream.read() == data
    assert {request.fault for request in proxy.requests} == {fault, None}


def test_proxy_counts_requests_and_bytes(s3: S3Server) -> None:
    bucket = s3.new_bucket()
    s3.put(bucket, "a", bytes(1000))
    with fault_proxy(s3.endpoint) as proxy:
        with s3.behind(proxy.endpoint).filesystem().open_input_file(f"{bucket}/a") as file:
            assert file.read_at(10, 100) == bytes(10)
        assert [request.range for request in proxy.gets("/a")] == ["bytes=100-109"]
        assert proxy.sent_bytes("/a") == 10


def test_hdfs_returns_the_written_bytes(hdfs: HdfsServer) -> None:
    hdfs_native = pytest.importorskip("hdfs_native")
    client = hdfs_native.Client(hdfs.uri)
    with client.create("/a") as file:
        file.write(b"bytes")
    assert client.read("/a").read() == b"bytes"
