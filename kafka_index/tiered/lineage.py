"""The choice of remote segments that serve the offsets of a partition.

A replica that led the partition for a while, and lost to another, can have uploaded offsets that
the log no longer has, and a retried upload leaves the same offsets twice. The history of leader
epochs decides. Source: ``RemoteLogManager.isRemoteSegmentWithinLeaderEpochs`` and
``RemoteLogLeaderEpochState``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kafka_index.layout.checkpoints import EpochEntry
from kafka_index.layout.integers import INT64_MAX


@dataclass(frozen=True, slots=True)
class Candidate:
    """A segment whose upload finished, under a number of the caller's.

    First and last offset are inclusive, its leader epochs ascend, and `uploaded_ms` is the time
    when its upload began.
    """

    number: int
    start_offset: int
    end_offset: int
    epochs: tuple[EpochEntry, ...]
    uploaded_ms: int


@dataclass(frozen=True, slots=True)
class Served:
    """A segment, and the last of its offsets that it serves."""

    segment: Candidate
    end_offset: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A segment that serves nothing, and why."""

    segment: Candidate
    reason: str


def choose_segments(
    candidates: Sequence[Candidate],
    lineage: Sequence[EpochEntry],
    *,
    same_content: Callable[[Candidate, Candidate], bool],
) -> tuple[list[Served], list[Refused]]:
    """Choose the segments of a partition out of candidates in any order.

    The lineage has the leader epochs of the log, ascending; it is empty if they are unknown. The
    served segments ascend and do not overlap. Of two that overlap, the one that starts later serves
    from its start on, as in Kafka's map of start offsets. One that lies within another is not
    needed: it is refused, unless it was uploaded later under the same range; `same_content`
    compares the bytes of two segments of one range.
    """
    served: list[Served] = []
    refused: list[Refused] = []
    valid = []
    for candidate in candidates:
        end = valid_end(candidate, lineage)
        if end < candidate.start_offset:
            epochs = ", ".join(
                f"{each.epoch} from {each.start_offset}" for each in candidate.epochs
            )
            refused.append(
                Refused(candidate, f"its leader epochs are not those of the log: {epochs}")
            )
        else:
            valid.append(Served(candidate, end))
    # Of one start the longest comes first, and of one range the latest.
    valid.sort(key=lambda s: (s.segment.start_offset, -s.end_offset, -s.segment.uploaded_ms))
    for each in valid:
        before = served[-1] if served else None
        if before is None or each.segment.start_offset > before.end_offset:
            served.append(each)
        elif each.end_offset <= before.end_offset:
            refused.append(_within(each, before, same_content))
        else:
            served[-1] = Served(before.segment, each.segment.start_offset - 1)
            served.append(each)
    return served, refused


def valid_end(segment: Candidate, lineage: Sequence[EpochEntry]) -> int:
    """Return the last offset up to which a segment's epochs are those of the log.

    That is below its start where not even its first offset is valid. Offsets below the start of the
    first known epoch are not judged: a log that lost its head has lost those epochs too.
    """
    if not lineage:
        return segment.end_offset
    ends = [*(entry.start_offset - 1 for entry in lineage[1:]), INT64_MAX]
    ranges = {
        entry.epoch: (entry.start_offset if number else 0, end)
        for number, (entry, end) in enumerate(zip(lineage, ends, strict=True))
    }
    first = lineage[0]
    valid = segment.start_offset - 1
    own_ends = [*(entry.start_offset - 1 for entry in segment.epochs[1:]), segment.end_offset]
    for entry, own_end in zip(segment.epochs, own_ends, strict=True):
        start = max(entry.start_offset, segment.start_offset)
        if entry.epoch < first.epoch:
            allowed = (0, first.start_offset - 1)
        else:
            allowed = ranges.get(entry.epoch, (INT64_MAX, -1))
        if start < allowed[0]:
            return valid
        valid = min(own_end, allowed[1])
        if valid < own_end:
            return max(valid, segment.start_offset - 1)
    return valid


def _within(
    inner: Served, outer: Served, same_content: Callable[[Candidate, Candidate], bool]
) -> Refused:
    first, last = inner.segment.start_offset, inner.end_offset
    if (first, last) != (outer.segment.start_offset, outer.end_offset):
        return Refused(inner.segment, f"a longer segment has its offsets, {first} to {last}")
    equal = same_content(inner.segment, outer.segment)
    what = "the same content" if equal else "other content"
    return Refused(
        inner.segment, f"a later upload has the same offsets, {first} to {last}, and {what}"
    )
