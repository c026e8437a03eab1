"""Errors of stores, and their objects: no secrets, versions, and markers of directories."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from kafka_index.core.errors import (
    ConfigError,
    InputError,
    KafkaIndexError,
    ReadError,
    is_retriable,
)
from kafka_index.core.fs.object_store import ObjectStore, _quote_e_tag, _quote_e_tags
from kafka_index.core.fs.store import StorageOptions
from tests.core.fs.stores import HASTY, object_store, s3_environment
from tests.servers.faults import Faults, fault_proxy
from tests.servers.s3 import S3Server


def failure(act: Callable[[], object]) -> KafkaIndexError:
    """The error of an action, after it crossed from an executor."""
    with pytest.raises(KafkaIndexError) as caught:
        act()
    traceback_text = "".join(traceback.format_exception(caught.value))
    # What the library says holds the answer of the store, with signatures.
    assert "Debug source" not in traceback_text
    assert "Signature" not in traceback_text.replace("SignatureDoesNotMatch", "")
    crossed = pickle.loads(pickle.dumps(caught.value))  # noqa: S301, ours
    assert (type(crossed), str(crossed)) == (type(caught.value), str(caught.value))
    return caught.value


def test_wrong_secret_is_denied_and_not_shown(s3: S3Server) -> None:
    if s3.kind != "versitygw":
        pytest.skip("moto accepts every secret")
    bucket = s3.new_bucket()
    wrong = "wrong-but-secret"
    with object_store(replace(s3, secret_key=wrong), bucket) as store:
        error = failure(lambda: store.read(f"s3://{bucket}/a"))

    assert isinstance(error, ReadError)
    assert "denies access (403 SignatureDoesNotMatch)" in str(error)
    assert f"s3://{bucket}/a" in str(error)
    assert wrong not in str(error)


def test_missing_bucket_is_wrong_usage(s3: S3Server) -> None:
    with object_store(s3, "no-such-bucket") as store:
        error = failure(lambda: list(store.list_tree("s3://no-such-bucket/a")))
        write_error = failure(lambda: store.put("s3://no-such-bucket/a", b"1"))

    assert isinstance(error, InputError)
    assert not is_retriable(error)
    assert "NoSuchBucket" in str(error)
    assert isinstance(write_error, InputError)
    assert not is_retriable(write_error)
    assert "NoSuchBucket" in str(write_error)


def test_unreachable_endpoint_is_retriable(s3: S3Server) -> None:
    with object_store(s3.behind("http://127.0.0.1:1"), "bucket", HASTY) as store:
        error = failure(lambda: store.info("s3://bucket/a"))

    assert is_retriable(error)
    assert "127.0.0.1:1 cannot be reached: connection refused" in str(error)
    assert "AWS_ENDPOINT_URL" in str(error)


def test_unknown_host_is_reported(s3: S3Server) -> None:
    with object_store(s3.behind("http://store.invalid"), "bucket", HASTY) as store:
        error = failure(lambda: store.list_directory("s3://bucket/a"))

    assert is_retriable(error)
    assert "store.invalid" in str(error)


def test_store_that_stays_unavailable_is_retriable(s3: S3Server) -> None:
    bucket = s3.new_bucket()
    with (
        fault_proxy(s3.endpoint, Faults(unavailable=1.0, in_a_row=1000)) as proxy,
        object_store(s3.behind(proxy.endpoint), bucket, HASTY) as store,
    ):
        error = failure(lambda: store.put(f"s3://{bucket}/a", b"1"))

    assert is_retriable(error)
    assert "503 SlowDown" in str(error)
    assert len(proxy.requests) == 3


def test_response_timeout_is_retriable(s3: S3Server) -> None:
    bucket = s3.new_bucket()
    options = StorageOptions((*HASTY.items, ("timeout", "1s")))
    with (
        fault_proxy(s3.endpoint, Faults(delayed=1.0, delay_seconds=3600, in_a_row=1000)) as proxy,
        object_store(s3.behind(proxy.endpoint), bucket, options) as store,
    ):
        error = failure(lambda: store.info(f"s3://{bucket}/a"))

    assert is_retriable(error)
    assert "did not respond in time" in str(error)


def test_object_replaced_during_a_read_is_an_error(s3: S3Server) -> None:
    bucket = s3.new_bucket()
    path = f"s3://{bucket}/00000000000000000000.log"
    with object_store(s3, bucket) as store:
        store.put(path, bytes(100))
        source = store.open(path)
        assert bytes(source.read_at(0, 10)) == bytes(10)
        store.put(path, b"1" * 100)
        error = failure(lambda: source.read_at(40, 10))

    assert isinstance(error, ReadError)
    assert is_retriable(error)
    assert "the object changed while it was read: replaced" in str(error)
    assert str(error).startswith(f"{path}: at byte 40: ")


@pytest.mark.parametrize("remaining_data", [b"", b"1" * 5, None])
def test_object_truncated_or_removed_during_a_read_is_an_error(
    s3: S3Server, remaining_data: bytes | None
) -> None:
    bucket = s3.new_bucket()
    path = f"s3://{bucket}/a"
    with object_store(s3, bucket) as store:
        store.put(path, bytes(100))
        source = store.open(path)
        if remaining_data is None:
            store.delete([path])
        else:
            store.put(path, remaining_data)
        error = failure(lambda: source.read_at(40, 10))
        assert source.changed() is not None

    assert "the object changed while it was read" in str(error)
    assert error.position_bytes == 40


def test_interrupted_response_is_resumed_in_the_same_version(s3: S3Server) -> None:
    bucket = s3.new_bucket()
    path = f"s3://{bucket}/a"
    with (
        fault_proxy(s3.endpoint, Faults(cut=1.0, in_a_row=1)) as proxy,
        object_store(s3.behind(proxy.endpoint), bucket) as store,
    ):
        data = bytes(range(256)) * 4096
        store.put(path, data)
        source = store.open(path)
        assert bytes(source.read_at(0, len(data))) == data
        assert [request.fault for request in proxy.gets("/a")] == ["cut", None]


def test_stalled_response_is_resumed_on_another_connection(s3: S3Server) -> None:
    bucket = s3.new_bucket()
    options = StorageOptions((("read_timeout", "1s"),))
    with (
        fault_proxy(s3.endpoint, Faults(stalled=1.0, delay_seconds=3600, in_a_row=1)) as proxy,
        object_store(s3.behind(proxy.endpoint), bucket, options) as store,
    ):
        data = bytes(range(256)) * 4096
        s3.put(bucket, "a", data)
        source = store.open(f"s3://{bucket}/a")
        assert bytes(source.read_at(0, len(data))) == data
        assert "stalled" in {request.fault for request in proxy.gets("/a")}


def test_unknown_option_is_reported(s3: S3Server) -> None:
    with s3_environment(s3):
        error = failure(lambda: ObjectStore("s3://bucket", StorageOptions((("regoin", "x"),))))

    assert isinstance(error, ConfigError)
    assert "unknown storage option aws_regoin" in str(error)


@pytest.mark.parametrize("key", ["timeout", "allow_http", "virtual_hosted_style_request"])
def test_option_with_a_value_that_is_not_valid_is_reported(s3: S3Server, key: str) -> None:
    options = StorageOptions((("region", "us-east-1"), (key, "maybe")))
    with s3_environment(s3):
        error = failure(lambda: ObjectStore("s3://bucket", options))

    assert isinstance(error, ConfigError)
    assert f"{key} is not valid" in str(error)


@pytest.mark.parametrize("endpoint", ["not a url", "ftp://host", "host:9000", "https://"])
def test_endpoint_that_is_not_a_url_is_rejected(s3: S3Server, endpoint: str) -> None:
    with s3_environment(s3.behind(endpoint)):
        error = failure(lambda: ObjectStore("s3://bucket", StorageOptions()))

    assert isinstance(error, ConfigError)
    assert "the endpoint is not a URL" in str(error)


def test_options_of_other_stores_are_ignored(s3: S3Server) -> None:
    bucket = s3.new_bucket()
    other_options = StorageOptions(
        (("azure_endpoint", "x"), ("dfs.client.use.datanode.hostname", "true"))
    )
    with object_store(s3, bucket, other_options) as store:
        assert store.list_directory(f"s3://{bucket}") == []


@pytest.mark.parametrize(
    ("e_tag", "version"),
    [("0x8D2A", '"0x8D2A"'), ('"0x8D2A"', '"0x8D2A"'), ('W/"a"', 'W/"a"'), ("", "")],
    ids=["as Azure lists it", "as HTTP has it", "weak", "none"],
)
def test_object_version_keeps_the_quotes_of_the_etag(e_tag: str, version: str) -> None:
    assert _quote_e_tag(e_tag) == version
    assert _quote_e_tags(pa.array([e_tag, '"b"'])).to_pylist() == [version, '"b"']


def test_directory_placeholder_objects_are_not_files(s3: S3Server) -> None:
    bucket = s3.new_bucket()
    for directory in ("dump", "dump/orders-0", "dump/empty-0"):
        s3.filesystem().create_dir(f"{bucket}/{directory}")
    root = f"s3://{bucket}/dump"
    with object_store(s3, bucket) as store:
        store.put(f"{root}/orders-0/a.log", b"1")

        entries = [(entry.path, entry.is_directory) for entry in store.list_directory(root)]
        assert entries == [(f"{root}/empty-0", True), (f"{root}/orders-0", True)]
        inner = store.list_directory(f"{root}/orders-0")
        assert [entry.path for entry in inner] == [f"{root}/orders-0/a.log"]
        assert store.list_directory(f"{root}/empty-0") == []

        names = [name for page in store.list_tree(root) for name in page["path"].to_pylist()]
        assert "" not in names
        assert "orders-0/a.log" in names
