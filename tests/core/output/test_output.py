"""Outputs: staging directories, partition directories, state files, and files that come last."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from kafka_index.core.errors import InputError, PublishError
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.output.output import (
    LastFiles,
    Output,
    RunState,
    StagedPartition,
    StateFile,
    make_staged_directory,
    publish_directories,
    publish_directory,
    remove_directory,
)

_NAME = f"kafka-index-0.{'0' * 32}-delete"
PARTITION = TopicPartition("orders", 0)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def staged(folder: Path, partition: TopicPartition, content: str) -> StagedPartition:
    """A partition with one log, which waits in a folder."""
    directory = folder / partition.directory_name
    directory.mkdir(parents=True)
    (directory / "00000000000000000000.log").write_text(content)
    return StagedPartition(partition, str(directory))


# --------------------------------------------------------------------------- staging directories


@pytest.mark.parametrize(
    ("content", "is_removed"),
    [((), True), ((".kafka-index",), True), ((".kafka-index", "orders-0"), True), (("x",), False)],
    ids=["being made", "empty", "staged", "of a deleted topic"],
)
def test_cleanup_removes_only_staging_directories_of_killed_runs(
    tmp_path: Path, content: tuple[str, ...], *, is_removed: bool
) -> None:
    (tmp_path / _NAME).mkdir()
    for name in content:
        (tmp_path / _NAME / name).touch()
    with Output.for_data_directory(str(tmp_path)):
        assert (tmp_path / _NAME).exists() is not is_removed
    assert names(tmp_path) == [_NAME] * (not is_removed)


def test_links_in_place_of_directories_are_not_followed(tmp_path: Path) -> None:
    """Neither a sweep nor a removal takes what a link leads to."""
    theirs, link = tmp_path / "theirs", tmp_path / f".answers.{'0' * 16}.tmp"
    theirs.mkdir()
    (theirs / ".kafka-index").touch()
    link.symlink_to(theirs)
    (tmp_path / _NAME).symlink_to(theirs)

    for output in (
        Output.for_path(str(tmp_path / "answers"), "answers", []),
        Output.for_data_directory(str(tmp_path)),
    ):
        with output:
            pass
    with pytest.raises(PublishError, match="cannot remove the directory"):
        remove_directory(str(link))

    assert names(tmp_path) == sorted([link.name, _NAME, "theirs"])
    assert names(theirs) == [".kafka-index"]


def test_staging_directory_is_removed_with_its_run_unless_handed_over(tmp_path: Path) -> None:
    with Output.for_data_directory(str(tmp_path)) as output:
        output.make_staging()
    assert names(tmp_path) == []

    with Output.for_data_directory(str(tmp_path)) as output:
        staging = output.hand_over()
    with Output.for_data_directory(str(tmp_path), staging=staging):
        assert os.path.isdir(staging)
    assert names(tmp_path) == []


def test_late_task_cannot_make_directory_after_its_run(tmp_path: Path) -> None:
    with Output.for_data_directory(str(tmp_path)) as output:
        attempt = os.path.join(output.make_staging(), "attempt")
        make_staged_directory(attempt)
    with pytest.raises(PublishError, match="cannot create the directory"):
        make_staged_directory(attempt)
    assert names(tmp_path) == []


# ------------------------------------------------------------------------- partition directories


def test_changed_partition_is_rejected_and_others_are_published(tmp_path: Path) -> None:
    root, other = tmp_path / "root", TopicPartition("orders", 1)
    staged(root, PARTITION, "by somebody else")
    new = [staged(tmp_path / "new", each, "new") for each in (PARTITION, other)]

    refused, published = publish_directories(str(root), new)

    assert isinstance(refused, InputError)
    assert published is None
    logs = [path.read_text() for path in sorted(root.rglob("*.log"))]
    assert logs == ["by somebody else", "new"]


def test_partition_staged_by_two_tasks_is_published_once_unless_its_logs_differ(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    root.mkdir()

    def publish(directory: str) -> None:
        publish_directory(str(root), StagedPartition(PARTITION, directory, is_shared=True))

    for number in range(2):
        publish(staged(tmp_path / str(number), PARTITION, f"attempt {number}").directory)
    with pytest.raises(PublishError, match="cannot publish the partition"):
        publish(staged(tmp_path / "other", PARTITION, "of somebody else").directory)
    (log,) = root.rglob("*.log")
    assert log.read_text() == "attempt 0"


# ------------------------------------------------------------------------------------ state files


@dataclass(frozen=True, slots=True, kw_only=True)
class _State(RunState):
    count: int = 0


@pytest.mark.parametrize("content", ["", "{", '{"version":2,"inputs":"x"}', '{"version":1}'])
def test_malformed_state_file_counts_as_missing_or_is_rejected_with_a_hint(
    tmp_path: Path, content: str
) -> None:
    path = str(tmp_path / "state")
    file = StateFile(path, _State)
    assert file.read() is None
    file.write(_State(inputs="x", count=7))
    assert file.read() == _State(inputs="x", count=7)

    (tmp_path / "state").write_text(content)

    assert file.read() is None
    with pytest.raises(InputError, match=r"this version cannot read the state file.*remove it"):
        StateFile(path, _State, hint="remove it").read()


def test_state_is_written_before_its_name_is_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "state", []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        fsync(descriptor)
        synced.append((os.path.isdir(f"/proc/self/fd/{descriptor}"), path.exists()))

    monkeypatch.setattr(os, "fsync", record)
    StateFile(str(path), _State).write(_State(inputs="x"))
    assert synced == [(False, False), (True, True)]

    StateFile(str(path), _State).write(_State(inputs="x"), durable=False)
    assert len(synced) == 2


# ------------------------------------------------------------------------------------- last files


def test_last_files_are_hidden_and_published_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = LastFiles(str(tmp_path), ("first", "last"))
    for name in last.names:
        (tmp_path / name).write_text(name)
    moved: list[str] = []
    rename = os.replace

    def record(path: str, new_path: str) -> None:
        rename(path, new_path)
        moved.append(os.path.basename(new_path))

    monkeypatch.setattr(os, "replace", record)
    last.hide()
    hidden = names(tmp_path)
    last.hide()
    last.publish()

    assert all(name.startswith(".") for name in hidden)
    assert moved == [*reversed([os.path.basename(last.hidden(each)) for each in last.names]),
                     "first", "last"]  # fmt: skip
    assert names(tmp_path) == ["first", "last"]


def test_staging_directory_that_cannot_be_removed_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def rmdir(path: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    with Output.for_path(str(tmp_path / "answers.csv"), "answers.csv", []) as output:
        output.make_staging()
        monkeypatch.setattr(os, "rmdir", rmdir)
    assert f"{output.staging}: cannot remove the directory" in caplog.text
