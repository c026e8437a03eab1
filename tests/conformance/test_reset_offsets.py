"""Files of offsets for consumer groups, as Kafka's own command reads them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command_line import DUMP, lookup

from .java_program import JavaProgram


def test_reset_offsets_of_all_matching_topics_are_accepted_by_kafka(tmp_path: Path) -> None:
    plan, starts = tmp_path / "plan.csv", tmp_path / "starts.json"
    arguments = ("--logs", DUMP, "--topics", r"orders\..*|payments", "--at", "2026-11-21T04:00:00Z")
    result = lookup(*arguments, "--reset-offsets", plan, "--starting-offsets", starts)
    assert result.returncode == 0, result.stderr
    offsets = json.loads(starts.read_text())
    assert {topic: len(own) for topic, own in offsets.items()} == {
        "orders.eu-west": 3,
        "payments": 2,
    }
    with JavaProgram("ResetPlan") as program:
        read = program.ask(plan)
    assert read.split() == [
        f"{topic}-{number}={offset}"
        for topic, own in offsets.items()
        for number, offset in own.items()
    ]
