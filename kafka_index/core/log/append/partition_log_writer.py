"""A writable partition log: append as leader or follower, roll, truncate and read.

Loading a log changes its files as a broker would. However, loading fails if a broker would silently
delete records or make records unreadable. Like a running broker, a process with a writable log
locks the ``.lock`` file of the data directory. The log is the only replica, so its high watermark
is the log end offset.

Sources: Kafka's ``LocalLog`` and ``UnifiedLog``.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from kafka_index.core.contexts import Closeable
from kafka_index.core.errors import (
    CorruptIndexError,
    CorruptLogError,
    InputError,
    KafkaIndexError,
    PublishError,
)
from kafka_index.core.format.checkpoints import EpochEntry
from kafka_index.core.format.config import to_choice
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    parse_partition_directory,
    parse_segment_file,
    segment_file_name,
)
from kafka_index.core.format.records import MAGIC_RECORD_BATCH
from kafka_index.core.fs.durable_files import sync
from kafka_index.core.fs.store import Bytes
from kafka_index.core.index.sparse_indexes import OffsetPosition
from kafka_index.core.index.transaction_index import AbortedTxns, collect_aborted_txns
from kafka_index.core.kernels.append_batches import GROWTH_SIZE
from kafka_index.core.log.append.incoming_batches import (
    AbortedTransaction,
    AppendInfo,
    AppendOrigin,
    FetchData,
    IncomingBatches,
    Isolation,
    SegmentPlan,
    as_bytes,
    assign_as_leader,
    check_as_follower,
    growth_limits,
    new_growth,
    plan_for_segment,
)
from kafka_index.core.log.append.log_loader import EpochFile, LoadConditions, LogLoader
from kafka_index.core.log.append.log_segment_writer import (
    Clock,
    LogSegmentWriter,
    floor_segment,
    system_clock,
)
from kafka_index.core.log.append.producer_state_manager import (
    DuplicateBatch,
    ProducerStateManager,
    SnapshotFiles,
)
from kafka_index.core.log.append.settings import LogSettings
from kafka_index.core.log.state.partition_state import last_stable_offset_of_log
from kafka_index.core.output.locks import DirectoryLock

_locks_guard = threading.Lock()
_locks: dict[str, tuple[DirectoryLock, set[str]]] = {}


class LogOffsetMetadata(NamedTuple):
    """An offset, and the segment and position of its batch (Kafka: ``LogOffsetMetadata``)."""

    offset: int
    segment_base_offset: int
    position_bytes: int


@dataclass(frozen=True, slots=True)
class Step:
    """A step of an append plan: an optional roll, and then appends to one segment.

    `roll_to` and `jitter_ms` are the base offset and roll jitter of the new segment. Without a
    roll, `roll_to` is None.
    """

    roll_to: int | None
    jitter_ms: int
    first_append: int
    plan: SegmentPlan


class LocalLog:
    """The segments of a partition, the active segment last; `LogLoader` fills the list.

    `end_offset` is the offset of the next record. All records before `recovery_point` are durable.
    """

    def __init__(
        self,
        directory: str,
        settings: LogSettings,
        clock: Clock,
        random_source: random.Random,
    ) -> None:
        self.directory = directory
        self.settings = settings
        self.clock = clock
        self._random = random_source
        self.segments: list[LogSegmentWriter] = []
        self.end_offset = 0
        self.recovery_point = 0

    @property
    def active_segment(self) -> LogSegmentWriter:
        return self.segments[-1]

    def jitter(self) -> int:
        """Return a random roll jitter in ms (``LogConfig.randomSegmentJitter``)."""
        max_jitter_ms = self.settings.segment_jitter_ms
        if not max_jitter_ms:
            return 0
        return self._random.randrange(min(max_jitter_ms, self.settings.segment_ms))

    def open_segment(
        self, base_offset: int, jitter_ms: int, *, create: bool = False
    ) -> LogSegmentWriter:
        """Open the segment with a base offset; with `create`, create an empty segment."""
        if create:
            # A failed roll may have left files with the same base offset.
            for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.directory, segment_file_name(base_offset, suffix)))
        return LogSegmentWriter(
            self.directory,
            base_offset,
            self.settings,
            create=create,
            roll_jitter_ms=jitter_ms,
            clock=self.clock,
        )

    def open_segments(self) -> Iterator[LogSegmentWriter]:
        """Open the segments in the directory, in order of base offset."""
        parsed = (parse_segment_file(name) for name in os.listdir(self.directory))
        for base_offset in sorted(
            name.base_offset
            for name in parsed
            if name is not None and name.kind == LOG_SUFFIX and not name.transient
        ):
            yield self.open_segment(base_offset, self.jitter())

    def create_segment(self, base_offset: int) -> LogSegmentWriter:
        return self.open_segment(base_offset, self.jitter(), create=True)

    def delete_segment(self, segment: LogSegmentWriter) -> None:
        segment.delete()

    def check_closed(self, segment: LogSegmentWriter) -> None:
        """Reject a segment that its last writer did not close, even after a clean shutdown.

        Raises `InputError` if an index file fails its sanity check, or bytes follow the last
        complete batch.
        """
        try:
            segment.offset_index.sanity_check()
            segment.time_index.sanity_check()
            end = segment.read_end()
            if end.end_bytes != segment.size_bytes:
                raise CorruptLogError(
                    f"the valid batches end at byte {end.end_bytes} of {segment.size_bytes}"
                )
            if segment.size_bytes and end.next_offset == segment.base_offset:
                raise CorruptIndexError("the last index entry does not point to a batch")
        except KafkaIndexError as error:
            raise InputError(
                f"the log was not closed: {error.message}",
                path=segment.log.path,
                hint="open the log with was_clean=False to recover it",
            ) from error

    def check_log_start(self, log_start_offset: int, log_end_offset: int) -> None:
        """Reject a log that ends below its start offset: a broker would delete all its segments."""
        raise InputError(
            "the log end offset is below the log start offset",
            path=self.directory,
            expected=f"{log_start_offset} or more",
            found=log_end_offset,
            hint="a broker would delete all segments; give the correct log_start_offset",
        )

    def plan(self, batches: IncomingBatches, ends: Longs) -> list[Step]:
        """Plan rolls and appends of batches that have offsets, without writing.

        `ends` has, for each append, the row after its last batch. Raises `InputError` if a new
        segment would have the base offset of a segment with batches, and the errors of
        `plan_for_segment`.
        """
        active, now_ms = self.active_segment, self.clock()
        base, limits, growth = active.base_offset, active.limits(), active.growth()
        end_offset = self.end_offset
        roll_to: int | None = None
        jitter_ms = append = 0
        steps = []
        while True:
            plan = plan_for_segment(batches, ends, append, limits, growth, may_roll=roll_to is None)
            steps.append(Step(roll_to, jitter_ms, append, plan))
            append = plan.next_append
            if append == len(ends):
                return steps
            row = int(ends[append - 1]) if append else 0
            if row:
                end_offset = int(batches.columns.last_offset[row - 1]) + 1
            roll_to = max(_roll_offset(batches, row, int(ends[append])), end_offset)
            if roll_to <= base and plan.state[GROWTH_SIZE]:
                raise InputError(
                    "the log cannot be rolled: the active segment has the same base offset",
                    path=self.directory,
                    expected=f"an offset above {base}",
                    found=roll_to,
                )
            jitter_ms = self.jitter()
            base = roll_to
            growth = new_growth(base)
            limits = growth_limits(
                self.settings, base, jitter_ms=jitter_ms, created_ms=now_ms, now_ms=now_ms
            )

    def append(self, batches: IncomingBatches, ends: Longs, step: Step) -> None:
        plan = step.plan
        if plan.next_append == step.first_append:
            return
        first = int(ends[step.first_append - 1]) if step.first_append else 0
        end = int(ends[plan.next_append - 1])
        self.active_segment.append_plan(batches.rows(first, end), plan, first)
        self.end_offset = int(batches.columns.last_offset[end - 1]) + 1

    def roll_to(self, base_offset: int, jitter_ms: int) -> None:
        """Create a new active segment, which replaces an empty one with the same base offset."""
        active = self.active_segment
        if active.base_offset == base_offset:
            active.delete()
            self.segments.pop()
        else:
            active.become_inactive()
        self.segments.append(self.open_segment(base_offset, jitter_ms, create=True))

    def replace_empty_active_segment(self, offset: int) -> None:
        self.segments.pop().delete()
        self.segments.append(self.create_segment(offset))
        self.end_offset = offset

    def read(
        self,
        start_offset: int,
        max_bytes: int,
        *,
        end_offset: int,
        include_aborted: bool,
        min_one_message: bool,
    ) -> FetchData:
        """Read batches like ``PartitionLogWriter.read``, but up to `end_offset` (LocalLog.read)."""
        end = self._find_position(end_offset)._replace(offset=end_offset)
        if start_offset >= end_offset:
            position = end if start_offset == end_offset else self._find_position(start_offset)
            return FetchData(*position, aborted_transactions=() if include_aborted else None)
        for number in range(floor_segment(self.segments, start_offset), len(self.segments)):
            segment = self.segments[number]
            if segment.base_offset > end.segment_base_offset:
                break
            is_last = segment.base_offset == end.segment_base_offset
            fetched = segment.read(
                start_offset,
                max_bytes,
                max_position_bytes=end.position_bytes if is_last else segment.size_bytes,
                min_one_message=min_one_message,
            )
            if fetched is not None:
                return (
                    self._add_aborted_transactions(number, fetched, start_offset)
                    if include_aborted
                    else fetched
                )
        return FetchData(*self._find_position(self.end_offset))

    def truncate_to(self, offset: int) -> list[int]:
        """Remove all batches from an offset on; return the base offsets of the deleted segments."""
        deleted = []
        while self.segments[-1].base_offset > offset:
            segment = self.segments.pop()
            segment.delete()
            deleted.append(segment.base_offset)
        self.active_segment.truncate_to(offset)
        self.end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
        return deleted

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Delete all segments, and create an empty segment at an offset."""
        for segment in self.segments:
            segment.delete()
        self.segments = [self.create_segment(offset)]
        self.end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)

    def flush(self) -> None:
        for segment in self.segments[floor_segment(self.segments, self.recovery_point) :]:
            segment.flush()
        sync([self.directory], "flush the folder")
        self.recovery_point = self.end_offset

    def close(self) -> None:
        for segment in self.segments:
            segment.close()
        self.segments = []

    def close_handlers(self) -> None:
        """Close all files without trimming them."""
        for segment in self.segments:
            segment.close_handlers()
        self.segments = []

    def _find_position(self, offset: int) -> LogOffsetMetadata:
        """Return the position of the batch with an offset; at or above the log end, the log end."""
        if offset < self.end_offset:
            for segment in self.segments[floor_segment(self.segments, offset) :]:
                batch = segment.offset_to_position(offset)
                if batch is not None:
                    return LogOffsetMetadata(batch.offset, segment.base_offset, batch.position)
        active = self.active_segment
        return LogOffsetMetadata(self.end_offset, active.base_offset, active.size_bytes)

    def _add_aborted_transactions(
        self, number: int, fetched: FetchData, start_offset: int
    ) -> FetchData:
        """Add the aborted transactions in the range of a read (LocalLog.addAbortedTransactions)."""
        start = OffsetPosition(fetched.base_offset, fetched.position_bytes)
        later = self.segments[number:]
        bound = later[0].offset_index.fetch_upper_bound_offset(start, len(fetched.records))
        if bound is not None:
            upper = bound.offset
        else:
            upper = later[1].base_offset if len(later) > 1 else self.end_offset
        entries = collect_aborted_txns(
            (segment.transaction_index for segment in later), start_offset, upper
        )
        pairs = zip(entries["producer_id"].tolist(), entries["first_offset"].tolist(), strict=True)
        return replace(
            fetched, aborted_transactions=tuple(AbortedTransaction(*pair) for pair in pairs)
        )


def _roll_offset(batches: IncomingBatches, first: int, end: int) -> int:
    if batches.columns.magic[first] >= MAGIC_RECORD_BATCH:
        return int(batches.columns.base_offset[first])
    # The first offset of a compressed v0 or v1 message is unknown. An append spans at most 2^31
    # offsets.
    return int(batches.columns.last_offset[end - 1]) - INT32_MAX


class PartitionLock:
    """Locks a partition directory against brokers, other processes and writers of this process."""

    def __init__(self, directory: str) -> None:
        self._directory = os.path.realpath(directory)
        self._parent = os.path.dirname(self._directory)
        with _locks_guard:
            if self._parent not in _locks:
                lock = DirectoryLock.for_data_directories([self._parent])
                lock.__enter__()
                _locks[self._parent] = lock, set()
            _, partition_directories = _locks[self._parent]
            if self._directory in partition_directories:
                raise PublishError(
                    "this process already appends to the partition",
                    path=self._directory,
                    hint="close the other log first",
                )
            partition_directories.add(self._directory)

    def release(self) -> None:
        with _locks_guard:
            if self._parent not in _locks:
                return
            lock, partition_directories = _locks[self._parent]
            partition_directories.discard(self._directory)
            if not partition_directories:
                lock.release()
                del _locks[self._parent]


_CLEANER_HINT = "let a broker start on the directory first, or move the file away"


def remove_leftovers(directory: str) -> None:
    """Remove ``.deleted`` files, and index files without a ``.log`` file, as a loading broker does.

    Raises `InputError` if a ``.swap`` or ``.cleaned`` file shows that compaction was interrupted.
    """
    names = {name: parse_segment_file(name) for name in sorted(os.listdir(directory))}
    for name, parsed in names.items():
        if parsed is None:
            continue
        path = os.path.join(directory, name)
        if parsed.transient in (SWAP_SUFFIX, CLEANED_SUFFIX):
            raise InputError(
                "the log cleaner was interrupted in the partition", path=path, hint=_CLEANER_HINT
            )
        is_orphan = (
            parsed.kind in INDEX_SUFFIXES
            and segment_file_name(parsed.base_offset, LOG_SUFFIX) not in names
        )
        is_deleted = parsed.transient == DELETED_SUFFIX and parsed.kind != SNAPSHOT_SUFFIX
        if is_deleted or (is_orphan and not parsed.transient):
            os.unlink(path)


Data = bytes | bytearray | memoryview | Bytes


class PartitionLogWriter(Closeable):
    """The log of one partition, open for appending.

    Parameters
    ----------
    directory : path
        The partition directory, ``<topic>-<partition>``, which is created if it does not exist. The
        data directory is locked as by a broker.
    settings : LogSettings, optional
        Settings of the topic.
    log_start_offset : int
        Entry of ``log-start-offset-checkpoint``, 0 without an entry.
    was_clean : bool
        True if the log was closed after its last append. Otherwise, all segments are recovered.
    clock : callable, optional
        Returns the time in ms.
    random_source : random.Random, optional
        Random numbers for the roll jitter.

    Raises
    ------
    PublishError
        The directory is locked by another process or log, or is not writable.
    InputError
        The directory is not a partition directory, or `was_clean` is True, but the log was not
        closed.

    Notes
    -----
    Not thread-safe.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        settings: LogSettings | None = None,
        *,
        log_start_offset: int = 0,
        was_clean: bool = True,
        clock: Clock = system_clock,
        random_source: random.Random | None = None,
    ) -> None:
        self.directory = os.path.abspath(directory)
        self.settings = settings or LogSettings()
        self._clock = clock
        source = random_source or random.SystemRandom()
        self._local = LocalLog(self.directory, self.settings, clock, source)
        if parse_partition_directory(os.path.basename(self.directory)) is None:
            raise InputError(
                "the path is not a partition directory",
                path=self.directory,
                expected="<topic>-<partition>",
            )
        os.makedirs(self.directory, exist_ok=True)
        self._is_broken = False
        self._lock = PartitionLock(self.directory)
        try:
            self._load(log_start_offset, was_clean=was_clean)
        except BaseException:
            self._local.close_handlers()
            self._lock.release()
            raise

    def _load(self, log_start_offset: int, *, was_clean: bool) -> None:
        remove_leftovers(self.directory)
        self._epochs = EpochFile(self.directory)
        loader = LogLoader(
            self._local,
            self._epochs,
            lambda: ProducerStateManager(
                SnapshotFiles(self.directory), self.settings.producer_id_expiration_ms, self._clock
            ),
            LoadConditions(was_clean, log_start_offset=log_start_offset),
        )
        offsets = loader.load()
        self._producer_state = loader.producer_state
        self._local.end_offset = offsets.log_end_offset
        self._local.recovery_point = offsets.recovery_point
        self.log_start_offset = offsets.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self._local.end_offset

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the earliest open transaction; without one, the log end offset."""
        unstable = self._producer_state.producers.first_unstable_offset
        return last_stable_offset_of_log(unstable, self.log_start_offset, self.log_end_offset)

    @property
    def leader_epochs(self) -> tuple[EpochEntry, ...]:
        """The leader epochs and their start offsets."""
        return self._epochs.cache.entries

    @property
    def segments(self) -> tuple[LogSegmentWriter, ...]:
        """All segments, the active segment last."""
        return tuple(self._local.segments)

    @property
    def active_segment(self) -> LogSegmentWriter:
        """The segment that receives appends."""
        return self._local.active_segment

    def append_as_leader(
        self, batches: Data, leader_epoch: int, *, origin: AppendOrigin | str = AppendOrigin.CLIENT
    ) -> AppendInfo:
        """Assign the next offsets to batches, and append each batch separately.

        Parameters
        ----------
        batches : bytes
            Consecutive v2 batches.
        leader_epoch : int
            Epoch of this leader, 0 or more.
        origin : AppendOrigin
            Either a client, or a coordinator, which may append transaction markers.

        Raises
        ------
        CorruptLogError
            A batch cannot be read.
        InputError
            A broker would reject a batch. After any error, nothing has been appended.
        PublishError
            The log cannot be written.
        """
        self._check_usable()
        origin = to_choice(AppendOrigin, origin, "origin")
        data: Data = batches
        duplicates: list[tuple[int, int]] = []
        while len(data):
            incoming = assign_as_leader(
                data,
                self.log_end_offset,
                leader_epoch,
                self.settings,
                origin=origin,
                now_ms=self._clock(),
            )
            try:
                ends = np.arange(1, len(incoming) + 1)
                self._append(incoming, ends, origin)
            except DuplicateBatch as duplicate:
                duplicates.append((duplicate.first_offset, duplicate.last_offset))
                data = _remove_batch(as_bytes(data), incoming, duplicate.row)
                continue
            return AppendInfo.of(incoming, tuple(duplicates))
        if duplicates:
            return AppendInfo(duplicates=tuple(duplicates))
        raise InputError("cannot append: the data contains no batch")

    def append_as_follower(self, batches: Data, leader_epoch: int) -> AppendInfo:
        """Append batches that were fetched from a leader, unchanged and as a single append.

        Parameters
        ----------
        batches : bytes
            Consecutive batches with offsets and leader epochs.
        leader_epoch : int
            The epoch of the leader that returned the batches. The first batch with a later epoch
            and all following batches are not appended.

        Raises
        ------
        CorruptLogError, InputError, InvalidEpochError, IndexFullError, PublishError
            The batches cannot be appended. The log is unchanged.
        """
        return self._replicate(batches, leader_epoch, as_one_append=True)

    def append_each_as_follower(self, batches: Data, leader_epoch: int) -> AppendInfo:
        """Append batches like `append_as_follower`, but each as a separate append.

        A new segment can start at any batch, as if a follower had fetched each batch separately.
        """
        return self._replicate(batches, leader_epoch, as_one_append=False)

    def _replicate(self, batches: Data, leader_epoch: int, *, as_one_append: bool) -> AppendInfo:
        self._check_usable()
        incoming = check_as_follower(
            batches, self.log_end_offset, leader_epoch, self.settings, as_one_append=as_one_append
        )
        if incoming is None:
            return AppendInfo()
        count = len(incoming)
        ends = np.array([count], np.int64) if as_one_append else np.arange(1, count + 1)
        self._append(incoming, ends, AppendOrigin.REPLICATION)
        return AppendInfo.of(incoming)

    def roll(self) -> LogSegmentWriter:
        """Start a new segment at the log end offset."""
        self._check_usable()
        self._roll_to(self.log_end_offset, self._local.jitter())
        return self.active_segment

    def begin_active_segment_at(self, offset: int) -> None:
        """Replace an active segment without batches by one with a later base offset.

        If the next offset does not fit in an empty active segment, a broker rolls and keeps the
        empty segment. Its largest timestamp is the modification time of its ``.log`` file, so a
        search by time would end there.
        """
        self._check_usable()
        self._producer_state.drop_snapshot(self.active_segment.base_offset)
        self._local.replace_empty_active_segment(offset)
        if len(self._local.segments) == 1:
            self.log_start_offset = offset
            self._epochs.truncate_from_start(offset)
        self._producer_state.end_offset = offset
        self._producer_state.take_snapshot(durable=False)

    def read(
        self,
        start_offset: int,
        max_bytes: int,
        *,
        isolation: Isolation | str = Isolation.LOG_END,
        min_one_message: bool = True,
    ) -> FetchData:
        """Read from the batch that contains an offset.

        Parameters
        ----------
        start_offset : int
            Absolute offset, from the log start offset to the log end offset.
        max_bytes : int
            Maximum size of the result in bytes. A result never spans segments.
        isolation : Isolation
            Upper bound of the read. With ``txn_committed``, aborted transactions are returned too.
        min_one_message : bool
            Return the first batch completely, even if it is larger than `max_bytes`.

        Raises
        ------
        InputError
            The offset is out of range.
        """
        self._check_usable()
        if not self.log_start_offset <= start_offset <= self.log_end_offset:
            raise InputError(
                "the offset is out of range",
                expected=f"{self.log_start_offset}..{self.log_end_offset}",
                found=start_offset,
            )
        is_committed = to_choice(Isolation, isolation, "isolation") is Isolation.TXN_COMMITTED
        return self._local.read(
            start_offset,
            max_bytes,
            end_offset=self.last_stable_offset if is_committed else self.log_end_offset,
            include_aborted=is_committed,
            min_one_message=min_one_message,
        )

    def truncate_to(self, offset: int) -> bool:
        """Truncate before the batch that contains an offset; return whether batches were removed.

        Source: ``UnifiedLog.truncateTo``.
        """
        self._check_usable()
        if offset < 0:
            raise InputError(
                "cannot truncate to a negative offset", expected="0 or more", found=offset
            )
        if offset >= self.log_end_offset:
            self._epochs.truncate_from_end(self.log_end_offset)
            return False
        if self._local.segments[0].base_offset > offset:
            self.truncate_fully_and_start_at(offset)
            return True
        for base_offset in self._local.truncate_to(offset):
            self._producer_state.drop_snapshot(base_offset)
        self._epochs.truncate_from_end(offset)
        self.log_start_offset = min(offset, self.log_start_offset)
        self._producer_state.rebuild(
            self._local.segments, self.log_start_offset, offset, after_clean_shutdown=False
        )
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Delete all segments, leader epochs and producers, and start the log at an offset."""
        self._check_usable()
        self._local.truncate_fully_and_start_at(offset)
        self.log_start_offset = offset
        self._epochs.clear()
        self._producer_state.start_at(offset)
        self._producer_state.rebuild(
            self._local.segments, offset, offset, after_clean_shutdown=False
        )

    def flush(self) -> None:
        """Sync all appended batches and index entries to disk."""
        self._check_usable()
        self._local.flush()

    def close(self) -> None:
        """Flush the log, write a producer snapshot, and trim and close all files.

        Source: ``LogManager.shutdown`` and ``UnifiedLog.close``.
        """
        if not self._local.segments:
            return
        try:
            if not self._is_broken:
                self.flush()
                self._producer_state.take_snapshot(durable=True)
            self._local.close()
        finally:
            self._local.segments = []
            self._lock.release()

    def _append(self, batches: IncomingBatches, ends: Longs, origin: AppendOrigin) -> None:
        """Plan and validate all appends, then write them."""
        steps = self._local.plan(batches, ends)
        producers = self._producer_state.producers
        producers.begin_append()
        effects: list[tuple[Step, bytes, AbortedTxns]] = []
        try:
            for step in steps:
                snapshot = producers.snapshot() if step.roll_to is not None else b""
                aborted = producers.append(
                    batches, ends, step.first_append, step.plan.next_append, origin
                )
                effects.append((step, snapshot, aborted))
        except BaseException:
            producers.roll_back()
            raise
        end_before, epochs_before = self.log_end_offset, self._epochs.cache.entries
        try:
            self._epochs.assign(batches)
            for step, snapshot, aborted in effects:
                if step.roll_to is not None:
                    self._roll_to(step.roll_to, step.jitter_ms, snapshot)
                self._local.append(batches, ends, step)
                self._producer_state.end_offset = self.log_end_offset
                if len(aborted):
                    self.active_segment.transaction_index.append_many(aborted)
        except BaseException:
            self._undo(end_before, epochs_before)
            raise

    def _roll_to(self, base_offset: int, jitter_ms: int, snapshot: bytes | None = None) -> None:
        self._local.roll_to(base_offset, jitter_ms)
        self._producer_state.end_offset = base_offset
        self._producer_state.take_snapshot(snapshot, durable=False)

    def _undo(self, end_offset: int, epochs: tuple[EpochEntry, ...]) -> None:
        """Roll back an append that failed after its first write."""
        self._producer_state.producers.roll_back()
        try:
            self._epochs.restore(epochs)
            if self.log_end_offset > end_offset:
                self.truncate_to(end_offset)
        except (KafkaIndexError, OSError):
            self._is_broken = True

    def _check_usable(self) -> None:
        if not self._local.segments:
            raise ValueError(f"the log is closed: {self.directory}")
        if self._is_broken:
            raise InputError(
                "an append failed, and its batches could not be removed",
                path=self.directory,
                hint="close the log and open it with was_clean=False",
            )


def _remove_batch(data: Bytes, batches: IncomingBatches, row: int) -> Bytes:
    start = int(batches.columns.position_bytes[row])
    end = start + int(batches.columns.size_bytes[row])
    return np.concatenate([data[:start], data[end:]])
