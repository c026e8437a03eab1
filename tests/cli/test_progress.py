import io
import os
import pty
import re
import threading
import time
from datetime import UTC, datetime
from typing import IO

import pytest

from kafka_index.cli import progress as progress_module
from kafka_index.cli.progress import Progress

ERASE_LINE, SHOW_CURSOR = b"\x1b[2K", b"\x1b[?25h"


def read_until(terminal: IO[bytes], end: bytes) -> bytes:
    shown = b""
    while end not in shown:
        shown += terminal.read(200)
    return shown


def test_the_line_shows_what_is_done_and_left() -> None:
    with Progress(4, 4000, io.StringIO()) as progress:
        progress.advance(1, 1000)
        time.sleep(0.01)
        line = progress.line()
    assert line.startswith(" 25%  1/4 segments  1.00 kB of 4.00 kB  ")
    assert line.endswith(" left")


def test_a_share_of_the_work_counts_for_segments_and_bytes() -> None:
    progress = Progress(10, 5000, io.StringIO())
    progress.set_share(2, 4)
    assert progress.line().startswith(" 50%  5/10 segments  2.50 kB of 5.00 kB")


def test_results_that_come_back_after_their_share_are_not_counted_again() -> None:
    progress = Progress(10, 5000, io.StringIO())
    progress.set_share(2, 4)
    before = progress.line()
    progress.advance(5, 2500)
    assert progress.line().split()[0] == before.split()[0]


def test_an_unknown_total_is_not_made_up() -> None:
    progress = Progress(0, 0, io.StringIO())
    progress.advance(3, 2000)
    assert re.match(r"3 segments  2\.00 kB  .*/s$", progress.line())


def test_threads_may_count_at_the_same_time() -> None:
    progress = Progress(40_000, 40_000, io.StringIO())

    def count() -> None:
        for _ in range(10_000):
            progress.advance(1, 1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert progress.line().startswith("100%  40,000/40,000 segments")


def test_a_short_run_off_a_terminal_prints_nothing() -> None:
    stream = io.StringIO()
    with Progress(1, 1, stream) as progress:
        progress.advance(1, 1)
    assert stream.getvalue() == ""


def test_a_terminal_gets_one_line_that_is_cleared_at_the_end() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal, os.fdopen(theirs, "w") as stream:
        with Progress(2, 2, stream) as progress:
            progress.advance(1, 1)
            shown = read_until(terminal, b"1/2 segments")
        rest = read_until(terminal, SHOW_CURSOR)
    assert ERASE_LINE in rest
    assert not re.search(rb"segments(?!.*\x1b\[2K)", rest, re.DOTALL)
    assert b"\n" not in shown


def test_disabled_shows_nothing_even_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal, os.fdopen(theirs, "w") as stream:
        with Progress(2, 2, stream, enabled=False) as progress:
            progress.advance(1, 1)
            time.sleep(0.3)
        os.set_blocking(terminal.fileno(), False)
        assert not terminal.read(200)


def test_a_stream_that_is_closed_does_not_stop_the_run() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    stream = _TerminalPipe(os.fdopen(writing, "wb", buffering=0), write_through=True)
    with Progress(2, 2, stream) as progress:
        time.sleep(0.3)
        progress.advance(1, 1)
    assert progress.line().startswith(" 50%")
    stream.close()


class _TerminalPipe(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_off_a_terminal_each_line_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_LOG_SECONDS", 0.01)
    reading, writing = os.pipe()
    with (
        os.fdopen(reading, encoding="utf-8") as lines,
        os.fdopen(writing, "w", encoding="utf-8") as stream,
        Progress(4, None, stream) as progress,
    ):
        progress.advance(1)
        moment, text = next(line for line in lines if "1/4" in line).split(" ", 1)
    assert datetime.fromisoformat(moment).tzinfo is UTC
    assert text.startswith(" 25%  1/4 segments")
