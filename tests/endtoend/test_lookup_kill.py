"""Lookups that are stopped: the output is the old one or the new one, never a part of it."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from kafka_index.core.query.inventory import collect_inventory
from tests.support.builds import finish, kill, rubbish, start
from tests.support.campaign import drawn
from tests.support.command_line import DUMP, Argument, lookup
from tests.support.gates import Gate, Step

from .test_kill_spark import workers_of

_FILES = 4
_QUERIES = 1000
# Before the second part has its name.
_SECOND_PART = Step("os.rename", ".parquet", 2)
INTERRUPTED, TERMINATED = 130, 143


@dataclass
class Asked:
    """Queries in several files, and their answers."""

    folder: Path
    answers: dict[str, bytes] = field(default_factory=dict)

    def options(self, out: Path, *more: Argument) -> list[Argument]:
        what: list[Argument] = ["--logs", DUMP, "--queries", self.folder, "--by", "offset"]
        return [*what, "--resolve", "record", "--output", out, *more]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    folder = tmp_path_factory.mktemp("lookups")
    queries = Asked(folder / "queries")
    queries.folder.mkdir()
    partitions = collect_inventory([str(DUMP)]).partitions
    random = np.random.default_rng(5)
    for number in range(_FILES):
        rows = partitions.select(["topic", "partition"]).take(
            random.integers(0, partitions.num_rows, _QUERIES)
        )
        offsets = pa.array(random.integers(0, 5000, _QUERIES))
        pq.write_table(rows.append_column("offset", offsets), queries.folder / f"{number}.parquet")
    out = folder / "undisturbed"
    assert lookup(*queries.options(out)).returncode == 0
    queries.answers = answers(out)
    return queries


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """An output that is there already, of other queries."""
    queries = tmp_path / "q.parquet"
    pq.write_table(pa.table({"topic": ["payments"], "partition": [0], "offset": [1]}), queries)
    out = tmp_path / "out"
    common = ("--logs", DUMP, "--queries", queries, "--by", "offset")
    assert lookup(*common, "--output", out).returncode == 0
    return out


def answers(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.glob("part-*")}


def parts(root: Path) -> list[Path]:
    """Finished parts of a run that is not finished."""
    return list(root.glob(".out.*.tmp/part-*"))


@pytest.fixture
def gate(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    return Gate(tmp_path_factory.mktemp("gate") / "gate", _SECOND_PART)


def start_lookup(gate: Gate, root: Path, *arguments: Argument) -> subprocess.Popen[str]:
    """Start a lookup, and wait until it has finished one part."""
    process = start(*arguments, command_name="lookup", gate=gate)
    gate.wait(process, lambda: len(parts(root)) == 1)
    return process


def test_a_killed_lookup_leaves_the_old_output_and_the_next_one_clears_up(
    asked: Asked, old: Path, gate: Gate
) -> None:
    before = answers(old)
    options = asked.options(old, "--overwrite", "--threads", 1)
    kill(start_lookup(gate, old.parent, *options))
    assert answers(old) == before
    assert len(parts(old.parent)) == 1

    done = lookup(*asked.options(old, "--overwrite"))

    assert done.returncode == 0, done.stderr
    assert answers(old) == asked.answers
    assert rubbish(old.parent) == []


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, TERMINATED), (signal.SIGINT, INTERRUPTED)]
)
def test_a_stopped_lookup_leaves_the_old_output_and_nothing_else(
    asked: Asked, old: Path, gate: Gate, number: signal.Signals, code: int
) -> None:
    before = answers(old)
    report = old.with_name("report.csv")
    common = ("--overwrite", "--threads", 1, "--report", report, "--quiet")
    process = start_lookup(gate, old.parent, *asked.options(old, *common))
    gate.stop(process, number)
    done = finish(process)
    assert done.returncode == code
    assert done.stderr.count("\n") == 1
    # The second part was finished after the signal.
    text = f"{2 * _QUERIES:,} of {_FILES * _QUERIES:,} queries were answered"
    assert f"{text}; no answers were written; run again to answer all queries\n" in done.stderr
    assert answers(old) == before
    names = sorted(path.name for path in old.parent.iterdir())
    assert names == [".out.kafka-index-lookup", "out", "q.parquet", "report.csv"]
    rows = pa_csv.read_csv(report)
    assert pc.sum(rows.filter(pc.is_valid(rows["status"]))["queries"]).as_py() == 2 * _QUERIES


# -------------------------------------------------------------------------------------- Spark


@pytest.mark.usefixtures("quick_java")
@pytest.mark.parametrize(
    ("master", "code"), [("local[2,3]", 0), ("local[2]", 3)][: drawn(2, one_in=2)]
)
def test_killed_workers_cost_another_try_or_the_run_but_never_an_answer(
    asked: Asked, tmp_path: Path, gate: Gate, master: str, code: int
) -> None:
    out = tmp_path / "out"
    options = asked.options(out, "--engine", "spark", "--master", master)
    process = start_lookup(gate, tmp_path, *options)
    workers = workers_of(process.pid)
    assert gate.waiting <= set(workers)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    gate.open()
    done = finish(process)
    assert done.returncode == code, done.stderr
    assert answers(out) == ({} if code else asked.answers)
    assert out.exists() != bool(code)
    assert rubbish(tmp_path) == []
