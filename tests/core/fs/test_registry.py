"""The store that a path belongs to, its needs and its options."""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import pytest

from kafka_index.core.errors import ConfigError, EngineError, InputError
from kafka_index.core.fs.local_store import LocalStore
from kafka_index.core.fs.object_store import ObjectConfig
from kafka_index.core.fs.registry import configure_stores, store_of
from kafka_index.core.fs.store import StorageOptions, parse_storage_options
from tests.core.fs.stores import s3_environment
from tests.servers.s3 import S3Server


def test_storage_options_have_lower_case_keys() -> None:
    options = parse_storage_options(["Endpoint=http://127.0.0.1:9000", "region=eu-west-1"])

    assert options == StorageOptions(
        (("endpoint", "http://127.0.0.1:9000"), ("region", "eu-west-1"))
    )


def test_secret_option_is_a_reference_until_it_is_resolved(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("hidden\n")

    options = parse_storage_options([f"secret_access_key=@{file}"])

    assert "hidden" not in repr(options)
    assert options.resolve() == {"secret_access_key": "hidden"}


@pytest.mark.parametrize("key", ["secret_access_key", "aws_session_token", "account_key"])
def test_secret_by_value_is_rejected_and_not_shown(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_storage_options([f"{key}=hidden"])

    assert "hidden" not in str(caught.value)
    assert f"{key}=@FILE" in str(caught.value)


@pytest.mark.parametrize("number", ["1_0", "\u0663", "-1", "", "9" * 5000])
@pytest.mark.parametrize("key", ["max_retries", "retry_timeout"])
def test_number_option_requires_decimal_digits(key: str, number: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} is not a number"):
        ObjectConfig.load("s3://bucket", parse_storage_options([f"{key}={number}"]))


def test_repeated_option_is_rejected() -> None:
    with pytest.raises(ConfigError, match="given twice"):
        parse_storage_options(["region=a", "REGION=b"])


def test_reference_to_a_missing_file_names_the_file(tmp_path: Path) -> None:
    options = parse_storage_options([f"token=@{tmp_path / 'none'}"])

    with pytest.raises(InputError, match="none"):
        options.resolve()


def test_plain_path_is_local() -> None:
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
def test_missing_library_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, uri: str, library: str, module: str, extra: str
) -> None:
    for name in [name for name in sys.modules if name.startswith("kafka_index.core.fs.object_")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, f"kafka_index.core.fs.{module}", raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=rf"pip install 'kafka-index\[{extra}\]'"):
        store_of(uri)


def test_unknown_scheme_lists_those_that_are_supported() -> None:
    with pytest.raises(InputError, match=r"ftp:// is not supported.*s3://.*hdfs://"):
        store_of("ftp://host/a")


def test_store_is_opened_once_until_the_options_change(s3: S3Server) -> None:
    bucket = s3.new_bucket()
    with s3_environment(s3):
        first = store_of(f"s3://{bucket}/a")
        assert store_of(f"s3://{bucket}/b") is first
        try:
            configure_stores(StorageOptions((("region", "us-east-1"),)))
            assert store_of(f"s3://{bucket}/a") is not first
        finally:
            configure_stores(StorageOptions())


def test_forked_process_is_rejected_instead_of_hanging(s3: S3Server) -> None:
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
def test_azure_urls_name_container_and_account(uri: str, container: str, account: str) -> None:
    store = store_of(f"{uri}/key")
    assert store._store.config["container_name"] == container  # type: ignore[attr-defined]
    assert store._store.config["account_name"] == account  # type: ignore[attr-defined]
