"""Killed verifications: the report is complete or unchanged, and no other file is written."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.campaign import sample_size
from tests.support.killed_runs import Failure, KilledRuns
from tests.support.restoring import copy_dump

PARTITIONS = ("payments-0", "audit.trail-0", "orders.eu-west-1", "reserved-for.later-0")
KILLS = sample_size(300, one_in=60)
OLDER = b"an older one"
#: A step that no run reaches.
NEVER = 1_000_000


def found_in(data: Path) -> dict[Path, tuple[int, bytes]]:
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in data.rglob("*")
    }


def test_killed_verification_leaves_a_complete_or_the_older_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = copy_dump(tmp_path / "dump", *PARTITIONS)
    report = tmp_path / "report.parquet"
    # Calls with the path of a scratch file are included.
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    before = found_in(data)
    command = ("verify", "--input", data, "--report", report, "--threads", 1, "--quiet")
    with KilledRuns(*command) as runs:
        whole = pq.read_table(report)
        calls = runs.failing(tmp_path, NEVER, Failure.KILL, *command).calls
        for number in range(KILLS):
            report.write_bytes(OLDER)
            assert runs.run(tmp_path, 1 + number * calls // KILLS, *command)
            if report.read_bytes() != OLDER:
                assert pq.read_table(report).equals(whole)
            assert found_in(data) == before
        assert not runs.run(tmp_path, NEVER, *command)
    assert pq.read_table(report).equals(whole)
