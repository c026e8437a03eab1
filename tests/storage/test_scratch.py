"""Scratch names, the workspace of a process, and sweeping what runs left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kafka_index.errors import PublishError
from kafka_index.layout.names import parse_segment_file
from kafka_index.storage import is_scratch, scratch_path, sweep, write_scratch
from tests.support.command_line import environment
from tests.support.timeouts import TIMEOUT_SECONDS

BASE = "00000000000000000005"
FINAL_NAMES = [f"{BASE}.index", f"{BASE}.timeindex.swap", f".{BASE}.kafka-index-state"]


@pytest.mark.parametrize("name", FINAL_NAMES)
def test_scratch_names_are_hidden_beside_their_file_and_recognised(name: str) -> None:
    path = scratch_path(f"/out/t-0/{name}", "0a1b", "task_7")
    assert path == f"/out/t-0/.{name}.0a1b.task_7.tmp"
    assert is_scratch(os.path.basename(path))
    assert parse_segment_file(os.path.basename(path)) is None


@pytest.mark.parametrize(
    "name",
    [*FINAL_NAMES, ".lock", ".kafka-index.lock", ".x.1.2.tmp", f"{BASE}.index.1.2.tmp",
     f".{BASE}.index.1.tmp", f".{BASE}.index.1.2.tmp~", f".{BASE}.index..2.tmp"],
)  # fmt: skip
def test_other_names_are_no_scratch(name: str) -> None:
    assert not is_scratch(name)


@pytest.mark.parametrize(
    ("name", "run_id", "attempt_id"),
    [("x.index", "1", "2"), (f"{BASE}.index", "a.b", "2"), (f"{BASE}.index", "1", ""),
     (f"{BASE}.index", "a-b", "1")],
)  # fmt: skip
def test_a_name_that_no_sweep_would_find_is_refused(
    name: str, run_id: str, attempt_id: str
) -> None:
    with pytest.raises(ValueError, match="scratch name"):
        scratch_path(f"/out/{name}", run_id, attempt_id)


def test_an_attempt_replaces_what_it_left_behind_itself(tmp_path: Path) -> None:
    path = str(tmp_path / "x")
    write_scratch(path, b"longer", attributes_of=None)
    write_scratch(path, memoryview(b"new"), attributes_of=None)
    assert (tmp_path / "x").read_bytes() == b"new"


@pytest.fixture
def leftovers(tmp_path: Path) -> Path:
    directory = tmp_path / "t-0"
    directory.mkdir()
    for name in FINAL_NAMES:
        (directory / name).touch()
    for run_id in ("run1", "run2"):
        for final in (str(directory / FINAL_NAMES[0]), str(directory / FINAL_NAMES[2])):
            write_scratch(scratch_path(final, run_id, "0"), b"", attributes_of=None)
    return directory


def test_a_sweep_takes_the_files_of_its_run_only(leftovers: Path) -> None:
    assert sweep([str(leftovers)], run_id="run1") == 2
    left = [name for name in os.listdir(leftovers) if is_scratch(name)]
    assert len(left) == 2
    assert all(".run2." in name for name in left)


def test_a_sweep_of_all_runs_leaves_the_published_files(leftovers: Path) -> None:
    assert sweep([str(leftovers), str(leftovers.parent / "gone")], run_id=None) == 4
    assert sorted(os.listdir(leftovers)) == sorted(FINAL_NAMES)


def test_a_sweep_that_cannot_remove_says_so(tmp_path: Path) -> None:
    (tmp_path / f".{BASE}.index.1.2.tmp").mkdir()
    with pytest.raises(PublishError, match="cannot remove a leftover"):
        sweep([str(tmp_path)], run_id=None)


_SCRIPT = """
import os, signal, sys
from kafka_index.storage import workspace
folder = workspace()
open(os.path.join(folder, "file"), "w").close()
assert workspace() == folder and os.listdir(os.path.dirname(folder))
if len(sys.argv) > 1:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _run(folder: Path, *arguments: str) -> int:
    environ = {**environment(), "TMPDIR": str(folder)}
    command = [sys.executable, "-c", _SCRIPT, *arguments]
    return subprocess.run(command, env=environ, check=False, timeout=TIMEOUT_SECONDS).returncode


def test_a_workspace_lies_below_tmpdir_and_goes_with_its_process(tmp_path: Path) -> None:
    assert _run(tmp_path) == 0
    assert os.listdir(tmp_path) == []


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    assert _run(tmp_path, "killed") == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 2
    assert _run(tmp_path) == 0
    assert os.listdir(tmp_path) == []
