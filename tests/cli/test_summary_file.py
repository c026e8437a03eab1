from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import DUMP, build_here, kafka_index, lookup, run_here

PARTITION = DUMP / "payments-0"
QUESTION = ("--logs", DUMP, "--topic", "payments", "--partition", 0, "--offset", 5)


def read(path: Path) -> dict[str, Any]:
    (line,) = path.read_text().splitlines()
    summary: dict[str, Any] = json.loads(line)
    return summary


def test_a_summary_reports_the_run(tmp_path: Path) -> None:
    file, out = tmp_path / "summary.json", tmp_path / "out"
    done = build_here("--input", PARTITION, "--output", out, "--summary", file)
    assert done.returncode == 0, done.stderr
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
    done = kafka_index("lookup", *QUESTION, "--summary", "-")
    assert json.loads(done.stdout)["command"] == "lookup"
    assert "payments-0, offset 5: found" in done.stderr


def test_a_run_that_fails_has_a_summary_with_the_error(tmp_path: Path) -> None:
    file = tmp_path / "summary.json"
    done = lookup("--logs", tmp_path / "none", "--topic", "x", "--offset", 1, "--summary", file)
    summary = read(file)
    assert (summary["outcome"], summary["exit_code"]) == ("usage", done.returncode)
    assert summary["error"] in done.stderr


def test_a_summary_that_cannot_be_written_ends_the_run_before_the_work(tmp_path: Path) -> None:
    out = tmp_path / "out"
    file = tmp_path / "none" / "summary.json"
    done = build_here("--input", PARTITION, "--output", out, "--summary", file)
    assert done.returncode == 3, done.stderr
    assert str(file) in done.stderr
    assert not out.exists()


def test_a_run_without_a_summary_does_not_build_one(monkeypatch: pytest.MonkeyPatch) -> None:
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
    done = run_here(command, *arguments, "--summary", file)
    assert read(file)["exit_code"] == done.returncode
    assert read(file)["command"] == command


def test_an_option_of_one_value_is_refused_the_second_time() -> None:
    done = lookup(*QUESTION, "--offset", 7)
    assert done.returncode == 2
    assert "--offset is given more than once" in done.stderr


def test_paths_are_the_values_that_are_paths(tmp_path: Path) -> None:
    file, out, seed = (tmp_path / name for name in ("summary.json", "out", "metadata"))
    given = ("--input", tmp_path / "none", "--output", out, "--seed", seed)
    run_here("restore", *given, "--until", "2024-05-01", "--summary", file)
    assert read(file)["paths"] == {
        "input": [str(tmp_path / "none")],
        "output": str(out),
        "tiered": [],
        "seed": [str(seed)],
    }
