"""Answers as places where consumers start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kafka_index.commands.lookup.result import (
    StartingOffset,
    reset_offsets_csv,
    starting_offsets_json,
)
from kafka_index.core.errors import InputError
from kafka_index.core.log.choices import By, Resolve, Status, UpperBound
from kafka_index.core.query.inventory import collect_inventory
from tests.commands.lookup.building import Row, make_dump, query, run, write_queries

RANGES = {"a-0": (0, 50), "a-1": (100, 150), "b.c-x-10": (0, 20)}


def starts(
    folder: Path,
    rows: list[Row],
    by: By = By.OFFSET,
    resolve: Resolve | None = None,
    bound: UpperBound = UpperBound.LOG_END,
) -> list[StartingOffset]:
    dump = make_dump(folder / "dump", RANGES)
    (dump / "replication-offset-checkpoint").write_text("0\n2\na 0 33\na 1 120\n")
    (dump / "log-start-offset-checkpoint").write_text("0\n1\nb.c-x 10 3\n")
    queries = write_queries(folder / "q.json", rows)
    inventory = collect_inventory([str(dump)], upper_bound=bound)
    totals = run(queries, folder / "out", inventory, by, resolve=resolve, starting_offsets=True)
    return totals.starting_offsets


def by_time(topic: str, partition: int, timestamp: int) -> Row:
    return {"topic": topic, "partition": partition, "timestamp": timestamp}


def places(found: list[StartingOffset]) -> list[int | None]:
    return [start.offset for start in found]


@pytest.mark.parametrize("resolve", [Resolve.BATCH, Resolve.RECORD])
def test_starting_offset_before_the_log_is_the_log_start(tmp_path: Path, resolve: Resolve) -> None:
    rows = [query("a", 0, 17), query("a", 1, 7), query("b.c-x", 10, 20)]
    assert places(starts(tmp_path, rows, resolve=resolve)) == [17, 100, 20]


def test_starting_offset_after_the_log_end_is_the_log_end(tmp_path: Path) -> None:
    rows = [query("a", 0, 50), query("a", 1, 999)]
    assert places(starts(tmp_path, rows)) == [50, 150]


def test_starting_offset_at_the_end_is_the_high_watermark_if_it_is_the_bound(
    tmp_path: Path,
) -> None:
    rows = [query("a", 0, 40), query("a", 1, 999)]
    assert places(starts(tmp_path, rows, bound=UpperBound.HIGH_WATERMARK)) == [33, 120]


@pytest.mark.parametrize(
    ("resolve", "found"), [(Resolve.RECORD, [17, 107, 3]), (Resolve.BATCH, [10, 100, 3])]
)
def test_starting_offset_of_a_time_is_its_record_or_batch_within_the_log(
    tmp_path: Path, resolve: Resolve, found: list[int]
) -> None:
    rows = [by_time("a", 0, 1017), by_time("a", 1, 1107), by_time("b.c-x", 10, 1002)]
    assert places(starts(tmp_path, rows, By.TIMESTAMP, resolve)) == found


@pytest.mark.parametrize("resolve", [Resolve.BATCH, Resolve.RECORD])
def test_starting_offset_of_a_time_after_all_records_is_the_log_end(
    tmp_path: Path, resolve: Resolve
) -> None:
    rows = [by_time("a", 0, 5000), by_time("a", 1, -1), by_time("b.c-x", 10, -2)]
    assert places(starts(tmp_path, rows, By.TIMESTAMP, resolve)) == [50, 150, 3]


def test_unanswered_query_has_no_starting_offset(tmp_path: Path) -> None:
    rows = [query("a", 7, 1), query("a", 0, -1), query(None, 0, 1)]
    assert starts(tmp_path, rows) == [
        StartingOffset("a", 7, Status.UNKNOWN_PARTITION, None),
        StartingOffset("a", 0, Status.INVALID_QUERY, None),
        StartingOffset(None, 0, Status.INVALID_QUERY, None),
    ]


def test_starting_offsets_keep_at_most_one_query_more_than_partitions(tmp_path: Path) -> None:
    rows = [query("a", 0, 1)] * 100
    assert len(starts(tmp_path, rows)) == len(RANGES) + 1


def test_index_level_is_rejected_for_starting_offsets(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="index level has no starting offsets"):
        starts(tmp_path, [query("a", 0, 1)], resolve=Resolve.INDEX)


def start(
    topic: str | None, partition: int | None, offset: int | None, status: Status = Status.FOUND
) -> StartingOffset:
    return StartingOffset(topic, partition, status, offset)


GOOD = [start("b.c-x", 10, 7), start("a", 1, 100), start("a", 0, 2**40)]


def test_starting_offsets_are_rendered_as_spark_json() -> None:
    text = starting_offsets_json(GOOD)
    assert text == '{"a":{"0":1099511627776,"1":100},"b.c-x":{"10":7}}\n'
    assert json.loads(text)


def test_starting_offsets_are_rendered_as_lines_for_kafkas_tool() -> None:
    assert reset_offsets_csv(GOOD) == "a,0,1099511627776\na,1,100\nb.c-x,10,7\n"


@pytest.mark.parametrize("render", [starting_offsets_json, reset_offsets_csv])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            start("a", 3, None, Status.UNKNOWN_PARTITION),
            "a-3 has no starting offset: unknown_partition",
        ),
        (start(None, None, None, Status.INVALID_QUERY), "None-None has no starting offset"),
        (start("a", 3, None, Status.UNREADABLE), "a-3 has no starting offset: unreadable"),
        (start("a", 1, 100), "two queries have the partition a-1"),
    ],
)
def test_unanswered_partition_fails_all_starting_offsets(
    render: object, bad: StartingOffset, message: str
) -> None:
    assert callable(render)
    with pytest.raises(InputError, match=message):
        render([*GOOD, bad])


def test_starting_offsets_without_queries_are_empty() -> None:
    assert starting_offsets_json([]) == "{}\n"
    assert reset_offsets_csv([]) == ""
