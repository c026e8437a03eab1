"""Whole runs on this machine: queries of every kind in, the same rows with their answers out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from kafka_index.commands.lookup import queries
from kafka_index.core.errors import InputError
from kafka_index.core.log.choices import By, Resolve, Status
from kafka_index.core.log.read.answers import ANSWER_SCHEMA
from kafka_index.core.query.inventory import collect_inventory
from tests.commands.lookup.building import (
    DUMP,
    ENDINGS,
    make_dump,
    query,
    read_answers,
    run,
    statuses,
    without_answers,
    write_queries,
)

GOLDEN = Path(__file__).parents[2] / "core" / "log" / "read" / "golden_lookups" / "answers.parquet"


@pytest.fixture(params=ENDINGS)
def ending(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


@pytest.mark.parametrize("by", By)
@pytest.mark.parametrize("resolve", Resolve)
def test_mixed_queries_have_kafkas_answers(
    tmp_path: Path, by: By, resolve: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several splits and batches, so that the queries of a partition come in many.
    monkeypatch.setattr(queries, "_MIN_SPLIT_ROWS", 1_000)
    golden = pq.read_table(GOLDEN)
    golden = golden.filter((pc.field("by") == by.value) & (pc.field("resolve") == resolve.value))
    golden = golden.take(pa.array(np.random.default_rng(7).permutation(golden.num_rows)))
    asked = pa.table([golden["topic"], golden["partition"], golden["target"].cast(pa.int64())],
                     names=["topic", "partition", by.column])  # fmt: skip
    pq.write_table(asked, tmp_path / "q.parquet", row_group_size=700)
    for output in ("a.parquet", "folder"):
        run(tmp_path / "q.parquet", tmp_path / output, DUMP, by, resolve=resolve, threads=3)
    answers = pq.read_table(tmp_path / "a.parquet")
    for name in asked.column_names:
        assert answers[name].equals(asked[name])
    assert (
        answers.select(ANSWER_SCHEMA.names).to_pylist()
        == golden.select(ANSWER_SCHEMA.names).to_pylist()
    )
    assert read_answers(tmp_path / "folder") == answers.to_pylist()


ODD = [
    query("orders", 0, 5, note='a, "b"\nü'),
    query("nowhere", 0, 5, note=""),
    query("orders", 1, 5, note=" "),
    query("orders", 0, None, note="x"),
    query("orders", 0, -1, note="x"),
    query("orders", 0, 50, note="x"),
    query("orders", 0, 51, note="x"),
    query(None, 0, 5, note="x"),
    query("orders", None, 5, note="x"),
]
ODD_STATUSES = [
    "found",
    "unknown_partition",
    "before_log_start",
    "invalid_query",
    "invalid_query",
    "log_end",
    "after_log_end",
    "invalid_query",
    "invalid_query",
]


@pytest.mark.parametrize("as_file", [True, False])
def test_every_query_has_one_answer_in_its_row(
    dump: Path,
    tmp_path: Path,
    ending: str,
    as_file: bool,  # noqa: FBT001
) -> None:
    queries = write_queries(tmp_path / f"q{ending}", ODD)
    output = tmp_path / (f"out{ending}" if as_file else "out")
    totals = run(queries, output, dump)
    answers = read_answers(output)
    assert statuses(answers) == ODD_STATUSES
    assert without_answers(answers) == read_answers(queries)
    assert totals.rows == len(ODD)
    assert {status.text: queries for status, queries in totals.queries_of_status.items()} == {
        status.text: ODD_STATUSES.count(status.text) for status in Status
    }


def test_answer_columns_are_the_same_at_every_level(
    dump: Path, tmp_path: Path, ending: str
) -> None:
    queries = write_queries(tmp_path / f"q{ending}", ODD[:1])
    for resolve in Resolve:
        output = tmp_path / f"{resolve.value}{ending}"
        run(queries, output, dump, resolve=resolve)
        (answer,) = read_answers(output)
        assert list(answer) == [*ODD[0], *ANSWER_SCHEMA.names]
        assert (answer["found_offset"] in (None, "")) == (resolve is not Resolve.RECORD)


def test_several_threads_write_one_answer_file_in_query_order(
    dump: Path, tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_MIN_SPLIT_ROWS", 10)
    monkeypatch.setattr(queries, "_BATCH_TEXT_BYTES", 0)
    monkeypatch.setattr(queries, "_MIN_TEXT_ROWS", 10)
    expected = []
    for number in range(7):
        rows = [query("orders", row % 2, row, id=f"{number}-{row}") for row in range(60)]
        write_queries(tmp_path / "queries" / f"{number}{ending}", rows)
        expected += [row["id"] for row in rows]
    for output in (f"one{ending}", "parts"):
        totals = run(tmp_path / "queries", tmp_path / output, dump, threads=4)
        assert [row["id"] for row in read_answers(tmp_path / output)] == expected
        assert totals.rows == 420


def test_answer_parts_have_the_names_of_their_query_files(
    dump: Path, tmp_path: Path, ending: str
) -> None:
    for name in ("b", "a.gz"):
        write_queries(tmp_path / "queries" / f"{name}{ending}", ODD)
    run(tmp_path / "queries", tmp_path / "out", dump)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "_SUCCESS",
        f"part-00000-a{ending}",
        f"part-00001-b{ending}",
    ]


def test_query_files_without_queries_have_empty_answer_parts(
    dump: Path, tmp_path: Path, ending: str
) -> None:
    empty = write_queries(tmp_path / "queries" / f"a{ending}", ODD)
    if ending == ".parquet":
        pq.write_table(pq.read_table(empty).slice(0, 0), empty)
    else:
        empty.write_bytes(b"")
    totals = run(tmp_path / "queries", tmp_path / "none", dump)
    assert totals.rows == 0
    run(tmp_path / "queries", tmp_path / f"none{ending}", dump)
    assert read_answers(tmp_path / "none") == read_answers(tmp_path / f"none{ending}") == []
    write_queries(tmp_path / "queries" / f"b{ending}", ODD)
    run(tmp_path / "queries", tmp_path / f"all{ending}", dump)
    assert statuses(read_answers(tmp_path / f"all{ending}")) == ODD_STATUSES


def test_malformed_query_found_late_ends_the_run_without_output(dump: Path, tmp_path: Path) -> None:
    for number in range(4):
        write_queries(tmp_path / "queries" / f"{number}.csv", ODD)
    with (tmp_path / "queries" / "2.csv").open("a") as file:
        file.write('orders,0,5,"\n')
    for output in ("out", "out.csv"):
        with pytest.raises(
            InputError,
            match=r"2\.csv: row 11, with the header, does not parse: Value with unterminated quote",
        ):
            run(tmp_path / "queries", tmp_path / output, dump, threads=2)
    assert [path.name for path in tmp_path.iterdir()] == ["queries"]


def test_invalid_key_is_answered_in_its_row(dump: Path, tmp_path: Path) -> None:
    text = "topic,partition,offset\norders,0,5\norders,0,\norders,x,7\norders,0,9007199254740993\n"
    (tmp_path / "q.csv").write_text(text)
    run(tmp_path / "q.csv", tmp_path / "out.csv", dump)
    answers = read_answers(tmp_path / "out.csv")
    assert statuses(answers) == ["found", "invalid_query", "invalid_query", "after_log_end"]
    assert [row["offset"] for row in answers] == ["5", "", "7", "9007199254740993"]


def test_json_members_of_a_query_are_copied_unchanged(dump: Path, tmp_path: Path) -> None:
    odd = '{ "topic":"orders" , "n":1.50,"a":{"b":[ ]}, "partition":0,"offset":7 \t}'
    (tmp_path / "q.json").write_text(odd + "\n{ }\n")
    run(tmp_path / "q.json", tmp_path / "out.json", dump)
    first, *others = (tmp_path / "out.json").read_text().splitlines()
    assert first.startswith(odd[:-3] + ',"status":"found",')
    for line in others:
        assert line.startswith('{"status":"invalid_query",')


TYPES: dict[str, pa.Array] = {
    "nested": pa.array([{"a": [1, None], "b": {"c": "x"}}, None]),
    "list": pa.array([[1, 2], []], pa.list_(pa.int16())),
    "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
    "dictionary": pa.array(["x", "y"]).dictionary_encode(),
    "decimal": pa.array([1, None], pa.decimal128(20, 3)),
    "nanos": pa.array([1, 2], pa.timestamp("ns", "Asia/Tokyo")),
    "large": pa.array(["a", "b"], pa.large_string()),
    "bytes": pa.array([b"\x00\xff", None], pa.binary()),
    "null": pa.nulls(2),
    "day": pa.array([1, 2], pa.date32()),
}


@pytest.mark.parametrize("as_file", [True, False])
def test_other_query_columns_keep_their_types_and_metadata(
    dump: Path,
    tmp_path: Path,
    as_file: bool,  # noqa: FBT001
) -> None:
    fields = [pa.field("topic", pa.string(), nullable=False, metadata={"comment": "the topic"})]
    fields += [pa.field("partition", pa.uint8()), pa.field("offset", pa.uint64())]
    fields += [pa.field(name, column.type) for name, column in TYPES.items()]
    asked = pa.table(
        [pa.array(["orders"] * 2), pa.array([0, 0], pa.uint8()), pa.array([5, 2**63], pa.uint64()),
         *TYPES.values()],
        schema=pa.schema(fields, {"owner": "us"}),
    )  # fmt: skip
    pq.write_table(asked, tmp_path / "q.parquet")
    output = tmp_path / ("out.parquet" if as_file else "out")
    run(tmp_path / "q.parquet", output, dump)
    answers = pq.ParquetFile(output if as_file else output / "part-00000-q.parquet").read()
    before = pq.ParquetFile(tmp_path / "q.parquet").read()
    passed = answers.select(before.column_names)
    assert passed.equals(before)
    assert passed.schema.equals(before.schema, check_metadata=True)
    assert answers.schema.metadata[b"owner"] == b"us"
    assert statuses(answers.to_pylist()) == ["found", "invalid_query"]
    assert pa.schema(list(answers.schema)[-len(ANSWER_SCHEMA) :]).equals(ANSWER_SCHEMA)


def test_pandas_reads_answers_to_queries_written_by_pandas(dump: Path, tmp_path: Path) -> None:
    asked = pa.table({"topic": ["orders"], "partition": [0], "offset": [5]}).to_pandas()
    asked.index = [17]
    asked.to_parquet(tmp_path / "q.parquet")
    run(tmp_path / "q.parquet", tmp_path / "out.parquet", dump)
    answers = pq.read_table(tmp_path / "out.parquet").to_pandas()
    assert answers.index.tolist() == [17]
    assert answers.loc[17, "status"] == "found"


def test_spark_schema_in_a_query_file_is_extended_by_the_answer_columns(
    dump: Path, tmp_path: Path
) -> None:
    key = b"org.apache.spark.sql.parquet.row.metadata"
    field = {"name": "topic", "type": "string", "nullable": True, "metadata": {"comment": "x"}}
    for stored in (json.dumps({"type": "struct", "fields": [field]}), "nonsense", "[]"):
        asked = pa.table({"topic": ["orders"], "partition": [0], "offset": [5]})
        with pq.ParquetWriter(tmp_path / "q.parquet", asked.schema, store_schema=False) as writer:
            writer.write_table(asked)
            writer.add_key_value_metadata({key: stored})
        run(tmp_path / "q.parquet", tmp_path / "out.parquet", dump, overwrite=True)
        metadata = pq.read_schema(tmp_path / "out.parquet").metadata or {}
        if stored.startswith("{"):
            fields: list[dict[str, Any]] = json.loads(metadata[key])["fields"]
            assert fields[0] == field
            assert [field_["name"] for field_ in fields[1:]] == ANSWER_SCHEMA.names
            assert {field_["type"] for field_ in fields[1:]} == {"string", "long", "integer"}
        else:
            assert key not in metadata


def test_int96_timestamps_become_microseconds(dump: Path, tmp_path: Path) -> None:
    asked = pa.table({"topic": ["orders"], "partition": [0],
                      "timestamp": pa.array([1_005_000], pa.timestamp("us"))})  # fmt: skip
    pq.write_table(asked, tmp_path / "q.parquet", use_deprecated_int96_timestamps=True,
                   store_schema=False)  # fmt: skip
    run(tmp_path / "q.parquet", tmp_path / "out.parquet", dump, By.TIMESTAMP)
    answers = pq.read_table(tmp_path / "out.parquet")
    assert answers.schema.field("timestamp").type == pa.timestamp("us", "UTC")
    assert answers["found_offset"].to_pylist() == [5]


def test_findings_of_several_threads_are_reported_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_MIN_SPLIT_ROWS", 10)
    make_dump(tmp_path / "dump")
    inventory = collect_inventory([str(tmp_path / "dump")])
    for log in (tmp_path / "dump" / "orders-1").iterdir():
        log.unlink()
    for number in range(6):
        rows = [query("orders", 1, 100 + row) for row in range(20)]
        write_queries(tmp_path / "queries" / f"{number}.parquet", rows)
    totals = run(tmp_path / "queries", tmp_path / "out", inventory, threads=3)
    damage = [finding for finding in totals.findings if finding.kind == "unreadable"]
    assert len({(one.path, one.reason) for one in damage}) == len(damage)
    assert sum(one.queries for one in damage) == totals.queries_of_status[Status.UNREADABLE] == 120
