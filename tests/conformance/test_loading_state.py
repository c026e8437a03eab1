"""The state of producers and leader epochs in a starting broker, and its losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.segments import batch

from .judged_log import DAY_MS, load
from .kafka_loading import ABORTED, indexed, partition_files

if TYPE_CHECKING:
    from pathlib import Path

    from .judge import Judge


def test_producers_are_forgotten_when_no_snapshot_is_left_after_a_clean_shutdown(
    judge: Judge, scratch: Path
) -> None:
    files = indexed(judge, scratch, ABORTED)
    with load(judge, files.directory) as log:
        assert {producer.producer_id for producer in log.producers()} == {7, 8}
    files.remove(".snapshot")
    with load(judge, files.directory) as log:
        assert log.producers() == []
    assert {"5.snapshot", "8.snapshot"} <= files.names()


def test_producers_are_read_from_the_log_when_no_snapshot_is_left_after_a_crash(
    judge: Judge, scratch: Path
) -> None:
    files = indexed(judge, scratch, ABORTED)
    files.remove(".snapshot")
    with load(judge, files.directory, clean=False, recovery_point=8) as log:
        assert {producer.producer_id for producer in log.producers()} == {7, 8}


def test_idle_producers_are_forgotten_by_the_brokers_clock(judge: Judge, scratch: Path) -> None:
    marker_ms, record_ms = 1000, 1004
    for now_ms, left in (
        (marker_ms - 1, {7, 8}),
        (marker_ms, {8}),
        (record_ms - 1, {8}),
        (record_ms, set()),
    ):
        files = indexed(judge, scratch, ABORTED)
        with load(judge, files.directory, now_ms=DAY_MS + now_ms) as log:
            assert {producer.producer_id for producer in log.producers()} == left


def test_open_transaction_keeps_its_producer_at_any_time(judge: Judge, scratch: Path) -> None:
    files = indexed(judge, scratch, {0: ABORTED[0][:1]})
    with load(judge, files.directory, now_ms=10 * DAY_MS) as log:
        assert [producer.transaction_first_offset for producer in log.producers()] == [0]
        assert log.state().last_stable_offset == 0


def test_epochs_are_lost_with_their_file_after_a_clean_shutdown(
    judge: Judge, scratch: Path
) -> None:
    logs = {0: [batch(0, leader_epoch=1), batch(3, leader_epoch=4)]}
    files = indexed(judge, scratch, logs)
    with load(judge, files.directory) as log:
        assert log.epochs() == [(1, 0), (4, 3)]
    (files.directory / "leader-epoch-checkpoint").unlink()
    with load(judge, files.directory) as log:
        assert log.epochs() == []


def test_epochs_are_found_again_by_recovery(judge: Judge, scratch: Path) -> None:
    logs = {0: [batch(0, leader_epoch=1), batch(3, leader_epoch=4)], 6: [batch(6, leader_epoch=2)]}
    files = partition_files(scratch, logs)
    with load(judge, files.directory) as log:
        assert log.epochs() == [(1, 0), (4, 3)]
    text = (files.directory / "leader-epoch-checkpoint").read_text()
    assert text == "0\n2\n1 0\n4 3\n"
