"""Batches whose offsets go back: indexed as recovery indexes them, and not without a word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kafka_index
from kafka_index.results import RunOutcome
from tests.support.command_line import run_here
from tests.support.segments import batch

REPEATED = [batch(0, 3), batch(3, 3), batch(3, 3), batch(6, 3)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "dump" / "topic-0" / f"{0:020d}.log"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(REPEATED))
    return path


def test_a_build_reports_batches_that_go_back_each_time(tmp_path: Path, log: Path) -> None:
    built = [kafka_index.build_indexes(log.parent.parent, tmp_path / "indexes") for _ in range(2)]

    position = len(REPEATED[0]) + len(REPEATED[1])
    for found in built:
        (row,) = found.rows.to_pylist()
        assert found.outcome is RunOutcome.DAMAGE
        assert (row["reason_code"], row["position_bytes"]) == ("overlap", position)
        assert row["valid_bytes"] == log.stat().st_size
    assert [one.rows["status"].to_pylist() for one in built] == [["built"], ["unchanged"]]


def test_the_command_and_its_page_say_so_each_time(tmp_path: Path, log: Path) -> None:
    for name in ("first.html", "second.html"):
        done = run_here(
            *("build", "--input", log.parent.parent, "--output", tmp_path / "indexes"),
            *("--report", tmp_path / name),
        )

        assert done.returncode == 1
        assert "overlap (expected offset 6 or more, found offset 3)" in done.stdout + done.stderr
        assert "no damage found" not in (tmp_path / name).read_text()


def test_a_rewrite_leaves_such_a_partition_out(tmp_path: Path, log: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("none\n")
    report = tmp_path / "rows.json"

    done = run_here(
        *("rewrite", "--input", log.parent.parent, "--output", tmp_path / "rewritten"),
        *("--drop-keys", keys, "--report", report),
    )

    (row,) = [json.loads(line) for line in report.read_text().splitlines()]
    assert done.returncode == 1
    assert row["status"] == "left_out"
    assert "overlap" in row["reason"]
