"""Batches and records of logs, read by us and by aiokafka, which shares no code with Kafka.

Two readings of Kafka's format by different people agree on headers, checksums, offsets, timestamps,
keys, values and headers, for every magic and codec. What aiokafka does not read is in the
last test.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords

from kafka_index.core.log.scan.segment_scan import read_batches
from tests.support.command_line import DUMP
from tests.support.record_tables import read_contents, read_records

from .reference_files import WrittenBatch, WrittenRecord, write_batches
from .written_segments import FORMATS, NAMED, WrittenSegment, random_segment

if TYPE_CHECKING:
    from .kafka_reference import KafkaReference
    from .reference_files import Written

LOGS = sorted(path for path in DUMP.glob("*/*.log") if path.stat().st_size)
RANDOM_CASES = 300

#: The fields of a batch of magic 2, by our names and by aiokafka's.
HEADER = {
    "base_offset": "base_offset",
    "magic": "magic",
    "crc": "crc",
    "attributes": "attributes",
    "base_timestamp_ms": "first_timestamp",
    "max_timestamp_ms": "max_timestamp",
    "producer_id": "producer_id",
    "producer_epoch": "producer_epoch",
    "base_sequence": "base_sequence",
}
_NO_TIMESTAMP = -1


class Record(NamedTuple):
    """A record of any magic; without a timestamp it has -1."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Entry(NamedTuple):
    """An entry of a log: the offset after it, of magic 2 the fields of `HEADER`; its records."""

    header: tuple[int, ...]
    records: list[Record]


def read_entries(log: bytes) -> list[Entry]:
    """Every entry of a log as aiokafka reads it; all checksums are right."""
    memory = MemoryRecords(log)
    entries = []
    while memory.has_next():
        entry = memory.next_batch()
        assert entry.validate_crc()
        names = HEADER.values() if isinstance(entry, DefaultRecordBatch) else ()
        header = (entry.next_offset, *(getattr(entry, name) for name in names))
        records = [
            Record(
                record.offset,
                _NO_TIMESTAMP if record.timestamp is None else record.timestamp,
                record.key,
                record.value,
                tuple(record.headers),
            )
            for record in entry
        ]
        entries.append(Entry(header, records))
    return entries


def our_entries(path: Path) -> list[Entry]:
    log = np.fromfile(path, np.uint8)
    batches = read_batches(path)
    rows = [row for table in batches for row in table.to_pylist()]
    assert batches.stop is None
    entries = []
    for row in rows:
        names = HEADER if row["magic"] == 2 else ()
        header = (row["last_offset"] + 1, *(row[name] for name in names))
        start = row["position_bytes"]
        entries.append(Entry(header, our_records(log[start : start + row["size_bytes"]])))
    return entries


def our_records(entry: np.ndarray) -> list[Record]:
    records = read_records(entry)
    assert records.fault is None
    rows = zip(records.rows, read_contents(entry), strict=True)
    return [
        Record(
            offset,
            timestamp_ms,
            content.key,
            content.value,
            tuple((name.decode(), value) for name, value in content.headers),
        )
        for (offset, timestamp_ms), content in rows
    ]


def readable(batches: tuple[Written, ...]) -> list[Written]:
    """Batches but for lz4 in magic 0."""
    return [
        batch
        for batch in batches
        if not (isinstance(batch, WrittenBatch) and batch.magic == 0 and batch.codec == "lz4")
    ]


EVERY = [
    pytest.param(segment, id=segment.name)
    for segment in (*FORMATS, *NAMED)
    if readable(segment.batches)
]


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_log_of_a_broker_is_read_as_by_aiokafka(path: Path) -> None:
    ours = our_entries(path)
    assert ours
    assert ours == read_entries(path.read_bytes())


@pytest.mark.parametrize("segment", EVERY)
def test_every_format_is_read_as_by_aiokafka(
    reference: KafkaReference, tmp_path: Path, segment: WrittenSegment
) -> None:
    path = tmp_path / f"{segment.base_offset:020d}.log"
    write_batches(reference, path, readable(segment.batches))
    ours = our_entries(path)
    assert ours
    assert ours == read_entries(path.read_bytes())


def test_random_segments_are_read_as_by_aiokafka(reference: KafkaReference, tmp_path: Path) -> None:
    rng = random.Random(20240229)
    records = 0
    for number in range(RANDOM_CASES):
        segment = random_segment(rng)
        path = tmp_path / f"{segment.base_offset:020d}.log"
        write_batches(reference, path, readable(segment.batches))
        ours = our_entries(path)
        assert ours == read_entries(path.read_bytes()), number
        records += sum(len(entry.records) for entry in ours)
    assert records > 10 * RANDOM_CASES


def test_lz4_of_magic_0_is_not_read_by_aiokafka(reference: KafkaReference, tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    write_batches(reference, path, [WrittenBatch((WrittenRecord(0),), magic=0, codec="lz4")])
    assert len(our_entries(path)[0].records) == 1
    with pytest.raises(Exception, match="LZ4 is not supported"):
        read_entries(path.read_bytes())
