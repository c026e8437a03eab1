"""The commands of a page and what they print: runs them, compares, and writes them anew.

A block of ``console`` is commands, each after ``$``, and their output; a block of ``shell-session``
is the same of Kafka's own tools, which the conformance tests run. The commands of a page run
in its order, in one folder that holds a copy of ``examples/dump`` (``dump``), its settings, and
``examples``; the pages call that folder ``/data``. A line of ``...`` stands for any lines.

``.venv/bin/python -m tools.docs.console_blocks docs/runbooks.md`` writes the output of a page anew;
what still fits, such as output with a line of ``...``, stays.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

from tests.support.command_line import ROOT, run_here

_BLOCK = re.compile(r"^```(console|shell-session)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OURS = "console"
#: Where the pages say that their commands run.
FOLDER = "/data"
_ANY_LINES = "..."
# What differs from run to run: durations, rates, times of files.
_VARIABLE = [
    (re.compile(r"\b[\d.,]+ (s|min|ms)\b( \([^)]*/s\))?"), "N s"),
    (re.compile(r"\b\d+ min \d+ s\b"), "N s"),
    # The older the dump, the more.
    (re.compile(r"\bretention deletes \d+ of\b"), "retention deletes N of"),
]


@dataclass(frozen=True, slots=True)
class Step:
    """A command of a page, and what it should print."""

    command: str
    output: tuple[str, ...]
    language: str = OURS


def steps_of(page: str) -> Iterator[Step]:
    """Yield the commands of a page in their order."""
    for block in _BLOCK.finditer(page):
        yield from _steps(block.group(2), block.group(1))


def _steps(block: str, language: str) -> Iterator[Step]:
    command: str | None = None
    output: list[str] = []
    for line in block.splitlines():
        if command is not None and command.endswith("\\"):
            command = f"{command}\n{line}"
        elif line.startswith("$ "):
            if command is not None:
                yield Step(command, tuple(output), language)
            command, output = line.removeprefix("$ "), []
        else:
            output.append(line)
    if command is not None:
        yield Step(command, tuple(output), language)


class Shell:
    """Runs the commands of a page; those of kafka-index in this process.

    Parameters
    ----------
    folder : Path
        Where they run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._code = 0
        shutil.copytree(ROOT / "examples" / "dump", folder / "dump")
        shutil.copy(ROOT / "examples" / "dump.properties", folder)
        (folder / "examples").symlink_to(ROOT / "examples")

    def run(self, command: str) -> tuple[str, ...]:
        """Return the lines that a command prints, errors last."""
        if command == "echo $?":
            return (str(self._code),)
        plain = command.replace("\\\n", "")
        if plain.startswith("kafka-index "):
            with chdir(self._folder):
                done = run_here(*shlex.split(plain)[1:])
        else:
            done = subprocess.run(
                ["/bin/bash", "-c", plain],
                cwd=self._folder,
                capture_output=True,
                text=True,
                check=False,
            )
        self._code = done.returncode
        text = (done.stdout + done.stderr).replace(str(self._folder), FOLDER)
        return tuple(line.rstrip() for line in text.splitlines())


def fits(expected: tuple[str, ...], printed: tuple[str, ...]) -> bool:
    """Return whether what a command prints is what a page says."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == _ANY_LINES else re.escape(_plain(line)) + r"\n"
        for line in expected
    )
    return re.fullmatch(pattern, "".join(f"{_plain(line)}\n" for line in printed)) is not None


def _plain(line: str) -> str:
    for pattern, text in _VARIABLE:
        line = pattern.sub(text, line)
    return line.rstrip()


def write_anew(path: Path) -> None:
    """Write the output of the commands of a page anew."""
    with tempfile.TemporaryDirectory() as folder:
        shell = Shell(Path(os.path.realpath(folder)))

        def block(match: re.Match[str]) -> str:
            if match.group(1) != OURS:
                return match.group()
            lines = []
            for step in _steps(match.group(2), OURS):
                printed = shell.run(step.command)
                kept = step.output if fits(step.output, printed) else printed
                lines += [f"$ {step.command}", *kept]
            return "```console\n" + "".join(f"{line}\n" for line in lines) + "```"

        text = path.read_text(encoding="utf-8")
        path.write_text(_BLOCK.sub(block, text), encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write_anew(Path(name))
