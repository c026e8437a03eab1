"""Bulk lookups: run queries grouped by partition, and return answers in the original order.

Keys are offsets, or timestamps in milliseconds. They come from typed columns (Parquet, data frames)
or from text (CSV, JSON). A cell without a valid key is not an error: the query gets the status
`INVALID_QUERY`. Columns are converted by Arrow; only cells of unusual form are parsed individually.
A run has one `Lookups` per thread, or per Spark Python worker. Reading remote logs is mostly
waiting, so several threads share the partitions of a split.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.core.contexts import Closeable
from kafka_index.core.errors import (
    OPEN_FILES_HINT,
    InputError,
    KafkaIndexError,
    is_retriable,
    lacks_open_files,
)
from kafka_index.core.format.config import LogConfig, parse_integer
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.times import parse_iso_time
from kafka_index.core.job.engine import map_requests, new_run_id
from kafka_index.core.log.choices import By, Resolve, Status
from kafka_index.core.log.read.answers import (
    UNREADABLE,
    Answers,
    Findings,
    LookupFinding,
    SpecialTimestamp,
)
from kafka_index.core.log.read.partition_files import PartitionFiles
from kafka_index.core.log.read.partition_log import PartitionLog, PlannedSearch, ReadAhead
from kafka_index.core.log.read.segment_indexes import IndexFolder
from kafka_index.core.log.read.segment_log import SegmentCache
from kafka_index.core.query.inventory import NO_PARTITION, Codes, Inventory

Flags = NDArray[np.bool_]
#: The columns of every table of queries, in addition to the key column.
TOPIC, PARTITION = "topic", "partition"

_MS_PER_DAY = 86_400_000
_MS_PER_SECOND = 1_000
# Number of units per millisecond, for each unit of Arrow's timestamp type.
_UNITS_PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}
_BLANKS = " \t"
# Integers with this many digits always fit into int64.
_SHORT_INTEGER = r"^[+-]?[0-9]{1,18}$"
# Times with a zone that Arrow can parse to microseconds.
_ZONED_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:?[0-9]{2})$"  # noqa: E501
_RADIX_BITS = 16


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of queries: offsets, or timestamps in milliseconds since the epoch.

    A value is undefined if its `is_valid` is False. If `is_valid` is None, all values are valid.
    With `specials`, negative timestamps are special timestamps (`SpecialTimestamp`). Without
    `specials`, for columns of a timestamp type, negative timestamps are times before 1970.
    """

    values: Longs
    is_valid: Flags | None = None
    specials: bool = True

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def from_column(cls, column: pa.Array | pa.ChunkedArray, by: By) -> Keys:
        """Convert a key column: strings, or a column that `check_columns` accepts.

        Keys are integers (timestamps in milliseconds). Timestamps can also be of an Arrow timestamp
        or date type, and are rounded up to a millisecond. Times without a zone are UTC. Strings
        contain integers, or for timestamps also ISO 8601 dates and times. Only integers can be
        special timestamps. A string with a date or time before 1970 is invalid.
        """
        column = plain_array(column)
        is_text = pa.types.is_string(column.type)
        if pa.types.is_integer(column.type) or (is_text and by is By.OFFSET):
            return cls(*integers(column))
        if by is By.OFFSET:
            raise InputError("the offsets are not integers", found=column.type)
        if not is_text:
            return cls(_milliseconds(column), _validity(column), specials=False)
        times = _parse_zoned_times(column)
        if times is not None:
            return cls(times, times >= 0)
        values, is_valid = integers(column)
        if is_valid is None:
            return cls(values)
        remaining_rows = np.flatnonzero(
            ~is_valid & column.is_valid().to_numpy(zero_copy_only=False)
        )
        if len(remaining_rows):
            values = values.copy()
            values[remaining_rows], is_valid[remaining_rows] = _parse_mixed_times(
                column.take(pa.array(remaining_rows))
            )
        return cls(values, is_valid)

    def to_arrow(self) -> pa.Array:
        return pa.array(self.values, mask=None if self.is_valid is None else ~self.is_valid)


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """Queries as columns: topics, which may be dictionary-encoded, integer partitions, and keys.

    A partition is null if its cell in the table is not an integer.
    """

    topics: pa.Array | pa.ChunkedArray
    partitions: pa.Array
    keys: Keys

    @classmethod
    def from_table(cls, rows: pa.RecordBatch | pa.Table, by: By) -> QueryBatch:
        """Convert a table of queries; partitions and keys may be strings."""
        partitions = plain_array(rows.column(PARTITION))
        if not pa.types.is_integer(partitions.type):
            numbers, is_valid = integers(partitions)
            partitions = pa.array(numbers, mask=None if is_valid is None else ~is_valid)
        return cls(rows.column(TOPIC), partitions, Keys.from_column(rows.column(by.column), by))

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: Longs) -> QueryBatch:
        indices, keys = pa.array(rows), self.keys
        is_valid = None if keys.is_valid is None else keys.is_valid[rows]
        selected_keys = Keys(keys.values[rows], is_valid, keys.specials)
        return QueryBatch(self.topics.take(indices), self.partitions.take(indices), selected_keys)


def plain_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Combine a column into one array that is not dictionary-encoded."""
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    return column


def integers(column: pa.Array | pa.ChunkedArray) -> tuple[Longs, Flags | None]:
    """Convert integers or strings to int64; also return which cells are valid (None: all)."""
    column = plain_array(column)
    if pa.types.is_string(column.type):
        return _parse_integers(column)
    is_valid = _validity(column)
    if column.type == pa.uint64():
        numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
        fits = numbers <= INT64_MAX
        if not fits.all():
            is_valid = fits if is_valid is None else is_valid & fits
        return numbers.astype(np.int64), is_valid
    return _longs(column.cast(pa.int64())), is_valid


def _parse_integers(column: pa.Array) -> tuple[Longs, Flags | None]:
    numbers = _try_cast(column, pa.int64())
    # Arrow would parse 0x10 as a number.
    if numbers is not None and not any(
        pc.any(pc.starts_with(column, prefix)).as_py() for prefix in ("0x", "0X")
    ):
        return _longs(numbers), _validity(column)
    trimmed_text = pc.utf8_trim(column, _BLANKS)
    is_short = pc.match_substring_regex(trimmed_text, _SHORT_INTEGER).fill_null(False)  # noqa: FBT003
    unsigned = pc.utf8_ltrim(pc.if_else(is_short, trimmed_text, None), "+")
    values = _longs(unsigned.cast(pa.int64())).copy()
    is_valid = np.array(is_short.to_numpy(zero_copy_only=False))
    for row in np.flatnonzero(~is_valid):
        cell = trimmed_text[int(row)].as_py()
        value = None if cell is None else parse_integer(cell)
        if value is not None:
            values[row], is_valid[row] = value, True
    return values, is_valid


def ceil_divide(values: Longs, by: int) -> Longs:
    """Divide and round up, without overflow."""
    if by == 1:
        return values
    quotients: Longs = values // by
    quotients += values != quotients * by
    return quotients


def _milliseconds(column: pa.Array) -> Longs:
    """Convert a timestamp or date array to milliseconds, rounded up."""
    column_type = column.type
    if pa.types.is_date32(column_type):
        return _longs(column.view(pa.int32()).cast(pa.int64())) * _MS_PER_DAY
    values = _longs(column.view(pa.int64()))
    if pa.types.is_date64(column_type):
        return values
    if column_type.unit == "s":
        # A time that overflows int64 milliseconds is before or after all records.
        limit = INT64_MAX // _MS_PER_SECOND
        return np.clip(values, -limit, limit) * _MS_PER_SECOND
    return ceil_divide(values, _UNITS_PER_MS[column_type.unit])


def _parse_zoned_times(column: pa.Array) -> Longs | None:
    """Convert a column in which every cell is a time with a zone; return None for other columns."""
    # Check the first cell first, because a failing cast of a column of integers is slow.
    if column.null_count or not len(column) or parse_iso_time(column[0].as_py()) is None:
        return None
    parsed = _try_cast(column, pa.timestamp("us", "UTC"))
    return None if parsed is None else _milliseconds(parsed)


def _parse_mixed_times(column: pa.Array) -> tuple[Longs, Flags]:
    """Parse cells as times; also return which cells are valid times since 1970."""
    trimmed_text = pc.utf8_trim(column, _BLANKS)
    zoned = pc.match_substring_regex(trimmed_text, _ZONED_TIME)
    parsed = _try_cast(pc.if_else(zoned, trimmed_text, None), pa.timestamp("us", "UTC"))
    values = np.full(len(column), -1, np.int64)
    unparsed_rows = np.arange(len(column))
    if parsed is not None:
        is_parsed = np.array(zoned.to_numpy(zero_copy_only=False))
        values[is_parsed] = _milliseconds(parsed)[is_parsed]
        unparsed_rows = np.flatnonzero(~is_parsed)
    for row in unparsed_rows:
        time = parse_iso_time(trimmed_text[int(row)].as_py())
        if time is not None:
            values[row] = time
    return values, values >= 0


def _try_cast(column: pa.Array, data_type: pa.DataType) -> pa.Array | None:
    try:
        return column.cast(data_type)
    except pa.ArrowInvalid:
        return None


def _validity(column: pa.Array) -> Flags | None:
    if not column.null_count:
        return None
    return np.array(column.is_valid().to_numpy(zero_copy_only=False))


def _longs(column: pa.Array) -> Longs:
    values: Longs = column.fill_null(0).to_numpy(zero_copy_only=False)
    return values


def grouping_order(codes: Codes) -> Longs | None:
    """Return a stable sort order of codes, None if codes already ascend."""
    if len(codes) < 2 or not (codes[1:] < codes[:-1]).any():
        return None
    # numpy sorts 16-bit numbers by radix, many times faster than by comparison.
    shifted = (codes - NO_PARTITION).astype(np.uint32)
    low = shifted.astype(np.uint16)
    order = np.argsort(low, kind="stable")
    if int(shifted.max()) >> _RADIX_BITS:
        high = (shifted >> _RADIX_BITS).astype(np.uint16)
        order = order[np.argsort(high[order], kind="stable")]
    return order


def iterate_groups(codes: Codes) -> Iterator[tuple[int, slice]]:
    if not len(codes):
        return
    starts = np.concatenate(([0], np.flatnonzero(codes[1:] != codes[:-1]) + 1, [len(codes)]))
    for start, end in pairwise(starts.tolist()):
        yield int(codes[start]), slice(start, end)


def restore_order(answers: Answers, order: Longs) -> Answers:
    """Return answers in the original order of the queries, which `order` has reordered."""
    status = np.empty_like(answers.status)
    status[order] = answers.status
    # Reorder column by column, so that random writes stay within the memory of one column.
    values = np.empty_like(answers.values)
    for column, ordered in zip(values, answers.values, strict=True):
        column[order] = ordered
    return Answers(status, values)


DEFAULT_MAX_OPEN_SEGMENTS = 256
# Maximum number of segments in cached partitions: many partitions with few segments, or few
# partitions with many segments.
_MAX_CACHED_SEGMENTS = 100_000
# If a batch of queries is for more partitions, segments are not prefetched.
_MAX_PREFETCHED_PARTITIONS = 10_000
# With fewer helper threads, a thread runs its queries itself.
_MIN_HELPERS = 2
# The `Lookups` of this process for the latest run, keyed by run ID. Spark runs many tasks in one
# Python worker, so these tasks share open files.
_lookups_by_run: dict[str, Lookups] = {}


@dataclass(frozen=True, slots=True)
class LookupSettings:
    """The settings of lookups.

    Missing indexes are built with `config`. Each `Lookups` has at most `max_open_segments` segments
    open.
    """

    by: By
    resolve: Resolve
    config: LogConfig = field(default_factory=LogConfig)
    max_open_segments: int = DEFAULT_MAX_OPEN_SEGMENTS


class Lookups(Closeable):
    """Runs queries over an inventory; a context manager.

    Each thread or worker has its own instance. The number of open partitions and segments is
    limited.
    """

    def __init__(self, inventory: Inventory, settings: LookupSettings) -> None:
        self.inventory = inventory
        self.settings = settings
        self._cache = SegmentCache(settings.max_open_segments)
        self._logs: OrderedDict[int, PartitionLog] = OrderedDict()
        self._open_segments = 0
        self._findings = Findings()

    def answer_rows(self, rows: pa.RecordBatch | pa.Table) -> Answers:
        """Run a table of queries; partitions and keys may be strings."""
        return self.answer(QueryBatch.from_table(rows, self.settings.by))

    def answer(self, queries: QueryBatch) -> Answers:
        """Run queries, and return an answer for each, in order; an error becomes a status."""
        keys = queries.keys
        numbers, is_present = integers(queries.partitions)
        codes = self.inventory.codes(queries.topics, numbers)
        is_valid = self._find_valid(queries.topics, is_present, keys)
        valid_codes = (
            codes if is_valid is None else np.where(is_valid, codes, np.int32(NO_PARTITION))
        )
        order = grouping_order(valid_codes)
        ordered_codes = valid_codes if order is None else valid_codes[order]
        values = keys.values if order is None else keys.values[order]
        answers = Answers.empty(len(keys), self.settings.resolve, Status.UNKNOWN_PARTITION)
        grouped = [
            (code, rows) for code, rows in iterate_groups(ordered_codes) if code != NO_PARTITION
        ]
        with self._cache.announcing(self._read_ahead(grouped, values)):
            for code, rows in grouped:
                answers.put(rows, self._answer_partition(code, values[rows]))
        if order is not None:
            answers = restore_order(answers, order)
        if is_valid is not None:
            answers.status[~is_valid] = Status.INVALID_QUERY
        return answers

    def start_offset(self, code: int) -> int:
        return int(self.inventory.partitions["log_start_offset"][code].as_py())

    def end_offset(self, code: int) -> int | None:
        """Return the end offset of a partition: its log end offset, or another `UpperBound`.

        If the log cannot be read, return None and add a finding.
        """
        try:
            return self._log(code).end_offset
        except (KafkaIndexError, OSError) as error:
            self._add_unreadable(self.inventory.partition_files(code), error, 0)
            return None

    def drain_findings(self) -> list[LookupFinding]:
        """Return the findings since the last call, without duplicates."""
        for log in self._logs.values():
            self._collect_findings(log)
        return self._findings.drain()

    def close(self) -> None:
        """Close open files; findings can still be drained."""
        while self._logs:
            self._evict()

    def _find_valid(
        self, topics: pa.Array | pa.ChunkedArray, has_partition: Flags | None, keys: Keys
    ) -> Flags | None:
        """Return which queries are valid (None: all), even if their partition does not exist."""
        lowest = 0
        if self.settings.by is By.TIMESTAMP and keys.specials:
            lowest = min(SpecialTimestamp)
        invalid_masks = [~flags for flags in (has_partition, keys.is_valid) if flags is not None]
        if len(keys) and int(keys.values.min()) < lowest:
            invalid_masks.append(keys.values < lowest)
        if topics.null_count or pa.types.is_dictionary(topics.type):
            is_missing = _find_nulls(topics)
            if is_missing.any():
                invalid_masks.append(is_missing)
        return None if not invalid_masks else ~np.logical_or.reduce(invalid_masks)

    def _read_ahead(
        self, grouped: Sequence[tuple[int, slice]], values: Longs
    ) -> Callable[[object], None] | None:
        """Return a function that prefetches segments of queries, None if nothing is prefetched."""
        if not self.inventory.needs_requests or len(grouped) > _MAX_PREFETCHED_PARTITIONS:
            return None
        searches: list[PlannedSearch] = []
        for code, rows in grouped:
            log = self._log(code)
            if self.settings.by is By.OFFSET:
                searches += log.plan_searches(values[rows])
            else:
                searches += map(PlannedSearch, log.segments)
        return ReadAhead(searches, self.settings.resolve).fetch_after

    def _answer_partition(self, code: int, keys: Longs) -> Answers:
        resolve = self.settings.resolve
        try:
            log = self._log(code)
            if self.settings.by is By.OFFSET:
                return log.answer_offsets(keys, resolve)
            return log.answer_timestamps(keys, resolve)
        except (KafkaIndexError, OSError) as error:
            self._add_unreadable(self.inventory.partition_files(code), error, len(keys))
            return Answers.empty(len(keys), resolve, Status.UNREADABLE)

    def _log(self, code: int) -> PartitionLog:
        log = self._logs.get(code)
        if log is None:
            files = self.inventory.partition_files(code)
            config = self.settings.config.for_topic(files.topic)
            log = PartitionLog(
                files,
                config=config,
                cache=self._cache,
                max_decompressed_bytes=self.settings.config.max_decompressed_bytes,
                fetched_indexes=self.inventory.fetched_indexes,
            )
            self._logs[code] = log
            self._open_segments += len(files.segments)
            while self._open_segments > _MAX_CACHED_SEGMENTS and len(self._logs) > 1:
                self._evict()
        self._logs.move_to_end(code)
        return log

    def _evict(self) -> None:
        """Close the least recently used partition."""
        _, log = self._logs.popitem(last=False)
        self._open_segments -= len(log.segments)
        self._collect_findings(log)
        log.close()

    def _collect_findings(self, log: PartitionLog) -> None:
        for finding in log.take_findings():
            self._findings.add(finding)

    def _add_unreadable(
        self, files: PartitionFiles, error: KafkaIndexError | OSError, query_count: int
    ) -> None:
        path, reason, position_bytes = None, str(error), None
        if isinstance(error, KafkaIndexError):
            path, position_bytes = error.path, error.position_bytes
        elif error.filename is not None:
            path, reason = os.fsdecode(error.filename), str(error.strerror)
            if lacks_open_files(error):
                reason = f"{reason}; {OPEN_FILES_HINT}"
        self._findings.add(
            LookupFinding(
                files.topic,
                files.partition,
                None,
                path or files.segments[0].partition_directory,
                UNREADABLE,
                reason,
                position_bytes,
                query_count,
                retriable=is_retriable(error),
            )
        )


def _find_nulls(topics: pa.Array | pa.ChunkedArray) -> Flags:
    chunks = topics.chunks if isinstance(topics, pa.ChunkedArray) else [topics]
    # The null count of an Arrow array does not include nulls in its dictionary.
    nulls = [
        pc.is_null(pc.take(chunk.dictionary, chunk.indices))
        if pa.types.is_dictionary(chunk.type) and chunk.dictionary.null_count
        else pc.is_null(chunk)
        for chunk in chunks
    ]
    return np.concatenate([null.to_numpy(zero_copy_only=False) for null in nulls] or [[]]).astype(
        np.bool_
    )


class SharedLookups:
    """Opens one `Lookups` per thread; a context manager that closes all `Lookups`.

    The threads share the indexes that they build through `folder`. Each calling thread distributes
    its queries over `helpers` threads. An instance is pickled as `PackedLookups`.
    """

    def __init__(
        self,
        inventory: Inventory,
        settings: LookupSettings,
        folder: IndexFolder | None = None,
        *,
        helpers: int = 1,
    ) -> None:
        self.inventory = inventory
        self.settings = settings
        self._folder = folder
        self._helpers = helpers
        self._local = threading.local()
        self._opened: list[Lookups] = []
        self._packed: tuple[object, ...] | None = None

    def __enter__(self) -> Self:
        self.inventory.fetched_indexes.share(self._folder)
        return self

    def __exit__(self, *_: object) -> None:
        self.inventory.fetched_indexes.share(None)
        for lookups in self._opened:
            lookups.close()

    def __reduce__(self) -> tuple[type[PackedLookups], tuple[object, ...]]:
        """Pickle as `PackedLookups`, with the same run ID on each call."""
        if self._packed is None:
            # Serialize the inventory only once, because it may be large.
            inventory = pickle.dumps(self.inventory)
            self._packed = new_run_id(), self.settings, inventory, self._folder
        return PackedLookups, self._packed

    def open(self) -> Lookups:
        lookups: Lookups | None = getattr(self._local, "lookups", None)
        if lookups is None:
            if self._helpers < _MIN_HELPERS:
                lookups = Lookups(self.inventory, self.settings)
            else:
                lookups = DividedLookups(self.inventory, self.settings, self._helpers)
            self._local.lookups = lookups
            self._opened.append(lookups)
        return lookups


@dataclass(frozen=True, slots=True)
class PackedLookups:
    """Creates the `Lookups` of a run, one in each Spark Python worker.

    The inventory stays serialized, because it may be large and only the first task in a worker
    deserializes it. Run IDs are unique.
    """

    run_id: str
    settings: LookupSettings
    inventory: bytes
    folder: IndexFolder | None = None

    def open(self) -> Lookups:
        """Return the `Lookups` of this process, which stay open after the task."""
        if self.run_id not in _lookups_by_run:
            while _lookups_by_run:
                _lookups_by_run.popitem()[1].close()
            inventory: Inventory = pickle.loads(self.inventory)  # noqa: S301, ours
            inventory.fetched_indexes.share(self.folder)
            _lookups_by_run[self.run_id] = Lookups(inventory, self.settings)
        return _lookups_by_run[self.run_id]


class DividedLookups(Lookups):
    """`Lookups` that distributes its queries over threads by partition."""

    def __init__(self, inventory: Inventory, settings: LookupSettings, threads: int) -> None:
        super().__init__(inventory, settings)
        self._helpers_lookups = [Lookups(inventory, settings) for _ in range(threads)]

    def answer(self, queries: QueryBatch) -> Answers:
        numbers, _ = integers(queries.partitions)
        thread_numbers = self.inventory.codes(queries.topics, numbers) % len(self._helpers_lookups)

        def answer(number: int) -> tuple[Longs, Answers]:
            rows = np.flatnonzero(thread_numbers == number)
            return rows, self._helpers_lookups[number].answer(queries.take(rows))

        threads = len(self._helpers_lookups)
        answers = Answers.empty(len(queries), self.settings.resolve, Status.UNKNOWN_PARTITION)
        for rows, partition_answers in map_requests(
            answer, range(threads), threads=threads, name="partitions"
        ):
            answers.put(rows, partition_answers)
        return answers

    def end_offset(self, code: int) -> int | None:
        return self._helpers_lookups[code % len(self._helpers_lookups)].end_offset(code)

    def drain_findings(self) -> list[LookupFinding]:
        return [
            finding for lookups in self._helpers_lookups for finding in lookups.drain_findings()
        ]

    def close(self) -> None:
        for lookups in self._helpers_lookups:
            lookups.close()
