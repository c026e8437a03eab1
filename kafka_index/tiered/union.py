"""One partition as the union of its remote segments and its local ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kafka_index.errors import KafkaIndexError, is_retriable
from kafka_index.layout.checkpoints import EpochEntry
from kafka_index.layout.names import LOG_SUFFIX, TopicPartition
from kafka_index.state.leader_epochs import LeaderEpochCache
from kafka_index.storage import SegmentFile, Skipped
from kafka_index.tiered.lineage import Served, choose_segments
from kafka_index.tiered.uploads import (
    UnfinishedUpload,
    Upload,
    cut_position,
    read_epochs,
    same_content,
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
        [upload.candidate(number) for number, upload in enumerate(uploads)],
        epochs,
        same_content=lambda first, second: same_content(
            uploads[first.number].objects, uploads[second.number].objects
        ),
    )
    skipped = [
        Skipped(uploads[each.segment.number].objects.log_object, each.reason) for each in refused
    ]
    segments = []
    for each in _below(served, local.start_offset):
        upload = uploads[each.segment.number]
        if each.end_offset < log_start:
            reason = f"its last offset, {each.end_offset}, is below the log start {log_start}"
            skipped.append(Skipped(upload.objects.log_object, reason))
        else:
            segments.append(_segment_file(partition, upload, each.end_offset))
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
            segments.append(_damaged_file(partition, damaged))
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


def _segment_file(partition: TopicPartition, upload: Upload, end_offset: int) -> SegmentFile:
    objects = upload.objects
    size_bytes, limit = upload.size_bytes, None
    if end_offset < upload.end_offset:
        size_bytes = limit = cut_position(upload, end_offset)
    return SegmentFile(
        partition.topic,
        partition.partition,
        upload.start_offset,
        objects.path(LOG_SUFFIX, limit),
        size_bytes,
        objects.log_mtime_ns,
        is_last=False,
        log_version=objects.log_version,
    )


def _damaged_file(partition: TopicPartition, damaged: UnfinishedUpload) -> SegmentFile:
    objects = damaged.objects
    return SegmentFile(
        partition.topic,
        partition.partition,
        objects.key.start_offset,
        objects.path(LOG_SUFFIX),
        objects.sizes.get(LOG_SUFFIX, 0),
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
