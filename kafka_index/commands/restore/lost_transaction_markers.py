"""Lost transaction markers of restored partitions: write them again, or drop their records.

A transaction whose marker is lost would stay open for ever, or end with the marker of the
producer's next transaction. The batches around lost offsets show both. The outcome is taken from
the ``.txnindex`` files of the dump and from `TransactionOutcomes`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from kafka_index.commands.restore.partition_transactions import (
    AbortedIndexes,
    AbortedTransaction,
    Ending,
    Gap,
    Outcome,
    PartitionTransactions,
    Rows,
    TransactionKey,
    TransactionOutcomes,
)
from kafka_index.commands.restore.restored_partition import LostRange
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.format.records import CONTROL_ABORT, CONTROL_COMMIT
from kafka_index.core.fs.durable_files import publish_error
from kafka_index.core.fs.local_store import MappedFile
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.record_batch import write_end_transaction_marker

#: The code of records that are dropped because the outcome of their transaction is unknown.
UNKNOWN_OUTCOME: Final = "unknown_transaction_outcome"
_EPOCH_BUMP = 1


class _End(Enum):
    """The end of the batches of a transaction: a marker, a lost marker, or the end of the log."""

    MARKER = auto()
    LOST = auto()
    LOG = auto()


class _Part(NamedTuple):
    """Consecutive batches of one producer, by their rows, and what ends them.

    `before` is the row of the producer's marker before them, and `following` that of its next batch
    or marker; None for none. `aborted` is the entry of a transaction index that they have.
    """

    first: int
    end: int
    ended_by: _End
    before: int | None
    following: int | None
    aborted: AbortedTransaction | None


class _Group(NamedTuple):
    """Consecutive batches of one transaction by their rows, and its end; None if unknown."""

    first: int
    end: int
    ending: Ending | None


@dataclass(frozen=True, slots=True)
class TransactionEdits:
    """The changes to the logs of a partition: markers by offset, and batches left out.

    `dropped` has the base offsets of the batches, which `lost` describes.
    """

    markers: Mapping[int, bytes] = field(default_factory=dict)
    dropped: frozenset[int] = frozenset()
    lost: tuple[LostRange, ...] = ()
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Return whether anything changes."""
        return bool(self.markers or self.dropped)

    def of_segment(self, first_offset: int, end_offset: int) -> TransactionEdits:
        """Return the changes to a segment, by its base offset and that of the next one."""
        span = range(first_offset, end_offset)
        return TransactionEdits(
            {offset: data for offset, data in self.markers.items() if offset in span},
            frozenset(offset for offset in self.dropped if offset in span),
        )

    def rewrite(self, segment: SegmentFile, path: str) -> SegmentFile:
        """Write the log of a segment with the changes under another path."""
        waiting = sorted(self.markers.items(), reverse=True)
        try:
            with open(path, "xb") as file, MappedFile(segment.log_path) as log:
                source = LogFileSource.of_segment(segment, verify_crc=False, recovers=False)
                start = end = 0
                for batches in source.chunks():
                    offsets = batches.base_offset.tolist()
                    places = batches.position_bytes.tolist()
                    sizes = batches.size_bytes.tolist()
                    for offset, position, size in zip(offsets, places, sizes, strict=True):
                        end = position + size
                        is_dropped = offset in self.dropped
                        is_after_marker = bool(waiting) and waiting[-1][0] < offset
                        if not (is_dropped or is_after_marker):
                            continue
                        file.write(log.array[start:position].data)
                        while waiting and waiting[-1][0] < offset:
                            file.write(waiting.pop()[1])
                        start = end if is_dropped else position
                file.write(log.array[start:end].data)
                while waiting:
                    file.write(waiting.pop()[1])
                file.flush()
                written = os.fstat(file.fileno())
        except OSError as error:
            raise publish_error(error, path, "write the log") from error
        return segment.copied_to(path, written)


@dataclass
class MarkerSearch:
    """The search for transactions of a partition whose markers are lost.

    `has_coordinator`: a coordinator of the output ends open transactions. `is_whole_cluster`: there
    is no other coordinator. `may_append`: no other replica has batches after the end.
    `is_compacted`: not every offset has a record.
    `open_producers` have transactions that stay open, and that nobody is known to end.
    """

    partition: TopicPartition
    found: PartitionTransactions
    indexes: AbortedIndexes
    outcomes: Callable[[], TransactionOutcomes]
    has_coordinator: bool
    is_whole_cluster: bool
    may_append: bool
    is_compacted: bool
    open_producers: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._markers: dict[int, bytes] = {}
        self._dropped: set[int] = set()
        self._lost: list[LostRange] = []
        self._notes: list[str] = []
        self._taken = {each.last_offset for each in self.indexes.entries}
        self._end_gap = len(self.found.gaps) - 1
        self._next_offset = self.found.end_offset

    def edits(self) -> TransactionEdits:
        """Return the changes that end transactions, or leave out those of an unknown outcome."""
        gap = self.found.rows.gap
        for first, last, has_marker in self.found.transactions():
            if has_marker and gap[first] == gap[last]:
                continue
            for part in self._parts(first, last, has_marker=has_marker):
                self._end(part)
        return TransactionEdits(
            self._markers, frozenset(self._dropped), tuple(self._lost), tuple(self._notes)
        )

    def _parts(self, first: int, last: int, *, has_marker: bool) -> Iterator[_Part]:
        """Split the batches before a marker, or the log end, where a marker is lost for sure."""
        rows = self.found.rows
        end = last + 1 - has_marker
        following = last if has_marker else None
        data = rows.take(slice(first, end))
        is_new = (np.diff(data.epoch) != 0) & (np.diff(data.gap) != 0)
        starts = {first, *(first + 1 + np.flatnonzero(is_new)).tolist()}
        aborted: dict[int, AbortedTransaction] = {}
        for entry in self._entries(data):
            begin, stop = (first + np.searchsorted(data.base_offset, entry[1:])).tolist()
            is_lost = self.found.is_lost(entry.last_offset)
            if is_lost:
                aborted[begin] = entry
                starts |= {begin, stop}
            elif has_marker and entry.last_offset == rows.base_offset[last]:
                starts.add(begin)
        bounds = [*sorted(starts - {end}), end]
        before = first - 1 if first and rows.producer_id[first - 1] == data.producer_id[0] else None
        for begin, stop in pairwise(bounds):
            ended_by, in_index = _End.LOST, aborted.get(begin)
            if stop == end and following is None:
                ended_by = _End.LOG
            elif stop == end and in_index is None and self._may_end(stop - 1, last):
                ended_by = _End.MARKER
            yield _Part(begin, stop, ended_by, before, following if stop == end else stop, in_index)
            before = None

    def _entries(self, data: Rows) -> Iterator[AbortedTransaction]:
        """Yield the entries that begin with one of the batches, or with a lost one before it."""
        for entry in self.indexes.entries:
            if entry.producer_id != data.producer_id[0]:
                continue
            begin, stop = np.searchsorted(data.base_offset, entry[1:]).tolist()
            if begin == stop:
                continue
            is_lost = self.found.is_lost(entry.first_offset)
            is_split = begin == 0 or data.gap[begin] != data.gap[begin - 1]
            if is_split and (is_lost or entry.first_offset == data.base_offset[begin]):
                yield entry

    def _may_end(self, last: int, marker: int) -> bool:
        """Return whether a marker may be that of the transaction with a batch before it."""
        rows = self.found.rows
        steps = int(rows.epoch[marker] - rows.epoch[last])
        most = _EPOCH_BUMP + (rows.outcome(marker) is Outcome.ABORT)
        return 0 <= steps <= most or rows.gap[marker] == rows.gap[last]

    def _end(self, part: _Part) -> None:
        """End transactions whose markers are lost, or leave their batches out."""
        marker = self._marker(part)
        groups = [] if self._is_right(part, marker) else self._groups(part, marker)
        for number, (first, end, ending) in enumerate(groups):
            is_last = end == part.end
            following = marker if is_last else groups[number + 1][2]
            outcomes = {None if each is None else each.outcome for each in (ending, following)}
            if len(outcomes) == 1 and ending is not None:
                continue
            if part.ended_by is _End.LOG and is_last and self._stays_open(part, ending):
                continue
            group = part._replace(
                first=first, end=end, following=part.following if is_last else end
            )
            if ending is None or ending.outcome is Outcome.OPEN or not self._mark(group, ending):
                self._drop(group)

    def _marker(self, part: _Part) -> Ending | None:
        """Return the marker after the batches; None if that is lost."""
        if part.ended_by is not _End.MARKER or part.following is None:
            return None
        rows, row = self.found.rows, part.following
        return Ending(rows.outcome(row), int(rows.epoch[row]), is_pending=False)

    def _is_right(self, part: _Part, marker: Ending | None) -> bool:
        """Return whether a marker after lost offsets ends all batches before it.

        It may be that of a later transaction, unless it commits with the epoch after theirs, and
        each transaction of the producer has its own epoch.
        """
        if marker is None or part.following is None:
            return False
        rows = self.found.rows
        if not self._gaps(part.first, part.following):
            return True
        if marker.outcome is Outcome.COMMIT:
            is_next = marker.epoch == rows.epoch[part.end - 1] + _EPOCH_BUMP
            return (bool(is_next) and self._has_own_epochs(part)) or self._are_covered(part)
        offsets = int(rows.base_offset[part.first]), int(rows.base_offset[part.following])
        return AbortedTransaction(int(rows.producer_id[part.first]), *offsets) in (
            self.indexes.entries
        )

    def _has_own_epochs(self, part: _Part) -> bool:
        """Return whether a commit before the batches raised the epoch, as no older producer's does.

        Before that marker, nothing may be lost: it may be that of a later transaction.
        """
        rows = self.found.rows
        first = np.searchsorted(rows.producer_id, rows.producer_id[part.first])
        own = rows.take(slice(int(first), part.first))
        is_commit = (own.control_type[1:] == CONTROL_COMMIT) & (
            own.control_type[:-1] < CONTROL_ABORT
        )
        is_raised = (np.diff(own.epoch) == _EPOCH_BUMP) & (np.diff(own.gap) == 0)
        return bool((is_commit & is_raised).any())

    def _stays_open(self, part: _Part, ending: Ending | None) -> bool:
        """Return whether a coordinator or an operator has to end a transaction at the log end."""
        if ending is not None and ending.is_pending and self.has_coordinator:
            return True
        if ending is None:
            is_open = self._has_lost_nothing(part)
        else:
            is_open = not (self.may_append or self._gaps(part.end - 1, None))
        if is_open:
            self.open_producers.append(int(self.found.rows.producer_id[part.first]))
        return is_open

    def _has_lost_nothing(self, part: _Part) -> bool:
        """Return whether the log lost nothing from a transaction on, as far as the dump shows."""
        is_lost = self.found.is_end_lost or self._is_before_log(part.first)
        return part.ended_by is _End.LOG and not is_lost and not self._gaps(part.first, None)

    def _is_before_log(self, row: int) -> bool:
        """Return whether a row stands for batches before the log."""
        return int(self.found.rows.base_offset[row]) < self.found.start_offset

    def _groups(self, part: _Part, marker: Ending | None) -> list[_Group]:
        """Return batches without a lost marker between them, and the end of their transaction."""
        whole = (part.first, part.end)
        key, outcomes = self._key(part), self.outcomes()
        by_epoch = outcomes.by_epoch(key)
        candidates = list(map(self._ended, outcomes.by_time(key)))
        if marker is not None and (not candidates or candidates[-1].outcome is not marker.outcome):
            candidates = []
        found = None if by_epoch is None else self._ended(by_epoch)
        if found is None and len({each.outcome for each in candidates}) == 1:
            found = candidates[-1]
        if part.aborted is not None:
            is_contradiction = found is not None and found.outcome is Outcome.COMMIT
            abort = Ending(Outcome.ABORT, key.epoch, is_pending=False)
            return [_Group(*whole, None if is_contradiction else abort)]
        if found is None and not candidates:
            found = outcomes.by_markers(key)
        if found is None and part.ended_by is _End.LOST and self._are_covered(part):
            found = Ending(Outcome.COMMIT, key.epoch, is_pending=False)
        if found is None and self.is_whole_cluster and self._has_lost_nothing(part):
            # No coordinator can end it, and an operator can only abort it.
            found = Ending(Outcome.ABORT, key.epoch, is_pending=False)
        if found is not None:
            return [_Group(*whole, found)]
        return self._aligned(part, marker, candidates)

    def _ended(self, ending: Ending) -> Ending:
        """Return the end of a transaction without a coordinator: abort, as by its timeout."""
        if self.has_coordinator or ending.outcome is not Outcome.OPEN:
            return ending
        return ending._replace(outcome=Outcome.ABORT)

    def _aligned(
        self, part: _Part, marker: Ending | None, candidates: Sequence[Ending]
    ) -> list[_Group]:
        """Return the batches between lost gaps with the only outcome that their order allows."""
        rows, before = self.found.rows, part.before
        gap = rows.gap[part.first : part.end]
        starts = [0, *(np.flatnonzero(np.diff(gap)) + 1).tolist(), len(gap)]
        is_first_known = self.found.start_offset == 0 or before is not None
        is_first_known &= rows.gap[part.first] == (0 if before is None else rows.gap[before])
        is_last_known = marker is not None and gap[-1] == rows.gap[part.following]
        groups = []
        for number, (start, end) in enumerate(pairwise(starts)):
            possible = list(candidates)
            if number == 0 and is_first_known:
                possible = possible[:1]
            if end == len(gap) and is_last_known and marker is not None:
                possible = [marker]
            is_clear = len({each.outcome for each in possible}) == 1
            ending = possible[-1] if is_clear else None
            groups.append(_Group(part.first + start, part.first + end, ending))
        return groups

    def _key(self, part: _Part) -> TransactionKey:
        rows, before, until = self.found.rows, part.before, part.following
        is_until = until is not None and rows.control_type[until] >= CONTROL_ABORT
        return TransactionKey(
            self.partition,
            int(rows.producer_id[part.first]),
            int(rows.epoch[part.end - 1]),
            -1 if before is None else int(rows.time_ms[before]),
            int(rows.time_ms[until]) if is_until else INT64_MAX,
        )

    def _gaps(self, row: int, following: int | None) -> range:
        """Return the lost gaps after a row and before another one, or the log end."""
        gap = self.found.rows.gap
        return range(int(gap[row]), self._end_gap if following is None else int(gap[following]))

    def _are_covered(self, part: _Part) -> bool:
        """Return whether an abort marker in the gaps would be in a transaction index."""
        gaps = self._gaps(part.first, part.following)
        return all(self.indexes.cover(self.found.gaps[number]) for number in gaps)

    def _mark(self, part: _Part, ending: Ending, *, is_known: bool = True) -> bool:
        """Write a marker after batches; return False if there is no offset for it."""
        place = self._place(part)
        if place is None:
            return False
        offset, gap = place
        rows, before = self.found.rows, part.before
        producer_id = int(rows.producer_id[part.first])
        self._taken.add(offset)
        self._markers[offset] = write_end_transaction_marker(
            offset,
            gap.timestamp_ms,
            producer_id,
            ending.epoch,
            is_commit=ending.outcome is Outcome.COMMIT,
            coordinator_epoch=0 if before is None else int(rows.coordinator_epoch[before]),
            leader_epoch=gap.leader_epoch,
        )
        start = rows.base_offset[part.first]
        self._notes.append(
            f"offset {offset}: wrote the lost transaction marker of producer {producer_id} again; "
            f"its transaction from offset {start} was {ending.outcome}"
            if is_known
            else f"offset {offset}: aborted the transaction of producer {producer_id} from offset "
            f"{start}, which is before the log; its outcome is unknown"
        )
        return True

    def _place(self, part: _Part) -> tuple[int, Gap] | None:
        """Return an offset for a marker after batches, and the gap in which it is."""
        gaps = [self.found.gaps[each] for each in self._gaps(part.end - 1, part.following)]
        if part.aborted is not None:
            offset = part.aborted.last_offset
            for gap in gaps:
                if gap.first_offset <= offset <= gap.last_offset:
                    return offset, gap
        for gap in reversed(gaps):
            for offset in range(gap.last_offset, gap.first_offset - 1, -1):
                if offset not in self._taken:
                    return offset, gap
        if part.following is not None or not self.may_append:
            return None
        self._next_offset += 1
        return self._next_offset - 1, self.found.gaps[self._end_gap]

    def _drop(self, group: _Part) -> None:
        """Leave batches out; abort a transaction that would stay open without them."""
        first, end = group.first, group.end
        if self._is_before_log(first):
            abort = Ending(Outcome.ABORT, int(self.found.rows.epoch[end - 1]), is_pending=False)
            if not self._mark(group, abort, is_known=False) and group.following is None:
                self.open_producers.append(int(self.found.rows.producer_id[first]))
            first += 1
        if first == end:
            return
        rows = self.found.rows.take(slice(first, end))
        self._dropped.update(rows.base_offset.tolist())
        first_offset, last_offset = int(rows.base_offset[0]), int(rows.last_offset[-1])
        records = int((rows.last_offset - rows.base_offset + 1).sum())
        self._lost.append(
            LostRange(
                first_offset,
                "",
                first_offset,
                last_offset,
                UNKNOWN_OUTCOME,
                f"the transaction marker of producer {rows.producer_id[0]} is lost, and its "
                "outcome is unknown: the transaction's records are dropped, and the records of "
                "other producers between them are kept",
                records=None if self.is_compacted else records,
            )
        )
