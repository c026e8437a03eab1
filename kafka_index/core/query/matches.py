"""Search splits for matching records, in order and with limited memory.

The search of a split returns at most a few MiB of records. When the caller has consumed these
records, the search resumes after the last of them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa

from kafka_index.core.errors import CorruptLogError, KafkaIndexError, without_frames
from kafka_index.core.job.engine import (
    MAX_TASKS_PER_WORKER,
    SILENT,
    Engine,
    JobSizes,
    Listener,
    Workers,
)
from kafka_index.core.log.missing_offsets import ScannedLog
from kafka_index.core.query.read_plan import RecordSplit
from kafka_index.core.query.record_reader import RecordReader
from kafka_index.core.query.settings import ReadSettings

#: Approximate size of log data in a split.
SEARCHED_SPLIT_BYTES = 32 * 1024 * 1024
#: Approximate maximum size of the records that one search of a split returns.
MATCHED_BYTES = 4 * 1024 * 1024
#: Approximate maximum size of the records that all concurrent searches of splits return.
_MAX_CONCURRENT_BYTES = 256 * 1024 * 1024
_MIN_MATCHED_BYTES = 64 * 1024
_MAX_ERRORS = 20


@dataclass(frozen=True, slots=True)
class SplitMatches:
    """The matching records of a split, in log order; picklable.

    Attributes
    ----------
    errors : tuple of KafkaIndexError
        The first skipped corruptions, and the error that ended the read, if any.
    unlisted_errors : int
        The number of skipped corruptions that are not in `errors`.
    remainder : RecordSplit, optional
        The part of the split that was not read yet.
    read_logs : tuple of ScannedLog
        The log ranges that were read, with the offsets that they contain.
    unmatched_errors : mapping of str to int
        Numbers of keys and values that did not decode when the condition was evaluated, by error
        code. Records in `batches` are not included.
    """

    batches: tuple[pa.RecordBatch, ...]
    errors: tuple[KafkaIndexError, ...] = ()
    unlisted_errors: int = 0
    remainder: RecordSplit | None = None
    read_logs: tuple[ScannedLog, ...] = ()
    unmatched_errors: Mapping[str, int] = field(default_factory=dict)


def run_search(
    engine: Engine,
    name: str,
    splits: Sequence[RecordSplit],
    settings: ReadSettings,
    *,
    limit: int | None,
    listener: Listener = SILENT,
) -> Generator[SplitMatches, None, None]:
    """Start workers for a command, and yield the matching records of splits in order.

    Closing the generator cancels the search.
    """
    sizes_bytes = [split.size_bytes for split in splits]
    listener.on_plan(len(splits), sum(sizes_bytes), ("split", "splits"))
    searched = iter(sizes_bytes)
    with (
        engine.start(
            name,
            after_failure="run again",
            listener=listener,
            tasks=len(splits),
            inputs=sorted({name for split in splits for name in split.directories}),
        ) as workers,
        closing(find_matches(workers, splits, settings, limit=limit)) as results,
    ):
        for matches in results:
            yield matches
            if matches.remainder is None:
                listener.on_done(1, next(searched))


def find_matches(
    workers: Workers, splits: Sequence[RecordSplit], settings: ReadSettings, *, limit: int | None
) -> Generator[SplitMatches, None, None]:
    """Yield the matching records of splits in order; closing the generator cancels the search.

    The settings require the column ``offset`` and `OnDamage.DROP`.
    """
    # Limit the size of each result, because the driver's memory holds the results of all concurrent
    # tasks.
    concurrent_splits = max(min(MAX_TASKS_PER_WORKER * workers.count, len(splits)), 1)
    max_bytes = min(
        MATCHED_BYTES, max(_MIN_MATCHED_BYTES, _MAX_CONCURRENT_BYTES // concurrent_splits)
    )
    match = partial(match_split, settings=settings, limit=limit, max_bytes=max_bytes)

    def search(group: Sequence[RecordSplit]) -> Generator[SplitMatches, None, None]:
        return workers.run(
            group,
            match,
            sizes=[split.size_bytes for split in group],
            description="search {:,} splits of records",
            jobs=JobSizes.GROWING,
            ordered=True,
            result_bytes=max_bytes,
        )

    def search_completely() -> Generator[SplitMatches, None, None]:
        with closing(search(splits)) as results:
            for matches in results:
                yield matches
                while matches.remainder is not None:
                    (matches,) = search([matches.remainder])  # noqa: PLW2901
                    yield matches

    return limit_matches(search_completely(), limit)


def match_split(
    split: RecordSplit,
    _attempt_id: str,
    *,
    settings: ReadSettings,
    limit: int | None = None,
    max_bytes: int = MATCHED_BYTES,
) -> SplitMatches:
    """Return the first matching records of a split.

    The settings require a filter, the column ``offset`` and `OnDamage.DROP`. At most `limit`
    records and about `max_bytes` are returned, but at least one record if any matches.
    """
    batches: list[pa.RecordBatch] = []
    errors: list[KafkaIndexError] = []
    rows = size_bytes = unlisted_errors = 0
    end_offset = None

    # A resumed split starts at the window of its last match. Corruptions in that window may already
    # have been reported.
    reported_damage = _ReportedDamage(split)

    def report(error: CorruptLogError) -> None:
        nonlocal unlisted_errors
        if not reported_damage.add(error):
            return
        if len(errors) < _MAX_ERRORS:
            errors.append(error)
        else:
            unlisted_errors += 1

    reader = RecordReader(split, settings, on_skipped=report)
    try:
        for records in reader:
            needed_rows = len(records) if limit is None else min(len(records), limit - rows)
            batch = records if needed_rows == len(records) else records.take(np.arange(needed_rows))
            batch = _take_fitting(batch, max_bytes - size_bytes)
            batches.append(batch)
            rows += len(batch)
            size_bytes += batch.nbytes
            next_offset = batch.column("offset")[-1].as_py() + 1
            if limit is not None and rows >= limit:
                end_offset = next_offset
                break
            if len(batch) < len(records) or size_bytes >= max_bytes:
                remainder = replace(
                    split,
                    first_offset=max(split.first_offset, next_offset),
                    ranges=reader.ranges,
                    reported_damage=reported_damage.last,
                )
                read_logs = tuple(reader.read_logs)
                error_counts = reader.unmatched_errors.counts(next_offset)
                return SplitMatches(
                    tuple(batches),
                    tuple(errors),
                    unlisted_errors,
                    remainder,
                    read_logs,
                    error_counts,
                )
    except KafkaIndexError as error:
        errors.append(without_frames(error))
    return SplitMatches(
        tuple(batches),
        tuple(errors),
        unlisted_errors,
        read_logs=tuple(reader.read_logs),
        unmatched_errors=reader.unmatched_errors.counts(end_offset),
    )


class _ReportedDamage:
    """The position of the last reported corruption of a split."""

    def __init__(self, split: RecordSplit) -> None:
        paths = (log_range.segment.log_path for log_range in split.ranges)
        self._order = {path: number for number, path in enumerate(paths)}
        self.last = split.reported_damage

    def add(self, error: CorruptLogError) -> bool:
        """Add a corruption; return whether it is new, that is, after all reported corruptions."""
        if error.path is None or error.position_bytes is None:
            return True
        position = (error.path, error.position_bytes)
        is_new = self.last is None or self._key(position) > self._key(self.last)
        if is_new:
            self.last = position
        return is_new

    def _key(self, position: tuple[str, int]) -> tuple[int, int]:
        return self._order.get(position[0], -1), position[1]


def _take_fitting(batch: pa.RecordBatch, max_bytes: int) -> pa.RecordBatch:
    """Return the first records that fit into `max_bytes`, but at least one record."""
    # Copy the rows with take(), because a slice is pickled with its complete buffers.
    while batch.nbytes > max_bytes and len(batch) > 1:
        fitting_rows = len(batch) * max(max_bytes, 0) // batch.nbytes
        batch = batch.take(np.arange(max(min(fitting_rows, len(batch) - 1), 1)))
    return batch


def limit_matches(
    search: Generator[SplitMatches, None, None], limit: int | None, *, skip: int = 0
) -> Generator[SplitMatches, None, None]:
    """Yield up to `limit` records after the first `skip` records; then cancel the search."""
    with closing(search):
        for matches in search:
            batches = []
            for batch in matches.batches:
                start_row = min(skip, len(batch))
                end_row = len(batch) if limit is None else min(len(batch), start_row + limit)
                # Copy the rows with take(), because printing a column requires its complete buffer.
                rows = (
                    batch
                    if end_row - start_row == len(batch)
                    else batch.take(np.arange(start_row, end_row))
                )
                skip -= start_row
                limit = None if limit is None else limit - len(rows)
                if len(rows):
                    batches.append(rows)
            yield replace(matches, batches=tuple(batches))
            if limit == 0:
                return
