"""Logs that grow here are like a broker's: the same files, rolls, reads and refusals.

The index files that a broker writes as it goes are those of a build, rolled for whatever reason.
Both versions index batch by batch. A log that was opened again, or truncated, is left out of that:
the broker then forgets how many bytes follow the last entry.
"""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.commands.build.log_build import build_segment_files
from kafka_index.core.format.config import IndexConfig
from kafka_index.core.log.append.incoming_batches import Isolation
from kafka_index.core.records.record_batch import (
    BatchFields,
    Record,
    write_end_transaction_marker,
    write_record_batch,
)
from tests.support import segments as built
from tests.support.golden_segments import PARTITION
from tests.support.growing import data_batch

from .both_logs import START_MS, ComparedLogs, LiveLog
from .campaign import random_cases
from .kafka_reference import KafkaRefusal
from .random_growth import FEW_ENTRIES_BYTES, ComparedGrowth, Growth, random_settings
from .reference_log import load

if TYPE_CHECKING:
    from pathlib import Path

    from .kafka_reference import KafkaReference

BATCH_BYTES = len(data_batch())
SMALL: dict[str, object] = {
    "internal.segment.bytes": 2000,
    "index.interval.bytes": 100,
    "segment.index.bytes": 4096,
}


def marker(producer_id: int, epoch: int = 0, coordinator_epoch: int = 0) -> bytes:
    return write_end_transaction_marker(
        0, START_MS, producer_id, epoch, is_commit=False, coordinator_epoch=coordinator_epoch
    )


@random_cases(0.1)
@given(seed=st.integers(0, 2**63))
def test_random_appends_leave_kafkas_files_at_every_step(
    reference: KafkaReference, scratch: Path, seed: int
) -> None:
    rng = random.Random(seed)
    settings = random_settings(rng)
    logs = ComparedLogs(reference, scratch, settings)
    try:
        growth = ComparedGrowth(rng, logs, settings)
        for _ in range(rng.randrange(1, 60)):
            growth.step()
            logs.assert_same()
        logs.close()
    finally:
        logs.abandon()


@random_cases(0.03)
@given(seed=st.integers(0, 2**63))
def test_killed_log_is_recovered_as_by_kafka(
    reference: KafkaReference, scratch: Path, seed: int
) -> None:
    rng = random.Random(seed)
    settings = random_settings(rng)
    logs = ComparedLogs(reference, scratch, settings)
    try:
        growth = ComparedGrowth(rng, logs, settings)
        for _ in range(rng.randrange(1, 40)):
            growth.step()
        if not logs.kill_kafkas_and_recover():
            return
        logs.assert_same()
        for _ in range(rng.randrange(5)):
            growth.step()
            logs.assert_same()
        logs.close()
    finally:
        logs.abandon()


@pytest.mark.parametrize(
    "changed",
    [
        {"internal.segment.bytes": 3 * BATCH_BYTES},
        {"internal.segment.bytes": 3 * BATCH_BYTES - 1},
        {"segment.ms": 10},
        {"cleanup.policy": "compact", "max.compaction.lag.ms": 10},
        {"segment.index.bytes": 16, "index.interval.bytes": 0},
        {"segment.index.bytes": 12, "index.interval.bytes": 0},
        {"segment.index.bytes": 40, "index.interval.bytes": 0},
        {"preallocate": "true"},
        {"message.timestamp.type": "LogAppendTime", "segment.ms": 10},
    ],
    ids=str,
)
def test_segments_are_rolled_as_by_kafka(
    reference: KafkaReference, scratch: Path, changed: dict[str, object]
) -> None:
    logs = ComparedLogs(reference, scratch, SMALL | changed)
    for step in range(30):
        logs.set_clock(START_MS + 3 * step)
        time = START_MS + 3 * step - (step % 4)
        logs.append_as_leader([data_batch(timestamp_ms=time)], 0)
        logs.assert_same()
    logs.close()


def test_append_that_ends_one_transaction_and_starts_another_equals_kafkas(
    reference: KafkaReference, scratch: Path
) -> None:
    logs = ComparedLogs(reference, scratch, SMALL)
    logs.append_as_follower(data_batch(0, producer=37, transactional=True), 0)
    together = [
        data_batch(1, producer=5, transactional=True),
        write_end_transaction_marker(
            2, START_MS, 37, 0, is_commit=False, coordinator_epoch=0, leader_epoch=0
        ),
        data_batch(3, producer=21, transactional=True),
        write_end_transaction_marker(
            4, START_MS, 5, 0, is_commit=False, coordinator_epoch=0, leader_epoch=0
        ),
    ]
    logs.append_as_follower(b"".join(together), 0)
    logs.assert_same()
    logs.assert_same_read(0, 10**6, Isolation.TXN_COMMITTED, min_one_message=True)
    logs.close()


def test_new_producers_of_one_append_are_in_kafkas_order(
    reference: KafkaReference, scratch: Path
) -> None:
    logs = ComparedLogs(reference, scratch, SMALL | {"internal.segment.bytes": 10**6})
    # More than a table of 16 takes, and several to a bucket of one of 32.
    producers = [32 * n + n % 5 for n in range(25)]
    logs.append_as_follower(
        b"".join(data_batch(n, producer=one) for n, one in enumerate(producers)), 0
    )
    logs.roll()
    logs.assert_same()
    # The table stays as large as it was when its producers are gone.
    logs.truncate_to(4)
    logs.append_as_leader([data_batch(producer=one, epoch=1) for one in (16, 48, 80)], 0)
    logs.roll()
    logs.assert_same()
    logs.close()


def test_duplicate_batches_are_not_appended_as_by_kafka(
    reference: KafkaReference, scratch: Path
) -> None:
    logs = ComparedLogs(reference, scratch, SMALL)
    batches = [data_batch(producer=7, sequence=n) for n in range(8)]
    logs.append_as_leader(batches[:6], 0)
    logs.append_as_leader([*batches[3:], batches[7]], 0)
    assert logs.ours.log_end_offset == 8
    logs.assert_same()
    logs.close()


def test_batches_without_sequences_or_at_the_sequence_wraparound_are_appended_as_by_kafka(
    reference: KafkaReference, scratch: Path
) -> None:
    logs = ComparedLogs(reference, scratch, SMALL)
    last = 2**31 - 1
    batches = [
        built.batch(0, 3, producer_id=7, producer_epoch=0, base_sequence=-1),
        built.batch(3, 3, producer_id=8, producer_epoch=0, base_sequence=last - 1),
        built.batch(6, 2, producer_id=9, producer_epoch=0, base_sequence=last - 1),
    ]
    logs.append_as_follower(b"".join(batches), 0)
    logs.append_as_leader([data_batch(producer=8, sequence=1), data_batch(producer=9)], 0)
    logs.roll()
    logs.assert_same()
    logs.close()


def test_old_message_formats_are_appended_unchanged(
    reference: KafkaReference, scratch: Path
) -> None:
    logs = ComparedLogs(reference, scratch, SMALL)
    logs.append_as_follower(data_batch(0, leader_epoch=3), 3)
    logs.append_as_follower(
        b"".join(built.message(n, n % 2, START_MS + n, bytes(90)) for n in range(1, 9)), 3
    )
    logs.assert_same()
    logs.append_as_follower(data_batch(9, leader_epoch=3), 3)
    logs.assert_same_read(4, 300, Isolation.LOG_END, min_one_message=False)
    logs.close()


REFUSED_AS_LEADER = {
    "base offset": (data_batch(3), "CLIENT"),
    "checksum": (data_batch()[:-1] + b"x", "CLIENT"),
    "size": (data_batch(value=bytes(1600)), "CLIENT"),
    "count": (built.batch(0, 2, timestamps=[START_MS] * 2, last_offset_delta=5), "CLIENT"),
    "control": (marker(7), "CLIENT"),
    "future": (data_batch(timestamp_ms=START_MS + 3_600_001), "CLIENT"),
    "append time": (
        write_record_batch([Record(-1, b"k")], 0, BatchFields(log_append_time_ms=-1)),
        "CLIENT",
    ),
    "no key": (write_record_batch([Record(START_MS)]), "CLIENT"),
    "fenced": (data_batch(producer=7, epoch=4, sequence=1, transactional=True), "CLIENT"),
    "gap": (data_batch(producer=7, epoch=5, sequence=5, transactional=True), "CLIENT"),
    "new epoch": (data_batch(producer=7, epoch=6, sequence=1, transactional=True), "CLIENT"),
    "outside of the transaction": (data_batch(producer=7, epoch=5, sequence=1), "CLIENT"),
    "coordinator": (marker(8, coordinator_epoch=1), "COORDINATOR"),
    "fenced marker": (marker(7, epoch=4), "COORDINATOR"),
}
REFUSED_AS_FOLLOWER = {
    "backward": data_batch(1),
    "backward inside": data_batch(9, records=3) + data_batch(10),
    "no epoch": data_batch(3, leader_epoch=-1),
    "too much": b"".join(data_batch(n) for n in range(3, 20)),
    "too far apart": data_batch(3) + data_batch(2**31 + 3),
    "checksum": data_batch(3)[:-1] + b"x",
    "outside of the transaction": data_batch(3, producer=7, epoch=5, sequence=1),
}


@pytest.fixture
def started(reference: KafkaReference, scratch: Path) -> ComparedLogs:
    """A plain batch, an open transaction, and a coordinator's marker."""
    strict = {"max.message.bytes": 1500, "cleanup.policy": "compact"}
    logs = ComparedLogs(reference, scratch, SMALL | strict)
    logs.append_as_leader([data_batch()], 0)
    logs.append_as_leader([data_batch(producer=7, epoch=5, transactional=True)], 0)
    logs.append_as_leader([marker(8, coordinator_epoch=2)], 0, "COORDINATOR")
    return logs


@pytest.mark.parametrize("case", REFUSED_AS_LEADER)
def test_append_as_leader_is_rejected_as_by_kafka(started: ComparedLogs, case: str) -> None:
    try:
        started.assert_both_reject_as_leader(*REFUSED_AS_LEADER[case])
    finally:
        started.abandon()


@pytest.mark.parametrize("case", REFUSED_AS_FOLLOWER)
def test_append_as_follower_is_rejected_as_by_kafka(started: ComparedLogs, case: str) -> None:
    try:
        started.assert_both_reject_as_follower(REFUSED_AS_FOLLOWER[case])
    finally:
        started.abandon()


# ------------------------------------------------------------------------ live index files, built


def built_index(partition: Path, log: Path, settings: dict[str, object], suffix: str) -> bytes:
    """Build the index files of a segment anew, and return one of them."""
    target = partition.parent / "built"
    config = IndexConfig(
        index_interval_bytes=int(str(settings["index.interval.bytes"])),
        index_size_max_bytes=int(str(settings["segment.index.bytes"])),
    )
    assert build_segment_files(log, target, config=config).status == "built"
    return (target / f"{log.stem}{suffix}").read_bytes()


def live_partition(scratch: Path) -> Path:
    """The place of a new partition, beside a folder for what is built of it."""
    shutil.rmtree(scratch / "live", ignore_errors=True)
    (scratch / "live" / "built").mkdir(parents=True)
    return scratch / "live" / PARTITION


def assert_built_as_written(
    reference: KafkaReference,
    scratch: Path,
    rng: random.Random,
    settings: dict[str, object],
    steps: int,
) -> int:
    """Compare the index files of a log after a clean shutdown; return how many segments it has."""
    partition = live_partition(scratch)
    with load(reference, partition, settings=settings) as log:
        growth = Growth(rng, LiveLog(log, scratch), settings)
        for _ in range(steps):
            growth.step()
        log.close()
    logs = sorted(partition.glob("*.log"))
    for path in logs:
        for suffix in (".index", ".timeindex"):
            built = built_index(partition, path, settings, suffix)
            assert built == path.with_suffix(suffix).read_bytes(), path.name
    return len(logs)


@pytest.mark.parametrize("version", ["reference", "old_reference"])
@random_cases(0.02)
@given(seed=st.integers(0, 2**63))
def test_random_appends_leave_the_index_files_of_a_build(
    request: pytest.FixtureRequest, scratch: Path, version: str, seed: int
) -> None:
    reference = request.getfixturevalue(version)
    rng = random.Random(seed)
    settings = random_settings(rng, reference.version)
    assert_built_as_written(reference, scratch, rng, settings, rng.randrange(1, 60))


@pytest.mark.parametrize(
    "changed",
    [
        {"internal.segment.bytes": 10_000},
        {"segment.ms": 1000},
        {"segment.index.bytes": FEW_ENTRIES_BYTES, "index.interval.bytes": 0},
    ],
    ids=str,
)
def test_index_files_of_rolled_segments_equal_built_ones(
    reference: KafkaReference, scratch: Path, changed: dict[str, object]
) -> None:
    settings = {"index.interval.bytes": 4096, "segment.index.bytes": 10_000_000, **changed}
    assert assert_built_as_written(reference, scratch, random.Random(1), settings, 60) > 4


def test_several_batches_of_one_append_can_be_too_many_for_a_small_index(
    reference: KafkaReference, scratch: Path
) -> None:
    settings = {"segment.index.bytes": FEW_ENTRIES_BYTES, "index.interval.bytes": 0}
    batches = b"".join(data_batch(n, timestamp_ms=START_MS + n) for n in range(6))
    with (
        load(reference, live_partition(scratch), settings=settings) as log,
        pytest.raises(KafkaRefusal, match="full time index"),
    ):
        LiveLog(log, scratch).append_as_follower(batches, 0)


def test_restart_in_the_middle_of_a_segment_shifts_its_later_entries(
    reference: KafkaReference, scratch: Path
) -> None:
    partition = live_partition(scratch)
    settings: dict[str, object] = {"index.interval.bytes": 300, "segment.index.bytes": 10_000_000}
    for first in (0, 9):
        with load(reference, partition, settings=settings) as log:
            batches = (data_batch(first + n, value=bytes(50)) for n in range(9))
            LiveLog(log, scratch).append_as_follower(b"".join(batches), 0)
            log.close()
    log_path = partition / f"{0:020d}.log"
    live = log_path.with_suffix(".index").read_bytes()
    built = built_index(partition, log_path, settings, ".index")
    assert live != built
    assert live[:8] == built[:8]
