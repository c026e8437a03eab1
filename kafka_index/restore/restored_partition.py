"""What became of a partition, as it is journaled and reported."""

from __future__ import annotations

from dataclasses import dataclass, field

from kafka_index.layout.names import TopicPartition
from kafka_index.restore.lost_ranges import LostRange

#: What became of an offset that a group committed: it is the end of the log now, or what it was.
CLAMPED = "clamped"
BEYOND_END = "beyond_end"

DAMAGED = "damaged"
LOG_START_ABOVE_END = "log_start_above_end"
NO_LOGS = "no_logs"
STRAY = "stray"
INCONSISTENT_TOPIC_ID = "inconsistent_topic_id"
ERROR = "error"


@dataclass(frozen=True, slots=True)
class OffsetBeyondEnd:
    """An offset that a group committed, and that lies after the end of the restored log.

    Parameters
    ----------
    topic : str
        That the group consumes.
    partition : int
        Of the topic.
    group : str
        Its name.
    offset : int
        What it committed.
    end_offset : int
        Where the log ends.
    path : str
        The partition of ``__consumer_offsets`` in the output.
    status : str
        `CLAMPED` or `BEYOND_END`.
    reason : str
        Why it was not clamped, where that was asked for; empty otherwise.
    """

    topic: str
    partition: int
    group: str
    offset: int
    end_offset: int
    path: str
    status: str = BEYOND_END
    reason: str = ""

    def __str__(self) -> str:
        """Return it for people."""
        what = (
            f"group {self.group} committed {self.offset} of {self.topic}-{self.partition}, which "
            f"ends at {self.end_offset}"
        )
        if self.status == CLAMPED:
            return f"{what}: clamped to that"
        return f"{what}; not clamped: {self.reason}" if self.reason else what


@dataclass(slots=True)
class RestoredPartition:
    """What became of a partition.

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
    clamped : list of OffsetBeyondEnd
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
    clamped: list[OffsetBeyondEnd] = field(default_factory=list)
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
