"""Names of partition directories and segment files, and URIs with a password."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.core.format.integers import INT32_MAX, INT64_MAX
from kafka_index.core.format.names import (
    DirectoryKind,
    SegmentFileName,
    TopicPartition,
    index_name_for,
    is_legal_topic,
    parse_partition_directory,
    parse_segment_file,
    segment_file_name,
    split_directory_name,
)
from kafka_index.core.format.uri_passwords import has_password, hide_passwords

TOPICS = st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True).filter(is_legal_topic)
UUID = "0f3c1f6a9c9b4b0c8d7e6f5a4b3c2d1e"


@given(TOPICS, st.integers(0, INT32_MAX))
def test_partition_is_parsed_from_its_directory_name(topic: str, number: int) -> None:
    partition = TopicPartition(topic, number)
    assert parse_partition_directory(partition.directory_name) == partition


@pytest.mark.parametrize(
    ("name", "topic", "partition"),
    [
        ("orders-0", "orders", 0),
        ("a-b-c-12", "a-b-c", 12),
        ("eu.orders.v1-3", "eu.orders.v1", 3),
        ("x--1", "x-", 1),
        ("2024-01-02", "2024-01", 2),
        ("things-delete-4", "things-delete", 4),
        ("__cluster_metadata-0", "__cluster_metadata", 0),
    ],
)
def test_partition_number_follows_the_last_dash_of_a_directory_name(
    name: str, topic: str, partition: int
) -> None:
    assert parse_partition_directory(name) == TopicPartition(topic, partition)


@pytest.mark.parametrize(
    "name",
    ["orders", "orders-", "-0", "orders-x", "orders-2147483648", "orders-+1", "orders-\u0661",
     "my orders-0", "..-0", "t" * 250 + "-0", "lost+found", "remote-log-index-cache",
     "orders-0\n"],
)  # fmt: skip
def test_impossible_directory_name_is_not_a_partition(name: str) -> None:
    assert parse_partition_directory(name) is None
    assert split_directory_name(name) is None


@pytest.mark.parametrize("mark", ["delete", "future", "stray"])
def test_renamed_directory_is_not_live_but_its_partition_is_parsed(mark: str) -> None:
    name = f"eu.or-ders-7.{UUID}-{mark}"
    assert parse_partition_directory(name) is None
    assert split_directory_name(name) == (TopicPartition("eu.or-ders", 7), DirectoryKind(mark))


@pytest.mark.parametrize("name", ["orders-delete", "orders-7-delete", f"orders.{UUID}-delete"])
def test_directory_with_a_suffix_but_without_partition_and_id_is_unknown(name: str) -> None:
    assert split_directory_name(name) is None


@given(
    st.integers(0, INT64_MAX),
    st.sampled_from([".log", ".index", ".timeindex", ".txnindex", ".snapshot"]),
    st.sampled_from(["", ".swap", ".cleaned", ".deleted"]),
)
def test_segment_file_is_parsed_from_its_name(base_offset: int, kind: str, transient: str) -> None:
    name = segment_file_name(base_offset, kind + transient)
    assert parse_segment_file(name) == SegmentFileName(base_offset, kind, transient)


def test_segment_name_has_twenty_digits() -> None:
    assert segment_file_name(368769, ".index") == "00000000000000368769.index"


@pytest.mark.parametrize(
    "name",
    ["5.log", "00000000000000000005.logs", "00000000000000000005", "99999999999999999999.log",
     "0000000000000000005\u0661.log", "00000000000000000005-0000000001.checkpoint",
     "leader-epoch-checkpoint", ".00000000000000000005.index.1.2.tmp",
     "00000000000000000005.log.swap.swap"],
)  # fmt: skip
def test_other_names_are_not_segment_files(name: str) -> None:
    assert parse_segment_file(name) is None


@pytest.mark.parametrize("base_offset", [-1, INT64_MAX + 1])
def test_offset_out_of_range_has_no_segment_file_name(base_offset: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        segment_file_name(base_offset, ".log")


def test_index_path_of_a_swap_log_has_the_swap_suffix() -> None:
    assert index_name_for("00000000000000000005.log", ".index") == "00000000000000000005.index"
    assert (
        index_name_for("00000000000000000005.log.swap", ".timeindex")
        == "00000000000000000005.timeindex.swap"
    )


def test_index_file_names_are_derived_only_from_log_names() -> None:
    with pytest.raises(ValueError, match="not the name of a log"):
        index_name_for("00000000000000000005.index", ".timeindex")


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
def test_password_is_found_and_hidden(uri: str) -> None:
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
def test_path_without_a_password_is_unchanged(path: str) -> None:
    assert not has_password(path)
    assert hide_passwords(path) == path
