"""``warm-up``, and what a run shows while it compiles."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kafka_index.cli.print_result import Progress
from kafka_index.core.kernels.compile_clock import CompileClock, compile_clock
from tests.support.command_line import DUMP, environment, kafka_index, run_here
from tests.support.timeouts import TIMEOUT_SECONDS


def test_kernels_are_compiled_once_and_cached() -> None:
    assert run_here("warm-up").returncode == 0
    result = kafka_index("warm-up")
    assert result.returncode == 0
    assert re.search(
        r"^all kernels are already compiled, and cached in .+$", result.stdout, re.MULTILINE
    )


def test_kernel_compilation_is_shown_and_excluded_from_the_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    progress = Progress(10, None, io.StringIO(), enabled=False)
    with progress:
        compile_clock.start()
        assert progress.line() == "compiling kernels (first run only)"
        compile_clock.stop()
        monkeypatch.setattr(CompileClock, "seconds", 1e12)
        progress.advance(5)
        # Nearly no time is left for the work itself.
        assert re.search(r"\d,\d{3},\d{3},\d{3}/s", progress.line())


def test_terminal_shows_kernel_compilation_and_unwritable_cache(
    tmp_path: Path,
) -> None:
    # Folders that others can write to are not used.
    for name in ("kafka_index", f"kafka_index-{os.geteuid()}"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
    folders = dict.fromkeys(("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "TMPDIR"), str(tmp_path))
    ours, theirs = pty.openpty()
    program = (
        f"import sys; sys.prefix = {str(tmp_path)!r}; from kafka_index.cli import main;"
        "sys.exit(main())"
    )
    with open(ours, "rb", buffering=0) as screen:
        result = subprocess.run(
            [sys.executable, "-c", program, "dump", next(DUMP.glob("orders*/*.index"))],
            env={**environment(), **folders},
            stdout=subprocess.DEVNULL,
            stderr=theirs,
            check=False,
            timeout=TIMEOUT_SECONDS,
        )
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # what a closed terminal reads as
            while part := screen.read(4096):
                shown += part
    text = " ".join(shown.decode().split())
    assert result.returncode == 0, text
    assert text.count("compiling kernels (first run only)") == 1
    assert text.count("compiled kernels cannot be kept in") == 1
    assert text.index("compiling kernels") < text.index("cannot be kept")


def test_nested_kernel_compilations_are_counted_once() -> None:
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
