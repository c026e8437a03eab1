"""Parquet input on Spark: the same bytes as from the logs, and nothing from half an input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from kafka_index.build import BuildSettings, build_segments, run_local
from kafka_index.build.parquet import build_parquet as build_locally
from kafka_index.build.parquet_input import ROW_COUNT, ParquetInput, open_parquet
from kafka_index.build.report import report_rows, report_table
from kafka_index.errors import InputError
from kafka_index.spark.parquet import build_parquet, stage_rows
from kafka_index.storage import list_dump
from tests.servers.s3 import S3Server
from tests.support.dumps import (
    CollectedRows,
    Log,
    Segment,
    batch_table,
    change,
    dump,
    index_files,
    leftovers,
    metadata_table,
    outcomes,
    raw_batch_table,
    raw_table,
    settings,
    write_logs,
    write_parquet,
)
from tests.support.remote import bucket_for_tasks, download, upload
from tests.support.transactional_logs import built_files, segments, write

_Form = Callable[[dict[Segment, Log]], pa.Table]
FORMS = pytest.mark.parametrize("form", [metadata_table, raw_table])
ORDERED = pytest.mark.parametrize("is_sorted", [True, False], ids=["sorted", "shuffled"])


def _from_logs(tmp_path: Path) -> dict[str, bytes]:
    logs = write_logs(tmp_path / "logs", dump())
    segments = list_dump([str(logs)], topics=None).segments
    list(build_segments(segments, settings(tmp_path / "expected"), attempt_id="local"))
    return index_files(tmp_path / "expected")


@FORMS
@ORDERED
def test_parquet_gives_the_bytes_that_the_logs_give(
    spark: SparkSession, tmp_path: Path, form: _Form, *, is_sorted: bool
) -> None:
    table = form(dump())
    if not is_sorted:
        table = table.take(pa.array(np.random.default_rng(7).permutation(table.num_rows)))
    source = open_parquet([write_parquet(tmp_path / "in.parquet", table)])

    report = build_parquet(spark, source, settings(tmp_path / "spark").indexes_alone(), bins=3)

    assert index_files(tmp_path / "spark") == _from_logs(tmp_path)
    assert set(report["status"].to_pylist()) == {"built"}
    assert set(report["log_path"].to_pylist()) == {source.path}
    sizes = {key: sum(map(len, batches)) for key, batches in dump().items()}
    assert {
        (row.topic, row.partition, row.segment_base_offset): row.log_size_bytes
        for row in report_rows(report)
    } == sizes
    assert leftovers(tmp_path) == []


@ORDERED
@pytest.mark.parametrize("form", [batch_table, raw_batch_table])
def test_segments_of_a_partition_are_scanned_apart_and_folded_together(
    spark: SparkSession, tmp_path: Path, form: Callable[[Path], pa.Table], *, is_sorted: bool
) -> None:
    data = tmp_path / "logs"
    for number, name in enumerate(("a-0", "a-1", "z-7")):
        write(data / name, segments(number + 3))
    expected = CollectedRows()
    listed = list_dump([str(data)], topics=None).segments
    logs_settings = BuildSettings(target_root=str(tmp_path / "expected"))
    run_local(listed, logs_settings, threads=2, listener=expected)
    table = form(data)
    if not is_sorted:
        table = table.take(np.random.default_rng(7).permutation(table.num_rows))
    source = open_parquet([write_parquet(tmp_path / "in.parquet", table)])

    report = build_parquet(
        spark,
        source,
        BuildSettings(target_root=str(tmp_path / "out")),
        bins=5,
    )

    assert outcomes(report) == outcomes(report_table(expected.rows))
    assert set(report["log_path"].to_pylist()) == {source.path}
    files, of_logs = (
        {name: data for name, data in built_files(root).items() if "/." not in name}
        for root in (tmp_path / "out", tmp_path / "expected")
    )
    assert files == of_logs
    assert any(name.endswith(".snapshot") for name in files)


@FORMS
def test_both_engines_report_the_same_of_bad_rows(
    spark: SparkSession, tmp_path: Path, form: _Form
) -> None:
    table = form(dump())
    table = change(table, 3, "position_bytes", 1)
    for row in range(900, 940):
        table = change(table, row, "topic", "../up")
    table = change(table, 945, "position_bytes", None)
    source = open_parquet([write_parquet(tmp_path / "in.parquet", table)])
    local = CollectedRows()
    build_locally(source, settings(tmp_path / "local").indexes_alone(), threads=2, listener=local)

    report = build_parquet(spark, source, settings(tmp_path / "spark").indexes_alone(), bins=3)

    assert outcomes(report) == outcomes(report_table(local.rows))
    assert sorted(report["status"].to_pylist()) == ["built", "failed", "failed", "failed"]
    assert index_files(tmp_path / "spark") == index_files(tmp_path / "local")
    assert not (tmp_path / "up-0").exists()


def test_rows_without_a_segment_stop_the_run_before_it_writes(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = change(metadata_table(dump()), 5, "topic", None)
    source = open_parquet([write_parquet(tmp_path / "in.parquet", table)])

    with pytest.raises(InputError, match="null in column topic"):
        build_parquet(spark, source, settings(tmp_path / "spark").indexes_alone(), bins=3)

    assert index_files(tmp_path) == {}


@FORMS
@pytest.mark.parametrize("missing", [1, 60, 199])
def test_a_segment_whose_rows_did_not_all_come_is_not_published(
    tmp_path: Path, form: _Form, missing: int
) -> None:
    """A cancelled Spark task sees its input end early, as if that were all of it."""
    segments = {("t", 0, 0): dump()["orders", 0, 0][:200], ("t", 1, 0): dump()["orders", 1, 0]}
    table = form(segments)
    source = open_parquet([write_parquet(tmp_path / "in.parquet", table)])
    rows = _counted(table, source, [200] * 200 + [1]).slice(0, 200 - missing)

    batches = stage_rows(
        iter(rows.to_batches(max_chunksize=70)),
        source=source,
        settings=settings(tmp_path / "out").indexes_alone(),
        fail_fast=False,
    )

    report = report_rows(pa.Table.from_batches(batches))
    assert [row.status for row in report] == ["failed"]
    assert "expected 200 rows" in (report[0].reason or "")
    assert index_files(tmp_path / "out") == {}


def test_rows_arrive_chunk_by_chunk_and_are_let_go(tmp_path: Path) -> None:
    table = metadata_table({("t", 0, 0): dump()["orders", 0, 0]})
    source = open_parquet([write_parquet(tmp_path / "in.parquet", table)])
    rows = _counted(table, source, [900] * 900)
    pulled = 0

    def stream() -> Iterator[pa.RecordBatch]:
        nonlocal pulled
        for batch in rows.to_batches(max_chunksize=10):
            pulled += 1
            yield batch

    batches = stage_rows(
        stream(),
        source=source,
        settings=settings(tmp_path / "out").indexes_alone(),
        fail_fast=False,
    )

    assert pulled == 0
    assert report_rows(pa.Table.from_batches(batches))[0].status == "built"
    assert pulled == 90


@ORDERED
def test_tasks_read_files_of_a_store_themselves(
    spark: SparkSession, s3: S3Server, tmp_path: Path, *, is_sorted: bool
) -> None:
    table = raw_table(dump())
    if not is_sorted:
        table = table.take(np.random.default_rng(7).permutation(table.num_rows))
    (tmp_path / "in").mkdir()
    write_parquet(tmp_path / "in" / "a.parquet", table.slice(0, 400))
    write_parquet(tmp_path / "in" / "b.parquet", table.slice(400))
    local = settings(tmp_path / "local")
    build_locally(open_parquet([str(tmp_path / "in")]), local, threads=2, listener=CollectedRows())

    with bucket_for_tasks(s3, tmp_path) as bucket:
        source = open_parquet([upload(tmp_path / "in", f"{bucket}/in")])
        remote = replace(local, target_root=f"{bucket}/out")
        report = build_parquet(spark, source, remote, bins=3)
        written = download(f"{bucket}/out")

    assert set(report["status"].to_pylist()) == {"built"}
    files = {name: found for name, found in written.items() if "/." not in f"/{name}"}
    assert files == {
        name: found for name, found in built_files(tmp_path / "local").items() if "/." not in name
    }
    assert any(name.endswith(".snapshot") for name in files)


def _counted(table: pa.Table, source: ParquetInput, counts: list[int]) -> pa.Table:
    """Rows as a task gets them."""
    canonical = table.select(list(source.columns)).cast(source.schema)
    return canonical.append_column(ROW_COUNT, pa.array(counts, pa.int64()))
