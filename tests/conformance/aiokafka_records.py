"""Entries of a log as aiokafka reads them, in a form to compare with."""

from __future__ import annotations

from typing import Any, NamedTuple

from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords

_NO_TIMESTAMP = -1


class Record(NamedTuple):
    """A record of any magic; without a timestamp it has -1."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Entry(NamedTuple):
    """An entry of a log: the fields of its header, only one of which messages have; its records."""

    header: tuple[int, ...]
    records: list[Record]


def read_entries(log: bytes) -> list[Entry]:
    """Every entry of a log; all checksums are right.

    The header holds the offset after the entry, and of a batch of magic 2 what follows in the
    order of its fields: base offset, magic, checksum, attributes, base and largest timestamp,
    producer id and epoch, base sequence.
    """
    memory = MemoryRecords(log)
    entries = []
    while memory.has_next():
        entry = memory.next_batch()
        assert entry.validate_crc()
        header = _header(entry)
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


def _header(entry: Any) -> tuple[int, ...]:
    if not isinstance(entry, DefaultRecordBatch):
        return (entry.next_offset,)
    return (
        entry.next_offset,
        entry.base_offset,
        entry.magic,
        entry.crc,
        entry.attributes,
        entry.first_timestamp,
        entry.max_timestamp,
        entry.producer_id,
        entry.producer_epoch,
        entry.base_sequence,
    )
