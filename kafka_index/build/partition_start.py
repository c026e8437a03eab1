"""The state a broker recovers a partition from: checkpoints, and perhaps a snapshot."""

from __future__ import annotations

import os
from dataclasses import dataclass

from kafka_index.errors import CorruptSnapshotError, InputError, KafkaIndexError
from kafka_index.layout.checkpoints import EpochEntry
from kafka_index.layout.names import (
    LEADER_EPOCH_CHECKPOINT,
    SNAPSHOT_SUFFIX,
    TopicPartition,
    parse_segment_file,
)
from kafka_index.state.leader_epochs import LeaderEpochCache
from kafka_index.state.partition_state import PartitionState, ProducerExpiration
from kafka_index.state.producer_snapshot import decode_snapshot
from kafka_index.storage import SegmentFile
from kafka_index.storage.log_directory import LogDirectory, read_checkpoint_text


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
    """

    state: PartitionState
    log_start_offset: int
    epochs: tuple[EpochEntry, ...]
    epochs_text: str | None
    note: str | None

    @classmethod
    def read(
        cls,
        first: SegmentFile,
        expiration: ProducerExpiration | None,
        *,
        with_epochs: bool = True,
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

        Raises
        ------
        InputError
            A checkpoint cannot be read or is malformed, as a broker does not start on it.

        Notes
        -----
        ``ProducerStateManager.truncateAndReload``: the latest snapshot that is above the log's
        start and not after the segment's base offset is loaded; a damaged one is skipped.
        """
        directory = first.partition_directory
        path = os.path.join(directory, LEADER_EPOCH_CHECKPOINT)
        text = read_checkpoint_text(path) if with_epochs else None
        try:
            epochs = LeaderEpochCache.from_text(text or "", path=path)
        except KafkaIndexError as error:
            error.hint = "repair or remove the file, or leave epochs out of --what"
            raise
        partition = TopicPartition(first.topic, first.partition)
        log_start = LogDirectory(os.path.dirname(directory)).log_start_offset(partition) or 0
        notes = []
        entries = None
        for offset in _snapshots(directory, above=log_start, up_to=first.base_offset):
            path = os.path.join(directory, f"{offset:020d}{SNAPSHOT_SUFFIX}")
            try:
                entries = decode_snapshot(_read(path), path=path)
            except CorruptSnapshotError as error:
                notes.append(f"skipped: {error}")
                continue
            notes.append(f"earlier producers are from {os.path.basename(path)}")
            break
        if entries is None and first.base_offset > log_start:
            notes.append(
                f"the log begins at {first.base_offset}, and no snapshot there has the "
                "producers and transactions before it"
            )
        return cls(
            PartitionState(entries, epochs, expiration),
            log_start,
            epochs.entries,
            text,
            "; ".join(notes) or None,
        )


def _snapshots(directory: str, *, above: int, up_to: int) -> list[int]:
    """Return the offsets of a folder's snapshots in a range, the latest first."""
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                parsed = parse_segment_file(entry.name)
                if parsed is None or parsed.kind != SNAPSHOT_SUFFIX or parsed.transient:
                    continue
                if above < parsed.base_offset <= up_to and entry.is_file():
                    found.append(parsed.base_offset)
    except OSError as error:
        raise InputError(f"cannot read the directory: {error.strerror}", path=directory) from error
    return sorted(found, reverse=True)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InputError(f"cannot read the snapshot: {error.strerror}", path=path) from error
