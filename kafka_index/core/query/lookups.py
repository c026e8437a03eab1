"""Bulk lookups: queries are grouped by partition, and results returned in original order.

A run has one `Lookups` per thread, or per Spark Python worker. For remote logs, threads mostly
wait, so several threads share the partitions of a split.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.core.contexts import Closeable
from kafka_index.core.errors import (
    OPEN_FILES_HINT,
    KafkaIndexError,
    is_retriable,
    lacks_open_files,
)
from kafka_index.core.format.config import LogConfig
from kafka_index.core.format.longs import Longs
from kafka_index.core.job.engine import map_requests, new_run_id
from kafka_index.core.log.choices import Resolve, Status
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
from kafka_index.core.query.choices import By
from kafka_index.core.query.inventory import Inventory
from kafka_index.core.query.keys import (
    NO_PARTITION,
    Flags,
    Keys,
    QueryBatch,
    grouping_order,
    groups,
    integers,
    restore_order,
)

DEFAULT_MAX_OPEN_SEGMENTS = 256
# Limit for cached partitions: ten thousand with a few segments, or a few with ten thousand.
_MAX_KEPT_SEGMENTS = 100_000
# With more partitions, each is prefetched only before its own turn.
_MAX_EXPECTED = 10_000
# With fewer partitions, a thread works alone.
_MIN_HELPERS = 2
# The lookups of this process for the latest run. Spark reuses a Python worker for many tasks, which
# then share open files.
_open: dict[str, Lookups] = {}


@dataclass(frozen=True, slots=True)
class LookupSettings:
    """The settings of lookups.

    `config` is used to build missing indexes; each `Lookups` keeps `max_open_segments` open.
    """

    by: By
    resolve: Resolve
    config: LogConfig = field(default_factory=LogConfig)
    max_open_segments: int = DEFAULT_MAX_OPEN_SEGMENTS


class Lookups(Closeable):
    """Runs queries over an inventory; one per thread or worker.

    A context manager; keeps a limited number of partitions and segments open.
    """

    def __init__(self, inventory: Inventory, settings: LookupSettings) -> None:
        self.inventory = inventory
        self.settings = settings
        self._cache = SegmentCache(settings.max_open_segments)
        self._logs: OrderedDict[int, PartitionLog] = OrderedDict()
        self._kept_segments = 0
        self._findings = Findings()

    def answer_rows(self, rows: pa.RecordBatch | pa.Table) -> Answers:
        """Run a table of queries; partitions and keys may be strings."""
        return self.answer(QueryBatch.of(rows, self.settings.by))

    def answer(self, queries: QueryBatch) -> Answers:
        """Run queries in order; errors of a query or partition are a status."""
        keys = queries.keys
        numbers, present = integers(queries.partitions)
        codes = self.inventory.codes(queries.topics, numbers)
        valid = self._valid(queries.topics, present, keys)
        asked = codes if valid is None else np.where(valid, codes, np.int32(NO_PARTITION))
        order = grouping_order(asked)
        ordered = asked if order is None else asked[order]
        values = keys.values if order is None else keys.values[order]
        answers = Answers.empty(len(keys), self.settings.resolve, Status.UNKNOWN_PARTITION)
        grouped = [(code, rows) for code, rows in groups(ordered) if code != NO_PARTITION]
        with self._cache.announcing(self._read_ahead(grouped, values)):
            for code, rows in grouped:
                answers.put(rows, self._answer_partition(code, values[rows]))
        if order is not None:
            answers = restore_order(answers, order)
        if valid is not None:
            answers.status[~valid] = Status.INVALID_QUERY
        return answers

    def start_offset(self, code: int) -> int:
        return int(self.inventory.partitions["log_start_offset"][code].as_py())

    def end_offset(self, code: int) -> int | None:
        """Return the end of a partition: its log end offset, or another `UpperBound`.

        If the log cannot be read, return None and add a finding.
        """
        try:
            return self._log(code).end_offset
        except (KafkaIndexError, OSError) as error:
            self._add_unreadable(self.inventory.files_of(code), error, 0)
            return None

    def drain_findings(self) -> list[LookupFinding]:
        """Return the findings since the last call, without repetitions."""
        for log in self._logs.values():
            self._gather(log)
        return self._findings.drain()

    def close(self) -> None:
        """Close open files; findings can still be drained."""
        while self._logs:
            self._evict()

    def _valid(
        self, topics: pa.Array | pa.ChunkedArray, present: Flags | None, keys: Keys
    ) -> Flags | None:
        """Return which queries are valid (None: all), even if their partition does not exist."""
        lowest = 0
        if self.settings.by is By.TIMESTAMP and keys.specials:
            lowest = min(SpecialTimestamp)
        wrong = [~flags for flags in (present, keys.valid) if flags is not None]
        if len(keys) and int(keys.values.min()) < lowest:
            wrong.append(keys.values < lowest)
        if topics.null_count or pa.types.is_dictionary(topics.type):
            missing = _is_null(topics)
            if missing.any():
                wrong.append(missing)
        return None if not wrong else ~np.logical_or.reduce(wrong)

    def _read_ahead(
        self, grouped: Sequence[tuple[int, slice]], values: Longs
    ) -> Callable[[object], None] | None:
        """Return the prefetcher for the segments of the queries, None if all are local."""
        if not self.inventory.needs_requests or len(grouped) > _MAX_EXPECTED:
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
            self._add_unreadable(self.inventory.files_of(code), error, len(keys))
            return Answers.empty(len(keys), resolve, Status.UNREADABLE)

    def _log(self, code: int) -> PartitionLog:
        log = self._logs.get(code)
        if log is None:
            files = self.inventory.files_of(code)
            config = self.settings.config.for_topic(files.topic)
            log = PartitionLog(
                files,
                config=config,
                cache=self._cache,
                max_decompressed_bytes=self.settings.config.max_decompressed_bytes,
                fetched_indexes=self.inventory.fetched_indexes,
            )
            self._logs[code] = log
            self._kept_segments += len(files.segments)
            while self._kept_segments > _MAX_KEPT_SEGMENTS and len(self._logs) > 1:
                self._evict()
        self._logs.move_to_end(code)
        return log

    def _evict(self) -> None:
        """Close the least recently used partition."""
        _, log = self._logs.popitem(last=False)
        self._kept_segments -= len(log.segments)
        self._gather(log)
        log.close()

    def _gather(self, log: PartitionLog) -> None:
        for finding in log.take_findings():
            self._findings.add(finding)

    def _add_unreadable(
        self, files: PartitionFiles, error: KafkaIndexError | OSError, queries: int
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
                queries,
                retriable=is_retriable(error),
            )
        )


def _is_null(topics: pa.Array | pa.ChunkedArray) -> Flags:
    chunks = topics.chunks if isinstance(topics, pa.ChunkedArray) else [topics]
    # Nulls inside a dictionary are not counted by Arrow.
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
    """Opens one `Lookups` per thread; a context manager that closes them.

    Built indexes are shared through the folder. `helpers` threads work for each calling thread. It
    is pickled as `PackedLookups`.
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
        self._here = threading.local()
        self._opened: list[Lookups] = []
        self._packed: tuple[object, ...] | None = None

    def __enter__(self) -> Self:
        self.inventory.fetched_indexes.share(self._folder)
        return self

    def __exit__(self, *_: object) -> None:
        self.inventory.fetched_indexes.share(None)
        for each in self._opened:
            each.close()

    def __reduce__(self) -> tuple[type[PackedLookups], tuple[object, ...]]:
        """Pickle the same `PackedLookups` every time."""
        if self._packed is None:
            # Serialized once, because the inventory may be large.
            inventory = pickle.dumps(self.inventory)
            self._packed = new_run_id(), self.settings, inventory, self._folder
        return PackedLookups, self._packed

    def open(self) -> Lookups:
        lookups: Lookups | None = getattr(self._here, "lookups", None)
        if lookups is None:
            if self._helpers < _MIN_HELPERS:
                lookups = Lookups(self.inventory, self.settings)
            else:
                lookups = DividedLookups(self.inventory, self.settings, self._helpers)
            self._here.lookups = lookups
            self._opened.append(lookups)
        return lookups


@dataclass(frozen=True, slots=True)
class PackedLookups:
    """Creates the `Lookups` of a run, once in every Spark Python worker.

    The inventory is serialized: it can be large, and most tasks do not deserialize it. Run IDs are
    unique.
    """

    run_id: str
    settings: LookupSettings
    inventory: bytes
    folder: IndexFolder | None = None

    def open(self) -> Lookups:
        """Return the lookups of this process, which stay open after the task."""
        if self.run_id not in _open:
            while _open:
                _open.popitem()[1].close()
            inventory: Inventory = pickle.loads(self.inventory)  # noqa: S301, ours
            inventory.fetched_indexes.share(self.folder)
            _open[self.run_id] = Lookups(inventory, self.settings)
        return _open[self.run_id]


class DividedLookups(Lookups):
    """`Lookups` that distributes its queries over threads."""

    def __init__(self, inventory: Inventory, settings: LookupSettings, threads: int) -> None:
        super().__init__(inventory, settings)
        self._own = [Lookups(inventory, settings) for _ in range(threads)]

    def answer(self, queries: QueryBatch) -> Answers:
        numbers, _ = integers(queries.partitions)
        owners = self.inventory.codes(queries.topics, numbers) % len(self._own)

        def answer(number: int) -> tuple[Longs, Answers]:
            rows = np.flatnonzero(owners == number)
            return rows, self._own[number].answer(queries.take(rows))

        threads = len(self._own)
        answers = Answers.empty(len(queries), self.settings.resolve, Status.UNKNOWN_PARTITION)
        for rows, found in map_requests(answer, range(threads), threads=threads, name="partitions"):
            answers.put(rows, found)
        return answers

    def end_offset(self, code: int) -> int | None:
        return self._own[code % len(self._own)].end_offset(code)

    def drain_findings(self) -> list[LookupFinding]:
        return [finding for own in self._own for finding in own.drain_findings()]

    def close(self) -> None:
        for own in self._own:
            own.close()
