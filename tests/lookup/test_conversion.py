"""Answers in another format than that of the queries."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
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
    parquet_queries,
)
from kafka_index.reading.answers import ANSWER_SCHEMA, Resolve
from tests.lookup.building import (
    ODD_TEXT,
    C,
    J,
    P,
    make_dump,
    query,
    read_answers,
    run,
    statuses,
    write_queries,
)

PAIRS = [(one, other) for one in QueryFormat for other in QueryFormat if one is not other]


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dump(tmp_path_factory.mktemp("dump"))


def pair_id(pair: tuple[QueryFormat, QueryFormat]) -> str:
    return f"{pair[0].value} to {pair[1].value}"


@pytest.fixture(params=PAIRS, ids=pair_id)
def pair(request: pytest.FixtureRequest) -> tuple[QueryFormat, QueryFormat]:
    value: tuple[QueryFormat, QueryFormat] = request.param
    return value


@pytest.mark.parametrize("as_file", [True, False])
def test_answers_are_those_of_the_format_itself_in_its_order(
    dump: Path,
    tmp_path: Path,
    pair: tuple[QueryFormat, QueryFormat],
    monkeypatch: pytest.MonkeyPatch,
    as_file: bool,  # noqa: FBT001
) -> None:
    monkeypatch.setattr(parquet_queries, "_MIN_SPLIT_ROWS", 10)
    monkeypatch.setattr(csv_queries, "_BLOCK_BYTES", 500)
    monkeypatch.setattr(json_queries, "_BLOCK_BYTES", 500)
    source, form = pair
    rows: list[dict[str, Any]] = []
    for number in range(5):
        some = [
            query("orders", row % 2, 3 * row, note=f"{number}-{row}, {ODD_TEXT}")
            for row in range(50)
        ]
        write_queries(tmp_path / "queries" / f"{number}{source.endings[0]}", some)
        rows += some
    output = tmp_path / (f"out{form.endings[-1]}" if as_file else "out")
    totals = run(tmp_path / "queries", output, dump, threads=3, output_format=form)
    run(tmp_path / "queries", tmp_path / "same", dump)
    answers = read_answers(output)
    assert [row["note"] for row in answers] == [row["note"] for row in rows]
    assert [int(row["offset"]) for row in answers] == [row["offset"] for row in rows]
    assert statuses(answers) == statuses(read_answers(tmp_path / "same"))
    assert list(answers[0]) == [*rows[0], *ANSWER_SCHEMA.names]
    assert totals.rows == len(rows)
    if not as_file:
        names = sorted(path.name for path in output.iterdir())
        assert names[:2] == ["_SUCCESS", f"part-00000-0{form.endings[0]}"]


def test_parts_of_another_format_become_one_file(
    dump: Path, tmp_path: Path, pair: tuple[QueryFormat, QueryFormat]
) -> None:
    source, form = pair
    for number in range(3):
        rows = [query("orders", 0, 10 * number + row, **{"a,b": "x"}) for row in range(10)]
        write_queries(tmp_path / "queries" / f"{number}{source.endings[0]}", rows)
    queries = open_queries(str(tmp_path / "queries"), By.OFFSET)
    joined = tmp_path / f"joined{form.endings[0]}"
    with (
        AnswerTarget(str(joined), queries, output_format=form) as target,
        Lookups(
            collect_inventory([str(dump)]), LookupSettings(By.OFFSET, Resolve.BATCH)
        ) as lookups,
    ):
        for split in queries.splits:
            answer_split(split, lookups, target.part_path(split), attempt_id="1")
        target.publish(dict.fromkeys(range(3), 10))
    run(tmp_path / "queries", tmp_path / f"local{form.endings[0]}", dump, output_format=form)
    answers = read_answers(joined)
    assert [int(row["offset"]) for row in answers] == list(range(30))
    assert answers == read_answers(tmp_path / f"local{form.endings[0]}")


def test_files_without_queries_have_the_columns_of_the_others(
    dump: Path, tmp_path: Path, pair: tuple[QueryFormat, QueryFormat]
) -> None:
    source, form = pair
    rows = [query("orders", 0, 5, note="x")]
    empty = write_queries(tmp_path / "queries" / f"a{source.endings[0]}", rows)
    if source is P:
        pq.write_table(pq.read_table(empty).slice(0, 0), empty)
    else:
        empty.write_bytes(b"")
    run(empty, tmp_path / "none", dump, output_format=form)
    assert read_answers(tmp_path / "none") == []
    write_queries(tmp_path / "queries" / f"b{source.endings[0]}", rows)
    run(tmp_path / "queries", tmp_path / "out", dump, output_format=form)
    (answer,) = read_answers(tmp_path / "out")
    assert (answer["note"], answer["status"]) == ("x", "found")
    first = tmp_path / "out" / f"part-00000-a{form.endings[0]}"
    if form is P:
        assert pq.read_schema(first).names == list(answer)
    elif form is C:
        assert first.read_text().splitlines() == [",".join(f'"{name}"' for name in answer)]


@pytest.mark.parametrize("source", [C, J])
def test_compressed_queries_are_converted_as_others_are(
    dump: Path, tmp_path: Path, source: QueryFormat
) -> None:
    plain = write_queries(
        tmp_path / f"q{source.endings[0]}", [query("orders", 0, 5, note=ODD_TEXT)]
    )
    packed = tmp_path / f"z{source.endings[0]}.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for path in (plain, packed):
        run(path, tmp_path / f"{path.name}.parquet", dump, output_format=P)
    one, other = (pq.read_table(tmp_path / f"{path.name}.parquet") for path in (plain, packed))
    assert one.equals(other)
    run(packed, tmp_path / "parts", dump, output_format=P)
    assert (tmp_path / "parts" / "part-00000-z.parquet").exists()


def test_columns_of_files_in_another_order_stay_under_their_names(
    dump: Path, tmp_path: Path
) -> None:
    (tmp_path / "queries").mkdir()
    table = pa.table({"topic": ["orders"], "partition": [0], "offset": [5], "note": ["x"]})
    pq.write_table(table, tmp_path / "queries" / "a.parquet")
    other = table.select(["note", "offset", "topic", "partition"])
    pq.write_table(other, tmp_path / "queries" / "b.parquet")
    for form in (C, J):
        run(tmp_path / "queries", tmp_path / form.value, dump, output_format=form)
        one, two = read_answers(tmp_path / form.value)
        assert one == two
        assert list(one) == list(two)
