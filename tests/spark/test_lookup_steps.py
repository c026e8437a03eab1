"""Tasks of lookups, run here: inputs that end early, what a worker keeps, what opening costs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from kafka_index.errors import KafkaIndexError
from kafka_index.lookup import (
    AnswerTarget,
    By,
    Inventory,
    LookupSettings,
    PieceReport,
    Queries,
    open_queries,
)
from kafka_index.lookup.inventory.tables import PARTITION_SCHEMA, SEGMENT_SCHEMA
from kafka_index.lookup.planner import LOCAL_OPEN_SECONDS, bin_partitions
from kafka_index.reading.answers import Resolve
from kafka_index.spark.lookup_messages import BLOCK_ROWS, MARKER
from kafka_index.spark.lookup_steps import GroupedWork, answer_asked, ask, mark, write_pieces
from kafka_index.spark.lookup_tasks import (
    DONE_SCHEMA,
    SharedLookups,
    answer_pieces,
    manifest_table,
    read_done,
)
from kafka_index.spark.open_cost import measure_open_seconds
from tests.spark.lookups import answer, files, make_dump, make_queries, write_queries

SETTINGS = LookupSettings(By.OFFSET, Resolve.BATCH)


class Run:
    """A run of two pieces, which one task writes and several answer."""

    def __init__(self, folder: Path, queries: int = 300) -> None:
        self.inventory = make_dump(folder)
        tables = [make_queries("offset", queries, seed) for seed in range(2)]
        path = write_queries(folder / "queries", tables)
        self.queries: Queries = open_queries(str(path), By.OFFSET)
        self.lookups = SharedLookups.of(self.inventory, SETTINGS)
        self.work = GroupedWork(self.lookups, np.zeros(2, np.int32))

    def manifest(self, target: AnswerTarget) -> pa.Table:
        return manifest_table(self.queries.pieces, target, [0, 0])

    def replies(self, target: AnswerTarget) -> pa.Table:
        """All that a task which writes pieces gets."""
        manifest = self.manifest(target).to_batches()
        ones = np.ones(self.inventory.partitions.num_rows, np.int64)
        places = bin_partitions(ones, ones, 3, open_seconds=0.0)
        asked = ask(manifest, lookups=self.lookups, places=places)
        replies = [*answer_asked(asked, work=self.work), *mark(manifest)]
        order = [("piece", "ascending"), ("block", "ascending")]
        return pa.Table.from_batches(replies).sort_by(order)

    def write(self, replies: pa.Table) -> list[PieceReport]:
        batches = replies.to_batches(max_chunksize=2)
        done = write_pieces(batches, lookups=self.lookups, starting_offsets=False)
        return read_done(pa.Table.from_batches(done, schema=DONE_SCHEMA))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.fixture
def target(run: Run, tmp_path: Path) -> Iterator[AnswerTarget]:
    with AnswerTarget(str(tmp_path / "out"), run.queries) as target:
        yield target


def test_all_replies_together_are_the_answers(
    run: Run, target: AnswerTarget, tmp_path: Path
) -> None:
    reports = run.write(run.replies(target))
    target.publish({report.number: report.rows for report in reports})
    answer(run.queries, run.inventory, By.OFFSET, tmp_path / "local")
    assert files(tmp_path / "out") == files(tmp_path / "local")


def test_a_piece_of_many_blocks_is_put_together(tmp_path: Path) -> None:
    run = Run(tmp_path, 2 * BLOCK_ROWS + 1000)
    with AnswerTarget(str(tmp_path / "out"), run.queries) as target:
        replies = run.replies(target)
        assert set(replies["block"].to_pylist()) == {MARKER, 0, 1, 2}
        reports = run.write(replies)
        target.publish({report.number: report.rows for report in reports})
    answer(run.queries, run.inventory, By.OFFSET, tmp_path / "local")
    assert files(tmp_path / "out") == files(tmp_path / "local")


def test_a_piece_whose_answers_did_not_all_come_is_not_written(
    run: Run, target: AnswerTarget
) -> None:
    """A cancelled Spark task sees its input end early, as if that were all of it."""
    replies = run.replies(target)
    # A marker and the answers of three tasks, twice.
    assert replies["piece"].to_pylist() == [0] * 4 + [1] * 4
    with pytest.raises(KafkaIndexError, match="answers are missing"):
        run.write(replies.slice(0, 7))
    first, second = (Path(target.part_path(piece)) for piece in run.queries.pieces)
    assert first.exists()
    assert list(second.parent.iterdir()) == [first]


def test_answers_that_are_missing_in_between_are_noticed(run: Run, target: AnswerTarget) -> None:
    replies = run.replies(target)
    with pytest.raises(KafkaIndexError, match="answers are missing"):
        run.write(pa.concat_tables([replies.slice(0, 2), replies.slice(3)]))


def test_answers_that_came_twice_are_noticed(run: Run, target: AnswerTarget) -> None:
    replies = run.replies(target)
    with pytest.raises(KafkaIndexError, match="more answers than queries"):
        run.write(pa.concat_tables([replies, replies.slice(7)]))


def test_answers_to_nothing_are_noticed(run: Run, target: AnswerTarget) -> None:
    replies = run.replies(target)
    block = replies.schema.get_field_index("block")
    later = replies.slice(7).set_column(block, "block", pa.array([5], pa.int32()))
    with pytest.raises(KafkaIndexError, match="more answers than queries"):
        run.write(pa.concat_tables([replies, later.cast(replies.schema)]))


def test_a_manifest_that_ends_early_leaves_pieces_undone_and_none_wrong(
    run: Run, target: AnswerTarget
) -> None:
    manifest = run.manifest(target).slice(0, 1).to_batches()
    done = answer_pieces(manifest, lookups=run.lookups, starting_offsets=False)
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


def test_opening_costs_more_where_indexes_are_missing(tmp_path: Path) -> None:
    inventory = make_dump(tmp_path)
    assert LOCAL_OPEN_SECONDS <= measure_open_seconds(inventory) < 0.1
    sizes = pa.array([20_000_000_000] * inventory.segment_count, pa.int64())
    place = inventory.segments.schema.get_field_index("size_bytes")
    large = Inventory(
        inventory.partitions,
        inventory.segments.set_column(place, inventory.segments.schema.field(place), sizes),
    )
    assert measure_open_seconds(large) < 0.1
    for path in (tmp_path / "indexes").rglob("*.timeindex"):
        path.unlink()
    assert measure_open_seconds(large) > 5


def test_opening_nothing_costs_what_opening_costs() -> None:
    empty = Inventory(PARTITION_SCHEMA.empty_table(), SEGMENT_SCHEMA.empty_table())
    assert measure_open_seconds(empty) == LOCAL_OPEN_SECONDS
