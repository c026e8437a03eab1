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

#: Approximate size of the records that are buffered for sorting by time: the total of all
#: partitions, and the minimum of each partition.
_SORTED_BYTES = 16 * 1024 * 1024
_MIN_SORTED_BYTES = 256 * 1024
#: Each step back in the search for the last records is this many times the previous step.
_STEP_FACTOR = 4


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The splits with the records of a partition.

    Attributes
    ----------
    records : int, optional
        The number of records, if the last records are requested.
    error : KafkaIndexError, optional
        Why the partition cannot be read.
    read : ReadPartition, optional
        The requested offsets.
    """

    splits: tuple[RecordSplit, ...] = ()
    records: int | None = None
    error: KafkaIndexError | None = None
    read: ReadPartition | None = None


def plan_partition(
    files: PartitionFiles, bounds: ReadBounds, settings: ReadSettings, *, last: int | None = None
) -> PartitionPlan:
    """Plan the read of a partition, or of its last records; corrupt ranges are skipped.

    The read starts at the first record at or after the start time of the filter.
    """
    try:
        with PartitionLog(
            files,
            config=LogConfig().for_topic(files.topic),
            max_decompressed_bytes=settings.max_decompressed_bytes,
        ) as log:
            offsets = _skip_to_start_time(log, resolve_range(log, bounds, settings), settings)
            records = None
            if last is not None:
                first_offset, records = _find_last_records(log, offsets, settings, last)
                offsets = offsets.restrict(first_offset, INT64_MAX)
            splits = tuple(
                split_range(log, offsets, settings, max_split_bytes=SEARCHED_SPLIT_BYTES)
            )
            return PartitionPlan(splits, records, read=read_partition(files, bounds, splits))
    except KafkaIndexError as error:
        return PartitionPlan(error=without_frames(error))


def _skip_to_start_time(
    log: PartitionLog, offsets: OffsetRange, settings: ReadSettings
) -> OffsetRange:
    """Restrict a range to start at the first record at or after the start time, if any."""
    times = settings.record_filter
    # Valid records may follow a corrupt range at the end of the log.
    if times is None or not times.from_ms or log.segments[-1].end_damage is not None:
        return offsets
    try:
        first_offset = first_at_or_after(log, times.from_ms)
    except CorruptLogError:
        # The read reaches the corruption and skips it.
        return offsets
    return offsets.restrict(log.end_offset if first_offset is None else first_offset, INT64_MAX)


def _find_last_records(
    log: PartitionLog, requested: OffsetRange, settings: ReadSettings, count: int
) -> tuple[int, int]:
    """Find the last `count` records; return their first offset and their number.

    Records are counted backwards from the end. If compaction, transactions or times exclude
    records, each step starts further back.
    """
    count_settings = replace(settings, columns=("offset",))
    end_offset = log.end_offset if requested.end_offset is None else requested.end_offset
    last_offset, step, count_so_far = INT64_MAX, count, 0
    while True:
        start_offset = max(requested.first_offset, end_offset - step)
        offsets = _read_last_offsets(
            log, requested.restrict(start_offset, last_offset), count_settings, count - count_so_far
        )
        count_so_far += len(offsets)
        if count_so_far == count:
            return int(offsets[0]), count_so_far
        if start_offset == requested.first_offset:
            return start_offset, count_so_far
        last_offset, step = start_offset - 1, step * _STEP_FACTOR


def _read_last_offsets(
    log: PartitionLog, offset_range: OffsetRange, settings: ReadSettings, count: int
) -> Longs:
    last_offsets: Longs = np.zeros(0, np.int64)
    for split in split_range(log, offset_range, settings):
        # The corruption is reported when the records are read.
        for batch in RecordReader(split, settings, on_skipped=lambda _: None):
            last_offsets = np.concatenate([last_offsets, batch.column("offset").to_numpy()])[
                -count:
            ]
    return last_offsets


def matches_by_time(
    partitions: Sequence[Sequence[RecordSplit]], settings: ReadSettings
) -> Generator[SplitMatches, None, None]:
    """Merge the records of partitions by timestamp; each partition is given by its splits.

    Offsets of a partition stay in order: a record with a smaller timestamp directly follows the
    previous record. Records with equal timestamps are sorted by partition. The settings need the
    columns ``offset`` and ``timestamp``, and `OnDamage.DROP`.
    """
    max_bytes = max(_SORTED_BYTES // max(len(partitions), 1), _MIN_SORTED_BYTES)
    streams = [
        _BufferedPartition(rank, splits, settings, max_bytes)
        for rank, splits in enumerate(partitions)
    ]
    while True:
        damage = [matches for stream in streams for matches in stream.fill()]
        nonempty_streams = [stream for stream in streams if len(stream.times)]
        batches: list[pa.RecordBatch] = []
        if nonempty_streams:
            # Unread records of a partition sort after its last buffered record.
            unread = [
                (int(stream.times[-1]), stream.rank)
                for stream in nonempty_streams
                if not stream.is_read
            ]
            bound = min(unread, default=(INT64_MAX, len(streams)))
            sorted_parts = [stream.take(*bound) for stream in nonempty_streams]
            times = np.concatenate([times for times, _ in sorted_parts])
            rows = pa.concat_batches([rows for _, rows in sorted_parts])
            batches.append(rows.take(pa.array(np.argsort(times, kind="stable"))))
        yield SplitMatches(
            tuple(batches),
            tuple(error for matches in damage for error in matches.errors),
            sum(matches.unlisted_errors for matches in damage),
            read_logs=tuple(log for matches in damage for log in matches.read_logs),
        )
        if not nonempty_streams:
            return


class _BufferedPartition:
    """A buffer of the records of a partition, of a few MiB.

    Attributes
    ----------
    rank : int
        The order of partitions for records with equal timestamps.
    times : array of int64
        For each buffered record, the maximum timestamp of the records up to this record.
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
        """Fill the buffer if it is empty; yield the matches and errors of each read."""
        while self._splits and not len(self.times):
            matches = match_split(
                self._splits.popleft(), "", settings=self._settings, max_bytes=self._max_bytes
            )
            if matches.remainder is not None:
                self._splits.appendleft(matches.remainder)
            if matches.batches:
                self._rows = pa.concat_batches(matches.batches)
                timestamps = self._rows.column("timestamp").cast(pa.int64()).to_numpy()
                self.times = np.maximum.accumulate(np.maximum(timestamps, self._latest))
                self._latest = int(self.times[-1]) if len(self.times) else self._latest
            yield matches

    def take(self, time: int, rank: int) -> tuple[Longs, pa.RecordBatch]:
        side = "right" if self.rank <= rank else "left"
        count = int(np.searchsorted(self.times, time, side))  # type: ignore[call-overload]
        taken_rows = self.times[:count], self._rows.slice(0, count)
        self.times, self._rows = self.times[count:], self._rows.slice(count)
        return taken_rows


class TopicRecords(SearchedRecords):
    """The records of a topic, in the requested order."""

    command = "cat"

    def __init__(
        self,
        request: CatRequest,
        partition_listing: ListedPartitions,
        settings: ReadSettings,
        partition_plans: Sequence[PartitionPlan],
        unread: Sequence[str],
    ) -> None:
        plan = ReadPlan(
            tuple(split for partition in partition_plans for split in partition.splits),
            settings,
            tuple(partition.read for partition in partition_plans if partition.read is not None),
            partition_listing.gap_finder(settings.max_decompressed_bytes),
        )
        faults = [partition.error for partition in partition_plans if partition.error is not None]
        super().__init__(partition_listing, plan, request.first, unread, faults)
        self._request, self._partition_plans = request, partition_plans

    def _matches(self) -> Generator[SplitMatches, None, None]:
        plan, last = self._plan, self._request.last
        if not self._request.by_time:
            yield from run_search(
                ThreadEngine(), "cat", plan.splits, plan.settings, limit=self._limit
            )
            return
        matches = matches_by_time(
            [partition.splits for partition in self._partition_plans], plan.settings
        )
        excess = (
            0
            if last is None
            else sum(partition.records or 0 for partition in self._partition_plans) - last
        )
        yield from limit_matches(matches, self._limit, skip=max(excess, 0))

    def _records_text(self, records: int, searched_data: str) -> str:  # noqa: ARG002, of other reads
        read_records = plural(records, "record") if records else "no record"
        read_records += f" of {self._request.topic} in {plural(self._partitions, 'partition')}"
        return (
            f"{read_records}; further records were not read (--limit)"
            if self._is_limited
            else read_records
        )


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
    first_offset, end_offset = request.offsets
    bounds = ReadBounds(
        Bound(EARLIEST if first_offset is None else first_offset),
        Bound(LATEST if end_offset is None else end_offset),
    )
    with reading_inputs(follow_links=request.follow_links) as unread:
        partition_listing = _list_topic(request)
        partition_plans = [
            plan_partition(files, bounds, settings, last=request.last)
            for files in partition_listing.files
        ]
        if request.decode is not None:
            settings = _find_types(request, partition_plans, settings)
    return TopicRecords(request, partition_listing, settings, partition_plans, unread_texts(unread))


def _find_types(
    request: CatRequest, partition_plans: Sequence[PartitionPlan], settings: ReadSettings
) -> ReadSettings:
    """Return the settings with the types of decoded keys or values in the requested records."""
    # Schemas and their decoders are slow to import.
    from kafka_index.core.query import typed_records  # noqa: PLC0415

    options = typed_records.decode_options(request, [request.topic], request.inputs)
    if options is None:
        return settings
    splits = [split for partition in partition_plans for split in partition.splits]
    counts_by_topic = typed_records.find_writers(splits, settings, options, limit=request.first)
    names = settings.columns
    typed = typed_records.typed_columns(
        [request.topic], counts_by_topic, options, names, keeps_raw=True
    )
    typed_records.check_mapping(options, {request.topic: typed})
    return replace(settings, typed=typed)


def _list_topic(request: CatRequest) -> ListedPartitions:
    listing = list_partitions(
        request.inputs,
        # In topic names, the full stop is the only special character of regular expressions.
        topics=re.compile(request.topic.replace(".", r"\.")),
        tiered=request.tiered,
        indexes=request.indexes,
    )
    existing_partitions = [files.partition for files in listing.files]
    missing = [number for number in sorted(request.partitions) if number not in existing_partitions]
    if missing:
        partition = TopicPartition(request.topic, missing[0])
        raise InputError(
            f"the input has no partition {partition.directory_name}",
            path=", ".join(request.inputs),
            found=f"partitions {', '.join(map(str, existing_partitions))}",
        )
    if request.partitions:
        files = [files for files in listing.files if files.partition in request.partitions]
        listing = replace(listing, files=files)
    return listing
