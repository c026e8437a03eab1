"""Tasks of lookups, run here: inputs that end early or do not match, and what a worker keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from kafka_index.errors import KafkaIndexError
from kafka_index.lookup import (
    AnswerTarget,
    By,
    LookupSettings,
    Queries,
    SplitReport,
    open_queries,
)
from kafka_index.reading.answers import Resolve
from kafka_index.spark.lookup import answer_asked, read_splits, write_splits
from kafka_index.spark.lookup_tasks import (
    DONE_SCHEMA,
    SharedLookups,
    answer_splits,
    manifest_table,
    read_done,
)
from tests.spark.lookups import answer, files, make_dump, make_queries, write_queries

SETTINGS = LookupSettings(By.OFFSET, Resolve.BATCH)
QUERIES = 300


class Run:
    """A run of two splits, which one task answers and one writes."""

    def __init__(self, folder: Path) -> None:
        self.inventory = make_dump(folder)
        tables = [make_queries("offset", QUERIES, seed) for seed in range(2)]
        path = write_queries(folder / "queries", tables)
        self.queries: Queries = open_queries(str(path), By.OFFSET)
        self.lookups = SharedLookups.of(self.inventory, SETTINGS)

    def manifest(self, target: AnswerTarget) -> pa.Table:
        return manifest_table(self.queries.splits, target, [0, 0])

    def arrivals(self, target: AnswerTarget) -> pa.Table:
        """The rows of a task that writes splits, as Spark brings them: each split, its answers."""
        manifest = self.manifest(target)
        answered = answer_asked(read_splits(manifest.to_batches()), lookups=self.lookups)
        splits = manifest.append_column("row", pa.array([-1, -1]))
        return pa.concat_tables(
            [pa.Table.from_batches(answered), splits], promote_options="default"
        ).sort_by([("split", "ascending"), ("row", "ascending")])

    def write(self, arrivals: pa.Table) -> list[SplitReport]:
        batches = arrivals.to_batches(max_chunksize=100)
        done = write_splits(batches, lookups=self.lookups, starting_offsets=False)
        return read_done(pa.Table.from_batches(done, schema=DONE_SCHEMA))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.fixture
def target(run: Run, tmp_path: Path) -> Iterator[AnswerTarget]:
    with AnswerTarget(str(tmp_path / "out"), run.queries) as target:
        yield target


def test_all_arrivals_together_are_the_answers(
    run: Run, target: AnswerTarget, tmp_path: Path
) -> None:
    reports = run.write(run.arrivals(target))
    target.publish({report.number: report.rows for report in reports})
    answer(run.queries, run.inventory, By.OFFSET, tmp_path / "local")
    assert files(tmp_path / "out") == files(tmp_path / "local")


def test_a_split_whose_answers_did_not_all_arrive_is_not_written(
    run: Run, target: AnswerTarget
) -> None:
    """A cancelled Spark task sees its input end early, as if that were all of it."""
    arrivals = run.arrivals(target)
    with pytest.raises(KafkaIndexError, match="answers are missing"):
        run.write(arrivals.slice(0, len(arrivals) - 1))
    first, second = (Path(target.part_path(split)) for split in run.queries.splits)
    assert first.exists()
    assert list(second.parent.iterdir()) == [first]


def without(row: int) -> Callable[[pa.Table], pa.Table]:
    return lambda table: pa.concat_tables([table.slice(0, row), table.slice(row + 1)])


def twice(row: int) -> Callable[[pa.Table], pa.Table]:
    return lambda table: pa.concat_tables([table.slice(0, row + 1), table.slice(row)])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without(1), "answers are missing"),
        (without(150), "answers are missing"),
        (without(QUERIES), "answers are missing"),
        (twice(1), "answers are missing"),
        (twice(150), "answers are missing"),
        (twice(QUERIES), "more answers than queries"),
        (twice(2 * QUERIES + 1), "more answers than queries"),
    ],
)
def test_answers_that_do_not_match_the_queries_are_refused(
    run: Run, target: AnswerTarget, change: Callable[[pa.Table], pa.Table], reason: str
) -> None:
    with pytest.raises(KafkaIndexError, match=reason):
        run.write(change(run.arrivals(target)))


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
