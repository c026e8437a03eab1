"""Commands that print, of which any call fails: the message names the file, and the input stays.

Those that write an output are in tests/outputs.
"""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.builds import small_disk
from tests.support.campaign import sample_size
from tests.support.command_line import Argument, run_here
from tests.support.killed_runs import EndedRun, Failure, KilledRuns
from tests.support.restoring import contents, copy_dump

PARTITIONS = ("payments-0", "audit.trail-0", "__consumer_offsets-0", "__cluster_metadata-0")
#: What a rerun may leave differently: what it did, and when.
RECORDS = (".kafka-index", "summary", "run-report", "import.kafka-index", ".lock")
_ENVIRONMENT = 3
#: A step that no run reaches.
NEVER = 1_000_000
#: Open files that a run lacks at most.
_FEW_FILES = 24
_STEPS = sample_size(60, one_in=60)


@dataclass(frozen=True)
class Case:
    """A command.

    `arguments`: the command line; ``{data}`` holds the inputs, ``{out}`` takes the outputs.
    `prints`: whether it prints what it is asked for.
    """

    arguments: tuple[Argument, ...]
    prints: bool = False

    def command_line(self, data: Path, out: Path) -> list[str]:
        given = [str(argument).format(data=data, out=out) for argument in self.arguments]
        given += ["--summary", str(out / "summary.json")]
        return given

    def output(self, out: Path) -> Path:
        """Return an output as the command finds it."""
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        return out


_DUMP, _ONE, _OFF = ("--input", "{data}/dump"), ("--threads", 1), ("--quiet", "--threads", 1)
_LOGS = ("--logs", "{data}/dump")
CASES: dict[str, Case] = {
    "lookup-question": Case(
        (
            *("lookup", *_LOGS, "--topic", "payments", "--partition", 0, "--offset", 7),
            *("--resolve", "record", "--show-record"),
        ),
        prints=True,
    ),
    "lookup-topic": Case(
        ("lookup", *_LOGS, "--topic", "payments", "--timestamp", "-2"), prints=True
    ),
    "find": Case(("find", *_DUMP, "--value-contains", "a", "--json", *_ONE), prints=True),
    "cat": Case(("cat", "payments", *_DUMP, "--tail", "-f", "json"), prints=True),
    "metadata": Case(("metadata", "{data}/dump", "--what", "offsets", "--json"), prints=True),
    "metadata-file": Case(
        ("metadata", "{data}/dump", "--what", "topics", "--output", "{out}/topics.parquet")
    ),
    "dump": Case(("dump", "{data}/dump/payments-0", "--json"), prints=True),
    "dump-records": Case(
        ("dump", "{data}/dump/audit.trail-0/00000000000000000000.log", "--records", "--json"),
        prints=True,
    ),
    "verify": Case(("verify", *_DUMP, "--report", "{out}/report.json", *_OFF)),
    "verify-page": Case(
        ("verify", *_DUMP, "--against", "{data}/copy", "--report", "{out}/report.json", *_OFF)
    ),
    "predict": Case(("predict", *_DUMP, "--json", "--report", "{out}/report.csv"), prints=True),
}


class Runs:
    """Runs of all commands over the same inputs.

    `root`: empty; inputs and outputs are below it.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.data, self.out = root, root / "data", root / "out"
        self.data.mkdir()
        copy_dump(self.data / "dump", *PARTITIONS)
        shutil.copytree(self.data / "dump", self.data / "copy")
        self._process = KilledRuns("dump", self.data / "dump/payments-0")
        self._whole: dict[str, tuple[EndedRun, dict[str, bytes]]] = {}

    def run(self, case: Case, step: int, failure: Failure) -> EndedRun:
        return self._process.failing(
            self.root, step, failure, *case.command_line(self.data, self.out)
        )

    def fresh(self, case: Case, step: int, failure: Failure) -> EndedRun:
        """Run a command over the output as it was at first."""
        case.output(self.out)
        return self.run(case, step, failure)

    def whole(self, name: str) -> tuple[EndedRun, dict[str, bytes]]:
        """Return what a command prints and writes that nothing interrupts."""
        if name not in self._whole:
            case = CASES[name]
            case.output(self.out)
            self._process.warm_up(*case.command_line(self.data, self.out))
            ended = self.fresh(case, NEVER, Failure.KILL)
            assert ended.code in (0, 1), ended.stderr
            self._whole[name] = ended, written(self.out)
        return self._whole[name]

    def steps(self, name: str, failure: Failure) -> list[int]:
        """Draw steps at which a command fails."""
        if failure is Failure.FILES:
            calls = _FEW_FILES
        elif failure is Failure.KILL:
            calls = self.whole(name)[0].calls
        else:
            calls = self.fresh(CASES[name], NEVER, failure).calls
        steps = range(1, calls + 1)
        return random.Random(f"{name} {failure}").sample(steps, min(_STEPS, len(steps)))

    def inputs(self) -> dict[str, tuple[int, int]]:
        return {
            str(path): (path.stat().st_size, path.stat().st_mtime_ns)
            for path in self.data.rglob("*")
        }

    def end(self) -> None:
        self._process.__exit__(None, None, None)


def written(out: Path) -> dict[str, bytes]:
    """Return what a command leaves, but for records of runs."""
    return {
        name: data for name, data in contents(out).items() if not any(r in name for r in RECORDS)
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    runs = Runs(tmp_path_factory.mktemp("failing"))
    yield runs
    runs.end()


@pytest.mark.parametrize("failure", [Failure.DISK, Failure.DENIED, Failure.FULL, Failure.FILES])
@pytest.mark.parametrize("name", CASES)
def test_same_command_line_completes_the_work(name: str, failure: Failure, runs: Runs) -> None:
    case = CASES[name]
    whole, expected = runs.whole(name)
    inputs = runs.inputs()
    for step in runs.steps(name, failure):
        ended = runs.fresh(case, step, failure)
        place = f"step {step}: {ended.place}\n{ended.stderr}"
        assert ended.code in (whole.code, _ENVIRONMENT, -signal.SIGKILL), place
        if ended.code != whole.code:
            if ended.code == _ENVIRONMENT:
                assert is_named(runs.root, ended, failure), place
            ended = runs.run(case, NEVER, Failure.KILL)
            assert ended.code == whole.code, f"{place}\n{ended.stderr}"
        if case.prints:
            assert ended.stdout == whole.stdout, place
        actual = written(runs.out)
        assert {n for n in actual.keys() | expected.keys() if actual.get(n) != expected.get(n)} == (
            set()
        ), place
    assert runs.inputs() == inputs


def is_named(root: Path, ended: EndedRun, failure: Failure) -> bool:
    """Return whether error or result name the file of the call that failed, or a folder of it."""
    folders = [ended.place, *map(str, Path(ended.place).parents)]
    if failure is Failure.FILES:
        # It fails outside of the folder as well: libraries of Python, the folder for sorting.
        texts = ("many open files", "ulimit -n", " /")
        return all(text in ended.stderr for text in texts)
    inside = [
        folder for folder in folders if Path(folder) != root and Path(folder).is_relative_to(root)
    ]
    return any(each in ended.stdout + ended.stderr for each in inside)


@pytest.mark.parametrize("command", ["verify", "build"])
def test_result_is_printed_if_its_report_does_not_fit(
    command: str, runs: Runs, tmp_path: Path
) -> None:
    given: list[Argument] = [command, "--input", runs.data / "dump"]
    if command == "build":
        given += ["--output", tmp_path / "out", "--force"]
    printed = run_here(*map(str, given)).stdout.splitlines()
    with small_disk(tmp_path / "small", "4k") as disk:
        (disk / "full").write_bytes(bytes(4096))
        result = run_here(*map(str, given), "--report", disk / "report.json")

    assert result.returncode == 3
    assert "no space left" in result.stderr
    assert len(result.stdout.splitlines()) == len(printed) > 0
