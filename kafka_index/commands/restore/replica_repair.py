"""Repair of missing offsets from other copies of a partition.

Missing offsets of the base copy are restored from intact batches of other copies with the same
history. Two copies have the same history at a range if their nearest common batches before and
after the range have equal last offset, leader epoch and checksum. If no common batch follows the
range, the leader epoch of each batch must be the epoch of the base copy at that offset. So records
of divergent histories are never mixed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import Enum
from itertools import islice, pairwise
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_index.commands.restore.output import write_log
from kafka_index.core.cluster.replicas import Replica
from kafka_index.core.errors import InputError, InvalidEpochError, KafkaIndexError, is_retriable
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.leader_epochs import LeaderEpochCache
from kafka_index.core.format.records import (
    NO_LEADER_EPOCH,
)
from kafka_index.core.fs.local_store import MappedFile
from kafka_index.core.fs.registry import store_of
from kafka_index.core.log.scan.valid_batches import (
    IntactBatches,
    IntactRows,
    read_intact_batches,
)
from kafka_index.core.logdir.metadata_files import read_epochs
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.decompression import shared_budget
from kafka_index.core.records.record_sections import Decompressor

# The checksum covers the last offset delta. So if last offset and checksum are equal, the base
# offset is equal, too.
_IDENTITY = ("last_offset", "leader_epoch", "checksum")
# The number of logs of the base copy that are searched for a common batch, on each side of a range.
_MAX_COMPARED_LOGS = 8
_CACHED_LOGS = 4


class BatchRange(NamedTuple):
    """Adjacent batches of a ``.log`` file: bytes, offsets, and base offset of the segment."""

    path: str
    start_bytes: int
    end_bytes: int
    first_offset: int
    end_offset: int
    segment_base_offset: int


def write_batches(path: str, batches: Sequence[BatchRange]) -> None:
    """Write a log of the output from byte ranges of other logs."""
    with ExitStack() as stack:
        paths = {batch_range.path for batch_range in batches}
        logs = {log_path: stack.enter_context(MappedFile(log_path)).array for log_path in paths}
        write_log(
            path,
            (
                logs[batch_range.path][batch_range.start_bytes : batch_range.end_bytes]
                for batch_range in batches
            ),
        )


OffsetRange = tuple[int, int]


@dataclass(frozen=True, slots=True)
class RangeRepair:
    """Batches of other copies for a range of missing offsets; all range ends are exclusive.

    Attributes
    ----------
    first_offset, end_offset : int
        The range of missing offsets.
    batches : tuple of BatchRange
        The batches to insert, in offset order.
    replicas : tuple of str
        The directories of the copies with the same history as the base copy.
    missing : tuple of (int, int)
        The offsets that no copy has, and that compaction does not explain.
    damaged : tuple of (int, int)
        The offsets at which all copies are damaged or end.
    rejected : tuple of BatchRange
        Unused batches, which the log cleaner may have removed from the base copy.
    """

    first_offset: int
    end_offset: int
    batches: tuple[BatchRange, ...] = ()
    replicas: tuple[str, ...] = ()
    missing: tuple[OffsetRange, ...] = ()
    damaged: tuple[OffsetRange, ...] = ()
    rejected: tuple[BatchRange, ...] = ()

    def covers(self, first_offset: int, end_offset: int) -> bool:
        """Return whether copies were searched for all offsets of a range."""
        return (
            bool(self.replicas)
            and self.first_offset <= first_offset
            and end_offset <= self.end_offset
        )

    def explains(self, first_offset: int, end_offset: int) -> bool:
        """Return whether the log cleaner removed a range of offsets from all copies."""
        span = (first_offset, end_offset)
        return self.covers(*span) and subtract_ranges([span], self.missing) == [span]

    def rejecting_replicas(self, first_offset: int, end_offset: int) -> list[str]:
        """Return the directories of copies with rejected batches in a range."""
        directories = (
            os.path.dirname(batch_range.path)
            for batch_range in self.rejected
            if batch_range.first_offset < end_offset and first_offset < batch_range.end_offset
        )
        return list(dict.fromkeys(directories))


NO_REPAIR = RangeRepair(0, 0)


class ReplicaRepair:
    """Finds missing offsets of the base copy of a partition in other copies."""

    def __init__(
        self,
        base: Replica | None = None,
        other_replicas: Sequence[Replica] = (),
        decompressor: Decompressor | None = None,
    ) -> None:
        self.decompressor = decompressor or shared_budget(DEFAULT_MAX_DECOMPRESSED_BYTES)
        self._base = base
        self._other_replicas = [
            replica for replica in other_replicas if not store_of(replica.directory).needs_requests
        ]
        self._read_logs: dict[str, IntactBatches] = {}

    def __bool__(self) -> bool:
        """Return whether another copy exists."""
        return bool(self._other_replicas)

    def start_offset(self, default: int) -> int:
        """Return the lowest log start offset of the other copies, or the default."""
        starts = (
            max(
                int(replica.segments.base_offsets[0]),
                replica.root.log_start_offset(replica.partition) or 0,
            )
            for replica in self._other_replicas
        )
        return min(starts, default=default)

    def find(
        self,
        first_offset: int,
        end_offset: int,
        cleaned_to: int | None = None,
        *,
        accepts: bool = True,
    ) -> RangeRepair:
        """Return the batches of other copies in a range of offsets.

        If the log cleaner may have removed records from the base copy, `cleaned_to` is its cleaner
        offset. Only copies with at least this cleaner offset are accepted.
        """
        missing_ranges: list[OffsetRange] = [(first_offset, end_offset)]
        batches: list[BatchRange] = []
        rejected_batches: list[BatchRange] = []
        gap_ranges: list[OffsetRange] = []
        explained_ranges: list[OffsetRange] = []
        replicas = []
        for replica in self._other_replicas:
            replica_cleaned_to = replica.root.cleaned_to(replica.partition) or 0
            is_accepted = accepts and (cleaned_to is None or replica_cleaned_to >= cleaned_to)
            try:
                for replica_batches in self._read_range(replica, first_offset, end_offset):
                    gap_ranges += replica_batches.gaps
                    explained_ranges += replica_batches.explained(replica_cleaned_to)
                    if is_accepted:
                        missing_ranges = _select_batches(replica_batches, missing_ranges, batches)
                    else:
                        _select_batches(
                            replica_batches, [(first_offset, end_offset)], rejected_batches
                        )
                    if replica.directory not in replicas:
                        replicas.append(replica.directory)
            except KafkaIndexError as error:
                if is_retriable(error):
                    raise
        missing = subtract_ranges(missing_ranges, explained_ranges)
        return RangeRepair(
            first_offset,
            end_offset,
            tuple(_join_neighbors(batches)),
            tuple(replicas),
            tuple(missing),
            tuple(subtract_ranges(missing, gap_ranges)),
            tuple(rejected_batches),
        )

    def find_head(
        self, start_offset: int, end_offset: int, cleaned_to: int | None = None
    ) -> RangeRepair:
        """Like `find`, but begin with the batch that contains the log start offset."""
        first_offset = start_offset
        for replica in self._other_replicas:
            for number in _overlapping(replica, start_offset, start_offset + 1):
                rows = self._intact_batches(replica, number).by_offset
                rows = rows[rows["last_offset"] >= start_offset]
                first_offset = min(first_offset, *rows["first_offset"][:1].tolist(), start_offset)
        return self.find(first_offset, end_offset, cleaned_to)

    def _read_range(
        self, replica: Replica, first_offset: int, end_offset: int
    ) -> Iterator[_ReplicaBatches]:
        """Yield the batches of a copy in a range, if the copy has the same history."""
        comparison_before = self._compare_nearest(replica, first_offset, is_after=False)
        comparison_after = self._compare_nearest(replica, end_offset, is_after=True)
        if _Comparison.DIFFERS in (comparison_before, comparison_after):
            return
        # If an equal batch follows the range, both copies have the same history in the range:
        # leader epochs need no check.
        base_epochs = (
            None if comparison_after is _Comparison.EQUAL else self._base_epochs(end_offset)
        )
        position = _Position(first_offset)
        files = replica.segments.files()
        numbers = _overlapping(replica, first_offset - 1, end_offset + 1)
        for number in numbers:
            if number == 0:
                position.is_adjacent = True
            rows = self._intact_batches(replica, number)
            yield _ReplicaBatches.select(
                files[number], rows, position, first_offset, end_offset, base_epochs
            )

    def _compare_nearest(self, replica: Replica, offset: int, *, is_after: bool) -> _Comparison:
        """Compare the overlapping batches of base and copy that are nearest to an offset."""
        base = self._base
        if base is None:
            return _Comparison.NONE
        step = 1 if is_after else -1
        numbers = _overlapping(base, *((offset, INT64_MAX) if is_after else (0, offset)))
        for number in numbers[::step][:_MAX_COMPARED_LOGS]:
            base_rows = _batches_around(
                self._intact_batches(base, number).by_offset, offset, is_after=is_after
            )
            if not len(base_rows):
                continue
            low, high = int(base_rows["first_offset"][0]), int(base_rows["last_offset"][-1]) + 1
            for replica_log in _overlapping(replica, low, high)[::step]:
                replica_rows = _batches_around(
                    self._intact_batches(replica, replica_log).by_offset, offset, is_after=is_after
                )
                replica_row = np.searchsorted(
                    replica_rows["last_offset"], base_rows["first_offset"]
                )
                next_first_offsets = np.append(replica_rows["first_offset"], INT64_MAX)[replica_row]
                common = np.flatnonzero(next_first_offsets <= base_rows["last_offset"])
                if len(common):
                    row = int(common[0 if is_after else -1])
                    base_batch, replica_batch = base_rows[row], replica_rows[int(replica_row[row])]
                    is_equal = all(base_batch[name] == replica_batch[name] for name in _IDENTITY)
                    return _Comparison.EQUAL if is_equal else _Comparison.DIFFERS
        return _Comparison.NONE

    def _base_epochs(self, end_offset: int) -> _BaseEpochs:
        """Return leader epochs of base batches from an offset on, and the epoch checkpoint."""
        base = self._base
        later_epochs: set[int] = set()
        cache = LeaderEpochCache()
        if base is not None:
            for number in _overlapping(base, end_offset, INT64_MAX)[:_MAX_COMPARED_LOGS]:
                rows = _batches_around(
                    self._intact_batches(base, number).in_order, end_offset, is_after=True
                )
                later_epochs |= set(np.unique(rows["leader_epoch"]).tolist())
            with suppress(InvalidEpochError, InputError):
                cache = read_epochs(base.directory)
        return _BaseEpochs(later_epochs - {NO_LEADER_EPOCH}, cache)

    def _intact_batches(self, replica: Replica, number: int) -> IntactBatches:
        """Return the intact batches of a log; cache the most recently used logs."""
        files = replica.segments.files()
        segment = files[number]
        batches = self._read_logs.pop(segment.log_path, None)
        if batches is None:
            next_base_offset = (
                files[number + 1].base_offset if number + 1 < len(files) else INT64_MAX
            )
            batches = read_intact_batches(segment, next_base_offset, self.decompressor)
        self._read_logs[segment.log_path] = batches
        while len(self._read_logs) > _CACHED_LOGS:
            self._read_logs.pop(next(iter(self._read_logs)))
        return batches


class _Comparison(Enum):
    """Whether the nearest overlapping batches are equal; `NONE` if no batches overlap."""

    NONE = "none"
    EQUAL = "equal"
    DIFFERS = "differs"


class _BaseEpochs(NamedTuple):
    """The leader epochs of later batches of the base copy, and its leader epoch checkpoint.

    A leader epoch has a single leader. So if the base copy has an epoch at a later offset, earlier
    batches of this epoch in another copy belong to the same history.
    """

    later_epochs: set[int]
    checkpoint: LeaderEpochCache

    def contains(self, rows: IntactRows) -> NDArray[np.bool_]:
        """Return a mask of the batches whose leader epoch is in the history of the base copy."""
        is_base_epoch: NDArray[np.bool_] = rows["leader_epoch"] == NO_LEADER_EPOCH
        is_base_epoch |= np.isin(rows["leader_epoch"], sorted(self.later_epochs))
        for row in np.flatnonzero(~is_base_epoch).tolist():
            epoch = int(rows["leader_epoch"][row])
            checkpoint_epoch = self.checkpoint.epoch_for_offset(int(rows["first_offset"][row]))
            is_base_epoch[row] = checkpoint_epoch == epoch
        return is_base_epoch


@dataclass(slots=True)
class _Position:
    """The next expected offset in a copy, and whether the bytes before it are intact."""

    next_offset: int
    is_adjacent: bool = False


@dataclass(frozen=True, slots=True)
class _ReplicaBatches:
    """The batches of a copy's log in a range of offsets, and the gaps between intact batches."""

    segment: SegmentFile
    rows: IntactRows
    gaps: list[OffsetRange]
    cleaned_end: int

    @classmethod
    def select(
        cls,
        segment: SegmentFile,
        batches: IntactBatches,
        position: _Position,
        first_offset: int,
        end_offset: int,
        base_epochs: _BaseEpochs | None,
    ) -> _ReplicaBatches:
        """Select the batches of a log in a range, and advance `position` to the log end."""
        rows = batches.in_order
        rows_in_range = batches.by_offset
        rows_in_range = rows_in_range[
            (rows_in_range["first_offset"] >= first_offset)
            & (rows_in_range["last_offset"] < end_offset)
        ]
        if base_epochs is not None:
            rows_in_range = rows_in_range[base_epochs.contains(rows_in_range)]
        cleaned_offsets = rows["first_offset"][rows["is_cleaned"]]
        gaps = []
        if len(rows):
            firsts = rows["first_offset"]
            expected_offsets = np.concatenate(
                ([position.next_offset], rows["last_offset"][:-1] + 1)
            )
            is_spanned = rows["is_next"] & (firsts > expected_offsets)
            is_spanned[0] &= position.is_adjacent
            gaps = list(
                zip(expected_offsets[is_spanned].tolist(), firsts[is_spanned].tolist(), strict=True)
            )
            position.next_offset = int(rows["last_offset"][-1]) + 1
            position.is_adjacent = batches.reaches_end
        position.is_adjacent &= batches.reaches_end
        return cls(segment, rows_in_range, gaps, int(cleaned_offsets.max(initial=0)))

    def explained(self, cleaned_to: int) -> list[OffsetRange]:
        """Return the gaps that compaction up to `cleaned_to` explains."""
        limit = max(cleaned_to, self.cleaned_end)
        return [gap for gap in self.gaps if gap[1] <= limit]


def _overlapping(replica: Replica, first_offset: int, end_offset: int) -> list[int]:
    """Return the indexes of the copy's segments that may contain offsets of a range."""
    bases = replica.segments.base_offsets
    first_number = max(int(np.searchsorted(bases, first_offset, "right")) - 1, 0)
    return list(range(first_number, int(np.searchsorted(bases, end_offset, "left"))))


def _batches_around(rows: IntactRows, offset: int, *, is_after: bool) -> IntactRows:
    """Return the batches that begin at or after an offset, or the batches that end before it."""
    if is_after:
        return rows[rows["first_offset"] >= offset]
    return rows[rows["last_offset"] < offset]


def _select_batches(
    replica_batches: _ReplicaBatches, ranges: Sequence[OffsetRange], batches: list[BatchRange]
) -> list[OffsetRange]:
    """Append the batches in the offset ranges to `batches`; return ranges without batches."""
    covered_ranges = []
    for first_offset, end_offset in ranges:
        first_row = int(np.searchsorted(replica_batches.rows["first_offset"], first_offset))
        end_row = int(np.searchsorted(replica_batches.rows["last_offset"], end_offset))
        rows = replica_batches.rows[first_row:end_row]
        if not len(rows):
            continue
        is_next = (rows["position_bytes"][1:] == rows["end_bytes"][:-1]) & (
            rows["first_offset"][1:] == rows["last_offset"][:-1] + 1
        )
        edges = [0, *(np.flatnonzero(~is_next) + 1).tolist(), len(rows)]
        for low, high in pairwise(edges):
            span = int(rows["first_offset"][low]), int(rows["last_offset"][high - 1]) + 1
            covered_ranges.append(span)
            batches.append(
                BatchRange(
                    replica_batches.segment.log_path,
                    int(rows["position_bytes"][low]),
                    int(rows["end_bytes"][high - 1]),
                    *span,
                    replica_batches.segment.base_offset,
                )
            )
    return subtract_ranges(ranges, covered_ranges)


def _join_neighbors(batches: Iterable[BatchRange]) -> list[BatchRange]:
    """Sort batch ranges by offset, and join ranges that are adjacent in the same log."""
    joined_ranges: list[BatchRange] = []
    for batch_range in sorted(batches, key=attrgetter("first_offset")):
        previous = joined_ranges[-1] if joined_ranges else None
        if previous is not None and (previous.path, previous.end_bytes) == (
            batch_range.path,
            batch_range.start_bytes,
        ):
            joined_ranges[-1] = previous._replace(
                end_bytes=batch_range.end_bytes, end_offset=batch_range.end_offset
            )
        else:
            joined_ranges.append(batch_range)
    return joined_ranges


def subtract_ranges(
    ranges: Iterable[OffsetRange], subtracted_ranges: Iterable[OffsetRange]
) -> list[OffsetRange]:
    """Return the parts of ascending ranges outside other ranges; range ends are exclusive."""
    removed_ranges = sorted(subtracted_ranges)
    remaining_ranges = []
    number = 0
    for first_offset, end_offset in ranges:
        remaining_offset = first_offset
        while number < len(removed_ranges) and removed_ranges[number][1] <= remaining_offset:
            number += 1
        for low, high in islice(removed_ranges, number, None):
            if low >= end_offset:
                break
            if remaining_offset < low:
                remaining_ranges.append((remaining_offset, low))
            remaining_offset = max(remaining_offset, high)
        if remaining_offset < end_offset:
            remaining_ranges.append((remaining_offset, end_offset))
    return remaining_ranges
