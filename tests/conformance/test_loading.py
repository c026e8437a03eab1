"""The start of a broker on the files of a partition: the ground under our claims.

A segment without ``.index`` is recovered on its own, whatever the recovery point is; one with it
is trusted below the recovery point or after a clean shutdown, and else recovered so that the first
cut ends the log. What a broker makes of a partition, rather than of its files, is in
`test_predicted_partitions`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from kafka_index.commands.build.log_build import build_segment_files
from tests.support.cases import ascending_batches
from tests.support.named_segments import control, open_transaction
from tests.support.segments import batch, control_key

from .kafka_loading import (
    ABORTED,
    EVERY_BATCH,
    PartitionFiles,
    indexed_files,
    partition_files,
)
from .kafka_reference import KafkaReference, KafkaRefusal
from .reference_log import DAY_MS

SOUND = {0: [batch(0), batch(3)], 6: [batch(6), batch(9)], 12: [batch(12)]}
#: The second batch of the middle segment has a wrong checksum.
DAMAGED = {**SOUND, 6: [batch(6), batch(9, crc=1)]}
GARBAGE = b"\x7f" * 24
FULL_INDEX_BYTES = 10_485_760
FULL_TIME_INDEX_BYTES = 10_485_756

New = Callable[..., PartitionFiles]


@pytest.fixture
def logs_without_indexes(reference: KafkaReference, scratch: Path) -> New:
    """A function that makes a partition of logs alone."""
    return partial(partition_files, reference, scratch)


@pytest.fixture
def logs_with_indexes(reference: KafkaReference, scratch: Path) -> New:
    """A function that makes a partition with all index files."""
    return partial(indexed_files, reference, scratch)


@pytest.mark.parametrize("clean", [True, False])
def test_segment_without_index_is_recovered_and_others_are_not_read(
    logs_with_indexes: New, *, clean: bool
) -> None:
    files = logs_with_indexes(SOUND)
    before = files.contents()
    files.path(6, ".index").unlink()
    files.write(6, ".timeindex", GARBAGE)
    files.write(0, ".index", GARBAGE)
    with files.load(clean=clean, recovery_point=15, settings=EVERY_BATCH) as log:
        assert log.loaded.base_offsets == (0, 6, 12)
    assert files.read(6, ".index") == before[files.path(6, ".index").name]
    assert files.read(6, ".timeindex") == before[files.path(6, ".timeindex").name]
    assert files.read(0, ".index") == GARBAGE


def test_truncation_of_an_indexed_segment_above_the_recovery_point_ends_the_log(
    logs_with_indexes: New,
) -> None:
    files = logs_with_indexes(SOUND, DAMAGED)
    with files.load(clean=False) as log:
        assert log.loaded.base_offsets == (0, 6)
        assert log.loaded.log_end_offset == 9
    assert files.read(6, ".log") == DAMAGED[6][0]
    assert {"12.log.deleted", "12.index.deleted", "12.timeindex.deleted"} <= files.names()
    assert "12.log" not in files.names()


def test_segment_below_the_recovery_point_is_not_read(logs_with_indexes: New) -> None:
    files = logs_with_indexes(SOUND, DAMAGED)
    with files.load(clean=False, recovery_point=12) as log:
        assert log.loaded.base_offsets == (0, 6, 12)
    assert files.read(6, ".log") == b"".join(DAMAGED[6])


def test_missing_time_index_is_created_empty_if_the_offset_index_exists(
    logs_with_indexes: New,
) -> None:
    files = logs_with_indexes(SOUND)
    files.remove(".timeindex")
    files.load().kill()
    assert files.read(0, ".timeindex") == b""
    assert files.read(6, ".timeindex") == b""


def test_missing_transaction_index_stays_missing_if_the_offset_index_exists(
    logs_with_indexes: New,
) -> None:
    files = logs_with_indexes(ABORTED)
    with files.load() as log:
        assert log.read(0, 1000).aborted == ((7, 0),)
    files.remove(".txnindex")
    with files.load() as log:
        assert log.read(0, 1000).aborted == ()
    assert "0.txnindex" not in files.names()


def test_missing_transaction_index_is_rebuilt_with_a_missing_index(logs_with_indexes: New) -> None:
    files = logs_with_indexes(ABORTED)
    before = files.read(0, ".txnindex")
    files.remove(".txnindex")
    files.remove(".index")
    files.load().close()
    assert files.read(0, ".txnindex") == before


def test_stray_transaction_index_is_emptied_by_recovery_and_not_deleted(
    logs_with_indexes: New,
) -> None:
    files = logs_with_indexes(SOUND)
    files.write(6, ".txnindex", struct.pack(">hqqqq", 0, 7, 6, 8, 9))
    files.remove(".index")
    files.load().close()
    assert files.read(6, ".txnindex") == b""
    assert "0.txnindex" not in files.names()


def test_transaction_index_with_offsets_before_its_segment_triggers_recovery(
    logs_with_indexes: New,
) -> None:
    files = logs_with_indexes(SOUND)
    before = files.read(6, ".index")
    files.write(6, ".index", GARBAGE)
    files.write(6, ".txnindex", struct.pack(">hqqqq", 0, 7, 0, 5, 6))
    files.load(settings=EVERY_BATCH).close()
    assert files.read(6, ".index") == before
    assert files.read(6, ".txnindex") == b""


def test_active_index_files_have_the_maximum_size_until_closed(logs_without_indexes: New) -> None:
    files = logs_without_indexes(SOUND)
    files.load(settings=EVERY_BATCH).kill()
    assert len(files.read(12, ".index")) == FULL_INDEX_BYTES
    assert len(files.read(12, ".timeindex")) == FULL_TIME_INDEX_BYTES
    files.load(clean=False, settings=EVERY_BATCH).close()
    assert files.read(12, ".index") == b""
    assert len(files.read(12, ".timeindex")) == 12


def test_zeros_in_an_index_count_as_entries_after_a_clean_shutdown(
    logs_without_indexes: New,
) -> None:
    files = logs_without_indexes(SOUND)
    files.load(settings=EVERY_BATCH).kill()
    files.load(settings=EVERY_BATCH).close()
    assert files.read(12, ".index") == bytes(FULL_INDEX_BYTES)


def test_rolled_index_files_are_trimmed(logs_without_indexes: New) -> None:
    files = logs_without_indexes(SOUND)
    files.load(settings=EVERY_BATCH).kill()
    assert len(files.read(0, ".index")) == 8
    assert len(files.read(0, ".timeindex")) == 12


def test_deleted_and_cleaned_files_are_removed(logs_without_indexes: New) -> None:
    files = logs_without_indexes(SOUND)
    files.write(0, ".index.deleted", b"x")
    files.write(6, ".log.cleaned", b"x")
    with files.load() as log:
        assert log.loaded.base_offsets == (0, 6, 12)
    assert not [name for name in files.names() if name.endswith((".deleted", ".cleaned"))]


def test_swap_file_replaces_the_segments_that_it_covers(logs_without_indexes: New) -> None:
    files = logs_without_indexes(SOUND)
    merged = b"".join(SOUND[0] + SOUND[6])
    files.write(0, ".log.swap", merged)
    with files.load() as log:
        assert log.loaded.base_offsets == (0, 12)
    assert files.read(0, ".log") == merged
    assert not {"6.log", "0.log.swap"} & files.names()


@pytest.mark.parametrize("cleaned_offset", [0, 6])
def test_swap_file_at_or_after_a_cleaned_file_is_removed(
    logs_without_indexes: New, cleaned_offset: int
) -> None:
    files = logs_without_indexes(SOUND)
    files.write(6, ".log.swap", SOUND[6][1])
    files.write(cleaned_offset, ".log.cleaned", b"x")
    with files.load() as log:
        assert log.loaded.base_offsets == (0, 6, 12)
    assert files.read(6, ".log") == b"".join(SOUND[6])


def test_swap_file_before_every_cleaned_one_is_loaded(logs_without_indexes: New) -> None:
    files = logs_without_indexes(SOUND)
    files.write(6, ".log.swap", SOUND[6][1])
    files.write(7, ".log.cleaned", b"x")
    files.load().kill()
    assert files.read(6, ".log") == SOUND[6][1]


def test_index_file_without_a_log_is_removed(logs_with_indexes: New) -> None:
    files = logs_with_indexes(SOUND)
    files.write(99, ".index", bytes(8))
    files.write(99, ".timeindex", bytes(12))
    files.write(99, ".txnindex")
    files.load().kill()
    assert not {"99.index", "99.timeindex", "99.txnindex"} & files.names()


def test_snapshots_without_a_segment_are_removed_except_the_last(logs_with_indexes: New) -> None:
    files = logs_with_indexes(SOUND)
    snapshot = files.read(15, ".snapshot")
    files.write(4, ".snapshot", snapshot)
    files.load().kill()
    names = files.names()
    assert "4.snapshot" not in names
    assert "15.snapshot" in names


def test_producers_without_a_snapshot_are_lost_after_a_clean_shutdown(
    logs_with_indexes: New,
) -> None:
    files = logs_with_indexes(ABORTED)
    with files.load() as log:
        assert {producer.producer_id for producer in log.producers()} == {7, 8}
    files.remove(".snapshot")
    with files.load() as log:
        assert log.producers() == []
    assert {"5.snapshot", "8.snapshot"} <= files.names()


def test_epochs_are_lost_with_their_file_after_a_clean_shutdown(logs_with_indexes: New) -> None:
    logs = {0: [batch(0, leader_epoch=1), batch(3, leader_epoch=4)]}
    files = logs_with_indexes(logs)
    with files.load() as log:
        assert log.epochs() == [(1, 0), (4, 3)]
    (files.directory / "leader-epoch-checkpoint").unlink()
    with files.load() as log:
        assert log.epochs() == []


def refusal(files: PartitionFiles, settings: dict[str, int] | None = None) -> str:
    """Class of what keeps the broker from starting after a crash."""
    with pytest.raises(KafkaRefusal) as refused:
        files.load(clean=False, settings=settings)
    return refused.value.error_class


def with_empty_index(files: PartitionFiles, *base_offsets: int) -> PartitionFiles:
    """The same with index files that a broker finds in place."""
    for base_offset in base_offsets:
        files.write(base_offset, ".index")
        files.write(base_offset, ".timeindex")
    return files


@pytest.mark.parametrize(
    ("entries", "settings"),
    [
        pytest.param(
            ascending_batches(7, step_ms=0),
            {**EVERY_BATCH, "segment.index.bytes": 40},
            id="offset index",
        ),
        pytest.param(
            ascending_batches(3), {**EVERY_BATCH, "segment.index.bytes": 24}, id="time index"
        ),
        pytest.param(
            ascending_batches(3, step_ms=0),
            {**EVERY_BATCH, "segment.index.bytes": 24},
            id="time index with nothing to append",
        ),
    ],
)
def test_full_index_prevents_the_broker_start(
    logs_without_indexes: New, entries: list[bytes], settings: dict[str, int]
) -> None:
    files = logs_without_indexes({0: entries})
    assert refusal(files, settings) == "IllegalArgumentException"
    files = with_empty_index(logs_without_indexes({0: entries}), 0)
    assert refusal(files, settings) == "IllegalArgumentException"


def test_unreadable_transaction_marker_at_the_recovered_end_prevents_the_start(
    reference: KafkaReference, old_reference: KafkaReference, scratch: Path
) -> None:
    unreadable = control(control_key(1, version=-1))
    for version in (reference, old_reference):
        files = partition_files(version, scratch, {0: [open_transaction(), unreadable, batch(20)]})
        assert refusal(files) == "InvalidRecordException"
        assert files.read(0, ".log") == open_transaction() + unreadable


def test_backward_offsets_delete_the_segment_if_its_index_exists(logs_without_indexes: New) -> None:
    files = logs_without_indexes({0: [batch(0)], 3: [batch(3), batch(6), batch(3)]})
    with_empty_index(files, 0, 3)
    with files.load(clean=False, settings=EVERY_BATCH) as log:
        assert log.loaded.base_offsets == (0, 3)
        assert log.loaded.log_end_offset == 3
    assert files.read(3, ".log") == b""


def test_active_index_above_the_configured_size_prevents_the_broker_start(
    logs_without_indexes: New,
) -> None:
    files = logs_without_indexes({0: ascending_batches(9)})
    files.load(settings=EVERY_BATCH).close()
    small = {**EVERY_BATCH, "segment.index.bytes": 48}
    with pytest.raises(KafkaRefusal, match="IllegalArgumentException"):
        files.load(settings=small)


@pytest.mark.parametrize("clean", [True, False])
def test_truncation_of_a_segment_without_index_keeps_later_segments(
    logs_with_indexes: New, *, clean: bool
) -> None:
    files = logs_with_indexes(SOUND, DAMAGED)
    files.remove(".index")
    with files.load(clean=clean) as log:
        assert log.loaded.base_offsets == (0, 6, 12)
        assert log.loaded.log_end_offset == 15
    assert files.read(6, ".log") == DAMAGED[6][0]


def test_recovery_starts_at_the_segment_of_the_recovery_point(logs_with_indexes: New) -> None:
    with logs_with_indexes(SOUND, DAMAGED).load(clean=False, recovery_point=11) as log:
        assert log.loaded.base_offsets == (0, 6)


def test_no_log_is_read_after_a_clean_shutdown(logs_with_indexes: New) -> None:
    files = logs_with_indexes(SOUND, DAMAGED)
    files.write(0, ".index", GARBAGE)
    with files.load() as log:
        assert log.loaded.base_offsets == (0, 6, 12)
    assert files.read(6, ".log") == b"".join(DAMAGED[6])
    assert files.read(0, ".index") == GARBAGE


def test_records_before_the_log_start_offset_are_hidden_and_kept(logs_with_indexes: New) -> None:
    with logs_with_indexes(SOUND).load(log_start_offset=7) as log:
        assert log.loaded.log_start_offset == 7
        assert log.loaded.base_offsets == (0, 6, 12)


@pytest.mark.parametrize("clean", [True, False])
def test_built_index_files_equal_those_of_an_unclean_start(
    logs_without_indexes: New, tmp_path: Path, *, clean: bool
) -> None:
    files = logs_without_indexes(SOUND)
    for log in sorted(files.directory.glob("*.log")):
        assert build_segment_files(log, tmp_path).status == "built"
    built = {path.name: path.read_bytes() for path in tmp_path.glob("*index")}
    for name, data in built.items():
        (files.directory / name).write_bytes(data)
    files.load(clean=clean).close()
    assert len(built) == 6
    assert built.items() <= files.contents().items()


def test_trailing_zeros_are_truncated_after_a_crash_and_rejected_after_a_clean_shutdown(
    logs_with_indexes: New,
) -> None:
    # A clean shutdown cuts them off itself.
    files = logs_with_indexes(SOUND)
    files.write(12, ".log", SOUND[12][0] + bytes(4096))
    with pytest.raises(KafkaRefusal, match="CorruptRecordException"):
        files.load()
    files.load(clean=False).kill()
    assert files.read(12, ".log") == SOUND[12][0]


def test_trailing_zeros_of_an_earlier_segment_stay_after_a_clean_shutdown(
    logs_with_indexes: New,
) -> None:
    files = logs_with_indexes(SOUND)
    padded = b"".join(SOUND[0]) + bytes(4096)
    files.write(0, ".log", padded)
    with files.load() as log:
        assert log.loaded.base_offsets == (0, 6, 12)
    assert files.read(0, ".log") == padded


def test_trailing_zeros_are_truncated_if_the_index_is_missing(logs_without_indexes: New) -> None:
    files = logs_without_indexes({0: [batch(0), bytes(4096)]})
    files.load().kill()
    assert files.read(0, ".log") == batch(0)


@pytest.mark.parametrize(
    ("after_ms", "left"), [(999, {7, 8}), (1000, {8}), (1003, {8}), (1004, set())]
)
def test_idle_producers_expire_by_the_brokers_clock(
    logs_with_indexes: New, after_ms: int, left: set[int]
) -> None:
    # The marker is of 1000 ms, the record of 1004.
    with logs_with_indexes(ABORTED).load(now_ms=DAY_MS + after_ms) as log:
        assert {producer.producer_id for producer in log.producers()} == left


def test_producer_with_an_open_transaction_does_not_expire(logs_with_indexes: New) -> None:
    with logs_with_indexes({0: ABORTED[0][:1]}).load(now_ms=10 * DAY_MS) as log:
        assert [producer.transaction_first_offset for producer in log.producers()] == [0]
        assert log.state().last_stable_offset == 0
