"""The small batches that a growing log takes a second, index and producers included.

Batches of one record, about 150 bytes, are made beforehand; the log gets them some thousand at a
time, each as an append of its own, as a leader does. Making them is measured too.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from kafka_index.core.kernels.warm_up import warm_up
from kafka_index.core.log.append.incoming_batches import AppendOrigin
from kafka_index.core.log.append.partition_log_writer import PartitionLogWriter
from kafka_index.core.log.append.settings import LogSettings
from kafka_index.core.records.record_batch import (
    BatchFields,
    Record,
    write_end_transaction_marker,
    write_record_batch,
)

_GOAL = 200_000
_BATCHES = 400_000
_BATCHES_A_CALL = 5_000
_ROUNDS = 3
_NOW_MS = 1_700_000_000_000
_VALUE = b"v" * 80
_SETTINGS = LogSettings(segment_bytes=16 * 1024 * 1024)
_TRANSACTION_BATCHES = 50

Calls = list[tuple[bytes, AppendOrigin]]


def run(scratch: Path) -> bool:
    """Measure, print, and return whether all kinds of batches reach the goal."""
    warm_up()
    print(
        f"Appends of batches of one record, {_BATCHES_A_CALL:,} a call, to segments of 16 MiB "
        f"(goal {_GOAL:,} a second; the best of {_ROUNDS})"
    )
    print("batches                          bytes    made/s   appended/s")
    reached = True
    for name, producers, transactional in (
        ("without producers", 0, False),
        ("of 10 idempotent producers", 10, False),
        ("of 10,000 idempotent producers", 10_000, False),
        ("of transactions of 50 batches", 10, True),
    ):
        started = time.perf_counter()
        batches = [_batch(n, producers, is_transactional=transactional) for n in range(_BATCHES)]
        made = _BATCHES / (time.perf_counter() - started)
        calls = list(_calls(batches, producers if transactional else 0))
        appended = max(_appended(calls, scratch) for _ in range(_ROUNDS))
        reached = reached and appended >= _GOAL
        print(f"{name:30} {len(batches[0]):7} {made:9,.0f} {appended:12,.0f}")
    single = _appended_one_by_one(scratch)
    print(f"one batch a call, of 10 producers: {single:,.0f} a second")
    return reached


def _batch(number: int, producers: int, *, is_transactional: bool) -> bytes:
    fields = BatchFields()
    if producers:
        fields = BatchFields(
            producer_id=number % producers,
            producer_epoch=0,
            base_sequence=number // producers,
            is_transactional=is_transactional,
        )
    return write_record_batch([Record(_NOW_MS + number % 1000, None, _VALUE)], 0, fields)


def _calls(
    batches: list[bytes], producers_with_transactions: int
) -> Iterator[tuple[bytes, AppendOrigin]]:
    step = _BATCHES_A_CALL
    if producers_with_transactions:
        step = _TRANSACTION_BATCHES * producers_with_transactions
    for start in range(0, len(batches), step):
        yield b"".join(batches[start : start + step]), AppendOrigin.CLIENT
        if producers_with_transactions:
            markers = (
                write_end_transaction_marker(
                    0, _NOW_MS, one, 0, is_commit=one % 2 == 0, coordinator_epoch=0
                )
                for one in range(producers_with_transactions)
            )
            yield b"".join(markers), AppendOrigin.COORDINATOR


def _appended(calls: Calls, scratch: Path) -> float:
    """Batches a second, markers not counted."""
    with TemporaryDirectory(dir=scratch) as folder:
        with PartitionLogWriter(Path(folder) / "topic-0", _SETTINGS, clock=lambda: _NOW_MS) as log:
            started = time.perf_counter()
            for data, origin in calls:
                log.append_as_leader(data, 0, origin=origin)
            seconds = time.perf_counter() - started
        shutil.rmtree(Path(folder) / "topic-0")
    return _BATCHES / seconds


def _appended_one_by_one(scratch: Path) -> float:
    batches = [_batch(n, 10, is_transactional=False) for n in range(20_000)]
    with (
        TemporaryDirectory(dir=scratch) as folder,
        PartitionLogWriter(Path(folder) / "topic-0", _SETTINGS, clock=lambda: _NOW_MS) as log,
    ):
        started = time.perf_counter()
        for batch in batches:
            log.append_as_leader(batch, 0)
        return len(batches) / (time.perf_counter() - started)
