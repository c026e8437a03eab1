from __future__ import annotations

import io
import os
import pty
from typing import TextIO

import pytest
from click import unstyle

from kafka_index.cli.terminal import Paint, Table, print_text
from kafka_index.core.errors import plural
from kafka_index.core.format.human import format_bytes, format_count, format_seconds
from tests.support.terminals import shown_on_a_terminal


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (9_994, "9.99 kB"),
        (9_996, "10.0 kB"),
        (99_960, "100 kB"),
        (999_700, "1.00 MB"),
        (2_147_483_647, "2.15 GB"),
        (5e18, "5000 PB"),
    ],
)
def test_sizes_are_formatted_with_units(size_bytes: float, text: str) -> None:
    assert format_bytes(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.00 s"),
        (9.994, "9.99 s"),
        (12.34, "12.3 s"),
        (59.96, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.6, "1 h 00 min"),
        (90_000, "25 h 00 min"),
    ],
)
def test_durations_are_formatted_with_units(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_counts_are_printed_with_singular_or_plural_nouns() -> None:
    assert format_count(1234567) == "1,234,567"
    assert plural(1, "entry", "entries") == "1 entry"
    assert plural(1000, "segment") == "1,000 segments"


def test_colors_are_printed_on_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    with os.fdopen(ours), os.fdopen(theirs, "w") as terminal:
        assert Paint(terminal).good("x") == "\x1b[32mx\x1b[0m"
        monkeypatch.setenv("NO_COLOR", "1")
        assert Paint(terminal).good("x") == "x"
    assert Paint(io.StringIO()).strong("x") == "x"


ROWS = Table(("name", "count"), [("a", "1"), ("long name", "1,000")])


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)


def test_table_is_aligned() -> None:
    stream = io.StringIO()
    print_text(stream, [ROWS])
    assert stream.getvalue().splitlines() == [
        "name       count",
        "a              1",
        "long name  1,000",
    ]


def test_table_fits_the_terminal_without_shortening_numbers() -> None:
    table = Table(("path", "bytes"), [("/data/" + "x" * 100, "1,234,567")])
    lines = shown_on_a_terminal(40, lambda stream: print_text(stream, [table]))
    texts = list(map(unstyle, lines))
    assert max(map(len, texts)) <= 40
    assert any(text.endswith("1,234,567") for text in texts)
    assert "".join(text.split()[0] for text in texts[1:]) == "/data/" + "x" * 100


def test_table_without_a_terminal_is_not_shortened() -> None:
    stream = io.StringIO()
    print_text(stream, [Table(("path",), [("x" * 500,)])])
    assert stream.getvalue().splitlines()[1] == "x" * 500


def test_lines_wrap_at_words_with_an_indent() -> None:
    line = "  a note of several words, and a path: /data/" + "x" * 50
    lines = shown_on_a_terminal(24, lambda stream: print_text(stream, [line]))
    assert lines == [
        "  a note of several",
        "    words, and a path:",
        "    /data/" + "x" * 50,
    ]


def test_line_that_wraps_keeps_its_colour() -> None:
    def show(stream: TextIO) -> None:
        print_text(stream, [Paint(stream).bad("one two three four")])

    first, second = shown_on_a_terminal(12, show)
    assert (unstyle(first), unstyle(second)) == ("one two", "  three four")
    assert "\x1b[31m" in first
    assert "\x1b[31m" in second


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    lines = shown_on_a_terminal(80, lambda stream: print_text(stream, [ROWS]))
    assert lines[0] == "name       count"


def test_line_without_a_terminal_is_not_wrapped() -> None:
    stream = io.StringIO()
    print_text(stream, ["word " * 100 + "."])
    assert stream.getvalue() == "word " * 100 + ".\n"
