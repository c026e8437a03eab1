"""Partitions of a dump whose batches and records are known, and the files that hold them."""

from __future__ import annotations

import random
import struct
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from kafka_index.core.format.config import IndexConfig
from kafka_index.core.log.choices import Resolve, UpperBound
from kafka_index.core.log.read.answers import GAP, LookupFinding
from kafka_index.core.log.read.partition_log import PartitionLog
from kafka_index.core.logdir.partition_files import SegmentFile
from tests.support import seek_model
from tests.support import segments as build
from tests.support.seek_model import OffsetEntry, TimeEntry
from tests.support.segments import CODECS, WRAPPER_CODECS, packed_batch
from tests.support.segments import wrapper as wrapped_messages

DIRECTORY = "topic-0"
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
Records = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Batch:
    """An entry of a log, and what a reader makes of it.

    `base_offset`: that of the first record, which the header of a compressed old message does not
    have. `records`: offset and timestamp of each.
    """

    data: bytes
    base_offset: int
    last_offset: int
    max_timestamp: int
    records: Records
    leader_epoch: int | None = None


def of_records(
    base_offset: int,
    records: Sequence[tuple[int, int]],
    *,
    codec: int = 0,
    last_delta: int | None = None,
    append_ms: int | None = None,
    max_timestamp: int | None = None,
    leader_epoch: int = 0,
    value_size: int = 20,
) -> Batch:
    """A magic 2 batch of records, each an offset delta and a timestamp."""
    last = max((delta for delta, _ in records), default=0) if last_delta is None else last_delta
    latest = max((time for _, time in records), default=-1)
    latest = latest if max_timestamp is None else max_timestamp
    latest = latest if append_ms is None else append_ms
    data = packed_batch(
        base_offset,
        records,
        codec,
        last_offset_delta=last,
        log_append_ms=append_ms,
        max_timestamp=latest,
        leader_epoch=leader_epoch,
        value_size=value_size,
    )
    return Batch(
        data,
        base_offset,
        base_offset + last,
        latest,
        tuple(
            (base_offset + delta, time if append_ms is None else append_ms)
            for delta, time in records
        ),
        None if leader_epoch < 0 else leader_epoch,
    )


def batches_with_timestamps(base_offset: int, *times: int, **options: int) -> Batch:
    """A batch of a record for each of these timestamps, their offsets in a row."""
    return of_records(base_offset, list(enumerate(times)), **options)


def message(offset: int, magic: int, timestamp: int = -1) -> Batch:
    """A plain message of an old format."""
    time = timestamp if magic else -1
    data = build.message(offset, magic, timestamp, b"value")
    return Batch(data, offset, offset, time, ((offset, time),))


def wrapper(
    start: int,
    magic: int,
    records: Sequence[tuple[int, int]],
    codec: int,
    append_ms: int | None = None,
) -> Batch:
    """A message of an old format that holds others; the records as for `of_records`."""
    last = start + records[-1][0]
    added = start if magic == 0 else 0
    data = wrapped_messages(
        last,
        magic,
        [(added + delta, time) for delta, time in records],
        codec,
        log_append_ms=append_ms,
    )
    if magic == 0:
        times = [-1] * len(records)
    else:
        times = [time if append_ms is None else append_ms for _, time in records]
    offsets = [start + delta for delta, _ in records]
    return Batch(data, offsets[0], last, max(times), tuple(zip(offsets, times, strict=True)))


def control(offset: int, timestamp: int) -> Batch:
    """The marker that ends a transaction."""
    data = build.marker(offset, 7, 0, commit=True, timestamp=timestamp)
    return Batch(data, offset, offset, timestamp, ((offset, timestamp),), 0)


@dataclass(frozen=True)
class Segment:
    """A segment and its batches."""

    base_offset: int
    batches: tuple[Batch, ...] = ()
    #: Instead of the bytes of the batches.
    damaged: bytes | None = None

    @property
    def log(self) -> bytes:
        """The bytes of the log."""
        whole = b"".join(batch.data for batch in self.batches)
        return whole if self.damaged is None else self.damaged

    @property
    def name(self) -> str:
        """The beginning of the names of its files."""
        return f"{self.base_offset:020d}"

    @property
    def next_offset(self) -> int:
        """The offset after the last batch."""
        return self.batches[-1].last_offset + 1 if self.batches else self.base_offset

    @property
    def positions(self) -> list[int]:
        """The positions of the batches."""
        sizes = [0, *(len(batch.data) for batch in self.batches)]
        return [sum(sizes[: number + 1]) for number in range(len(self.batches))]

    def entries(self, interval: int) -> tuple[list[OffsetEntry], list[TimeEntry]]:
        """The entries that a broker writes for it and leaves when the segment is closed."""
        columns = [
            (position, batch.last_offset, batch.max_timestamp)
            for position, batch in zip(self.positions, self.batches, strict=True)
        ]
        return seek_model.index_entries(columns, interval)


def offset_file(segment: Segment, entries: Iterable[OffsetEntry]) -> bytes:
    """The bytes of an offset index."""
    base = segment.base_offset
    return b"".join(struct.pack(">ii", offset - base, at) for offset, at in entries)


def time_file(segment: Segment, entries: Iterable[TimeEntry]) -> bytes:
    """The bytes of a time index."""
    base = segment.base_offset
    return b"".join(struct.pack(">qi", time, offset - base) for time, offset in entries)


@dataclass(frozen=True)
class Partition:
    """The segments of a partition, and what its broker notes of it."""

    segments: tuple[Segment, ...]
    interval: int = 0
    log_start_offset: int = 0
    high_watermark: int | None = None

    @property
    def log_end_offset(self) -> int:
        """The offset after the last batch."""
        return max(self.segments[-1].next_offset, self.log_start_offset)

    def write(self, data_directory: Path, *, indexes: bool = True) -> Path:
        """Write it into a data directory; with right index files, if wanted."""
        directory = data_directory / DIRECTORY
        directory.mkdir(parents=True)
        for segment in self.segments:
            (directory / f"{segment.name}.log").write_bytes(segment.log)
            if indexes:
                offsets, times = segment.entries(self.interval)
                (directory / f"{segment.name}.index").write_bytes(offset_file(segment, offsets))
                (directory / f"{segment.name}.timeindex").write_bytes(time_file(segment, times))
        for name, offset in (
            ("log-start-offset-checkpoint", self.log_start_offset),
            ("replication-offset-checkpoint", self.high_watermark),
        ):
            if offset is not None:
                text = f"0\n1\ntopic 0 {offset}\n"
                (data_directory / name).write_text(text, encoding="utf-8")
        return directory

    def open(self, directory: Path, *, indexes: Path | None = None) -> PartitionLog:
        """Open what was written."""
        bounded = self.high_watermark is not None
        return PartitionLog.open(
            directory,
            indexes=indexes,
            upper_bound=UpperBound.HIGH_WATERMARK if bounded else UpperBound.LOG_END,
            config=IndexConfig(index_interval_bytes=self.interval),
        )

    def replaced(self, number: int, log: bytes) -> Partition:
        """The partition with other bytes in one of its logs."""
        changed = list(self.segments)
        changed[number] = replace(changed[number], damaged=log)
        return replace(self, segments=tuple(changed))

    @property
    def offsets(self) -> list[int]:
        """Offsets worth asking for, in no order, some of them twice."""
        edges = {0, self.log_start_offset, self.log_end_offset, self.high_watermark or 0}
        for segment in self.segments:
            edges.add(segment.base_offset)
            for batch in segment.batches:
                edges |= {batch.base_offset, batch.last_offset, *(one for one, _ in batch.records)}
        return _asked(edges)

    @property
    def times(self) -> list[int]:
        """Timestamps worth asking for, in no order, some of them twice."""
        edges = {0, -1, -2, -3, -4, -5, -6, -7}
        for segment in self.segments:
            for batch in segment.batches:
                edges |= {batch.max_timestamp, *(time for _, time in batch.records)}
        return _asked(edges)


def _asked(edges: Iterable[int]) -> list[int]:
    near = {edge + step for edge in edges for step in (-1, 0, 1)}
    asked = [number for number in near if INT64_MIN <= number <= INT64_MAX]
    asked += [INT64_MIN, INT64_MAX, *asked[:5]]
    random.Random(len(asked)).shuffle(asked)
    return asked


def partition(*segments: tuple[int, Sequence[Batch]], **options: int) -> Partition:
    """A partition of these segments, each a base offset and its batches."""
    made = tuple(Segment(base_offset, tuple(batches)) for base_offset, batches in segments)
    return Partition(made, **options)


@contextmanager
def written(partition: Partition, *, indexes: bool = True) -> Iterator[PartitionLog]:
    """A partition, written somewhere and open."""
    with tempfile.TemporaryDirectory() as folder:
        directory = partition.write(Path(folder), indexes=indexes)
        with partition.open(directory) as log:
            yield log


def times_at(offset: int) -> list[int]:
    """The timestamps of `PLAIN` at an offset and the next."""
    return [100 + 5 * offset, 105 + 5 * offset]


def segment_of(base_offset: int) -> Segment:
    """Three batches of two records each."""
    offsets = range(base_offset, base_offset + 6, 2)
    return Segment(
        base_offset, tuple(batches_with_timestamps(offset, *times_at(offset)) for offset in offsets)
    )


#: Offsets 0..5, 6..11, 12..17; the timestamp of each is 100 + 5 * offset.
PLAIN = Partition(tuple(segment_of(base_offset) for base_offset in (0, 6, 12)))


def segment_file(path: Path, *, is_last: bool = True) -> SegmentFile:
    """A log as a listing hands it on."""
    result = path.stat()
    return SegmentFile(
        "topic", 0, int(path.stem), str(path), result.st_size, result.st_mtime_ns, is_last
    )


class Row(NamedTuple):
    """An answer; the columns are those of ``ANSWER_SCHEMA``."""

    status: str
    segment_base_offset: int | None = None
    entry_offset: int | None = None
    entry_position_bytes: int | None = None
    entry_timestamp_ms: int | None = None
    batch_base_offset: int | None = None
    batch_last_offset: int | None = None
    batch_position_bytes: int | None = None
    batch_size_bytes: int | None = None
    found_offset: int | None = None
    found_timestamp_ms: int | None = None
    found_leader_epoch: int | None = None

    @property
    def without_entry(self) -> Row:
        """The answer without the index entry that led to it."""
        return self._replace(entry_offset=None, entry_position_bytes=None, entry_timestamp_ms=None)


def rows_of(answers: pa.RecordBatch) -> list[Row]:
    """Answers as rows."""
    return [Row(*row.values()) for row in answers.to_pylist()]


def ask_offsets(log: PartitionLog, offsets: Sequence[int], resolve: Resolve) -> list[Row]:
    """Answers to offsets."""
    return rows_of(log.lookup_offsets(np.array(offsets, np.int64), resolve=resolve))


def ask_times(log: PartitionLog, times: Sequence[int], resolve: Resolve) -> list[Row]:
    """Answers to timestamps."""
    return rows_of(log.lookup_timestamps(np.array(times, np.int64), resolve=resolve))


def ask_offset(log: PartitionLog, offset: int, resolve: Resolve = Resolve.RECORD) -> Row:
    """The answer to an offset."""
    return ask_offsets(log, [offset], resolve)[0]


def faults(log: PartitionLog) -> list[LookupFinding]:
    """The findings, but those of offsets that no batch holds."""
    return [finding for finding in log.take_findings() if finding.kind != GAP]


def ask_time(log: PartitionLog, time: int, resolve: Resolve = Resolve.RECORD) -> Row:
    """The answer to a timestamp."""
    return ask_times(log, [time], resolve)[0]


# Neither 0, whose entry may be taken for padding, nor the least, which stands for null: both have
# tests of their own.
_SMALL_TIMES = st.sampled_from((-2, -1, *range(1, 25)))
_EXTREME_TIMES = st.sampled_from((INT64_MIN + 1, -1, 1, INT64_MAX))
_DELTAS = st.sets(st.integers(0, 5), max_size=4).map(sorted)


@st.composite
def partitions(
    draw: st.DrawFn, *, start_inside: bool = True, bounded: bool = True, rising: bool = False
) -> Partition:
    """Any partition that brokers and their cleaners may leave.

    `start_inside` and `bounded`: the log may start, and answers may end, in the middle of it.
    `rising`: each timestamp is above all before it.
    """
    times = draw(st.sampled_from((_SMALL_TIMES, _SMALL_TIMES, _EXTREME_TIMES)))
    if rising:
        clock = count(1)
        times = st.just(None).map(lambda _: next(clock))
    following = first = draw(st.sampled_from((0, 0, 5, 2**40)))
    segments = []
    for _ in range(draw(st.integers(1, 4))):
        base_offset = following
        batches = []
        for _ in range(draw(st.integers(0, 6))):
            offset = following + draw(st.sampled_from((0, 0, 0, 3)))
            batches.append(_batch(draw, offset, times))
            following = batches[-1].last_offset + 1
        segments.append(Segment(base_offset, tuple(batches)))
        following = max(following, base_offset + 1) + draw(st.sampled_from((0, 0, 4)))
    end = segments[-1].next_offset
    start = draw(st.integers(first, max(first, end))) if start_inside else first
    start = draw(st.sampled_from((first, start)))
    watermark = None
    if bounded and draw(st.integers(0, 2)) == 0:
        watermark = draw(st.integers(start, max(start, end)))
    return Partition(
        tuple(segments), draw(st.sampled_from((0, 0, 120, 400, 4096))), start, watermark
    )


def _batch(draw: st.DrawFn, offset: int, times: st.SearchStrategy[int]) -> Batch:
    kind = draw(st.integers(0, 7))
    if kind == 0:
        return message(offset, draw(st.integers(0, 1)), draw(times))
    if kind == 1:
        return control(offset, draw(times))
    if kind == 2:
        delta = draw(st.sampled_from((0, 6)))
        return of_records(offset, [], last_delta=delta, max_timestamp=draw(times))
    records = [(delta, draw(times)) for delta in draw(_DELTAS)]
    if kind == 3 and records:
        magic = draw(st.integers(0, 1))
        append_ms = draw(times) if magic and draw(st.booleans()) else None
        return wrapper(offset, magic, records, draw(st.sampled_from(WRAPPER_CODECS)), append_ms)
    deltas = [delta for delta, _ in records]
    return of_records(
        offset,
        records,
        codec=draw(st.sampled_from((0, 0, *CODECS))) if records else 0,
        last_delta=max(deltas, default=0) + draw(st.sampled_from((0, 0, 2))),
        append_ms=draw(times) if draw(st.integers(0, 5)) == 0 else None,
        # Compaction leaves the header's when it takes the record that had it.
        max_timestamp=draw(times) if draw(st.integers(0, 5)) == 0 else None,
        leader_epoch=draw(st.sampled_from((0, 3, -1))),
    )
