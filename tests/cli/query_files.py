"""Files of queries and of answers, and single queries to the command line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from kafka_index.core.log.read.answers import ANSWER_SCHEMA
from tests.support.command_line import DUMP, Argument, lookup

Row = tuple[str | None, int | None, int | None]


def queries(by: str, rows: Iterable[Row]) -> pa.Table:
    """Queries, each with a number that passes through."""
    topics, partitions, keys = zip(*rows, strict=True)
    return pa.table(
        {
            "id": pa.array(range(len(topics)), pa.int32()),
            "topic": pa.array(topics, pa.string()),
            "partition": pa.array(partitions, pa.int32()),
            by: pa.array(keys, pa.int64()),
        }
    )


def write_queries(path: Path, table: pa.Table) -> Path:
    """Write queries in the format of the name's suffix."""
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".csv":
        pa_csv.write_csv(table, path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    return path


def read_answers(path: Path) -> list[dict[str, Any]]:
    """Read answers of any form as rows of Python values, missing ones None."""
    if path.suffix == ".parquet":
        rows = pq.read_table(path).to_pylist()
    elif path.suffix == ".csv":
        rows = pa_csv.read_csv(path).to_pylist()
    else:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: None if value == "" else value for name, value in row.items()} for row in rows]


def answer_columns(rows: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """Return the answers alone."""
    return [tuple(row[name] for name in ANSWER_SCHEMA.names) for row in rows]


def ask(*arguments: Argument, logs: Path = DUMP) -> dict[str, Any]:
    """Ask a single query; return its answer as JSON has it."""
    result = lookup("--logs", logs, *arguments, "--json")
    assert result.returncode == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer
