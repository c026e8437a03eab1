"""Batches that are written: their bytes, and that readers find in them what went in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_index.core.errors import ConfigError, InputError
from kafka_index.core.format.names import COMPRESSION_NAMES
from kafka_index.core.log.append.incoming_batches import IncomingBatches
from kafka_index.core.records.decompression import decompress
from kafka_index.core.records.record_batch import (
    BatchFields,
    Record,
    compress,
    write_empty_batch,
    write_end_transaction_marker,
    write_leader_change,
    write_record_batch,
)
from tests.support import segments as built
from tests.support.record_tables import read_records

CODECS = st.sampled_from(COMPRESSION_NAMES)
VALUES = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=3), VALUES), max_size=3)
RECORDS = st.lists(
    st.builds(Record, st.integers(-1, 2**63 - 1), VALUES, VALUES, HEADERS, st.none()),
    min_size=1,
    max_size=20,
)


def as_array(batch: bytes) -> np.ndarray:
    return np.frombuffer(batch, np.uint8)


@given(records=RECORDS, base_offset=st.integers(0, 2**62), leader_epoch=st.integers(-1, 2**31 - 1))
def test_uncompressed_batch_equals_that_of_the_reference_builder(
    records: list[Record], base_offset: int, leader_epoch: int
) -> None:
    first = records[0].timestamp_ms
    payload = b"".join(
        built.record(
            delta,
            record.timestamp_ms - first,
            record.key,
            record.value,
            [(key.encode(), value) for key, value in record.headers],
        )
        for delta, record in enumerate(records)
    )
    expected = built.batch(
        base_offset,
        len(records),
        timestamps=[record.timestamp_ms for record in records],
        payload=payload,
        leader_epoch=leader_epoch,
    )
    fields = BatchFields(leader_epoch=leader_epoch)
    assert write_record_batch(records, base_offset, fields) == expected


@given(
    records=RECORDS,
    codec=CODECS,
    steps=st.lists(st.integers(1, 2**24), min_size=20, max_size=20),
    append_ms=st.none() | st.integers(0, 2**40),
    horizon_ms=st.none() | st.integers(0, 2**40),
)
def test_reader_finds_the_records_in_every_codec(
    records: list[Record],
    codec: str,
    steps: list[int],
    append_ms: int | None,
    horizon_ms: int | None,
) -> None:
    deltas = np.cumsum(steps)[: len(records)].tolist()
    placed = [
        record._replace(offset_delta=delta) for record, delta in zip(records, deltas, strict=True)
    ]
    fields = BatchFields(
        compression=codec, log_append_time_ms=append_ms, delete_horizon_ms=horizon_ms
    )
    result = read_records(write_record_batch(placed, 100, fields))
    assert result.fault is None
    assert result.offsets == [100 + delta for delta in deltas]
    times = [record.timestamp_ms for record in records]
    assert [time for _, time in result.rows] == (
        times if append_ms is None else [append_ms] * len(records)
    )


@pytest.mark.parametrize("codec", range(1, 5))
@pytest.mark.parametrize("size", [0, 1, 32 * 1024, 64 * 1024, 200_000])
def test_compressed_batch_decompresses_to_its_records(codec: int, size: int) -> None:
    # Half of it random: such blocks of lz4 are stored as they are.
    noise = np.random.default_rng(size).integers(0, 256, size // 2, np.uint8).tobytes()
    data = noise + bytes(size - len(noise))
    assert decompress(codec, compress(codec, data), max_bytes=len(data)) == data


def test_last_offset_may_be_after_the_last_record() -> None:
    batch = write_record_batch([Record(5)], 10, BatchFields(last_offset_delta=7))
    scan = IncomingBatches.scan(as_array(batch), 0)
    assert scan.columns.last_offset.tolist() == [17]
    assert scan.columns.record_count.tolist() == [1]


def test_empty_batch_keeps_offsets_and_producer() -> None:
    fields = BatchFields(producer_id=7, producer_epoch=2, base_sequence=5)
    scan = IncomingBatches.scan(as_array(write_empty_batch(10, 14, 99, fields)), 0)
    assert (scan.columns.last_offset.tolist(), scan.columns.record_count.tolist()) == ([14], [0])
    assert (scan.columns.producer_id.tolist(), scan.columns.base_sequence.tolist()) == ([7], [5])
    assert scan.columns.max_timestamp_ms.tolist() == [99]


@pytest.mark.parametrize(("is_commit", "kind"), [(False, 0), (True, 1)])
def test_transaction_marker_contains_commit_or_abort(*, is_commit: bool, kind: int) -> None:
    marker = write_end_transaction_marker(
        3, 77, 9, 2, is_commit=is_commit, coordinator_epoch=4, leader_epoch=0
    )
    assert marker == built.marker(3, 9, 2, commit=is_commit, timestamp=77, coordinator_epoch=4)
    scan = IncomingBatches.scan(as_array(marker), 0)
    assert scan.columns.control_type.tolist() == [kind]
    assert scan.columns.coordinator_epoch.tolist() == [4]
    assert scan.columns.control_timestamp_ms.tolist() == [77]


def test_leader_change_names_leader_and_voters() -> None:
    batch = write_leader_change(5, 77, 3, 1, voters=[1, 2], granting_voters=[2])
    value = bytes.fromhex("0000 00000001 03 00000001 00 00000002 00 02 00000002 00 00")
    assert batch.endswith(built.varint(len(value)) + value + b"\0")
    assert int.from_bytes(batch[21:23], "big") == built.CONTROL


@pytest.mark.parametrize(
    ("records", "fields", "message"),
    [
        ([], BatchFields(), "needs a record"),
        ([Record(-2)], BatchFields(), r"timestamp of record 1 .*found -2"),
        ([Record(1), Record(1, offset_delta=0)], BatchFields(), r"record 2 does not increase"),
        ([Record(1)], BatchFields(is_transactional=True), "needs a producer ID"),
        ([Record(1)], BatchFields(producer_id=1), "needs a producer epoch"),
        (
            [Record(1)],
            BatchFields(producer_id=1, producer_epoch=0),
            r"needs a base sequence .*found -1",
        ),
        ([Record(1), Record(1)], BatchFields(last_offset_delta=0), r"expected 1\.\..*found 0"),
        ([Record(1)], BatchFields(leader_epoch=2**31), "is out of range"),
    ],
)
def test_batch_that_kafka_would_not_build_is_rejected(
    records: list[Record], fields: BatchFields, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        write_record_batch(records, 0, fields)


def test_unknown_codec_is_rejected() -> None:
    with pytest.raises(ConfigError, match="'brotli'"):
        write_record_batch([Record(1)], 0, BatchFields(compression="brotli"))
