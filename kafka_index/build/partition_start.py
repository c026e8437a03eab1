"""The state a broker recovers a partition from: checkpoints, and perhaps a snapshot."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from kafka_index.errors import InputError, KafkaIndexError
from kafka_index.layout.checkpoints import EpochEntry
from kafka_index.layout.names import LEADER_EPOCH_CHECKPOINT, TopicPartition
from kafka_index.state.leader_epochs import LeaderEpochCache
from kafka_index.state.partition_state import PartitionState, ProducerExpiration
from kafka_index.state.snapshots import (
    is_out_of_range,
    list_snapshots,
    load_latest_snapshot,
    snapshot_path,
    snapshots_among,
)
from kafka_index.storage import SegmentFile
from kafka_index.storage.directories import Entry, scan_directory
from kafka_index.storage.log_directory import LogDirectory, read_checkpoint_text
from kafka_index.storage.tiered_partition import TieredPartition
from kafka_index.stores import is_remote


@dataclass(frozen=True, slots=True)
class PartitionStart:
    """The state before a partition's first segment.

    Parameters
    ----------
    state : PartitionState
        Producers and epochs.
    log_start_offset : int
        The entry of ``log-start-offset-checkpoint``, 0 without one.
    epochs : tuple of EpochEntry
        Of the ``leader-epoch-checkpoint``.
    epochs_text : str, optional
        That file, as it is.
    note : str, optional
        What is worth knowing of the start.
    checkpointed_log_start : int, optional
        The entry of ``log-start-offset-checkpoint``; None without one.
    entries : sequence of Entry, optional
        The directory of its logs in a store.
    """

    state: PartitionState
    log_start_offset: int
    epochs: tuple[EpochEntry, ...]
    epochs_text: str | None
    note: str | None
    checkpointed_log_start: int | None = None
    entries: Sequence[Entry] | None = None

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
        """Read the files beside the first segment of a partition.

        Parameters
        ----------
        first : SegmentFile
            Its first segment.
        expiration : ProducerExpiration, optional
            When idle producers are left out.
        with_epochs : bool
            Whether the leader epochs matter.
        tiered : TieredPartition, optional
            What is known of the partition where its first segment may be remote: there is nothing
            beside that.
        log_start_offset : int, optional
            Counts instead of the entry of the checkpoint, which is not read then.
        run_id : str
            A checkpoint is read once for all partitions of a run; without one each time.
        listed : sequence of Entry, optional
            What is known to be beside the logs; otherwise they are listed.

        Raises
        ------
        InputError
            A checkpoint cannot be read or is malformed, as a broker does not start on it.

        Notes
        -----
        ``ProducerStateManager.truncateAndReload``: the latest snapshot that is above the log's
        start and not after the segment's base offset is loaded; a damaged one is skipped.
        """
        if tiered is not None:
            return cls._of_tiered(first, expiration, tiered)
        if not first.has_log:
            note = _missing_producers(first) if first.base_offset else None
            return cls(PartitionState(None, LeaderEpochCache(), expiration), 0, (), None, note)
        directory = first.partition_directory
        path = os.path.join(directory, LEADER_EPOCH_CHECKPOINT)
        if listed is None and is_remote(directory):
            listed = scan_directory(directory)
        has_epochs = listed is None or any(entry.path == path for entry in listed)
        text = read_checkpoint_text(path) if with_epochs and has_epochs else None
        try:
            epochs = LeaderEpochCache.from_text(text or "", path=path)
        except KafkaIndexError as error:
            error.hint = "repair or remove the file, or leave epochs out of --what"
            raise
        partition = TopicPartition(first.topic, first.partition)
        checkpointed = log_start_offset
        if checkpointed is None:
            read = _log_directory if run_id else _log_directory.__wrapped__
            checkpointed = read(os.path.dirname(directory), run_id).log_start_offset(partition)
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
            log_start,
            epochs.entries,
            text,
            "; ".join(notes) or None,
            checkpointed,
            listed,
        )

    @classmethod
    def _of_tiered(
        cls,
        first: SegmentFile,
        expiration: ProducerExpiration | None,
        tiered: TieredPartition,
    ) -> PartitionStart:
        """Return the state before the first remote segment: no snapshot is kept of it."""
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
def _log_directory(path: str, run_id: str) -> LogDirectory:
    del run_id
    return LogDirectory(path)


def _missing_producers(first: SegmentFile) -> str:
    return (
        f"the log begins at {first.base_offset}, and no snapshot there has the "
        "producers and transactions before it"
    )
