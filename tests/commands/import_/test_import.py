"""``import``: tables to logs, which are read again, continued and replaced."""

from __future__ import annotations

import json
import os
import shutil
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kafka_index
from kafka_index.commands.import_ import import_job
from kafka_index.commands.import_.import_job import import_sorted
from kafka_index.commands.import_.import_manifest import IMPORT_MANIFEST, running_import
from kafka_index.commands.import_.partition_import import ImportTarget
from kafka_index.commands.import_.request import ImportMode, ImportSettings
from kafka_index.core.errors import InputError, PublishError
from kafka_index.core.fs import local_work
from kafka_index.core.log.append.partition_log_writer import PartitionLogWriter
from kafka_index.core.output.locks import DirectoryLock
from kafka_index.core.output.output import Output
from kafka_index.core.records.record_table import RECORD_SCHEMA
from tests.support.command_line import DUMP, run_here
from tests.support.growing import data_batch

NOW_MS = 1_700_000_000_000


def table(count: int = 100, **columns: Any) -> pa.Table:
    """Records of one partition; a column of None is left out."""
    all_columns = {
        "topic": ["orders"] * count,
        "partition": [0] * count,
        "offset": list(range(count)),
        "key": [b"key-%d" % (number % 7) for number in range(count)],
        "value": [b"value-%d" % number for number in range(count)],
        "timestamp": [NOW_MS + number for number in range(count)],
        **columns,
    }
    kinds = {"timestamp": pa.timestamp("ms", "UTC"), "key": pa.binary(), "value": pa.binary()}
    return pa.table(
        {
            name: pa.array(values, kinds.get(name)) if isinstance(values, list) else values
            for name, values in all_columns.items()
            if values is not None
        }
    )


@contextmanager
def import_target(root: Path, mode: ImportMode) -> Iterator[ImportTarget]:
    with Output.for_data_directory(str(root)) as output:
        output.make_staging()
        yield ImportTarget(output, mode)


def written(path: Path, *tables: pa.Table) -> Path:
    path.mkdir()
    for number, each in enumerate(tables):
        pq.write_table(each, path / f"{number}.parquet")
    return path


def imported(source: Path, output: Path, *arguments: str) -> str:
    result = run_here("import", "--input", source, "--output", output, *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def refused(source: Path, output: Path, *arguments: str, code: int = 2) -> str:
    result = run_here("import", "--input", source, "--output", output, *arguments)
    assert result.returncode == code, result.stdout + result.stderr
    return result.stderr


def records(output: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = kafka_index.read_records(output).read_all().to_pylist()
    return rows


def json_line(folder: Path, **columns: object) -> Path:
    """Write a record as JSON lines."""
    row = {"topic": "t", "partition": 0, "offset": 0, "key": "YQ==", "timestamp": 1}
    (folder / "rows.jsonl").write_text(json.dumps(row | columns))
    return folder / "rows.jsonl"


def batch_table(path: Path) -> list[dict[str, Any]]:
    return [row for chunk in kafka_index.read_batches(path) for row in chunk.to_pylist()]


def test_exported_dump_is_imported_with_the_same_records_and_offsets(
    tmp_path: Path,
) -> None:
    before = kafka_index.read_records(DUMP).read_all()
    shuffled = before.take(np.random.default_rng(7).permutation(len(before)))
    source = written(tmp_path / "tables", shuffled.slice(0, 1000), shuffled.slice(1000))

    stdout = imported(source, tmp_path / "logs", "--property", "segment.bytes=65536")

    assert kafka_index.read_records(tmp_path / "logs").read_all().equals(before)
    assert f"{len(before):,} records" in stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_import_rolls_segments_and_fills_batches_as_configured(tmp_path: Path, codec: str) -> None:
    source = written(tmp_path / "tables", table(2000))
    output = tmp_path / "logs"
    properties = ("segment.bytes=4000", "batch.size=1000", f"compression.type={codec}")

    imported(source, output, *(each for name in properties for each in ("--property", name)))

    assert [row["offset"] for row in records(output)] == list(range(2000))
    logs = sorted((output / "orders-0").glob("*.log"))
    assert len(logs) > 1
    assert all(path.stat().st_size <= 4000 for path in logs)
    batches = [each for path in logs for each in batch_table(path)]
    assert {batch["attributes"] & 7 for batch in batches} == {
        ["none", "gzip", "snappy", "lz4", "zstd"].index(codec)
    }
    assert max(batch["record_count"] for batch in batches) < 1000 / len(b"key-1value-100")


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("compresion.type", "compression.type"),
        ("batch.sice", "batch.size"),
        ("segment.byte", "segment.bytes"),
    ],
)
def test_unknown_import_setting_suggests_a_similar_name(
    tmp_path: Path, name: str, valid: str
) -> None:
    source = written(tmp_path / "tables", table(1))

    stderr = refused(source, tmp_path / "logs", "--property", f"{name}=1")

    assert f"did you mean {valid}?" in stderr
    assert "expected one of compression.type, batch.size, " in stderr


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--append", "--overwrite"), "--append and --overwrite are mutually exclusive"),
        (
            ("--property", "segment.bytes"),
            "--property is malformed (expected NAME=VALUE, found segment.bytes)",
        ),
        (("--property", "linger.ms=1", "--property", "linger.ms=2"), "linger.ms is given twice"),
        (("--topic-id", "orders=short"), "--topic-id of orders is not a valid topic ID"),
        (("--layout-property", "offsets=packed"), "--layout-property requires --layout"),
        (("--output", "s3://bucket/logs"), "--output is in an object store"),
    ],
)
def test_invalid_import_option_is_rejected_by_name(
    tmp_path: Path, options: tuple[str, ...], error: str
) -> None:
    output = () if "--output" in options else ("--output", tmp_path / "logs")

    result = run_here("import", "--input", tmp_path / "none.jsonl", *output, *options)

    assert (result.returncode, result.stdout) == (2, "")
    assert error in result.stderr
    assert not (tmp_path / "logs").exists()


def test_import_keeps_offset_gaps_and_the_first_offset(tmp_path: Path) -> None:
    offsets = [7, 8, 900, 2**31 + 900, 2**40]
    imported(written(tmp_path / "tables", table(5, offset=offsets)), tmp_path / "logs")

    assert [row["offset"] for row in records(tmp_path / "logs")] == offsets
    assert (tmp_path / "logs" / "orders-0" / f"{7:020d}.log").exists()


@pytest.mark.parametrize("records", [1, 3])
@pytest.mark.parametrize("gap", [1, 2**20, 2**31])
@pytest.mark.parametrize("last", [2**63 - 2, 2**63 - 2**31 - 1, 2**63 - 2**31, 2**63 - 2**31 + 1])
def test_import_keeps_offsets_up_to_int64_max(
    tmp_path: Path, last: int, gap: int, records: int
) -> None:
    offsets = [last - gap * number for number in reversed(range(records))]
    source = written(tmp_path / "tables", table(records, offset=offsets))

    imported(source, tmp_path / "logs")

    result = kafka_index.read_records(tmp_path / "logs", columns=("offset",)).read_all()
    assert result["offset"].to_pylist() == offsets


@pytest.mark.parametrize("before", [0, 100])
@pytest.mark.parametrize("gap", [2**31 - 1, 2**31, 2**31 + 5, 2**40])
def test_import_creates_no_empty_segment_before_the_first_record(
    tmp_path: Path, before: int, gap: int
) -> None:
    directory = tmp_path / "logs" / "orders-0"
    with PartitionLogWriter(directory) as log:
        if before:
            log.append_as_leader(data_batch(records=before), 4)
            log.roll()
    rows = table(3, offset=[before + gap + number for number in range(3)])

    imported(written(tmp_path / "tables", rows), tmp_path / "logs", "--append")

    sizes = {int(path.stem): path.stat().st_size for path in directory.glob("*.log")}
    assert all(sizes.values()), sizes
    assert len(sizes) == (2 if before else 1)
    result = kafka_index.read_records(directory, columns=("offset", "leader_epoch")).read_all()
    assert result["offset"].to_pylist() == [*range(before), *rows["offset"].to_pylist()]
    assert set(result["leader_epoch"].to_pylist()) == ({4} if before else {0})
    with PartitionLogWriter(directory) as log:
        assert log.log_start_offset == (0 if before or gap + 2 < 2**31 else gap)
        assert log.log_end_offset == before + gap + 3


def test_import_assigns_offsets_in_the_order_of_a_column(tmp_path: Path) -> None:
    rows = table(50, offset=None, at=[(number * 7) % 50 for number in range(50)])

    imported(written(tmp_path / "tables", rows), tmp_path / "logs", "--order-by", "at")

    order = sorted(range(50), key=lambda number: (number * 7) % 50)
    assert [row["value"] for row in records(tmp_path / "logs")] == [
        b"value-%d" % number for number in order
    ]


def test_import_keeps_nulls_headers_and_timestamp_types(tmp_path: Path) -> None:
    pairs = [None, [{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None, None]
    rows = table(
        4,
        key=[None, b"", b"k", b"k"],
        value=[b"", None, b"v", b"v"],
        headers=pa.array(pairs, RECORD_SCHEMA.field("headers").type),
        timestampType=[0, 0, 1, 1],
        timestamp=[-1, 5, 6, 6],
    )
    imported(written(tmp_path / "tables", rows), tmp_path / "logs")

    result = kafka_index.read_records(tmp_path / "logs").read_all()
    for name in ("key", "value", "headers", "timestampType"):
        assert result[name].to_pylist() == rows[name].to_pylist()
    assert result["timestamp"].cast("int64").to_pylist() == [-1, 5, 6, 6]


def test_log_append_time_is_the_time_of_the_import(tmp_path: Path) -> None:
    source = written(tmp_path / "tables", table(3))
    imported(source, tmp_path / "logs", "--property", "message.timestamp.type=LogAppendTime")

    result = records(tmp_path / "logs")
    assert {row["timestampType"] for row in result} == {1}
    assert len({row["timestamp"] for row in result}) == 1


def test_json_lines_in_hive_folders_are_imported(tmp_path: Path) -> None:
    folder = tmp_path / "tables" / "topic=a%20b".replace("%20", "-") / "partition=3"
    folder.mkdir(parents=True)
    rows = [
        {
            "key": None if number else b64encode(b"\xff").decode(),
            "value": b64encode(b"v").decode(),
            "offset": number,
            "timestamp": "2024-05-01T00:00:00.123Z",
            "headers": [{"key": "h", "value": b64encode(b"x").decode()}],
        }
        for number in range(3)
    ]
    (folder / "part.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "_SUCCESS.json").write_text("not a table")

    imported(tmp_path / "tables", tmp_path / "logs")

    result = records(tmp_path / "logs")
    assert [(row["topic"], row["partition"], row["key"]) for row in result] == [
        ("a-b", 3, b"\xff"),
        ("a-b", 3, None),
        ("a-b", 3, None),
    ]
    assert result[0]["timestamp"].isoformat() == "2024-05-01T00:00:00.123000+00:00"
    assert result[0]["headers"] == [{"key": "h", "value": b"x"}]


def test_append_continues_an_existing_log(tmp_path: Path) -> None:
    first, second = table(100), table(50, offset=list(range(120, 170)))
    output = tmp_path / "logs"
    imported(written(tmp_path / "first", first), output, "--property", "segment.bytes=2000")
    logs = sorted((output / "orders-0").glob("*.log"))
    rolled = {path.name: path.read_bytes() for path in logs[:-1]}

    imported(written(tmp_path / "second", second), output, "--append")

    assert [row["offset"] for row in records(output)] == [*range(100), *range(120, 170)]
    assert rolled
    assert (
        rolled.items()
        <= {path.name: path.read_bytes() for path in (output / "orders-0").glob("*.log")}.items()
    )


def test_append_recovers_a_log_that_was_not_closed(tmp_path: Path) -> None:
    directory = tmp_path / "logs" / "orders-0"
    log = PartitionLogWriter(directory)
    log.append_as_leader(data_batch(records=3), 4)
    log.flush()
    content = (directory / f"{0:020d}.log").read_bytes()
    log.close()
    (directory / f"{0:020d}.log").write_bytes(content + (3).to_bytes(8) + content[8:20])

    rows = table(2, offset=[3, 4])
    imported(written(tmp_path / "tables", rows), tmp_path / "logs", "--append")

    assert [row["offset"] for row in records(tmp_path / "logs")] == [0, 1, 2, 3, 4]
    epochs = kafka_index.read_records(directory, columns=("leader_epoch",)).read_all()
    assert set(epochs["leader_epoch"].to_pylist()) == {4}


def rolled_log(output: Path, source: Path) -> list[Path]:
    """Logs of a partition with several segments."""
    imported(written(source, table(300)), output, "--property", "segment.bytes=2000")
    logs = sorted((output / "orders-0").glob("*.log"))
    assert len(logs) > 2
    return logs


def damage(log: Path) -> None:
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)


def test_failed_append_leaves_the_logs_unchanged(tmp_path: Path) -> None:
    output = tmp_path / "logs"
    log = rolled_log(output, tmp_path / "first")[1]
    (output / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')
    log.with_suffix(".index").unlink()
    damage(log)
    before = contents(output)

    refused(written(tmp_path / "second", table(2, offset=[300, 1])), output, "--append")

    assert contents(output) == before


@pytest.mark.parametrize("place", [0, 1, -1])
def test_append_rejects_a_damaged_log_and_does_not_truncate_it(tmp_path: Path, place: int) -> None:
    output = tmp_path / "logs"
    log = rolled_log(output, tmp_path / "first")[place]
    # As if a broker had written it, and was killed.
    (output / "orders-0" / ".import.kafka-index").unlink()
    damage(log)
    before = contents(output)

    stderr = refused(written(tmp_path / "second", table(2, offset=[300, 301])), output, "--append")

    assert log.name in stderr
    assert "the log is corrupt" in stderr
    assert contents(output) == before


@pytest.mark.parametrize("name", ["replication", "recovery-point"])
def test_append_rejects_a_torn_tail_below_the_high_watermark(tmp_path: Path, name: str) -> None:
    output = tmp_path / "logs"
    log = rolled_log(output, tmp_path / "first")[-1]
    (output / "orders-0" / ".import.kafka-index").unlink()
    log.write_bytes(log.read_bytes()[:-1])
    (output / f"{name}-offset-checkpoint").write_text("0\n1\norders 0 300\n")
    before = contents(output)

    stderr = refused(written(tmp_path / "second", table(1, offset=[300])), output, "--append")

    assert "committed records are lost" in stderr
    assert contents(output) == before


@pytest.mark.parametrize("lost", ["the end of a batch", "whole batches"])
def test_append_rejects_a_log_that_lost_imported_records(tmp_path: Path, lost: str) -> None:
    output = tmp_path / "logs"
    log = rolled_log(output, tmp_path / "first")[-1]
    log.write_bytes(b"" if lost == "whole batches" else log.read_bytes()[:-1])
    before = contents(output)
    assert len(before) > 3

    stderr = refused(written(tmp_path / "second", table(1, offset=[300])), output, "--append")

    assert "records of an earlier import are lost" in stderr
    assert log.name in stderr
    assert contents(output) == before


def test_append_truncates_an_incomplete_last_batch_and_reports_it(tmp_path: Path) -> None:
    output = tmp_path / "logs"
    log = rolled_log(output, tmp_path / "first")[-1]
    last = batch_table(log)[-1]
    # As if a broker had written it, and was killed.
    (output / "orders-0" / ".import.kafka-index").unlink()
    log.write_bytes(log.read_bytes()[:-1])
    second = written(tmp_path / "second", table(1, offset=[last["base_offset"]]))

    result = run_here(
        *("import", "--input", second, "--output", output, "--append"),
        *("--summary", tmp_path / "summary"),
    )

    assert result.returncode == 0, result.stderr
    assert "an incomplete last batch was truncated" in result.stdout
    assert "orders-0: " in result.stdout
    cut = json.loads((tmp_path / "summary").read_text())["bytes"]["cut"]
    assert cut == last["size_bytes"] - 1
    assert [row["offset"] for row in records(output)] == [*range(last["base_offset"] + 1)]


def test_append_of_an_existing_offset_is_rejected_without_changes(tmp_path: Path) -> None:
    output = tmp_path / "logs"
    imported(written(tmp_path / "tables", table()), output)
    before = contents(output)

    stderr = refused(tmp_path / "tables", output, "--append")

    assert "the log already has this offset" in stderr
    assert contents(output) == before


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def test_import_into_an_existing_partition_requires_append_or_overwrite(tmp_path: Path) -> None:
    imported(written(tmp_path / "tables", table()), tmp_path / "logs")

    other = written(tmp_path / "other", table())
    assert "the partition already exists" in refused(other, tmp_path / "logs")


@pytest.mark.parametrize("mode", [(), ("--append", "--order-by", "timestamp")])
def test_completed_import_is_not_repeated(tmp_path: Path, mode: tuple[str, ...]) -> None:
    rows = table().drop_columns("offset") if mode else table()
    tables, logs = written(tmp_path / "tables", rows), tmp_path / "logs"
    imported(tables, logs, *mode)
    before = contents(logs)

    second_result = run_here("import", "--input", tables, "--output", logs, *mode)

    assert second_result.returncode == 0
    assert "imported by an earlier run" in second_result.stdout
    assert "100 records in 1 partition" in second_result.stdout
    assert contents(logs) == before


@pytest.mark.parametrize("change", ["tables", "logs", "bit", "index"])
def test_import_is_not_skipped_if_its_tables_or_logs_changed(tmp_path: Path, change: str) -> None:
    two = table(10, topic=["other"] * 10)
    tables, logs = written(tmp_path / "tables", table(), two), tmp_path / "logs"
    imported(tables, logs)
    if change == "tables":
        os.utime(next(tables.iterdir()), (1, 1))
    elif change == "bit":
        with next(logs.glob("orders-0/*.log")).open("r+b") as log:
            first = log.read(1)[0]
            log.seek(0)
            log.write(bytes([first ^ 1]))
    elif change == "index":
        next(logs.glob("orders-0/*.timeindex")).unlink()
    else:
        shutil.rmtree(logs / "other-0")

    assert "the partition already exists" in refused(tables, logs)


def test_overwrite_replaces_all_files_of_the_earlier_import(tmp_path: Path) -> None:
    output = tmp_path / "logs"
    other = table(10, topic=["other"] * 10)
    imported(written(tmp_path / "first", table(), other), output)

    imported(written(tmp_path / "second", table(5)), output, "--overwrite")

    assert [row["offset"] for row in records(output)] == list(range(5))
    assert sorted(path.name for path in output.iterdir()) == [".import.kafka-index", "orders-0"]


@pytest.mark.parametrize("is_there", [True, False])
def test_import_below_a_checkpointed_log_start_offset_is_rejected(
    tmp_path: Path, *, is_there: bool
) -> None:
    output = tmp_path / "logs"
    source = written(tmp_path / "tables", table(100))
    if is_there:
        imported(source, output)
    output.mkdir(exist_ok=True)
    checkpoint = output / "log-start-offset-checkpoint"
    checkpoint.write_text("0\n1\norders 0 50\n")
    before = contents(output)
    mode = ["--overwrite"] if is_there else []

    stderr = refused(source, output, *mode)

    assert (
        "a broker would delete records of orders-0, because its checkpointed log start offset"
        in stderr
    )
    assert contents(output) == before


def test_checkpointed_log_start_at_the_first_record_is_accepted(tmp_path: Path) -> None:
    output = tmp_path / "logs"
    output.mkdir()
    (output / "log-start-offset-checkpoint").write_text("0\n1\norders 0 50\n")
    rows = table(2, offset=[50, 51])

    imported(written(tmp_path / "tables", rows), output)

    assert [row["offset"] for row in records(output)] == [50, 51]


def test_overwrite_of_a_log_changed_by_another_writer_is_rejected(tmp_path: Path) -> None:
    output = tmp_path / "logs"
    imported(written(tmp_path / "tables", table()), output)
    with PartitionLogWriter(output / "orders-0") as log:
        log.append_as_leader(data_batch(), 0)
    before = contents(output)

    stderr = refused(tmp_path / "tables", output, "--overwrite")

    assert "no import wrote the partition, or the partition has changed" in stderr
    assert contents(output) == before


def test_directory_of_a_running_broker_is_rejected(tmp_path: Path) -> None:
    output = tmp_path / "logs"
    output.mkdir()
    source = written(tmp_path / "tables", table())

    with DirectoryLock.for_data_directories([str(output)]):
        refused(source, output, "--append", code=3)

    assert list(output.iterdir()) == []


def test_failed_import_keeps_completed_partitions(tmp_path: Path) -> None:
    first, second = table(), table(2, topic=["second"] * 2, offset=[1, 1])
    output = tmp_path / "logs"

    stderr = refused(written(tmp_path / "tables", first, second), output)

    assert "second-0: the offsets of a partition do not ascend" in stderr
    assert [path.name for path in output.iterdir()] == ["orders-0"]
    assert len(records(output)) == 100


def test_next_run_removes_leftovers_of_a_killed_import(tmp_path: Path) -> None:
    output = tmp_path / "logs"
    settings = ImportSettings(mode=ImportMode.CREATE)
    child = os.fork()
    if not child:
        with import_target(output, settings.mode) as target:
            batches = table().to_batches()

            def until_killed() -> Any:
                yield from batches
                os._exit(9)

            import_sorted(until_killed(), target, settings, print)
    os.waitpid(child, 0)
    left = [path.name for path in output.iterdir() if path.is_dir()]
    assert left
    assert left[0].endswith("-delete")

    imported(written(tmp_path / "tables", table()), output)

    assert {path.name for path in output.iterdir()} == {".import.kafka-index", "orders-0"}


def test_import_writes_the_topic_id_for_the_broker(tmp_path: Path) -> None:
    source = written(tmp_path / "tables", table(1))
    imported(source, tmp_path / "logs", "--topic-id", "orders=qnSv0rHxTBSGn8eDd0IlZA")

    text = (tmp_path / "logs" / "orders-0" / "partition.metadata").read_text()
    assert text == "version: 0\ntopic_id: qnSv0rHxTBSGn8eDd0IlZA\n"


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"offset": None}, "no order of records is given"),
        ({"topic": None}, "no column topic"),
        ({"key": None, "value": None}, "neither a column key nor a column value"),
        ({"ofset": [0]}, "the table has a column that is not a field of a record"),
        ({"topic": [None]}, "a record has no topic"),
        ({"topic": ["../up"]}, "the topic name is illegal"),
        ({"partition": [-1]}, "the partition of a record is out of range"),
        ({"offset": [-5]}, "an offset is negative"),
        (
            {"offset": [2**63 - 1]},
            "the offset is too large, because the log end offset would overflow",
        ),
        (
            {"offset": [5, 2**63 - 1]},
            "the offset is too large, because the log end offset would overflow",
        ),
        ({"timestamp": [-2]}, "a timestamp is negative"),
        ({"timestamp": [None]}, "a record has no timestamp"),
        ({"timestampType": [3]}, "the timestamp type of a record is invalid"),
        ({"is_control": [True]}, "a control record"),
    ],
)
def test_invalid_row_of_an_import_is_rejected(
    tmp_path: Path, columns: dict[str, Any], reason: str
) -> None:
    count = max(len(values or "-") for values in columns.values())
    source = written(tmp_path / "tables", table(count, **columns))

    assert reason in refused(source, tmp_path / "logs")
    assert not list((tmp_path / "logs").glob("*/*.log"))


_NOT_INTEGERS = (1.5, "1.5", float("nan"), float("inf"), 2.0**60, Decimal("1.5"), True, "", "1e3")


@pytest.mark.parametrize("name", ["offset", "partition", "timestamp", "timestampType"])
@pytest.mark.parametrize("value", _NOT_INTEGERS, ids=repr)
def test_fractional_number_in_an_integer_column_is_rejected(
    tmp_path: Path, name: str, value: object
) -> None:
    columns = {"timestampType": [0], name: pa.array([value])}
    source = written(tmp_path / "tables", table(1, **columns))

    stderr = refused(source, tmp_path / "logs")

    assert name in stderr
    assert "0.parquet" in stderr
    if "nan" not in repr(value) and isinstance(value, float | str | bool) and value != float("inf"):
        assert name in refused(json_line(tmp_path, **{name: value}), tmp_path / "other")


@pytest.mark.parametrize("value", [7, 7.0, "7", Decimal("7.00")], ids=repr)
def test_integer_column_of_any_numeric_type_is_accepted(tmp_path: Path, value: object) -> None:
    columns = {name: pa.array([value]) for name in ("offset", "partition", "timestamp")}
    imported(written(tmp_path / "tables", table(1, **columns)), tmp_path / "logs")

    result = records(tmp_path / "logs")[0]
    assert (result["offset"], result["partition"]) == (7, 7)
    assert result["timestamp"].timestamp() == 0.007


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("partition", value) for value in (2**31, 2**70, -(2**70), "9" * 5000)),
        *(("offset", value) for value in (2**70, -(2**70), "9" * 5000)),
        *(("partition", value) for value in ("1_0", "\u0661", "")),
    ],
)
def test_number_out_of_range_or_without_decimal_digits_is_rejected(
    tmp_path: Path, name: str, value: object
) -> None:
    stderr = refused(json_line(tmp_path, **{name: value}), tmp_path / "logs")

    assert "is not an integer of" in stderr


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("2024-05-01T00:00:00.123", 1_714_521_600_123),
        ("2024-05-01 00:00:00", 1_714_521_600_000),
        ("2024-05-01", 1_714_521_600_000),
        ("2024-05-01T00:00:00.1239999Z", 1_714_521_600_123),
        ("2024-05-01T02:00:00+02:00", 1_714_521_600_000),
        ("1714521600123", 1_714_521_600_123),
    ],
)
def test_json_time_without_a_zone_is_utc(tmp_path: Path, text: str, expected_ms: int) -> None:
    imported(json_line(tmp_path, timestamp=text), tmp_path / "logs")

    result = kafka_index.read_records(tmp_path / "logs").read_all()
    assert result["timestamp"].cast("int64").to_pylist() == [expected_ms]


@pytest.mark.parametrize("text", ["yesterday", "2024-05-01T00:00:00 Europe/Berlin", "1. May", ""])
def test_json_time_not_in_iso_8601_is_rejected(tmp_path: Path, text: str) -> None:
    stderr = refused(json_line(tmp_path, timestamp=text), tmp_path / "logs")

    assert "rows.jsonl: cannot read the table: timestamp" in stderr
    assert "is neither an ISO 8601 time nor a number of milliseconds" in stderr


@pytest.mark.parametrize("later", [0, 1], ids=["same file", "next file"])
def test_json_member_missing_in_the_first_line_is_rejected(tmp_path: Path, later: int) -> None:
    files = [tmp_path / f"{number}.jsonl" for number in range(2)]
    row = {"topic": "t", "partition": 0, "value": "dg==", "leader_epoch": 3}
    for offset, path in enumerate(files):
        path.write_text(json.dumps(row | {"offset": offset}) + "\n")
    with files[later].open("a") as file:
        file.write(json.dumps(row | {"key": "aw==", "offset": 2, "timestamp": 1}) + "\n")

    with pytest.raises(InputError, match=r"line 2 has a column .*found key, timestamp"):
        kafka_index.import_records(files, tmp_path / "logs")

    assert not (tmp_path / "logs" / "t-0").exists()


@pytest.mark.parametrize("size", ["1_000", "\u0661", "-1", "2147483648", "9" * 5000])
def test_batch_size_outside_int32_is_rejected(tmp_path: Path, size: str) -> None:
    source = written(tmp_path / "tables", table(1))

    stderr = refused(source, tmp_path / "logs", "--property", f"batch.size={size}")

    assert "batch.size has an invalid value" in stderr


def test_null_key_is_rejected_for_a_compacted_topic(tmp_path: Path) -> None:
    source = written(tmp_path / "tables", table(1, key=[None]))

    stderr = refused(source, tmp_path / "logs", "--property", "cleanup.policy=compact")

    assert "a record has no key, but the topic is compacted" in stderr


def test_unsorted_records_are_rejected(tmp_path: Path) -> None:
    settings = ImportSettings(order_by="at")
    batches = table(3, offset=None, at=[1, 3, 2]).to_batches()
    with (
        pytest.raises(InputError, match="are not sorted by at"),
        import_target(tmp_path / "logs", settings.mode) as target,
    ):
        import_sorted(batches, target, settings, print)


def many_partitions(count: int) -> list[pa.RecordBatch]:
    """Sorted records of partitions of different sizes, in batches that hold parts of several."""
    sizes = [50 + 400 * (number % 3) for number in range(count)]
    tables = [table(size, topic=[f"t{at}"] * size) for at, size in enumerate(sizes)]
    batches: list[pa.RecordBatch] = pa.concat_tables(tables).combine_chunks().to_batches(97)
    return batches


def written_by(threads: int, output: Path, batches: Iterable[pa.RecordBatch]) -> list[str]:
    """Import on some threads; the partitions in the order in which they were published."""
    settings = ImportSettings(mode=ImportMode.CREATE, now_ms=NOW_MS)
    done: list[str] = []
    with import_target(output, settings.mode) as target:
        import_sorted(
            batches,
            target,
            settings,
            lambda each: done.append(each.staged.partition.directory_name),
            threads=threads,
        )
    return done


def test_several_threads_write_the_same_logs_in_the_same_order_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = many_partitions(9)
    order = written_by(1, tmp_path / "one", batches)
    assert order == [f"t{number}-0" for number in range(9)]
    # So little room that every partition waits for it.
    monkeypatch.setattr(import_job, "_WAITING_BYTES", 10_000)
    assert written_by(4, tmp_path / "four", batches) == order
    logs = [sorted((tmp_path / name).glob("*/*.log")) for name in ("one", "four")]
    assert len(logs[0]) == 9
    assert [log.read_bytes() for log in logs[0]] == [log.read_bytes() for log in logs[1]]


@pytest.mark.parametrize("threads", [1, 4])
def test_partitions_before_a_failed_one_are_complete_with_any_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    monkeypatch.setattr(import_job, "_WAITING_BYTES", 10_000)
    batches = many_partitions(9)
    wrong = table(2000, topic=["t3"] * 2000, offset=[*range(450, 2449), 5])
    at = next(n for n, batch in enumerate(batches) if "t4" in batch["topic"].to_pylist())
    (tmp_path / "logs" / "t6-0").mkdir(parents=True)
    with pytest.raises(InputError, match="the offsets of a partition do not ascend"):
        written_by(
            threads,
            tmp_path / "logs",
            [*pa.concat_tables([table(50, topic=["t0"] * 50), wrong]).to_batches(), *batches[at:]],
        )
    result = sorted(path.name for path in (tmp_path / "logs").iterdir() if path.is_dir())
    assert result == ["t0-0", "t6-0"]


@pytest.mark.parametrize("threads", [1, 3])
def test_failed_read_of_the_input_ends_all_writer_threads(tmp_path: Path, threads: int) -> None:
    def read() -> Iterator[pa.RecordBatch]:
        yield from many_partitions(3)
        raise InputError("the file ends early")

    with pytest.raises(InputError, match="ends early"):
        written_by(threads, tmp_path / "logs", read())
    result = {path.name for path in (tmp_path / "logs").iterdir() if path.is_dir()}
    assert result == {"t0-0", "t1-0"}


@pytest.mark.parametrize("threads", [1, 2])
def test_partitions_before_an_illegal_topic_name_are_imported(tmp_path: Path, threads: int) -> None:
    names = [*(f"a{number}" for number in range(5)), "b c"]
    rows = pa.concat_tables([table(2000, topic=[name] * 2000) for name in names])

    stderr = refused(
        written(tmp_path / "tables", rows), tmp_path / "logs", "--threads", str(threads)
    )

    assert "the topic name is illegal" in stderr
    # The last one before it is being fed, and not known to be complete.
    assert sorted(path.parent.name for path in tmp_path.glob("logs/*/*.log")) == [
        f"a{number}-0" for number in range(4)
    ]


@pytest.mark.parametrize("before", [0, 1])
def test_read_error_of_an_input_table_is_an_environment_error(tmp_path: Path, before: int) -> None:
    tables = tmp_path / "tables"
    tables.mkdir()
    row = {"topic": "t", "partition": 0, "offset": 0, "key": "YQ==", "timestamp": 1}
    if before:
        (tables / "0.jsonl").write_text(json.dumps(row))
    # The memory of this process: nothing is mapped at its beginning, and reading that fails.
    (tables / "1.jsonl").symlink_to("/proc/self/mem")

    stderr = refused(tables, tmp_path / "logs", code=3)

    assert "1.jsonl: cannot read the table: Input/output error" in stderr
    assert stderr.count("\n") == 1
    (tables / "1.jsonl").unlink()
    (tables / "1.jsonl").write_text(json.dumps({**row, "offset": 1}))
    imported(tables, tmp_path / "logs")
    assert [row["offset"] for row in records(tmp_path / "logs")] == [*range(before), 1]


def test_sort_without_scratch_space_is_an_environment_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where DuckDB would keep what does not fit in its memory there is a file.
    monkeypatch.setattr(local_work, "_MEMORY_LIMIT", "4MB")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "sort").write_text("")
    monkeypatch.setattr(local_work, "workspace", lambda: str(scratch))
    rows = table(100_000, value=[b"%d" % number * 40 for number in range(100_000)])

    stderr = refused(written(tmp_path / "tables", rows), tmp_path / "logs", code=3)

    assert "cannot sort the records" in stderr


def test_unwritable_record_is_reported_before_a_later_unreadable_one(
    tmp_path: Path,
) -> None:
    def read() -> Iterator[pa.RecordBatch]:
        yield from table(2, offset=[5, 4]).to_batches()
        raise InputError("the file ends early")

    with pytest.raises(InputError, match="do not ascend"):
        written_by(2, tmp_path / "logs", read())


def test_import_is_not_marked_finished_while_another_run_holds_the_lock(tmp_path: Path) -> None:
    output = Output.for_data_directory(str(tmp_path / "logs"))
    running = running_import(output.root, "digest", ImportSettings(), lock=output)
    with output:
        running.__enter__()
    state = (tmp_path / "logs" / IMPORT_MANIFEST).read_bytes()
    with (
        DirectoryLock.for_data_directories([output.root]),
        pytest.raises(PublishError, match="already locked"),
    ):
        running.__exit__(None, None, None)
    assert (tmp_path / "logs" / IMPORT_MANIFEST).read_bytes() == state
    assert json.loads(state)["is_finished"] is False
