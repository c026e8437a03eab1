"""The offsets that are missing in a partition, and whether compaction explains them.

There are three answers. A cleaner *has been* there: its checkpoint lies above, or a later batch
bears marks that only a cleaner makes. A cleaner *cannot have been* there: the topic is not
compacted, or it is the tail, which is in the active segment. All else *cannot be known*: a copy
that was fetched from a cleaned leader lacks offsets above its own checkpoint. Sources: Kafka's
``Cleaner``, ``LogCleanerManager``, ``MemoryRecords.filterTo``.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

import numpy as np

from kafka_index.core.format.names import COMPACTED_INTERNAL_TOPICS, TopicPartition
from kafka_index.core.log.scan.log_offsets import LogOffsets
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.logdir.data_directory import DataDirectory
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.logdir.segment_table import has_entries_beyond
from kafka_index.core.records.record_sections import Decompressor

#: Why the tail is lost.
BY_CHECKPOINTS = (
    "a checkpoint shows that they existed, and compaction never removes the end of a log"
)
#: Why the offsets of a log are lost that is gone.
BY_INDEXES = "a segment was deleted, but its index files remain, and compaction removes both"
#: Why the end of a log is lost.
BY_LATER_ENTRIES = "the previous index files contain entries for them, and compaction removes both"


class Cause(Enum):
    """The reason why offsets are missing."""

    COMPACTED = "compacted"
    LOST = "lost"
    UNKNOWN = "cannot be known"


class Place(Enum):
    """The place of missing offsets in a log."""

    HEAD = "head"
    WITHIN = "within"
    TAIL = "tail"


@dataclass(frozen=True, slots=True)
class Cleaning:
    """The knowledge of compaction at a copy of a partition.

    `is_compacted`: the topic is, or was; None if that is not known. `cleaned_to` is the entry in
    the cleaner's checkpoint, the first offset that was not cleaned, None without an entry.
    """

    is_compacted: bool | None = None
    cleaned_to: int | None = None

    @classmethod
    def of(
        cls, topic: str, checkpoint: int | None, policy: str | None, *, is_topic_known: bool
    ) -> Cleaning:
        """Return the knowledge from the cleaner's checkpoint and ``cleanup.policy``.

        Without a policy, a topic that the metadata of the cluster has is of Kafka's default,
        ``delete``.
        """
        if topic in COMPACTED_INTERNAL_TOPICS or checkpoint is not None:
            return cls(is_compacted=True, cleaned_to=checkpoint)
        if not is_topic_known:
            return cls()
        return cls(is_compacted="compact" in (policy or ""))

    def with_marks(self, marked_to: int) -> Cleaning:
        """Return the knowledge once a batch bears marks of a cleaner that got that far."""
        if not marked_to:
            return self
        return Cleaning(is_compacted=True, cleaned_to=max(self.cleaned_to or 0, marked_to))

    def why(self) -> str:
        """Return why compaction does not explain missing offsets, for people."""
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
    """The offsets of a partition that are known besides its logs.

    The log starts at `start_offset` by a checkpoint, None without an entry, and nothing before it
    is missing; with `is_start_exact` that checkpoint is of a clean shutdown, and no older than the
    logs. By checkpoints, the log once reached `end_offset`; None where it ends early on purpose.
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
        """Return what a data directory has of a partition; the policy is as for `Cleaning.of`."""
        cleaned_to = root.cleaned_to(partition)
        return cls(
            Cleaning.of(partition.topic, cleaned_to, policy, is_topic_known=is_topic_known),
            root.log_start_offset(partition),
            root.committed_end(partition),
            root.is_clean,
        )


@dataclass(frozen=True, slots=True)
class MissingRange:
    """Offsets, the end exclusive, that a partition should have, and no log of it has.

    `log` is the number of the log that holds the next batch, and `position_bytes` the start of that
    batch; for the tail, the last log and its end. `why` is for people.
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
        """The last one."""
        return self.end_offset - 1

    def is_continued_by(self, other: MissingRange) -> bool:
        """Whether another one goes on where this one ends, and is lost like it."""
        is_next = (self.log, self.place, self.end_offset) == (
            other.log,
            other.place,
            other.first_offset,
        )
        return is_next and self.cause is other.cause is Cause.LOST


@dataclass(slots=True)
class SeenLog:
    """A log that was looked at, or a part of one.

    The segment is read again if its headers do not decide; with `has_counts`, the records of all
    batches were counted already. Before and after a log that is not `is_read`, because it could not
    be, nothing is missing. `damage_end` is the end of the offsets that damaged batches at its end
    have, by their headers.
    """

    segment: SegmentFile
    offsets: LogOffsets
    is_read: bool = True
    damage_end: int | None = None
    has_counts: bool = False
    listed: SegmentFile | None = None

    @property
    def end_offset(self) -> int:
        """The offset after its batches, damaged ones included."""
        return max(self.offsets.end_offset, self.damage_end or 0)

    def look_for_marks(self, decompressor: Decompressor) -> bool:
        """Return whether a cleaner has left marks; raises `LogOffsets.look_for_marks`' errors."""
        if not self.is_read or self.has_counts:
            return False
        self.offsets.look_for_marks(self.segment, decompressor)
        return self.offsets.marked_to > 0


def see_log(segment: SegmentFile, cleaned_to: int, size_bytes: int | None = None) -> SeenLog:
    """Read the headers of a log, up to a size or the first byte that is no batch.

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

    `cleaning` includes the marks in the logs. `ranges` are by offset; ranges that compaction
    explains are listed only where they were told apart. `unnamed` counts further places by log,
    where there are too many to name. `lost_bases` are the base offsets of the logs that are gone,
    and that held offsets from the log start on.
    """

    cleaning: Cleaning
    ranges: list[MissingRange] = field(default_factory=list)
    unnamed: dict[int, int] = field(default_factory=dict)
    lost_bases: set[int] = field(default_factory=set)

    @property
    def unexplained(self) -> list[MissingRange]:
        """The ranges that compaction does not explain."""
        return [each for each in self.ranges if each.cause is not Cause.COMPACTED]


def missing_offsets(
    logs: Sequence[SeenLog],
    known: KnownOffsets,
    decompressor: Decompressor,
    lost_ends: Mapping[int, int],
    later: Sequence[SegmentFile] = (),
) -> MissingOffsets:
    """Return the missing offsets of a partition, with their causes.

    The logs are all of the partition, by base offset, or the parts of them that were read; the
    marks of a cleaner in `later` segments count, too. `lost_ends` has, by base offset, the logs
    that are gone while their index files are there, and the offset after the last known one: no
    cleaner removed them, wherever it has been. Raises `KafkaIndexError` if a log has to be read
    again, and cannot be.
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
    judged = [
        *_head(
            logs, start_offset, min(result.lost_bases, default=None), is_exact=known.is_start_exact
        )
    ]
    for each in found:
        judged += _judged(each, cleaning)
    for each in judged:
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
    """Yield the missing ranges between the base offset of the first log and the end of the last."""
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
                # What is missing between the logs goes on in this one.
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


def _judged(missing: MissingRange, cleaning: Cleaning) -> Iterator[MissingRange]:
    """Yield the part of a range that a cleaner has been over, and the rest."""
    limit = min(max(cleaning.cleaned_to or 0, missing.first_offset), missing.end_offset)
    if missing.first_offset < limit:
        why = f"the cleaner has been over all offsets below {cleaning.cleaned_to}"
        yield replace(missing, end_offset=limit, cause=Cause.COMPACTED, why=why)
    if limit == missing.end_offset:
        return
    is_lost = cleaning.is_compacted is False and not missing.why
    cause = Cause.LOST if is_lost else Cause.UNKNOWN
    why = f"the messages there cannot be read: {missing.why}" if missing.why else cleaning.why()
    yield replace(missing, first_offset=limit, cause=cause, why=why)


def _lost_log_ends(
    logs: Sequence[SeenLog], found: Iterable[MissingRange], cleaning: Cleaning
) -> dict[int, _Lost]:
    """Return the end of each log whose index files reach further, and the next base offset."""
    ends = {}
    for each in found if cleaning.is_compacted is not False else ():
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
    """Return where logs began that are gone, and where the next log begins, or they ended."""
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
    """Split a missing range at the bounds of the losses that index files prove."""
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
    """Yield the offsets from the log start to the first segment, which no cleaner takes away."""
    base_offset = logs[0].offsets.base_offset
    start = lost_base if start_offset is None else start_offset
    if start is None or start >= base_offset or not logs[0].is_read:
        return
    cause, why = Cause.LOST, "the checkpoint of the log start is of a clean shutdown"
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
    """Yield the offsets after the last batch that checkpoints know, or index files."""
    last = logs[-1]
    end = last.end_offset
    if known_end is None or not last.is_read:
        return
    number, position = len(logs) - 1, last.offsets.end_bytes
    after = {base: one.end_offset for base, one in lost.items() if base >= end}
    if after:
        # The last log was not the active one: a cleaner may have been at its end.
        first = min(after)
        if end < first:
            yield from _judged(MissingRange(end, first, number, position, Place.TAIL), cleaning)
        until = max(known_end, *after.values())
        yield MissingRange(first, until, number, position, Place.TAIL, Cause.LOST, BY_INDEXES)
    elif known_end > end:
        yield MissingRange(end, known_end, number, position, Place.TAIL, Cause.LOST, BY_CHECKPOINTS)
