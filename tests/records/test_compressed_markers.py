"""Control batches that are compressed, as Kafka 4.3.1 was seen to take them."""

from __future__ import annotations

import numpy as np
import pytest

from kafka_index.kernels.markers import CONTROL_EMPTY, CONTROL_INVALID, CONTROL_REFUSED
from kafka_index.kernels.scan import (
    COLUMN_CONTROL_TIMESTAMP,
    COLUMN_COORDINATOR_EPOCH,
    COLUMN_MAX_TIMESTAMP,
)
from kafka_index.kernels.scan import COLUMN_CONTROL_TYPE as CONTROL_TYPE
from kafka_index.records import compressed_markers
from tests.support.building import rows, streamed
from tests.support.packing import GZIP, LZ4, PACKERS, SNAPPY, XERIAL_HEADER, ZSTD, xerial
from tests.support.producer_cases import KEY, VALUE, payload
from tests.support.record_cases import GOOD, body
from tests.support.segments import (
    ABORT,
    COMMIT,
    LOG_APPEND_TIME,
    batch,
    control_key,
    marker_value,
    record,
    varint,
)

CODECS = pytest.mark.parametrize("codec", PACKERS, ids=("gzip", "snappy", "lz4", "zstd"))
NULLS = record(1, 0, None, None)


def control_type(packed: bytes, codec: int, count: int = 1) -> int:
    """What becomes of a control batch, between two others."""
    bad = payload(packed, count=count, attributes=codec)
    before, found, after = rows(streamed(batch(0) + bad + batch(20), [50]))
    assert before[CONTROL_TYPE] == after[CONTROL_TYPE] == -1
    return found[CONTROL_TYPE]


def of_records(data: bytes, codec: int, count: int = 1) -> int:
    return control_type(PACKERS[codec](data), codec, count)


@CODECS
@pytest.mark.parametrize("kind", [ABORT, COMMIT])
def test_a_sound_marker_has_its_type(codec: int, kind: int) -> None:
    assert of_records(record(0, 0, control_key(kind), VALUE), codec) == kind


@CODECS
def test_no_records_are_an_empty_control_batch_whatever_the_bytes(codec: int) -> None:
    assert control_type(b"\xff" * 9, codec, count=0) == CONTROL_EMPTY


@CODECS
@pytest.mark.parametrize(
    ("data", "count"),
    [
        (GOOD, -1),
        (b"", 1),
        (GOOD, 2),
        (GOOD + b"\0", 1),
        (GOOD * 2, 1),
        (GOOD + b"\xff" * 9, 2),
        (b"\xff" * 5 + b"\0" + GOOD, 1),
        (b"\x80", 1),
        (varint(-5) + GOOD[1:], 1),
        (varint(200) + GOOD[1:], 1),
        (varint(2**30) + GOOD[1:], 1),
        (varint(0) + GOOD[1:], 1),
        (body(b"\0", b"\xff" * 10, b"\0\0"), 1),
        (body(b"\0\0\0", varint(4) + KEY, varint(6) + VALUE, varint(-1)), 1),
        (body(b"\0\0\0", varint(4) + KEY, varint(6) + VALUE, varint(1), varint(-1), b"\0"), 1),
        (record(0, 0, KEY[:3], VALUE), 1),
        (record(0, 0, control_key(COMMIT, -1), VALUE), 1),
    ],
    ids=[
        "record count -1",
        "no records",
        "fewer than counted",
        "a byte too many",
        "more than counted",
        "nonsense behind the first",
        "size of 6 bytes",
        "size cut short",
        "size negative",
        "size beyond the end",
        "size of a gigabyte",
        "size 0",
        "timestamp delta of 11 bytes",
        "header count -1",
        "header key null",
        "key of 3 bytes",
        "key version -1",
    ],
)
def test_records_that_cannot_be_read_end_the_scan(codec: int, data: bytes, count: int) -> None:
    assert of_records(data, codec, count) == CONTROL_INVALID


@CODECS
@pytest.mark.parametrize(
    "data",
    [
        record(0, 0, control_key(2), VALUE),
        record(0, 0, None, VALUE),
        record(0, 0, KEY, None),
        record(0, 0, KEY, VALUE[:1]),
    ],
    ids=["another type", "key null", "value null", "value of 1 byte"],
)
def test_markers_that_recovery_fails_on_are_refused(codec: int, data: bytes) -> None:
    assert of_records(data, codec) == CONTROL_REFUSED


@CODECS
def test_only_the_first_of_many_records_is_looked_at_but_all_are_read(codec: int) -> None:
    headers = body(b"\0\0\2", varint(-1) * 2, varint(1), varint(1) + b"k", varint(-1))
    assert of_records(GOOD + NULLS + headers, codec, 3) == COMMIT
    assert of_records(NULLS + GOOD, codec, 2) == CONTROL_REFUSED
    assert of_records(NULLS + GOOD[:-1], codec, 2) == CONTROL_INVALID


@CODECS
def test_what_is_not_packed_is_refused(codec: int) -> None:
    assert control_type(GOOD, codec) == CONTROL_REFUSED


@pytest.mark.parametrize(
    ("codec", "expected"),
    [
        (GZIP, CONTROL_REFUSED),
        (SNAPPY, CONTROL_REFUSED),
        (LZ4, CONTROL_REFUSED),
        (ZSTD, CONTROL_INVALID),
    ],
)
def test_only_zstd_can_be_opened_without_bytes(codec: int, expected: int) -> None:
    assert control_type(b"", codec) == expected


@pytest.mark.parametrize(
    ("codec", "expected"),
    [
        (GZIP, CONTROL_REFUSED),
        (SNAPPY, CONTROL_REFUSED),
        (LZ4, CONTROL_REFUSED),
        (ZSTD, CONTROL_INVALID),
    ],
)
def test_a_stream_is_opened_before_the_count_is_looked_at(codec: int, expected: int) -> None:
    assert control_type(GOOD, codec, count=-1) == expected


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_a_stream_that_is_cut_short_behind_the_records_is_refused(codec: int) -> None:
    assert control_type(PACKERS[codec](GOOD)[:-2], codec) == CONTROL_REFUSED


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_a_bad_record_in_front_of_a_cut_ends_the_scan(codec: int) -> None:
    data = varint(-5) + np.random.default_rng(1).bytes(500_000)
    packed = PACKERS[codec](data)
    assert control_type(packed[:-2], codec) == CONTROL_INVALID


def test_snappy_finds_a_bad_chunk_before_a_bad_record() -> None:
    packed = xerial(varint(-5) + GOOD[1:]) + b"\xff\xff\xff\xff"
    assert control_type(packed, SNAPPY) == CONTROL_REFUSED


def test_any_version_of_snappy_framing_is_taken() -> None:
    packed = xerial(GOOD)
    assert packed.startswith(XERIAL_HEADER)
    assert control_type(packed[:8] + bytes(8) + packed[16:], SNAPPY) == COMMIT


@CODECS
def test_a_batch_made_to_fill_the_memory_is_refused(codec: int) -> None:
    much = 3 * compressed_markers.MOST_BYTES
    data = body(b"\0\0\0", varint(4) + KEY, varint(much), bytes(much), b"\0")
    packed = xerial(data, 1 << 20) if codec == SNAPPY else PACKERS[codec](data)
    assert control_type(packed, codec) == CONTROL_REFUSED


def test_compressed_markers_without_a_producer_are_not_read() -> None:
    entry = batch(0, control=True, attributes=LZ4)
    assert rows(streamed(entry))[0][CONTROL_TYPE] == -1


def test_every_compressed_marker_of_a_chunk_is_read() -> None:
    kinds = [0, 1, 1, 0, 1]
    entries = [
        payload(
            PACKERS[codec](record(0, 0, control_key(kind), VALUE)),
            attributes=codec,
        )
        for codec, kind in zip((1, 2, 3, 4, 1), kinds, strict=True)
    ]
    log = b"".join(entries)
    for cuts in (range(0), range(0, len(log), 13)):
        assert [row[CONTROL_TYPE] for row in rows(streamed(log, cuts))] == kinds


@CODECS
def test_a_sound_marker_has_its_coordinator_epoch_and_time(codec: int) -> None:
    marker = record(0, 7, control_key(ABORT), marker_value(12))
    batches = rows(streamed(payload(PACKERS[codec](marker), attributes=codec)))
    assert batches[0][COLUMN_COORDINATOR_EPOCH:] == (12, 1000 + 7)


@CODECS
def test_the_time_of_a_marker_with_log_append_time_is_the_batchs(codec: int) -> None:
    marker = record(0, 7, control_key(ABORT), VALUE)
    packed = payload(PACKERS[codec](marker), attributes=codec | LOG_APPEND_TIME)
    batches = rows(streamed(packed))
    assert batches[0][COLUMN_CONTROL_TIMESTAMP] == batches[0][COLUMN_MAX_TIMESTAMP]
