"""Batches that a broker would refuse are refused with their position, and nothing is written."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kafka_index.core.errors import (
    ConfigError,
    CorruptLogError,
    InvalidEpochError,
    KafkaIndexError,
    PublishError,
)
from kafka_index.core.log.append.incoming_batches import AppendOrigin
from kafka_index.core.log.append.settings import LogSettings
from kafka_index.core.records.record_batch import BatchFields, Record, write_record_batch
from tests.support import segments as built
from tests.support.growing import NOW_MS, abort, contents, data_batch, open_log

BATCH_BYTES = len(data_batch())
CLIENT, COORDINATOR = AppendOrigin.CLIENT, AppendOrigin.COORDINATOR
STRICT = LogSettings(
    segment_index_bytes=4096, max_message_bytes=500, segment_bytes=2000, cleanup_policy="compact"
)

REFUSED_BY_LEADER = {
    "base offset": (data_batch(3), CLIENT, "base offset .*expected 0, found 3"),
    "checksum": (data_batch()[:-1] + b"x", CLIENT, "at byte 0: .*bad_crc .*found 0x"),
    "torn": (data_batch() + data_batch()[:-9], CLIENT, f"at byte {BATCH_BYTES}: .*torn_batch"),
    "nothing": (b"", CLIENT, "no batch"),
    "magic": (built.message(0, 1, NOW_MS, b"v"), CLIENT, "expected 2, found 1"),
    "size": (data_batch(value=bytes(600)), CLIENT, "max.message.bytes .*expected 500"),
    "count": (
        built.batch(0, 2, timestamps=[NOW_MS, NOW_MS], last_offset_delta=5),
        CLIENT,
        "record count of the batch is not its number of offsets .*found 2",
    ),
    "no records": (built.batch(0, 0), CLIENT, "the number of offsets, above 0, found 0"),
    "control": (abort(7), CLIENT, "must not write control records"),
    "sequence": (
        built.batch(0, 1, timestamps=[NOW_MS], producer_id=9, producer_epoch=0),
        CLIENT,
        "base sequence .*found -1",
    ),
    "future": (
        data_batch(timestamp_ms=NOW_MS + 3_600_001),
        CLIENT,
        f"timestamp is out of range .*found {NOW_MS + 3_600_001}",
    ),
    "append time": (
        write_record_batch([Record(-1, b"k")], 0, BatchFields(log_append_time_ms=-1)),
        CLIENT,
        "sets the timestamp type LogAppendTime",
    ),
    "key": (
        data_batch() + write_record_batch([Record(NOW_MS)], 0, BatchFields(compression="lz4")),
        CLIENT,
        f"at byte {BATCH_BYTES}: .*has no key",
    ),
    "broken records": (
        built.batch(0, 2, timestamps=[NOW_MS, NOW_MS], payload=b"\x10" * 9),
        CLIENT,
        "cannot be read",
    ),
    "compressed again": (
        write_record_batch(
            [Record(NOW_MS, b"k"), Record(NOW_MS, b"k", offset_delta=2)],
            0,
            BatchFields(compression="zstd"),
        ),
        COORDINATOR,
        "compress the records again",
    ),
    "fenced": (data_batch(producer=7, epoch=4, sequence=1), CLIENT, "fenced .*expected 5 or more"),
    "fenced in bulk": (
        data_batch() + data_batch(producer=7, epoch=4, sequence=1),
        CLIENT,
        f"at byte {BATCH_BYTES}: .*producer 7 at offset 4: .*found 4",
    ),
    "gap": (
        data_batch(producer=7, epoch=5, sequence=5, transactional=True),
        CLIENT,
        "out of order .*expected 1, found 5",
    ),
    "new epoch": (
        data_batch(producer=7, epoch=6, sequence=1, transactional=True),
        CLIENT,
        "start at sequence 0 .*found 1",
    ),
    "outside of the transaction": (
        data_batch(producer=7, epoch=5, sequence=1),
        CLIENT,
        "the producer has an open transaction.*after offset 1",
    ),
    "coordinator": (
        abort(8, coordinator_epoch=1),
        COORDINATOR,
        "coordinator epoch .*expected 2 or more, found 1",
    ),
    "marker epoch": (abort(7, epoch=4), COORDINATOR, "fenced .*found 4"),
    "no marker": (
        built.control_batch(0, 7, 5, built.control_key(2), b"\0\0", NOW_MS),
        COORDINATOR,
        "not a transaction marker",
    ),
}
REFUSED_BY_FOLLOWER = {
    "backward": (data_batch(1), 0, "below the log end offset .*expected 3 or more, found 1"),
    "backward inside": (
        data_batch(9, records=3) + data_batch(10),
        0,
        "at byte .*offsets of the batches decrease .*above 11, found 10",
    ),
    "no epoch": (data_batch(3, leader_epoch=-1), 0, "no leader epoch .*found -1"),
    "too much": (
        b"".join(data_batch(n) for n in range(3, 20)),
        0,
        "larger than segment.bytes .*expected 2000",
    ),
    "too far apart": (data_batch(3) + data_batch(2**31 + 3), 0, "offset_overflow"),
    "checksum": (data_batch(3)[:-1] + b"x", 0, "bad_crc"),
    "short": (b"\0" * 5, 0, "shorter than the smallest batch"),
    "outside of the transaction": (
        data_batch(3, producer=7, epoch=5, sequence=1),
        0,
        "the producer has an open transaction",
    ),
}


def started(folder: Path) -> None:
    """Write a log with a plain batch, an open transaction, and a transaction that was ended."""
    with open_log(folder, STRICT) as log:
        log.append_as_leader(data_batch(), 0)
        log.append_as_leader(data_batch(producer=7, epoch=5, transactional=True), 0)
        log.append_as_leader(abort(8, coordinator_epoch=2), 0, origin=COORDINATOR)


@pytest.mark.parametrize("case", REFUSED_BY_LEADER)
def test_invalid_append_as_leader_is_rejected(tmp_path: Path, case: str) -> None:
    data, origin, message = REFUSED_BY_LEADER[case]
    started(tmp_path)
    with open_log(tmp_path, STRICT) as log:
        log.active_segment.growth()  # opens the index files
        before = contents(tmp_path)
        with pytest.raises(KafkaIndexError, match=message):
            log.append_as_leader(data, 1, origin=origin)
        assert contents(tmp_path) == before
        assert log.append_as_leader(data_batch(), 1).first_offset == 3
        # The producers are unchanged.
        log.append_as_leader(data_batch(producer=7, epoch=5, sequence=1, transactional=True), 1)


@pytest.mark.parametrize("case", REFUSED_BY_FOLLOWER)
def test_invalid_append_as_follower_is_rejected(tmp_path: Path, case: str) -> None:
    data, epoch, message = REFUSED_BY_FOLLOWER[case]
    started(tmp_path)
    with open_log(tmp_path, STRICT) as log:
        log.active_segment.growth()
        before = contents(tmp_path)
        with pytest.raises(KafkaIndexError, match=message):
            log.append_as_follower(data, epoch)
        assert contents(tmp_path) == before
        assert log.append_as_follower(data_batch(3), 0).first_offset == 3


def test_follower_accepts_backward_epochs_and_sequences(tmp_path: Path) -> None:
    started(tmp_path)
    with open_log(tmp_path, STRICT) as log:
        log.append_as_follower(
            data_batch(3, producer=7, epoch=4, sequence=9, transactional=True), 0
        )
        assert log.log_end_offset == 4


def test_rejected_append_raises_the_class_of_its_cause(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        with pytest.raises(CorruptLogError):
            log.append_as_leader(data_batch()[:-1] + b"x", 0)
        with pytest.raises(InvalidEpochError):
            log.append_as_follower(data_batch(0, leader_epoch=-1), 0)
        with pytest.raises(InvalidEpochError):
            log.append_as_leader(data_batch(), -1)


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"segment.bytes": "0"}, r"segment\.bytes is out of range .*found 0"),
        ({"segment.index.bytes": "11"}, r"expected 12\.\."),
        ({"segment.ms": "soon"}, "'soon'"),
        ({"preallocate": "maybe"}, "'maybe'"),
        ({"message.timestamp.type": "Never"}, "'Never'"),
        ({"cleanup.policy": "shred"}, "found shred"),
        ({"retention.ms": "5"}, "not a supported topic setting"),
    ],
)
def test_invalid_settings_are_rejected(properties: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LogSettings.of_properties(properties)


def test_settings_are_read_under_kafkas_names() -> None:
    settings = LogSettings.of_properties(
        {"segment.bytes": "1000", "preallocate": "TRUE", "cleanup.policy": "compact,delete"}
    )
    assert (settings.segment_bytes, settings.preallocate) == (1000, True)
    assert settings.is_compacted


@contextmanager
def file_size_limit(max_bytes: int) -> Iterator[None]:
    """Files of this process grow no larger than a size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_append_on_a_full_disk_is_rolled_back(tmp_path: Path) -> None:
    settings = LogSettings(segment_index_bytes=480, index_interval_bytes=0)
    with open_log(tmp_path, settings) as log:
        log.append_as_leader(data_batch(producer=7), 0)
        before = contents(tmp_path)
        several = b"".join(data_batch(producer=7, sequence=n) for n in range(1, 10))
        with (
            file_size_limit(BATCH_BYTES + 1000),
            pytest.raises(PublishError, match="append to the log"),
        ):
            log.append_as_leader(several, 0)
        assert contents(tmp_path) == before
        assert log.append_as_leader(several, 0).first_offset == 1


def test_append_that_fails_after_a_roll_is_rolled_back(tmp_path: Path) -> None:
    settings = LogSettings(
        segment_bytes=2 * BATCH_BYTES, segment_index_bytes=480, index_interval_bytes=0
    )
    large = data_batch(value=bytes(BATCH_BYTES))
    assert BATCH_BYTES < len(large) < 2 * BATCH_BYTES
    with open_log(tmp_path, settings) as log:
        log.append_as_leader(data_batch(producer=7), 0)
        with file_size_limit(len(large) - 1), pytest.raises(PublishError):
            # The first fits, the second needs a new segment and is too large for it.
            log.append_as_leader(data_batch(producer=7, sequence=1) + large, 1)
        assert log.log_end_offset == 1
        assert log.leader_epochs[-1].epoch == 0
        assert log.read(0, 10**6).records == data_batch(0, producer=7)
        log.append_as_leader(data_batch(producer=7, sequence=1), 0)
        log.append_as_leader(large, 0)
    with open_log(tmp_path, settings) as log:
        assert log.log_end_offset == 3


def test_failed_roll_can_be_retried(tmp_path: Path) -> None:
    settings = LogSettings(segment_bytes=BATCH_BYTES, segment_index_bytes=4800)
    with open_log(tmp_path, settings) as log:
        log.append_as_leader(data_batch(), 0)
        with (
            file_size_limit(1000),
            pytest.raises(PublishError, match="allocate space for the index"),
        ):
            log.append_as_leader(data_batch(), 0)
        assert log.log_end_offset == 1
        assert log.append_as_leader(data_batch(), 0).first_offset == 1
    with open_log(tmp_path, settings) as log:
        assert log.log_end_offset == 2
