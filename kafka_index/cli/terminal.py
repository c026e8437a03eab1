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
#: Printed as a log line, or shown in the live progress line.
COMPILING = "compiling kernels (first run only)"
# Wider than any table, since rich does not support an unlimited width.
_UNBOUNDED_WIDTH = 1 << 20
_DEFAULT_SIZE = 80, 25
_INDENT = 2
#: Maximum number of lines of a list.
MAX_LIST_LINES = 20
# Matches a word with the spaces after it; the first word includes the indentation.
_WORD = re.compile(r"^\s*\S+\s*|\S+\s*")
# The control sequences of `Paint`, which are the only ones that are not escaped.
_STYLE = re.compile("(\x1b\\[(?:[0-2]|3[1-3])m)")


class Verbosity(Enum):
    """The verbosity of a command."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"

    @property
    def stdout(self) -> TextIO:
        """The stream for all output except problems; with --quiet, it discards the output."""
        return _NullStream() if self is Verbosity.QUIET else sys.stdout


class _NullStream(StringIO):
    """A text stream that discards everything."""

    def write(self, text: str) -> int:
        return len(text)


@dataclass(frozen=True, slots=True)
class Table:
    """A table of cells, which `Paint` may have styled.

    `left` are the text columns, which are left-aligned and wrap on a narrow terminal. Other columns
    contain numbers, which are right-aligned and never wrap.
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
            # Without this method, rich would close stdout and exit, even if stderr is broken.
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
    """Return the columns and lines of a terminal; other streams have unlimited columns."""
    if not stream.isatty():
        return _UNBOUNDED_WIDTH, _DEFAULT_SIZE[1]
    columns, lines = os.get_terminal_size(stream.fileno())
    columns_variable = os.environ.get("COLUMNS", "")
    columns = int(columns_variable) if columns_variable.isdecimal() else columns
    return columns or _DEFAULT_SIZE[0], lines or _DEFAULT_SIZE[1]


def escape_on_stdout() -> None:
    """Escape characters that the encoding of stdout lacks."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def print_text(stream: TextIO, items: Iterable[str | Table]) -> None:
    """Print lines and tables, which `Paint` may have styled; wrap lines at words on a terminal."""
    for item in items:
        lines: Iterable[str]
        if isinstance(item, Table):
            lines = _format_table(stream, item)
        else:
            line = _escape_controls(stream, item)
            lines = _wrap_line(stream, line) if stream.isatty() else [line]
        stream.writelines(f"{line}\n" for line in lines)


def _escape_controls(stream: TextIO, text: str) -> str:
    """Escape control characters, except the styles of `Paint`."""
    if not is_styled(stream):
        return printable(text)
    return "".join(
        part if at % 2 else printable(part) for at, part in enumerate(_STYLE.split(text))
    )


def print_log(text: str) -> None:
    """Print ``kafka-index: TEXT`` to stderr, after the time if it is not a terminal."""
    sys.stderr.write(f"{log_time_prefix(sys.stderr)}{_PROGRAM}: {printable(text)}\n")
    sys.stderr.flush()


def print_error(text: str) -> None:
    """Print an error to stderr, without a time, because scripts match the start of the line."""
    sys.stderr.write(f"{_PROGRAM}: error: {printable(text)}\n")
    sys.stderr.flush()


def log_time_prefix(stream: TextIO) -> str:
    """Return the prefix of a log line: the time in ISO 8601; empty on a terminal."""
    if stream.isatty():
        return ""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z ")


def _format_table(stream: TextIO, table: Table) -> list[str]:
    cells = [[_escape_controls(stream, cell) for cell in row] for row in table.rows]
    plain_rows = [table.header, *cells]
    if not stream.isatty() and all(cell.isascii() for row in plain_rows for cell in row):
        widths = [max(map(len, column)) for column in zip(*plain_rows, strict=True)]
        return [
            "  ".join(
                cell.ljust(width) if number in table.left else cell.rjust(width)
                for number, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in plain_rows
        ]
    from rich.table import Table as RichTable  # noqa: PLC0415, slow to import
    from rich.text import Text  # noqa: PLC0415, slow to import

    texts = [[Text.from_ansi(cell) for cell in row] for row in cells]
    rich_table = RichTable(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for number, title in enumerate(table.header):
        is_text = number in table.left
        width = max([len(title), *(row[number].cell_len for row in texts)])
        rich_table.add_column(
            Text(title),
            justify="left" if is_text else "right",
            overflow="fold",
            no_wrap=not is_text,
            min_width=None if is_text else width,
        )
    for row in texts:
        rich_table.add_row(*row)
    target = StringIO()
    console = rich_console(stream)
    console.file = target
    console.print(rich_table, crop=False)
    return [line.rstrip() for line in target.getvalue().splitlines()]


def _wrap_line(stream: TextIO, line: str) -> Iterator[str]:
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
    breaks = _line_starts(text.plain, console.width, indent + _INDENT)
    for number, part in enumerate(text.divide(breaks)):
        part.rstrip()
        with console.capture() as captured:
            console.print(part, overflow="ignore", no_wrap=True, crop=False, end="")
        yield " " * (indent + _INDENT if number else 0) + captured.get()


def _line_starts(text: str, width: int, indent: int) -> Iterator[int]:
    """Yield the text positions at which lines start; words are never split."""
    from rich.cells import cell_len  # noqa: PLC0415, slow to import

    start = line_width = 0
    for word in _WORD.finditer(text):
        extended_width = line_width + cell_len(text[start : word.end()].rstrip())
        if extended_width > width and word.start() > start:
            start, line_width = word.start(), indent
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


def format_list(
    title: str,
    lines: Sequence[str],
    *,
    total: int | None = None,
    max_lines: int | None = MAX_LIST_LINES,
    noun: str | None = None,
    after: str = "",
) -> list[str]:
    """Format a title, the first lines of a list, and the number of omitted lines, if any.

    `total` is the number of lines if `lines` has only the first lines.
    """
    if not (lines or total):
        return []
    shown_lines = lines[:max_lines]
    hidden_count = (len(lines) if total is None else total) - len(shown_lines)
    count_text = (
        plural(hidden_count, f"more {noun}") if noun else f"{format_count(hidden_count)} more"
    )
    last_line = [f"  and {count_text}{after}"] if hidden_count > 0 else []
    return ["", title, *(f"  {line}" for line in shown_lines), *last_line]


def announce_compilation() -> None:
    """Print a line at the first compilation, on a terminal without a live line."""
    if sys.stderr.isatty():
        from kafka_index.core.kernels.compile_clock import compile_clock  # noqa: PLC0415, slow to import

        compile_clock.on_first = lambda: print_log(COMPILING)
