"""The ``metadata`` command, on what a real broker wrote."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kafka_index
from kafka_index.commands.metadata.request import TableName
from kafka_index.core.cluster.metadata.tables import LAG_TABLES, METADATA_TABLES
from kafka_index.core.format.message_schemas import Value
from kafka_index.core.format.messages import GROUP_RECORDS, TRANSACTION_RECORDS
from kafka_index.core.format.times import format_time
from tests.servers.s3 import S3Server
from tests.support.command_line import DUMP, copy_partitions, run_here
from tests.support.metadata import (
    cluster_record,
    coordinator_record,
    log_batch,
    uuid_of,
    write_log,
    write_snapshot,
)
from tests.support.record_tables import write_partition
from tests.support.remote import new_bucket, upload
from tests.support.segments import batch

metadata = partial(run_here, "metadata")


def rows(what: str, *paths: Path) -> list[dict[str, Any]]:
    result = metadata(*(paths or (DUMP,)), "--what", what, "--json")
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_topics_have_their_ids_partitions_and_configurations() -> None:
    topics = {row["topic"]: row for row in rows("topics")}

    (line,) = [
        line
        for line in (DUMP / "customer-profiles-0" / "partition.metadata").read_text().splitlines()
        if line.startswith("topic_id")
    ]
    assert topics["customer-profiles"]["topic_id"] == line.removeprefix("topic_id: ")
    assert dict(topics["customer-profiles"]["configs"])["cleanup.policy"] == "compact"
    assert topics["orders.eu-west"]["partitions"] == 3


def test_every_partition_of_the_directory_is_in_the_metadata() -> None:
    result = {f"{row['topic']}-{row['partition']}" for row in rows("partitions")}

    directories = {path.name for path in DUMP.iterdir() if path.is_dir()}
    assert result == directories - {"__cluster_metadata-0"}


def test_committed_offsets_have_topic_ids_and_epochs() -> None:
    assert [
        (row["group"], row["topic"], row["partition"], row["leader_epoch"])
        for row in rows("offsets")
    ] == [("reporting", "orders.eu-west", partition, 0) for partition in range(3)]


def test_metadata_lists_an_open_transaction() -> None:
    (found,) = [row for row in rows("transactions") if row["state"] == "Ongoing"]

    assert found["partitions"] == [{"topic": "payments", "partition": 1}]


@pytest.mark.parametrize(
    "what", [name for name in (*METADATA_TABLES, *LAG_TABLES) if name != "remote-segments"]
)
def test_table_is_readable_as_text_with_the_times_of_the_values(what: str) -> None:
    result = metadata(DUMP, "--what", what)

    header, *lines = result.stdout.splitlines()
    values = rows(what)
    names = list(values[0])
    assert header.split() == [re.sub("_timestamp_ms$", "_time", name) for name in names]
    assert result.stderr == f"{what}: {len(values)} row{'s' if len(values) > 1 else ''}\n"
    times = [name for name in names if name.endswith("_timestamp_ms")]
    for row, line in zip(values, lines, strict=True):
        shown = [None if row[name] is None else format_time(row[name]) for name in times]
        assert [one or "-" for one in shown if (one or "-") not in line.split()] == []
        assert [row[name] for name in times if str(row[name]) in line.split()] == []


def test_metadata_record_without_a_timestamp_has_a_null_timestamp(tmp_path: Path) -> None:
    key: dict[str, Value] = {"transactionalId": "t"}
    value: dict[str, Value] = {
        "producerId": 1,
        "producerEpoch": 0,
        "transactionTimeoutMs": 1000,
        "transactionStatus": 0,
        "transactionPartitions": None,
        "transactionLastUpdateTimestampMs": -1,
        "transactionStartTimestampMs": -1,
    }
    record = coordinator_record(TRANSACTION_RECORDS, "TransactionLog", key, value, 0)
    write_log(tmp_path / "__transaction_state-0", log_batch(0, record))

    assert rows("transactions", tmp_path)[0]["last_update_timestamp_ms"] == -1
    header, line = metadata(tmp_path, "--what", "transactions").stdout.splitlines()
    assert line.split()[header.split().index("last_update_time")] == "-"


def test_table_is_written_as_parquet_arrow_and_json(tmp_path: Path) -> None:
    for ending in ("parquet", "arrow", "json"):
        result = metadata(DUMP, "--what", "topics", "--output", tmp_path / f"topics.{ending}")
        assert result.returncode == 0, result.stderr

    table = pq.read_table(tmp_path / "topics.parquet")
    with pa.ipc.open_file(tmp_path / "topics.arrow") as file:
        assert file.read_all().to_pylist() == table.to_pylist()
    lines = (tmp_path / "topics.json").read_text().splitlines()
    assert [json.loads(line)["topic"] for line in lines] == table["topic"].to_pylist()


def test_summary_counts_records_by_type() -> None:
    summary = json.loads(metadata(DUMP, "--json").stdout)

    assert summary["topics"] == 16
    assert summary["records"]["__consumer_offsets"] == {"GroupMetadata": 3, "OffsetCommit": 63}
    assert summary["unknown_records"]["__cluster_metadata"] == {}


def test_metadata_summary_is_printed_as_text() -> None:
    result = run_here("metadata", DUMP)

    assert result.returncode == 0, result.stderr
    assert "cluster: 16 topics, 24 partitions, 1 broker, next producer id 1000" in result.stdout


def test_damaged_metadata_log_is_exit_code_1_and_other_rows_are_printed(tmp_path: Path) -> None:
    copy = tmp_path / "__consumer_offsets-0"
    shutil.copytree(DUMP / copy.name, copy)
    (log,) = copy.glob("*.log")
    log.write_bytes(log.read_bytes()[:-7])

    result = metadata(tmp_path, "--what", "offsets", "--json")

    assert result.returncode == 1
    assert str(log) in result.stderr
    assert result.stdout.count("\n") == 3


def test_directory_without_the_topics_is_wrong_usage(tmp_path: Path) -> None:
    shutil.copytree(DUMP / "app-logs-0", tmp_path / "app-logs-0")

    result = metadata(tmp_path)

    assert result.returncode == 2
    assert "the input has no log of __cluster_metadata" in result.stderr


def test_table_option_accepts_exactly_the_readable_tables() -> None:
    assert list(TableName) == [*METADATA_TABLES, *LAG_TABLES]


def test_table_that_the_input_lacks_is_wrong_usage() -> None:
    assert metadata(DUMP, "--what", "remote-segments").returncode == 2


def test_output_requires_a_table(tmp_path: Path) -> None:
    assert metadata(DUMP, "--output", tmp_path / "x.json").returncode == 2


def test_metadata_does_not_change_the_input(tmp_path: Path) -> None:
    copy = tmp_path / "data"
    shutil.copytree(DUMP, copy)
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}

    assert metadata(copy).returncode == 0

    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == before


def dumped_records(log: Path, *options: str) -> list[dict[str, Any]]:
    result = run_here("dump", "--records", "--json", *options, log)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_dump_decodes_records_of_internal_topics() -> None:
    (log,) = (DUMP / "__consumer_offsets-0").glob("*.log")

    decoded = [row["decoded"] for row in dumped_records(log)]

    assert decoded[-1]["error"] is None
    assert {one["key"]["data"]["group"] for one in decoded} == {"reporting"}


def test_records_of_other_topics_are_not_decoded() -> None:
    log = min((DUMP / "app-logs-0").glob("*.log"))

    assert all("decoded" not in row for row in dumped_records(log, "--values", "none"))


def test_dumped_records_do_not_show_credentials(tmp_path: Path) -> None:
    scram = cluster_record(
        "UserScramCredentialRecord", name="alice", mechanism=1, salt=b"s", storedKey=b"stored-key"
    )
    secret = cluster_record(
        "ConfigRecord", resourceType=4, resourceName="", name="ssl.key.password", value="hunter2"
    )
    later = (None, b"\x01\xc8\x01\x00stored-key")
    log = write_log(tmp_path / "__cluster_metadata-0", log_batch(0, scram, secret, later))

    for options in ((), ("--json",), ("--values", "text"), ("--values", "hex", "--json")):
        result = run_here("dump", "--records", *options, log)
        assert result.returncode == 0, result.stderr
        shown = result.stdout
        for hidden in ("stored-key", "hunter2"):
            assert hidden not in shown
            assert hidden.encode().hex() not in shown


def test_requested_keys_and_values_are_shown_as_bytes() -> None:
    (log,) = (DUMP / "__transaction_state-0").glob("*.log")

    result = run_here("dump", "--records", "--values", "hex", log)

    assert "0x0001" in result.stdout
    assert "transactionTimeoutMs" not in result.stdout


def test_tables_of_an_object_store_equal_those_of_a_local_dump(s3: S3Server) -> None:
    states = ("__cluster_metadata-0", "__consumer_offsets-0", "__transaction_state-0")
    with new_bucket(s3) as bucket:
        # The last one has a timestamp in the future.
        for name in (*states, "imported-history-0"):
            upload(DUMP / name, f"{bucket}/{name}")
        summary = json.loads(metadata(bucket, "--json").stdout)
        topics = metadata(bucket, "--what", "topics", "--json").stdout

    local = json.loads(metadata(DUMP, "--json").stdout)
    for found in (summary, local):
        del found["sources"]
    assert summary == local
    assert topics == metadata(DUMP, "--what", "topics", "--json").stdout


def test_snapshot_in_an_object_store_is_read(s3: S3Server, tmp_path: Path) -> None:
    topic = cluster_record("TopicRecord", name="orders", topicId=uuid_of(7))
    write_snapshot(tmp_path / "__cluster_metadata-0", 4, topic)
    with new_bucket(s3) as bucket:
        upload(tmp_path, bucket)
        result = metadata(bucket, "--what", "topics", "--json")

    assert json.loads(result.stdout)["topic"] == "orders"


def test_group_lag_equals_the_log_end_minus_the_committed_offset() -> None:
    result = rows("lag")

    assert [(row["partition"], row["committed_offset"]) for row in result] == [
        (row["partition"], row["offset"]) for row in rows("offsets")
    ]
    asked = partial(run_here, "lookup", "--logs", DUMP, "--topic", "orders.eu-west")
    for row, bounds in zip(result, asked("--json").stdout.splitlines(), strict=True):
        (partition,) = asked(
            "--partition",
            row["partition"],
            "--offset",
            row["committed_offset"],
            "--resolve",
            "record",
            "--json",
        ).stdout.splitlines()
        log, record = json.loads(bounds), json.loads(partition)
        assert row["log_end_offset"] == log["end_offset"]
        assert row["lag_records"] == log["end_offset"] - row["committed_offset"] > 0
        assert row["record_timestamp_ms"] == record["found_timestamp_ms"]
        assert row["max_timestamp_ms"] == log["max_timestamp_ms"]
        assert row["lag_ms"] == log["max_timestamp_ms"] - record["found_timestamp_ms"] > 0
        assert row["reason"] is None


def test_lag_history_ends_at_the_last_commits() -> None:
    course = rows("lag-history")

    assert len(course) > 10
    last = {row["partition"]: row["committed_offset"] for row in course}
    assert last == {row["partition"]: row["committed_offset"] for row in rows("lag")}
    for row in course:
        assert row["lag_records"] == row["log_end_offset"] - row["committed_offset"]
        assert row["lag_ms"] == row["commit_timestamp_ms"] - row["record_timestamp_ms"]


def test_lag_history_follows_the_log_end(tmp_path: Path) -> None:
    times = [1000, 2000, 3000, 4000]
    folder = write_partition(tmp_path, {0: batch(0, 4, timestamps=times)})
    topic, _, number = folder.name.rpartition("-")
    key: dict[str, Value] = {"group": "g", "topic": topic, "partition": int(number)}
    commits = [
        coordinator_record(
            GROUP_RECORDS,
            "OffsetCommit",
            key,
            {"offset": offset, "leaderEpoch": 0, "metadata": "", "commitTimestamp": time_ms},
            3,
        )
        for offset, time_ms in ((1, 2500), (2, 2500), (3, 9000), (4, 9500))
    ]
    write_log(tmp_path / "__consumer_offsets-0", log_batch(0, *commits))

    course = rows("lag-history", tmp_path)
    assert [
        (row["committed_offset"], row["log_end_offset"], row["lag_records"], row["lag_ms"])
        for row in course
    ] == [(1, 2, 1, 500), (2, 2, 0, 0), (3, 4, 1, 5000), (4, 4, 0, 0)]
    (now,) = rows("lag", tmp_path)
    assert (now["lag_records"], now["lag_ms"], now["commit_timestamp_ms"]) == (0, 0, 9500)


def test_lag_times_are_printed_as_dates_on_a_terminal() -> None:
    header, line, *_ = metadata(DUMP, "--what", "lag").stdout.splitlines()

    assert header.split()[-4:-1] == ["commit_time", "record_time", "max_time"]
    assert line.split()[-4].startswith("2026-11-21T07:25:17.")


@pytest.mark.parametrize("damage", ["absent", "damaged"])
def test_unknown_lag_is_null_and_exit_code_1(damage: str, tmp_path: Path) -> None:
    data = copy_partitions(tmp_path / "data", "__consumer_offsets-0", "orders.eu-west-0")
    if damage == "damaged":
        (log,) = (data / "orders.eu-west-0").glob("*1415.log")
        content = bytearray(log.read_bytes())
        content[61:101] = b"\xff" * 40  # the first record
        log.write_bytes(content)
    result = metadata(data, "--what", "lag", "--json")

    assert result.returncode == 1
    first, *others = map(json.loads, result.stdout.splitlines())
    unknown = others if damage == "absent" else [first]
    for row in unknown:
        assert row["lag_ms"] is None
        assert row["reason"]
        assert f"the lag of {row['topic']}-{row['partition']} is unknown" in result.stderr
    assert first["lag_records"] == 48
    library = kafka_index.read_metadata(data, what="lag")
    assert library.outcome.exit_code == 1
    assert library.to_arrow().to_pylist() == [first, *others]


def test_future_timestamps_that_delay_retention_are_reported(tmp_path: Path) -> None:
    log = batch(0, 2, timestamps=[1_700_000_000_000, 1_700_000_000_000_000])
    write_partition(tmp_path, {0: log}, "orders-0", indexed=True)
    copy_partitions(tmp_path, "__consumer_offsets-0")

    document = json.loads(metadata(tmp_path, "--json").stdout)
    assert document["future_timestamps"] == {"orders": {"segments": 1, "size_bytes": len(log)}}
    text = "timestamps in the future delay retention by time in 1 segment of orders"
    assert text in metadata(tmp_path).stdout
