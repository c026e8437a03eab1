"""Parquet input on Spark: the same bytes as from the logs, and nothing from half an input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from kafka_index.commands.build.parquet_input import ROW_COUNT, ParquetInput, open_parquet
from kafka_index.core.errors import InputError
from kafka_index.core.log.choices import INDEX_OUTPUTS
from kafka_index.core.log.recovery.settings import BuildSettings, SegmentReport, report_table
from kafka_index.core.logdir.listing import list_dump
from kafka_index.spark.indexes import build_rows, stage_rows
from kafka_index.spark.workers import session_workers, unpack_rows
from tests.servers.s3 import S3Server
from tests.support.dumps import (
    CollectedRows,
    Log,
    Segment,
    batch_table,
    built_parquet_rows,
    built_rows,
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


def _build(spark: SparkSession, source: ParquetInput, target: BuildSettings) -> list[SegmentReport]:
    collected = CollectedRows()
    with session_workers(spark) as workers:
        build_rows(workers, source, target, listener=collected)
    return collected.rows


def _from_logs(tmp_path: Path) -> dict[str, bytes]:
    logs = write_logs(tmp_path / "logs", dump())
    segments = list_dump([str(logs)], topics=None).segments
    built_rows(segments, settings(tmp_path / "expected"))
    return index_files(tmp_path / "expected")


@FORMS
@ORDERED
def test_parquet_build_equals_log_build(
    spark: SparkSession, tmp_path: Path, form: _Form, *, is_sorted: bool
) -> None:
    table = form(dump())
    if not is_sorted:
        table = table.take(pa.array(np.random.default_rng(7).permutation(table.num_rows)))
    source = open_parquet([write_parquet(tmp_path / "in.parquet", table)])

    rows = _build(spark, source, settings(tmp_path / "spark", outputs=INDEX_OUTPUTS))

    assert index_files(tmp_path / "spark") == _from_logs(tmp_path)
    assert {row.status for row in rows} == {"built"}
    assert {row.log_path for row in rows} == {source.path}
    sizes = {key: sum(map(len, batches)) for key, batches in dump().items()}
    assert {
        (row.topic, row.partition, row.segment_base_offset): row.log_size_bytes for row in rows
    } == sizes
    assert leftovers(tmp_path) == []


@ORDERED
@pytest.mark.parametrize("form", [batch_table, raw_batch_table])
def test_segments_of_a_partition_are_scanned_separately_and_merged(
    spark: SparkSession, tmp_path: Path, form: Callable[[Path], pa.Table], *, is_sorted: bool
) -> None:
    data = tmp_path / "logs"
    for number, name in enumerate(("a-0", "a-1", "z-7")):
        write(data / name, segments(number + 3))
    listed = list_dump([str(data)], topics=None).segments
    expected = built_rows(listed, BuildSettings(target_root=str(tmp_path / "expected")))
    table = form(data)
    if not is_sorted:
        table = table.take(np.random.default_rng(7).permutation(table.num_rows))
    source = open_parquet([write_parquet(tmp_path / "in.parquet", table)])

    rows = _build(spark, source, BuildSettings(target_root=str(tmp_path / "out")))

    assert outcomes(report_table(rows)) == outcomes(report_table(expected))
    assert {row.log_path for row in rows} == {source.path}
    files, of_logs = (
        {name: data for name, data in built_files(root).items() if "/." not in name}
        for root in (tmp_path / "out", tmp_path / "expected")
    )
    assert files == of_logs
    assert any(name.endswith(".snapshot") for name in files)


@FORMS
def test_bad_rows_are_reported_equally_by_both_engines(
    spark: SparkSession, tmp_path: Path, form: _Form
) -> None:
    table = form(dump())
    table = change(table, 3, "position_bytes", 1)
    for row in range(900, 940):
        table = change(table, row, "topic", "../up")
    table = change(table, 945, "position_bytes", None)
    source = open_parquet([write_parquet(tmp_path / "in.parquet", table)])
    local = built_parquet_rows(source, settings(tmp_path / "local", outputs=INDEX_OUTPUTS))

    rows = _build(spark, source, settings(tmp_path / "spark", outputs=INDEX_OUTPUTS))

    assert outcomes(report_table(rows)) == outcomes(report_table(local))
    assert sorted(row.status for row in rows) == ["built", "failed", "failed", "failed"]
    assert index_files(tmp_path / "spark") == index_files(tmp_path / "local")
    assert not (tmp_path / "up-0").exists()


def test_rows_without_a_segment_stop_the_run_before_it_writes(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = change(metadata_table(dump()), 5, "topic", None)
    source = open_parquet([write_parquet(tmp_path / "in.parquet", table)])

    with pytest.raises(InputError, match="column topic is null"):
        _build(spark, source, settings(tmp_path / "spark", outputs=INDEX_OUTPUTS))

    assert index_files(tmp_path) == {}


@FORMS
@pytest.mark.parametrize("missing", [1, 60, 199])
def test_segment_with_missing_rows_is_not_published(
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
        settings=settings(tmp_path / "out", outputs=INDEX_OUTPUTS),
        fail_fast=False,
    )

    (report,) = (row.report for row in unpack_rows(batches))
    assert report.status == "failed"
    assert "expected 200 rows" in (report.reason or "")
    assert index_files(tmp_path / "out") == {}


def test_rows_are_released_chunk_by_chunk(tmp_path: Path) -> None:
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
        settings=settings(tmp_path / "out", outputs=INDEX_OUTPUTS),
        fail_fast=False,
    )

    assert pulled == 0
    (staged,) = unpack_rows(batches)
    assert staged.report.status == "built"
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
    built_parquet_rows(open_parquet([str(tmp_path / "in")]), local)

    with bucket_for_tasks(s3, tmp_path) as bucket:
        source = open_parquet([upload(tmp_path / "in", f"{bucket}/in")])
        remote = replace(local, target_root=f"{bucket}/out")
        rows = _build(spark, source, remote)
        written = download(f"{bucket}/out")

    assert {row.status for row in rows} == {"built"}
    files = {name: found for name, found in written.items() if "/." not in f"/{name}"}
    assert files == {
        name: found for name, found in built_files(tmp_path / "local").items() if "/." not in name
    }
    assert any(name.endswith(".snapshot") for name in files)


def _counted(table: pa.Table, source: ParquetInput, counts: list[int]) -> pa.Table:
    """Rows as a task gets them."""
    canonical = table.select(list(source.columns)).cast(source.schema)
    return canonical.append_column(ROW_COUNT, pa.array(counts, pa.int64()))
