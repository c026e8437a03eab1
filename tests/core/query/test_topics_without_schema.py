"""Rows of topics without a schema are no errors of decoding: the rule in each command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import kafka_index
from tests.support.command_line import run_here
from tests.support.typed_topics import (
    TOPICS,
    VALUES,
    Rows,
    check_rows,
    exported_rows,
    rows_of_topics,
    write_topics,
)

#: Returns the rows of topics, the numbers of errors, and the exit code.
Reader = Callable[[Path, tuple[str, ...], Path], tuple[dict[str, Rows], dict[str, int], int]]


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_topics(tmp_path_factory.mktemp("dump"))


def _of_stream(records: Any) -> tuple[dict[str, Rows], dict[str, int], int]:
    rows = rows_of_topics(records.to_arrow().to_pylist())
    return rows, dict(records.decode_errors), records.summary["exit_code"]


def read(dump: Path, topics: tuple[str, ...], _: Path) -> Any:
    return _of_stream(kafka_index.read_records(dump, topics=list(topics), decode="value"))


def find(dump: Path, topics: tuple[str, ...], _: Path) -> Any:
    return _of_stream(
        kafka_index.find_records(dump, topics=list(topics), decode="value", where="offset >= 0")
    )


def find_by_value(dump: Path, topics: tuple[str, ...], _: Path) -> Any:
    where = "value_type IS NULL OR value_type IS NOT NULL"
    return _of_stream(
        kafka_index.find_records(dump, topics=list(topics), decode="value", where=where)
    )


def export(dump: Path, topics: tuple[str, ...], output: Path) -> Any:
    result = kafka_index.export_records(dump, output, topics=list(topics), decode="value")
    return exported_rows(output), dict(result.decode_errors), result.summary["exit_code"]


READERS: Mapping[str, Reader] = {
    "read": read,
    "find": find,
    "find by value": find_by_value,
    "export": export,
}


@pytest.mark.parametrize("topics", TOPICS, ids="-".join)
@pytest.mark.parametrize("command", READERS)
def test_rows_of_topics_without_schema_keep_their_bytes_without_error(
    dump: Path, tmp_path: Path, command: str, topics: tuple[str, ...]
) -> None:
    rows, counts, code = READERS[command](dump, topics, tmp_path / "out")
    check_rows(topics, rows, is_one_table=command != "export")
    assert counts == ({"unknown_id": 3} if "lost" in topics else {})
    assert code == (1 if counts else 0)


@pytest.mark.parametrize("topic", VALUES)
def test_cat_of_topics_without_schema_has_the_exit_code_of_other_commands(
    dump: Path, topic: str
) -> None:
    result = run_here("cat", topic, "--input", dump, "--decode", "value", "--format", "json")
    assert result.returncode == (1 if topic == "lost" else 0), result.stderr
    assert len(result.stdout.splitlines()) == len(VALUES[topic])


def test_schemas_command_counts_the_same_records(dump: Path) -> None:
    uses = kafka_index.read_schemas(dump).uses
    missing = {use.topic: use.records for use in uses if use.status == "missing"}
    assert missing == {"lost": 3}


def test_rewrite_keeps_records_of_topics_without_schema(dump: Path, tmp_path: Path) -> None:
    result = kafka_index.rewrite_dump(
        dump, tmp_path / "out", topics=["typed", "plain"], decode="value", drop_where="value = 'c'"
    )
    assert result.ok
    assert kafka_index.read_records(tmp_path / "out").to_arrow().num_rows == 7
