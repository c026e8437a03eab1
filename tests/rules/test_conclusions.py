"""A command has one conclusion: terminal, summary, page, report and Python agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from html import escape
from pathlib import Path

import pytest

from kafka_index import Result, export_records, restore_dump, rewrite_dump
from tests.rules.test_damage_in_every_command import RULES, Rule
from tests.support.command_line import run_here
from tests.support.damaged_dumps import write_dump

#: Of each command: its function, its further arguments, and whether it has a page.
COMMANDS: dict[str, tuple[Callable[..., Result], dict[str, str], bool]] = {
    "restore": (restore_dump, {}, True),
    "rewrite": (rewrite_dump, {"drop_where": "offset = 1"}, False),
    "export": (export_records, {}, False),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("rule", RULES, ids=[rule.damage.__name__ for rule in RULES])
def test_conclusion_is_the_same_on_every_surface(tmp_path: Path, command: str, rule: Rule) -> None:
    write_dump(tmp_path / "data")
    rule.damage(tmp_path / "data")
    function, given, has_page = COMMANDS[command]
    output, summary = tmp_path / "out", tmp_path / "summary.json"
    report = tmp_path / ("report.html" if has_page else "report.json")
    options = [
        part for name, text in given.items() for part in (f"--{name}".replace("_", "-"), text)
    ]
    paths = ("--input", tmp_path / "data", "--output", output)

    done = run_here(command, *paths, *options, "--report", report, "--summary", summary)
    quiet = run_here(command, *paths[:3], tmp_path / "quiet", *options, "--quiet")
    result = function(tmp_path / "data", tmp_path / "api", **given)

    found = json.loads(summary.read_text())
    text = found["conclusion"]
    assert text in done.stdout.splitlines()
    assert (text.replace(str(output), str(tmp_path / "quiet")) in quiet.stderr) is bool(
        done.returncode
    )
    assert result.conclusion.text == text.replace(str(output), str(tmp_path / "api"))
    assert done.returncode == quiet.returncode == found["exit_code"] == result.outcome.exit_code
    assert found["counts"].items() >= result.counts.items()
    if has_page:
        page = report.read_text(encoding="utf-8")
        assert f'<h1 id="verdict">{escape(text)}</h1>' in page
        assert ('<header class="bad">' in page) is bool(done.returncode)
    else:
        assert len(report.read_text().splitlines()) == result.to_arrow().num_rows
    if done.returncode:
        assert repr(result).startswith(f"{type(result).__name__}: {result.conclusion.text}"[:100])
        assert escape(result.conclusion.text) in result._repr_html_()
