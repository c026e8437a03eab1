"""The text of a page without its scripts: the verdict, the counts, the omissions."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import pyarrow as pa
import pytest

from kafka_index.cli.html import page
from kafka_index.cli.html.page import row_severities
from kafka_index.commands.build.result import BUILD_REPORT, FILE_SCHEMA
from kafka_index.core.job.result import Severity
from kafka_index.core.log.recovery.settings import SegmentReport
from kafka_index.core.records.batch_table import OVERLAP, PREALLOCATED_TAIL, TORN_BATCH
from tests.support.browser import build_report, write_rows
from tests.support.command_line import DUMP, run_here
from tests.support.restoring import copy_dump


def test_verdict_and_counts_are_visible_without_scripts(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    write_rows(report, {"status": ["built", "truncated", "unchanged"]}, 3)
    text = report.read_text(encoding="utf-8")
    assert '<h1 id="verdict">1 segment of 3 damaged</h1>' in text
    assert "the log is valid up to a position, and later batches are not indexed" in text


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("built", None),
        ("built", OVERLAP),
        ("unchanged", None),
        ("truncated", TORN_BATCH),
        ("truncated", PREALLOCATED_TAIL),
        ("failed", "error"),
    ],
)
def test_row_of_build_is_bad_exactly_if_its_segment_is_damaged(
    status: str, code: str | None
) -> None:
    row = SegmentReport("topic", 0, 0, "log", 1, status=status, reason_code=code)
    page = BUILD_REPORT.page
    assert page is not None
    (rank,) = row_severities(
        pa.table({"status": [status], "reason_code": [code]}), page
    ).to_pylist()
    assert rank == (Severity.BAD if row.is_damage else Severity.GOOD)


def test_page_lists_counts_of_bad_statuses_first(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    write_rows(report, {"status": ["built"] * 3 + ["truncated", "unchanged", "failed"]}, 6)
    result = re.findall(r'data-found="(\w+)"', report.read_text(encoding="utf-8"))
    assert result == ["truncated", "failed", "built", "unchanged"]


def test_page_verdict_counts_missing_offsets_once(tmp_path: Path) -> None:
    dump = copy_dump(tmp_path / "dump", "payments-0", "payments-1")
    for file in dump.glob(f"payments-0/{532:020d}.*"):
        file.unlink()
    log = dump / "payments-1" / f"{0:020d}.log"
    os.truncate(log, log.stat().st_size - 1000)
    report = tmp_path / "report.html"
    assert run_here("verify", "--input", dump, "--report", report).returncode == 1
    lost = (1056 - 532) + (528 - 516)
    text = f"; {lost} offsets missing or unreadable; "
    assert text in report.read_text(encoding="utf-8")
    # What a log at the end of its partition lost is not known without checkpoints.
    for checkpoint in dump.glob("*-checkpoint"):
        checkpoint.unlink()
    last = max(dump.glob("payments-1/*.log"))
    os.truncate(last, last.stat().st_size - 100)
    assert run_here("verify", "--input", dump, "--report", report).returncode == 1
    assert f"; at least {lost} offsets missing" in report.read_text(encoding="utf-8")


def test_page_with_too_many_rows_keeps_bad_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "MAX_ROWS", 2)
    report = tmp_path / "report.html"
    write_rows(report, {"status": ["built"] * 5 + ["truncated"]}, 6)
    text = report.read_text(encoding="utf-8")
    assert "1 segment of 6 damaged" in text
    assert "This page has 1 of 6 rows" in text


def test_page_of_an_interrupted_run_reports_the_interruption(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    whole = tmp_path / "whole.html"
    write_rows(whole, {}, 1)

    def interrupted() -> None:
        with build_report(report) as file:
            row = {"status": "built", "kind": "segment"}
            schema = pa.schema([(field.name, field.type) for field in FILE_SCHEMA])
            file.write_table(pa.Table.from_pylist([row], schema=schema))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "interrupted; segments so far: 1" in report.read_text(encoding="utf-8")
    assert "interrupted" not in whole.read_text(encoding="utf-8")


def test_missing_library_of_a_page_names_its_extra_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    result = run_here(
        "build", "--input", DUMP, "--output", tmp_path, "--report", tmp_path / "a.html"
    )
    assert result.returncode == 2
    assert "pip install 'kafka-index[html]'" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_html_report_of_a_command_without_pages_is_rejected(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run_here("export", "--input", DUMP, "--output", out, "--report", tmp_path / "a.html")
    assert result.returncode == 2
    assert "found .html" in result.stderr
    assert "build, verify, predict, restore, lookup and stats write HTML reports" in result.stderr
