"""``export``, ``import`` and ``rewrite``: killed, or failing, at any call, and run again unchanged.

At any moment a partition of the output is the old one or the whole new one, a data file is whole,
and the input is as it was.
"""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.campaign import drawn
from tests.support.command_line import Argument, run_here
from tests.support.killed_runs import Failure, KilledRuns
from tests.support.record_tables import batch_of, write_partition

#: Files with the times of others, locks, and what is written aside.
_PASSING = (
    ".import.kafka-index",
    "-import.kafka-index",
    ".rewrite.kafka-index",
    ".lock",
    ".tmp",
    "-delete/",
)
_KILLS = drawn(60, one_in=30)
#: Where outputs are just being marked.
_FOUND = (4, 6)
_COUNT = 2
_NEVER = 1_000_000


@dataclass(frozen=True)
class Case:
    """A command, the output that it finds, and what is run after a kill.

    Attributes
    ----------
    steps
        It makes at least so many calls.
    """

    command: tuple[Argument, ...]
    steps: int
    finds_output: bool = False


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump, two tables that follow on each other, and what the first is imported as."""
    root = tmp_path_factory.mktemp("killed")
    (root / "tables").mkdir()
    (root / "more").mkdir()
    for number in range(_COUNT):
        records = [(1000 + at, b"key-%d" % (at % 4), b"value") for at in range(6)]
        log = b"".join(batch_of(6 * at, records, codec) for at, codec in enumerate((0, 2, 4)))
        write_partition(root / "dump", {0: log, 18: batch_of(18, records)}, f"t.x_{number}-3")
        for name, start in (("tables", 0), ("more", 20)):
            pq.write_table(_table(number, start), root / name / f"{number}.parquet")
    assert run_here("import", "--input", root / "tables", "--output", root / "old").returncode == 0
    return root


@pytest.fixture(scope="module", params=["export", "import", "overwrite", "append", "rewrite"])
def killed(request: pytest.FixtureRequest, folder: Path) -> Iterator[tuple[str, Case, KilledRuns]]:
    export, make = ("export", "--input", folder / "dump"), ("import", "--input", folder / "tables")
    more, rewrite = (
        ("import", "--input", folder / "more"),
        ("rewrite", "--input", folder / "dump", "--drop-where", "key = 'key-1'", "--allow-revive"),
    )
    case = {
        "export": Case(export, 26),
        "import": Case(make, 66),
        "overwrite": Case((*more, "--overwrite"), 74, finds_output=True),
        "append": Case((*more, "--append"), 122, finds_output=True),
        "rewrite": Case(rewrite, 164),
    }[request.param]
    warm_up = _output(folder, case, "warm-up")
    with KilledRuns(*_arguments(case, warm_up)) as runs:
        yield request.param, case, runs


@pytest.mark.parametrize("failure", list(Failure))
def test_a_command_that_ends_early_leaves_whole_partitions_and_is_run_again(
    folder: Path, killed: tuple[str, Case, KilledRuns], failure: Failure
) -> None:
    name, case, runs = killed
    inputs = [_contents(folder / each) for each in ("dump", "tables", "more")]
    whole = _output(folder, case, "whole")
    assert not runs.run(whole, _NEVER, *_arguments(case, whole))
    expected = _contents(whole)
    old = _contents(folder / "old") if case.finds_output else {}
    steps = range(1, case.steps)
    codes = set()
    for step in {*_FOUND, *random.Random(name).sample(steps, min(_KILLS, len(steps)))}:
        out = _output(folder, case, "out")
        code = runs.failing(out, step, failure, *_arguments(case, out))
        codes.add(code)
        if not code and failure is not Failure.KILL:
            # What failed is not needed, or no call of this step needs room.
            assert _contents(out) == expected, step
            continue
        assert code == (-signal.SIGKILL if failure is Failure.KILL else 3), step
        _check_partitions(_contents(out), old, expected, are_files=name == "export")
        again = run_here(*map(str, _arguments(case, out)))
        assert again.returncode == 0, (step, again.stderr)
        assert _contents(out) == expected, step
        assert not list(out.glob("*-delete")), step
        assert not list(out.glob(".unfinished*")), step
    assert codes - {0}
    assert [_contents(folder / each) for each in ("dump", "tables", "more")] == inputs


def _table(number: int, start: int) -> pa.Table:
    offsets = range(start, start + 20)
    return pa.table(
        {
            "topic": [f"t{number}"] * 20,
            "partition": pa.array([0] * 20, pa.int32()),
            "offset": list(offsets),
            "value": [b"value-%d" % offset for offset in offsets],
            "timestamp": pa.array(offsets, pa.timestamp("ms", "UTC")),
        }
    )


def _arguments(case: Case, output: Path) -> tuple[Argument, ...]:
    return (*case.command, "--threads", 1, "--output", output)


def _output(folder: Path, case: Case, name: str) -> Path:
    output = folder / name
    shutil.rmtree(output, ignore_errors=True)
    if case.finds_output:
        shutil.copytree(folder / "old", output)
    return output


def _check_partitions(
    found: dict[str, bytes], old: dict[str, bytes], expected: dict[str, bytes], *, are_files: bool
) -> None:
    """Check that each partition is the old or the new one; of an export, that files are whole."""
    if are_files:
        data = {name: content for name, content in found.items() if name.endswith(".parquet")}
        assert data.items() <= expected.items()
        return
    for partition in {name.split("/")[0] for name in found if "/" in name}:
        own, before, after = (
            {name: content for name, content in side.items() if name.split("/")[0] == partition}
            for side in (found, old, expected)
        )
        assert own in (before, after), partition


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not any(part in str(path) for part in _PASSING)
    }
