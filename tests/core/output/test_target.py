"""Targets: where files go and are staged, what a sweep removes, and targets that are refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kafka_index.core.errors import InputError, PublishError
from kafka_index.core.format.names import TopicPartition, parse_segment_file
from kafka_index.core.fs.paths import prepare_target_directory, target_directory
from kafka_index.core.output.output import Output
from kafka_index.core.output.publish import is_scratch, scratch_path, sweep, write_scratch
from tests.support.child_processes import allow_other_users, run_unprivileged
from tests.support.command_line import environment
from tests.support.timeouts import TIMEOUT_SECONDS

PARTITION = TopicPartition("or-ders", 3)
BASE = "00000000000000000005"
FINAL_NAMES = [f"{BASE}.index", f"{BASE}.timeindex.swap", f".{BASE}.kafka-index-state"]


def hold(output: str, inputs: list[str]) -> str:
    """Hold an output for a moment; return its path."""
    with Output.for_data_directory(output, inputs) as held:
        return held.root


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    (tmp_path / "dump" / "or-ders-3").mkdir(parents=True)
    return tmp_path / "dump"


def test_target_has_the_names_of_partition_folders(dump: Path) -> None:
    assert target_directory("/out", PARTITION, str(dump)) == "/out/or-ders-3"


def test_target_in_place_is_the_folder_of_the_log() -> None:
    assert prepare_target_directory(None, PARTITION, "/data/or-ders-3") == "/data/or-ders-3"


@pytest.mark.parametrize("topic", ["../../etc", "", "a/b", ".."])
def test_topic_with_a_path_is_rejected(topic: str) -> None:
    with pytest.raises(InputError, match="the topic name is illegal"):
        target_directory("/out", TopicPartition(topic, 0), "/data")


def test_missing_target_folder_is_created(tmp_path: Path, dump: Path) -> None:
    made = prepare_target_directory(str(tmp_path / "out"), PARTITION, str(dump / "or-ders-3"))
    assert made == prepare_target_directory(str(tmp_path / "out"), PARTITION, str(dump))
    assert os.path.isdir(made)


def test_file_at_the_path_of_a_target_folder_is_an_error(tmp_path: Path, dump: Path) -> None:
    (tmp_path / "or-ders-3").touch()
    with pytest.raises(PublishError, match="a file has the path of a required directory"):
        prepare_target_directory(str(tmp_path), PARTITION, str(dump))


def test_target_folder_that_links_to_the_log_is_an_error(tmp_path: Path, dump: Path) -> None:
    (tmp_path / "or-ders-3").symlink_to(dump / "or-ders-3")
    with pytest.raises(PublishError, match="is the folder of the log"):
        prepare_target_directory(str(tmp_path), PARTITION, str(dump / "or-ders-3"))


def test_output_is_created_and_no_file_is_left_in_it(tmp_path: Path, dump: Path) -> None:
    root = hold(f"file://{tmp_path}/new/out", [str(dump)])
    assert root == str(tmp_path / "new" / "out")
    assert os.listdir(root) == []


@pytest.mark.parametrize(
    ("output", "relation"),
    [
        ("dump", "is the input"),
        ("dump/or-ders-3/..", "is the input"),
        ("dump/or-ders-3", "is inside the input"),
        ("dump/new/out", "is inside the input"),
        ("link/out", "is inside the input"),
        (".", "contains the input"),
    ],
)
def test_output_that_overlaps_the_input_is_rejected(
    tmp_path: Path, dump: Path, output: str, relation: str
) -> None:
    (tmp_path / "link").symlink_to(dump)
    with pytest.raises(InputError, match=f"the output {relation}"):
        hold(str(tmp_path / output), [f"{tmp_path}/du*"])
    assert os.listdir(dump) == ["or-ders-3"]


def test_output_with_the_input_as_a_name_prefix_is_accepted(tmp_path: Path, dump: Path) -> None:
    assert hold(f"{dump}-indexes", [str(dump)]) == f"{tmp_path}/dump-indexes"


def test_file_as_output_is_an_error(tmp_path: Path, dump: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(PublishError, match="a file has the path of a required directory"):
        hold(str(tmp_path / "out"), [str(dump)])


def test_output_without_write_permission_is_an_error(tmp_path: Path, dump: Path) -> None:
    (tmp_path / "out").mkdir()
    allow_other_users(tmp_path)
    (tmp_path / "out").chmod(0o555)

    def check() -> None:
        with pytest.raises(PublishError, match="no permission"):
            hold(str(tmp_path / "out"), [str(dump)])

    assert run_unprivileged(check) == 0


# ---------------------------------------------------------------- scratch files and workspaces


@pytest.mark.parametrize("name", FINAL_NAMES)
def test_scratch_name_is_hidden_and_recognized(name: str) -> None:
    path = scratch_path(f"/out/t-0/{name}", "0a1b", "task_7")
    assert path == f"/out/t-0/.{name}.0a1b.task_7.tmp"
    assert is_scratch(os.path.basename(path))
    assert parse_segment_file(os.path.basename(path)) is None


@pytest.mark.parametrize(
    "name",
    [*FINAL_NAMES, ".lock", ".kafka-index.lock", ".x.1.2.tmp", f"{BASE}.index.1.2.tmp",
     f".{BASE}.index.1.tmp", f".{BASE}.index.1.2.tmp~", f".{BASE}.index..2.tmp"],
)  # fmt: skip
def test_other_file_name_is_not_a_scratch_name(name: str) -> None:
    assert not is_scratch(name)


@pytest.mark.parametrize(
    ("name", "run_id", "attempt_id"),
    [("x.index", "1", "2"), (f"{BASE}.index", "a.b", "2"), (f"{BASE}.index", "1", ""),
     (f"{BASE}.index", "a-b", "1")],
)  # fmt: skip
def test_scratch_name_that_cleanup_does_not_recognize_is_rejected(
    name: str, run_id: str, attempt_id: str
) -> None:
    with pytest.raises(ValueError, match="scratch file name"):
        scratch_path(f"/out/{name}", run_id, attempt_id)


def test_attempt_replaces_its_own_leftover(tmp_path: Path) -> None:
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


def test_cleanup_of_a_run_removes_only_its_files(leftovers: Path) -> None:
    sweep([str(leftovers)], run_id="run1")
    left = [name for name in os.listdir(leftovers) if is_scratch(name)]
    assert len(left) == 2
    assert all(".run2." in name for name in left)


def test_cleanup_of_all_runs_keeps_published_files(leftovers: Path) -> None:
    sweep([str(leftovers), str(leftovers.parent / "gone")], run_id=None)
    assert sorted(os.listdir(leftovers)) == sorted(FINAL_NAMES)


def test_cleanup_that_cannot_remove_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / f".{BASE}.index.1.2.tmp").mkdir()
    with pytest.raises(PublishError, match="cannot remove a temporary file"):
        sweep([str(tmp_path)], run_id=None)


_SCRIPT = """
import os, signal, sys
from kafka_index.core.fs.local_work import workspace
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


def test_working_folder_is_in_tmpdir_until_its_process_ends(tmp_path: Path) -> None:
    assert _run(tmp_path) == 0
    assert os.listdir(tmp_path) == []


def test_working_folder_of_a_killed_process_is_removed_by_the_next(tmp_path: Path) -> None:
    assert _run(tmp_path, "killed") == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 2
    assert _run(tmp_path) == 0
    assert os.listdir(tmp_path) == []
