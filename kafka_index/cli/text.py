"""Formats of numbers, bytes, durations, tables and colours."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

import click

from kafka_index.cli.terminal import Table, is_styled

_UNITS = ("kB", "MB", "GB", "TB", "PB")
_MINUTE = 60
_HOUR = 3600


def format_bytes(size_bytes: float) -> str:
    """Return a size in decimal units: ``512 B``, ``4.05 MB``, ``2.15 GB``."""
    if size_bytes < 1000:
        return f"{size_bytes:.0f} B"
    scaled = size_bytes
    unit = ""
    for unit in _UNITS:  # noqa: B007, because the unit at the break is the one to print
        scaled /= 1000
        if scaled < 999.5:
            break
    digits = 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
    return f"{scaled:.{digits}f} {unit}"


def format_count(count: int) -> str:
    """Return a count with thousands separators: ``1,234,567``."""
    return f"{count:,}"


def format_seconds(seconds: float) -> str:
    """Return a duration: ``0.42 s``, ``12.3 s``, ``3 min 05 s``, ``1 h 02 min``."""
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE:02d} s"
    minutes = round(seconds / _MINUTE)
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Return a count with its noun: ``1 segment``, ``2 segments``."""
    return f"{format_count(count)} {noun if count == 1 else nouns or noun + 's'}"


class Paint:
    """Colours on a terminal, unless ``NO_COLOR`` is set."""

    def __init__(self, stream: TextIO) -> None:
        self._enabled = is_styled(stream)

    def good(self, text: str) -> str:
        """Return the text in the colour of success."""
        return self._style(text, "green")

    def notable(self, text: str) -> str:
        """Return the text in the colour of a warning."""
        return self._style(text, "yellow")

    def bad(self, text: str) -> str:
        """Return the text in the colour of an error."""
        return self._style(text, "red")

    def strong(self, text: str) -> str:
        """Return the text in bold."""
        return click.style(text, bold=True) if self._enabled else text

    def faint(self, text: str) -> str:
        """Return the text dimmed."""
        return click.style(text, dim=True) if self._enabled else text

    def _style(self, text: str, colour: str) -> str:
        return click.style(text, fg=colour) if self._enabled else text


def status_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    explained: Mapping[str, str],
    colours: Mapping[str, Callable[[str], str]],
    paint: Paint,
) -> Table:
    """Return a table of statuses, each coloured and explained.

    The first cell of a row is the status. A status without a colour is painted as `Paint.notable`.
    """
    shown = [
        (colours.get(status, paint.notable)(status), *cells, explained[status])
        for status, *cells in rows
    ]
    return Table((*header, ""), shown, left=(0, len(header)))


def shown_path(path: str) -> str:
    """Return a path relative to the working directory where it lies below, else unchanged."""
    if "://" in path:
        return path
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative
