"""The commands and the code of the front page run, and its figures are those of other pages."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import kafka_index
from tests.support.command_line import ROOT
from tools.docs.console_blocks import Shell, fits
from tools.docs.terminal_picture import PICTURE, lines_of, picture_of_a_run

README = (ROOT / "README.md").read_text(encoding="utf-8")
#: The cells of the table of jobs: what for, command, page.
JOBS = re.findall(r"^\| ([^|]+) \| `([^|]+)` \| (\[[^|]+\)) \|$", README, re.MULTILINE)
LINK = re.compile(r"\]\((docs/[\w-]+\.md)#?([\w-]*)\)")


def blocks_of(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_row_of_the_front_page_table_has_a_command() -> None:
    table = README.partition("| I want to |")[2].partition("\n\n")[0]
    assert len(JOBS) == len(table.splitlines()) - 2  # without the head of the table


def test_front_page_table_has_every_command() -> None:
    named = {command.split()[1] for _, command, _ in JOBS}
    assert named >= {"build", "cat", "dump", "export", "find", "import", "lookup", "metadata"}
    assert named >= {"predict", "restore", "rewrite", "verify"}


def test_commands_of_the_front_page_run(tmp_path: Path) -> None:
    shell = Shell(Path(os.path.realpath(tmp_path)))
    quick_start = re.findall(r"^kafka-index .* --input .+$", README, re.MULTILINE)
    assert len(quick_start) == 3
    for command in [*quick_start, *(command for _, command, _ in JOBS)]:
        printed = shell.run(command)
        assert shell.run("echo $?") == ("0",), (command, printed)


@pytest.mark.usefixtures("folder")
def test_python_example_of_the_front_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = blocks_of("python")
    exec(compile(source, "README.md", "exec"), {})  # noqa: S102, because it is the page's
    assert "count_star()" in capsys.readouterr().out


def test_makefile_has_the_targets_mentioned_on_the_front_page() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"^make (\w+)$|`make (\w+)`", README, re.MULTILINE)
    assert len(named) >= 4
    assert {first or second for first, second in named} <= set(targets)


def test_wheel_on_the_front_page_has_the_current_version() -> None:
    assert re.findall(r"kafka_index-([^-]+)-py3", README) == [kafka_index.__version__]


def test_links_of_the_front_page_resolve() -> None:
    linked = LINK.findall(README)
    assert len(linked) >= 20
    for name, section in linked:
        text = (ROOT / name).read_text(encoding="utf-8")
        titles = [title.lower() for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
        slugs = {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles}
        assert not section or section in slugs, (name, section)


def test_figures_of_the_front_page_appear_on_the_linked_pages() -> None:
    section = README.partition("## Can I trust it?")[2].partition("\n## ")[0]
    rows = [row.replace("\n", " ") for row in section.split("\n- ") if "**" in row]
    assert len(rows) == 2
    for row in rows:
        known = " ".join((ROOT / name).read_text(encoding="utf-8") for name, _ in LINK.findall(row))
        figures = re.findall(r"\d[\d.,]*\d|\d", LINK.sub("", row))
        assert len(figures) >= 2
        missing = [
            figure for figure in figures if not re.search(rf"\b{re.escape(figure)}\b", known)
        ]
        assert missing == [], row


def test_picture_of_the_front_page_shows_a_real_run() -> None:
    shown, printed = (
        " ".join(lines_of(picture))
        for picture in (PICTURE.read_text(encoding="utf-8"), picture_of_a_run())
    )
    assert len(shown) > 1000
    assert fits((shown,), (printed,))
