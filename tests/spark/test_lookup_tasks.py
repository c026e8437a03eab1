"""Tasks of lookups, run here: a manifest that ends early, and lookups that stay open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from kafka_index.errors import KafkaIndexError
from kafka_index.lookup import (
    AnswerTarget,
    By,
    LookupSettings,
    Queries,
    open_queries,
)
from kafka_index.reading.answers import Resolve
from kafka_index.spark.lookup_tasks import (
    SharedLookups,
    answer_splits,
    manifest_table,
    read_done,
)
from tests.spark.lookups import make_dump, make_queries, write_queries

SETTINGS = LookupSettings(By.OFFSET, Resolve.BATCH)
QUERIES = 300


class Run:
    """A run of two splits."""

    def __init__(self, folder: Path) -> None:
        self.inventory = make_dump(folder)
        tables = [make_queries("offset", QUERIES, seed) for seed in range(2)]
        path = write_queries(folder / "queries", tables)
        self.queries: Queries = open_queries(str(path), By.OFFSET)
        self.lookups = SharedLookups.of(self.inventory, SETTINGS)

    def manifest(self, target: AnswerTarget) -> pa.Table:
        return manifest_table(self.queries.splits, target, [0, 0])


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.fixture
def target(run: Run, tmp_path: Path) -> Iterator[AnswerTarget]:
    with AnswerTarget(str(tmp_path / "out"), run.queries) as target:
        yield target


def test_a_manifest_that_ends_early_leaves_splits_undone_and_none_wrong(
    run: Run, target: AnswerTarget
) -> None:
    manifest = run.manifest(target).slice(0, 1).to_batches()
    done = answer_splits(manifest, lookups=run.lookups, starting_offsets=False)
    reports = read_done(pa.Table.from_batches(done))
    assert [report.number for report in reports] == [0]
    with pytest.raises(KafkaIndexError, match="not every query has one answer"):
        target.publish({report.number: report.rows for report in reports})


def test_what_a_worker_has_open_stays_open_for_the_run_and_no_longer(run: Run) -> None:
    opened = run.lookups.open()
    assert run.lookups.open() is opened
    other = SharedLookups.of(run.inventory, SETTINGS)
    assert other.open() is not opened
    assert run.lookups.open() is not opened
