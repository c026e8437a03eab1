"""The functions at the top of the package, over the example dump of a real broker."""

from __future__ import annotations

import pydoc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kafka_index
from kafka_index import LogConfig
from tests.support.command_line import (
    DUMP,
    SETTINGS,
    broker_files,
    copy_partitions,
    index_files,
    run_here,
)

PARTITION = "payments-0"
#: Two screens of a terminal, and the packages inside.
MAX_LINES = 100
MIN_HELP_LINES = 10
#: Keys and times of records, out of order.
ORDERED = (("c", 3), ("a", 1), ("b", 2))
PUBLIC_NAMES = [name for name in dir(kafka_index) if not name.startswith("_")]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs of one partition, without any other file."""
    return copy_partitions(tmp_path_factory.mktemp("library") / "data", PARTITION)


def build(data: Path, output: Path, *, force: bool = False) -> list[str]:
    report = kafka_index.build_indexes(
        data, output, config=LogConfig.load(SETTINGS), overwrite=force, threads=2
    )
    status: list[str] = report.to_arrow()["status"].to_pylist()
    return status


def test_build_indexes_writes_the_files_of_the_broker(data: Path, tmp_path: Path) -> None:
    assert set(build(data, tmp_path)) == {"built"}
    assert index_files(tmp_path) == broker_files(PARTITION)


def test_build_indexes_writes_next_to_the_logs_only_on_request(tmp_path: Path) -> None:
    data = copy_partitions(tmp_path, PARTITION)
    before = sorted(data.rglob("*"))
    given: list[dict[str, Any]] = [
        {},
        {"output": None},
        {"output": ""},
        {"in_place": False},
        {"output": tmp_path / "out", "in_place": True},
        {"in_place": "yes"},
        {"in_place": 1},
        {"in_place": "False"},
    ]
    for options in given:
        with pytest.raises(
            kafka_index.KafkaIndexError,
            match=r"no output: give output|output is empty|are mutually exclusive|"
            r"in_place is neither true nor false",
        ):
            kafka_index.build_indexes(data, **options)
    assert sorted(data.rglob("*")) == before
    kafka_index.build_indexes(data, in_place=True, config=LogConfig.load(SETTINGS))
    assert index_files(data) == broker_files(PARTITION)


def test_second_build_keeps_intact_files_unless_forced(data: Path, tmp_path: Path) -> None:
    first = build(data, tmp_path)
    assert build(data, tmp_path) == ["unchanged"] * len(first)
    assert build(data, tmp_path, force=True) == first


def test_build_indexes_rejects_an_output_within_its_input(data: Path) -> None:
    with pytest.raises(kafka_index.KafkaIndexError):
        build(data, data / "out")


def test_build_indexes_rejects_output_next_to_remote_logs() -> None:
    with pytest.raises(kafka_index.KafkaIndexError, match="logs on a local disk, but s3://"):
        kafka_index.build_indexes("s3://bucket/broker-1", in_place=True)


def test_verify_accepts_a_single_path() -> None:
    result = kafka_index.verify(DUMP / PARTITION, config=LogConfig.load(SETTINGS), threads=1)
    assert [partition.partition for partition in result.partitions] == [0]


def test_lookups_answer_tables_of_queries_as_the_partition_does(data: Path) -> None:
    offsets = pa.table({"topic": ["payments"] * 2, "partition": [0, 0], "offset": [1, 10**9]})
    times = offsets.set_column(2, "timestamp", pa.array([-2, -1]))
    by_offset = kafka_index.lookup_offsets(data, offsets).to_arrow()
    by_time = kafka_index.lookup_timestamps([data], times).to_arrow()
    assert by_offset.select(offsets.column_names) == offsets
    with kafka_index.PartitionLog.open(data / PARTITION) as log:
        expected = [
            log.lookup_offsets(np.array([1, 10**9])),
            log.lookup_timestamps(np.array([-2, -1])),
        ]
    assert [by_offset.to_pylist(), by_time.to_pylist()] == [
        [query | answer for query, answer in zip(rows.to_pylist(), found.to_pylist(), strict=True)]
        for rows, found in zip((offsets, times), expected, strict=True)
    ]
    assert by_offset["status"].to_pylist() == ["found", "after_log_end"]


def test_restore_dump_makes_a_directory_with_the_same_logs(data: Path, tmp_path: Path) -> None:
    result = kafka_index.restore_dump(data, tmp_path / "restored", new_topic_ids=True, threads=1)
    assert result.runbook is not None
    restored = {
        path.name: path.read_bytes() for path in (tmp_path / "restored" / PARTITION).glob("*.log")
    }
    assert restored == {path.name: path.read_bytes() for path in (data / PARTITION).glob("*.log")}


def written_files(root: Path) -> dict[str, bytes]:
    """The files of Kafka below a folder: no locks, and no marks of this package."""
    paths = [path for path in root.rglob("*") if path.is_file() and path.name[0] != "."]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def test_import_records_writes_the_files_of_the_command(tmp_path: Path) -> None:
    tables = kafka_index.export_records(DUMP, tmp_path / "lake", topics="payments|page-views")
    arguments: list[str | Path] = ["--input", tmp_path / "lake", "--output", tmp_path / "expected"]
    settings = ["--property", "segment.bytes=20000", "--property", "compression.type=lz4"]
    ids = {"payments": "AAAAAAAAAAAAAAAAAAAAAQ"}
    result = run_here("import", *arguments, *settings, "--topic-id", f"payments={ids['payments']}")
    assert result.returncode == 0, result.stderr
    imported = kafka_index.import_records(
        [tables.output],
        tmp_path / "logs",
        properties={"segment.bytes": 20_000, "compression.type": "lz4"},
        topic_ids=ids,
        threads=2,
    )
    assert written_files(tmp_path / "logs") == written_files(tmp_path / "expected")
    assert imported.is_new
    assert imported.counts == {"partitions": 4, "records": tables.counts["records"]}
    listed = kafka_index.list_partitions(imported.output).to_arrow()
    assert imported.to_arrow()["end_offset"] == listed["log_end_offset"]
    sizes = [path.stat().st_size for path in (tmp_path / "logs").glob("*/*.log")]
    assert imported.to_arrow()["segments"].to_pylist() != [1] * 4
    assert sum(imported.to_arrow()["segments"].to_pylist()) == len(sizes)
    assert imported.sizes_bytes == {"logs": sum(sizes)}


def test_import_records_replaces_or_appends_only_on_request(
    tmp_path: Path,
) -> None:
    rows = [{"topic": "t", "partition": 0, "value": None, "key": "YQ=="}] * 2
    pd.DataFrame([{**row, "offset": at} for at, row in enumerate(rows)]).to_json(
        tmp_path / "first.json", orient="records", lines=True
    )
    pd.DataFrame([{**row, "offset": 7 + at} for at, row in enumerate(rows)]).to_json(
        tmp_path / "second.json", orient="records", lines=True
    )
    logs = tmp_path / "logs"
    first = kafka_index.import_records(tmp_path / "first.json", logs)
    second_records = kafka_index.import_records(tmp_path / "first.json", logs)
    assert (first.is_new, second_records.is_new) == (True, False)
    assert first.partitions == second_records.partitions
    with pytest.raises(kafka_index.KafkaIndexError, match="append"):
        kafka_index.import_records(tmp_path / "second.json", logs)
    added = kafka_index.import_records(tmp_path / "second.json", logs, append=True)
    assert [(row.first_offset, row.end_offset) for row in added.partitions] == [(7, 9)]
    only = kafka_index.import_records(tmp_path / "second.json", logs, overwrite=True)
    assert kafka_index.read_records(only.output).read_all()["offset"].to_pylist() == [7, 8]


def test_missing_import_file_is_an_error(tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    tables.mkdir()
    row = {"topic": ["t"], "partition": [0], "offset": [0], "key": ["a"]}
    pq.write_table(pa.table(row), tables / "first.parquet")
    (tables / "second.parquet").symlink_to(tmp_path / "gone")
    with pytest.raises(kafka_index.KafkaIndexError, match=r"second\.parquet: "):
        kafka_index.import_records(tables, tmp_path / "logs")


def test_import_records_takes_offsets_in_the_order_of_a_column(tmp_path: Path) -> None:
    rows = [{"topic": "t", "partition": 0, "key": key, "timestamp": at} for key, at in ORDERED]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    logs = kafka_index.import_records(
        tmp_path / "rows.parquet", tmp_path / "logs", order_by="timestamp"
    )
    read = kafka_index.read_records(logs.output).read_all()
    assert read["key"].to_pylist() == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"append": True, "overwrite": True},
        {"output": "s3://bucket/logs"},
        {"paths": "no/such/file.parquet"},
        {"properties": {"no.such.setting": "1"}},
        {"properties": {"segment.bytes": None}},
        {"properties": {"compression.type": "zip"}},
        {"topic_ids": {"t": "short"}},
        {"topic_ids": {"t": 5}},
        {"threads": 0},
    ],
    ids=str,
)
def test_import_records_rejects_invalid_arguments(wrong: dict[str, Any], tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"topic": ["t"], "partition": [0], "offset": [0], "key": ["a"]}),
        tmp_path / "rows.parquet",
    )
    given = {"paths": tmp_path / "rows.parquet", "output": tmp_path / "logs", **wrong}
    with pytest.raises(kafka_index.KafkaIndexError):
        kafka_index.import_records(given.pop("paths"), given.pop("output"), **given)
    assert not (tmp_path / "logs").exists()


def test_rewrite_dump_writes_the_files_of_the_command(data: Path, tmp_path: Path) -> None:
    where = "offset BETWEEN 3 AND 20 OR timestamp < '1980-01-01'"
    arguments: list[str | Path] = [
        "--input",
        data,
        "--output",
        tmp_path / "expected",
        "--drop-where",
        where,
    ]
    report = tmp_path / "report.parquet"
    result = run_here("rewrite", *arguments, "--report", report)
    assert result.returncode == 0, result.stderr
    clean = kafka_index.rewrite_dump(data, tmp_path / "clean", drop_where=where, threads=2)
    assert written_files(tmp_path / "clean") == written_files(tmp_path / "expected")
    assert clean.to_arrow() == pq.read_table(report)
    assert (clean.ok, clean.counts["records_dropped"]) == (True, 18)
    again = kafka_index.rewrite_dump(data, tmp_path / "clean", drop_where=where)
    assert (clean.is_new, again.is_new) == (True, False)
    assert again.partitions == clean.partitions
    assert kafka_index.read_records(tmp_path / "clean").read_all()["offset"].to_pylist()[2:4] == [
        2,
        21,
    ]


def test_drop_keys_accepts_a_file_strings_or_bytes(tmp_path: Path) -> None:
    paths = DUMP / "customer-profiles-0"
    keys = kafka_index.read_records(paths).read_all()["key"].unique().drop_null().to_pylist()[:2]
    (tmp_path / "keys.txt").write_text("".join(f"hex:{key.hex()}\n" for key in keys))
    forms: list[Any] = [
        tmp_path / "keys.txt",
        str(tmp_path / "keys.txt"),
        keys,
        tuple(f"hex:{key.hex()}" for key in keys),
        {key.decode() for key in keys},
    ]
    result = [kafka_index.rewrite_dump(paths, dry_run=True, drop_keys=form) for form in forms]
    dropped = [each.counts["records_dropped"] for each in result]
    assert dropped[0] >= len(keys)
    assert len(set(dropped)) == 1


def test_dry_run_reports_rejected_partitions(data: Path) -> None:
    result = kafka_index.rewrite_dump(data, dry_run=True, drop_where="offset < 0")
    assert result.refusal is not None
    assert "no record matches" in result.refusal
    assert result.ok
    assert [row.status for row in result.partitions] == [kafka_index.RewriteStatus.MATCHED]
    meant = kafka_index.rewrite_dump(data, dry_run=True, drop_where="offset < 0", overwrite=True)
    assert meant.refusal is None


def test_rewrite_dump_skips_a_damaged_partition(tmp_path: Path) -> None:
    data = copy_partitions(tmp_path / "data", PARTITION, "payments-1")
    log = min((data / PARTITION).glob("*.log"))
    content = bytearray(log.read_bytes())
    content[200] ^= 0xFF
    log.write_bytes(content)
    clean = kafka_index.rewrite_dump(data, tmp_path / "clean", drop_where="offset < 5")
    assert [row.status.value for row in clean.partitions] == ["skipped", "rewritten"]
    assert clean.summary["exit_code"] == 1
    assert str(log) in (clean.partitions[0].reason or "")
    assert not (tmp_path / "clean" / PARTITION).exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"dry_run": True},
        {"output": None},
        {"output": ""},
        {"output": "s3://bucket/clean"},
        {"drop_where": None},
        {"drop_keys": ["a"]},
        {"drop_where": "offset <"},
        {"drop_where": None, "drop_keys": []},
        {"drop_where": None, "drop_keys": b"a"},
        {"drop_where": None, "drop_keys": [1]},
        {"drop_where": None, "drop_keys": ["hex:x"]},
        {"drop_where": None, "drop_keys": {"a": 1}},
        {"drop_where": None, "drop_keys": "no/such/file"},
        {"max_decompressed_bytes": 0},
        {"drop_where": "offset < 0"},
        {"drop_where": "offset >= 0"},
    ],
    ids=str,
)
def test_rewrite_dump_rejects_invalid_arguments(
    wrong: dict[str, Any], data: Path, tmp_path: Path
) -> None:
    given = {"output": tmp_path / "clean", "drop_where": "offset < 5", **wrong}
    with pytest.raises(kafka_index.KafkaIndexError):
        kafka_index.rewrite_dump(data, **given)
    assert not list(tmp_path.glob("clean/payments*"))


def test_missing_public_name_is_an_error_at_runtime_and_for_mypy() -> None:
    with pytest.raises(AttributeError, match="no attribute 'verfy'"):
        kafka_index.verfy  # type: ignore[attr-defined]  # noqa: B018, because mypy is asked


def test_imported_library_is_not_a_public_name() -> None:
    assert not hasattr(kafka_index, "importlib")


def test_help_lists_all_names_in_two_screens() -> None:
    text = pydoc.plain(pydoc.render_doc(kafka_index))
    assert len(text.splitlines()) <= MAX_LINES
    assert [name for name in PUBLIC_NAMES if name not in text] == []


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_every_public_name_can_be_imported_and_has_help_of_its_own(name: str) -> None:
    result = getattr(kafka_index, name)
    assert result.__name__ == name
    assert len(pydoc.plain(pydoc.render_doc(result)).splitlines()) > MIN_HELP_LINES
