"""Commands of which any call fails, or that are killed: the same command line finishes the work.

At any moment a partition of the output is the old one or the whole new one, a file has its name
once it is whole, and the input is as it was.
"""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.builds import small_disk
from tests.support.campaign import drawn
from tests.support.command_line import SETTINGS, Argument, run_here
from tests.support.killed_runs import Ended, Failure, KilledRuns
from tests.support.restoring import contents, copy_dump

PARTITIONS = ("payments-0", "audit.trail-0", "__consumer_offsets-0", "__cluster_metadata-0")
QUERIES = {
    "asked/one.csv": "topic,partition,offset\npayments,0,5\npayments,0,7\naudit.trail,0,1\n",
    "asked/two.csv": "topic,partition,offset\npayments,0,9\n",
    "times.csv": "topic,partition,timestamp\npayments,0,-2\naudit.trail,0,-1\n",
}
#: What a rerun may leave differently: what it did, and when.
RECORDS = (".kafka-index", "summary", "run-report", "import.kafka-index", ".lock")
#: Files with the times of others, and what is written aside.
PASSING = (*RECORDS, ".rewrite.kafka-index", "-import.kafka-index", ".tmp", "-delete/")
_ENVIRONMENT = 3
#: A step that no run reaches.
NEVER = 1_000_000
#: Open files that a run lacks at most.
_FEW_FILES = 24
_STEPS = drawn(60, one_in=60)


@dataclass(frozen=True)
class Case:
    """A command.

    `arguments`: the command line; ``{data}`` holds the inputs, ``{out}`` takes the outputs.
    `finds`: the input that lies in the output already. `prints`: whether it prints what it is asked
    for. `publishes`: what is the old one or the whole new one at any moment. The answers of a
    failing lookup are there too, with the status of what it could not read.
    """

    arguments: tuple[Argument, ...]
    finds: str = ""
    prints: bool = False
    publishes: Literal["partitions", "files", ""] = ""

    def command_line(self, data: Path, out: Path) -> list[str]:
        given = [str(each).format(data=data, out=out) for each in self.arguments]
        given += ["--summary", str(out / "summary.json")]
        return given

    def output(self, data: Path, out: Path) -> Path:
        """Return an output as the command finds it."""
        shutil.rmtree(out, ignore_errors=True)
        if self.finds:
            shutil.copytree(data / self.finds, out / self.finds)
        out.mkdir(exist_ok=True)
        return out


_DUMP, _ONE, _OFF = ("--input", "{data}/dump"), ("--threads", 1), ("--quiet", "--threads", 1)
_LOGS = ("--logs", "{data}/dump")
CASES: dict[str, Case] = {
    "lookup-file": Case(
        (
            *("lookup", *_LOGS, "--by", "timestamp", "--queries", "{data}/times.csv"),
            *("--output", "{out}/answers.csv", "--report", "{out}/run-report.json"),
            *("--starting-offsets", "{out}/starts.json", *_OFF),
        )
    ),
    "lookup-folder": Case(
        (
            *("lookup", *_LOGS, "--by", "offset", "--queries", "{data}/asked"),
            *("--output", "{out}/answers", "--report", "{out}/run-report.csv", *_OFF),
            *("--resolve", "record"),
        )
    ),
    "lookup-parquet": Case(
        (
            *("lookup", *_LOGS, "--by", "offset", "--queries", "{data}/asked"),
            *("--output", "{out}/answers.parquet", *_OFF),
            *("--report", "{out}/run-report.html"),
        )
    ),
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
    "build": Case(
        (
            *("build", *_DUMP, "--output", "{out}/indexes", "--config", SETTINGS, *_OFF),
            *("--report", "{out}/run-report.json"),
        ),
        publishes="files",
    ),
    "build-in-place": Case(
        (
            *("build", "--input", "{out}/dump", "--in-place", "--config", SETTINGS, *_OFF),
            *("--report", "{out}/run-report.html"),
        ),
        finds="dump",
        publishes="files",
    ),
    "export": Case(
        ("export", *_DUMP, "--output", "{out}/records", "--report", "{out}/run-report.csv", *_OFF),
        publishes="files",
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
    "import": Case(
        ("import", "--input", "{data}/tables", "--output", "{out}/old", *_ONE),
        publishes="partitions",
    ),
    "overwrite": Case(
        ("import", "--input", "{data}/more", "--output", "{out}/old", "--overwrite", *_ONE),
        finds="old",
        publishes="partitions",
    ),
    "append": Case(
        ("import", "--input", "{data}/more", "--output", "{out}/old", "--append", *_ONE),
        finds="old",
        publishes="partitions",
    ),
    "rewrite": Case(
        (
            *("rewrite", "--input", "{data}/old", "--output", "{out}/kept", *_ONE),
            *("--drop-where", "key = 'key-1'", "--allow-revive"),
            *("--report", "{out}/report.json"),
        ),
        publishes="partitions",
    ),
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
        (self.data / "asked").mkdir()
        for name, text in QUERIES.items():
            (self.data / name).write_text(text)
        for name, start in (("tables", 0), ("more", 20)):
            (self.data / name).mkdir()
            for number in range(2):
                pq.write_table(_table(number, start), self.data / name / f"{number}.parquet")
        tables = self.data / "tables"
        assert run_here("import", "--input", tables, "--output", self.data / "old").returncode == 0
        self._process = KilledRuns("dump", self.data / "dump/payments-0")
        self._whole: dict[str, tuple[Ended, dict[str, bytes]]] = {}

    def run(self, case: Case, step: int, failure: Failure) -> Ended:
        return self._process.failing(
            self.root, step, failure, *case.command_line(self.data, self.out)
        )

    def fresh(self, case: Case, step: int, failure: Failure) -> Ended:
        """Run a command over the output as it was at first."""
        case.output(self.data, self.out)
        return self.run(case, step, failure)

    def whole(self, name: str) -> tuple[Ended, dict[str, bytes]]:
        """Return what a command prints and writes that nothing interrupts."""
        if name not in self._whole:
            case = CASES[name]
            case.output(self.data, self.out)
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


@pytest.mark.parametrize("failure", list(Failure))
@pytest.mark.parametrize("name", CASES)
def test_the_same_command_line_finishes_the_work(name: str, failure: Failure, runs: Runs) -> None:
    case = CASES[name]
    whole, expected = runs.whole(name)
    inputs = runs.inputs()
    old = contents(case.output(runs.data, runs.out))
    for step in runs.steps(name, failure):
        ended = runs.fresh(case, step, failure)
        place = f"step {step}: {ended.place}\n{ended.stderr}"
        assert ended.code in (whole.code, _ENVIRONMENT, -signal.SIGKILL), place
        if ended.code != whole.code:
            _check_parts(case, old, written(runs.out), expected)
            if ended.code == _ENVIRONMENT:
                assert is_named(runs.root, ended, failure), place
            ended = runs.run(case, NEVER, Failure.KILL)
            assert ended.code == whole.code, f"{place}\n{ended.stderr}"
        if case.prints:
            assert ended.stdout == whole.stdout, place
        found = written(runs.out)
        assert {n for n in found.keys() | expected.keys() if found.get(n) != expected.get(n)} == (
            set()
        ), place
    assert runs.inputs() == inputs


def _check_parts(
    case: Case, old: dict[str, bytes], found: dict[str, bytes], expected: dict[str, bytes]
) -> None:
    """Check that each partition, or each file, is the old or the new one."""

    def parts(files: dict[str, bytes]) -> dict[str, dict[str, bytes]]:
        by_part: dict[str, dict[str, bytes]] = {}
        for name, content in files.items():
            if not any(each in name for each in (*PASSING, "report")):
                part = str(Path(name).parent) if case.publishes == "partitions" else name
                by_part.setdefault(part, {})[name] = content
        return by_part

    before, after = parts(old), parts(expected)
    if case.publishes:
        for part, files in parts(found).items():
            assert files in (before.get(part), after.get(part)), part


def is_named(root: Path, ended: Ended, failure: Failure) -> bool:
    """Return whether error or result name the file of the call that failed, or a folder of it."""
    folders = [ended.place, *map(str, Path(ended.place).parents)]
    if failure is Failure.FILES:
        # It fails outside of the folder as well: libraries of Python, the folder for sorting.
        texts = ("many open files", "ulimit -n", " /")
        return all(text in ended.stderr for text in texts)
    inside = [each for each in folders if Path(each) != root and Path(each).is_relative_to(root)]
    return any(each in ended.stdout + ended.stderr for each in inside)


def _table(number: int, start: int) -> pa.Table:
    offsets = range(start, start + 20)
    return pa.table(
        {
            "topic": [f"t{number}"] * 20,
            "partition": pa.array([0] * 20, pa.int32()),
            "offset": list(offsets),
            "key": [b"key-%d" % (offset % 4) for offset in offsets],
            "value": [b"value-%d" % offset for offset in offsets],
            "timestamp": pa.array(offsets, pa.timestamp("ms", "UTC")),
        }
    )


@pytest.mark.parametrize("command", ["verify", "build"])
def test_an_answer_is_printed_though_its_report_does_not_fit(
    command: str, runs: Runs, tmp_path: Path
) -> None:
    given: list[Argument] = [command, "--input", runs.data / "dump"]
    if command == "build":
        given += ["--output", tmp_path / "out", "--force"]
    printed = run_here(*map(str, given)).stdout.splitlines()
    with small_disk(tmp_path / "small", "4k") as disk:
        (disk / "full").write_bytes(bytes(4096))
        done = run_here(*map(str, given), "--report", disk / "report.json")

    assert done.returncode == 3
    assert "no space left" in done.stderr
    assert len(done.stdout.splitlines()) == len(printed) > 0
