"""The commands in the documentation print what it says that they print."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.command_line import ROOT
from tools.docs.console_blocks import OURS, Shell, fits, steps_of


@pytest.mark.parametrize(
    "page",
    [
        *("index.md", "runbooks.md", "runbooks-records.md", "comparison.md"),
        *(
            "build.md",
            "cat.md",
            "dump.md",
            "export.md",
            "find.md",
            "installation.md",
            "lookup.md",
            "lookup-tables.md",
            "metadata.md",
            "restore.md",
            "schemas.md",
            "tables.md",
            "typed.md",
        ),
    ],
)
def test_documented_commands_print_the_documented_output(page: str, tmp_path: Path) -> None:
    shell = Shell(Path(os.path.realpath(tmp_path)))
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    steps = [step for step in steps_of(text) if step.language == OURS]
    assert steps
    for step in steps:
        printed = shell.run(step.command)
        assert fits(step.output, printed), (step.command, step.output, printed)


@pytest.mark.parametrize(
    ("expected", "is_fit"),
    [
        (("a", "3.99 MB in 9.1 s (2 MB/s)"), True),
        (("a", "..."), True),
        (("...", "3.99 MB in 1 s (2 MB/s)"), True),
        (("a", "4.00 MB in 9.1 s (2 MB/s)"), False),
        (("a",), False),
    ],
)
def test_console_blocks_may_differ_in_durations_and_skipped_lines_only(
    expected: tuple[str, ...],
    is_fit: bool,  # noqa: FBT001, a parameter
) -> None:
    assert fits(expected, ("a", "3.99 MB in 0.12 s (33 kB/s)")) is is_fit
