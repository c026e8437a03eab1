from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import build_here, dump, lookup

NAME = "00000000000000000000.log"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with a log that somebody has printed into."""
    partition = tmp_path / "data" / "app-0"
    partition.mkdir(parents=True)
    (partition / NAME).write_text("2026-05-01 08:30:00 INFO started\n" * 50)
    return partition.parent


def test_a_build_reports_it(data: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = build_here("--input", data, "--output", tmp_path / "out", "--report", report)
    assert done.returncode == 1
    assert "not a Kafka log" in done.stdout
    (row, *_) = map(json.loads, report.read_text().splitlines())
    assert row["reason_code"] == "not_a_log"


def test_a_dump_reports_it(data: Path) -> None:
    done = dump(data / "app-0" / NAME)
    assert done.returncode == 1
    assert "not a Kafka log (expected a record batch, found '2026-05-01 08:30')" in done.stderr


def test_a_lookup_reports_it(data: Path) -> None:
    done = lookup("--logs", data, "--topic", "app", "--partition", 0, "--offset", 3)
    assert "not a Kafka log" in done.stderr
