"""A build of whole partitions leaves what a broker leaves that has lost all index files.

Producers, transactions and epochs run across segments; Kafka's ``LogLoader`` recovers each segment
with what it knows from those before, the build joins what it found in each by itself.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from kafka_index.build import BuildSettings
from kafka_index.config import IndexConfig, LogConfig
from kafka_index.state.partition_state import ProducerExpiration
from kafka_index.storage import list_dump
from tests.support.dumps import built_rows
from tests.support.segments import batch, message
from tests.support.twins import ProducerRow

from .campaign import drawn_cases
from .judge import KafkaRefusal
from .judged_log import load
from .state_partitions import DIRECTORY, StatePartition, bytes_of, state_partitions

if TYPE_CHECKING:
    from pathlib import Path

    from .judge import Judge

KINDS = (".index", ".timeindex", ".txnindex", ".snapshot")
NEVER_MS = 2**31 - 1


def files_of(directory: Path) -> dict[str, bytes]:
    """All that is compared in a partition's directory."""
    return {
        path.name: path.read_bytes()
        for path in sorted(directory.iterdir())
        if not path.name.startswith(".")
        and (path.suffix in KINDS or path.name == "leader-epoch-checkpoint")
    }


def by_kafka(
    judge: Judge,
    scratch: Path,
    partition: StatePartition,
    *,
    now_ms: int,
    expiration_ms: int,
    index_interval_bytes: int = 4096,
) -> dict[str, bytes] | str:
    directory = partition.write(scratch / "kafka")
    try:
        with load(
            judge,
            directory,
            # After a clean stop a broker that finds no snapshot at all makes empty ones.
            clean=False,
            log_start_offset=partition.log_start_offset,
            now_ms=now_ms,
            producer_expiration_ms=expiration_ms,
            settings={"index.interval.bytes": index_interval_bytes},
        ):
            pass
    except KafkaRefusal as refusal:
        return refusal.error_class
    return files_of(directory)


def by_build(
    scratch: Path,
    partition: StatePartition,
    expiration: ProducerExpiration | None,
    *,
    index_interval_bytes: int = 4096,
) -> dict[str, bytes] | str:
    partition.write(scratch / "ours")
    settings = BuildSettings(
        config=LogConfig(IndexConfig(index_interval_bytes=index_interval_bytes)),
        target_root=str(scratch / "out"),
        expiration=expiration,
    )
    listing = list_dump([str(scratch / "ours")], topics=None)
    rows = built_rows(listing.segments, settings, threads=1)
    failed = [row for row in rows if row.status == "failed"]
    return str(failed[0].reason_code) if failed else files_of(scratch / "out" / DIRECTORY)


def assert_same(
    judge: Judge,
    scratch: Path,
    partition: StatePartition,
    *,
    now_ms: int = 0,
    expiration_ms: int = NEVER_MS,
    index_interval_bytes: int = 4096,
) -> dict[str, bytes] | str:
    for name in ("kafka", "ours", "out"):
        shutil.rmtree(scratch / name, ignore_errors=True)
    kafka = by_kafka(
        judge,
        scratch,
        partition,
        now_ms=now_ms,
        expiration_ms=expiration_ms,
        index_interval_bytes=index_interval_bytes,
    )
    expiration = ProducerExpiration(expiration_ms, now_ms)
    ours = by_build(
        scratch,
        partition,
        None if expiration_ms == NEVER_MS else expiration,
        index_interval_bytes=index_interval_bytes,
    )
    if ours == "segments_overlap":
        # Kafka loads parts of such segments twice; the build does not follow it there.
        return ours
    if ours == "invalid_marker" and (partition.log_start_offset or len(partition.logs) > 1):
        # Where the log starts right after the marker, or the next segment overlaps and starts at
        # it, a broker does not read it again.
        return ours
    if isinstance(kafka, str) or isinstance(ours, str):
        assert isinstance(kafka, str), f"only the build fails: {ours}"
        assert isinstance(ours, str), f"only Kafka fails: {kafka}"
    else:
        assert ours == kafka
    return ours


@drawn_cases(share=0.1)
@given(partition=state_partitions())
def test_a_partition_is_built_as_a_broker_rebuilds_it(
    judge: Judge, scratch: Path, partition: StatePartition
) -> None:
    assert_same(judge, scratch, partition)


@drawn_cases(share=0.1)
@given(partition=state_partitions(wild=True))
def test_a_wild_partition_is_built_as_a_broker_rebuilds_it(
    judge: Judge, scratch: Path, partition: StatePartition
) -> None:
    assert_same(judge, scratch, partition)


@drawn_cases(share=0.1)
@given(partition=state_partitions())
def test_idle_producers_are_left_out_as_a_starting_broker_does(
    judge: Judge, scratch: Path, partition: StatePartition
) -> None:
    assert_same(judge, scratch, partition, now_ms=1100, expiration_ms=60)


def test_epochs_that_begin_after_the_end_of_a_log_in_disorder_leave_an_empty_list(
    judge: Judge, scratch: Path
) -> None:
    rows = [ProducerRow(1, leader_epoch=3), ProducerRow(0, leader_epoch=3)]
    log = b"".join(bytes_of(replace(row, producer_epoch=-1, base_sequence=-1)) for row in rows)
    files = assert_same(judge, scratch, StatePartition({0: log}))
    assert isinstance(files, dict)
    assert files["leader-epoch-checkpoint"] == b"0\n0\n"


@pytest.mark.parametrize(
    ("lines", "log_start_offset"),
    [
        (["5 0", "3 10"], 0),
        (["3 10", "5 0"], 0),
        (["5 10", "7 0"], 0),
        (["1 0", "3 10", "2 5"], 0),
        (["2 10", "1 12"], 0),
        (["2 10", "1 12"], 4),
        (["01  0"], 0),
        (["01  1"], 0),
    ],
)
def test_a_checkpoint_of_epochs_is_written_when_and_as_a_broker_does(
    judge: Judge, scratch: Path, lines: list[str], log_start_offset: int
) -> None:
    text = "\n".join(["0", str(len(lines)), *lines, ""])
    log = batch(0, 10, leader_epoch=0) + batch(10, 10, leader_epoch=0)
    files = assert_same(judge, scratch, StatePartition({0: log}, log_start_offset, epochs=text))
    assert isinstance(files, dict)


@pytest.mark.parametrize("interval", [0, len(batch(0, 10)), 4096])
@pytest.mark.parametrize(
    "base_offsets",
    [(0, 10, 40, 20), (0, 10, 40, 20, 30), (0, 40, 10), (0, 40, 10, 50), (0, 40, 10, 35)],
)
@pytest.mark.parametrize("first", [0, 100])
def test_a_log_whose_offsets_go_back_ends_where_a_broker_finds_its_end(
    judge: Judge, scratch: Path, interval: int, base_offsets: tuple[int, ...], first: int
) -> None:
    """After the last index entry recovery accepts any offset, and then may not find the end."""
    log = b"".join(
        batch(100 + start, 10, producer_id=start, producer_epoch=0, base_sequence=0, leader_epoch=1)
        for start in base_offsets
    )
    logs = {first: log}
    if first:
        logs[0] = batch(0, 100, producer_id=3, producer_epoch=0, base_sequence=0, leader_epoch=0)
    assert_same(judge, scratch, StatePartition(logs), index_interval_bytes=interval)


MESSAGES = b"".join(message(offset, magic=1) for offset in range(20, 25))
RECORDS = batch(10, 10, producer_id=7, producer_epoch=0, base_sequence=0)


@pytest.mark.parametrize(
    "logs",
    [
        {0: MESSAGES},
        {10: RECORDS + MESSAGES},
        {10: RECORDS, 20: MESSAGES},
        {10: RECORDS + MESSAGES, 25: batch(25)},
        {10: RECORDS + MESSAGES, 25: message(25, magic=0)},
        {10: RECORDS + MESSAGES, 25: b""},
    ],
)
@pytest.mark.parametrize("log_start_offset", [0, 15, 20, 22])
@pytest.mark.parametrize("now_ms", [0, 10**15])
def test_messages_after_record_batches_leave_a_snapshot_after_the_last_record_batch(
    judge: Judge, scratch: Path, logs: dict[int, bytes], log_start_offset: int, now_ms: int
) -> None:
    partition = StatePartition(logs, log_start_offset)
    files = assert_same(judge, scratch, partition, now_ms=now_ms, expiration_ms=1000)
    assert isinstance(files, dict)
