"""``rewrite`` and ``import`` of what is not on a local disk: object stores and tiered storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kafka_index
from kafka_index.core.format.checkpoints import parse_offset_checkpoint
from kafka_index.core.fs.uris import TieredOptions
from tests.servers.s3 import S3Server
from tests.support.command_line import copy_partitions, run_here
from tests.support.record_tables import rows_of
from tests.support.remote import new_bucket, upload
from tests.support.tiered import ENCRYPTED, setting

#: Topics with remote segments, one with a log start in the middle, and the states of segments.
TOPICS = "cut_front|wallet_tx|blobs|__remote_log_metadata"
COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        # It names the input.
        if path.is_file() and path.name != ".rewrite.kafka-index"
    }


def run(*arguments: object) -> None:
    result = run_here(*map(str, arguments))
    assert result.returncode == 0, result.stdout + result.stderr


def test_rewrite_of_a_dump_in_a_bucket_equals_a_local_rewrite(s3: S3Server, tmp_path: Path) -> None:
    data = copy_partitions(tmp_path / "data", "payments-0", "orders.eu-west-0")
    condition = ["--drop-where", "offset BETWEEN 10 AND 30", "--allow-revive"]
    run("rewrite", "--input", data, "--output", tmp_path / "local", *condition)
    with new_bucket(s3) as bucket:
        remote = upload(data, f"{bucket}/data")
        run("rewrite", "--input", remote, "--output", tmp_path / "remote", *condition)
    result = files(tmp_path / "remote")
    assert any(name.endswith(".log") for name in result)
    assert result == files(tmp_path / "local")


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_tables_in_a_bucket_are_imported_like_local_tables(
    s3: S3Server, tmp_path: Path, form: str
) -> None:
    data = copy_partitions(tmp_path / "data", "payments-0")
    tables = tmp_path / "tables"
    run("export", "--input", data, "--output", tables, "--format", form)
    with new_bucket(s3) as bucket:
        remote = upload(tables, f"{bucket}/tables")
        run("import", "--input", remote, "--output", tmp_path / "logs")
    found, expected = (
        kafka_index.read_records(place, columns=COLUMNS).read_all()
        for place in (tmp_path / "logs", data)
    )
    assert rows_of(found, *COLUMNS) == rows_of(expected, *COLUMNS)


@pytest.fixture(scope="module")
def union(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The union of local and encrypted remote segments, without some offsets."""
    at = setting(ENCRYPTED)
    output = tmp_path_factory.mktemp("tiered") / "out"
    where = ["--input", at.data, "--tiered", at.remote]
    where += [part for key, file in at.keys for part in ("--tiered-key", f"{key}={file}")]
    condition = ["--drop-where", "offset BETWEEN 20 AND 60", "--allow-revive"]
    run("rewrite", *where, "--topics", TOPICS, "--output", output, *condition)
    return output


def records(*arguments: Any, **options: Any) -> list[tuple[Any, ...]]:
    table = kafka_index.read_records(*arguments, columns=COLUMNS, **options).read_all()
    internal = [topic.startswith("__") for topic in table["topic"].to_pylist()]
    rows = rows_of(table, *COLUMNS)
    return [row for row, is_internal in zip(rows, internal, strict=True) if not is_internal]


def test_remote_segments_are_rewritten_into_local_segments(union: Path) -> None:
    at = setting(ENCRYPTED)
    before = records(at.data, topics=TOPICS, tiered=TieredOptions((at.remote,), keys=at.keys))
    assert len(before) > len(records(at.data, topics=TOPICS))
    assert records(union) == [row for row in before if not 20 <= row[2] <= 60]


def test_rewrite_does_not_copy_remote_log_metadata(union: Path) -> None:
    names = {path.name for path in union.iterdir()}
    assert not any(name.startswith("__remote_log_metadata") for name in names)


def test_rewritten_tiered_log_keeps_its_log_start_offset(union: Path) -> None:
    at = setting(ENCRYPTED)
    names = "log-start-offset-checkpoint"
    before, after = (
        parse_offset_checkpoint(Path(root, names).read_text(), path=names)
        for root in (at.data, union)
    )
    kept = {partition for partition in before if (union / partition.directory_name).exists()}
    assert kept
    assert {each: after.get(each) for each in kept} == {each: before[each] for each in kept}


def test_rewritten_partition_with_only_remote_segments_has_topic_id_and_leader_epochs(
    tmp_path: Path,
) -> None:
    at = setting("local")
    run(
        *("rewrite", "--tiered", at.remote, "--output", tmp_path / "out", "--topics", TOPICS),
        *("--drop-where", "offset = 0", "--force", "--allow-revive"),
    )
    partitions = [path for path in (tmp_path / "out").iterdir() if path.is_dir()]
    assert partitions
    for partition in partitions:
        assert "topic_id: " in (partition / "partition.metadata").read_text()
        assert (partition / "leader-epoch-checkpoint").exists()
    tiered = TieredOptions((at.remote,))
    before = kafka_index.read_records([], topics=TOPICS, tiered=tiered, columns=COLUMNS).read_all()
    actual = kafka_index.read_records(tmp_path / "out", columns=COLUMNS).read_all()
    expected = [row for row in rows_of(before, *COLUMNS) if row[2] != 0]
    assert rows_of(actual, *COLUMNS) == expected
