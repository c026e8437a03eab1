"""Queries in text whose answers are Parquet."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kafka_index.lookup import (
    AnswerTarget,
    By,
    Lookups,
    LookupSettings,
    QueryFormat,
    answer_split,
    collect_inventory,
    csv_queries,
    json_queries,
    open_queries,
)
from kafka_index.reading.answers import ANSWER_SCHEMA, Resolve
from tests.lookup.building import (
    ODD_TEXT,
    C,
    J,
    query,
    read_answers,
    run,
    statuses,
    write_queries,
)

SOURCE = pytest.mark.parametrize("source", [C, J], ids=["csv", "json"])


@SOURCE
def test_answers_are_those_of_the_format_itself_in_its_order(
    dump: Path, tmp_path: Path, source: QueryFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_queries, "_BLOCK_BYTES", 500)
    monkeypatch.setattr(json_queries, "_BLOCK_BYTES", 500)
    rows: list[dict[str, Any]] = []
    for number in range(5):
        some = [
            query("orders", row % 2, 3 * row, note=f"{number}-{row}, {ODD_TEXT}")
            for row in range(50)
        ]
        write_queries(tmp_path / "queries" / f"{number}{source.endings[0]}", some)
        rows += some
    output = tmp_path / "out.parquet"
    totals = run(tmp_path / "queries", output, dump, threads=3)
    run(tmp_path / "queries", tmp_path / "same", dump)
    answers = read_answers(output)
    assert [row["note"] for row in answers] == [row["note"] for row in rows]
    assert [int(row["offset"]) for row in answers] == [row["offset"] for row in rows]
    assert statuses(answers) == statuses(read_answers(tmp_path / "same"))
    assert list(answers[0]) == [*rows[0], *ANSWER_SCHEMA.names]
    assert totals.rows == len(rows)


@SOURCE
def test_parts_of_another_format_become_one_file(
    dump: Path, tmp_path: Path, source: QueryFormat
) -> None:
    for number in range(3):
        rows = [query("orders", 0, 10 * number + row, **{"a,b": "x"}) for row in range(10)]
        write_queries(tmp_path / "queries" / f"{number}{source.endings[0]}", rows)
    queries = open_queries(str(tmp_path / "queries"), By.OFFSET)
    joined = tmp_path / "joined.parquet"
    with (
        AnswerTarget(str(joined), queries) as target,
        Lookups(
            collect_inventory([str(dump)]), LookupSettings(By.OFFSET, Resolve.BATCH)
        ) as lookups,
    ):
        for split in queries.splits:
            answer_split(split, lookups, target.part_path(split), attempt_id="1")
        target.publish(dict.fromkeys(range(3), 10))
    run(tmp_path / "queries", tmp_path / "local.parquet", dump)
    answers = read_answers(joined)
    assert [int(row["offset"]) for row in answers] == list(range(30))
    assert answers == read_answers(tmp_path / "local.parquet")


@SOURCE
def test_files_without_queries_have_the_columns_of_the_others(
    dump: Path, tmp_path: Path, source: QueryFormat
) -> None:
    rows = [query("orders", 0, 5, note="x")]
    empty = write_queries(tmp_path / "queries" / f"a{source.endings[0]}", rows)
    empty.write_bytes(b"")
    run(empty, tmp_path / "none.parquet", dump)
    assert read_answers(tmp_path / "none.parquet") == []
    write_queries(tmp_path / "queries" / f"b{source.endings[0]}", rows)
    run(tmp_path / "queries", tmp_path / "out.parquet", dump)
    (answer,) = read_answers(tmp_path / "out.parquet")
    assert (answer["note"], answer["status"]) == ("x", "found")


@SOURCE
def test_compressed_queries_are_converted_as_others_are(
    dump: Path, tmp_path: Path, source: QueryFormat
) -> None:
    plain = write_queries(
        tmp_path / f"q{source.endings[0]}", [query("orders", 0, 5, note=ODD_TEXT)]
    )
    packed = tmp_path / f"z{source.endings[0]}.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for path in (plain, packed):
        run(path, tmp_path / f"{path.name}.parquet", dump)
    one, other = (pq.read_table(tmp_path / f"{path.name}.parquet") for path in (plain, packed))
    assert one.equals(other)
