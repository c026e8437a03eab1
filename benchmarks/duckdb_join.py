"""Floor entries of queries by DuckDB's join to the nearest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import duckdb

_JOIN = """
    SELECT q.topic, q.partition, q."offset", e.entry_offset, e.entry_position_bytes
    FROM queries q ASOF JOIN entries e
    ON q.partition = e.partition AND q."offset" >= e.entry_offset
"""


def asof_join(
    threads: int, constants: Mapping[str, str | int | None], queries: Path, entries: Path, out: Path
) -> None:
    """Answer in any order."""
    columns = ", ".join(f"{_literal(value)} AS {name}" for name, value in constants.items())
    with duckdb.connect() as connection:
        connection.execute(f"SET threads = {threads}")
        connection.execute("SET preserve_insertion_order = false")
        connection.read_parquet(str(queries / "*.parquet")).create_view("queries")
        connection.read_parquet(str(entries)).create_view("entries")
        answers = connection.sql(_JOIN).project(f"*, {columns}")
        answers.write_parquet(str(out), compression="snappy")


def _literal(value: str | int | None) -> str:
    if isinstance(value, str):
        return f"'{value}'"
    return f"CAST({'NULL' if value is None else value} AS BIGINT)"
