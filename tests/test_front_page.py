"""The front page: its commands and calls run as they stand, its figures are those of pages."""

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
#: The cells of the table of jobs: what for, command, call, page.
JOBS = re.findall(
    r"^\| ([^|]+) \| (?:`([^|]+)`)? ?\| (?:`([^|]+)`)? ?\| (\[[^|]+\)) \|$", README, re.MULTILINE
)
LINK = re.compile(r"\]\((docs/[\w-]+\.md)#?([\w-]*)\)")


def blocks_of(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_table_names_each_row_of_jobs() -> None:
    table = README.partition("| I want to |")[2].partition("\n\n")[0]
    assert len(JOBS) == len(table.splitlines()) - 2  # without the head of the table
    assert all(command or call for _, command, call, _ in JOBS)


def test_each_command_is_there() -> None:
    named = {command.split()[1] for _, command, _, _ in JOBS if command}
    assert named >= {"build", "cat", "dump", "export", "find", "import", "lookup", "metadata"}
    assert named >= {"predict", "restore", "rewrite", "verify"}


def test_the_commands_of_the_table_run(tmp_path: Path) -> None:
    shell = Shell(Path(os.path.realpath(tmp_path)))
    for _, command, _, _ in JOBS:
        if command:
            printed = shell.run(command)
            assert shell.run("echo $?") == ("0",), (command, printed)


@pytest.mark.usefixtures("folder")
def test_the_calls_of_the_table_run() -> None:
    for _, _, call, _ in JOBS:
        if call:
            assert getattr(eval(call, {"kafka_index": kafka_index}), "ok", True), call  # noqa: S307, because it is the page's


@pytest.mark.usefixtures("folder")
def test_the_python_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = blocks_of("python")
    exec(compile(source, "README.md", "exec"), {})  # noqa: S102, because it is the page's
    assert "count_star()" in capsys.readouterr().out


def test_make_has_the_targets_that_the_page_names() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"^make (\w+)$|`make (\w+)`", README, re.MULTILINE)
    assert len(named) >= 4
    assert {first or second for first, second in named} <= set(targets)


def test_the_wheel_of_the_page_is_of_this_version() -> None:
    assert re.findall(r"kafka_index-([^-]+)-py3", README) == [kafka_index.__version__]


def test_the_links_of_the_page_lead_to_pages_and_their_sections() -> None:
    linked = LINK.findall(README)
    assert len(linked) >= 20
    for name, section in linked:
        text = (ROOT / name).read_text(encoding="utf-8")
        titles = [title.lower() for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
        slugs = {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles}
        assert not section or section in slugs, (name, section)


def test_the_figures_of_the_page_are_those_of_the_pages_they_link_to() -> None:
    rows = re.findall(r"^\| (\*\*.+) \|$", README, re.MULTILINE)
    assert len(rows) == 3
    for row in rows:
        known = " ".join((ROOT / name).read_text(encoding="utf-8") for name, _ in LINK.findall(row))
        figures = re.findall(r"\d[\d.,]*\d|\d", LINK.sub("", row))
        assert len(figures) >= 2
        missing = [each for each in figures if not re.search(rf"\b{re.escape(each)}\b", known)]
        assert missing == [], row


def test_the_picture_is_that_of_a_run() -> None:
    shown, printed = (
        " ".join(lines_of(picture))
        for picture in (PICTURE.read_text(encoding="utf-8"), picture_of_a_run())
    )
    assert len(shown) > 1000
    assert fits((shown,), (printed,))
