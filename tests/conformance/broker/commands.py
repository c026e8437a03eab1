"""The product's own commands, run as anybody would."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Query = tuple[str, int, int]

_REPORT = "report.csv"


def build(data: Path, output: Path, config: Path) -> list[dict[str, object]]:
    """Run ``kafka-index build`` into a folder; the rows of its report."""
    return _build(data, "--output", str(output), config=config)


def build_in_place(data: Path, config: Path) -> list[dict[str, object]]:
    """Run ``kafka-index build --in-place``; the rows of its report."""
    return _build(data, "--in-place", config=config)


def lookup(data: Path, by: str, queries: Sequence[Query], config: Path) -> list[dict[str, object]]:
    """Run ``kafka-index lookup`` down to the record; the answers in the order of the queries."""
    folder = config.parent
    topics, partitions, targets = zip(*queries, strict=True)
    table = pa.table(
        {
            "topic": pa.array(topics),
            "partition": pa.array(partitions, pa.int32()),
            by: pa.array(targets, pa.int64()),
        }
    )
    asked, answered = folder / f"{by}s.parquet", folder / f"{by}s-answered.parquet"
    pq.write_table(table, asked)
    answered.unlink(missing_ok=True)
    _run(
        *("lookup", "--logs", str(data), "--queries", str(asked), "--by", by),
        *("--resolve", "record", "--output", str(answered), "--config", str(config)),
    )
    rows: list[dict[str, object]] = pq.read_table(answered).to_pylist()
    return rows


def _build(data: Path, *target: str, config: Path) -> list[dict[str, object]]:
    report = config.parent / _REPORT
    report.unlink(missing_ok=True)
    command = ("build", "--input", str(data), *target, "--config", str(config))
    _run(*command, "--report", str(report))
    rows: list[dict[str, object]] = pacsv.read_csv(report).to_pylist()
    return rows


def _run(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kafka_index", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
