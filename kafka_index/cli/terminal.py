"""Terminal output: numbers, colors, lines wrapped at words, tables that fit the terminal.

rich formats terminal output, and is imported only if needed. On other streams nothing is wrapped or
styled, and lines on stderr start with the time.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from io import StringIO, TextIOWrapper
from typing import TYPE_CHECKING, TextIO

import click

from kafka_index.core.errors import plural, printable
from kafka_index.core.format.human import format_count

if TYPE_CHECKING:
    from rich.console import Console

_PROGRAM = "kafka-index"
#: Shown in a line of its own or in the live line.
COMPILING = "compiling kernels, once"
# Wider than any table, since rich does not support an unlimited width.
_UNBOUNDED_WIDTH = 1 << 20
_DEFAULT_SIZE = 80, 25
_INDENT = 2
#: Maximum number of lines of a list.
SHOWN = 20
# The indentation of a line belongs to its first word.
_WORD = re.compile(r"^\s*\S+\s*|\S+\s*")
# The styles of `Paint`; no other control sequences are passed on.
_STYLE = re.compile("(\x1b\\[(?:[0-2]|3[1-3])m)")


class Verbosity(Enum):
    """The verbosity of a command."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"

    @property
    def stdout(self) -> TextIO:
        """The stream for output other than problems; with --quiet it is discarded."""
        return _Discarded() if self is Verbosity.QUIET else sys.stdout


class _Discarded(StringIO):
    """A text stream that discards everything."""

    def write(self, text: str) -> int:
        return len(text)


@dataclass(frozen=True, slots=True)
class Table:
    """A table of cells, which `Paint` may have styled.

    `left` are the text columns, left-aligned, which wrap on a narrow terminal. Others contain
    numbers: they are right-aligned and never wrap.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Sequence[int] = (0,)


def is_styled(stream: TextIO) -> bool:
    """Return whether output to a stream is colored: on a terminal, unless ``NO_COLOR`` is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def rich_console(stream: TextIO) -> Console:
    from rich.console import Console  # noqa: PLC0415, slow to import

    class _StreamConsole(Console):
        def on_broken_pipe(self) -> None:
            # rich would close stdout and exit, whichever stream broke.
            raise BrokenPipeError

    # rich would use the size of stdin's terminal first.
    columns, lines = terminal_size(stream)
    return _StreamConsole(
        file=stream,
        width=columns,
        height=lines,
        force_terminal=stream.isatty(),
        color_system="auto" if is_styled(stream) else None,
        highlight=False,
        markup=False,
        emoji=False,
    )


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """Return columns and lines of a terminal; unlimited for other streams."""
    if not stream.isatty():
        return _UNBOUNDED_WIDTH, _DEFAULT_SIZE[1]
    columns, lines = os.get_terminal_size(stream.fileno())
    given = os.environ.get("COLUMNS", "")
    columns = int(given) if given.isdecimal() else columns
    return columns or _DEFAULT_SIZE[0], lines or _DEFAULT_SIZE[1]


def escape_on_stdout() -> None:
    """Escape characters that the encoding of stdout lacks."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def print_text(stream: TextIO, items: Iterable[str | Table]) -> None:
    """Print lines and tables; on a terminal they fit its width.

    `Paint` may have styled the lines. A word wider than the terminal, such as a path, is not cut.
    """
    for item in items:
        lines: Iterable[str]
        if isinstance(item, Table):
            lines = _table_lines(stream, item)
        else:
            line = _shown(stream, item)
            lines = _wrapped(stream, line) if stream.isatty() else [line]
        stream.writelines(f"{line}\n" for line in lines)


def _shown(stream: TextIO, text: str) -> str:
    """Return printable text: styles are kept, other control characters escaped."""
    if not is_styled(stream):
        return printable(text)
    return "".join(
        part if at % 2 else printable(part) for at, part in enumerate(_STYLE.split(text))
    )


def print_log(text: str) -> None:
    """Print ``kafka-index: TEXT`` to stderr, after the time if it is not a terminal."""
    sys.stderr.write(f"{log_time(sys.stderr)}{_PROGRAM}: {printable(text)}\n")
    sys.stderr.flush()


def print_error(text: str) -> None:
    """Print an error to stderr, without a time: scripts rely on the start of the line."""
    sys.stderr.write(f"{_PROGRAM}: error: {printable(text)}\n")
    sys.stderr.flush()


def log_time(stream: TextIO) -> str:
    """Return the prefix of a log line: the time in ISO 8601; empty on a terminal."""
    if stream.isatty():
        return ""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z ")


def _table_lines(stream: TextIO, table: Table) -> list[str]:
    cells = [[_shown(stream, cell) for cell in row] for row in table.rows]
    plain = [table.header, *cells]
    if not stream.isatty() and all(cell.isascii() for row in plain for cell in row):
        widths = [max(map(len, column)) for column in zip(*plain, strict=True)]
        return [
            "  ".join(
                cell.ljust(width) if number in table.left else cell.rjust(width)
                for number, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in plain
        ]
    from rich.table import Table as RichTable  # noqa: PLC0415, slow to import
    from rich.text import Text  # noqa: PLC0415, slow to import

    texts = [[Text.from_ansi(cell) for cell in row] for row in cells]
    shown = RichTable(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for number, title in enumerate(table.header):
        is_text = number in table.left
        width = max([len(title), *(row[number].cell_len for row in texts)])
        shown.add_column(
            Text(title),
            justify="left" if is_text else "right",
            overflow="fold",
            no_wrap=not is_text,
            min_width=None if is_text else width,
        )
    for row in texts:
        shown.add_row(*row)
    target = StringIO()
    console = rich_console(stream)
    console.file = target
    console.print(shown, crop=False)
    return [line.rstrip() for line in target.getvalue().splitlines()]


def _wrapped(stream: TextIO, line: str) -> Iterator[str]:
    """Wrap a line for a terminal; later lines are indented further."""
    console = rich_console(stream)
    if len(line) <= console.width:
        yield line
        return
    from rich.text import Text  # noqa: PLC0415, slow to import

    text = Text.from_ansi(line)
    if text.cell_len <= console.width:
        yield line
        return
    indent = len(text.plain) - len(text.plain.lstrip())
    breaks = _breaks(text.plain, console.width, indent + _INDENT)
    for number, part in enumerate(text.divide(breaks)):
        part.rstrip()
        with console.capture() as captured:
            console.print(part, overflow="ignore", no_wrap=True, crop=False, end="")
        yield " " * (indent + _INDENT if number else 0) + captured.get()


def _breaks(text: str, width: int, indent: int) -> Iterator[int]:
    """Yield the positions of words that start a line; words are never cut."""
    from rich.cells import cell_len  # noqa: PLC0415, slow to import

    start = used = 0
    for word in _WORD.finditer(text):
        end = used + cell_len(text[start : word.end()].rstrip())
        if end > width and word.start() > start:
            start, used = word.start(), indent
            yield start


class Paint:
    """Colors on a terminal, unless ``NO_COLOR`` is set."""

    def __init__(self, stream: TextIO) -> None:
        self._enabled = is_styled(stream)

    def good(self, text: str) -> str:
        return self._style(text, "green")

    def notable(self, text: str) -> str:
        return self._style(text, "yellow")

    def bad(self, text: str) -> str:
        return self._style(text, "red")

    def strong(self, text: str) -> str:
        return click.style(text, bold=True) if self._enabled else text

    def faint(self, text: str) -> str:
        return click.style(text, dim=True) if self._enabled else text

    def _style(self, text: str, colour: str) -> str:
        return click.style(text, fg=colour) if self._enabled else text


def first_lines(
    title: str,
    lines: Sequence[str],
    *,
    total: int | None = None,
    most: int | None = SHOWN,
    noun: str | None = None,
    after: str = "",
) -> list[str]:
    """Return the first lines of a list below its title, and the number of others, if any.

    `total` includes lines that are not given.
    """
    if not (lines or total):
        return []
    shown = lines[:most]
    left = (len(lines) if total is None else total) - len(shown)
    more = plural(left, f"more {noun}") if noun else f"{format_count(left)} more"
    rest = [f"  and {more}{after}"] if left > 0 else []
    return ["", title, *(f"  {line}" for line in shown), *rest]


def announce_compilation() -> None:
    """Print a line at the first compilation, on a terminal; a live line replaces it."""
    if sys.stderr.isatty():
        from kafka_index.core.kernels.compile_clock import compile_clock  # noqa: PLC0415, slow to import

        compile_clock.on_first = lambda: print_log(COMPILING)
