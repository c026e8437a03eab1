"""Processor time of short commands: cold, where every kernel has to be compiled, and warm."""

from __future__ import annotations

import compileall
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

_ROOT = Path(__file__).resolve().parents[1]
_DUMP = _ROOT / "examples" / "dump"
_LOG = _DUMP / "app-logs-0" / "00000000000000000000.log"
_ROUNDS = 5
_MIB = 1 << 20


@dataclass(frozen=True)
class _Kind:
    """A command, and the most seconds of processor time it should take, if there is a goal."""

    name: str
    arguments: tuple[str, ...]
    cold_goal: float | None = None
    warm_goal: float | None = None


_KINDS = (
    _Kind(
        "one question",
        (
            "lookup",
            "--logs",
            str(_DUMP),
            "--topic",
            "app-logs",
            "--partition",
            "0",
            "--offset",
            "1",
        ),
        cold_goal=4.0,
        warm_goal=0.9,
    ),
    _Kind(
        f"a build of {sum(log.stat().st_size for log in _DUMP.glob('*/*.log')) / _MIB:.1f} MiB",
        ("build", "--input", str(_DUMP), "--output"),
        cold_goal=8.0,
    ),
    _Kind("a dump of a log", ("dump", str(_LOG))),
    _Kind("a dump of its records", ("dump", "--records", str(_LOG))),
    _Kind("--help", ("--help",)),
)


def run(scratch: Path) -> bool:
    """Print a table of seconds; return whether the goals are met."""
    print("processor time of one process, seconds\n")
    print("| command | cold | goal | warm | goal |")
    print("|---|---|---|---|---|")
    is_met = True
    # As pip does when it installs a package.
    compileall.compile_dir(_ROOT / "kafka_index", quiet=1)
    with TemporaryDirectory(dir=scratch) as folder:
        for number, kind in enumerate(_KINDS):
            cold = _seconds(kind.arguments, Path(folder), f"{number}-cold")
            warm = statistics.median(
                _seconds(kind.arguments, Path(folder), f"{number}-cold", again=again)
                for again in range(1, _ROUNDS + 1)
            )
            is_met &= _is_below(cold, kind.cold_goal) and _is_below(warm, kind.warm_goal)
            print(
                f"| {kind.name} | {cold:.1f} | {kind.cold_goal or ''} "
                f"| {warm:.2f} | {kind.warm_goal or ''} |"
            )
    return is_met


def _is_below(seconds: float, goal: float | None) -> bool:
    return goal is None or seconds <= goal


def _seconds(arguments: Sequence[str], folder: Path, cache: str, *, again: int = 0) -> float:
    """Run a command with a cache of its own; return its processor time."""
    # Kernels that were kept for all users are beside the installed packages, not in this prefix.
    program = (
        f"import sys; sys.prefix = {str(folder / 'prefix')!r};"
        "from kafka_index.cli import main; sys.exit(main())"
    )
    output = [str(folder / f"{cache}-{again}")] if arguments[-1] == "--output" else []
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", program, *arguments, *output],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=_ROOT,
        env=environment | {"NUMBA_CACHE_DIR": str(folder / cache)},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
