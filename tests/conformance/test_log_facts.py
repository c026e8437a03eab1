"""A broker's log when it is truncated, flushed and read, and the files that it writes."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.support.golden_segments import PARTITION

from .judge import KafkaRefusal
from .judged_files import EndMarker, WrittenBatch, WrittenRecord, index_operations, write_batches
from .judged_log import Producer, load
from .kafka_loading import PartitionFiles

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .judge import Judge
    from .judged_log import JudgedLog

NOW_MS = 1_000_000


@pytest.fixture
def files(scratch: Path) -> PartitionFiles:
    """An empty partition directory."""
    shutil.rmtree(scratch / "facts", ignore_errors=True)
    (scratch / "facts" / PARTITION).mkdir(parents=True)
    return PartitionFiles(scratch / "facts" / PARTITION)


@pytest.fixture
def log(judge: Judge, files: PartitionFiles) -> Iterator[JudgedLog]:
    """A log with an entry for every batch but the first."""
    with load(judge, files.directory, settings={"index.interval.bytes": 0}) as opened:
        opened.set_clock(NOW_MS)
        yield opened


@pytest.fixture
def appended(judge: Judge, log: JudgedLog, scratch: Path) -> JudgedLog:
    """The log with three batches of three records each."""
    batches = [
        WrittenBatch(tuple(WrittenRecord(first + i, NOW_MS + first + i) for i in range(3)))
        for first in (0, 3, 6)
    ]
    write_batches(judge, scratch / "append", batches)
    log.append_as_follower(scratch / "append", 0)
    return log


def lead(judge: Judge, log: JudgedLog, scratch: Path, batch: WrittenBatch | EndMarker) -> None:
    """Append one batch as a leader."""
    write_batches(judge, scratch / "append", [batch])
    origin = "COORDINATOR" if isinstance(batch, EndMarker) else "CLIENT"
    log.append_as_leader(scratch / "append", 2, origin)


def abort(judge: Judge, log: JudgedLog, scratch: Path) -> None:
    """Append a transaction of producer 7 and its abort marker."""
    record = (WrittenRecord(0, NOW_MS),)
    data = WrittenBatch(
        record, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    lead(judge, log, scratch, data)
    lead(judge, log, scratch, EndMarker(0, 7, commit=False, timestamp_ms=NOW_MS))


def test_truncation_cuts_in_front_of_the_batch_and_ends_the_log_inside_it(
    appended: JudgedLog, files: PartitionFiles
) -> None:
    whole = len(files.read(0, ".log"))
    assert appended.truncate_to(7).log_end_offset == 7
    appended.close()
    assert len(files.read(0, ".log")) == whole * 2 // 3
    assert len(files.read(0, ".index")) == 8


def test_truncation_after_the_end_changes_nothing(appended: JudgedLog) -> None:
    assert appended.truncate_to(9) == appended.state()
    assert appended.state().log_end_offset == 9


def test_flush_moves_the_recovery_point_to_the_end(appended: JudgedLog) -> None:
    assert appended.state().recovery_point == 0
    appended.flush()
    assert appended.state().recovery_point == 9


def test_roll_begins_a_segment_at_the_end_with_a_snapshot(
    appended: JudgedLog, files: PartitionFiles
) -> None:
    assert appended.roll().base_offsets == (0, 9)
    assert "9.snapshot" in files.names()


def test_read_begins_with_the_batch_that_holds_the_offset_and_brings_at_least_that(
    appended: JudgedLog,
) -> None:
    whole = appended.read(0, 10_000)
    assert whole.size_bytes is not None
    one = whole.size_bytes // 3
    assert appended.read(4, 1)[:4] == (0, one, one, 3)
    assert appended.read(4, 1, min_one_message=False).size_bytes == 1
    assert appended.read(9, 1).size_bytes is None


def test_read_beyond_the_end_is_refused(appended: JudgedLog) -> None:
    with pytest.raises(KafkaRefusal, match="OffsetOutOfRangeException"):
        appended.read(10, 1)


def test_open_transaction_holds_the_last_stable_offset(
    judge: Judge, log: JudgedLog, scratch: Path
) -> None:
    record = (WrittenRecord(0, NOW_MS),)
    lead(judge, log, scratch, WrittenBatch(record))
    data = WrittenBatch(
        record, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    lead(judge, log, scratch, data)
    assert log.state().last_stable_offset == 1
    assert log.producers() == [Producer(7, 0, -1, NOW_MS, 1, 1, 1)]
    lead(judge, log, scratch, EndMarker(0, 7, commit=True, timestamp_ms=NOW_MS))
    assert log.state().last_stable_offset == 3
    assert log.producers() == [Producer(7, 0, 0, NOW_MS, 1, 1, -1)]


def test_leader_writes_its_epoch_and_the_checkpoint(
    judge: Judge, log: JudgedLog, files: PartitionFiles, scratch: Path
) -> None:
    lead(judge, log, scratch, WrittenBatch((WrittenRecord(0, NOW_MS),)))
    assert log.epochs() == [(2, 0)]
    assert (files.directory / "leader-epoch-checkpoint").read_text() == "0\n1\n2 0\n"


def test_aborted_transaction_is_in_the_segment_of_its_marker(
    judge: Judge, log: JudgedLog, files: PartitionFiles, scratch: Path
) -> None:
    assert "0.txnindex" not in files.names()
    abort(judge, log, scratch)
    assert log.read(0, 1000).aborted == ((7, 0),)
    path = files.path(0, ".txnindex")
    assert index_operations(judge, "txn", path, 0, ["open", "entries", "collect 0 1"]) == [
        "ok",
        "7 0 1 2",
        "complete 7 0 1 2",
    ]


def test_snapshot_is_taken_at_the_end_and_kept_once(
    judge: Judge, log: JudgedLog, files: PartitionFiles, scratch: Path
) -> None:
    abort(judge, log, scratch)
    log.take_snapshot()
    first = files.read(2, ".snapshot")
    log.take_snapshot()
    assert files.read(2, ".snapshot") == first
