"""Batches to append, logs to append them to, and what is in a directory afterwards."""

from __future__ import annotations

import random
from pathlib import Path

from kafka_index.core.log.append.partition_log_writer import PartitionLogWriter
from kafka_index.core.log.append.settings import LogSettings
from kafka_index.core.records.record_batch import (
    BatchFields,
    Record,
    write_end_transaction_marker,
    write_record_batch,
)

NOW_MS = 1_700_000_000_000
SMALL = LogSettings(index_interval_bytes=200, segment_index_bytes=4096, segment_bytes=2000)


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def data_batch(
    base_offset: int = 0,
    *,
    records: int = 1,
    value: bytes = b"v" * 100,
    timestamp_ms: int = NOW_MS,
    producer: int = -1,
    sequence: int = 0,
    epoch: int = 0,
    transactional: bool = False,
    leader_epoch: int = 0,
    compression: str = "none",
) -> bytes:
    """A batch; with a producer it has an epoch and a sequence too."""
    known = producer >= 0
    fields = BatchFields(
        leader_epoch=leader_epoch,
        compression=compression,
        producer_id=producer,
        producer_epoch=epoch if known else -1,
        base_sequence=sequence if known else -1,
        is_transactional=transactional,
    )
    return write_record_batch(
        [Record(timestamp_ms + n, b"k", value) for n in range(records)], base_offset, fields
    )


def abort(producer: int, *, epoch: int = 0, coordinator_epoch: int = 0) -> bytes:
    """An abort marker, as a coordinator sends it."""
    return write_end_transaction_marker(
        0, NOW_MS, producer, epoch, is_commit=False, coordinator_epoch=coordinator_epoch
    )


def open_log(
    folder: Path,
    settings: LogSettings = SMALL,
    *,
    clock: Clock | None = None,
    was_clean: bool = True,
    random_source: random.Random | None = None,
) -> PartitionLogWriter:
    """The log of a partition in a folder."""
    return PartitionLogWriter(
        folder / "topic-0",
        settings,
        clock=clock or Clock(),
        was_clean=was_clean,
        random_source=random_source,
    )


def contents(folder: Path) -> dict[str, bytes]:
    """All files of the partition, by name."""
    return {path.name: path.read_bytes() for path in sorted((folder / "topic-0").iterdir())}


def sizes(folder: Path, suffix: str) -> list[int]:
    """Sizes of the files of the partition with a suffix, in order."""
    return [len(data) for name, data in contents(folder).items() if name.endswith(suffix)]
