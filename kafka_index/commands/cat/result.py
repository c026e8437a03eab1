"""A read of a topic, and its result: records that are read during iteration."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from kafka_index.commands.cat.request import CatRequest
from kafka_index.core.errors import (
    CorruptLogError,
    InputError,
    KafkaIndexError,
    plural,
    without_frames,
)
from kafka_index.core.format.config import LogConfig
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.fs.inputs import reading_inputs, unread_texts
from kafka_index.core.job.engine import Engine, Listener, ThreadEngine
from kafka_index.core.job.result import ReportSink
from kafka_index.core.log.choices import OnDamage
from kafka_index.core.log.read.partition_files import PartitionFiles
from kafka_index.core.log.read.partition_log import PartitionLog
from kafka_index.core.parameters import time_range_ms
from kafka_index.core.query.bounds import EARLIEST, LATEST, Bound, ReadBounds, first_at_or_after
from kafka_index.core.query.matches import (
    SEARCHED_SPLIT_BYTES,
    SplitMatches,
    limit_matches,
    match_split,
    run_search,
)
from kafka_index.core.query.missing_records import ReadPartition
from kafka_index.core.query.printed_records import PRINTED_COLUMNS
from kafka_index.core.query.read_plan import (
    OffsetRange,
    ReadPlan,
    RecordSplit,
    read_partition,
    resolve_range,
    split_range,
)
from kafka_index.core.query.record_reader import RecordReader
from kafka_index.core.query.record_stream import SearchedRecords
from kafka_index.core.query.records import ListedPartitions, list_partitions
from kafka_index.core.query.settings import ReadSettings, RecordFilter

#: Approximate size of records buffered for sorting, for all partitions, and minimum per partition.
_SORTED_BYTES = 16 * 1024 * 1024
_MIN_SORTED_BYTES = 256 * 1024
#: Each step of a search for the last records starts this many times further back.
_STEP_FACTOR = 4


@dataclass(frozen=True, slots=True)
class PartitionRecords:
    """The splits with the records of a partition.

    `records` is their number if the last records are requested, and `read` the requested offsets.
    With an `error`, the partition cannot be read.
    """

    splits: tuple[RecordSplit, ...] = ()
    records: int | None = None
    error: KafkaIndexError | None = None
    read: ReadPartition | None = None


def plan_records(
    files: PartitionFiles, bounds: ReadBounds, settings: ReadSettings, *, last: int | None = None
) -> PartitionRecords:
    """Plan the read of a partition, or of its last records; corrupt ranges are skipped.

    The read starts at the first record at or after the start time of the filter.
    """
    try:
        with PartitionLog(
            files,
            config=LogConfig().for_topic(files.topic),
            max_decompressed_bytes=settings.max_decompressed_bytes,
        ) as log:
            wanted = _from_start_time(log, resolve_range(log, bounds, settings), settings)
            records = None
            if last is not None:
                first_offset, records = _last_records(log, wanted, settings, last)
                wanted = wanted.restrict(first_offset, INT64_MAX)
            splits = tuple(split_range(log, wanted, settings, max_split_bytes=SEARCHED_SPLIT_BYTES))
            return PartitionRecords(splits, records, read=read_partition(files, bounds, splits))
    except KafkaIndexError as error:
        return PartitionRecords(error=without_frames(error))


def _from_start_time(log: PartitionLog, wanted: OffsetRange, settings: ReadSettings) -> OffsetRange:
    """Return a range without the offsets before the first record at or after the start time."""
    times = settings.record_filter
    # Valid records may follow a corrupt end.
    if times is None or not times.from_ms or log.segments[-1].end_damage is not None:
        return wanted
    try:
        first = first_at_or_after(log, times.from_ms)
    except CorruptLogError:
        # The read reaches the corruption and skips it.
        return wanted
    return wanted.restrict(log.end_offset if first is None else first, INT64_MAX)


def _last_records(
    log: PartitionLog, wanted: OffsetRange, settings: ReadSettings, count: int
) -> tuple[int, int]:
    """Return the offset of the first of the last records, and their number.

    Records are counted backwards from the end. If compaction, transactions or times exclude
    records, each step starts further back.
    """
    counted = replace(settings, columns=("offset",))
    end = log.end_offset if wanted.end_offset is None else wanted.end_offset
    most, step, found = INT64_MAX, count, 0
    while True:
        start = max(wanted.first_offset, end - step)
        offsets = _last_offsets(log, wanted.restrict(start, most), counted, count - found)
        found += len(offsets)
        if found == count:
            return int(offsets[0]), found
        if start == wanted.first_offset:
            return start, found
        most, step = start - 1, step * _STEP_FACTOR


def _last_offsets(
    log: PartitionLog, part: OffsetRange, settings: ReadSettings, count: int
) -> Longs:
    last: Longs = np.zeros(0, np.int64)
    for split in split_range(log, part, settings):
        # The corruption is reported when the records are read.
        for batch in RecordReader(split, settings, on_skipped=lambda _: None):
            last = np.concatenate([last, batch.column("offset").to_numpy()])[-count:]
    return last


def matches_by_time(
    partitions: Sequence[Sequence[RecordSplit]], settings: ReadSettings
) -> Generator[SplitMatches, None, None]:
    """Yield the records of partitions, each with its splits, merged by timestamp.

    Offsets of a partition stay in order: a record with a smaller timestamp directly follows the
    previous record. Records with equal timestamps are sorted by partition. The settings need the
    columns ``offset`` and ``timestamp``, and `OnDamage.DROP`.
    """
    max_bytes = max(_SORTED_BYTES // max(len(partitions), 1), _MIN_SORTED_BYTES)
    streams = [_Stream(rank, splits, settings, max_bytes) for rank, splits in enumerate(partitions)]
    while True:
        damage = [matches for stream in streams for matches in stream.fill()]
        held = [stream for stream in streams if len(stream.times)]
        batches: list[pa.RecordBatch] = []
        if held:
            # Later records of a partition sort after its last buffered record.
            unread = [(int(each.times[-1]), each.rank) for each in held if not each.is_read]
            bound = min(unread, default=(INT64_MAX, len(streams)))
            taken = [stream.take(*bound) for stream in held]
            times = np.concatenate([times for times, _ in taken])
            rows = pa.concat_batches([rows for _, rows in taken])
            batches.append(rows.take(pa.array(np.argsort(times, kind="stable"))))
        yield SplitMatches(
            tuple(batches),
            tuple(error for matches in damage for error in matches.errors),
            sum(matches.unlisted_errors for matches in damage),
            read_logs=tuple(log for matches in damage for log in matches.read_logs),
        )
        if not held:
            return


class _Stream:
    """The records of a partition, a few MiB at a time; `rank` breaks ties.

    `times` has, for each buffered record, the maximum timestamp up to it.
    """

    def __init__(
        self, rank: int, splits: Sequence[RecordSplit], settings: ReadSettings, max_bytes: int
    ) -> None:
        self.rank = rank
        self.times: Longs = np.zeros(0, np.int64)
        self._rows = pa.RecordBatch.from_pylist([], settings.schema)
        self._splits = deque(splits)
        self._settings = settings
        self._max_bytes = max_bytes
        self._latest = -INT64_MAX

    @property
    def is_read(self) -> bool:
        return not self._splits

    def fill(self) -> Iterator[SplitMatches]:
        """Read more records if the buffer is empty, and yield them."""
        while self._splits and not len(self.times):
            matches = match_split(
                self._splits.popleft(), "", settings=self._settings, max_bytes=self._max_bytes
            )
            if matches.remainder is not None:
                self._splits.appendleft(matches.remainder)
            if matches.batches:
                self._rows = pa.concat_batches(matches.batches)
                own = self._rows.column("timestamp").cast(pa.int64()).to_numpy()
                self.times = np.maximum.accumulate(np.maximum(own, self._latest))
                self._latest = int(self.times[-1]) if len(self.times) else self._latest
            yield matches

    def take(self, time: int, rank: int) -> tuple[Longs, pa.RecordBatch]:
        side = "right" if self.rank <= rank else "left"
        count = int(np.searchsorted(self.times, time, side))  # type: ignore[call-overload]
        taken = self.times[:count], self._rows.slice(0, count)
        self.times, self._rows = self.times[count:], self._rows.slice(count)
        return taken


class TopicRecords(SearchedRecords):
    """The records of a topic, in the requested order."""

    command = "cat"

    def __init__(
        self,
        request: CatRequest,
        listed: ListedPartitions,
        settings: ReadSettings,
        planned: Sequence[PartitionRecords],
        unread: Sequence[str],
    ) -> None:
        plan = ReadPlan(
            tuple(split for one in planned for split in one.splits),
            settings,
            tuple(one.read for one in planned if one.read is not None),
            listed.gap_finder(settings.max_decompressed_bytes),
        )
        faults = [one.error for one in planned if one.error is not None]
        super().__init__(listed, plan, request.first, unread, faults)
        self._request, self._planned = request, planned

    def _matches(self) -> Generator[SplitMatches, None, None]:
        plan, last = self._plan, self._request.last
        if not self._request.by_time:
            yield from run_search(
                ThreadEngine(), "cat", plan.splits, plan.settings, limit=self._limit
            )
            return
        found = matches_by_time([one.splits for one in self._planned], plan.settings)
        more = 0 if last is None else sum(one.records or 0 for one in self._planned) - last
        yield from limit_matches(found, self._limit, skip=max(more, 0))

    def _records_text(self, records: int, where: str) -> str:  # noqa: ARG002, of other reads
        text = plural(records, "record") if records else "no record"
        text += f" of {self._request.topic} in {plural(self._partitions, 'partition')}"
        return f"{text}; the rest was not read (limit)" if self._is_limited else text


def read_topic(
    request: CatRequest,
    _engine: Engine,
    _listener: Listener | None = None,
    _report: ReportSink | None = None,
) -> TopicRecords:
    """Plan a read of a topic; its records are read while the caller iterates over the result.

    Raises `InputError` if the topic or a partition is not in the input.
    """
    times = time_range_ms(request.from_time, request.to_time)
    settings = ReadSettings(
        columns=PRINTED_COLUMNS,
        isolation=request.isolation,
        on_damage=OnDamage.DROP,
        max_decompressed_bytes=request.max_decompressed_bytes,
        record_filter=None if times == (None, None) else RecordFilter(*times),
    )
    first, end = request.offsets
    bounds = ReadBounds(
        Bound(EARLIEST if first is None else first), Bound(LATEST if end is None else end)
    )
    with reading_inputs(follow_links=request.follow_links) as unread:
        listed = _listed(request)
        planned = [
            plan_records(files, bounds, settings, last=request.last) for files in listed.files
        ]
        if request.decode is not None:
            settings = _with_types(request, planned, settings)
    return TopicRecords(request, listed, settings, planned, unread_texts(unread))


def _with_types(
    request: CatRequest, planned: Sequence[PartitionRecords], settings: ReadSettings
) -> ReadSettings:
    """Return the settings with decoded keys or values, by the records that are read."""
    # Schemas and their decoders are slow to import.
    from kafka_index.core.query import typed_records  # noqa: PLC0415

    options = typed_records.decode_options(request, [request.topic], request.inputs)
    if options is None:
        return settings
    splits = [split for one in planned for split in one.splits]
    found = typed_records.find_writers(splits, settings, options, limit=request.first)
    names = settings.columns
    typed = typed_records.typed_columns([request.topic], found, options, names, keeps_raw=True)
    typed_records.check_mapping(options, {request.topic: typed})
    return replace(settings, typed=typed)


def _listed(request: CatRequest) -> ListedPartitions:
    listed = list_partitions(
        request.inputs,
        # In topic names, the full stop is the only special character of regular expressions.
        topics=re.compile(request.topic.replace(".", r"\.")),
        tiered=request.tiered,
        indexes=request.indexes,
    )
    numbers = [files.partition for files in listed.files]
    missing = [number for number in sorted(request.partitions) if number not in numbers]
    if missing:
        partition = TopicPartition(request.topic, missing[0])
        raise InputError(
            f"the input has no partition {partition.directory_name}",
            path=", ".join(request.inputs),
            found=f"the partitions {', '.join(map(str, numbers))}",
        )
    if request.partitions:
        files = [one for one in listed.files if one.partition in request.partitions]
        listed = replace(listed, files=files)
    return listed
