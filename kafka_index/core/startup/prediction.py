"""Result types of a prediction: for a segment, a partition and all directories of a broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.errors import StartRefusedError
from kafka_index.core.format.checkpoints import EpochEntry
from kafka_index.core.log.missing_offsets import Cause, MissingRange


class SegmentAction(StrEnum):
    """What startup does to a segment."""

    KEEP = "keep"
    REBUILD = "rebuild"
    CUT = "cut"
    DELETE = "delete"
    REPLACE = "replace"


class Outcome(StrEnum):
    """What startup does to a partition."""

    LOADED = "loaded"
    STRAY = "stray"
    EMPTIED = "emptied"
    REPLACED = "replaced"
    REFUSED = "refused"


class Verdict(StrEnum):
    """The overall result of a predicted startup."""

    SAFE = "safe"
    LOSES = "loses"
    DOES_NOT_SERVE = "does_not_serve"
    DOES_NOT_START = "does_not_start"
    UNKNOWN = "unknown"


class NotPredictedError(StartRefusedError):
    """It is unknown whether a broker starts with this file."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a broker does not start.

    Parameters
    ----------
    file : str
        The file or directory on which the broker fails.
    line : int or None
        Line number in a checkpoint.
    reason : str
        What is wrong.
    """

    file: str
    line: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class SegmentPrediction:
    """What startup does to a segment, with the reason as a code and a detail.

    `cut_at_bytes` is the size of its log after truncation, None if it is not truncated.
    """

    base_offset: int
    action: SegmentAction
    cut_at_bytes: int | None = None
    reason: str | None = None


@dataclass(slots=True)
class LostRecords:
    """Records that are in the files before startup but unreadable for consumers afterwards.

    The offsets are the first and last lost offset. The timestamps are the minimum and maximum of
    the batches with lost records.
    """

    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    first_timestamp_ms: int | None = None
    last_timestamp_ms: int | None = None

    def add(self, records: int, offsets: tuple[int, int], timestamps: tuple[int, int]) -> None:
        """Add records of a range of offsets and timestamps, both ends inclusive."""
        self.records += records
        self.first_offset = _minimum(self.first_offset, offsets[0])
        self.last_offset = _maximum(self.last_offset, offsets[1])
        self.first_timestamp_ms = _minimum(self.first_timestamp_ms, timestamps[0])
        self.last_timestamp_ms = _maximum(self.last_timestamp_ms, timestamps[1])


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """The state of a log after a broker has loaded it.

    `base_offsets` are the base offsets of its segments. `producers` are PRODUCER_STATE_ENTRY rows
    in snapshot order. The earliest open transaction starts at `first_unstable_offset`.
    """

    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    base_offsets: tuple[int, ...]
    epochs: tuple[EpochEntry, ...]
    producers: NDArray[np.void]
    first_unstable_offset: int | None


@dataclass(frozen=True, slots=True)
class PartitionPrediction:
    """The prediction for a partition.

    Parameters
    ----------
    topic, partition
        The partition.
    directory : str
        The partition directory.
    outcome : Outcome
        What startup does to the partition.
    log_start_before, log_end_before : int or None
        Log start and end offset before startup, from its files and checkpoints.
    loaded : LoadedLog or None
        The log after loading, None if it is not loaded.
    high_watermark : int or None
        High watermark after loading.
    lost : LostRecords
        Records that are deleted or become unreadable.
    torn_bytes : int
        Bytes that remain after the last batch of the log, and make later appends unreadable.
    log_start_retained : int or None
        Log start offset after retention has run, 30 seconds after startup. None if unknown.
    segments_to_delete : int
        Number of segments that this retention run deletes.
    bytes_read : int
        Approximate number of bytes that a broker reads from logs and snapshots.
    segments : tuple of SegmentPrediction
        Segments in order of base offset.
    refusal : Refusal or None
        Why the partition keeps the broker from starting.
    missing : tuple of MissingRange
        Missing offsets that compaction does not explain. A broker does not report them.
    records_back : int
        Number of deleted records that reappear.
    unserved : str or None
        Why not all records are served.
    unknown : str or None
        What is unknown about the partition.
    notes : tuple of str
        Further information for the user.
    """

    topic: str
    partition: int
    directory: str
    outcome: Outcome
    log_start_before: int | None = None
    log_end_before: int | None = None
    loaded: LoadedLog | None = None
    high_watermark: int | None = None
    lost: LostRecords = field(default_factory=LostRecords)
    torn_bytes: int = 0
    log_start_retained: int | None = None
    segments_to_delete: int = 0
    bytes_read: int = 0
    segments: tuple[SegmentPrediction, ...] = ()
    refusal: Refusal | None = None
    missing: tuple[MissingRange, ...] = ()
    records_back: int = 0
    unserved: str | None = None
    unknown: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def loses(self) -> bool:
        """Whether records are lost, unreadable or missing, or deleted records reappear."""
        return bool(
            self.outcome is Outcome.EMPTIED
            or self.lost.records
            or self.torn_bytes
            or self.records_back
            or any(gap.cause is Cause.LOST for gap in self.missing)
        )


@dataclass(frozen=True, slots=True)
class StartPrediction:
    """The prediction of a startup: the fields of `kafka_index.Prediction` except directories."""

    verdict: Verdict
    refused: tuple[Refusal, ...]
    partitions: tuple[PartitionPrediction, ...]
    notes: tuple[str, ...]
    has_marker: bool
    unserved: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()
    suggestion: str | None = None


def _minimum(previous: int | None, value: int) -> int:
    return value if previous is None else min(previous, value)


def _maximum(previous: int | None, value: int) -> int:
    return value if previous is None else max(previous, value)
