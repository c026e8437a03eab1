"""URIs with a password are told from URIs without, and hidden in texts."""

from __future__ import annotations

import pytest

from kafka_index.layout.uri_passwords import has_password, hide_passwords

CANARY = "canary"
WITH_PASSWORD = [
    f"s3://user:{CANARY}@bucket/key",
    f"S3A://user:{CANARY}@bucket",
    f"s3://user:12/{CANARY}@bucket",
    f"s3://user:ab/{CANARY}@bucket",
    f"s3://user:a@{CANARY}@bucket",
    f"s3://user%3A{CANARY}@bucket",
    f"s3:/user:{CANARY}@bucket",
    f" s3://user:{CANARY}@bucket",
    f"gs://:{CANARY}@bucket",
    f"abfs://user:{CANARY}@account.dfs.core.windows.net/key",
    f"abfss://container@account.dfs.core.windows.net/key?sv=1&sig={CANARY}",
    f"hdfs://user:{CANARY}@namenode:8020/key",
    f"file://user:{CANARY}@host/key",
    f"https://user:{CANARY}@host/key",
    f"https://bucket.host/key?X-Amz-Signature={CANARY}",
    f"id=s3://user:{CANARY}@bucket/key",
]


@pytest.mark.parametrize("uri", WITH_PASSWORD)
def test_a_password_is_found_and_hidden(uri: str) -> None:
    assert has_password(uri)
    hidden = hide_passwords(f"cannot read '{uri}': it is not there")
    assert CANARY not in hidden
    assert hidden.startswith("cannot read '")
    assert hidden.endswith("': it is not there")


@pytest.mark.parametrize(
    "path",
    [
        "s3://bucket/a:b@c",
        "hdfs://namenode:8020/a@b:c",
        "hdfs://namenode:8020",
        "hdfs:///a",
        "hdfs://user@namenode:8020/a",
        "abfss://container@account.dfs.core.windows.net/a",
        "/a/b:c@d",
        "file:///a:b@c",
        "file:/a",
        "a:b@c",
        "id=/a/b",
    ],
)
def test_other_paths_hold_none(path: str) -> None:
    assert not has_password(path)
    assert hide_passwords(path) == path
