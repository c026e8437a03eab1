"""The sources of credentials: environment, profiles, files named by options."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from kafka_index.core.errors import ConfigError, ReadError
from kafka_index.core.fs.object_store import ObjectStore, find_profile
from kafka_index.core.fs.store import StorageOptions, parse_storage_options
from tests.core.fs.stores import HASTY, s3_environment
from tests.servers.s3 import S3Server

NO_KEYS = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}


@pytest.fixture
def bucket(s3: S3Server) -> str:
    """A bucket with an object that only its owner can read."""
    if s3.kind != "versitygw":
        pytest.skip("moto accepts every secret")
    name = s3.new_bucket()
    s3.put(name, "a", b"bytes")
    return name


@pytest.fixture(autouse=True)
def no_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the profiles of whoever runs the tests out of them."""
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    for variable in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(variable, raising=False)


def reads(bucket: str, *options: str) -> bool:
    store = ObjectStore(f"s3://{bucket}", parse_storage_options([*options, "max_retries=1"]))
    return store.read(f"s3://{bucket}/a") == b"bytes"


def test_credentials_are_read_from_the_environment(s3: S3Server, bucket: str) -> None:
    with s3_environment(s3, AWS_ALLOW_HTTP=None):
        assert reads(bucket)


def test_options_override_the_environment(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(s3.secret_key + "\n")
    wrong = {"AWS_SECRET_ACCESS_KEY": "x", "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    with s3_environment(s3, **wrong):
        assert reads(bucket, f"endpoint={s3.endpoint}", f"secret_access_key=@{tmp_path / 'secret'}")


def test_credentials_are_read_from_a_profile(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(
        f"[other]\naws_access_key_id = {s3.access_key}\naws_secret_access_key = y\n"
        f"[mine]\naws_access_key_id = {s3.access_key}\naws_secret_access_key = {s3.secret_key}\n"
    )
    with s3_environment(s3, **NO_KEYS, AWS_PROFILE="mine"):
        assert reads(bucket)
    with s3_environment(s3, **NO_KEYS):
        assert reads(bucket, "profile=mine")
    with s3_environment(s3, **NO_KEYS), pytest.raises(ReadError, match="denies access"):
        reads(bucket, "profile=other")


def test_default_profile_sets_region_and_endpoint(
    s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text(
        f"[default]\nregion = us-east-1\nendpoint_url = {s3.endpoint}\n"
        f"aws_access_key_id = {s3.access_key}\naws_secret_access_key = {s3.secret_key}\n"
    )
    with s3_environment(s3, **NO_KEYS, AWS_ENDPOINT_URL=None, AWS_REGION=None, AWS_ALLOW_HTTP=None):
        assert reads(bucket)


def test_environment_keys_override_a_profile(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = x\naws_secret_access_key = y\n"
    )
    with s3_environment(s3):
        assert reads(bucket)


def test_profile_sets_the_endpoint_for_environment_keys(
    s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text(
        f"[profile mine]\nregion = us-east-1\nendpoint_url = {s3.endpoint}\nrole_arn = arn:x\n"
    )
    elsewhere = {"AWS_ENDPOINT_URL": None, "AWS_REGION": None, "AWS_ALLOW_HTTP": None}
    with s3_environment(s3, **elsewhere, AWS_PROFILE="mine"):
        assert reads(bucket)


def test_profile_with_credential_process_is_supported(
    s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    answer = {
        "Version": 1,
        "AccessKeyId": s3.access_key,
        "SecretAccessKey": s3.secret_key,
        "Expiration": "2999-01-01T00:00:00Z",
    }
    (tmp_path / "print.py").write_text(f"print({json.dumps(answer)!r})")
    (tmp_path / "config").write_text(
        f"[profile mine]\ncredential_process = {sys.executable} {tmp_path / 'print.py'}\n"
    )
    with s3_environment(s3, **NO_KEYS, AWS_PROFILE="mine"):
        assert reads(bucket)


def test_failing_credential_process_is_reported_with_its_profile(
    s3: S3Server, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text(
        f"[profile mine]\ncredential_process = {sys.executable} -c 'print(\"hidden\")'\n"
    )
    with (
        s3_environment(s3, **NO_KEYS, AWS_PROFILE="mine"),
        pytest.raises(ReadError, match="the AWS profile mine provides no credentials") as caught,
    ):
        reads("bucket")
    assert "hidden" not in str(caught.value)


def test_profile_with_assumed_role_uses_its_sts_endpoint(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(
        "[profile mine]\nrole_arn = arn:aws:iam::123456789012:role/x\nsource_profile = keys\n"
        "[profile keys]\naws_access_key_id = x\naws_secret_access_key = hidden\n"
    )
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with (
        s3_environment(s3, **NO_KEYS),
        pytest.raises(
            ReadError, match="the AWS profile mine provides no credentials: EndpointConn"
        ),
    ):
        reads("bucket", "profile=mine")


def test_rewritten_credentials_file_is_read_again(s3: S3Server, tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    path.write_text("[mine]\naws_access_key_id = a\naws_secret_access_key = b\n")
    with s3_environment(s3, **NO_KEYS):
        profile = find_profile("mine")
        provider = None if profile is None else profile.provider()
        path.write_text("[mine]\naws_access_key_id = c\naws_secret_access_key = d\n")
        assert provider is not None
        assert provider()["access_key_id"] == "c"


def test_profile_that_does_not_exist_is_reported(s3: S3Server) -> None:
    with (
        s3_environment(s3, **NO_KEYS, AWS_PROFILE="none"),
        pytest.raises(ConfigError, match="the AWS profile none does not exist"),
    ):
        reads("bucket")


def test_profile_needs_boto3(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)
    (tmp_path / "config").write_text("[profile mine]\nrole_arn = arn:x\nsource_profile = default\n")
    with (
        s3_environment(s3, **NO_KEYS),
        pytest.raises(ConfigError, match=r"pip install .kafka-index\[s3\]"),
    ):
        reads("bucket", "profile=mine")


def test_content_of_a_file_that_is_not_a_credentials_file_is_not_printed(
    s3: S3Server, tmp_path: Path
) -> None:
    (tmp_path / "credentials").write_text("aws_secret_access_key = hidden\n")
    with s3_environment(s3, **NO_KEYS), pytest.raises(ConfigError) as caught:
        reads("bucket")
    assert "credentials: the file is not a valid AWS configuration file" in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_access_key_without_secret_is_rejected(s3: S3Server) -> None:
    with (
        s3_environment(s3, AWS_ACCESS_KEY_ID=None),
        pytest.raises(ReadError, match="no credentials were found"),
    ):
        ObjectStore("s3://bucket", HASTY).info("s3://bucket/a")


def test_url_that_contains_a_secret_is_rejected() -> None:
    for value in ("http://user:hidden@proxy:3128", "https://host/?sv=1&sig=hidden"):
        with pytest.raises(ConfigError) as caught:
            parse_storage_options([f"proxy_url={value}"])
        assert "hidden" not in str(caught.value)
    assert parse_storage_options(["proxy_url=http://proxy:3128"]) == StorageOptions(
        (("proxy_url", "http://proxy:3128"),)
    )


def test_missing_credentials_are_reported_at_once(s3: S3Server) -> None:
    with (
        s3_environment(s3, **NO_KEYS, AWS_EC2_METADATA_DISABLED="true"),
        pytest.raises(ReadError, match="s3://bucket: no credentials were found"),
    ):
        ObjectStore("s3://bucket", StorageOptions())


def test_public_bucket_needs_no_credentials(s3: S3Server) -> None:
    with s3_environment(s3, **NO_KEYS, AWS_EC2_METADATA_DISABLED="true"):
        ObjectStore("s3://bucket", parse_storage_options(["skip_signature=true"]))
