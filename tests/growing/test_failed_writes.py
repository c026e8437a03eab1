"""A full disk: an append that fails in the middle is rolled back."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kafka_index.errors import PublishError
from kafka_index.growing import LogSettings
from tests.support.growing import contents, data_batch, open_log

BATCH_BYTES = len(data_batch())


@contextmanager
def file_size_limit(max_bytes: int) -> Iterator[None]:
    """Files of this process grow no larger than a size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_append_that_does_not_fit_is_rolled_back(tmp_path: Path) -> None:
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


def test_roll_that_fails_can_be_tried_again(tmp_path: Path) -> None:
    settings = LogSettings(segment_bytes=BATCH_BYTES, segment_index_bytes=4800)
    with open_log(tmp_path, settings) as log:
        log.append_as_leader(data_batch(), 0)
        with file_size_limit(1000), pytest.raises(PublishError, match="make room for the index"):
            log.append_as_leader(data_batch(), 0)
        assert log.log_end_offset == 1
        assert log.append_as_leader(data_batch(), 0).first_offset == 1
    with open_log(tmp_path, settings) as log:
        assert log.log_end_offset == 2
