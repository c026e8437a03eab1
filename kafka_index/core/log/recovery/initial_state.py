"""The state from which a broker recovers a partition: checkpoints, and possibly a snapshot."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from kafka_index.core.errors import InputError, KafkaIndexError
from kafka_index.core.format.checkpoints import EpochEntry
from kafka_index.core.format.leader_epochs import LeaderEpochCache
from kafka_index.core.format.names import LEADER_EPOCH_CHECKPOINT
from kafka_index.core.fs.directories import scan_directory
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import Entry
from kafka_index.core.log.state.partition_state import PartitionState, ProducerExpiration
from kafka_index.core.log.state.snapshots import (
    is_out_of_range,
    list_snapshots,
    load_latest_snapshot,
    snapshot_path,
    snapshots_among,
)
from kafka_index.core.logdir.data_directory import DataDirectory
from kafka_index.core.logdir.metadata_files import read_text
from kafka_index.core.logdir.partition_files import SegmentFile, TieredPartition


@dataclass(frozen=True, slots=True)
class PartitionStart:
    """The state before a partition's first segment.

    `checkpointed_log_start` is the entry of ``log-start-offset-checkpoint``, None if there is none.
    `epochs` and `epochs_text` are the content of ``leader-epoch-checkpoint``. `note` is an
    information for users. `entries` are the entries of a remote log directory.
    """

    state: PartitionState
    checkpointed_log_start: int | None
    epochs: tuple[EpochEntry, ...]
    epochs_text: str | None
    note: str | None
    entries: Sequence[Entry] | None = None

    @property
    def log_start_offset(self) -> int:
        return self.checkpointed_log_start or 0

    @classmethod
    def read(
        cls,
        first: SegmentFile,
        expiration: ProducerExpiration | None,
        *,
        with_epochs: bool = True,
        tiered: TieredPartition | None = None,
        log_start_offset: int | None = None,
        run_id: str = "",
        listed: Sequence[Entry] | None = None,
    ) -> PartitionStart:
        """Read the files next to the first segment of a partition.

        As in ``ProducerStateManager.truncateAndReload``, the latest valid snapshot above the log
        start and at or below the base offset is loaded. `expiration` removes idle producers. For a
        remote first segment, `tiered` is used instead. If `log_start_offset` is given, the
        checkpoint is not read. With a run ID, checkpoints are read once for all partitions of the
        run. `listed` are the directory entries, if known. Raises `InputError` if this process may
        not read a checkpoint, or if the leader epochs are malformed: a broker would not start.
        """
        if tiered is not None:
            return cls._of_tiered(first, expiration, tiered)
        if not first.has_log:
            note = _missing_producers(first) if first.base_offset else None
            return cls(PartitionState(None, LeaderEpochCache(), expiration), None, (), None, note)
        directory = first.partition_directory
        path = os.path.join(directory, LEADER_EPOCH_CHECKPOINT)
        if listed is None and store_of(directory).needs_requests:
            listed = scan_directory(directory)
        has_epochs = listed is None or any(entry.path == path for entry in listed)
        text = read_text(path) if with_epochs and has_epochs else None
        try:
            epochs = LeaderEpochCache.from_text(text or "", path=path)
        except KafkaIndexError as error:
            error.hint = "repair or remove the file, or leave epochs out of --what"
            raise
        checkpointed = log_start_offset
        if checkpointed is None:
            read = _data_directory if run_id else _data_directory.__wrapped__
            checkpointed = read(os.path.dirname(directory), run_id).log_start_offset(
                first.topic_partition
            )
        log_start = checkpointed or 0
        try:
            snapshots = list_snapshots(directory) if listed is None else snapshots_among(listed)
            offsets = [
                offset
                for offset in snapshots
                if not is_out_of_range(offset, log_start, first.base_offset)
            ]
            found, entries, damaged = load_latest_snapshot(directory, offsets)
        except OSError as error:
            raise InputError(
                f"cannot read the snapshots: {error.strerror}", path=error.filename or directory
            ) from error
        notes = [f"skipped: {error}" for _, error in damaged]
        if found is not None:
            name = os.path.basename(snapshot_path(directory, found))
            notes.append(f"earlier producers are from {name}")
        if entries is None and first.base_offset > log_start:
            notes.append(_missing_producers(first))
        return cls(
            PartitionState(entries, epochs, expiration),
            checkpointed,
            epochs.entries,
            text,
            "; ".join(notes) or None,
            listed,
        )

    @classmethod
    def _of_tiered(
        cls,
        first: SegmentFile,
        expiration: ProducerExpiration | None,
        tiered: TieredPartition,
    ) -> PartitionStart:
        """Return the state before the first remote segment, for which no snapshot is kept."""
        epochs = LeaderEpochCache(tiered.epochs)
        notes = []
        if tiered.is_lower_bound:
            notes.append("the log may start later than its first segment")
        if first.base_offset:
            notes.append(_missing_producers(first))
        return cls(
            PartitionState(None, epochs, expiration),
            tiered.log_start_offset,
            tiered.epochs,
            epochs.text(),
            "; ".join(notes) or None,
        )


@lru_cache(8)
def _data_directory(path: str, run_id: str) -> DataDirectory:
    del run_id
    return DataDirectory(path)


def _missing_producers(first: SegmentFile) -> str:
    return (
        f"the log begins at {first.base_offset}, and no snapshot there has the "
        "producers and transactions before it"
    )
