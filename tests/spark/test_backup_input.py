"""Spark reads a run of a backup as it reads the directory it is of."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import kafka_index
from tests.commands.backup.repositories import make_backup
from tests.support.command_line import DUMP, run_here
from tests.support.remote import storage_options
from tests.support.restoring import copy_dump

ONLY = {"payments-0", "payments-1", "app-logs-0"}


@pytest.fixture(params=["local", "s3"])
def backup(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, list[str]]:
    """A repository with a run of some partitions of the example, and the options of its store."""
    root, options = str(tmp_path / "repo"), []
    if request.param == "s3":
        root = f"{request.getfixturevalue('configured_bucket')}/backups"
        options = storage_options(request.getfixturevalue("s3"), tmp_path)
    dump = copy_dump(tmp_path / "dump", *ONLY)
    make_backup(root, dump, time_ms=1_763_000_000_000)
    return f"backup:{root}", options


def test_data_source_reads_a_backup(spark: SparkSession, backup: tuple[str, list[str]]) -> None:
    given, options = backup
    reader = spark.read.format("kafka-log")
    for option in options:
        name, _, value = option.partition("=")
        reader = reader.option(f"storage.{name}", value)
    rows = reader.load(given).select("topic", "partition", "offset", "value")
    actual = {(row.topic, row.partition, row.offset): bytes(row.value) for row in rows.collect()}
    dumps = [DUMP / name for name in sorted(ONLY)]
    expected = kafka_index.read_records(dumps, columns=["topic", "partition", "offset", "value"])
    records = expected.read_all().to_pylist()
    assert actual == {
        (row["topic"], row["partition"], row["offset"]): row["value"] for row in records
    }


@pytest.mark.usefixtures("in_session")
def test_commands_on_spark_read_a_backup(backup: tuple[str, list[str]], tmp_path: Path) -> None:
    given, options = backup
    common = ["--engine", "spark", *(f"--storage-option={option}" for option in options)]
    verified = run_here("verify", "--input", given, *common)
    assert verified.returncode == 0, verified.stderr
    assert "nothing harmful was found in 3 partitions" in verified.stdout
    output = tmp_path / "restored"
    restored = run_here("restore", "--input", given, "--output", output, "--new-topic-ids", *common)
    assert restored.returncode == 0, restored.stderr
    found, expected = (
        kafka_index.read_records(each).read_all().num_rows
        for each in (output, [DUMP / name for name in sorted(ONLY)])
    )
    assert found == expected
