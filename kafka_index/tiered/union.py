"""One partition as the union of its local segments and the remote segments that serve its offsets.

A replica that led the partition for a while, and lost to another, can have uploaded offsets that
the log no longer has, and a retried upload leaves the same offsets twice. The history of leader
epochs decides. Source: ``RemoteLogManager.isRemoteSegmentWithinLeaderEpochs`` and
``RemoteLogLeaderEpochState``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kafka_index.errors import KafkaIndexError, is_retriable
from kafka_index.layout.checkpoints import EpochEntry
from kafka_index.layout.integers import INT64_MAX
from kafka_index.layout.names import LOG_SUFFIX, TopicPartition
from kafka_index.state.leader_epochs import LeaderEpochCache
from kafka_index.storage import SegmentFile, Skipped
from kafka_index.tiered.remote_objects import RemoteObjects
from kafka_index.tiered.uploads import (
    UnfinishedUpload,
    Upload,
    cut_position,
    read_epochs,
    same_content,
)


@dataclass(frozen=True, slots=True)
class Served:
    """A segment, and the last of its offsets that it serves."""

    segment: Upload
    end_offset: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A segment that serves nothing, and why."""

    segment: Upload
    reason: str


def choose_segments(
    candidates: Sequence[Upload],
    lineage: Sequence[EpochEntry],
    *,
    same_content: Callable[[Upload, Upload], bool],
) -> tuple[list[Served], list[Refused]]:
    """Choose the segments of a partition out of candidates in any order.

    The lineage has the leader epochs of the log, ascending; it is empty if they are unknown. The
    served segments ascend and do not overlap. Where two overlap, the later serves from its start
    on, as in Kafka's map of start offsets. A segment that lies within another is not needed: it is
    refused, unless it was uploaded later under the same range; `same_content` compares the bytes of
    two segments of one range.
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
    # The longest of a start comes first, and the latest of a range.
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


def valid_end(segment: Upload, lineage: Sequence[EpochEntry]) -> int:
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
    inner: Served, outer: Served, same_content: Callable[[Upload, Upload], bool]
) -> Refused:
    first, last = inner.segment.start_offset, inner.end_offset
    if (first, last) != (outer.segment.start_offset, outer.end_offset):
        return Refused(inner.segment, f"a longer segment has its offsets, {first} to {last}")
    equal = same_content(inner.segment, outer.segment)
    what = "the same content" if equal else "other content"
    return Refused(
        inner.segment, f"a later upload has the same offsets, {first} to {last}, and {what}"
    )


@dataclass(frozen=True, slots=True)
class LocalPartition:
    """The part of a partition in a log directory; the directory is None without one.

    The segments are by base offset; the log start offset is that of the checkpoint.
    """

    directory: str | None
    segments: Sequence[SegmentFile]
    log_start_offset: int | None
    epochs: tuple[EpochEntry, ...]

    @property
    def start_offset(self) -> int | None:
        """Base offset of the first segment; None for none."""
        return self.segments[0].base_offset if self.segments else None


@dataclass(frozen=True, slots=True)
class United:
    """The remote part of a partition.

    The segments serve the offsets that are not local, ascending; the others are skipped, with a
    reason. The log start offset is that of the checkpoint, or the start of the first segment, and
    the epochs are those of the whole log, from its start on.
    """

    segments: list[SegmentFile]
    skipped: list[Skipped]
    log_start_offset: int
    epochs: tuple[EpochEntry, ...]


def unite(
    partition: TopicPartition,
    uploads: Sequence[Upload],
    unfinished: Sequence[UnfinishedUpload],
    local: LocalPartition,
) -> United:
    """Choose the remote segments that serve the offsets below the local ones.

    `unfinished` are objects that look like an upload where no events decide. A broker reads local
    offsets from the log directory (``ReplicaManager.readFromLog``). The objects of segments below
    the log's start are not deleted at once, and are not read either.
    """
    starts = [upload.start_offset for upload in uploads]
    if local.start_offset is not None:
        starts.append(local.start_offset)
    log_start = local.log_start_offset
    if log_start is None:
        log_start = min(starts, default=0)
    epochs = local.epochs or _latest_epochs(uploads)
    served, refused = choose_segments(
        uploads,
        epochs,
        same_content=lambda first, second: same_content(first.objects, second.objects),
    )
    skipped = [Skipped(each.segment.objects.log_object, each.reason) for each in refused]
    segments = []
    for each in _below(served, local.start_offset):
        upload = each.segment
        if each.end_offset < log_start:
            reason = f"its last offset, {each.end_offset}, is below the log start {log_start}"
            skipped.append(Skipped(upload.objects.log_object, reason))
        else:
            segments.append(_served_file(partition, upload, each.end_offset))
    ranges = [(each.segment.start_offset, each.end_offset) for each in served]
    for damaged in unfinished:
        start = damaged.objects.key.start_offset
        later = [each.segment.start_offset for each in served if each.segment.start_offset > start]
        if local.start_offset is not None:
            later.append(local.start_offset)
        hidden = any(first <= start <= last for first, last in ranges)
        if hidden or not later or max(later) <= start or start < log_start:
            skipped.append(damaged.skipped)
        else:
            # Nothing else has its offsets, and the log continues: opening it reports what is wrong.
            size = damaged.objects.sizes.get(LOG_SUFFIX, 0)
            segments.append(_segment_file(partition, damaged.objects, start, size))
    segments.sort(key=lambda segment: segment.base_offset)
    cache = LeaderEpochCache(epochs)
    cache.truncate_from_start(log_start)
    return United(segments, skipped, log_start, cache.entries)


def _below(served: Sequence[Served], local_start: int | None) -> list[Served]:
    """Return the segments that serve offsets below the first local one."""
    if local_start is None:
        return list(served)
    return [
        Served(each.segment, min(each.end_offset, local_start - 1))
        for each in served
        if each.segment.start_offset < local_start
    ]


def _served_file(partition: TopicPartition, upload: Upload, end_offset: int) -> SegmentFile:
    size_bytes, limit = upload.size_bytes, None
    if end_offset < upload.end_offset:
        size_bytes = limit = cut_position(upload, end_offset)
    return _segment_file(partition, upload.objects, upload.start_offset, size_bytes, limit)


def _segment_file(
    partition: TopicPartition,
    objects: RemoteObjects,
    start_offset: int,
    size_bytes: int,
    limit_bytes: int | None = None,
) -> SegmentFile:
    return SegmentFile(
        partition.topic,
        partition.partition,
        start_offset,
        objects.path(LOG_SUFFIX, limit_bytes),
        size_bytes,
        objects.log_mtime_ns,
        is_last=False,
        log_version=objects.log_version,
    )


def _latest_epochs(uploads: Sequence[Upload]) -> tuple[EpochEntry, ...]:
    """Return the leader epochs of the segment that was uploaded last in the history of the log."""
    known = [upload for upload in uploads if upload.epochs]
    if not known:
        return ()
    latest = max(known, key=lambda upload: (upload.epochs[-1].epoch, upload.end_offset))
    try:
        return read_epochs(latest.objects)
    except (KafkaIndexError, FileNotFoundError) as error:
        if is_retriable(error):
            raise
        # Its own epochs are known all the same, and whoever reads the segment reports the damage.
        return latest.epochs
