"""A writable partition log: appends as leader and follower, rolls, truncation and reads.

Source: Kafka's ``UnifiedLog``. The log is the only replica: its high watermark is its end.
"""

from __future__ import annotations

import os
import random

import numpy as np

from kafka_index.core.closeable import Closeable
from kafka_index.core.errors import InputError, KafkaIndexError
from kafka_index.core.format.checkpoints import EpochEntry
from kafka_index.core.format.config import choice_of
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import parse_partition_directory
from kafka_index.core.fs.store import Bytes
from kafka_index.core.index.transaction_index import AbortedTxns
from kafka_index.core.log.append.incoming_batches import (
    AppendInfo,
    FetchData,
    IncomingBatches,
    Isolation,
    as_bytes,
)
from kafka_index.core.log.append.local_log import LocalLog, PartitionLock, Step, remove_leftovers
from kafka_index.core.log.append.log_loader import EpochFile, LoadConditions, LogLoader
from kafka_index.core.log.append.log_segment_writer import Clock, LogSegmentWriter, system_clock
from kafka_index.core.log.append.log_validator import assign_as_leader, check_as_follower
from kafka_index.core.log.append.producer_state_manager import ProducerStateManager, SnapshotFiles
from kafka_index.core.log.append.producers import DuplicateBatch
from kafka_index.core.log.append.settings import LogSettings
from kafka_index.core.log.state.partition_state import last_stable_offset_of_log
from kafka_index.core.log.state.producer_append import AppendOrigin

Data = bytes | bytearray | memoryview | Bytes


class PartitionLogWriter(Closeable):
    """The log of one partition, open for appending.

    Parameters
    ----------
    directory : path
        The partition directory, ``<topic>-<partition>``, created if it does not exist. Its data
        directory is locked like by a broker.
    settings : LogSettings, optional
        Settings of the topic.
    log_start_offset : int
        Kafka's checkpoint of it, 0 for none.
    was_clean : bool
        Whether the log was closed after its last append; otherwise all segments are recovered.
    clock : callable, optional
        Returns the time in ms.
    random_source : random.Random, optional
        Source of the roll jitter.

    Raises
    ------
    PublishError
        The directory is locked by another process or log, or is not writable.
    InputError
        It is not a partition directory, or was not closed.

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
                "not the name of a partition directory",
                path=self.directory,
                expected="<topic>-<partition>",
            )
        os.makedirs(self.directory, exist_ok=True)
        self._is_broken = False
        self._hold = PartitionLock(self.directory)
        try:
            self._load(log_start_offset, was_clean=was_clean)
        except BaseException:
            self._local.close_handlers()
            self._hold.release()
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
        """The first offset of the earliest open transaction, or the end of the log."""
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
        """Append batches with the next offsets of the log, each as a separate append.

        Parameters
        ----------
        batches : bytes
            Consecutive v2 batches.
        leader_epoch : int
            Epoch of this leader, 0 or more.
        origin : AppendOrigin
            A client, or a coordinator, which may write markers.

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
        origin = choice_of(AppendOrigin, origin, "origin")
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
                data = _without(as_bytes(data), incoming, duplicate.row)
                continue
            return AppendInfo.of(incoming, tuple(duplicates))
        if duplicates:
            return AppendInfo(duplicates=tuple(duplicates))
        raise InputError("there is no batch to append")

    def append_as_follower(self, batches: Data, leader_epoch: int) -> AppendInfo:
        """Append fetched batches unchanged, as a single append, like a follower.

        Parameters
        ----------
        batches : bytes
            Consecutive batches with offsets and leader epochs.
        leader_epoch : int
            The epoch in which they were fetched. Batches from the first one with a later epoch on
            are not appended.

        Raises
        ------
        CorruptLogError, InputError, InvalidEpochError, IndexFullError, PublishError
            They cannot be appended. Nothing has been appended.
        """
        return self._replicate(batches, leader_epoch, as_one_append=True)

    def append_each_as_follower(self, batches: Data, leader_epoch: int) -> AppendInfo:
        """Append batches like `append_as_follower`, but each as a separate append.

        Segments can be rolled between any two of them, as if a follower had fetched them one by
        one.
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
        """Start a new segment at the end of the log."""
        self._check_usable()
        self._roll_to(self.log_end_offset, self._local.jitter())
        return self.active_segment

    def begin_active_segment_at(self, offset: int) -> None:
        """Move the start of an active segment without batches to a later offset.

        A broker leaves such a segment behind if an offset does not fit in it. Its largest timestamp
        is then that of its file, and searches by time end there.
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
            Absolute, between the start and the end of the log.
        max_bytes : int
            Maximum size of the result, which never spans segments.
        isolation : Isolation
            Upper bound. Committed reads also return aborted transactions.
        min_one_message : bool
            Return the first batch completely, whatever its size.

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
        is_committed = choice_of(Isolation, isolation, "isolation") is Isolation.TXN_COMMITTED
        return self._local.read(
            start_offset,
            max_bytes,
            end_offset=self.last_stable_offset if is_committed else self.log_end_offset,
            include_aborted=is_committed,
            min_one_message=min_one_message,
        )

    def truncate_to(self, offset: int) -> bool:
        """Truncate before the batch that contains an offset; return whether anything was removed.

        Source: ``UnifiedLog.truncateTo``.
        """
        self._check_usable()
        if offset < 0:
            raise InputError("cannot truncate to this offset", expected="0 or more", found=offset)
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
        """Remove everything and start the log at an offset."""
        self._check_usable()
        self._local.truncate_fully_and_start_at(offset)
        self.log_start_offset = offset
        self._epochs.clear()
        self._producer_state.start_at(offset)
        self._producer_state.rebuild(
            self._local.segments, offset, offset, after_clean_shutdown=False
        )

    def flush(self) -> None:
        """Make all appends durable."""
        self._check_usable()
        self._local.flush()

    def close(self) -> None:
        """Flush, write a producer snapshot, trim all files and close them.

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
            self._hold.release()

    def _append(self, batches: IncomingBatches, ends: Longs, origin: AppendOrigin) -> None:
        """Plan and validate all appends before the first write."""
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
        """Roll back an append that failed partway."""
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
                "an append failed, and its bytes could not be removed",
                path=self.directory,
                hint="close the log and open it with was_clean=False",
            )


def _without(data: Bytes, batches: IncomingBatches, row: int) -> Bytes:
    start = int(batches.columns.position_bytes[row])
    end = start + int(batches.columns.size_bytes[row])
    return np.concatenate([data[:start], data[end:]])
