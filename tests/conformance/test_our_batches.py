"""Batches written here are Kafka's: the same bytes, or packed batches that Kafka unpacks alike."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.core.records.record_batch import (
    BatchFields,
    Record,
    write_empty_batch,
    write_end_transaction_marker,
    write_leader_change,
    write_record_batch,
)

from .campaign import random_cases
from .reference_files import (
    EmptyBatch,
    EndMarker,
    LeaderChange,
    WrittenBatch,
    WrittenRecord,
    read_batches,
    write_batches,
)

if TYPE_CHECKING:
    from pathlib import Path

    from .kafka_reference import KafkaReference
    from .reference_files import Written

_TIMES = (-1, 0, 5, 1_700_000_000_000, 1_700_000_009_999, 2**63 - 1)
_BYTES = (None, b"", b"k", b"value" * 50, bytes(range(256)) * 40)
#: The header's fields before its checksum and after it, but for the length.
_HEADER = slice(12, 17), slice(21, 61)


def kafkas(reference: KafkaReference, scratch: Path, batch: Written) -> bytes:
    path = scratch / "batch"
    write_batches(reference, path, [batch])
    return path.read_bytes()


def random_batch(rng: random.Random, codec: str) -> tuple[WrittenBatch, bytes]:
    """A batch, for Kafka to write, and as we write it."""
    base, step = rng.choice((0, 10, 2**40)), rng.choice((1, 1, 3, 100_000))
    producer_id = rng.choice((-1, 7, 2**40))
    known = producer_id >= 0
    count = rng.choice((1, 1, 2, 5, 200))
    records = tuple(
        WrittenRecord(
            base + n * step,
            rng.choice(_TIMES),
            rng.choice(_BYTES),
            rng.choice(_BYTES),
            tuple(("h\u00e9" * (n % 2), rng.choice(_BYTES)) for n in range(rng.choice((0, 0, 3)))),
        )
        for n in range(count)
    )
    horizon = rng.choice((None, None, 12_345_678))
    append_ms = rng.choice((None, None, 17))
    last = rng.choice((None, records[-1].offset + 5))
    transactional = known and rng.random() < 0.5
    batch = WrittenBatch(
        records,
        codec=codec,
        base_offset=base,
        last_offset=last,
        leader_epoch=rng.choice((-1, 0, 5)),
        log_append_time_ms=append_ms,
        delete_horizon_ms=-1 if horizon is None else horizon,
        producer_id=producer_id,
        producer_epoch=3 if known else -1,
        base_sequence=9 if known else -1,
        transactional=transactional,
    )
    fields = BatchFields(
        leader_epoch=batch.leader_epoch,
        compression=codec,
        log_append_time_ms=append_ms,
        producer_id=producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        is_transactional=transactional,
        delete_horizon_ms=horizon,
        last_offset_delta=None if last is None else last - base,
    )
    ours = write_record_batch(
        [
            Record(
                record.timestamp_ms, record.key, record.value, record.headers, record.offset - base
            )
            for record in records
        ],
        base,
        fields,
    )
    return batch, ours


@random_cases(0.1)
@given(seed=st.integers(0, 2**63))
def test_uncompressed_batch_equals_kafkas_bytes(
    reference: KafkaReference, scratch: Path, seed: int
) -> None:
    batch, ours = random_batch(random.Random(seed), "none")
    assert ours == kafkas(reference, scratch, batch)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
@random_cases(0.02)
@given(seed=st.integers(0, 2**63))
def test_compressed_batch_has_kafkas_header_and_records(
    reference: KafkaReference, scratch: Path, codec: str, seed: int
) -> None:
    batch, actual = random_batch(random.Random(seed), codec)
    theirs = kafkas(reference, scratch, batch)
    assert actual[:8] == theirs[:8]
    for part in _HEADER:
        assert actual[part] == theirs[part]
    assert int.from_bytes(actual[8:12], "big") == len(actual) - 12
    log = scratch / "batch"
    log.write_bytes(actual)
    found, expected = read_batches(reference, log)[0], list(batch.records)
    if batch.log_append_time_ms is not None:
        expected = [one._replace(timestamp_ms=batch.log_append_time_ms) for one in expected]
    records = [
        WrittenRecord(record.offset, record.timestamp_ms, record.key, record.value, record.headers)
        for record in found.records
    ]
    assert (records, found.fault) == (expected, None)


@pytest.mark.parametrize("commit", [False, True])
def test_transaction_marker_equals_kafkas_bytes(
    reference: KafkaReference, scratch: Path, *, commit: bool
) -> None:
    expected = kafkas(reference, scratch, EndMarker(5, 9, 2, commit, 4, 77, 3))
    actual = write_end_transaction_marker(
        5, 77, 9, 2, is_commit=commit, coordinator_epoch=4, leader_epoch=3
    )
    assert actual == expected


def test_leader_change_has_kafkas_bytes(reference: KafkaReference, scratch: Path) -> None:
    theirs = kafkas(reference, scratch, LeaderChange(5, 3, 77))
    assert write_leader_change(5, 77, 3, 0) == theirs


def test_empty_batch_has_kafkas_bytes(reference: KafkaReference, scratch: Path) -> None:
    theirs = kafkas(reference, scratch, EmptyBatch(5, 9, 1000, 4, 1, 7, 2, transactional=True))
    fields = BatchFields(
        leader_epoch=2, producer_id=4, producer_epoch=1, base_sequence=7, is_transactional=True
    )
    assert write_empty_batch(5, 9, 1000, fields) == theirs
