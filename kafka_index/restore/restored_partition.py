"""The outcome of a partition, as it is journaled and reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from kafka_index.layout.names import TopicPartition


class Salvage(StrEnum):
    """The part of a damaged partition that is kept."""

    PREFIX = "prefix"
    BATCHES = "batches"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class LostRange:
    """Records that were in the log, or should be, and are not in the output.

    Parameters
    ----------
    segment_base_offset : int
        Of the segment that they were in, or would follow.
    path : str
        Its log in the dump.
    first_offset, last_offset : int or None
        The offsets that are missing; where the log was compacted, not all of them had a record.
    first_timestamp_ms, last_timestamp_ms : int or None
        The smallest and the largest timestamp, as far as headers say.
    records : int or None
        How many; None where that cannot be known.
    size_bytes : int
        The bytes that were left out; 0 where they are not in the dump.
    position_bytes : int or None
        Where they begin in the log of the dump.
    code, reason : str
        Why, for programs and for people.
    is_known : bool
        Whether it is known that they are lost: compaction or retention may have removed others.
    kept_by_batches : int
        How many of the offsets are in sound batches, which ``--salvage batches`` keeps.
    """

    segment_base_offset: int
    path: str
    first_offset: int | None
    last_offset: int | None
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None
    records: int | None
    size_bytes: int
    position_bytes: int | None
    code: str
    reason: str
    is_known: bool = True
    kept_by_batches: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether no offset is missing."""
        first, last = self.first_offset, self.last_offset
        return first is not None and last is not None and last < first


#: The outcome of an offset that a group committed: it is the end of the log now, or what it was,
#: after that end, or under the old name of the topic.
CLAMPED = "clamped"
BEYOND_END = "beyond_end"
NOT_RENAMED = "not_renamed"

DAMAGED = "damaged"
LOG_START_ABOVE_END = "log_start_above_end"
NO_LOGS = "no_logs"
STRAY = "stray"
INCONSISTENT_TOPIC_ID = "inconsistent_topic_id"
ERROR = "error"


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """An offset that a group committed, and that does not fit what is restored.

    The end offset is None where the partition is not in the output.
    """

    topic: str
    partition: int
    group: str
    offset: int
    end_offset: int | None
    path: str
    status: str = BEYOND_END
    reason: str = ""

    def __str__(self) -> str:
        """Return it for people."""
        what = f"group {self.group} committed {self.offset} of {self.topic}-{self.partition}"
        if self.status == NOT_RENAMED:
            return f"{what}, which stays under that name: {self.reason}"
        what += f", which ends at {self.end_offset}"
        if self.status == CLAMPED:
            return f"{what}: clamped to that"
        return f"{what}; not clamped: {self.reason}" if self.reason else what


@dataclass(slots=True)
class RestoredPartition:
    """The outcome of a partition.

    Parameters
    ----------
    partition : TopicPartition
        The partition.
    source : str
        Its directory in the dump.
    topic_id : str
        Of its topic.
    base_offset, log_start_offset, log_end_offset : int
        Of the restored log: where its first segment is, where it starts, and where it ends.
    segments, size_bytes : int
        How many logs there are, and their size.
    last_epoch : int
        The largest leader epoch of its batches and epochs; -1 for none.
    max_producer_id : int
        The largest producer id of its batches and snapshots; -1 for none.
    is_limited : bool
        Whether the log ends before that of the dump, as was asked for.
    open_producers : list of int
        The producers with a transaction that is open at the end.
    lost : list of LostRange
        What is not in the output.
    clamped : list of GroupOffset
        Of a partition of ``__consumer_offsets``: the offsets that were clamped in it.
    notes : list of str
        What is worth knowing.
    code, reason : str or None
        Why it was left out; None where it was restored.
    retriable : bool
        It was left out because of permission, disk, memory or network.
    """

    partition: TopicPartition
    source: str
    topic_id: str
    base_offset: int = 0
    log_start_offset: int = 0
    log_end_offset: int = 0
    segments: int = 0
    size_bytes: int = 0
    last_epoch: int = -1
    max_producer_id: int = -1
    is_limited: bool = False
    open_producers: list[int] = field(default_factory=list)
    lost: list[LostRange] = field(default_factory=list)
    clamped: list[GroupOffset] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    code: str | None = None
    reason: str | None = None
    retriable: bool = False

    @property
    def is_left_out(self) -> bool:
        """Whether it is not in the output."""
        return self.code is not None

    def leave_out(self, code: str, reason: str, *, retriable: bool = False) -> None:
        """Record that it is not in the output."""
        self.code, self.reason, self.retriable = code, reason, retriable


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """The outcome of a restore.

    Parameters
    ----------
    partitions : sequence of RestoredPartition
        All of them, sorted.
    runbook : str or None
        What remains to be done; None where the restore has to be run again to be complete.
    output : str
        The output directory.
    beyond_end : sequence of GroupOffset
        Offsets that groups committed after the ends of logs.
    not_renamed : sequence of GroupOffset
        Offsets that groups committed of topics under their old names.
    clamps : bool
        Whether they were to be clamped.
    lacks_metadata : bool
        Whether the metadata log that was copied is damaged.
    """

    partitions: Sequence[RestoredPartition]
    runbook: str | None
    output: str
    beyond_end: Sequence[GroupOffset] = ()
    not_renamed: Sequence[GroupOffset] = ()
    clamps: bool = False
    lacks_metadata: bool = False

    @property
    def has_unclamped(self) -> bool:
        """Whether an offset that was to be clamped is not."""
        return self.clamps and any(one.status == BEYOND_END for one in self.beyond_end)
