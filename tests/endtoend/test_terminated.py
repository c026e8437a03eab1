"""A scheduler's SIGTERM: the run ends in order."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.support.builds import copy_dump, finish, names, rubbish, start, wait_until
from tests.support.command_line import build_here

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


def test_a_run_that_is_stopped_midway_keeps_every_finished_partition(tmp_path: Path) -> None:
    dump = copy_dump(tmp_path / "dump", copies=30)
    out, report = tmp_path / "out", tmp_path / "report.json"
    arguments = ("--input", dump, "--output", out, "--threads", "2", "--quiet")
    process = start(*arguments)
    assert wait_until(process, lambda: any(name.endswith(".index") for name in names(out)))
    process.terminate()
    done = finish(process)

    message = re.search(
        r"terminated; ([0-9,]+) of ([0-9,]+) segments are finished and kept", done.stderr
    )
    assert message is not None, done.stderr
    kept, planned = (int(number.replace(",", "")) for number in message.groups())
    assert 0 < kept < planned
    again = build_here(*arguments, "--report", report)

    assert again.returncode == 0, again.stderr
    rows = [json.loads(line) for line in report.read_text().splitlines()]
    assert len(rows) == planned
    assert sum(row["status"] == "unchanged" for row in rows) == kept
