"""Records of Arrow packed into batches: the bytes are those of the builder of single batches."""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_index.core.errors import InputError
from kafka_index.core.format.names import COMPRESSION_NAMES
from kafka_index.core.format.records import RECORD_BATCH_OVERHEAD_BYTES
from kafka_index.core.log.append.incoming_batches import IncomingBatches
from kafka_index.core.records.record_batch import (
    BatchEncoder,
    BatchFields,
    Record,
    RecordRows,
    encode_batch,
    write_record_batch,
)
from kafka_index.core.records.record_table import RECORD_SCHEMA

VALUES = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=3), VALUES), max_size=3)
RECORDS = st.lists(
    st.builds(Record, st.integers(-1, 2**63 - 1), VALUES, VALUES, HEADERS, st.integers(1, 2**31)),
    min_size=1,
    max_size=20,
)


def rows_of(records: list[Record], offsets: list[int]) -> RecordRows:
    pairs = [
        [{"key": name, "value": value} for name, value in record.headers] or None
        for record in records
    ]
    return RecordRows.of_arrays(
        np.array(offsets, np.int64),
        np.array([record.timestamp_ms for record in records], np.int64),
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        pa.array(pairs, RECORD_SCHEMA.field("headers").type),
    )


def encode(
    rows: RecordRows,
    batch_bytes: int = 16384,
    compression: str = "none",
    groups: list[int] | None = None,
    append: list[int] | None = None,
    *,
    keeps_last: bool = False,
    compressors: Executor | None = None,
) -> tuple[bytes, int]:
    encoder = BatchEncoder(compression, batch_bytes, 7, compressors)
    numbers = np.array(groups or [0] * len(rows), np.int64)
    types = np.array(append or [0] * len(rows), np.int64)
    data, records = b"", 0
    for found in encoder.encode(rows, numbers, uses_append_time=types, keeps_last=keeps_last):
        data += found.data.tobytes()
        records += found.records
    return data, records


@given(RECORDS, st.integers(0, 2**40), st.integers(1, 600))
def test_encoded_batches_equal_those_of_the_single_batch_builder(
    records: list[Record], first: int, batch_bytes: int
) -> None:
    gaps = [record.offset_delta or 1 for record in records]
    offsets = [first + sum(gaps[:number]) for number in range(len(records))]
    expected = b""
    held: list[Record] = []
    base = first
    for record, offset in zip(records, offsets, strict=True):
        delta = offset - base
        joined = [*held, record._replace(offset_delta=delta)]
        fits = delta < 2**31
        whole = write_record_batch(joined, base, BatchFields(7)) if fits else b""
        if held and (not fits or len(whole) > batch_bytes):
            expected += write_record_batch(held, base, BatchFields(7))
            held, base = [record._replace(offset_delta=0)], offset
        else:
            held = joined
    expected += write_record_batch(held, base, BatchFields(7))

    assert encode(rows_of(records, offsets), batch_bytes)[0] == expected


@given(RECORDS, st.sampled_from(COMPRESSION_NAMES))
@settings(max_examples=50)
def test_compressed_batches_equal_those_of_the_single_batch_builder(
    records: list[Record], compression: str
) -> None:
    plain = [record._replace(offset_delta=None) for record in records]
    fields = BatchFields(leader_epoch=7, compression=compression)

    found, _ = encode(rows_of(plain, list(range(len(plain)))), 1 << 20, compression)

    assert found == write_record_batch(plain, 0, fields)


@pytest.mark.parametrize("compression", ["gzip", "lz4", "snappy", "zstd"])
def test_batches_compressed_by_threads_equal_those_of_one_thread(compression: str) -> None:
    rows = rows_of([Record(n, b"%d" % n, b"v" * (n % 90)) for n in range(9000)], list(range(9000)))
    with ThreadPoolExecutor(3) as compressors:
        result = encode(rows, 400, compression, compressors=compressors)

    assert result == encode(rows, 400, compression)


def test_records_of_different_groups_are_in_different_batches() -> None:
    records = [Record(5, b"k", b"v")] * 4
    data, _ = encode(rows_of(records, [0, 1, 2, 3]), groups=[0, 0, 1, 1], append=[0, 0, 1, 1])

    fields = BatchFields(leader_epoch=7, log_append_time_ms=5)
    assert data == write_record_batch(records[:2], 0, BatchFields(leader_epoch=7)) + (
        write_record_batch(records[2:], 2, fields)
    )


def test_last_batch_stays_open_for_further_records() -> None:
    rows = rows_of([Record(0, None, bytes(100))] * 10, list(range(10)))

    data, records = encode(rows, 400, keeps_last=True)

    assert records == 9
    assert len(IncomingBatches.scan(np.frombuffer(data, np.uint8), 0)) == 3


def test_record_larger_than_a_chunk_is_a_separate_batch() -> None:
    records = [Record(0, None, b"a"), Record(0, None, bytes(9 << 20)), Record(0, None, b"c")]

    data, _ = encode(rows_of(records, [0, 1, 2]))

    batches = IncomingBatches.scan(np.frombuffer(data, np.uint8), 0)
    assert batches.columns.base_offset.tolist() == [0, 1, 2]


def test_many_small_batches_span_several_chunks() -> None:
    rows = rows_of([Record(0, None, b"")] * 10_000, list(range(10_000)))

    data, records = encode(rows, RECORD_BATCH_OVERHEAD_BYTES)

    assert records == 10_000
    assert len(IncomingBatches.scan(np.frombuffer(data, np.uint8), 0)) == 10_000


def test_sliced_column_is_read_from_its_offset() -> None:
    whole = pa.array([b"left out", None, b"second"], pa.binary())
    part = whole[1:]
    rows = RecordRows.of_arrays(np.array([0, 1]), np.array([0, 0]), part, part)

    expected = [Record(0, None, None), Record(0, b"second", b"second")]
    assert encode(rows)[0] == write_record_batch(expected, 0, BatchFields(leader_epoch=7))


def test_header_without_a_name_is_rejected() -> None:
    kind = RECORD_SCHEMA.field("headers").type
    headers = pa.array([[{"key": None, "value": b"v"}]], kind)
    nothing = pa.array([None], pa.binary())

    with pytest.raises(InputError, match="a header has no name"):
        RecordRows.of_arrays(np.array([0]), np.array([0]), nothing, nothing, headers)


@given(
    RECORDS,
    st.sampled_from(COMPRESSION_NAMES),
    st.none() | st.integers(0, 2**40),
    st.none() | st.integers(0, 2**40),
    st.integers(0, 5),
)
@settings(max_examples=50)
def test_single_batch_equals_that_of_the_builder(
    records: list[Record],
    compression: str,
    append_time: int | None,
    horizon: int | None,
    wider: int,
) -> None:
    if append_time is not None:
        records = [record._replace(timestamp_ms=append_time) for record in records]
    gapped = [record._replace(offset_delta=3 * n) for n, record in enumerate(records)]
    fields = BatchFields(
        leader_epoch=4,
        compression=compression,
        log_append_time_ms=append_time,
        producer_id=9,
        producer_epoch=2,
        base_sequence=7,
        is_transactional=True,
        delete_horizon_ms=horizon,
        last_offset_delta=3 * len(records) + wider,
    )
    rows = rows_of(gapped, [100 + 3 * number for number in range(len(records))])

    assert encode_batch(rows, 100, fields) == write_record_batch(gapped, 100, fields)
