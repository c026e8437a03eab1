"""Data stored by a backup of a broker whose logs change at any moment, scripted as files."""

from __future__ import annotations

import errno
import os
import re
import shutil
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kafka_index.commands.backup import capture
from kafka_index.commands.backup.capture import LogCapture
from kafka_index.commands.backup.result import BackupStatus
from kafka_index.core.errors import InputError, KafkaIndexError, PublishError
from kafka_index.core.format.config import LogConfig
from kafka_index.core.fs.backup.manifest import Manifest
from kafka_index.core.fs.backup.repository import Repository
from kafka_index.core.fs.local_store import LocalStore
from kafka_index.core.fs.paths import open_repository
from kafka_index.core.job.result import RunOutcome
from kafka_index.core.parameters import KafkaSettings
from tests.commands.backup import fake_broker
from tests.commands.backup.fake_broker import (
    IDS,
    RECORDS,
    FakeBroker,
    back_up,
    bytes_of,
    partition_in,
    states_of,
)
from tests.support.segments import batch

ORDERS = "orders-0"


@pytest.fixture
def broker(tmp_path: Path) -> Any:
    with FakeBroker(tmp_path, 2) as result:
        result.create(ORDERS)
        result.append(ORDERS, 5)
        yield result


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "repository"


def has(repository: Path, manifest: Manifest, name: str, expected: bytes) -> bool:
    """Return whether a run has these bytes of a partition; a difference would fill screens."""
    return bytes_of(repository, manifest, name) == expected


# ------------------------------------------------------------------------------- appended logs


def test_second_backup_stores_only_new_data(broker: FakeBroker, repository: Path) -> None:
    first, _ = back_up(broker, repository)
    appended = broker.append(ORDERS, 2)
    second, manifest = back_up(broker, repository)
    assert first.sizes_bytes["new"] + len(appended) == len(broker.logs[ORDERS])
    assert second.sizes_bytes["new"] == second.sizes_bytes["log_read"] == len(appended)
    assert has(repository, manifest, ORDERS, broker.logs[ORDERS])
    partition = partition_in(manifest, ORDERS)
    assert (partition.start_offset, partition.end_offset, len(partition.chunks)) == (0, 21, 2)
    assert second.high_watermarks_from == "checkpoint"


def test_unchanged_directory_is_not_read_again(broker: FakeBroker, repository: Path) -> None:
    back_up(broker, repository)
    names = set(repository.rglob("*.log"))
    result, manifest = back_up(broker, repository)
    assert set(repository.rglob("*.log")) == names
    assert (result.sizes_bytes["new"], result.sizes_bytes["log_read"]) == (0, 0)
    assert result.high_watermarks_from == "earlier backup"
    assert has(repository, manifest, ORDERS, broker.logs[ORDERS])


def test_torn_tail_is_stored_once_it_is_complete(broker: FakeBroker, repository: Path) -> None:
    complete_log = broker.logs[ORDERS]
    torn = batch(15, RECORDS)
    log = broker.last_log(ORDERS)
    log.write_bytes(complete_log + torn[:70])
    broker.high_watermarks[ORDERS] = 18
    _, manifest = back_up(
        broker, repository, before={"store": lambda: log.write_bytes(complete_log + torn)}
    )
    assert has(repository, manifest, ORDERS, complete_log)
    _, manifest = back_up(broker, repository)
    assert has(repository, manifest, ORDERS, complete_log + torn)


def test_preallocated_log_that_shrinks_during_a_read_is_accepted(
    broker: FakeBroker, repository: Path
) -> None:
    log, complete_log = broker.last_log(ORDERS), broker.logs[ORDERS]
    os.truncate(log, 1 << 20)
    _, manifest = back_up(
        broker, repository, before={"store": lambda: os.truncate(log, len(complete_log))}
    )
    assert has(repository, manifest, ORDERS, complete_log)
    os.truncate(log, 1 << 20)
    _, manifest = back_up(broker, repository)
    assert has(repository, manifest, ORDERS, complete_log)
    result, _ = back_up(broker, repository)
    assert result.sizes_bytes["log_read"] == 0


def test_preallocated_log_ends_at_the_captured_position(
    broker: FakeBroker, repository: Path
) -> None:
    log, complete_log = broker.last_log(ORDERS), broker.logs[ORDERS]
    os.truncate(log, 1 << 20)
    later = [batch(15, RECORDS), batch(18, RECORDS)]
    remaining_writes = [*complete_log]

    def write() -> None:
        data = later[len(remaining_writes) > len(complete_log)]
        with log.open("r+b") as file:
            file.seek(len(remaining_writes))
            file.write(data)
        remaining_writes.extend(data)

    broker.high_watermarks[ORDERS] = 21
    # Both, most times, within a tick of the clock: then neither size nor times tell them apart.
    before = {"capture_others": write, "await_high_watermarks": write}
    _, manifest = back_up(broker, repository, before=before)
    partition = partition_in(manifest, ORDERS)
    assert (partition.settled_offset, partition.end_offset) == (15, 18)
    assert has(repository, manifest, ORDERS, complete_log + later[0])
    _, manifest = back_up(broker, repository)
    assert has(repository, manifest, ORDERS, bytes(remaining_writes))
    os.truncate(log, len(remaining_writes))
    result, manifest = back_up(broker, repository)
    assert has(repository, manifest, ORDERS, bytes(remaining_writes))
    assert result.sizes_bytes["new"] == 0


def test_capture_continues_in_the_rolled_segment(broker: FakeBroker, repository: Path) -> None:
    before = broker.logs[ORDERS]
    _, manifest = back_up(
        broker,
        repository,
        before={
            "capture_others": lambda: (broker.roll(ORDERS), broker.append(ORDERS)),
            "store": lambda: broker.append(ORDERS, 4),
        },
    )
    partition = partition_in(manifest, ORDERS)
    assert partition.settled_offset == 15
    assert partition.end_offset == 18
    assert has(repository, manifest, ORDERS, broker.logs[ORDERS][: len(before) * 6 // 5])
    _, manifest = back_up(broker, repository)
    assert has(repository, manifest, ORDERS, broker.logs[ORDERS])


def test_empty_active_segment_determines_the_log_end(broker: FakeBroker, repository: Path) -> None:
    (broker.path_of(ORDERS) / f"{0:020d}.log").unlink()
    broker.roll(ORDERS)
    _, manifest = back_up(broker, repository)
    partition = partition_in(manifest, ORDERS)
    assert (partition.start_offset, partition.end_offset, partition.chunks) == (15, 15, ())


def test_only_records_below_the_high_watermark_are_stored(
    broker: FakeBroker, repository: Path
) -> None:
    broker.high_watermarks[ORDERS] = 9
    _, manifest = back_up(broker, repository)
    assert partition_in(manifest, ORDERS).end_offset == 9
    del broker.high_watermarks[ORDERS]
    _, manifest = back_up(broker, repository)
    assert has(repository, manifest, ORDERS, broker.logs[ORDERS])


def test_chunks_are_bounded_unless_a_batch_is_larger(
    broker: FakeBroker, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafka_index.commands.backup.chunks.MAX_CHUNK_BYTES", 4000)
    broker.append(ORDERS, 2, value_size=5000)
    broker.append(ORDERS, 40, value_size=100)
    _, manifest = back_up(broker, repository)
    sizes = [chunk.size_bytes for chunk in partition_in(manifest, ORDERS).chunks]
    assert sum(size > 4000 for size in sizes) == 2
    assert max(sizes[3:]) <= 4000
    assert has(repository, manifest, ORDERS, broker.logs[ORDERS])


# --------------------------------------------------------------------- what brokers delete


def delete_first(broker: FakeBroker) -> None:
    """Retention deletes the first log: it is renamed, and gone later."""
    log = min(broker.path_of(ORDERS).glob("*.log"))
    log.rename(f"{log}.deleted").unlink()


def test_small_chunks_are_merged(broker: FakeBroker, repository: Path) -> None:
    counts, new = [], 0
    for _ in range(40):
        broker.append(ORDERS, 1)
        result, manifest = back_up(broker, repository)
        partition = partition_in(manifest, ORDERS)
        counts.append(len(partition.chunks))
        new += result.sizes_bytes["new"]
        assert has(repository, manifest, ORDERS, broker.logs[ORDERS])
    assert max(counts) < 20
    assert new < 3 * len(broker.logs[ORDERS])
    assert [chunk.base_offset for chunk in partition.chunks[1:]] == [
        chunk.last_offset + 1 for chunk in partition.chunks[:-1]
    ]


def test_small_chunks_of_deleted_segments_are_kept(broker: FakeBroker, repository: Path) -> None:
    for _ in range(16):
        broker.append(ORDERS, 1)
        _, manifest = back_up(broker, repository)
    before = partition_in(manifest, ORDERS).chunks
    expected = broker.logs[ORDERS]
    log = broker.last_log(ORDERS)
    with log.open("r+b") as file:
        file.seek(before[3].size_bytes * 3 + before[0].size_bytes)
        file.write(b"damaged")
    appended = broker.append(ORDERS, 1)
    _, manifest = back_up(broker, repository)
    assert partition_in(manifest, ORDERS).chunks[:-1] == before
    assert has(repository, manifest, ORDERS, expected + appended)


def test_log_deleted_after_the_capture_is_stored(broker: FakeBroker, repository: Path) -> None:
    broker.roll(ORDERS)
    broker.append(ORDERS)
    _, manifest = back_up(broker, repository, before={"store": lambda: delete_first(broker)})
    assert has(repository, manifest, ORDERS, broker.logs[ORDERS])
    _, manifest = back_up(broker, repository)
    partition = partition_in(manifest, ORDERS)
    assert (partition.start_offset, len(partition.chunks)) == (15, 1)


def test_log_deleted_before_the_capture_is_not_stored(broker: FakeBroker, repository: Path) -> None:
    broker.roll(ORDERS)
    data = broker.append(ORDERS)
    _, manifest = back_up(
        broker, repository, before={"capture_others": lambda: delete_first(broker)}
    )
    assert has(repository, manifest, ORDERS, data)
    assert partition_in(manifest, ORDERS).start_offset == 15


def test_logs_above_the_open_file_limit_are_opened_on_read(
    broker: FakeBroker, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "_RESERVED_DESCRIPTORS", 1 << 40)
    broker.roll(ORDERS)
    broker.append(ORDERS)

    def rename() -> None:
        log = min(broker.path_of(ORDERS).glob("*.log"))
        log.rename(f"{log}.deleted")

    _, manifest = back_up(broker, repository, before={"store": rename})
    assert has(repository, manifest, ORDERS, broker.logs[ORDERS])
    broker.append(ORDERS)
    _, manifest = back_up(broker, repository)
    assert partition_in(manifest, ORDERS).end_offset == 21
    shutil.rmtree(repository)
    result, _ = back_up(broker, repository, before={"store": lambda: delete_first(broker)})
    assert [
        row.reason
        for row in result.skipped_partitions
        if "deleted or replaced" in (row.reason or "")
    ]


def test_log_start_offset_is_read_before_the_capture(broker: FakeBroker, repository: Path) -> None:
    def delete_records(offset: int) -> None:
        broker.checkpoint("log-start-offset-checkpoint", {ORDERS: offset})

    delete_records(7)
    _, manifest = back_up(broker, repository, before={"capture_others": lambda: delete_records(13)})
    assert partition_in(manifest, ORDERS).start_offset == 7
    _, manifest = back_up(broker, repository)
    assert partition_in(manifest, ORDERS).start_offset == 13
    delete_records(99)
    _, manifest = back_up(broker, repository)
    partition = partition_in(manifest, ORDERS)
    assert partition.start_offset == partition.end_offset == 15


def recreate(broker: FakeBroker, topic_id: int, batches: int) -> None:
    """Delete the topic, and create another one of its name."""
    path = broker.path_of(ORDERS)
    path.rename(path.with_name(f"orders-0.{'0' * 32}-delete"))
    broker.create(ORDERS, topic_id)
    broker.append(ORDERS, batches, value_size=50)


@pytest.mark.parametrize("step", ["inspect", "capture_coordinators", "capture_others"])
def test_topic_recreated_before_the_capture_has_only_its_records(
    broker: FakeBroker, repository: Path, step: str
) -> None:
    back_up(broker, repository)
    _, manifest = back_up(broker, repository, before={step: lambda: recreate(broker, 2, 3)})
    partition = partition_in(manifest, ORDERS)
    assert (partition.topic_id, partition.end_offset) == (IDS[2], 9)
    assert has(repository, manifest, ORDERS, broker.logs[ORDERS])


@pytest.mark.parametrize("step", ["await_high_watermarks", "store"])
def test_topic_deleted_after_the_capture_is_not_mixed_with_its_successor(
    broker: FakeBroker, repository: Path, step: str
) -> None:
    result, manifest = back_up(broker, repository, before={step: lambda: recreate(broker, 2, 30)})
    assert [partition.topic_id for partition in manifest.partitions] == []
    assert result.skipped_partitions == []
    _, manifest = back_up(broker, repository)
    assert partition_in(manifest, ORDERS).topic_id == IDS[2]
    assert has(repository, manifest, ORDERS, broker.logs[ORDERS])


def test_log_start_offset_of_a_deleted_topic_is_ignored(
    broker: FakeBroker, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.checkpoint("log-start-offset-checkpoint", {ORDERS: 12})
    recreate(broker, 2, 5)
    monkeypatch.setattr("kafka_index.commands.backup.broker_backup.is_locked", lambda _: True)
    _, manifest = back_up(broker, repository)
    assert partition_in(manifest, ORDERS).start_offset == 0


# ------------------------------------------------------------------------- what is missed


def test_partition_without_a_topic_id_is_reported_and_stored_later(
    broker: FakeBroker, repository: Path
) -> None:
    metadata = broker.path_of(ORDERS) / "partition.metadata"
    text = metadata.read_text()
    metadata.unlink()
    outcomes = []
    for runs in (1, 2, 3):
        result, manifest = back_up(broker, repository)
        assert [(skipped.topic, skipped.backups) for skipped in manifest.skipped] == [
            ("orders", runs)
        ]
        assert "no topic ID" in manifest.skipped[0].reason
        outcomes.append(result.outcome)
    assert outcomes == [RunOutcome.DONE, RunOutcome.DONE, RunOutcome.DAMAGE]
    metadata.write_text(text)
    result, manifest = back_up(broker, repository)
    assert (result.ok, manifest.skipped) == (True, ())
    assert has(repository, manifest, ORDERS, broker.logs[ORDERS])


def test_partition_without_a_high_watermark_is_reported_as_missing(
    broker: FakeBroker, repository: Path
) -> None:
    broker.high_watermarks[ORDERS] = None
    result, _ = back_up(broker, repository)
    assert [row.reason for row in result.skipped_partitions] == [
        "the partition has no high watermark yet"
    ]
    assert result.ok


def test_damage_below_the_high_watermark_is_reported_at_once(
    broker: FakeBroker, repository: Path
) -> None:
    broker.create("payments-0", 2)
    broker.append("payments-0", 3)
    log = broker.last_log(ORDERS)
    data = bytearray(log.read_bytes())
    data[200] ^= 1
    log.write_bytes(data)
    result, manifest = back_up(broker, repository)
    assert [row.status for row in result.skipped_partitions] == [BackupStatus.UNREADABLE]
    assert f"{log}: corrupt batch at byte" in (result.skipped_partitions[0].reason or "")
    assert result.outcome is RunOutcome.DAMAGE
    assert has(repository, manifest, "payments-0", broker.logs["payments-0"])


def test_unreadable_log_is_reported_by_the_backup(
    broker: FakeBroker, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", fail)
        result, _ = back_up(broker, repository)
    assert "Input/output error" in (result.skipped_partitions[0].reason or "")
    assert result.outcome is RunOutcome.ENVIRONMENT


def test_overlapping_logs_are_reported_as_missing(broker: FakeBroker, repository: Path) -> None:
    shutil.copy(broker.last_log(ORDERS), broker.path_of(ORDERS) / f"{9:020d}.log")
    result, _ = back_up(broker, repository)
    assert "overlap" in (result.skipped_partitions[0].reason or "")


# ----------------------------------------------------------------------------- cleaned logs


def fill_cleaned(broker: FakeBroker) -> list[bytes]:
    """Give the topic two logs of many batches; return those of the first."""
    broker.append(ORDERS, 300, value_size=700)
    broker.roll(ORDERS)
    broker.append(ORDERS, 3)
    data = min(broker.path_of(ORDERS).glob("*.log")).read_bytes()
    batches = []
    while data:
        size = 12 + struct.unpack(">i", data[8:12])[0]
        batches.append(data[:size])
        data = data[size:]
    return batches


def clean(broker: FakeBroker, batches: list[bytes]) -> None:
    """Replace the first log as a cleaner does: with its time of modification."""
    log = min(broker.path_of(ORDERS).glob("*.log"))
    before = log.stat()
    scratch = log.with_name(f"{log.name}.swap")
    scratch.write_bytes(b"".join(batches))
    os.utime(scratch, ns=(before.st_atime_ns, before.st_mtime_ns))
    log.rename(f"{log}.deleted").unlink()
    scratch.rename(log)


def test_cleaned_log_reuses_stored_chunks_of_equal_batches(
    broker: FakeBroker, repository: Path
) -> None:
    batches = fill_cleaned(broker)
    broker.checkpoint("cleaner-offset-checkpoint", {ORDERS: 0})
    _, before = back_up(broker, repository)
    assert partition_in(before, ORDERS).is_compacted
    kept_batches = [*batches[:100], *batches[105:]]
    clean(broker, kept_batches)
    result, manifest = back_up(broker, repository)
    tail = broker.last_log(ORDERS).read_bytes()
    assert has(repository, manifest, ORDERS, b"".join(kept_batches) + tail)
    assert result.sizes_bytes["log_read"] == len(b"".join(kept_batches))
    assert 0 < result.sizes_bytes["new"] < len(b"".join(kept_batches)) * 0.8


def test_cleaned_log_of_equal_size_and_time_is_detected(
    broker: FakeBroker, repository: Path
) -> None:
    batches = fill_cleaned(broker)
    broker.checkpoint("cleaner-offset-checkpoint", {ORDERS: 0})
    back_up(broker, repository)
    batches[50] = batch(150, RECORDS, len(batches[50]) // 3 - 29, attributes=0x40)
    batches[50] = (
        batches[50] if len(batches[50]) == len(batches[51]) else batch(150, 3, 700, attributes=0x40)
    )
    clean(broker, batches)
    _, manifest = back_up(broker, repository)
    tail = broker.last_log(ORDERS).read_bytes()
    assert has(repository, manifest, ORDERS, b"".join(batches) + tail)


def test_unfinished_segment_replacement_is_awaited(broker: FakeBroker) -> None:
    batches = fill_cleaned(broker)
    log = min(broker.path_of(ORDERS).glob("*.log"))
    swap = log.with_name(f"{log.name}.swap")
    swap.write_bytes(b"".join(batches[5:]))
    looks: list[None] = []
    with pytest.MonkeyPatch.context() as patch:

        def finish(_seconds: float) -> None:
            looks.append(None)
            if len(looks) == 3:
                log.unlink()
                swap.rename(log)

        patch.setattr("kafka_index.commands.backup.capture.time.sleep", finish)
        with closing(LogCapture([str(broker.paths[0])], lambda _: True, {})) as result:
            result.capture(others_than=["__x"])
            sizes = [log.size_bytes for log in next(iter(result.partitions.values())).logs]
            assert len(looks) == 3
            assert sizes[0] == len(b"".join(batches[5:]))


def test_endless_segment_replacement_is_reported_as_missing(
    broker: FakeBroker, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "_ATTEMPT_PAUSE_S", 0)
    broker.last_log(ORDERS).with_name(f"{0:020d}.log.swap").touch()
    result, _ = back_up(broker, repository)
    assert "the log cleaner was replacing segments" in (result.skipped_partitions[0].reason or "")


# ----------------------------------------------------- moves, other histories, other copies


def test_moved_partition_is_stored_once_and_reuses_its_chunks(
    broker: FakeBroker, repository: Path
) -> None:
    back_up(broker, repository)
    source = broker.path_of(ORDERS)
    target = broker.paths[1] / ORDERS

    def move() -> None:
        shutil.copytree(source, target)
        source.rename(source.with_name(f"orders-0.{'0' * 32}-delete"))

    broker.append(ORDERS)
    result, manifest = back_up(broker, repository, before={"capture_others": move})
    assert partition_in(manifest, ORDERS).directory == 1
    assert result.sizes_bytes["new"] == len(broker.logs[ORDERS]) // 6
    assert has(repository, manifest, ORDERS, broker.logs[ORDERS])


def test_partition_in_two_directories_is_awaited(
    broker: FakeBroker, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = broker.path_of(ORDERS)
    shutil.copytree(source, broker.paths[1] / ORDERS)
    monkeypatch.setattr(capture, "_ATTEMPT_PAUSE_S", 0)
    result, _ = back_up(broker, repository)
    assert [row.reason for row in result.skipped_partitions] == [
        "the partition was created or moved during the capture"
    ]
    shutil.rmtree(source)
    _, manifest = back_up(broker, repository)
    assert partition_in(manifest, ORDERS).directory == 1


def test_truncated_log_starts_a_new_history(broker: FakeBroker, repository: Path) -> None:
    for _ in range(3):
        back_up(broker, repository)
        broker.append(ORDERS, 4)
    _, before = back_up(broker, repository)
    log = broker.last_log(ORDERS)
    kept_bytes = len(broker.logs[ORDERS]) // 17 * 11
    os.truncate(log, kept_bytes)
    broker.logs[ORDERS], broker.ends[ORDERS] = broker.logs[ORDERS][:kept_bytes], 33
    broker.append(ORDERS, 6, epoch=1)
    result, manifest = back_up(broker, repository)
    assert has(repository, manifest, ORDERS, broker.logs[ORDERS])
    first, second = (
        partition_in(any_manifest, ORDERS).chunks for any_manifest in (before, manifest)
    )
    # Two were whole in the log still, the last of which is longer now.
    assert first[:1] == second[:1]
    assert result.sizes_bytes["new"] == len(broker.logs[ORDERS]) - first[0].size_bytes


def test_log_of_a_new_history_that_shrinks_before_its_read_is_accepted(
    broker: FakeBroker, repository: Path
) -> None:
    back_up(broker, repository)
    log, kept_bytes = broker.last_log(ORDERS), len(broker.logs[ORDERS]) // 5 * 2
    os.truncate(log, kept_bytes)
    os.truncate(log, 1 << 20)
    broker.logs[ORDERS], broker.ends[ORDERS] = broker.logs[ORDERS][:kept_bytes], 2 * RECORDS
    _, manifest = back_up(
        broker, repository, before={"store": lambda: os.truncate(log, kept_bytes)}
    )
    assert partition_in(manifest, ORDERS).end_offset == 2 * RECORDS
    assert has(repository, manifest, ORDERS, broker.logs[ORDERS])


# --------------------------------------------------------------------- where it ends, and when


def test_every_second_replacement_of_a_directory_is_detected(
    broker: FakeBroker, repository: Path
) -> None:
    broker.is_paused = True
    broker.create("payments-0", 2, directory=1)
    broker.append("payments-0", 4)
    broker.checkpoint("replication-offset-checkpoint", {ORDERS: 3}, 0)
    broker.checkpoint("replication-offset-checkpoint", {"payments-0": 3}, 1)

    def write(orders: int, payments: int) -> None:
        broker.checkpoint("replication-offset-checkpoint", {ORDERS: orders}, 0)
        broker.checkpoint("replication-offset-checkpoint", {"payments-0": payments}, 1)

    steps = [lambda: write(6, 6), lambda: write(9, 12)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "kafka_index.commands.backup.broker_backup.time.sleep",
            lambda _: steps.pop(0)() if steps else None,
        )
        result, manifest = back_up(broker, repository)
    assert result.high_watermarks_from == "checkpoint"
    assert [partition_in(manifest, name).end_offset for name in (ORDERS, "payments-0")] == [9, 12]


def test_stopped_broker_is_not_awaited(broker: FakeBroker, repository: Path) -> None:
    broker.is_paused = True
    for path in broker.paths:
        (path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":5}')
    result, manifest = back_up(broker, repository)
    assert result.high_watermarks_from == "log end"
    assert has(repository, manifest, ORDERS, broker.logs[ORDERS])


def test_backup_of_a_killed_broker_has_its_written_records(
    broker: FakeBroker, repository: Path
) -> None:
    broker.is_paused = True
    broker.checkpoint("replication-offset-checkpoint", {ORDERS: 12})
    properties = {"replica.high.watermark.checkpoint.interval.ms": "50"}
    config = KafkaSettings(LogConfig(), properties)
    result, manifest = back_up(broker, repository, config=config)
    assert result.high_watermarks_from == "old checkpoint"
    assert partition_in(manifest, ORDERS).end_offset == 12


def test_replacement_finished_before_the_capture_is_not_awaited(
    broker: FakeBroker, repository: Path
) -> None:
    _, manifest = back_up(
        broker, repository, before={"capture_others": lambda: broker.append(ORDERS, 2)}
    )
    partition = partition_in(manifest, ORDERS)
    assert (partition.settled_offset, partition.end_offset) == (15, 21)
    broker.append(ORDERS)
    _, manifest = back_up(
        broker, repository, before={"capture_others": lambda: broker.append(ORDERS, 2)}
    )
    partition = partition_in(manifest, ORDERS)
    assert (partition.settled_offset, partition.end_offset) == (24, 30)


def test_internal_topics_are_captured_first_and_the_metadata_log_last(
    broker: FakeBroker, repository: Path
) -> None:
    topics = ["__transaction_state-0", "__consumer_offsets-3", "zebra-0", "__cluster_metadata-0"]
    for name in topics:
        broker.create(name, 2)
        broker.append(name)
    order: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        original_inspect = capture.PartitionInspector.inspect

        def note(self: Any, partition: Any, *more: Any) -> Any:
            order.append(partition.directory_name)
            return original_inspect(self, partition, *more)

        patch.setattr(capture.PartitionInspector, "inspect", note)
        _, manifest = back_up(broker, repository, topics=re.compile("nothing"))
    assert order == [topics[0], topics[1], topics[3]] * 2  # the look, and the cut
    assert {partition_backup.topic for partition_backup in manifest.partitions} == {
        name[:-2] for name in topics
    } - {"zebra"}
    result = manifest.capture
    assert (
        result.begun_ms
        <= result.coordinators_captured_ms
        <= result.others_begun_ms
        <= result.ended_ms
    )


# ------------------------------------------------------------------- nothing of it is touched


def test_backup_changes_no_file_of_the_broker(broker: FakeBroker, repository: Path) -> None:
    broker.is_paused = True
    for path in broker.paths:
        (path / ".kafka_cleanshutdown").touch()
    before = {path: states_of(path) for path in broker.paths}
    back_up(broker, repository)
    back_up(broker, repository)
    assert {path: states_of(path) for path in broker.paths} == before


def test_repository_within_a_data_directory_is_rejected(broker: FakeBroker) -> None:
    with pytest.raises(InputError, match="is inside the input"):
        back_up(broker, broker.paths[0] / "backups")


# --------------------------------------------------------------------------- killed and failed


def test_objects_of_a_killed_backup_are_reused(broker: FakeBroker, repository: Path) -> None:
    broker.append(ORDERS, 2000, value_size=500)

    def die() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        back_up(broker, repository, before={"commit": die})
    assert open_repository(str(repository)).newest(1) is None
    put: list[str] = []

    def note(_: Repository, path: str, __: bytes) -> bool:
        put.append(path)
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Repository, "put", note)
        patch.setattr(Repository, "put_manifest", lambda *_: None)
        patch.setattr(fake_broker, "manifest_of", lambda _: None)
        result, _ = back_up(broker, repository)
    assert (put, result.sizes_bytes["new"]) == ([], 0)


@pytest.mark.parametrize("number", range(3))
def test_failing_store_leaves_the_repository_unchanged(
    broker: FakeBroker, repository: Path, number: int
) -> None:
    broker.create("payments-0", 2)
    broker.append("payments-0", 3)
    _, first = back_up(broker, repository)
    broker.append(ORDERS)
    broker.append("payments-0")
    calls: list[str] = []
    put = LocalStore.put

    def fail(self: LocalStore, path: str, data: bytes, *, if_absent: bool = False) -> bool:
        calls.append(path)
        if len(calls) == number + 1:
            raise PublishError("no space left on the target's file system", path=path)
        return put(self, path, data, if_absent=if_absent)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "put", fail)
        with pytest.raises(KafkaIndexError, match="no space"):
            back_up(broker, repository)
    newest = open_repository(str(repository)).newest(1)
    assert (newest == first) is True
    _, manifest = back_up(broker, repository)
    assert has(repository, manifest, ORDERS, broker.logs[ORDERS])


def test_missing_data_directory_ends_the_backup(broker: FakeBroker, repository: Path) -> None:
    back_up(broker, repository)
    runs = list(open_repository(str(repository)).brokers_by_backup())

    def remove() -> None:
        broker.is_paused = True
        broker.paths[1].rename(broker.paths[1].with_name("gone"))

    with pytest.raises(InputError, match="cannot read the directory"):
        back_up(broker, repository, before={"capture_others": remove})
    assert list(open_repository(str(repository)).brokers_by_backup()) == runs
