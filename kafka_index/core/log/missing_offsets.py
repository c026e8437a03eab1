"""Missing offsets of a partition, and whether compaction removed them.

There are three cases:

- Compaction removed them if they are below the cleaner checkpoint, or before a batch that only the
  log cleaner can have written.
- Compaction cannot have removed them if the topic is not compacted, or if they are at the end of
  the active segment.
- Otherwise the cause is unknown: a replica that fetched from a cleaned leader lacks offsets above
  its own cleaner checkpoint.

Sources: Kafka's ``Cleaner``, ``LogCleanerManager``, ``MemoryRecords.filterTo``.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

import numpy as np

from kafka_index.core.format.names import COMPACTED_INTERNAL_TOPICS, TopicPartition
from kafka_index.core.job.result import OffsetGap
from kafka_index.core.log.scan.log_offsets import Gap, LogOffsets
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.logdir.data_directory import DataDirectory
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.logdir.segment_table import has_entries_beyond
from kafka_index.core.records.record_sections import Decompressor

#: Why missing offsets at the end of a partition are lost, and not compacted.
BY_CHECKPOINTS = (
    "a checkpoint shows that the log was longer, and compaction never removes the end of a log"
)
#: Why the missing offsets of a deleted segment are lost.
BY_INDEXES = (
    "a segment was deleted, but its index files remain; compaction deletes index files with their "
    "segment"
)
#: Why missing offsets at the end of a segment are lost.
BY_LATER_ENTRIES = (
    "index entries for the missing offsets exist; compaction removes index entries with their "
    "batches"
)


class Cause(Enum):
    COMPACTED = "compacted"
    LOST = "lost"
    UNKNOWN = "unknown"


class GapLocation(Enum):
    """The location of missing offsets: before, between or after the batches of a partition."""

    HEAD = "head"
    WITHIN = "within"
    TAIL = "tail"


@dataclass(frozen=True, slots=True)
class Cleaning:
    """How far a replica was compacted, according to topic settings, cleaner checkpoint and batches.

    Attributes
    ----------
    is_compacted
        True if the topic is or was compacted, None if unknown.
    cleaned_to
        The log cleaner has processed all offsets below this offset. None if unknown.
    """

    is_compacted: bool | None = None
    cleaned_to: int | None = None

    @classmethod
    def from_policy(
        cls, topic: str, checkpoint: int | None, policy: str | None, *, is_topic_known: bool
    ) -> Cleaning:
        """Combine an entry of the cleaner checkpoint and ``cleanup.policy``.

        `checkpoint` is the entry of the partition. `is_topic_known` is True if the cluster metadata
        contains the topic. A known topic without `policy` has Kafka's default, ``delete``.
        """
        if topic in COMPACTED_INTERNAL_TOPICS or checkpoint is not None:
            return cls(is_compacted=True, cleaned_to=checkpoint)
        if not is_topic_known:
            return cls()
        return cls(is_compacted="compact" in (policy or ""))

    def extended_to(self, marked_to: int) -> Cleaning:
        """Return a copy that includes a mark of the log cleaner (`LogOffsets.marked_to`)."""
        if not marked_to:
            return self
        return Cleaning(is_compacted=True, cleaned_to=max(self.cleaned_to or 0, marked_to))

    def unexplained_reason(self) -> str:
        """Return why compaction is not known to have removed the missing offsets."""
        if self.is_compacted is False:
            return "the topic is not compacted"
        if self.is_compacted is None:
            return (
                "without the metadata log of the cluster, it cannot be known whether compaction "
                "removed the offsets"
            )
        progress = (
            "no checkpoint shows that this replica was cleaned"
            if self.cleaned_to is None
            else f"this replica was cleaned only up to offset {self.cleaned_to}"
        )
        return (
            f"the topic is compacted, and {progress}; it cannot be known whether the records are "
            "lost, or compaction removed them from the leader"
        )


@dataclass(frozen=True, slots=True)
class CheckpointOffsets:
    """Offsets of a partition according to the checkpoints of its data directory.

    Attributes
    ----------
    cleaning
        Compaction according to the cleaner checkpoint and the topic settings.
    start_offset
        Log start offset according to its checkpoint, None without an entry. Offsets below it do not
        count as missing.
    end_offset
        High watermark or recovery point, whichever is higher: the log end offset was at least this
        offset. None if the log was truncated on purpose.
    is_start_exact
        True after a clean shutdown: the checkpoint of the log start offset is not older than the
        segments.
    """

    cleaning: Cleaning
    start_offset: int | None = None
    end_offset: int | None = None
    is_start_exact: bool = False

    @classmethod
    def read(
        cls,
        root: DataDirectory,
        partition: TopicPartition,
        policy: str | None,
        *,
        is_topic_known: bool,
    ) -> CheckpointOffsets:
        """Read the checkpoints of a data directory. For `policy`, see `Cleaning.from_policy`."""
        cleaned_to = root.cleaned_to(partition)
        return cls(
            Cleaning.from_policy(
                partition.topic, cleaned_to, policy, is_topic_known=is_topic_known
            ),
            root.log_start_offset(partition),
            root.committed_end(partition),
            root.is_clean,
        )


@dataclass(frozen=True, slots=True)
class MissingRange:
    """A range of offsets that a partition should contain, but no batch does.

    Attributes
    ----------
    first_offset, end_offset
        The missing offsets; the end is exclusive.
    log
        Index of the segment with the next batch; if no batch follows, of the last segment.
    position_bytes
        Position of the next batch in its ``.log`` file; if no batch follows, the end of the last
        batch.
    why
        Explains the cause to users.
    """

    first_offset: int
    end_offset: int
    log: int
    position_bytes: int
    location: GapLocation = GapLocation.WITHIN
    cause: Cause = Cause.UNKNOWN
    why: str = ""

    @property
    def last_offset(self) -> int:
        return self.end_offset - 1

    def as_gap(self, partition: TopicPartition, log_path: str) -> OffsetGap:
        return OffsetGap(
            partition.topic,
            partition.partition,
            self.first_offset,
            self.end_offset,
            self.cause is Cause.LOST,
            self.why,
            log_path,
            self.position_bytes,
        )

    def is_continued_by(self, following: MissingRange) -> bool:
        """Return whether both ranges are lost and adjacent, so that they can be merged."""
        is_next = (self.log, self.location, self.end_offset) == (
            following.log,
            following.location,
            following.first_offset,
        )
        return is_next and self.cause is following.cause is Cause.LOST


@dataclass(slots=True)
class ScannedLog:
    """The offsets of a segment, or of a range of its batches, after a scan.

    Attributes
    ----------
    segment
        The segment, which is read again if the batch headers do not show the cause of a gap.
    is_read
        False if the segment was unreadable. Offsets next to it are not reported as missing.
    damage_end
        The offset after corrupt batches at the end of the segment, according to their headers. None
        if the end is not corrupt.
    has_counts
        True if the scan counted the records of all batches, so `offsets` has all marks of the log
        cleaner.
    listed
        The listed segment, if `segment` is a copy of it.
    """

    segment: SegmentFile
    offsets: LogOffsets
    is_read: bool = True
    damage_end: int | None = None
    has_counts: bool = False
    listed: SegmentFile | None = None

    @property
    def end_offset(self) -> int:
        """The offset after the last batch, even if this batch is corrupt."""
        return max(self.offsets.end_offset, self.damage_end or 0)

    def find_cleaner_marks(self, decompressor: Decompressor) -> bool:
        """Count the records of the segment; return whether this finds marks of the log cleaner.

        Raises `KafkaIndexError` if the log cannot be read.
        """
        if not self.is_read or self.has_counts:
            return False
        self.offsets.find_cleaner_marks(self.segment, decompressor)
        return self.offsets.marked_to > 0


def scan_log(segment: SegmentFile, cleaned_to: int, size_bytes: int | None = None) -> ScannedLog:
    """Read the batch headers of a segment, up to a position or the first invalid header.

    Raises `KafkaIndexError` if the log cannot be read.
    """
    offsets = LogOffsets(segment.base_offset, cleaned_to)
    for batches in LogFileSource.of_segment(segment, verify_crc=False, recovers=False).chunks():
        rows = batches.rows
        if size_bytes is not None:
            ends = batches.position_bytes + batches.size_bytes
            rows = int(np.searchsorted(ends, size_bytes, "right"))
        offsets.observe(batches.slice(0, rows))
        if rows < batches.rows:
            break
    return ScannedLog(segment, offsets)


@dataclass(slots=True)
class MissingOffsets:
    """The missing offsets of a partition, with their causes.

    Attributes
    ----------
    cleaning
        Compaction according to checkpoints, topic settings and batches.
    ranges
        Missing ranges in offset order, also ranges that compaction removed.
    omitted_counts
        Number of gaps that `ranges` omits because there are too many, keyed by the index of their
        segment.
    lost_bases
        Base offsets of deleted segments that contained offsets at or above the log start offset.
    """

    cleaning: Cleaning
    ranges: list[MissingRange] = field(default_factory=list)
    omitted_counts: dict[int, int] = field(default_factory=dict)
    lost_bases: set[int] = field(default_factory=set)

    @property
    def unexplained(self) -> list[MissingRange]:
        return [missing for missing in self.ranges if missing.cause is not Cause.COMPACTED]


def missing_offsets(
    logs: Sequence[ScannedLog],
    checkpoint_offsets: CheckpointOffsets,
    decompressor: Decompressor,
    lost_ends: Mapping[int, int],
    later: Sequence[SegmentFile] = (),
) -> MissingOffsets:
    """Find the missing offsets of a partition and their causes.

    Parameters
    ----------
    logs
        All segments of the partition by base offset, or the ranges of batches that were read.
    checkpoint_offsets
        Offsets according to checkpoints.
    lost_ends
        Deleted segments whose index files remain. Maps each base offset to the offset after its
        last index entry. Their offsets are lost, because compaction deletes index files too.
    later
        Segments after `logs`, in which marks of the log cleaner are searched.

    Raises `KafkaIndexError` if a log cannot be read again.
    """
    start_offset = checkpoint_offsets.start_offset
    for log in logs:
        if log.is_read:
            log.offsets.resolve_messages(log.segment, decompressor)
    ranges = list(_ranges_between_batches(logs, start_offset))
    cleaning = checkpoint_offsets.cleaning.extended_to(
        max((log.offsets.marked_to for log in logs), default=0)
    )
    first_log = next(
        (missing.log for missing in ranges if missing.end_offset > (cleaning.cleaned_to or 0)), None
    )
    if first_log is not None:
        unread = [ScannedLog(segment, LogOffsets.of_unread(segment)) for segment in later]
        for log in reversed([*logs[first_log:], *unread]):
            if log.find_cleaner_marks(decompressor):
                cleaning = cleaning.extended_to(log.offsets.marked_to)
                ranges = list(_ranges_between_batches(logs, start_offset))
                break
    result = MissingOffsets(cleaning)
    losses = _losses_of_logs(logs, lost_ends, start_offset or 0)
    result.lost_bases = set(losses)
    losses |= _losses_of_log_ends(logs, ranges, cleaning)
    lost_base = min(result.lost_bases, default=None)
    classified = [
        *_head_range(logs, start_offset, lost_base, is_exact=checkpoint_offsets.is_start_exact)
    ]
    for missing in ranges:
        classified += _classify(missing, cleaning)
    for missing in classified:
        for subrange in _split_at_losses(missing, losses):
            previous = result.ranges[-1] if result.ranges else None
            if previous is not None and previous.is_continued_by(subrange):
                result.ranges[-1] = replace(previous, end_offset=subrange.end_offset)
            else:
                result.ranges.append(subrange)
    result.ranges += _tail_ranges(logs, checkpoint_offsets.end_offset, cleaning, losses)
    for number, log in enumerate(logs):
        omitted = log.offsets.gap_count - len(log.offsets.gaps)
        is_cleaned = log.offsets.end_offset <= (cleaning.cleaned_to or 0)
        if log.is_read and omitted and not is_cleaned:
            result.omitted_counts[number] = omitted
    return result


def _ranges_between_batches(
    logs: Sequence[ScannedLog], start_offset: int | None
) -> Iterator[MissingRange]:
    """Yield the missing ranges from the first base offset to the end of the last segment."""
    start = start_offset or 0
    previous_end: int | None = None
    for number, log in enumerate(logs):
        if not log.is_read:
            previous_end = None
            continue
        base_offset, gaps = log.offsets.base_offset, list(log.offsets.gaps)
        if previous_end is not None and previous_end < base_offset:
            gap = Gap(previous_end, base_offset, 0, None)
            if gaps and gaps[0].first_offset == base_offset:
                # The gap continues to the first batch of this segment.
                gap = gaps.pop(0)._replace(first_offset=previous_end)
            gaps.insert(0, gap)
        for gap in gaps:
            if gap.end_offset > start:
                yield MissingRange(
                    max(gap.first_offset, start),
                    gap.end_offset,
                    number,
                    gap.position_bytes,
                    why=gap.error or "",
                )
        previous_end = max(log.end_offset, previous_end or 0)


def _classify(missing: MissingRange, cleaning: Cleaning) -> Iterator[MissingRange]:
    """Split a missing range at `Cleaning.cleaned_to`, and set the causes of both parts."""
    limit = min(max(cleaning.cleaned_to or 0, missing.first_offset), missing.end_offset)
    if missing.first_offset < limit:
        why = f"the log cleaner has processed all offsets below {cleaning.cleaned_to}"
        yield replace(missing, end_offset=limit, cause=Cause.COMPACTED, why=why)
    if limit == missing.end_offset:
        return
    is_lost = cleaning.is_compacted is False and not missing.why
    cause = Cause.LOST if is_lost else Cause.UNKNOWN
    why = cleaning.unexplained_reason()
    if missing.why:
        why = f"the batch after the missing offsets cannot be read: {missing.why}"
    yield replace(missing, first_offset=limit, cause=cause, why=why)


class _Loss(NamedTuple):
    """The exclusive end of a range of offsets that are certainly lost, and the reason."""

    end_offset: int
    why: str


def _losses_of_log_ends(
    logs: Sequence[ScannedLog], missing_ranges: Iterable[MissingRange], cleaning: Cleaning
) -> dict[int, _Loss]:
    """Return the losses at segment ends: index files have entries for the missing offsets."""
    losses = {}
    for missing in missing_ranges if cleaning.is_compacted is not False else ():
        previous, log = logs[missing.log - 1], logs[missing.log]
        first, end = previous.end_offset, log.offsets.base_offset
        is_between = missing.log > 0 and missing.first_offset < end
        if not is_between or previous.segment.base_offset == log.segment.base_offset:
            continue
        if has_entries_beyond(previous.listed or previous.segment, first, end):
            losses[first] = _Loss(end, BY_LATER_ENTRIES)
    return losses


def _losses_of_logs(
    logs: Sequence[ScannedLog], lost_ends: Mapping[int, int], start_offset: int
) -> dict[int, _Loss]:
    """Return the losses of deleted segments whose index files remain, keyed by base offset."""
    base_offsets = [log.offsets.base_offset for log in logs]
    losses = {}
    for lost_base, lost_end in sorted(lost_ends.items()):
        following = bisect(base_offsets, lost_base)
        end = base_offsets[following] if following < len(base_offsets) else lost_end
        is_within = following > 0 and lost_base < logs[following - 1].end_offset
        if end > start_offset and not is_within:
            losses[lost_base] = _Loss(end, BY_INDEXES)
    return losses


def _split_at_losses(missing: MissingRange, losses: Mapping[int, _Loss]) -> Iterator[MissingRange]:
    """Split a missing range at the bounds of losses, and mark its parts in a loss as lost."""
    for lost_base, (lost_end, why) in sorted(losses.items()):
        first, end = max(lost_base, missing.first_offset), min(lost_end, missing.end_offset)
        if missing.cause is Cause.LOST or first >= end:
            continue
        if missing.first_offset < first:
            yield replace(missing, end_offset=first)
        yield replace(missing, first_offset=first, end_offset=end, cause=Cause.LOST, why=why)
        if end == missing.end_offset:
            return
        missing = replace(missing, first_offset=end)
    yield missing


def _head_range(
    logs: Sequence[ScannedLog], start_offset: int | None, lost_base: int | None, *, is_exact: bool
) -> Iterator[MissingRange]:
    """Yield the offsets from log start to first segment; compaction never removes these."""
    base_offset = logs[0].offsets.base_offset
    start = lost_base if start_offset is None else start_offset
    if start is None or start >= base_offset or not logs[0].is_read:
        return
    cause, why = Cause.LOST, "the log start checkpoint was written at a clean shutdown"
    if not is_exact or start_offset is None:
        cause = Cause.UNKNOWN
        why = "if retention deleted the records after the checkpoint was written, no record is lost"
    yield MissingRange(start, base_offset, 0, 0, GapLocation.HEAD, cause, why)


def _tail_ranges(
    logs: Sequence[ScannedLog],
    checkpoint_end: int | None,
    cleaning: Cleaning,
    losses: Mapping[int, _Loss],
) -> Iterator[MissingRange]:
    """Yield missing offsets after the last batch, according to checkpoints or index files."""
    last_log = logs[-1]
    end = last_log.end_offset
    if checkpoint_end is None or not last_log.is_read:
        return
    tail = MissingRange(
        end, checkpoint_end, len(logs) - 1, last_log.offsets.end_bytes, GapLocation.TAIL
    )
    later_ends = {base: loss.end_offset for base, loss in losses.items() if base >= end}
    if later_ends:
        # The last existing segment was not the active segment, so its end may have been cleaned.
        first = min(later_ends)
        if end < first:
            yield from _classify(replace(tail, end_offset=first), cleaning)
        lost_end = max(checkpoint_end, *later_ends.values())
        yield replace(
            tail, first_offset=first, end_offset=lost_end, cause=Cause.LOST, why=BY_INDEXES
        )
    elif checkpoint_end > end:
        yield replace(tail, cause=Cause.LOST, why=BY_CHECKPOINTS)
