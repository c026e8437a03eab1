"""Search for matching records, split by split, in order and with limited memory.

Each search of a split returns at most a few MiB of matches. If there are more, the search resumes
after the last one when the matches have been consumed.
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
#: Approximate maximum size of matches returned from a split at once.
MATCHED_BYTES = 4 * 1024 * 1024
#: Approximate maximum size of matches returned from all concurrent splits.
_WAVE_BYTES = 256 * 1024 * 1024
_MIN_MATCHED_BYTES = 64 * 1024
_MAX_ERRORS = 20


@dataclass(frozen=True, slots=True)
class SplitMatches:
    """Matches of a split in log order; picklable.

    `errors` are skipped corruptions and the error that ended the read; `errors_left_out` counts
    further ones. `rest` is the part still to be read, if there are more matches. `seen` has the
    offsets that were read. `unmatched_errors` counts keys and values that did not decode for a
    condition, by code; it does not count values in `batches`.
    """

    batches: tuple[pa.RecordBatch, ...]
    errors: tuple[KafkaIndexError, ...] = ()
    errors_left_out: int = 0
    rest: RecordSplit | None = None
    seen: tuple[ScannedLog, ...] = ()
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
    """Start workers for a command, and yield the matches of splits in order.

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
        closing(find_matches(workers, splits, settings, limit=limit)) as found,
    ):
        for matches in found:
            yield matches
            if matches.rest is None:
                listener.on_done(1, next(searched))


def find_matches(
    workers: Workers, splits: Sequence[RecordSplit], settings: ReadSettings, *, limit: int | None
) -> Generator[SplitMatches, None, None]:
    """Yield the matches of splits in order; closing the generator cancels the search.

    The settings need the column ``offset`` and `OnDamage.DROP`.
    """
    # Limited, because the matches of all tasks are in the driver's memory.
    together = max(min(MAX_TASKS_PER_WORKER * workers.count, len(splits)), 1)
    max_bytes = min(MATCHED_BYTES, max(_MIN_MATCHED_BYTES, _WAVE_BYTES // together))
    match = partial(match_split, settings=settings, limit=limit, max_bytes=max_bytes)

    def search(some: Sequence[RecordSplit]) -> Generator[SplitMatches, None, None]:
        return workers.run(
            some,
            match,
            sizes=[split.size_bytes for split in some],
            description="search {:,} splits of records",
            jobs=JobSizes.GROWING,
            ordered=True,
            result_bytes=max_bytes,
        )

    def found() -> Generator[SplitMatches, None, None]:
        with closing(search(splits)) as matches:
            for each in matches:
                yield each
                rest = each.rest
                while rest is not None:
                    (more,) = search([rest])
                    yield more
                    rest = more.rest

    return limited(found(), limit)


def match_split(
    split: RecordSplit,
    _attempt_id: str,
    *,
    settings: ReadSettings,
    limit: int | None = None,
    max_bytes: int = MATCHED_BYTES,
) -> SplitMatches:
    """Return the first matches of a split.

    The settings need a filter, the column ``offset`` and `OnDamage.DROP`. At most `limit` records
    are needed. About `max_bytes` of matches are returned, but at least one record.
    """
    batches: list[pa.RecordBatch] = []
    errors: list[KafkaIndexError] = []
    rows = size_bytes = left_out = 0
    end_offset = None

    # A split resumes at the window of its last match, whose corruption was already reported.
    passed = _PassedDamage(split)

    def pass_over(error: CorruptLogError) -> None:
        nonlocal left_out
        if not passed.add(error):
            return
        if len(errors) < _MAX_ERRORS:
            errors.append(error)
        else:
            left_out += 1

    reader = RecordReader(split, settings, on_left_out=pass_over)
    try:
        for found in reader:
            wanted = len(found) if limit is None else min(len(found), limit - rows)
            batch = found if wanted == len(found) else found.take(np.arange(wanted))
            batch = _fitting(batch, max_bytes - size_bytes)
            batches.append(batch)
            rows += len(batch)
            size_bytes += batch.nbytes
            following = batch.column("offset")[-1].as_py() + 1
            if limit is not None and rows >= limit:
                end_offset = following
                break
            if len(batch) < len(found) or size_bytes >= max_bytes:
                rest = replace(
                    split,
                    first_offset=max(split.first_offset, following),
                    ranges=reader.ranges,
                    passed_damage=passed.last,
                )
                seen = tuple(reader.seen)
                failed = reader.unmatched_errors.counts(following)
                return SplitMatches(tuple(batches), tuple(errors), left_out, rest, seen, failed)
    except KafkaIndexError as error:
        errors.append(without_frames(error))
    return SplitMatches(
        tuple(batches),
        tuple(errors),
        left_out,
        seen=tuple(reader.seen),
        unmatched_errors=reader.unmatched_errors.counts(end_offset),
    )


class _PassedDamage:
    """Tracks up to where corruption in a split was reported."""

    def __init__(self, split: RecordSplit) -> None:
        self._order = {part.segment.log_path: at for at, part in enumerate(split.ranges)}
        self.last = split.passed_damage

    def add(self, error: CorruptLogError) -> bool:
        """Add a corruption; return whether it is after all previous ones."""
        if error.path is None or error.position_bytes is None:
            return True
        place = (error.path, error.position_bytes)
        is_new = self.last is None or self._key(place) > self._key(self.last)
        if is_new:
            self.last = place
        return is_new

    def _key(self, place: tuple[str, int]) -> tuple[int, int]:
        return self._order.get(place[0], -1), place[1]


def _fitting(batch: pa.RecordBatch, room_bytes: int) -> pa.RecordBatch:
    """Return the first records that fit, at least one."""
    # Copied with take, because a slice is pickled with its whole buffers.
    while batch.nbytes > room_bytes and len(batch) > 1:
        fitting = len(batch) * max(room_bytes, 0) // batch.nbytes
        batch = batch.take(np.arange(max(min(fitting, len(batch) - 1), 1)))
    return batch


def limited(
    search: Generator[SplitMatches, None, None], limit: int | None, *, skip: int = 0
) -> Generator[SplitMatches, None, None]:
    """Yield a limited number of matches after skipping some; then cancel the search."""
    with closing(search):
        for matches in search:
            batches = []
            for batch in matches.batches:
                first = min(skip, len(batch))
                end = len(batch) if limit is None else min(len(batch), first + limit)
                # Copied with take, because code that prints a column's bytes expects its whole
                # buffer.
                rows = batch if end - first == len(batch) else batch.take(np.arange(first, end))
                skip -= first
                limit = None if limit is None else limit - len(rows)
                if len(rows):
                    batches.append(rows)
            yield replace(matches, batches=tuple(batches))
            if limit == 0:
                return
