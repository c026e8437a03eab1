"""Remote segments without index files: read whole once a run, whatever tasks ask them."""

from __future__ import annotations

import pickle
from collections import Counter
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from kafka_index.commands.lookup.lookup_job import SplitTask, answer_queries, answer_split
from kafka_index.commands.lookup.output import AnswerTarget
from kafka_index.commands.lookup.queries import Queries, open_queries
from kafka_index.commands.lookup.result import LookupTotals
from kafka_index.core.log.choices import By, Resolve
from kafka_index.core.log.read.segment_indexes import SegmentIndexes
from kafka_index.core.query.inventory import collect_inventory, find_unindexed
from kafka_index.core.query.lookups import Keys, LookupSettings, QueryBatch, SharedLookups
from kafka_index.spark import lookup
from kafka_index.spark.lookup import build_missing_indexes, build_needed, find_needs
from kafka_index.spark.workers import pack_together, session_workers
from tests.servers.faults import fault_proxy
from tests.servers.s3 import S3Server
from tests.spark.lookups import answer, files, make_dump, make_queries, write_queries
from tests.support.remote import bucket_for_tasks, upload


def rows_of(asked: Queries, target: AnswerTarget) -> list[pa.RecordBatch]:
    """Splits of queries as a task gets them."""
    works = [SplitTask(split, target.part_path(split)) for split in asked.splits]
    return [pa.record_batch({"packed": [pack_together(list(enumerate(works)))]})]


@pytest.mark.parametrize("by", list(By), ids=lambda by: by.value)
def test_missing_indexes_are_built_before_lookup_tasks(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch, by: By
) -> None:
    local = make_dump(tmp_path)
    tables = [make_queries(by.value, 300, seed) for seed in range(2)]
    queries = write_queries(tmp_path / "queries", tables)
    answer(queries, local, by, tmp_path / "local")
    queries_path = open_queries(str(queries), by)
    with (
        bucket_for_tasks(s3, tmp_path) as uri,
        AnswerTarget(str(tmp_path / "out"), queries_path) as target,
    ):
        inventory = collect_inventory([upload(tmp_path / "logs", f"{uri}/logs")])
        settings = LookupSettings(by, by.default_resolve)
        with SharedLookups(inventory, settings, target.index_folder) as lookups:
            needs = find_needs(rows_of(queries_path, target), lookups=lookups)
            asked_of = [tuple(row.values()) for rows in needs for row in rows.to_pylist()]
            build_needed(asked_of, "test", lookups=lookups)
            # As another worker begins.
            another: SharedLookups = pickle.loads(pickle.dumps(lookups))  # noqa: S301, its own
            with monkeypatch.context() as patch:
                patch.delattr(SegmentIndexes, "_build_once")
                reports = [
                    answer_split(split, another.open(), target.part_path(split), attempt_id="1")
                    for split in queries_path.splits
                ]
        target.publish({report.number: report.rows for report in reports})
    assert files(tmp_path / "out") == files(tmp_path / "local")


def test_offsets_outside_all_logs_need_only_the_last_index(tmp_path: Path) -> None:
    inventory = make_dump(tmp_path)
    table = pa.table({"topic": ["orders"] * 2, "partition": [0, 0], "offset": [-3, -2]})
    queries = open_queries(str(write_queries(tmp_path / "queries", [table])), By.OFFSET)
    with AnswerTarget(str(tmp_path / "out"), queries) as target:
        settings = LookupSettings(By.OFFSET, Resolve.BATCH)
        with SharedLookups(inventory, settings, target.index_folder) as lookups:
            needs = pa.Table.from_batches(find_needs(rows_of(queries, target), lookups=lookups))
    assert needs["segment"].to_pylist() == [1]


@pytest.mark.parametrize("by", list(By), ids=lambda by: by.value)
@pytest.mark.parametrize("rows", [0, 3], ids=["empty", "unknown"])
def test_queries_of_no_partition_need_no_index(tmp_path: Path, by: By, rows: int) -> None:
    inventory = make_dump(tmp_path)
    keys = pa.array([5, 6, 7][:rows], pa.int64())
    codes = pa.array([0, 9, None][:rows], pa.int32())
    topics = pa.array(["nobody", "orders", "orders"][:rows], pa.string())
    table = pa.table({"topic": topics, "partition": codes, by.value: keys})
    queries = open_queries(str(write_queries(tmp_path / "queries", [table])), by)
    with AnswerTarget(str(tmp_path / "out"), queries) as target:
        settings = LookupSettings(by, by.default_resolve)
        with SharedLookups(inventory, settings, target.index_folder) as lookups:
            needs = pa.Table.from_batches(find_needs(rows_of(queries, target), lookups=lookups))
    assert needs.num_rows == 0
    batch = QueryBatch(topics, codes, Keys.from_column(keys, by))
    assert list(lookup._keys_by_partition(batch, inventory)) == []


def test_each_log_is_read_by_one_request_of_one_worker(
    spark: SparkSession, tmp_path: Path, s3: S3Server
) -> None:
    local = make_dump(tmp_path)
    tables = [make_queries("offset", 300, seed) for seed in range(4)]
    queries = write_queries(tmp_path / "queries", tables)
    answer(queries, local, By.OFFSET, tmp_path / "local", resolve=Resolve.INDEX)
    queries_path = open_queries(str(queries), By.OFFSET)
    totals = LookupTotals()
    with (
        fault_proxy(s3.endpoint) as proxy,
        bucket_for_tasks(s3.behind(proxy.endpoint), tmp_path) as uri,
        AnswerTarget(str(tmp_path / "out"), queries_path) as target,
    ):
        inventory = collect_inventory([upload(tmp_path / "logs", f"{uri}/logs")])
        unindexed = find_unindexed(inventory, By.OFFSET)
        assert unindexed["size_bytes"].to_pylist() == inventory.segments["size_bytes"].to_pylist()
        # At this level nothing of a log is read but what an index is built from.
        settings = LookupSettings(By.OFFSET, Resolve.INDEX)
        with session_workers(spark) as workers:
            prepare = partial(build_missing_indexes, workers, unindexed)
            for report in answer_queries(
                workers, queries_path, inventory, settings, target, prepare=prepare
            ):
                totals.add(report)
        target.publish(totals.rows_of_split)
        reads = Counter(request.path for request in proxy.gets(".log"))
    assert files(tmp_path / "out") == files(tmp_path / "local")
    assert list(reads.values()) == [1] * inventory.segment_count
