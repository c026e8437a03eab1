"""Missing offsets of a partition, and whether compaction explains them.

There are three cases. Compaction explains them if the cleaner checkpoint is above, or if a later
batch has marks that only the log cleaner makes. It cannot explain them if the topic is not
compacted, or if they are at the end, in the active segment. Otherwise it is unknown: a replica that
fetched from a cleaned leader lacks offsets above its own checkpoint. Sources: Kafka's ``Cleaner``,
``LogCleanerManager``, ``MemoryRecords.filterTo``.
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
from kafka_index.core.log.scan.log_offsets import LogOffsets
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.logdir.data_directory import DataDirectory
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.logdir.segment_table import has_entries_beyond
from kafka_index.core.records.record_sections import Decompressor

#: Why offsets at the end of the partition are lost.
BY_CHECKPOINTS = (
    "a checkpoint shows that they existed, and compaction never removes the end of a log"
)
#: Why the offsets of a deleted log are lost.
BY_INDEXES = "a segment was deleted, but its index files remain, and compaction removes both"
#: Why offsets at the end of a log are lost.
BY_LATER_ENTRIES = "the previous index files contain entries for them, and compaction removes both"


class Cause(Enum):
    COMPACTED = "compacted"
    LOST = "lost"
    UNKNOWN = "cannot be known"


class Place(Enum):
    """The position of missing offsets relative to the logs."""

    HEAD = "head"
    WITHIN = "within"
    TAIL = "tail"


@dataclass(frozen=True, slots=True)
class Cleaning:
    """What is known about compaction of a replica.

    `is_compacted` is True if the topic is or was compacted, None if unknown. `cleaned_to` is the
    cleaner checkpoint's entry, the first offset that was not cleaned, None if there is no entry.
    """

    is_compacted: bool | None = None
    cleaned_to: int | None = None

    @classmethod
    def of(
        cls, topic: str, checkpoint: int | None, policy: str | None, *, is_topic_known: bool
    ) -> Cleaning:
        """Combine the cleaner checkpoint and ``cleanup.policy``.

        Without a policy, a topic in the cluster metadata has Kafka's default, ``delete``.
        """
        if topic in COMPACTED_INTERNAL_TOPICS or checkpoint is not None:
            return cls(is_compacted=True, cleaned_to=checkpoint)
        if not is_topic_known:
            return cls()
        return cls(is_compacted="compact" in (policy or ""))

    def with_marks(self, marked_to: int) -> Cleaning:
        """Add the knowledge that a batch below `marked_to` has marks of the log cleaner."""
        if not marked_to:
            return self
        return Cleaning(is_compacted=True, cleaned_to=max(self.cleaned_to or 0, marked_to))

    def why(self) -> str:
        """Return why compaction does not explain missing offsets."""
        if self.is_compacted is False:
            return "the topic is not compacted"
        if self.is_compacted is None:
            return (
                "whether compaction removed them cannot be known without the metadata log of the "
                "cluster"
            )
        reach = (
            "no checkpoint shows that it was cleaned"
            if self.cleaned_to is None
            else f"it was cleaned only up to offset {self.cleaned_to}"
        )
        return (
            f"the topic is compacted, and {reach}: whether they are lost, or were removed from "
            "the leader by compaction, cannot be known"
        )


@dataclass(frozen=True, slots=True)
class KnownOffsets:
    """The offsets of a partition that are known from other sources than its logs.

    Attributes
    ----------
    start_offset
        Log start offset from a checkpoint, None if there is no entry. Earlier offsets are not
        missing.
    is_start_exact
        Whether the checkpoint was written by a clean shutdown and is not older than the logs.
    end_offset
        An offset that the log reached according to checkpoints. None if it was truncated on
        purpose.
    """

    cleaning: Cleaning
    start_offset: int | None = None
    end_offset: int | None = None
    is_start_exact: bool = False

    @classmethod
    def of(
        cls,
        root: DataDirectory,
        partition: TopicPartition,
        policy: str | None,
        *,
        is_topic_known: bool,
    ) -> KnownOffsets:
        """Read the checkpoints of a data directory; the policy is as in `Cleaning.of`."""
        cleaned_to = root.cleaned_to(partition)
        return cls(
            Cleaning.of(partition.topic, cleaned_to, policy, is_topic_known=is_topic_known),
            root.log_start_offset(partition),
            root.committed_end(partition),
            root.is_clean,
        )


@dataclass(frozen=True, slots=True)
class MissingRange:
    """Offsets that a partition should have and no log contains; `end_offset` is exclusive.

    `log` is the number of the log with the next batch, and `position_bytes` the position of that
    batch. At the end, they are the last log and its size. `why` is an explanation for users.
    """

    first_offset: int
    end_offset: int
    log: int
    position_bytes: int
    place: Place = Place.WITHIN
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

    def is_continued_by(self, other: MissingRange) -> bool:
        """Return whether another range follows directly and is lost for the same reason."""
        is_next = (self.log, self.place, self.end_offset) == (
            other.log,
            other.place,
            other.first_offset,
        )
        return is_next and self.cause is other.cause is Cause.LOST


@dataclass(slots=True)
class SeenLog:
    """A log, or a part of one, that was read.

    The segment is read again if headers are not sufficient. If `has_counts`, the records of all
    batches were already counted. If not `is_read`, the log was unreadable, and no offsets are
    reported as missing next to it. `damage_end` is the end of the offsets of corrupt batches at its
    end, according to their headers.
    """

    segment: SegmentFile
    offsets: LogOffsets
    is_read: bool = True
    damage_end: int | None = None
    has_counts: bool = False
    listed: SegmentFile | None = None

    @property
    def end_offset(self) -> int:
        """The offset after its batches, including corrupt ones."""
        return max(self.offsets.end_offset, self.damage_end or 0)

    def look_for_marks(self, decompressor: Decompressor) -> bool:
        """Return whether the log cleaner left marks; raises as `LogOffsets.look_for_marks`."""
        if not self.is_read or self.has_counts:
            return False
        self.offsets.look_for_marks(self.segment, decompressor)
        return self.offsets.marked_to > 0


def see_log(segment: SegmentFile, cleaned_to: int, size_bytes: int | None = None) -> SeenLog:
    """Read the headers of a log, up to a size or the first byte that is not a batch.

    Raises `KafkaIndexError` if it cannot be read.
    """
    offsets = LogOffsets(segment.base_offset, cleaned_to)
    for batches in LogFileSource.of_segment(segment, verify_crc=False, recovers=False).chunks():
        ends = batches.position_bytes + batches.size_bytes
        end = (
            batches.rows if size_bytes is None else int(np.searchsorted(ends, size_bytes, "right"))
        )
        offsets.observe(batches.slice(0, end))
        if end < batches.rows:
            break
    return SeenLog(segment, offsets)


@dataclass(slots=True)
class MissingOffsets:
    """The missing offsets of a partition.

    `cleaning` includes marks in the logs. `ranges` are in offset order; those explained by
    compaction are included only if they are separate. `unnamed` counts further ranges by log, if
    there are too many. `lost_bases` are base offsets of missing logs that had offsets after the log
    start.
    """

    cleaning: Cleaning
    ranges: list[MissingRange] = field(default_factory=list)
    unnamed: dict[int, int] = field(default_factory=dict)
    lost_bases: set[int] = field(default_factory=set)

    @property
    def unexplained(self) -> list[MissingRange]:
        return [each for each in self.ranges if each.cause is not Cause.COMPACTED]


def missing_offsets(
    logs: Sequence[SeenLog],
    known: KnownOffsets,
    decompressor: Decompressor,
    lost_ends: Mapping[int, int],
    later: Sequence[SegmentFile] = (),
) -> MissingOffsets:
    """Return the missing offsets of a partition, with their causes.

    `logs` are all logs of the partition by base offset, or the parts that were read; cleaner marks
    in `later` segments are considered too. `lost_ends` has missing logs whose index files remain,
    by base offset, with the offset after the last known one; compaction does not explain these.
    Raises `KafkaIndexError` if a log must be read again and cannot be.
    """
    start_offset = known.start_offset
    for log in logs:
        if log.is_read:
            log.offsets.settle(log.segment, decompressor)
    found = list(_within(logs, start_offset))
    cleaning = known.cleaning.with_marks(max((each.offsets.marked_to for each in logs), default=0))
    open_at = [each.log for each in found if each.end_offset > (cleaning.cleaned_to or 0)]
    unseen = (SeenLog(each, LogOffsets.unseen(each)) for each in later)
    for log in reversed([*logs[open_at[0] :], *unseen] if open_at else ()):
        if log.look_for_marks(decompressor):
            cleaning = cleaning.with_marks(log.offsets.marked_to)
            found = list(_within(logs, start_offset))
            break
    result = MissingOffsets(cleaning)
    lost = _lost_ranges(logs, lost_ends, start_offset or 0)
    result.lost_bases = set(lost)
    lost |= _lost_log_ends(logs, found, cleaning)
    classified = [
        *_head(
            logs, start_offset, min(result.lost_bases, default=None), is_exact=known.is_start_exact
        )
    ]
    for each in found:
        classified += _with_causes(each, cleaning)
    for each in classified:
        for part in _split(each, lost):
            before = result.ranges[-1] if result.ranges else None
            if before is not None and before.is_continued_by(part):
                result.ranges[-1] = replace(before, end_offset=part.end_offset)
            else:
                result.ranges.append(part)
    result.ranges += _tail(logs, known.end_offset, cleaning, lost)
    for number, log in enumerate(logs):
        more = log.offsets.hole_count - len(log.offsets.holes)
        is_cleaned = log.offsets.end_offset <= (cleaning.cleaned_to or 0)
        if log.is_read and more and not is_cleaned:
            result.unnamed[number] = more
    return result


def _within(logs: Sequence[SeenLog], start_offset: int | None) -> Iterator[MissingRange]:
    """Yield missing ranges between the first base offset and the end of the last log."""
    start = start_offset or 0
    end: int | None = None
    for number, log in enumerate(logs):
        if not log.is_read:
            end = None
            continue
        offsets = log.offsets
        holes = [(each.first_offset, each.end_offset, each) for each in offsets.holes]
        position, fault = 0, None
        if end is not None and end < offsets.base_offset:
            until = offsets.base_offset
            if holes and holes[0][0] == until:
                # The range that is missing between the logs continues in this one.
                _, until, hole = holes.pop(0)
                position, fault = hole.position_bytes, hole.fault
            if until > start:
                yield MissingRange(max(end, start), until, number, position, why=fault or "")
        for first, until, hole in holes:
            if until > start:
                first_offset = max(first, start)
                why = hole.fault or ""
                yield MissingRange(first_offset, until, number, hole.position_bytes, why=why)
        end = max(log.end_offset, end or 0)


def _with_causes(missing: MissingRange, cleaning: Cleaning) -> Iterator[MissingRange]:
    """Split a range at the cleaned offset, and set the causes of both parts."""
    limit = min(max(cleaning.cleaned_to or 0, missing.first_offset), missing.end_offset)
    if missing.first_offset < limit:
        why = f"the cleaner has processed all offsets below {cleaning.cleaned_to}"
        yield replace(missing, end_offset=limit, cause=Cause.COMPACTED, why=why)
    if limit == missing.end_offset:
        return
    is_lost = cleaning.is_compacted is False and not missing.why
    cause = Cause.LOST if is_lost else Cause.UNKNOWN
    why = f"the messages there cannot be read: {missing.why}" if missing.why else cleaning.why()
    yield replace(missing, first_offset=limit, cause=cause, why=why)


def _lost_log_ends(
    logs: Sequence[SeenLog], missing_ranges: Iterable[MissingRange], cleaning: Cleaning
) -> dict[int, _Lost]:
    """Return the end of each log whose index files reach further, and the next base offset."""
    ends = {}
    for each in missing_ranges if cleaning.is_compacted is not False else ():
        before, log = logs[each.log - 1], logs[each.log]
        first, end = before.end_offset, log.offsets.base_offset
        is_between = each.log > 0 and each.first_offset < end
        if not is_between or before.segment.base_offset == log.segment.base_offset:
            continue
        if has_entries_beyond(before.listed or before.segment, first, end):
            ends[first] = _Lost(end, BY_LATER_ENTRIES)
    return ends


class _Lost(NamedTuple):
    """The end of a range of offsets that are certainly lost, and the reason."""

    end_offset: int
    why: str


def _lost_ranges(logs: Sequence[SeenLog], ends: Mapping[int, int], start: int) -> dict[int, _Lost]:
    bases = [each.offsets.base_offset for each in logs]
    found = {}
    for base, end in sorted(ends.items()):
        after = bisect(bases, base)
        until = bases[after] if after < len(bases) else end
        is_within = after > 0 and base < logs[after - 1].end_offset
        if until > start and not is_within:
            found[base] = _Lost(until, BY_INDEXES)
    return found


def _split(missing: MissingRange, lost: Mapping[int, _Lost]) -> Iterator[MissingRange]:
    """Split a missing range at the bounds of losses that index files prove."""
    for base, (until, why) in sorted(lost.items()):
        first, end = max(base, missing.first_offset), min(until, missing.end_offset)
        if missing.cause is Cause.LOST or first >= end:
            continue
        if missing.first_offset < first:
            yield replace(missing, end_offset=first)
        yield replace(missing, first_offset=first, end_offset=end, cause=Cause.LOST, why=why)
        if end == missing.end_offset:
            return
        missing = replace(missing, first_offset=end)
    yield missing


def _head(
    logs: Sequence[SeenLog], start_offset: int | None, lost_base: int | None, *, is_exact: bool
) -> Iterator[MissingRange]:
    """Yield the offsets between log start and first segment, which compaction never removes."""
    base_offset = logs[0].offsets.base_offset
    start = lost_base if start_offset is None else start_offset
    if start is None or start >= base_offset or not logs[0].is_read:
        return
    cause, why = Cause.LOST, "the log start checkpoint was written at a clean shutdown"
    if not is_exact or start_offset is None:
        cause = Cause.UNKNOWN
        why = "if retention deleted them after the checkpoint was written, nothing is lost"
    yield MissingRange(start, base_offset, 0, 0, Place.HEAD, cause, why)


def _tail(
    logs: Sequence[SeenLog],
    known_end: int | None,
    cleaning: Cleaning,
    lost: Mapping[int, _Lost],
) -> Iterator[MissingRange]:
    """Yield the offsets after the last batch that checkpoints or index files show."""
    last = logs[-1]
    end = last.end_offset
    if known_end is None or not last.is_read:
        return
    number, position = len(logs) - 1, last.offsets.end_bytes
    after = {base: one.end_offset for base, one in lost.items() if base >= end}
    if after:
        # The last log was not the active segment, so its end may have been cleaned.
        first = min(after)
        if end < first:
            yield from _with_causes(
                MissingRange(end, first, number, position, Place.TAIL), cleaning
            )
        until = max(known_end, *after.values())
        yield MissingRange(first, until, number, position, Place.TAIL, Cause.LOST, BY_INDEXES)
    elif known_end > end:
        yield MissingRange(end, known_end, number, position, Place.TAIL, Cause.LOST, BY_CHECKPOINTS)
