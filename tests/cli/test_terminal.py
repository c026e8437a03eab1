from __future__ import annotations

import io
from typing import TextIO

import pytest
from click import unstyle

from kafka_index.cli.terminal import Paint, Table, print_text
from tests.support.terminals import shown_on_a_terminal

ROWS = Table(("name", "count"), [("a", "1"), ("long name", "1,000")])


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)


def test_a_table_is_aligned() -> None:
    stream = io.StringIO()
    print_text(stream, [ROWS])
    assert stream.getvalue().splitlines() == [
        "name       count",
        "a              1",
        "long name  1,000",
    ]


def test_a_table_fits_the_terminal_and_its_figures_stay_whole() -> None:
    table = Table(("path", "bytes"), [("/data/" + "x" * 100, "1,234,567")])
    lines = shown_on_a_terminal(40, lambda stream: print_text(stream, [table]))
    texts = list(map(unstyle, lines))
    assert max(map(len, texts)) <= 40
    assert any(text.endswith("1,234,567") for text in texts)
    assert "".join(text.split()[0] for text in texts[1:]) == "/data/" + "x" * 100


def test_a_table_is_not_cut_off_a_terminal() -> None:
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


def test_a_line_that_wraps_keeps_its_colour() -> None:
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


def test_a_line_off_a_terminal_is_as_it_is() -> None:
    stream = io.StringIO()
    print_text(stream, ["word " * 100 + "."])
    assert stream.getvalue() == "word " * 100 + ".\n"
