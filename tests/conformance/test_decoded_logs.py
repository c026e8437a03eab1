"""Kafka's own classes return the same records of random logs, whatever a read asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kafka_index import read_records
from kafka_index.core.records.record_table import DEFAULT_COLUMNS
from tests.support.campaign import sample_size
from tests.support.segments import CODEC_GZIP, CONTROL, batch, message, packed, record

from .campaign import SEED
from .consumed_rows import compare_with_consumer
from .decoding_campaign import ComparisonCounts, compare_log
from .reference_files import ReadRecord, read_log
from .reference_log import load

if TYPE_CHECKING:
    from pathlib import Path

    from .kafka_reference import KafkaReference

LOGS = sample_size(20_000, one_in=500)


def test_random_logs_are_read_as_by_kafka(
    reference: KafkaReference, scratch: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    tally = ComparisonCounts()
    for seed in range(SEED, SEED + LOGS):
        compare_log(reference, scratch, seed, tally)
        assert tally.differences == []
    assert tally.rows > 20 * LOGS
    assert tally.damages > LOGS


def test_random_intact_logs_are_read_as_by_the_consumer(
    reference: KafkaReference, scratch: Path
) -> None:
    compared = sum(
        compare_with_consumer(reference, scratch, seed) for seed in range(SEED, SEED + LOGS)
    )
    assert compared > 50 * LOGS


def first_record(
    reference: KafkaReference, scratch: Path, log: bytes, columns: tuple[str, ...] = DEFAULT_COLUMNS
) -> tuple[dict[str, object], ReadRecord]:
    """The first record of a log as we return it, and as Kafka does."""
    folder = scratch / "first-0"
    folder.mkdir(exist_ok=True)
    path = folder / f"{0:020d}.log"
    path.write_bytes(log)
    (ours,) = read_records(folder, columns=columns).read_all().to_pylist()
    ((kafkas,),) = (one.records for one in read_log(reference, path).batches)
    return ours, kafkas


@pytest.mark.parametrize(
    "name",
    [b"a\xed\xa0\x80b", b"\xed\xa0\xbd\xed\xb8\x80", b"\xed\xa0", b"\xed\xa0z", b"\xf0\x9f\x98"],
)
def test_header_name_that_is_not_utf8_is_replaced_as_in_java(
    reference: KafkaReference, scratch: Path, name: bytes
) -> None:
    payload = record(0, 0, None, b"value", [(name, b"")])
    ours, kafkas = first_record(reference, scratch, batch(0, payload=payload, timestamps=[1000]))
    assert ours["headers"] == [{"key": key, "value": value} for key, value in kafkas.headers]


@pytest.mark.parametrize("delta", [-1, -322, 1 - 2**31])
@pytest.mark.parametrize("base_sequence", [0, 5, 2**31 - 2, 2**31 - 1])
def test_sequence_of_a_record_below_its_batch_wraps_around_as_in_java(
    reference: KafkaReference, scratch: Path, delta: int, base_sequence: int
) -> None:
    log = batch(
        2**31 - 1,
        payload=record(delta, 0, None, b"value"),
        timestamps=[1000],
        producer_id=7,
        producer_epoch=0,
        base_sequence=base_sequence,
        last_offset_delta=0,
    )
    ours, kafkas = first_record(reference, scratch, log, ("offset", "sequence"))
    assert (ours["offset"], ours["sequence"]) == (kafkas.offset, kafkas.sequence)


@pytest.mark.parametrize("magic", [0, 1])
def test_message_with_the_control_bit_is_a_record(
    reference: KafkaReference, scratch: Path, magic: int
) -> None:
    log = message(0, magic, 1000, b"value", b"key", attributes=CONTROL)
    ours, kafkas = first_record(reference, scratch, log)
    assert (ours["key"], ours["value"]) == (kafkas.key, kafkas.value)


def test_checksum_of_an_inner_message_is_verified_as_by_the_consumer(
    reference: KafkaReference, scratch: Path
) -> None:
    inner = message(0, 1, 1000, b"a") + message(1, 1, 1001, b"b", crc=7)
    folder = scratch / "inner" / "topic-0"
    folder.mkdir(parents=True)
    path = folder / f"{0:020d}.log"
    path.write_bytes(message(1, 1, 1001, packed(inner, CODEC_GZIP), attributes=CODEC_GZIP))
    rows = read_records(folder, columns=("offset",), on_damage="permissive").read_all().to_pylist()
    assert [row["offset"] for row in rows] == [0, None]
    assert (
        "message 2 of 2 in a compressed message has a wrong checksum" in rows[1]["_corrupt_record"]
    )
    unverified = read_records(folder, verify_crc=False).read_all()
    assert unverified["offset"].to_pylist() == [0, 1]
    (found,) = read_log(reference, path).batches
    assert [one.offset for one in found.records] == [0, 1]
    with load(reference, folder, clean=False, now_ms=0) as log:
        consumed = log.consume(0, committed=False)
    assert [one.offset for one in consumed.records] == [0]
    assert consumed.fault is not None
