"""The files of a partition that a starting broker takes, makes, renames and removes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.segments import batch

from .judge import KafkaRefusal
from .judged_log import load
from .kafka_loading import EVERY_BATCH, indexed, partition_files

if TYPE_CHECKING:
    from pathlib import Path

    from .judge import Judge

SOUND = {0: [batch(0), batch(3)], 6: [batch(6), batch(9)], 12: [batch(12)]}
FULL_INDEX_BYTES = 10_485_760
FULL_TIME_INDEX_BYTES = 10_485_756


def test_active_index_files_are_as_large_as_may_be_until_they_are_closed(
    judge: Judge, scratch: Path
) -> None:
    files = partition_files(scratch, SOUND)
    load(judge, files.directory, settings=EVERY_BATCH).kill()
    assert len(files.read(12, ".index")) == FULL_INDEX_BYTES
    assert len(files.read(12, ".timeindex")) == FULL_TIME_INDEX_BYTES
    load(judge, files.directory, clean=False, settings=EVERY_BATCH).close()
    assert files.read(12, ".index") == b""
    assert len(files.read(12, ".timeindex")) == 12


def test_zeros_of_a_killed_broker_are_taken_for_entries_after_a_clean_shutdown(
    judge: Judge, scratch: Path
) -> None:
    files = partition_files(scratch, SOUND)
    load(judge, files.directory, settings=EVERY_BATCH).kill()
    load(judge, files.directory, settings=EVERY_BATCH).close()
    assert files.read(12, ".index") == bytes(FULL_INDEX_BYTES)


def test_rolled_index_files_have_no_room_left(judge: Judge, scratch: Path) -> None:
    files = partition_files(scratch, SOUND)
    load(judge, files.directory, settings=EVERY_BATCH).kill()
    assert len(files.read(0, ".index")) == 8
    assert len(files.read(0, ".timeindex")) == 12


def test_deleted_and_cleaned_files_are_removed(judge: Judge, scratch: Path) -> None:
    files = partition_files(scratch, SOUND)
    files.write(0, ".index.deleted", b"x")
    files.write(6, ".log.cleaned", b"x")
    with load(judge, files.directory) as log:
        assert log.loaded.base_offsets == (0, 6, 12)
    assert not [name for name in files.names() if name.endswith((".deleted", ".cleaned"))]


def test_swap_file_takes_the_place_of_the_segments_that_it_covers(
    judge: Judge, scratch: Path
) -> None:
    files = partition_files(scratch, SOUND)
    merged = b"".join(SOUND[0] + SOUND[6])
    files.write(0, ".log.swap", merged)
    with load(judge, files.directory) as log:
        assert log.loaded.base_offsets == (0, 12)
    assert files.read(0, ".log") == merged
    assert not {"6.log", "0.log.swap"} & files.names()


@pytest.mark.parametrize("cleaned_offset", [0, 6])
def test_swap_file_at_or_after_a_cleaned_one_is_removed(
    judge: Judge, scratch: Path, cleaned_offset: int
) -> None:
    files = partition_files(scratch, SOUND)
    files.write(6, ".log.swap", SOUND[6][1])
    files.write(cleaned_offset, ".log.cleaned", b"x")
    with load(judge, files.directory) as log:
        assert log.loaded.base_offsets == (0, 6, 12)
    assert files.read(6, ".log") == b"".join(SOUND[6])


def test_swap_file_in_front_of_every_cleaned_one_is_taken(judge: Judge, scratch: Path) -> None:
    files = partition_files(scratch, SOUND)
    files.write(6, ".log.swap", SOUND[6][1])
    files.write(7, ".log.cleaned", b"x")
    load(judge, files.directory).kill()
    assert files.read(6, ".log") == SOUND[6][1]


def test_index_file_without_a_log_is_removed(judge: Judge, scratch: Path) -> None:
    files = indexed(judge, scratch, SOUND)
    files.write(99, ".index", bytes(8))
    files.write(99, ".timeindex", bytes(12))
    files.write(99, ".txnindex")
    load(judge, files.directory).kill()
    assert not {"99.index", "99.timeindex", "99.txnindex"} & files.names()


def test_snapshot_of_no_segment_is_removed_but_for_the_last(judge: Judge, scratch: Path) -> None:
    files = indexed(judge, scratch, SOUND)
    snapshot = files.read(15, ".snapshot")
    files.write(4, ".snapshot", snapshot)
    load(judge, files.directory).kill()
    names = files.names()
    assert "4.snapshot" not in names
    assert "15.snapshot" in names


def test_zeros_at_the_end_are_cut_after_a_crash(judge: Judge, scratch: Path) -> None:
    files = indexed(judge, scratch, SOUND)
    files.write(12, ".log", SOUND[12][0] + bytes(4096))
    load(judge, files.directory, clean=False).kill()
    assert files.read(12, ".log") == SOUND[12][0]


def test_zeros_at_the_end_keep_the_broker_from_starting_after_a_clean_shutdown(
    judge: Judge, scratch: Path
) -> None:
    # A clean shutdown cuts them off itself.
    files = indexed(judge, scratch, SOUND)
    files.write(12, ".log", SOUND[12][0] + bytes(4096))
    with pytest.raises(KafkaRefusal, match="CorruptRecordException"):
        load(judge, files.directory)


def test_zeros_at_the_end_of_an_earlier_segment_stay_after_a_clean_shutdown(
    judge: Judge, scratch: Path
) -> None:
    files = indexed(judge, scratch, SOUND)
    padded = b"".join(SOUND[0]) + bytes(4096)
    files.write(0, ".log", padded)
    with load(judge, files.directory) as log:
        assert log.loaded.base_offsets == (0, 6, 12)
    assert files.read(0, ".log") == padded


def test_zeros_at_the_end_are_cut_where_index_is_missing(judge: Judge, scratch: Path) -> None:
    files = partition_files(scratch, {0: [batch(0), bytes(4096)]})
    load(judge, files.directory).kill()
    assert files.read(0, ".log") == batch(0)


def test_log_start_offset_hides_what_is_before_it_and_deletes_nothing(
    judge: Judge, scratch: Path
) -> None:
    files = indexed(judge, scratch, SOUND)
    with load(judge, files.directory, log_start_offset=7) as log:
        assert log.loaded.log_start_offset == 7
        assert log.loaded.base_offsets == (0, 6, 12)


def test_log_start_offset_after_the_end_empties_the_log(judge: Judge, scratch: Path) -> None:
    files = indexed(judge, scratch, SOUND)
    with load(judge, files.directory, log_start_offset=99) as log:
        assert log.loaded.base_offsets == (99,)
        assert log.loaded.log_end_offset == 99
    assert "0.log.deleted" in files.names()


def test_epochs_before_the_log_start_and_after_the_end_are_dropped(
    judge: Judge, scratch: Path
) -> None:
    files = indexed(judge, scratch, SOUND)
    checkpoint = files.directory / "leader-epoch-checkpoint"
    checkpoint.write_text("0\n4\n0 0\n2 5\n3 8\n9 15\n")
    with load(judge, files.directory, log_start_offset=6) as log:
        assert log.epochs() == [(2, 6), (3, 8)]
    assert checkpoint.read_text() == "0\n2\n2 6\n3 8\n"
