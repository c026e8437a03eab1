"""Ctrl-C and a scheduler's SIGTERM: the run ends in order, and the next one continues it."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_index.core.log.recovery.build_manifest import BUILD_MANIFEST
from tests.support.builds import copy_dump, finish, leftover_files, start
from tests.support.command_line import DUMP, build_here, index_files
from tests.support.gates import Gate, Step

INTERRUPTED, TERMINATED = 130, 143


def kept_and_planned(message: str, word: str) -> tuple[int, int]:
    """The one line on stderr after a stopped build."""
    match = re.fullmatch(
        rf"kafka-index: error: {word}; ([0-9,]+) of ([0-9,]+) segments are finished and published; "
        r"run again to continue\n",
        message,
    )
    assert match is not None, message
    kept, planned = (int(number.replace(",", "")) for number in match.groups())
    return kept, planned


def rows_of(report: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in report.read_text().splitlines()]


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGTERM, TERMINATED, "terminated"), (signal.SIGINT, INTERRUPTED, "interrupted")],
)
def test_terminated_build_keeps_and_reports_every_finished_partition(
    tmp_path: Path, number: signal.Signals, code: int, word: str
) -> None:
    dump = copy_dump(tmp_path / "dump")
    report = tmp_path / "report.json"
    arguments = ("--input", dump, "--output", tmp_path / "out", "--threads", 1, "--quiet")
    gate = Gate(tmp_path / "gate", Step("os.rename", BUILD_MANIFEST, 2))
    process = start(*arguments, "--report", report, gate=gate)
    gate.wait(process)
    gate.stop(process, number)
    result = finish(process)

    assert result.returncode == code
    kept, planned = kept_and_planned(result.stderr, word)
    assert 0 < kept < planned
    assert leftover_files(tmp_path) == []
    assert sum(name.endswith(".index") for name in index_files(tmp_path / "out")) == kept
    rows = rows_of(report)
    assert [row["status"] for row in rows] == ["built"] * kept

    again = build_here(*arguments, "--report", report)

    assert again.returncode == 0, again.stderr
    rows = rows_of(report)
    assert len(rows) == planned
    assert sum(row["status"] == "unchanged" for row in rows) == kept


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, TERMINATED), (signal.SIGINT, INTERRUPTED)]
)
def test_interrupted_lookup_reports_answered_queries_and_writes_no_answers(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    (tmp_path / "queries").mkdir()
    for name in "abcd":
        rows = {"topic": ["payments"] * 1000, "partition": [0] * 1000, "offset": range(1000)}
        pq.write_table(pa.table(rows), tmp_path / f"queries/{name}.parquet")
    report = tmp_path / "report.json"
    gate = Gate(tmp_path / "gate", Step("os.rename", ".parquet", 2))
    process = start(
        *("--logs", DUMP, "--queries", tmp_path / "queries", "--by", "offset", "--quiet"),
        *("--output", tmp_path / "out", "--report", report, "--threads", 1),
        command_name="lookup",
        gate=gate,
    )
    gate.wait(process)
    gate.stop(process, number)
    result = finish(process)

    assert result.returncode == code
    # The second part was finished after the signal.
    text = "2,000 of 4,000 queries were answered; no answers were written"
    assert result.stderr.endswith(f"{text}; run again to answer all queries\n")
    assert result.stderr.count("\n") == 1
    assert sum(row["queries"] for row in rows_of(report) if row["status"]) == 2000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gate", "queries", "report.json"]


@pytest.mark.usefixtures("quick_java")
def test_interrupted_build_on_spark_reports_finished_partitions(
    tmp_path: Path,
) -> None:
    dump = copy_dump(tmp_path / "dump")
    out, report = tmp_path / "out", tmp_path / "report.json"
    gate = Gate(tmp_path / "gate", Step("os.rename", BUILD_MANIFEST, 3))
    process = start(
        *("--input", dump, "--output", out, "--report", report, "--quiet"),
        *("--engine", "spark", "--master", "local[2]"),
        gate=gate,
    )

    def finished() -> list[Path]:
        return list(out.glob(f"*/{BUILD_MANIFEST}"))

    gate.wait(process, lambda: len(finished()) == 2)
    process.send_signal(signal.SIGINT)
    result = finish(process)

    assert result.returncode == INTERRUPTED, result.stderr
    kept, planned = kept_and_planned(result.stderr, "interrupted")
    assert 0 < kept < planned
    rows = rows_of(report)
    assert [row["status"] for row in rows] == ["built"] * kept
    partitions = {f"{row['topic']}-{row['partition']}" for row in rows}
    # Files of further partitions may be in place whose records are not yet.
    assert {record.parent.name for record in finished()} <= partitions
    for row in rows:
        name = f"{row['segment_base_offset']:020d}.index"
        assert (out / f"{row['topic']}-{row['partition']}" / name).exists()
    assert leftover_files(tmp_path) == []
