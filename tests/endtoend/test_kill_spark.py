"""Builds on Spark that are killed, whole or in a worker, in the middle of publishing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kafka_index.core.log.recovery.build_manifest import PARTITION_RECORD
from tests.support.builds import finish, kill, names, rubbish, session, start, state_files
from tests.support.command_line import SETTINGS, Argument, build_here, copy_partitions, index_files
from tests.support.gates import Gate, Step

PARTITIONS = (
    *("app-logs-0", "audit.trail-0", "customer-profiles-0", "orders.eu-west-0"),
    *("orders.eu-west-1", "page-views-0", "payments-0", "payments-1"),
)
FINISHED = 3


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_partitions(tmp_path_factory.mktemp("spark") / "data", *PARTITIONS)


@pytest.fixture(scope="module")
def expected(data: Path) -> dict[str, bytes]:
    out = data.with_name("undisturbed")
    assert build_here("--input", data, "--output", out, "--config", SETTINGS).returncode == 0
    return index_files(out)


pytestmark = pytest.mark.usefixtures("quick_java")


def options(data: Path, out: Path, master: str) -> list[Argument]:
    where: list[Argument] = ["--input", data, "--output", out, "--config", SETTINGS]
    return [*where, "--engine", "spark", "--master", master]


def check_pairs(found: dict[str, bytes], expected: dict[str, bytes]) -> None:
    """Every index is whole, and beside its time index."""
    for name in found:
        if name.endswith(".index"):
            for part in (name, name.replace(".index", ".timeindex")):
                assert found[part] == expected[part]


def records(out: Path) -> set[str]:
    """The partitions that a build has recorded as finished."""
    return {name.split("/")[0] for name in names(out) if name.endswith(f"/{PARTITION_RECORD}")}


def test_a_killed_build_is_mended_by_the_next_even_if_its_workers_are_killed(
    data: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    gate = Gate(tmp_path / "first-gate", Step("os.rename", PARTITION_RECORD, FINISHED + 1))
    process = start(*options(data, out, "local[2]"), gate=gate)
    gate.wait(process, lambda: len(records(out)) == FINISHED)
    kill(process)
    left = index_files(out)
    check_pairs(left, expected)
    assert len(left) < len(expected)
    finished = records(out)

    # A task may fail twice before the job does.
    report = tmp_path / "report.parquet"
    gate = Gate(tmp_path / "second-gate", Step("os.rename", ".index", 6))
    process = start(*options(data, out, "local[2,3]"), "--report", report, gate=gate)
    gate.wait(process)
    workers = workers_of(process.pid)
    assert gate.waiting <= set(workers)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    check_pairs(index_files(out), expected)
    gate.open()
    done = finish(process)

    assert done.returncode == 0, done.stderr
    assert index_files(out) == expected
    undisturbed = data.with_name("undisturbed")
    for folder in sorted(undisturbed.iterdir()):
        assert state_files(out / folder.name) == state_files(folder)
    assert rubbish(tmp_path) == []
    # A task that was tried again reports each of its segments once.
    rows = pq.read_table(report).to_pylist()
    partitions = [f"{row['topic']}-{row['partition']}" for row in rows]
    assert len(rows) == len({row["log_path"] for row in rows}) == len(expected) // 2
    assert [row["status"] for row in rows] == [
        "unchanged" if partition in finished else "built" for partition in partitions
    ]


def workers_of(leader: int) -> list[int]:
    """Return the workers that the prepared daemon of a build has forked."""
    parents = {pid: _status(pid) for pid in session(leader)}
    daemons = {
        pid for pid, (_, command) in parents.items() if "kafka_index.spark.daemon" in command
    }
    return [pid for pid, (parent, _) in parents.items() if parent in daemons]


def _status(pid: int) -> tuple[int, str]:
    """Return the parent of a process and its command line."""
    folder = Path("/proc", str(pid))
    try:
        parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        return parent, (folder / "cmdline").read_text().replace("\0", " ")
    except OSError:
        return 0, ""
