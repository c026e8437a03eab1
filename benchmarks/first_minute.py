"""Processor time of short commands: cold, where every kernel has to be compiled, and warm.

Where ``make package`` has left a wheel with machine code for this Python in ``dist``, the commands
are run from it too, with an empty cache: the time should be no more than 1.2 times the warm one.
"""

from __future__ import annotations

import compileall
import os
import platform
import resource
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

_ROOT = Path(__file__).resolve().parents[1]
_DUMP = _ROOT / "examples" / "dump"
_LOG = _DUMP / "app-logs-0" / "00000000000000000000.log"
_ROUNDS = 5
_PACKAGED_GOAL = 1.2
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
    print("| command | cold | goal | warm | goal | with packaged code | of warm |")
    print("|---|---|---|---|---|---|---|")
    is_met = True
    # As pip does when it installs a package.
    compileall.compile_dir(_ROOT / "kafka_index", quiet=1)
    with TemporaryDirectory(dir=scratch) as folder:
        packaged = _packaged_code(Path(folder))
        for number, kind in enumerate(_KINDS):
            cold = _seconds(kind.arguments, Path(folder), f"{number}-cold")
            pairs = [
                [
                    _seconds(kind.arguments, Path(folder), f"{number}-cold", again=again),
                    _seconds(
                        kind.arguments, Path(folder), f"{number}-{again}", source=packaged, again=0
                    )
                    if packaged
                    else 0.0,
                ]
                for again in range(1, _ROUNDS + 1)
            ]
            warm, loaded = (statistics.median(each) for each in zip(*pairs, strict=True))
            ratio = statistics.median(one / other for other, one in pairs)
            is_met &= _is_below(cold, kind.cold_goal) and _is_below(warm, kind.warm_goal)
            is_met &= _is_below(ratio, _PACKAGED_GOAL)
            print(
                f"| {kind.name} | {cold:.1f} | {kind.cold_goal or ''} "
                f"| {warm:.2f} | {kind.warm_goal or ''} "
                + (f"| {loaded:.2f} | {ratio:.2f} |" if packaged else "| | |")
            )
    return is_met


def _packaged_code(folder: Path) -> Path | None:
    """Unpack the wheel with machine code for this Python and machine, if there is one."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    for wheel in (_ROOT / "dist").glob(f"*-{python}-*_{platform.machine()}.whl"):
        target = folder / "packaged"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
        compileall.compile_dir(target, quiet=1)
        return target
    return None


def _is_below(seconds: float, goal: float | None) -> bool:
    return goal is None or seconds <= goal


def _seconds(
    arguments: Sequence[str], folder: Path, cache: str, *, source: Path = _ROOT, again: int = 0
) -> float:
    """Run a command of a package with a cache of its own; return its processor time."""
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
        cwd=source,
        env=environment | {"NUMBA_CACHE_DIR": str(folder / cache), "PYTHONPATH": str(source)},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
