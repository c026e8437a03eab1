"""Names with control characters: they forge no line, and control no terminal."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from kafka_index.cli.terminal import Paint, Table, print_text
from kafka_index.core.errors import InputError, printable
from tests.support.command_line import DUMP, run_here
from tests.support.terminals import shown_on_a_terminal

FORGED = "kafka-index: error: forged"
NAMES = (
    f"x\n{FORGED}-0",
    f"x\r{FORGED}-0",
    "x\x1b[31mred-0",
    "x\x1b]0;title\x07-0",
    "x\x9b2J-0",
    "x\u202egnp-0",
    f"x\u2028{FORGED}-0",
    os.fsdecode(b"x\xff-0"),
)
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory of one partition, and of copies under names of no topic."""
    folder = tmp_path_factory.mktemp("hostile") / "data"
    for name in ("payments-0", *NAMES):
        shutil.copytree(DUMP / "payments-0", folder / name)
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ("build", "--output", "out", "--input"),
        ("verify", "--verbose", "--input"),
        ("predict", "--input"),
        ("restore", "--output", "restored", "--input"),
        ("export", "--output", "exported", "--input"),
        ("find", "--key", "x", "--input"),
        ("cat", "payments", "--input"),
        ("lookup", "--topic", "payments", "--offset", "1", "--logs"),
        ("metadata",),
        ("dump",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_directory_name_prints_as_one_plain_line(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run_here(*arguments, data)
    printed = result.stdout + result.stderr
    assert not CONTROLS.findall(printed)
    assert not [line for line in printed.splitlines() if line.startswith(FORGED)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", ["verify --input", "dump", "build --dry-run --input"])
def test_missing_path_with_hostile_name_is_an_error_of_one_line(
    tmp_path: Path, command: str, name: str
) -> None:
    result = run_here(*command.split(), tmp_path / name)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert not CONTROLS.findall(result.stderr)


@pytest.mark.parametrize("name", NAMES)
def test_terminal_receives_only_style_escapes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    columns = 400
    lines = shown_on_a_terminal(
        columns,
        lambda stream: print_text(
            stream, [f"{Paint(stream).bad('bad')}: {name}", Table(("a", "b"), [(name, "1")])]
        ),
    )
    assert len(lines) == 3
    assert lines[0].startswith("\x1b[31mbad\x1b[0m: x")
    plain = re.sub("\x1b\\[[0-9;]*m", "", "".join(lines))
    assert not CONTROLS.findall(plain)


def test_names_are_escaped_as_by_ls() -> None:
    assert printable("a\tb\n\x1b\x07 ü 漢\\") == r"a\tb\n\033\a ü 漢" + "\\"
    assert printable(os.fsdecode(b"\xff")) == r"\377"
    assert printable("\x85\u202e") == r"\u0085\u202e"


def test_error_is_one_line_with_the_escaped_name() -> None:
    error = InputError("no such thing", path=f"a\n{FORGED}", found="\x1b[2J")
    assert str(error) == rf"a\n{FORGED}: no such thing (found \033[2J)"
