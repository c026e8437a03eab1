"""Local dumps of very many segments against ``find`` over the same trees: reruns and plans.

A rerun has 100,000 unchanged segments, and must look at what was built of them as well: it stands
beside ``find -printf`` over input and output. A plan (``--dry-run``) has a million. Both are runs
of the command line with all that it imports, and their peak memory is what the kernel counted.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from kafka_index.core.format.names import LOG_SUFFIX, segment_file_name
from tests.support.command_line import COMMAND, environment
from tests.support.segments import batch

_RERUN_SEGMENTS, _PLAN_SEGMENTS = 100_000, 1_000_000
_RERUN_OF_PARTITION, _PLAN_OF_PARTITION = 100, 1_000
_RERUN_GOAL, _RERUN_MS_GOAL = 10.0, 0.1
_PLAN_GOAL, _PLAN_SECONDS_GOAL, _PLAN_GB_GOAL = 5.0, 30.0, 1.0
_ROUNDS = 3


@dataclass(frozen=True)
class Cost:
    """The resources that a process took."""

    seconds: float
    peak_bytes: int


def logs_of_partition(segments: int) -> Iterator[tuple[str, bytes]]:
    """Yield the names and bytes of adjacent logs of one batch each."""
    for offset in range(segments):
        yield segment_file_name(offset, LOG_SUFFIX), batch(offset, records=1)


def link_partitions(dump: Path, partitions: int) -> None:
    """Give the logs of a dump's only partition more names: hard links in other partitions."""
    names = os.listdir(dump / "topic-0")
    for number in range(1, partitions):
        folder = f"{dump}/topic-{number}"
        os.mkdir(folder)
        for name in names:
            os.link(f"{dump}/topic-0/{name}", f"{folder}/{name}")


def run(scratch: Path, *, divisor: int = 1) -> bool:
    """Measure, print, and return whether all goals are reached; a divisor makes it smaller."""
    reached = True
    with TemporaryDirectory(dir=scratch) as folder:
        reached &= _measure_rerun(Path(folder), _RERUN_SEGMENTS // divisor)
    with TemporaryDirectory(dir=scratch) as folder:
        reached &= _measure_plan(Path(folder), _PLAN_SEGMENTS // divisor)
    return reached


def _measure_rerun(folder: Path, segments: int) -> bool:
    dump, output = folder / "dump", folder / "built"
    _make(dump, segments // _RERUN_OF_PARTITION, _RERUN_OF_PARTITION)
    build = [*COMMAND, "build", "--input", str(dump), "--output", str(output)]
    first = _cost(build)
    logs, trees, rerun = _in_turn(_find(dump), _find(dump, output), build)
    each_ms = 1000 * rerun.seconds / segments
    ratio = rerun.seconds / trees.seconds
    print(
        f"rerun over {segments:,} unchanged segments: {_described(rerun)}, {each_ms:.3f} ms each "
        f"(goal {_RERUN_MS_GOAL:g}; the build itself took {first.seconds:.0f} s); find over input "
        f"and output: {trees.seconds:.2f} s, {ratio:.1f} x (goal {_RERUN_GOAL:g}); over the input "
        f"alone: {logs.seconds:.2f} s, {rerun.seconds / logs.seconds:.1f} x",
        flush=True,
    )
    return ratio <= _RERUN_GOAL and each_ms <= _RERUN_MS_GOAL


def _measure_plan(dump: Path, segments: int) -> bool:
    _make(dump, segments // _PLAN_OF_PARTITION, _PLAN_OF_PARTITION)
    find, plan = _in_turn(_find(dump), [*COMMAND, "build", "--input", str(dump), "--dry-run"])
    ratio = plan.seconds / find.seconds
    print(
        f"plan of {segments:,} segments: {_described(plan)} (goals {_PLAN_SECONDS_GOAL:g} s, "
        f"{_PLAN_GB_GOAL:g} GB); find: {find.seconds:.2f} s, {ratio:.1f} x (goal {_PLAN_GOAL:g})"
    )
    return (
        ratio <= _PLAN_GOAL
        and plan.seconds <= _PLAN_SECONDS_GOAL
        and plan.peak_bytes <= _PLAN_GB_GOAL * 1e9
    )


def _make(dump: Path, partitions: int, segments: int) -> None:
    """Make a data directory whose partitions have the same logs, hard links of few files."""
    first = dump / "topic-0"
    first.mkdir(parents=True)
    for name, data in logs_of_partition(segments):
        (first / name).write_bytes(data)
    link_partitions(dump, partitions)


def _find(*folders: Path) -> list[str]:
    return ["find", *map(str, folders), "-printf", "%p %s %T@\n"]


def _in_turn(*commands: Sequence[str]) -> list[Cost]:
    """Return the median seconds of each, and its largest peak."""
    rounds = [[_cost(command) for command in commands] for _ in range(_ROUNDS)]
    return [
        Cost(
            statistics.median(cost.seconds for cost in costs),
            max(cost.peak_bytes for cost in costs),
        )
        for costs in zip(*rounds, strict=True)
    ]


def _cost(command: Sequence[str]) -> Cost:
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment())
    _, status, usage = os.wait4(process.pid, 0)
    took = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}")
    return Cost(took, usage.ru_maxrss * 1024)


def _described(cost: Cost) -> str:
    return f"{cost.seconds:.2f} s, peak {cost.peak_bytes / 1e6:.0f} MB"


if __name__ == "__main__":
    # A try on less: python -m benchmarks.many_segments SCRATCH DIVISOR
    sys.exit(not run(Path(sys.argv[1]), divisor=int(sys.argv[2])))
