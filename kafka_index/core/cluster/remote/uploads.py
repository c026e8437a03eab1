"""Uploads of segments: completed or not, offsets, epochs.

The source is ``__remote_log_metadata``. For a partition without events it is the manifest, or in
Kafka's LocalTieredStorage, which has no manifests, the log itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from kafka_index.core.cluster.remote.remote_log_metadata import (
    RemoteLogMetadata,
    RemoteSegmentId,
    SegmentEvent,
    SegmentState,
)
from kafka_index.core.cluster.remote.remote_objects import RemoteObjects
from kafka_index.core.errors import CorruptObjectError, KafkaIndexError
from kafka_index.core.format.checkpoints import EpochEntry, parse_leader_epoch_checkpoint
from kafka_index.core.format.names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX
from kafka_index.core.format.records import OFFSET_ENTRY
from kafka_index.core.fs.inputs import Skipped
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.tiered.tiered_store import MANIFEST_SUFFIX, read_manifest
from kafka_index.core.fs.uris import Layout
from kafka_index.core.log.scan.segment_scan import ByteStreamSource

EPOCHS_SUFFIX = ".leader_epoch_checkpoint"
_REQUESTS = 16
_STATE_REASONS = {
    SegmentState.COPY_SEGMENT_STARTED: "its upload did not finish",
    SegmentState.DELETE_SEGMENT_STARTED: "its deletion has begun",
    SegmentState.DELETE_SEGMENT_FINISHED: "it was deleted",
}


@dataclass(frozen=True, slots=True)
class Upload:
    """A completely uploaded segment.

    Start and end offset are inclusive, leader epochs ascend, and the size is that of the log.
    `uploaded_ms` is the start time of the upload, or in LocalTieredStorage without events, the
    modification time.
    """

    objects: RemoteObjects
    topic: str
    start_offset: int
    end_offset: int
    epochs: tuple[EpochEntry, ...]
    size_bytes: int
    uploaded_ms: int


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """A segment whose upload did not complete, or whose objects were damaged later.

    It was damaged later if no other segment has its offsets and the log continues after it.
    """

    objects: RemoteObjects
    reason: str

    @property
    def skipped(self) -> Skipped:
        return Skipped(_path_of(self.objects), self.reason)


def uploads_of_events(
    objects: Sequence[RemoteObjects], metadata: RemoteLogMetadata, elsewhere: RemoteObjects
) -> tuple[list[Upload], list[Skipped]]:
    """Return the completed uploads of one partition, from its events, and the other objects.

    A completed upload whose objects are missing is included; reading it fails. `elsewhere` is any
    segment from which the location of missing objects is derived.
    """
    uploads = []
    skipped = []
    present = {}
    for each in objects:
        segment_id = _id_of(each)
        present[segment_id] = each
        state = metadata.states.get(segment_id)
        if state is None or segment_id not in metadata.segments:
            reason = "orphaned: no event of its partition contains the segment"
        elif state is not SegmentState.COPY_SEGMENT_FINISHED:
            reason = f"{_STATE_REASONS[state]} ({state.name})"
        else:
            continue
        skipped.append(Skipped(_path_of(each), reason))
    partition = (elsewhere.key.topic_id, elsewhere.key.partition)
    for segment_id, event in metadata.segments.items():
        if (segment_id.topic_id, segment_id.partition) != partition:
            continue
        if metadata.states[segment_id] is SegmentState.COPY_SEGMENT_FINISHED:
            found = present.get(segment_id) or _absent(event, elsewhere)
            uploads.append(
                Upload(
                    found,
                    event.topic,
                    event.start_offset,
                    event.end_offset,
                    event.epochs,
                    event.size_bytes,
                    event.event_timestamp_ms,
                )
            )
    return uploads, skipped


def uploads_of_objects(
    objects: Iterable[RemoteObjects],
) -> tuple[list[Upload], list[UnfinishedUpload]]:
    """Return the completed uploads among segments without events, from their objects."""
    unfinished = []
    complete = []
    for each in objects:
        if each.missing:
            names = ", ".join(each.missing)
            unfinished.append(UnfinishedUpload(each, f"half-uploaded: it has no {names}"))
        else:
            complete.append(each)
    uploads = []
    # Sequential requests would take a round trip each.
    with ThreadPoolExecutor(_REQUESTS, thread_name_prefix="tiered") as pool:
        for each, upload in zip(complete, pool.map(_try_upload, complete), strict=True):
            if isinstance(upload, Upload):
                uploads.append(upload)
            else:
                unfinished.append(UnfinishedUpload(each, str(upload)))
    return uploads, unfinished


def same_content(first: RemoteObjects, second: RemoteObjects) -> bool:
    """Return whether two segments of the same range contain the same log bytes."""
    logs = [store_of(each.path(LOG_SUFFIX)).open(each.path(LOG_SUFFIX)) for each in (first, second)]
    with closing(logs[0]), closing(logs[1]):
        if logs[0].size_bytes != logs[1].size_bytes:
            return False
        position = 0
        for piece in logs[0].stream():
            if not np.array_equal(piece, logs[1].read_at(position, len(piece))):
                return False
            position += len(piece)
        return True


def read_epochs(objects: RemoteObjects) -> tuple[EpochEntry, ...]:
    """Return the leader epochs of a log up to the end of a segment."""
    path = objects.path(EPOCHS_SUFFIX)
    text = store_of(path).read(path).decode("utf-8", "replace")
    return tuple(parse_leader_epoch_checkpoint(text, path=path))


def cut_position(upload: Upload, end_offset: int) -> int:
    path = upload.objects.path(LOG_SUFFIX)
    with closing(store_of(path).open(path)) as log:
        source = ByteStreamSource(
            log.stream(), segment_base_offset=upload.start_offset, verify_crc=False
        )
        for chunk in source.chunks():
            after = np.flatnonzero(chunk.base_offset > end_offset)
            if len(after):
                return int(chunk.position_bytes[after[0]])
        return log.size_bytes


def _try_upload(objects: RemoteObjects) -> Upload | KafkaIndexError:
    try:
        if objects.layout is Layout.AIVEN:
            return _of_manifest(objects)
        return _of_log(objects)
    except CorruptObjectError as error:
        return error


def _of_manifest(objects: RemoteObjects) -> Upload:
    manifest = read_manifest(store_of(objects.root), objects.name)
    return Upload(
        objects,
        manifest.topic,
        manifest.start_offset,
        manifest.end_offset,
        manifest.epochs,
        manifest.log_size_bytes,
        manifest.event_timestamp_ms,
    )


def _of_log(objects: RemoteObjects) -> Upload:
    path = objects.path(LOG_SUFFIX)
    index_path = objects.path(OFFSET_INDEX_SUFFIX)
    start_offset = objects.key.start_offset
    index = store_of(index_path).read(index_path)
    entries = np.frombuffer(index, OFFSET_ENTRY, len(index) // OFFSET_ENTRY.itemsize)
    position = int(entries["position_bytes"][-1]) if len(entries) else 0
    with closing(store_of(path).open(path)) as log:
        source = ByteStreamSource(
            log.stream(position), segment_base_offset=start_offset, verify_crc=False
        )
        end_offset = start_offset - 1
        for chunk in source.chunks():
            end_offset = int(chunk.last_offset[-1])
        if source.stop is not None:
            raise CorruptObjectError(
                f"incomplete upload, or truncated since: {source.stop.text}",
                path=f"{objects.name}.log",
            )
        size_bytes = log.size_bytes
    history = read_epochs(objects)
    # The epoch of the first offset, and all later ones.
    first = sum(entry.start_offset <= start_offset for entry in history) - 1
    epochs = tuple(
        EpochEntry(entry.epoch, max(entry.start_offset, start_offset))
        for entry in history[max(first, 0) :]
    )
    return Upload(
        objects,
        objects.key.prefixed_topic,
        start_offset,
        end_offset,
        epochs,
        size_bytes,
        objects.log_mtime_ns // 1_000_000,
    )


def _absent(event: SegmentEvent, elsewhere: RemoteObjects) -> RemoteObjects:
    """Return a segment without objects, with the key that they would have."""
    absent = replace(
        elsewhere.key,
        topic_id=event.id.topic_id,
        partition=event.id.partition,
        start_offset=event.start_offset,
        segment_id=event.id.segment_id,
    )
    return RemoteObjects(elsewhere.root, elsewhere.layout, absent)


def _id_of(objects: RemoteObjects) -> RemoteSegmentId:
    key = objects.key
    return RemoteSegmentId(key.topic_id, key.partition, key.segment_id)


def _path_of(objects: RemoteObjects) -> str:
    """Return the path of an object of the segment, preferably its log."""
    suffixes = (LOG_SUFFIX, MANIFEST_SUFFIX, *objects.sizes)
    return objects.name + next(suffix for suffix in suffixes if suffix in objects.sizes)
