"""Bulk lookups: queries grouped by partition, and their answers put back in order."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.config import LogConfig
from kafka_index.errors import KafkaIndexError, is_retriable
from kafka_index.layout.integers import Longs
from kafka_index.lookup.inventory import Inventory
from kafka_index.lookup.keys import By, Flags, Keys, integers
from kafka_index.lookup.partition_codes import (
    NO_PARTITION,
    grouping_order,
    groups,
    restore_order,
)
from kafka_index.reading.answers import (
    UNREADABLE,
    Answers,
    Finding,
    Findings,
    Resolve,
    SpecialTimestamp,
    Status,
)
from kafka_index.reading.partition_files import PartitionFiles
from kafka_index.reading.partition_log import Expected, PartitionLog, ReadAhead
from kafka_index.reading.segment_log import SegmentCache

DEFAULT_MAX_OPEN_SEGMENTS = 256
# Partitions are kept up to this many segments: ten thousand of a few, or a few of ten thousand.
_MAX_KEPT_SEGMENTS = 100_000
# With more partitions, each is fetched for in its turn.
_MAX_EXPECTED = 10_000


@dataclass(frozen=True, slots=True)
class LookupSettings:
    """The settings of lookups.

    `config` is for indexes that are missing; one `Lookups` keeps `max_open_segments` open.
    """

    by: By
    resolve: Resolve
    config: LogConfig = field(default_factory=LogConfig)
    max_open_segments: int = DEFAULT_MAX_OPEN_SEGMENTS


class Lookups:
    """Answers queries over an inventory; one for each thread or worker.

    A context manager; keeps a bounded number of partitions and segments open.
    """

    def __init__(self, inventory: Inventory, settings: LookupSettings) -> None:
        self.inventory = inventory
        self.settings = settings
        self._cache = SegmentCache(settings.max_open_segments)
        self._logs: OrderedDict[int, PartitionLog] = OrderedDict()
        self._kept_segments = 0
        self._findings = Findings()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def answer(
        self,
        topics: pa.Array | pa.ChunkedArray,
        partitions: pa.Array | pa.ChunkedArray,
        keys: Keys,
    ) -> Answers:
        """Answer queries, in order; a status reports the fault of a query or a partition.

        Topics may be dictionary-encoded; partitions are null where a cell does not hold one.
        """
        numbers, present = integers(partitions)
        codes = self.inventory.codes(topics, numbers)
        valid = self._valid(topics, present, keys)
        asked = codes if valid is None else np.where(valid, codes, np.int32(NO_PARTITION))
        order = grouping_order(asked)
        ordered = asked if order is None else asked[order]
        values = keys.values if order is None else keys.values[order]
        answers = Answers.empty(len(keys), self.settings.resolve, Status.UNKNOWN_PARTITION)
        grouped = [(code, rows) for code, rows in groups(ordered) if code != NO_PARTITION]
        with self._cache.announcing(self._read_ahead(grouped, values)):
            for code, rows in grouped:
                found = self._answer_partition(code, values[rows])
                answers.status[rows] = found.status
                answers.values[: len(found.values), rows] = found.values
        if order is not None:
            answers = restore_order(answers, order)
        if valid is not None:
            answers.status[~valid] = Status.INVALID_QUERY
        return answers

    def start_offset(self, code: int) -> int:
        """Return the first offset that a partition still has."""
        return int(self.inventory.partitions["log_start_offset"][code].as_py())

    def end_offset(self, code: int) -> int | None:
        """Return where a partition ends: its log end offset, or its high watermark when bound.

        None when the log cannot be read; there is a finding then.
        """
        try:
            return self._log(code).end_offset
        except (KafkaIndexError, OSError) as error:
            self._add_unreadable(self.inventory.files_of(code), error, 0)
            return None

    def drain_findings(self) -> list[Finding]:
        """Return the findings since the last call, each once."""
        for log in self._logs.values():
            self._gather(log)
        return self._findings.drain()

    def close(self) -> None:
        """Close what is open; findings can still be drained."""
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
        """Return what fetches for the segments that will be asked; None where all are local."""
        if not self.inventory.is_remote or len(grouped) > _MAX_EXPECTED:
            return None
        expected: list[Expected] = []
        for code, rows in grouped:
            log = self._log(code)
            if self.settings.by is By.OFFSET:
                expected += log.expect_offsets(values[rows])
            else:
                expected += map(Expected, log.segments)
        return ReadAhead(expected, self.settings.resolve).reach

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
        self._findings.add(
            Finding(
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
    # A dictionary can hold a null, too, which Arrow itself does not count.
    nulls = [
        pc.is_null(pc.take(chunk.dictionary, chunk.indices))
        if pa.types.is_dictionary(chunk.type) and chunk.dictionary.null_count
        else pc.is_null(chunk)
        for chunk in chunks
    ]
    return np.concatenate([null.to_numpy(zero_copy_only=False) for null in nulls] or [[]]).astype(
        np.bool_
    )
