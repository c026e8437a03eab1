"""Verifications that are killed: the report is whole or as it was, and nothing else is touched."""

from __future__ import annotations

import signal
from pathlib import Path

import pyarrow.parquet as pq

from tests.support.campaign import drawn
from tests.support.killing import killed_command
from tests.support.restoring import copy_dump

PARTITIONS = ("payments-0", "audit.trail-0", "orders.eu-west-1", "reserved-for.later-0")
KILLS = drawn(300, one_in=60)
OLDER = b"an older one"


def found_in(data: Path) -> dict[Path, tuple[int, bytes]]:
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in data.rglob("*")
    }


def test_a_verification_that_is_killed_leaves_the_report_whole_or_as_it_was(
    tmp_path: Path,
) -> None:
    data = copy_dump(tmp_path / "dump", *PARTITIONS)
    report = tmp_path / "report.parquet"
    before = found_in(data)
    arguments = ["verify", "--input", data, "--report", report, "--threads", 1, "--quiet"]
    with killed_command(tmp_path, arguments) as command:
        calls = command.calls()
        whole = pq.read_table(report)
        killed = 0
        for number in range(KILLS):
            report.write_bytes(OLDER)
            code = command.run(1 + number * calls // KILLS)
            killed += code == -signal.SIGKILL
            assert code in (0, -signal.SIGKILL)
            if report.read_bytes() != OLDER:
                assert pq.read_table(report).equals(whole)
            assert found_in(data) == before

        assert killed == KILLS
        assert command.calls() > 0
    assert pq.read_table(report).equals(whole)
