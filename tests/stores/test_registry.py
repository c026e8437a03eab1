"""The store that a path belongs to, and its needs."""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing.queues import SimpleQueue

import pytest

from kafka_index.errors import EngineError, InputError
from kafka_index.stores import StorageOptions, configure_stores, store_of
from kafka_index.stores.local_store import LocalStore
from tests.servers.s3 import S3Server
from tests.stores.stores import s3_environment


def test_a_plain_path_is_local() -> None:
    assert isinstance(store_of("/a/b"), LocalStore)
    assert isinstance(store_of("a://b".replace("://", ":/")), LocalStore)


@pytest.mark.parametrize(
    ("uri", "library", "module", "extra"),
    [
        ("s3://b/a", "obstore", "object_store", "s3"),
        ("s3a://b/a", "obstore", "object_store", "s3"),
        ("gs://b/a", "obstore", "object_store", "gcs"),
        ("abfss://c@a.dfs.core.windows.net/a", "obstore", "object_store", "azure"),
        ("hdfs://h:1/a", "hdfs_native", "hdfs_store", "hdfs"),
    ],
)
def test_a_missing_library_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, uri: str, library: str, module: str, extra: str
) -> None:
    for name in [name for name in sys.modules if name.startswith("kafka_index.stores.object_")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, f"kafka_index.stores.{module}", raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=rf"pip install 'kafka-index\[{extra}\]'"):
        store_of(uri)


def test_an_unknown_scheme_lists_those_that_are_supported() -> None:
    with pytest.raises(InputError, match=r"ftp:// are not supported.*s3://.*hdfs://"):
        store_of("ftp://host/a")


def test_a_store_is_opened_once_until_the_options_change(s3: S3Server) -> None:
    bucket = s3.new_bucket()
    with s3_environment(s3):
        first = store_of(f"s3://{bucket}/a")
        assert store_of(f"s3://{bucket}/b") is first
        try:
            configure_stores(StorageOptions((("region", "us-east-1"),)))
            assert store_of(f"s3://{bucket}/a") is not first
        finally:
            configure_stores(StorageOptions())


def test_a_forked_process_is_refused_instead_of_hanging(s3: S3Server) -> None:
    bucket = s3.new_bucket()
    with s3_environment(s3):
        store_of(f"s3://{bucket}/a")
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()
        child = context.Process(target=_try, args=(f"s3://{bucket}/a", answers))
        child.start()
        assert answers.get() == "EngineError"
        child.join()


def _try(path: str, answers: SimpleQueue[str]) -> None:
    try:
        store_of(path)
    except EngineError as error:
        answers.put(type(error).__name__)
    except BaseException as error:
        answers.put(repr(error))
        raise


@pytest.mark.parametrize(
    ("uri", "container", "account"),
    [
        ("abfss://c@a.dfs.core.windows.net", "c", "a"),
        ("wasbs://c@a.blob.core.windows.net", "c", "a"),
    ],
)
def test_azures_containers(uri: str, container: str, account: str) -> None:
    store = store_of(f"{uri}/key")
    assert store._store.config["container_name"] == container  # type: ignore[attr-defined]
    assert store._store.config["account_name"] == account  # type: ignore[attr-defined]
