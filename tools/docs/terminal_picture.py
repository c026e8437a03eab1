"""The picture of a terminal on the front page: commands that run on copies of the example dump.

``.venv/bin/python -m tools.docs.terminal_picture`` writes it anew; a test compares its lines.
"""

from __future__ import annotations

import html
import os
import pty
import re
import shlex
import shutil
import subprocess
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.support.command_line import COMMAND, ROOT, environment
from tools.docs.console_blocks import FOLDER

PICTURE = ROOT / "docs" / "pictures" / "terminal.svg"
#: Characters of a line.
WIDTH = 100
COMMANDS = (
    "kafka-index build --input dump --output indexes --config dump.properties",
    "kafka-index lookup --input dump --topic payments --partition 0 --at 2026-11-21T07:25:19Z",
    "kafka-index verify --input damaged --topics payments --config dump.properties",
)
#: rich's, without the fonts that a browser would have to load.
_FORMAT = """\
<svg xmlns="http://www.w3.org/2000/svg" class="rich-terminal" viewBox="0 0 {width} {height}">
<style>
.{unique_id}-matrix {{
    font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
    font-size: {char_height}px; line-height: {line_height}px;
}}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: arial; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
_LINE = re.compile(
    r'<text[^>]* y="([\d.]+)"[^>]*clip-path="url\(#terminal-line-\d+\)">(.*?)</text>'
)


def run(folder: Path) -> str:
    """Return the commands and what they print on a terminal, in a folder made for them."""
    dump = folder / "dump"
    shutil.copytree(ROOT / "examples" / "dump", dump)
    shutil.copy(ROOT / "examples" / "dump.properties", folder)
    shutil.copytree(dump, folder / "damaged")
    log = folder / "damaged" / "payments-0" / "00000000000000000532.log"
    os.truncate(log, log.stat().st_size - 100)
    shown = []
    for command in COMMANDS:
        printed = _on_terminal(command, folder).replace(str(folder), FOLDER)
        shown.append(f"\x1b[1m$ {command}\x1b[0m\n{printed}")
    return "\n".join(shown)


def _on_terminal(command: str, folder: Path) -> str:
    """Return what a command prints on stdout, which is a terminal."""
    ours, theirs = pty.openpty()
    with open(ours, "rb", buffering=0) as reader:
        with open(theirs, "wb", buffering=0) as writer:
            process = subprocess.Popen(
                [*COMMAND, *shlex.split(command)[1:]],
                cwd=folder,
                env={**environment(), "COLUMNS": str(WIDTH), "TERM": "xterm-256color"},
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=subprocess.PIPE,
            )
        chunks = []
        try:
            while chunk := reader.read(1 << 16):
                chunks.append(chunk)
        except OSError:  # the other side was closed
            pass
        _, errors = process.communicate()
    if process.returncode not in {0, 1}:
        raise SystemExit(f"{command}: {errors.decode()}")
    return b"".join(chunks).decode().replace("\r\n", "\n")


def draw(text: str) -> str:
    """Return lines with colours as a picture."""
    console = Console(
        record=True,
        width=WIDTH,
        file=StringIO(),
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    console.print(Text.from_ansi(text), soft_wrap=True)
    picture = console.export_svg(title="kafka-index", code_format=_FORMAT, unique_id="terminal")
    return "".join(f"{line.rstrip()}\n" for line in picture.splitlines())


def lines_of(picture: str) -> tuple[str, ...]:
    """Return the lines of text in a picture."""
    lines: dict[str, list[str]] = {}
    for height, text in _LINE.findall(picture):
        lines.setdefault(height, []).extend(html.unescape(text).split())
    return tuple(" ".join(words) for words in lines.values())


def picture_of_a_run() -> str:
    """Return the picture of a new run."""
    with tempfile.TemporaryDirectory() as folder:
        return draw(run(Path(os.path.realpath(folder))))


if __name__ == "__main__":
    PICTURE.write_text(picture_of_a_run(), encoding="utf-8")
