"""Directories that are as an earlier run has seen them are not listed; all others are."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from kafka_index.commands.backup import capture
from kafka_index.commands.backup.agent import back_up as run_backup
from kafka_index.commands.backup.broker_backup import BrokerBackup
from kafka_index.commands.backup.capture import CapturedLog, InspectedPartitions, LogCapture
from kafka_index.commands.backup.request import BackupRequest
from kafka_index.commands.backup.result import BackupResult
from kafka_index.core.format.names import CLUSTER_METADATA_TOPIC
from kafka_index.core.fs.backup.manifest import PartitionBackup
from kafka_index.core.records.record_batch import BatchFields, Record, write_record_batch
from tests.commands.backup.fake_broker import RECORDS, FakeBroker, manifest_of
from tests.support.command_line import DUMP
from tests.support.segments import batch

#: Longer than a directory that has changed may change again within the same mtime.
SETTLED_S = 0.3


@pytest.fixture
def data(tmp_path: Path) -> Path:
    copied = shutil.copytree(DUMP, tmp_path / "data")
    time.sleep(SETTLED_S)
    return copied


def back_up(data: Path) -> BackupResult:
    return run_backup(BackupRequest(inputs=(str(data),), output=str(data.with_name("repository"))))


def partition(result: BackupResult, topic: str) -> PartitionBackup:
    return next(
        partition_backup
        for partition_backup in manifest_of(result).partitions
        if partition_backup.topic == topic
    )


def test_unchanged_directories_are_not_listed_again(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = back_up(data)
    listed_paths: set[str] = set()
    real = os.listdir

    def listdir(path: int | str) -> list[str]:
        if isinstance(path, int):
            listed_paths.add(os.path.basename(os.readlink(f"/proc/self/fd/{path}")))
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    second = back_up(data)
    assert listed_paths == {"__cluster_metadata-0"}
    assert manifest_of(second).new_bytes == 0
    assert second.sizes_bytes["log_read"] == 0
    assert [
        partition_backup
        for partition_backup in manifest_of(second).partitions
        if partition_backup.topic != CLUSTER_METADATA_TOPIC
    ] == [
        partition_backup
        for partition_backup in manifest_of(first).partitions
        if partition_backup.topic != CLUSTER_METADATA_TOPIC
    ]


def test_data_directories_are_listed_once_while_unchanged(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(data)
    listed_paths = []
    real = os.scandir

    def scandir(path: int | str) -> object:
        listed_paths.append(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with BrokerBackup(BackupRequest(inputs=(str(data),), output=f"{data}-repository")) as backup:
        listed_paths.clear()
        backup.inspect()
        backup.capture_coordinators()
        assert len(listed_paths) == 1
        shutil.copytree(data / "audit.trail-0", data / "created-0")
        backup.capture_others()
        assert len(listed_paths) > 1
        folders = [*backup.leaders]
        for name in ("created", "audit.trail"):
            assert any(folder.startswith(f"data/{name}-0-") for folder in folders)


def test_records_appended_after_the_listing_are_captured(data: Path) -> None:
    first = partition(back_up(data), "audit.trail")
    end = first.end_offset
    batch = write_record_batch([Record(1, b"key", b"value")], end, BatchFields(leader_epoch=0))
    request = BackupRequest(inputs=(str(data),), output=str(data.with_name("repository")))
    with BrokerBackup(request) as backup:
        backup.inspect()
        with max((data / "audit.trail-0").glob("*.log")).open("ab") as log:
            log.write(batch)
        backup.capture_coordinators()
        backup.capture_others()
        backup.await_high_watermarks()
        backup.store()
        result = backup.commit("20991231T235959.000Z", backup.brokers)
        actual = next(
            partition_backup
            for partition_backup in manifest_of(result).partitions
            if partition_backup.topic == "audit.trail"
        )
    assert (actual.end_offset, actual.settled_offset) == (end + 1, end)


def test_records_appended_to_the_active_segment_are_stored(data: Path) -> None:
    first = partition(back_up(data), "audit.trail")
    end = first.end_offset
    batch = write_record_batch([Record(1, b"key", b"value")], end, BatchFields(leader_epoch=0))
    with max((data / "audit.trail-0").glob("*.log")).open("ab") as log:
        log.write(batch)
    second = partition(back_up(data), "audit.trail")
    assert second.end_offset == end + 1
    assert second.chunks[:-1] == first.chunks
    assert second.chunks[-1].size_bytes == len(batch)
    assert partition(back_up(data), "audit.trail").chunks == second.chunks


def test_replaced_log_is_listed_again(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = partition(back_up(data), "audit.trail")
    log = sorted((data / "audit.trail-0").glob("*.log"))[1]
    cleaned = log.with_suffix(".log.cleaned")
    shutil.copy2(log, cleaned)
    cleaned.rename(log)
    with monkeypatch.context() as patch:
        # However long this machine takes to get there.
        patch.setattr(capture, "_CTIME_RESOLUTION_NS", 600_000_000_000)
        second = partition(back_up(data), "audit.trail")
    assert second.segments[1].inode == log.stat().st_ino != first.segments[1].inode
    assert second.seen_directory is None  # it has just changed
    assert second.chunks == first.chunks
    time.sleep(SETTLED_S)
    assert partition(back_up(data), "audit.trail").seen_directory is not None


def test_directory_of_a_recreated_topic_is_listed_again(data: Path) -> None:
    back_up(data)
    other_directory = data / "orders.eu-west-0"
    shutil.rmtree(data / "audit.trail-0")
    shutil.copytree(other_directory, data / "audit.trail-0")
    second = partition(back_up(data), "audit.trail")
    assert second.topic_id in (other_directory / "partition.metadata").read_text()


def inspect_partitions(
    broker: FakeBroker, looked: InspectedPartitions
) -> tuple[InspectedPartitions, list[int]]:
    """Look at partitions and cut them; return them, and how many of their logs are open."""
    paths = [str(path) for path in broker.paths]
    with closing(LogCapture(paths, lambda _: True, {}, looked)) as result:
        result.inspect()
        result.capture(others_than=["__x"])
        counts = [
            sum(log.descriptor >= 0 for log in captured.logs)
            for _, captured in sorted(result.partitions.items())
        ]
        return result.partitions, counts


def state(logs: list[CapturedLog]) -> list[tuple[object, ...]]:
    return [msgspec.structs.astuple(log)[:-1] for log in logs]  # but the descriptors


def replace_first(broker: FakeBroker, name: str) -> None:
    """Replace the first log as a cleaner does that keeps all: size and time of modification."""
    log = min(broker.path_of(name).glob("*.log"))
    swap = log.with_suffix(".log.cleaned")
    shutil.copy2(log, swap)
    swap.replace(log)


def hide_change(broker: FakeBroker, name: str) -> None:
    """Roll, and set the directory's time of modification back."""
    path = broker.path_of(name)
    before = path.stat()
    broker.roll(name)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def preallocate(broker: FakeBroker, name: str) -> None:
    with broker.last_log(name).open("r+b") as log:
        log.truncate(max(log.seek(0, os.SEEK_END), 1 << 16))


def append(broker: FakeBroker, name: str) -> None:
    """Append after the last batch, where a preallocated log has zeros."""
    with broker.last_log(name).open("r+b") as log:
        end = 0
        while size := int.from_bytes(log.read(12)[8:], "big"):
            end = log.seek(end + 12 + size)
        log.seek(end)
        log.write(batch(broker.ends[name], RECORDS))
    broker.ends[name] += RECORDS


def truncate(broker: FakeBroker, name: str) -> None:
    os.truncate(broker.last_log(name), 0)


def delete_first(broker: FakeBroker, name: str) -> None:
    logs = sorted(broker.path_of(name).glob("*.log"))
    if len(logs) > 1:
        logs[0].unlink()


def recreate(broker: FakeBroker, name: str) -> None:
    shutil.rmtree(broker.path_of(name))
    broker.create(name, 2)


def move(broker: FakeBroker, name: str) -> None:
    source = broker.path_of(name)
    target = next(path for path in broker.paths if path != source.parent)
    shutil.copytree(source, target / name)
    shutil.rmtree(source)


CHANGES: list[Callable[[FakeBroker, str], object]] = [
    *(append, FakeBroker.roll, replace_first, hide_change, preallocate, truncate, delete_first),
    *(recreate, move),
]


def test_incremental_listing_equals_a_full_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever has changed since the look that a process remembers."""
    monkeypatch.setattr(capture, "_CTIME_RESOLUTION_NS", 10_000_000)
    rng = random.Random(20261123)
    broker = FakeBroker(tmp_path, 2)
    names = [f"orders-{number}" for number in range(4)]
    for name in names:
        broker.create(name)
    looked: InspectedPartitions = {}
    reused_count = 0
    for _ in range(80):
        for name in names:
            if rng.random() < 0.5:
                append(broker, name)
            if rng.random() < 0.4:
                rng.choice(CHANGES)(broker, name)
        time.sleep(0.02)
        before = {*map(id, looked.values())}
        current_partitions, _ = inspect_partitions(broker, looked)
        first, _ = inspect_partitions(broker, {})
        assert [*current_partitions] == [*first]
        for incremental, full in zip(current_partitions.values(), first.values(), strict=True):
            assert state(incremental.logs) == state(full.logs)
            assert (incremental.path, incremental.topic_id, incremental.id_ns) == (
                full.path,
                full.topic_id,
                full.id_ns,
            )
            assert (incremental.epochs, incremental.snapshot) == (full.epochs, full.snapshot)
        reused_count += sum(id(captured) in before for captured in current_partitions.values())
        looked = current_partitions
    assert 30 < reused_count < 290


def test_incremental_listing_opens_active_and_cleaned_logs_only(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path)
    for name in ("cleaned-0", "plain-0"):
        broker.create(name)
        for _ in range(3):
            broker.append(name)
            broker.roll(name)
    time.sleep(SETTLED_S)
    looked, counts = inspect_partitions(broker, {})
    assert counts == [4, 4]
    next(
        captured for captured in looked.values() if captured.partition.topic == "cleaned"
    ).is_cleaned = True
    current_partitions, counts = inspect_partitions(broker, looked)
    assert counts == [4, 1]
    assert [*map(id, current_partitions.values())] == [*map(id, looked.values())]
    assert all(
        log.descriptor < 0 for captured in current_partitions.values() for log in captured.logs
    )


def test_preallocated_log_of_equal_size_is_measured(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path)
    broker.create("orders-0")
    preallocate(broker, "orders-0")
    append(broker, "orders-0")
    time.sleep(SETTLED_S)
    looked, _ = inspect_partitions(broker, {})
    ((before, log),) = (
        (captured.logs[0].end_bytes, captured.logs[0]) for captured in looked.values()
    )
    append(broker, "orders-0")
    # As if both had been written between two ticks of the clock.
    log.ctime_ns = broker.last_log("orders-0").stat().st_ctime_ns
    current_partitions, _ = inspect_partitions(broker, looked)
    assert [*map(id, current_partitions.values())] == [*map(id, looked.values())]
    assert (log.end_bytes, log.settled_bytes) == (2 * before, 2 * before)
