"""Builds on Spark that are killed, whole or in a worker, in the middle of publishing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.builds import (
    copy_dump,
    finish,
    kill,
    published,
    rubbish,
    session,
    start,
    state_files,
    wait_until,
)
from tests.support.command_line import SETTINGS, Argument, build_here, index_files


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_dump(tmp_path_factory.mktemp("spark") / "data", copies=4)


@pytest.fixture(scope="module")
def expected(data: Path) -> dict[str, bytes]:
    out = data.with_name("undisturbed")
    assert build_here("--input", data, "--output", out, "--config", SETTINGS).returncode == 0
    return index_files(out)


@pytest.fixture(autouse=True)
def _quick_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")


def options(data: Path, out: Path, master: str) -> list[Argument]:
    where: list[Argument] = ["--input", data, "--output", out, "--config", SETTINGS]
    return [*where, "--engine", "spark", "--master", master]


def check_pairs(found: dict[str, bytes], expected: dict[str, bytes]) -> None:
    """Every index is whole, and beside its time index."""
    for name in found:
        if name.endswith(".index"):
            for part in (name, name.replace(".index", ".timeindex")):
                assert found[part] == expected[part]


def test_a_killed_build_is_mended_by_the_next_even_if_its_workers_are_killed(
    data: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = start(*options(data, out, "local[2]"))
    assert wait_until(process, lambda: len(published(out)) > 3, every=0.01)
    kill(process)
    left = index_files(out)
    check_pairs(left, expected)
    assert len(left) < len(expected)
    before = len(published(out))

    # A task may fail twice before the job does.
    report = tmp_path / "report.parquet"
    process = start(*options(data, out, "local[2,3]"), "--report", report)
    assert wait_until(process, lambda: len(published(out)) > before, every=0.01)
    workers = workers_of(process.pid)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    check_pairs(index_files(out), expected)
    done = finish(process)

    assert workers
    assert done.returncode == 0, done.stderr
    assert index_files(out) == expected
    undisturbed = data.with_name("undisturbed")
    for folder in sorted(undisturbed.iterdir()):
        assert state_files(out / folder.name) == state_files(folder)
    assert rubbish(tmp_path) == []
    rows = pq.read_table(report)
    assert set(rows["status"].to_pylist()) == {"built", "unchanged"}
    # A task that was tried again reports each of its segments once.
    segments = rows.select(["topic", "partition", "segment_base_offset"]).to_pylist()
    assert len({tuple(one.values()) for one in segments}) == len(segments) == len(expected) // 2


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
