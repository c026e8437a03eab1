"""A scheduler's SIGTERM: the run ends in order."""

from __future__ import annotations

import json
from pathlib import Path

from .building import copy_dump, finish, names, rubbish, start, wait_until

TERMINATED = 143


def test_a_terminated_run_keeps_its_rows_and_leaves_no_rubbish(tmp_path: Path) -> None:
    dump = copy_dump(tmp_path / "dump", copies=30)
    out, report = tmp_path / "out", tmp_path / "report.json"
    process = start(
        "--input", dump, "--output", out, "--report", report, "--threads", "1", "--quiet"
    )
    assert wait_until(process, lambda: any(name.endswith(".index") for name in names(out)))
    process.terminate()
    done = finish(process)
    assert done.returncode == TERMINATED
    assert done.stderr.count("\n") == 1
    assert rubbish(tmp_path) == []
    rows = [json.loads(line) for line in report.read_text().splitlines()]
    assert rows
    assert {row["status"] for row in rows} == {"built"}
