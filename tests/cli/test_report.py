from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kafka_index.core.errors import InputError, PublishError
from kafka_index.core.log.recovery.settings import (
    REPORT_SCHEMA,
    SegmentCounts,
    SegmentReport,
    report_rows,
    report_table,
)
from kafka_index.core.output.report_file import ReportFile
from tests.support.builds import small_disk
from tests.support.command_line import DUMP, build_here, kafka_index, lookup, run_here

ROW = SegmentReport(
    topic="orders",
    partition=3,
    segment_base_offset=42,
    log_path="/dump/orders-3/00000000000000000042.log",
    log_size_bytes=1000,
    counts=SegmentCounts(1000, 7, 1, 2, 50, 1_700_000_000_000),
    status="built",
    reason=None,
    position_bytes=None,
    seconds=0.25,
)
FAILED = replace(
    ROW, counts=None, status="failed", reason='a "reason", long', reason_code="error", seconds=1
)


def test_report_rows_are_equal_after_arrow_conversion() -> None:
    assert report_rows(report_table([ROW, FAILED])) == [ROW, FAILED]


def test_report_keeps_the_order_of_rows_and_tables(tmp_path: Path) -> None:
    path = tmp_path / "report.parquet"
    with ReportFile(str(path), REPORT_SCHEMA) as writer:
        for row in (ROW, FAILED, ROW):
            writer.write_table(report_table([row]))
    assert report_rows(pq.read_table(path)) == [ROW, FAILED, ROW]


def test_report_appears_only_when_complete(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("an older one")
    with ReportFile(str(path), REPORT_SCHEMA) as writer:
        writer.write_table(report_table([ROW]))
        assert path.read_text() == "an older one"
    assert json.loads(path.read_text())["topic"] == "orders"
    assert list(tmp_path.iterdir()) == [path]


def fail_after(path: Path, rows: list[SegmentReport]) -> None:
    with ReportFile(str(path), REPORT_SCHEMA) as writer:
        writer.write_table(report_table(rows))
        raise RuntimeError("the run broke")


def test_failed_run_writes_the_rows_so_far(tmp_path: Path) -> None:
    path = tmp_path / "report.csv"
    with pytest.raises(RuntimeError):
        fail_after(path, [ROW, FAILED])
    assert len(path.read_text().splitlines()) == 3
    assert list(tmp_path.iterdir()) == [path]


def test_run_failing_before_its_first_row_keeps_the_older_report(tmp_path: Path) -> None:
    path = tmp_path / "report.csv"
    path.write_text("an older one")
    with pytest.raises(RuntimeError):
        fail_after(path, [])
    assert path.read_text() == "an older one"
    assert list(tmp_path.iterdir()) == [path]


def test_leftover_files_of_a_killed_run_are_reused(tmp_path: Path) -> None:
    (tmp_path / ".report.json.tmp").write_text("half a row, and longer than what comes now" * 100)
    path = tmp_path / "report.json"
    with ReportFile(str(path), REPORT_SCHEMA) as writer:
        writer.write_table(report_table([ROW]))
    assert len(path.read_text().splitlines()) == 1
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("ending", ["parquet", "json", "csv"])
def test_report_without_rows_can_be_read(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"report.{ending}"
    with ReportFile(str(path), REPORT_SCHEMA):
        pass
    assert path.exists()
    if ending == "parquet":
        assert pq.read_schema(path).names == REPORT_SCHEMA.names


def test_two_writers_of_one_report_exclude_each_other(tmp_path: Path) -> None:
    path = str(tmp_path / "report.csv")
    with (
        ReportFile(path, REPORT_SCHEMA),
        pytest.raises(PublishError, match="another run"),
    ):
        ReportFile(path, REPORT_SCHEMA)


def test_report_with_unknown_extension_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="suffix"):
        ReportFile(str(tmp_path / "report.txt"), REPORT_SCHEMA)


def test_report_path_that_is_a_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "report.csv").mkdir()
    with pytest.raises(InputError, match="is a directory"):
        ReportFile(str(tmp_path / "report.csv"), REPORT_SCHEMA)


@pytest.mark.parametrize(
    ("status", "reason", "damage"),
    [
        ("built", None, False),
        ("unchanged", None, False),
        ("truncated", "preallocated_tail", False),
        ("truncated", "bad_crc", True),
        ("failed", "index_full", True),
    ],
)
def test_report_row_is_damage_exactly_for_damage_statuses(
    status: str, reason: str | None, *, damage: bool
) -> None:
    assert replace(ROW, status=status, reason=reason, reason_code=reason).is_damage is damage


@pytest.mark.parametrize("ending", ["parquet", "json", "csv"])
def test_full_disk_leaves_no_hidden_file_and_the_older_report(tmp_path: Path, ending: str) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        path = disk / f"report.{ending}"
        path.write_text("an older one")
        rows = [replace(ROW, log_path=os.urandom(40).hex(), seconds=n) for n in range(9_000)]
        with (
            pytest.raises(PublishError, match="no space left"),
            ReportFile(str(path), REPORT_SCHEMA) as writer,
        ):
            writer.write_table(report_table(rows))
        assert [name.name for name in disk.iterdir()] == [path.name]
        assert path.read_text() == "an older one"


PARTITION = DUMP / "payments-0"
QUESTION = ("--logs", DUMP, "--topic", "payments", "--partition", 0, "--offset", 5)


def read(path: Path) -> dict[str, Any]:
    (line,) = path.read_text().splitlines()
    summary: dict[str, Any] = json.loads(line)
    return summary


def test_summary_reports_the_run(tmp_path: Path) -> None:
    file, out = tmp_path / "summary.json", tmp_path / "out"
    result = build_here("--input", PARTITION, "--output", out, "--summary", file)
    assert result.returncode == 0, result.stderr
    summary = read(file)
    logs = list(PARTITION.glob("*.log"))
    assert (summary["command"], summary["outcome"], summary["exit_code"]) == ("build", "done", 0)
    assert summary["counts"]["segments_built"] == len(logs)
    assert summary["bytes"]["log_read"] == sum(log.stat().st_size for log in logs)
    assert summary["paths"] == {"input": [str(PARTITION)], "tiered": [], "output": str(out)}
    assert summary["error"] is None
    assert datetime.fromisoformat(summary["started_at"]) <= datetime.fromisoformat(
        summary["ended_at"]
    )
    assert summary["seconds"] >= 0
    assert set(summary["versions"]) >= {"kafka_index", "python", "pyarrow"}
    assert len(summary["run_id"]) == 16


def test_stdout_has_the_summary_and_nothing_else() -> None:
    result = kafka_index("lookup", *QUESTION, "--summary", "-")
    assert json.loads(result.stdout)["command"] == "lookup"
    assert "payments-0, offset 5: found" in result.stderr


def test_run_that_fails_has_a_summary_with_the_error(tmp_path: Path) -> None:
    file = tmp_path / "summary.json"
    result = lookup("--logs", tmp_path / "none", "--topic", "x", "--offset", 1, "--summary", file)
    summary = read(file)
    assert (summary["outcome"], summary["exit_code"]) == ("usage", result.returncode)
    assert summary["error"] in result.stderr


def test_summary_that_cannot_be_written_ends_the_run_before_the_work(tmp_path: Path) -> None:
    out = tmp_path / "out"
    file = tmp_path / "none" / "summary.json"
    result = build_here("--input", PARTITION, "--output", out, "--summary", file)
    assert result.returncode == 3, result.stderr
    assert str(file) in result.stderr
    assert not out.exists()


def test_run_without_a_summary_does_not_build_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # What it imports at the end of a run may be interrupted, outside of what reports that.
    monkeypatch.delitem(sys.modules, "importlib.metadata")

    assert run_here("dump", PARTITION / "00000000000000000000.index").returncode == 0

    assert "importlib.metadata" not in sys.modules


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("dump", [PARTITION / "00000000000000000000.index"]),
        ("predict", ["--input", DUMP]),
        ("metadata", [DUMP]),
    ],
)
def test_every_command_has_a_summary(
    command: str, arguments: list[str | Path], tmp_path: Path
) -> None:
    file = tmp_path / "summary.json"
    result = run_here(command, *arguments, "--summary", file)
    assert read(file)["exit_code"] == result.returncode
    assert read(file)["command"] == command


def test_single_value_option_given_twice_is_rejected() -> None:
    result = lookup(*QUESTION, "--offset", 7)
    assert result.returncode == 2
    assert "--offset may be given only once" in result.stderr


def test_summary_arguments_of_path_type_are_absolute_paths(tmp_path: Path) -> None:
    file, out, seed = (tmp_path / name for name in ("summary.json", "out", "metadata"))
    arguments = ("--input", tmp_path / "none", "--output", out, "--seed", seed)
    run_here("restore", *arguments, "--until", "2024-05-01", "--summary", file)
    assert read(file)["paths"] == {
        "input": [str(tmp_path / "none")],
        "output": str(out),
        "tiered": [],
        "seed": [str(seed)],
    }
