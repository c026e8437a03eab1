"""The ends of the logs of a run, so that every transaction is in all of them or in none.

``__transaction_state`` is cut first, and the logs hold more: transactions that began later, or
ended. A log ends before the first transactional or control batch that the states do not know; it
was appended after they were cut. From what is left coordinators go on: they abort a transaction
that is open, everywhere, write the markers of a decided transaction, and no log has an epoch that
its coordinator does not know.

The partitions of ``__transaction_state`` are not cut at one moment, so that the end of a log can
take away what another of them, cut later, counts on. That one ends earlier then: before it knew
that all markers were written, or that the transaction was decided. So it goes on until nothing
changes; what is lost is newer than the first cut. A point in time is such a cut, too.

Epochs tell transactions apart where a producer gets a new one with each (``transaction.version`` 2,
clients since 4.0): records of epoch e are ended by a marker of epoch e + 1, and the next records
have e + 1. Else (clients before) the epoch stays, and the times of markers tell: brokers' clocks
have to agree to within the length of a transaction. Source: ``TransactionMetadata``,
``TransactionCoordinator.endTransaction``, ``ProducerAppendInfo.checkProducerEpoch``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.cluster.metadata.decoding import TopicLog
from kafka_index.core.cluster.metadata.topic_states import (
    Transaction,
    TransactionLogState,
    transaction_change,
)
from kafka_index.core.errors import CorruptRecordError, KafkaIndexError
from kafka_index.core.format.integers import INT64_MAX, Longs
from kafka_index.core.format.names import TRANSACTION_STATE_TOPIC, TopicPartition
from kafka_index.core.format.records import CONTROL_MASK, TRANSACTIONAL_MASK
from kafka_index.core.job.threads import map_requests
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.records.decompression import DecompressionBudget

_EMPTY, _ONGOING = "Empty", "Ongoing"
_PREPARED = ("PrepareCommit", "PrepareAbort")
# The first version whose producers get a new epoch with each transaction.
_EPOCH_BUMP = 2
# Above all epochs: of a producer id that another has replaced.
_REPLACED = 1 << 16
_THREADS = 16

_Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RunLog:
    """A log of a run, whose segments are joined out of consecutive parts.

    All batches below `settled_offset` were appended before ``__transaction_state`` was cut. `parts`
    are the base offsets and sizes in bytes of what the segments were joined from; without them each
    segment is one. The log ends at `end_offset`, or before a batch later than `end_ms`.
    """

    partition: TopicPartition
    segments: Sequence[SegmentFile]
    settled_offset: int = 0
    parts: Sequence[tuple[int, int]] = ()
    end_offset: int = INT64_MAX
    end_ms: int = INT64_MAX

    def settled_position(self, segment: SegmentFile) -> int:
        """Return a position of a batch in a segment, before all that are not settled."""
        position = before = 0
        for base_offset, size_bytes in self.parts:
            if base_offset < segment.base_offset:
                continue
            if base_offset > self.settled_offset:
                break
            position, before = before, before + size_bytes
        return position


class _Batches(NamedTuple):
    """Transactional batches and markers of a log; `time_ms` is that of markers."""

    offset: Longs
    producer_id: Longs
    epoch: Longs
    is_marker: _Mask
    time_ms: Longs

    def of(self, rows: _Mask) -> _Batches:
        """Return some of them."""
        columns: Any = tuple(column[rows] for column in self)
        return _Batches._make(columns)


@dataclass(slots=True)
class _CutLog:
    """A log of records of transactions, and where it ends now."""

    log: RunLog
    batches: _Batches
    end_offset: int

    @classmethod
    def read(cls, log: RunLog) -> _CutLog:
        parts, end_offset = [], log.end_offset
        for segment, start_bytes in _unsettled(log):
            for all_batches, beyond in _scan(segment, start_bytes, log.end_ms):
                parts.append(all_batches)
                end_offset = min(end_offset, beyond)
        if not parts:
            none = np.empty(0, np.int64)
            return cls(log, _Batches(none, none, none, none.astype(bool), none), end_offset)
        batches = _Batches(*map(np.concatenate, zip(*parts, strict=True)))
        return cls(log, batches.of(batches.offset >= log.settled_offset), end_offset)


@dataclass(slots=True)
class _StateLog:
    """A partition of ``__transaction_state``: its states, those before them, where it ends now."""

    log: RunLog
    end_offset: int
    settled: dict[str, Transaction] = field(default_factory=dict)
    later: list[tuple[int, str, Transaction | None]] = field(default_factory=list)
    faults: list[KafkaIndexError] = field(default_factory=list)

    @classmethod
    def read(cls, log: RunLog, budget: DecompressionBudget) -> _StateLog:
        end_offset = log.end_offset
        if log.end_ms < INT64_MAX:
            end_offset = _CutLog.read(log).end_offset
        found = cls(log, end_offset)
        settled, records = TransactionLogState(), TopicLog(log.segments, budget)
        for record in records.records():
            try:
                if record.offset < log.settled_offset:
                    settled.add(record)
                elif (change := transaction_change(record)) is not None:
                    found.later.append((record.offset, *change))
            except CorruptRecordError as error:
                found.faults.append(error)
        found.settled = {one.transactional_id: one for one in settled.transactions()}
        found.faults += records.faults
        return found

    def now(self) -> dict[str, Transaction]:
        """Return the states at its end."""
        states = dict(self.settled)
        for offset, name, transaction in self.later:
            if offset >= self.end_offset:
                break
            if transaction is None:
                states.pop(name, None)
            else:
                states[name] = transaction
        return states

    def end_before_last_of(self, names: Iterable[str]) -> bool:
        """End before the last record of each id; return whether there is any."""
        last = {name: at for at, name, _ in self.later if at < self.end_offset}
        ends = [last[name] for name in names if name in last]
        self.end_offset = min([self.end_offset, *ends])
        return bool(ends)


class _Judged(NamedTuple):
    """Batches of a log: unknown to the states, or what they count on, and the rows of those."""

    is_unknown: _Mask
    is_needed: _Mask
    row: NDArray[np.intp]


class _States:
    """The states of transactional ids, as columns."""

    def __init__(self, states: Mapping[str, Transaction], begun_ms: int) -> None:
        self._begun_ms = begun_ms
        rows = [(one.producer_id, one, one.producer_epoch) for one in states.values()]
        rows += [
            (one.previous_producer_id, one, _REPLACED)
            for one in states.values()
            if one.previous_producer_id not in (None, one.producer_id)
        ]
        rows.sort(key=lambda row: (row[0], -row[2]))
        self._states = [one for _, one, _ in rows]
        self._ids = np.array([producer_id for producer_id, *_ in rows], np.int64)
        self._epochs = np.array([epoch for *_, epoch in rows], np.int64)
        names = np.array([one.state for one in self._states], object)
        self._is_empty: _Mask = names == _EMPTY
        self._is_open: _Mask = names == _ONGOING
        self._is_decided: _Mask = np.isin(names, _PREPARED)
        versions = np.array([one.client_version for one in self._states], np.int64)
        self._by_epoch: _Mask = self._is_empty | (versions >= _EPOCH_BUMP)

    @cached_property
    def _listed(self) -> Mapping[TopicPartition, list[int]]:
        found: dict[TopicPartition, list[int]] = defaultdict(list)
        for row, one in enumerate(self._states):
            for place in one.partitions:
                found[TopicPartition(*place)].append(row)
        return found

    def name_of(self, row: int) -> str:
        """Return the transactional id of a row."""
        return self._states[row].transactional_id

    def judge(self, cut: _CutLog) -> _Judged:
        """Return what the states say of the batches of a log."""
        batches = cut.batches
        count = len(batches.offset)
        rows = np.searchsorted(self._ids, batches.producer_id)
        rows[rows == len(self._ids)] = 0
        judged = _Judged(np.zeros(count, bool), np.zeros(count, bool), rows)
        has_state = np.zeros(count, bool)
        if len(self._ids):
            has_state = self._ids[rows] == batches.producer_id
            self._judge_by_epoch(cut, judged, has_state)
            by_time = has_state & ~self._by_epoch[rows] & (batches.epoch == self._epochs[rows])
            for row in np.unique(rows[by_time]):
                self._judge_by_times(cut, judged, np.flatnonzero(by_time & (rows == row)))
        for producer_id in np.unique(batches.producer_id[~has_state]):
            # Batches of an id that has expired are older than the run, its markers too.
            own = np.flatnonzero(batches.producer_id == producer_id)
            old = batches.is_marker[own] & (batches.time_ms[own] < self._begun_ms)
            judged.is_unknown[own[_last(old) + 1 :]] = True
        return judged

    def _judge_by_epoch(self, cut: _CutLog, judged: _Judged, has_state: _Mask) -> None:
        """Judge the batches of other epochs, and where epochs tell transactions apart."""
        batches, rows = cut.batches, judged.row
        is_open = np.zeros(len(self._ids), bool)
        is_open[self._listed.get(cut.log.partition, [])] = True
        is_open &= self._is_open
        epochs, is_marker = self._epochs[rows], batches.is_marker
        is_same = (batches.epoch == epochs) & has_state
        by_epoch = is_same & self._by_epoch[rows]
        has_begun = np.where(is_marker, ~self._is_empty[rows], is_open[rows])
        judged.is_unknown[:] = (has_state & (batches.epoch > epochs)) | (by_epoch & ~has_begun)
        is_over = by_epoch & is_marker & ~self._is_decided[rows] & ~self._is_empty[rows]
        judged.is_needed[:] = (has_state & (batches.epoch < epochs)) | is_over
        # Servers were upgraded: this epoch was that of earlier transactions, and of their markers.
        for producer_id in np.unique(batches.producer_id[is_over]):
            own = np.flatnonzero(by_epoch & (batches.producer_id == producer_id))
            earlier = own[: _last(is_marker[own]) + 1]
            judged.is_unknown[earlier], judged.is_needed[earlier] = False, True

    def _judge_by_times(self, cut: _CutLog, judged: _Judged, own: NDArray[np.intp]) -> None:
        """Judge the batches of a producer whose transactions all have one epoch."""
        row, log = int(judged.row[own[0]]), cut.log
        state = self._states[row]
        is_marker, time_ms = cut.batches.is_marker[own], cut.batches.time_ms[own]
        is_listed = row in self._listed.get(log.partition, ())
        is_open = self._is_open[row] or self._is_decided[row]
        # Markers are later than the last update, which is that of the decision.
        begun_ms = (state.start_timestamp_ms or 0) if is_open else state.appended_ms
        # Those of the transaction before; then the first one of this transaction ends it.
        earlier = _last(is_marker & (time_ms <= begun_ms)) + 1
        judged.is_needed[own[:earlier]] = True
        if not (is_open and is_listed):
            judged.is_unknown[own[earlier:]] = True
            return
        ends = np.flatnonzero(is_marker & (time_ms > begun_ms))
        end = int(ends[0]) if len(ends) else len(own)
        if self._is_decided[row]:
            if _last_marker_ms(log, state) > begun_ms:
                end = -1
            judged.is_needed[own[:end]] = True
            end += 1
        judged.is_unknown[own[max(end, 0) :]] = True


@dataclass(frozen=True, slots=True)
class Clamp:
    """The logs that end early, and faults of the states that they were judged by."""

    ends: Mapping[TopicPartition, int]
    faults: Sequence[KafkaIndexError]


def clamp_ends(logs: Sequence[RunLog], begun_ms: int, budget: DecompressionBudget) -> Clamp:
    """Return the offsets at which logs of a run end that do not stay as they are.

    `begun_ms` is the time before any of ``__transaction_state`` was cut, whose logs are among the
    given. The end of a log by a time is among the offsets, as far as its batches are not settled.
    """
    states = [
        _StateLog.read(log, budget)
        for log in logs
        if log.partition.topic == TRANSACTION_STATE_TOPIC
    ]
    others = [log for log in logs if log.partition.topic != TRANSACTION_STATE_TOPIC]
    cuts = list(map_requests(_CutLog.read, others, threads=_THREADS, name="transactions"))
    while _shorten(states, cuts, begun_ms):
        pass
    cut_logs: list[_StateLog | _CutLog] = [*states, *cuts]
    ends = {each.log.partition: each.end_offset for each in cut_logs if each.end_offset < INT64_MAX}
    return Clamp(ends, [fault for each in states for fault in each.faults])


def _shorten(states: Sequence[_StateLog], cuts: Sequence[_CutLog], begun_ms: int) -> bool:
    """Cut the logs by the states; then end states before what they count on and logs have not."""
    now: dict[str, Transaction] = {}
    home: dict[str, _StateLog] = {}
    for each in states:
        found = each.now()
        now |= found
        home |= dict.fromkeys(found, each)
    columns = _States(now, begun_ms)
    torn: dict[int, set[str]] = defaultdict(set)
    for cut in cuts:
        if not len(cut.batches.offset):
            continue
        judged = columns.judge(cut)
        unknown = cut.batches.offset[judged.is_unknown]
        if len(unknown):
            cut.end_offset = min(cut.end_offset, int(unknown[0]))
        is_torn = judged.is_needed & (cut.batches.offset >= cut.end_offset)
        for row in np.unique(judged.row[is_torn]):
            name = columns.name_of(int(row))
            torn[id(home[name])].add(name)
    changed = [each.end_before_last_of(torn[id(each)]) for each in states if id(each) in torn]
    return any(changed)


def _last(rows: _Mask) -> int:
    """Return the last place that is true; -1 for none."""
    found = np.flatnonzero(rows)
    return int(found[-1]) if len(found) else -1


def _unsettled(log: RunLog) -> Iterator[tuple[SegmentFile, int]]:
    """Yield the segments with batches that are not settled, and from where on."""
    segments = list(log.segments)
    for segment, after in zip(segments, [*segments[1:], None], strict=True):
        if after is None or after.base_offset > log.settled_offset:
            yield segment, log.settled_position(segment)


def _last_marker_ms(log: RunLog, state: Transaction) -> int:
    """Return the time of the producer's last marker that is settled; -1 for none."""
    for segment in reversed(log.segments):
        if segment.base_offset >= log.settled_offset:
            continue
        times = [
            batches.time_ms[
                batches.is_marker
                & (batches.producer_id == state.producer_id)
                & (batches.offset < log.settled_offset)
            ]
            for batches, _ in _scan(segment, 0, INT64_MAX)
        ]
        found = np.concatenate(times) if times else np.empty(0, np.int64)
        if len(found):
            return int(found[-1])
    return -1


def _scan(segment: SegmentFile, start_bytes: int, end_ms: int) -> Iterator[tuple[_Batches, int]]:
    """Yield the batches of transactions, and the offset of the first batch later than a time."""
    source = LogFileSource(
        segment.log_path, verify_crc=False, listed=segment, start_bytes=start_bytes
    )
    for batches in source.chunks():
        kinds = batches.attributes & (TRANSACTIONAL_MASK | CONTROL_MASK)
        rows = (kinds != 0) & (batches.producer_id >= 0)
        later = np.flatnonzero(batches.max_timestamp_ms > end_ms)
        yield (
            _Batches(
                batches.base_offset[rows],
                batches.producer_id[rows],
                batches.producer_epoch[rows],
                batches.is_control[rows],
                batches.control_timestamp_ms[rows],
            ),
            int(batches.base_offset[later[0]]) if len(later) else INT64_MAX,
        )
