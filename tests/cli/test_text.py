import io
import os
import pty

import pytest

from kafka_index.cli.terminal import Paint, format_bytes, format_count, format_seconds
from kafka_index.errors import plural


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
def test_sizes(size_bytes: float, text: str) -> None:
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
def test_durations(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_counts_and_their_nouns() -> None:
    assert format_count(1234567) == "1,234,567"
    assert plural(1, "entry", "entries") == "1 entry"
    assert plural(1000, "segment") == "1,000 segments"


def test_colours_are_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    with os.fdopen(ours), os.fdopen(theirs, "w") as terminal:
        assert Paint(terminal).good("x") == "\x1b[32mx\x1b[0m"
        monkeypatch.setenv("NO_COLOR", "1")
        assert Paint(terminal).good("x") == "x"
    assert Paint(io.StringIO()).strong("x") == "x"
