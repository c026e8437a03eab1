"""The state of a partition's producers with dicts, batch by batch, as Kafka has it.

Independent of the product: one pass over all batches, no summaries and no arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import numpy as np

from kafka_index.layout.records import ABORTED_TXN
from kafka_index.records.batch_table import BatchColumns

INT32_MAX = 2**31 - 1
TRANSACTIONAL, CONTROL = 0x10, 0x20
ABORT, COMMIT, EMPTY, INVALID, REFUSED = 0, 1, -2, -3, -4


@dataclass(frozen=True)
class ProducerRow:
    """The fields of a batch that matter to producers and epochs."""

    base_offset: int
    producer_id: int = -1
    attributes: int = 0
    control_type: int = -1
    last_offset_delta: int = 0
    producer_epoch: int = 0
    base_sequence: int = 0
    timestamp_ms: int = 0
    coordinator_epoch: int = 0
    leader_epoch: int = -1


def columns(rows: list[ProducerRow], first_position: int = 0) -> BatchColumns:
    """The rows as a chunk; the position of a batch is its number."""
    values = {one.name: [getattr(row, one.name) for row in rows] for one in fields(ProducerRow)}
    longs = {name: np.array(column, np.int64) for name, column in values.items()}
    return BatchColumns(
        position_bytes=first_position + np.arange(len(rows)),
        size_bytes=np.ones(len(rows), np.int64),
        base_offset=longs["base_offset"],
        last_offset=longs["base_offset"] + longs["last_offset_delta"],
        max_timestamp_ms=longs["timestamp_ms"],
        leader_epoch=longs["leader_epoch"],
        attributes=longs["attributes"],
        producer_id=longs["producer_id"],
        control_type=longs["control_type"],
        producer_epoch=longs["producer_epoch"],
        base_sequence=longs["base_sequence"],
        coordinator_epoch=longs["coordinator_epoch"],
        control_timestamp_ms=longs["timestamp_ms"],
    )


@dataclass(frozen=True)
class Entry:
    """The state of a producer."""

    epoch: int = -1
    last_sequence: int = -1
    last_offset: int = -1
    offset_delta: int = 0
    timestamp_ms: int = -1
    coordinator_epoch: int = -1
    first_offset: int | None = None

    def of_epoch(self, epoch: int) -> Entry:
        """Another epoch forgets the last batch."""
        if epoch == self.epoch:
            return self
        return replace(self, epoch=epoch, last_sequence=-1, last_offset=-1, offset_delta=0)


class Refusal(Exception):  # noqa: N818, an answer
    """Recovery fails here; the reason is a word."""


class ScanEnd(Exception):  # noqa: N818, an answer
    """The batch is kept, and the scan ends."""


@dataclass
class ProducerTwin:
    """Producers, open transactions by first offset, and leader epochs."""

    producers: dict[int, Entry] = field(default_factory=dict)
    ongoing: dict[int, int] = field(default_factory=dict)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    aborted: list[tuple[int, int, int, int]] = field(default_factory=list)

    def begin_segment(self) -> None:
        """A segment has a transaction index of its own."""
        self.aborted = []

    def follow(self, row: ProducerRow) -> None:
        """Take up a batch."""
        if row.leader_epoch > (self.epochs[-1][0] if self.epochs else -1):
            if row.base_offset < 0:
                raise Refusal("epoch_offset_negative")
            while self.epochs and self.epochs[-1][1] >= row.base_offset:
                self.epochs.pop()
            self.epochs.append((row.leader_epoch, row.base_offset))
        if row.producer_id < 0:
            return
        entry = self.producers.get(row.producer_id, Entry())
        if row.attributes & CONTROL:
            self._marker(row, entry)
        else:
            self._data(row, entry)

    def _data(self, row: ProducerRow, entry: Entry) -> None:
        is_transactional = bool(row.attributes & TRANSACTIONAL)
        if entry.first_offset is not None and not is_transactional:
            raise Refusal("not_transactional")
        sequence = row.base_sequence
        if sequence != -1:
            sequence = (sequence + row.last_offset_delta) % 2**31
        entry = replace(
            entry.of_epoch(row.producer_epoch),
            last_sequence=sequence,
            last_offset=row.base_offset + row.last_offset_delta,
            offset_delta=row.last_offset_delta,
            timestamp_ms=row.timestamp_ms,
        )
        if is_transactional and entry.first_offset is None:
            entry = replace(entry, first_offset=row.base_offset)
            self.ongoing[row.base_offset] = row.producer_id
        self.producers[row.producer_id] = entry

    def _marker(self, row: ProducerRow, entry: Entry) -> None:
        if row.control_type == INVALID:
            raise ScanEnd
        if row.control_type == REFUSED or row.control_type > COMMIT:
            raise Refusal("unreadable_marker")
        if row.control_type == EMPTY:
            self.producers.setdefault(row.producer_id, entry)
            return
        first_offset = entry.first_offset
        self.producers[row.producer_id] = replace(
            entry.of_epoch(row.producer_epoch),
            timestamp_ms=row.timestamp_ms,
            coordinator_epoch=row.coordinator_epoch,
            first_offset=None,
        )
        if first_offset is None:
            return
        if row.control_type == ABORT:
            others = [
                first for first, one in sorted(self.ongoing.items()) if one != row.producer_id
            ]
            stable = others[0] if others else row.base_offset + 1
            if self.aborted and row.base_offset <= self.aborted[-1][2]:
                raise Refusal("abort_offset_backward")
            self.aborted.append((row.producer_id, first_offset, row.base_offset, stable))
        if self.ongoing.pop(first_offset, None) is None:
            raise Refusal("transaction_unknown")


def aborted_rows(aborted: np.ndarray) -> list[tuple[int, ...]]:
    """Entries of a transaction index as tuples, without the version."""
    assert aborted.dtype == ABORTED_TXN
    return [tuple(int(value) for value in entry)[1:] for entry in aborted.tolist()]


def entry_rows(entries: np.ndarray) -> dict[int, Entry]:
    """Producers by id."""
    found = {}
    for one in entries.tolist():
        first_offset = None if one[7] < 0 else one[7]
        found[one[0]] = replace(Entry(*one[1:7]), first_offset=first_offset)
    return found
