"""The values of a prediction: of a segment, a partition, and all directories of a broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from kafka_index.core.errors import StartRefusedError
from kafka_index.core.format.checkpoints import EpochEntry
from kafka_index.core.log.missing_offsets import Cause, MissingRange


class SegmentAction(StrEnum):
    """The action of a start on a segment."""

    KEEP = "keep"
    REBUILD = "rebuild"
    CUT = "cut"
    DELETE = "delete"
    REPLACE = "replace"


class Outcome(StrEnum):
    """The outcome of a start for a partition."""

    LOADED = "loaded"
    STRAY = "stray"
    EMPTIED = "emptied"
    REPLACED = "replaced"
    REFUSED = "refused"


class Verdict(StrEnum):
    """The verdict on a start."""

    SAFE = "safe"
    LOSES = "loses"
    DOES_NOT_SERVE = "does_not_serve"
    DOES_NOT_START = "does_not_start"
    UNKNOWN = "unknown"


class NotPredictedError(StartRefusedError):
    """Whether a broker starts with it is not known."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a broker does not start.

    Parameters
    ----------
    file : str
        What it fails on.
    line : int or None
        The line of a checkpoint.
    reason : str
        Why.
    """

    file: str
    line: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class SegmentPrediction:
    """The prediction for a segment: the action of a broker, and why, as a code and a detail.

    `cut_at_bytes` is the size of its log afterwards, None if it is not cut.
    """

    base_offset: int
    action: SegmentAction
    cut_at_bytes: int | None = None
    reason: str | None = None


@dataclass(slots=True)
class LostRecords:
    """Records that are in the files, and that no consumer gets after the start.

    The offsets are the range that they lie in, the timestamps the smallest and the largest of their
    batches.
    """

    records: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    first_timestamp_ms: int | None = None
    last_timestamp_ms: int | None = None

    def add(self, records: int, offsets: tuple[int, int], timestamps: tuple[int, int]) -> None:
        """Add records of a range of offsets and of timestamps, both ends included."""
        self.records += records
        self.first_offset = _least(self.first_offset, offsets[0])
        self.last_offset = _most(self.last_offset, offsets[1])
        self.first_timestamp_ms = _least(self.first_timestamp_ms, timestamps[0])
        self.last_timestamp_ms = _most(self.last_timestamp_ms, timestamps[1])


@dataclass(frozen=True, slots=True)
class LoadedLog:
    """A log as a broker has it after loading; the base offsets are those of its segments.

    `producers` are rows of PRODUCER_STATE_ENTRY, in the order of a snapshot. The earliest open
    transaction begins at `first_unstable_offset`.
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
        Its name.
    directory : str
        Its directory.
    outcome : Outcome
        What happens.
    log_start_before, log_end_before : int or None
        What its files and checkpoints say.
    loaded : LoadedLog or None
        The log after loading; None where it is not loaded.
    high_watermark : int or None
        After loading.
    lost : LostRecords
        What is lost or hidden.
    torn_bytes : int
        What stays in its last log after the last batch, and hides whatever is appended.
    log_start_retained : int or None
        The log start once retention has deleted what is too old or too much, 30 seconds after the
        start; None where that is not known.
    segments_to_delete : int
        How many retention deletes then.
    bytes_read : int
        How much of its logs and snapshots a broker reads, approximately.
    segments : tuple of SegmentPrediction
        By base offset.
    refusal : Refusal or None
        Why it keeps the broker from starting.
    missing : tuple of MissingRange
        Offsets that no log has, and that compaction does not explain: a broker serves what is
        around them, and says nothing.
    records_back : int
        How many records that were deleted come back.
    unserved : str or None
        The reason why not all records are served.
    unknown : str or None
        What of it cannot be known.
    notes : tuple of str
        What cannot be known, or is worth knowing.
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
        """Whether records are lost, hidden or missing, or deleted ones come back."""
        return bool(
            self.outcome is Outcome.EMPTIED
            or self.lost.records
            or self.torn_bytes
            or self.records_back
            or any(each.cause is Cause.LOST for each in self.missing)
        )


@dataclass(frozen=True, slots=True)
class StartPrediction:
    """The prediction of a start on the directories of a broker.

    Parameters
    ----------
    verdict : Verdict
        The verdict.
    refused : tuple of Refusal
        The reasons why the broker does not start.
    partitions : tuple of PartitionPrediction
        By directory, topic and number.
    notes : tuple of str
        Facts that do not change the verdict.
    has_marker : bool
        Whether a directory was loaded as after a clean shutdown.
    unserved : tuple of str
        Why partitions are not served, or not completely, besides the reasons of single partitions.
    unknown : tuple of str
        What was not read or is not known; then no start is safe.
    not_judged : tuple of str
        What was not given, and is therefore not part of the verdict.
    suggestion : str or None
        A start that loses less.
    """

    verdict: Verdict
    refused: tuple[Refusal, ...]
    partitions: tuple[PartitionPrediction, ...]
    notes: tuple[str, ...]
    has_marker: bool
    unserved: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    not_judged: tuple[str, ...] = ()
    suggestion: str | None = None


def _least(before: int | None, value: int) -> int:
    return value if before is None else min(before, value)


def _most(before: int | None, value: int) -> int:
    return value if before is None else max(before, value)
