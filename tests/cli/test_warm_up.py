"""``warm-up``, and what a run shows while it compiles."""

from __future__ import annotations

import io
import re
import sys

import pytest

from kafka_index.cli.progress import Progress, announce_compilation
from kafka_index.kernels.compile_clock import CompileClock, compile_clock
from tests.support.command_line import kafka_index, run_here


def test_all_kernels_are_kept_and_compiled_once() -> None:
    assert run_here("warm-up").returncode == 0
    done = kafka_index("warm-up")
    assert done.returncode == 0
    assert re.fullmatch(r"all kernels are already compiled, and kept in .+\n", done.stdout)


def test_a_compilation_is_shown_and_not_counted_in_the_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    progress = Progress(10, None, io.StringIO(), enabled=False)
    with progress:
        compile_clock.start()
        assert progress.line() == "compiling kernels, once"
        compile_clock.stop()
        monkeypatch.setattr(CompileClock, "seconds", 1e12)
        progress.advance(5)
        # Nearly no time is left for the work itself.
        assert re.search(r"\d,\d{3},\d{3},\d{3}/s", progress.line())


def test_a_question_on_a_terminal_says_that_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(compile_clock, "on_first", None)
    announce_compilation()
    assert compile_clock.on_first is not None
    compile_clock.on_first()
    assert terminal.getvalue() == "kafka-index: compiling kernels, once\n"


def test_compilations_inside_of_others_are_counted_once() -> None:
    clock = CompileClock()
    begun: list[int] = []
    clock.on_first = lambda: begun.append(clock.count)
    clock.start()
    clock.start()
    running = []
    for _ in range(2):
        clock.stop()
        running.append(clock.is_running)
    assert running == [True, False]
    assert (clock.count, begun) == (2, [1])
