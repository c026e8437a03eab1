"""The records of a topic that Kafka keeps its own state in, read in order and counted by type.

A batch that cannot be read, or a log that ends in damage, is a fault that is collected; the rest is
read. Memory is bounded by a chunk of records.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from kafka_index.errors import CorruptLogError, KafkaIndexError
from kafka_index.metadata.decoding import RecordName, UnknownRecordError
from kafka_index.records.batch_table import PREALLOCATED_TAIL
from kafka_index.records.batch_walk import BatchDamage, RecordDecoder
from kafka_index.records.decompression import DecompressionBudget
from kafka_index.records.record_table import RecordTable, WindowBatches
from kafka_index.scan import LogFileSource
from kafka_index.storage import SegmentFile

#: The producer id of a batch that has none (``RecordBatch.NO_PRODUCER_ID``).
NO_PRODUCER_ID = -1


class LogRecord(NamedTuple):
    """A record of a log, with the producer id of its batch, -1 for none."""

    offset: int
    key: bytes | None
    value: bytes | None
    producer_id: int
    is_control: bool


@dataclass
class TopicLog:
    """Segments of one partition, or one snapshot of the metadata log, read in order.

    Records before `start_offset` are passed over. Once `records` is exhausted, `faults` has the
    reasons why records are missing, and `end_offset` comes after the last batch. With `recovers`
    nothing is read after the first damage, which is no fault but the `cut` of recovery.
    """

    segments: Sequence[SegmentFile]
    budget: DecompressionBudget
    start_offset: int = 0
    verify_crc: bool = True
    recovers: bool = False
    cut: CorruptLogError | None = None
    faults: list[KafkaIndexError] = field(default_factory=list)
    end_offset: int = 0

    def records(self) -> Iterator[LogRecord]:
        """Yield every record that can be read, in the order of the log."""
        self.end_offset = self.start_offset
        decoder = RecordDecoder(self.budget)
        for segment in self.segments:
            try:
                yield from self._segment_records(segment, decoder)
            except KafkaIndexError as error:
                self.faults.append(error)
            if self.cut is not None:
                return

    def _segment_records(self, segment: SegmentFile, decoder: RecordDecoder) -> Iterator[LogRecord]:
        source = LogFileSource.of_segment(segment, verify_crc=self.verify_crc)
        table = RecordTable(segment.topic, segment.partition, LogRecord._fields)
        for window, start, batches in source.windows():
            convert = partial(table.convert, source=WindowBatches(window, start, batches))
            positions = batches.position_bytes
            for found in decoder.decode(
                window,
                positions - start,
                batches.size_bytes,
                convert,
                first_offset=self.start_offset,
            ):
                if isinstance(found, BatchDamage):
                    position = int(positions[found.batch])
                    self.faults.append(_placed(found.error, segment.log_path, position))
                else:
                    columns = (column.to_pylist() for column in found.columns)
                    yield from map(LogRecord._make, zip(*columns, strict=True))
            if batches.rows:
                self.end_offset = max(self.end_offset, int(batches.last_offset[-1]) + 1)
        stop = source.stop
        if stop is not None and stop.code != PREALLOCATED_TAIL:
            damage = CorruptLogError(
                stop.name,
                path=segment.log_path,
                position_bytes=stop.position_bytes,
                expected=stop.expected,
                found=stop.found,
                hint="what follows in this segment was not read",
            )
            if self.recovers:
                self.cut = damage
            else:
                self.faults.append(damage)


def _placed(error: CorruptLogError, path: str, position_bytes: int) -> CorruptLogError:
    return type(error)(
        error.message,
        path=path,
        position_bytes=position_bytes,
        expected=error.expected,
        found=error.found,
        hint=error.hint,
    )


class TopicState(ABC):
    """Collects the records of an internal topic; `counts` has their number by type."""

    def __init__(self) -> None:
        self.counts: Counter[RecordName] = Counter()

    @abstractmethod
    def add(self, record: LogRecord) -> None:
        """Apply a record; raises `CorruptRecordError` if it cannot be read."""

    def _is_known(self, name_of: Callable[[], str]) -> bool:
        """Count a record under its name; return whether this release knows its type."""
        try:
            name = RecordName(name_of(), is_known=True)
        except UnknownRecordError as error:
            name = RecordName(error.name, is_known=False)
        self.counts[name] += 1
        return name.is_known
