"""Ctrl-C and a scheduler's SIGTERM: the run ends in order, and the next one continues it."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from kafka_index.storage.partition_record import PARTITION_RECORD
from tests.support.builds import copy_dump, finish, rubbish, start
from tests.support.command_line import build_here
from tests.support.gates import Gate, Step

INTERRUPTED, TERMINATED = 130, 143


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGTERM, TERMINATED, "terminated"), (signal.SIGINT, INTERRUPTED, "interrupted")],
)
def test_a_stopped_build_keeps_and_reports_every_finished_partition(
    tmp_path: Path, number: signal.Signals, code: int, word: str
) -> None:
    dump = copy_dump(tmp_path / "dump")
    report = tmp_path / "report.json"
    arguments = ("--input", dump, "--output", tmp_path / "out", "--threads", 1, "--quiet")
    gate = Gate(tmp_path / "gate", Step("os.rename", PARTITION_RECORD, 2))
    process = start(*arguments, "--report", report, gate=gate)
    gate.wait(process)
    gate.stop(process, number)
    done = finish(process)

    assert done.returncode == code
    message = re.fullmatch(
        rf"kafka-index: error: {word}; ([0-9,]+) of ([0-9,]+) segments are finished and kept; "
        r"run again to continue\n",
        done.stderr,
    )
    assert message is not None, done.stderr
    kept, planned = (int(number.replace(",", "")) for number in message.groups())
    assert 0 < kept < planned
    assert rubbish(tmp_path) == []
    rows = [json.loads(line) for line in report.read_text().splitlines()]
    assert [row["status"] for row in rows] == ["built"] * kept

    again = build_here(*arguments, "--report", report)

    assert again.returncode == 0, again.stderr
    rows = [json.loads(line) for line in report.read_text().splitlines()]
    assert len(rows) == planned
    assert sum(row["status"] == "unchanged" for row in rows) == kept
