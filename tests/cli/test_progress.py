import contextlib
import io
import os
import pty
import re
import subprocess
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import pytest

from kafka_index.cli import print_result as progress_module
from kafka_index.cli.print_result import Progress
from kafka_index.commands.rewrite.job import rewrite
from kafka_index.commands.rewrite.request import RewriteRequest
from kafka_index.core.job.engine import Listener, ThreadEngine
from tests.support.command_line import COMMAND, DUMP, environment, run_here
from tests.support.gates import Gate, Step
from tests.support.timeouts import TIMEOUT_SECONDS

ERASE_LINE, SHOW_CURSOR = b"\x1b[2K", b"\x1b[?25h"


def read_until(terminal: IO[bytes], end: bytes) -> bytes:
    shown = b""
    while end not in shown:
        shown += terminal.read(200)
    return shown


def test_progress_line_shows_done_and_remaining_work() -> None:
    with Progress(4, 4000, io.StringIO()) as progress:
        progress.advance(1, 1000)
        time.sleep(0.01)
        line = progress.line()
    assert line.startswith(" 25%  1/4 segments  1.00 kB of 4.00 kB  ")
    assert line.endswith(" left")


def test_progress_counts_fractions_of_segments_and_bytes() -> None:
    progress = Progress(10, 5000, io.StringIO())
    progress.set_units(2, 4)
    assert progress.line().startswith(" 50%  5/10 segments  2.50 kB of 5.00 kB")


def test_completed_segment_is_not_counted_twice_after_partial_progress() -> None:
    progress = Progress(10, 5000, io.StringIO())
    progress.set_units(2, 4)
    before = progress.line()
    progress.advance(5, 2500)
    assert progress.line().split()[0] == before.split()[0]


def test_progress_without_a_known_total_shows_no_percentage() -> None:
    progress = Progress(0, 0, io.StringIO())
    progress.advance(3, 2000)
    assert re.match(r"3 segments  2\.00 kB  .*/s$", progress.line())


def test_progress_counts_of_concurrent_threads_add_up() -> None:
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


def test_short_run_without_a_terminal_prints_no_progress() -> None:
    stream = io.StringIO()
    with Progress(1, 1, stream) as progress:
        progress.advance(1, 1)
    assert stream.getvalue() == ""


def test_terminal_gets_one_line_that_is_cleared_at_the_end() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal, os.fdopen(theirs, "w") as stream:
        with Progress(2, 2, stream) as progress:
            progress.advance(1, 1)
            shown = read_until(terminal, b"1/2 segments")
        rest = read_until(terminal, SHOW_CURSOR)
    assert ERASE_LINE in rest
    assert not re.search(rb"segments(?!.*\x1b\[2K)", rest, re.DOTALL)
    assert b"\n" not in shown


def test_disabled_progress_prints_nothing_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal, os.fdopen(theirs, "w") as stream:
        with Progress(2, 2, stream, enabled=False) as progress:
            progress.advance(1, 1)
            time.sleep(0.3)
        os.set_blocking(terminal.fileno(), False)
        assert not terminal.read(200)


def test_stream_that_is_closed_does_not_stop_the_run() -> None:
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


def test_progress_lines_without_a_terminal_have_timestamps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "_LOG_INTERVAL_SECONDS", 0.01)
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


def test_pause_clears_the_progress_line_for_other_output() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal, os.fdopen(theirs, "w") as stream:
        with Progress(2, None, stream) as progress:
            read_until(terminal, b"0/2 segments")
            with progress.paused(stream):
                stream.write("a record\n")
                stream.flush()
                time.sleep(0.5)  # long enough for a line to be drawn
            printed = read_until(terminal, b"a record\r\n")
            progress.advance(1)
            read_until(terminal, b"1/2 segments")
        read_until(terminal, SHOW_CURSOR)
    before, _, _ = printed.partition(b"a record\r\n")
    drawn, _, left = before.rpartition(ERASE_LINE)
    assert b"segments" in drawn
    assert not left


def test_output_to_another_stream_does_not_pause_progress() -> None:
    ours, theirs = pty.openpty()
    with (
        os.fdopen(ours, "rb", buffering=0) as terminal,
        os.fdopen(theirs, "w") as stream,
        Progress(2, None, stream) as progress,
        progress.paused(io.StringIO()),
    ):
        progress.advance(1)
        read_until(terminal, b"1/2 segments")


def on_a_terminal(gate: Gate, *arguments: str, shown: bytes) -> list[str]:
    """Run a command that is held at a gate until something is shown; return its final lines."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        env=gate.on_the_way_of({**environment(), "TERM": "xterm", "COLUMNS": "400"}),
        stdout=theirs,
        stderr=theirs,
        text=True,
    )
    os.close(theirs)
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        printed = read_until(terminal, shown)
        gate.open()
        with contextlib.suppress(OSError):  # the terminal's end
            while part := terminal.read(10_000):
                printed += part
    assert process.wait(TIMEOUT_SECONDS) == 0
    # A line is removed from the one below it.
    removed = re.sub(r"[^\n]*\r\n(\x1b\[\?25h)?\r\x1b\[1A\x1b\[2K", "", printed.decode())
    lines = removed.split("\r\n")
    return [re.sub(r".*(\x1b\[2K|\r)|\x1b\[[?\d;]*[a-zA-Z]", "", line) for line in lines]


def test_progress_of_a_search_counts_splits_and_prints_each_record(tmp_path: Path) -> None:
    arguments = ("--input", str(DUMP), "--topics", "payments", "--key-regex", "7$")
    gate = Gate(tmp_path / "gate", Step("open", "payments-1/00000000000000000000.log", 1))
    lines = on_a_terminal(gate, "find", *arguments, "--threads", "1", shown=b"1/2 splits")
    result = run_here("find", *arguments)
    assert [line for line in lines if line] == [*result.stdout.splitlines(), result.stderr.rstrip()]


def test_progress_of_a_rewrite_covers_both_passes(tmp_path: Path) -> None:
    log = "payments-1.thread0/payments-1/00000000000000000000.log"
    gate = Gate(tmp_path / "gate", Step("open", log, 1))
    out = str(tmp_path / "out")
    arguments = ("--input", str(DUMP), "--topics", "payments", "--drop-where", "offset < 10")
    segments = len(list(DUMP.glob("payments-*/*.log")))
    first = len(list(DUMP.glob("payments-0/*.log")))
    lines = on_a_terminal(
        gate,
        *("rewrite", *arguments, "--output", out, "--threads", "1"),
        shown=f"{first}/{segments} segments".encode(),
    )
    assert lines[-2].endswith(f"in {out}")


class _Reads(Listener):
    def __init__(self) -> None:
        self.planned = self.done = (0, 0)

    def on_plan(self, count: int, size_bytes: int | None, _nouns: tuple[str, str]) -> None:
        self.planned = count, size_bytes or 0

    def on_done(self, count: int, size_bytes: int = 0) -> None:
        self.done = self.done[0] + count, self.done[1] + size_bytes


@pytest.mark.parametrize("is_dry", [False, True])
def test_rewrite_reports_each_segment_once_a_pass(
    tmp_path: Path,
    is_dry: bool,  # noqa: FBT001, a parameter
) -> None:
    request = RewriteRequest(
        inputs=(str(DUMP),),
        output=None if is_dry else str(tmp_path / "out"),
        dry_run=is_dry,
        drop_where="topic = 'payments' and offset < 10",
    )
    reads = _Reads()
    rewrite(request, ThreadEngine(1), reads)
    sizes = [log.stat().st_size for log in DUMP.glob("*/*.log")]
    assert reads.done == reads.planned == (len(sizes), (1 if is_dry else 2) * sum(sizes))
