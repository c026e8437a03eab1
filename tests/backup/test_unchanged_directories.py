"""Directories that are as an earlier run has seen them are not listed; all others are."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from kafka_index.backup import cut
from kafka_index.backup.agent import TakenRun, take
from kafka_index.backup.request import BackupRequest
from kafka_index.backup.taking import Taking
from kafka_index.layout.names import CLUSTER_METADATA_TOPIC
from kafka_index.records import BatchFields, Record, write_record_batch
from kafka_index.stores.backup.manifest import PartitionBackup
from tests.support.command_line import DUMP

#: Longer than a directory that has changed may change again within the same mtime.
SETTLED_S = 0.3


@pytest.fixture
def data(tmp_path: Path) -> Path:
    copied = shutil.copytree(DUMP, tmp_path / "data")
    time.sleep(SETTLED_S)
    return copied


def back_up(data: Path) -> TakenRun:
    return take(BackupRequest(inputs=[str(data)], output=str(data.with_name("repository"))))


def partition(taken: TakenRun, topic: str) -> PartitionBackup:
    return next(each for each in taken.manifest.partitions if each.topic == topic)


def test_directories_that_are_as_they_were_are_not_listed(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = back_up(data)
    listed: set[str] = set()
    real = os.listdir

    def listdir(path: int | str) -> list[str]:
        if isinstance(path, int):
            listed.add(os.path.basename(os.readlink(f"/proc/self/fd/{path}")))
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    second = back_up(data)
    assert listed == {"__cluster_metadata-0"}
    assert second.manifest.new_bytes == 0
    assert second.result.sizes_bytes["log_read"] == 0
    assert [
        each for each in second.manifest.partitions if each.topic != CLUSTER_METADATA_TOPIC
    ] == [each for each in first.manifest.partitions if each.topic != CLUSTER_METADATA_TOPIC]


def test_data_directories_are_listed_once_while_nothing_comes_or_goes(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(data)
    listed = []
    real = os.scandir

    def scandir(path: int | str) -> object:
        listed.append(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with Taking(BackupRequest(inputs=[str(data)], output=f"{data}-repository")) as taking:
        listed.clear()
        taking.look()
        taking.cut_coordinators()
        assert len(listed) == 1
        shutil.copytree(data / "audit.trail-0", data / "created-0")
        taking.cut_others()
        assert len(listed) > 1
        assert {each.topic for each in taking.folders.values()} >= {"created", "audit.trail"}


def test_what_is_appended_after_the_look_is_in_the_cut(data: Path) -> None:
    first = partition(back_up(data), "audit.trail")
    end = first.end_offset
    batch = write_record_batch([Record(1, b"key", b"value")], end, BatchFields(leader_epoch=0))
    request = BackupRequest(inputs=[str(data)], output=str(data.with_name("repository")))
    with Taking(request) as taking:
        taking.look()
        with max((data / "audit.trail-0").glob("*.log")).open("ab") as log:
            log.write(batch)
        taking.cut_coordinators()
        taking.cut_others()
        taking.await_high_watermarks()
        taking.store()
        taking.commit("20991231T235959.000Z", taking.brokers)
        found = next(each for each in taking.manifest.partitions if each.topic == "audit.trail")
    assert (found.end_offset, found.settled_offset) == (end + 1, end)


def test_what_is_appended_to_a_last_log_is_stored(data: Path) -> None:
    first = partition(back_up(data), "audit.trail")
    end = first.end_offset
    batch = write_record_batch([Record(1, b"key", b"value")], end, BatchFields(leader_epoch=0))
    with max((data / "audit.trail-0").glob("*.log")).open("ab") as log:
        log.write(batch)
    second = partition(back_up(data), "audit.trail")
    assert second.end_offset == end + 1
    assert second.pieces[:-1] == first.pieces
    assert second.pieces[-1].size_bytes == len(batch)
    assert partition(back_up(data), "audit.trail").pieces == second.pieces


def test_a_log_that_is_replaced_is_looked_at(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = partition(back_up(data), "audit.trail")
    log = sorted((data / "audit.trail-0").glob("*.log"))[1]
    cleaned = log.with_suffix(".log.cleaned")
    shutil.copy2(log, cleaned)
    cleaned.rename(log)
    with monkeypatch.context() as patch:
        # However long this machine takes to get there.
        patch.setattr(cut, "_TICK_NS", 600_000_000_000)
        second = partition(back_up(data), "audit.trail")
    assert second.segments[1].inode == log.stat().st_ino != first.segments[1].inode
    assert second.seen_directory is None  # it has just changed
    assert second.pieces == first.pieces
    time.sleep(SETTLED_S)
    assert partition(back_up(data), "audit.trail").seen_directory is not None


def test_a_directory_of_that_name_with_another_topic_is_looked_at(data: Path) -> None:
    back_up(data)
    other = data / "orders.eu-west-0"
    shutil.rmtree(data / "audit.trail-0")
    shutil.copytree(other, data / "audit.trail-0")
    second = partition(back_up(data), "audit.trail")
    assert second.topic_id in (other / "partition.metadata").read_text()
