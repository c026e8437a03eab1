"""List the objects of remote segments, and find their completed and unfinished uploads.

The offsets and leader epochs of an upload are in the events of ``__remote_log_metadata``. If a
partition has no events, they are read from the manifest. Kafka's LocalTieredStorage has no
manifests, so there they are read from the log.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np

from kafka_index.core.cluster.remote.remote_log_metadata import (
    RemoteLogMetadata,
    RemoteSegmentId,
    SegmentEvent,
    SegmentState,
)
from kafka_index.core.errors import CorruptObjectError, InputError, KafkaIndexError, is_retriable
from kafka_index.core.format.checkpoints import EpochEntry, parse_leader_epoch_checkpoint
from kafka_index.core.format.names import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from kafka_index.core.format.records import OFFSET_ENTRY
from kafka_index.core.fs.inputs import Skipped, admit_inputs
from kafka_index.core.fs.paths import absolute_path
from kafka_index.core.fs.registry import directory_exists, store_of
from kafka_index.core.fs.tiered.manifest import INDEX_NAMES
from kafka_index.core.fs.tiered.tiered_store import INDEXES_SUFFIX, MANIFEST_SUFFIX, read_manifest
from kafka_index.core.fs.uris import (
    UUID_PATTERN,
    Layout,
    SegmentKey,
    TieredOptions,
    parse_key,
    segment_path,
)
from kafka_index.core.log.scan.segment_scan import ByteStreamSource

# The suffixes of the objects of a completed upload, in the order in which they are written.
_COMPLETE_SUFFIXES = {
    Layout.LOCAL: (
        LOG_SUFFIX,
        *(suffix for suffix in INDEX_NAMES if suffix != TXN_INDEX_SUFFIX),
    ),
    Layout.AIVEN: (LOG_SUFFIX, INDEXES_SUFFIX, MANIFEST_SUFFIX),
}
# Matches the index object of a segment that Aiven's plugin stored as rows of an Iceberg table.
_ICEBERG = re.compile(rf"(?:.*/)?metadata/{UUID_PATTERN}\.puffin")
_ICEBERG_REASON = "the segment is in Iceberg format, which stores table rows instead of batches"


@dataclass(slots=True)
class RemoteObjects:
    """The objects of one remote segment; their key is relative to `root`, a path or URI.

    `sizes` has the size of each object in bytes, keyed by suffix. `log_mtime_ns` (0 if unknown) and
    `log_version` (the ETag) are of the object with the log.
    """

    root: str
    layout: Layout
    key: SegmentKey
    sizes: dict[str, int] = field(default_factory=dict)
    log_mtime_ns: int = 0
    log_version: str = ""

    @property
    def name(self) -> str:
        """Path or URI of the objects, without the suffix."""
        return f"{self.root}/{self.key.name}"

    @property
    def log_object(self) -> str:
        return self.name + LOG_SUFFIX

    @property
    def missing(self) -> list[str]:
        """The suffixes of missing objects, which a completed upload would have written."""
        return [suffix for suffix in _COMPLETE_SUFFIXES[self.layout] if suffix not in self.sizes]

    def path(self, suffix: str, limit_bytes: int | None = None) -> str:
        """Return the path to open a file of the segment; a log can be limited to `limit_bytes`."""
        return segment_path(self.layout, self.root, self.key, suffix, limit_bytes)


def list_remote_objects(options: TieredOptions) -> tuple[list[RemoteObjects], list[Skipped]]:
    """List the remote segments in the folders of tiered storage, and the skipped objects.

    Raises `InputError` if a folder does not exist, cannot be listed, or contains only Iceberg
    tables.
    """
    all_segments: list[RemoteObjects] = []
    skipped: list[Skipped] = []
    for uri in options.uris:
        root = absolute_path(uri).rstrip("/")
        if not directory_exists(root):
            raise InputError("the folder of tiered storage does not exist", path=uri)
        admit_inputs([root])
        segments, iceberg = _list_root(root, options)
        if iceberg and not segments:
            raise InputError(
                "segments in Iceberg format are not supported, because the format stores table "
                "rows instead of batches",
                path=iceberg[0],
            )
        all_segments += segments
        skipped += [Skipped(path, _ICEBERG_REASON) for path in iceberg]
    return all_segments, skipped


def _list_root(root: str, options: TieredOptions) -> tuple[list[RemoteObjects], list[str]]:
    segments: dict[str, RemoteObjects] = {}
    iceberg = []
    for path, size, mtime_ns, version in _list_files(root):
        parsed = _parse_path(path, options)
        if parsed is None:
            if _ICEBERG.fullmatch(path):
                iceberg.append(f"{root}/{path}")
            continue
        layout, key, suffix = parsed
        objects = segments.get(key.name)
        if objects is None:
            objects = segments[key.name] = RemoteObjects(root, layout, key)
        objects.sizes[suffix] = size
        if suffix == LOG_SUFFIX:
            objects.log_mtime_ns, objects.log_version = mtime_ns, version
    return list(segments.values()), iceberg


def _list_files(root: str) -> Iterator[tuple[str, int, int, str]]:
    for batch in store_of(root).list_tree(root):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _parse_path(path: str, options: TieredOptions) -> tuple[Layout, SegmentKey, str] | None:
    for layout in Layout if options.layout is None else (Layout(options.layout),):
        parsed = parse_key(layout, path)
        if parsed is not None:
            prefix = options.key_prefix or ""
            if layout is Layout.AIVEN and not path.startswith(prefix):
                return None
            return layout, *parsed
    return None


def topic_names(
    objects: Mapping[str, Sequence[RemoteObjects]], known_names: Mapping[str, str]
) -> tuple[dict[str, str], list[Skipped]]:
    """Return topic names keyed by topic ID, and the skipped topics whose names are unknown.

    `known_names` has topic names by topic ID, from metadata events and log directories.
    """
    names: dict[str, str] = {}
    skipped = []
    for topic_id, segments in objects.items():
        first_segment = segments[0]
        name = known_names.get(topic_id)
        if name is None and first_segment.layout is Layout.LOCAL:
            name = first_segment.key.prefixed_topic
        if name is None:
            name = _read_topic_name(segments)
        if name is None:
            reason = "the topic name is unknown: no manifest of this topic ID can be read"
            skipped.append(Skipped(f"{first_segment.root}/{first_segment.key.parent}", reason))
        else:
            names[topic_id] = name
    return names, skipped


def choose_topic_ids(
    names: Mapping[str, str],
    latest_upload_ns: Mapping[str, int],
    local_ids: Mapping[str, str],
    requested: Sequence[str],
) -> dict[str, str]:
    """Return the topic ID to read for each topic name.

    By default, this is the topic ID with the latest upload (`latest_upload_ns`). The ID of a topic
    with partition directories (`local_ids`) takes precedence, and a `requested` ID takes precedence
    over both. Raises `InputError` if a requested ID is unknown, or two requested IDs have the same
    topic name.
    """
    ids: dict[str, list[str]] = defaultdict(list)
    for topic_id, name in names.items():
        ids[name].append(topic_id)
    selected_ids = {
        name: local_ids.get(name)
        or max(topic_ids, key=lambda topic_id: (latest_upload_ns.get(topic_id, 0), topic_id))
        for name, topic_ids in ids.items()
    }
    names_by_id = {topic_id: name for name, topic_id in local_ids.items()} | dict(names)
    requested_ids: dict[str, str] = {}
    for topic_id in requested:
        requested_name = names_by_id.get(topic_id)
        if requested_name is None:
            raise InputError("no topic has this ID", found=topic_id, hint="check --topic-id")
        if requested_ids.setdefault(requested_name, topic_id) != topic_id:
            raise InputError(
                f"two topic IDs were given for the topic {requested_name}",
                found=f"{requested_ids[requested_name]} and {topic_id}",
            )
    return selected_ids | requested_ids


def _read_topic_name(segments: Sequence[RemoteObjects]) -> str | None:
    for segment in segments:
        try:
            return read_manifest(store_of(segment.root), segment.name).topic
        except KafkaIndexError as error:
            if is_retriable(error):
                raise
            # Try the manifests of other segments. This error is reported when the uploads are read.
            continue
    return None


EPOCHS_SUFFIX = ".leader_epoch_checkpoint"
_REQUESTS = 16
_STATE_REASONS = {
    SegmentState.COPY_SEGMENT_STARTED: "the upload did not finish",
    SegmentState.DELETE_SEGMENT_STARTED: "the deletion was started",
    SegmentState.DELETE_SEGMENT_FINISHED: "the segment was deleted",
}


@dataclass(frozen=True, slots=True)
class Upload:
    """A remote segment whose upload completed.

    Start and end offset are inclusive. Leader epochs ascend. `size_bytes` is the size of the log.
    `uploaded_ms` is the start time of the upload. For LocalTieredStorage without events, it is the
    modification time of the log.
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
    """A remote segment whose upload did not complete, or whose objects were damaged later.

    If the log continues after the segment, and no other segment contains its offsets, the upload
    had completed and the objects were damaged.
    """

    objects: RemoteObjects
    reason: str

    @property
    def skipped(self) -> Skipped:
        return Skipped(_main_path(self.objects), self.reason)


def uploads_from_events(
    objects: Sequence[RemoteObjects], metadata: RemoteLogMetadata, template: RemoteObjects
) -> tuple[list[Upload], list[Skipped]]:
    """Return the completed uploads of one partition according to events, and skipped objects.

    The result includes completed uploads whose objects are missing, so that reading them fails. The
    location of missing objects is derived from `template`, the objects of any segment.
    """
    by_id = {_segment_id(segment): segment for segment in objects}
    skipped = []
    for segment_id, segment in by_id.items():
        event = metadata.segments.get(segment_id)
        if event is None:
            reason = "orphaned: no event of the partition refers to the segment"
        elif event.state is not SegmentState.COPY_SEGMENT_FINISHED:
            reason = f"{_STATE_REASONS[event.state]} ({event.state.name})"
        else:
            continue
        skipped.append(Skipped(_main_path(segment), reason))
    partition = (template.key.topic_id, template.key.partition)
    uploads = [
        Upload(
            by_id.get(segment_id) or _missing_objects(event, template),
            event.topic,
            event.start_offset,
            event.end_offset,
            event.epochs,
            event.size_bytes,
            event.event_timestamp_ms,
        )
        for segment_id, event in metadata.segments.items()
        if (segment_id.topic_id, segment_id.partition) == partition
        and event.state is SegmentState.COPY_SEGMENT_FINISHED
    ]
    return uploads, skipped


def uploads_from_objects(
    objects: Iterable[RemoteObjects],
) -> tuple[list[Upload], list[UnfinishedUpload]]:
    """For segments without metadata events, return completed and unfinished uploads by objects."""
    unfinished = []
    complete = []
    for segment in objects:
        if segment.missing:
            reason = f"incomplete upload: the segment has no {', '.join(segment.missing)}"
            unfinished.append(UnfinishedUpload(segment, reason))
        else:
            complete.append(segment)
    uploads = []
    # Read the uploads concurrently, because each takes at least one round trip.
    with ThreadPoolExecutor(_REQUESTS, thread_name_prefix="tiered") as pool:
        for segment, upload in zip(complete, pool.map(_read_upload, complete), strict=True):
            if isinstance(upload, Upload):
                uploads.append(upload)
            else:
                unfinished.append(UnfinishedUpload(segment, str(upload)))
    return uploads, unfinished


def same_content(earlier_upload: RemoteObjects, later_upload: RemoteObjects) -> bool:
    """Return whether the logs of two remote segments have the same bytes."""
    paths = [objects.path(LOG_SUFFIX) for objects in (earlier_upload, later_upload)]
    logs = [store_of(path).open(path) for path in paths]
    with closing(logs[0]), closing(logs[1]):
        if logs[0].size_bytes != logs[1].size_bytes:
            return False
        position = 0
        for block in logs[0].stream():
            if not np.array_equal(block, logs[1].read_at(position, len(block))):
                return False
            position += len(block)
        return True


def read_epochs(objects: RemoteObjects) -> tuple[EpochEntry, ...]:
    """Return the leader epochs in a segment's checkpoint: those of the log up to its end."""
    path = objects.path(EPOCHS_SUFFIX)
    text = store_of(path).read(path).decode("utf-8", "replace")
    return tuple(parse_leader_epoch_checkpoint(text, path=path))


def end_position(upload: Upload, end_offset: int) -> int:
    """Return the position of the first batch above `end_offset`, or the size of the log."""
    path = upload.objects.path(LOG_SUFFIX)
    with closing(store_of(path).open(path)) as log:
        source = ByteStreamSource(
            log.stream(), segment_base_offset=upload.start_offset, verify_crc=False
        )
        for chunk in source.chunks():
            later_batches = np.flatnonzero(chunk.base_offset > end_offset)
            if len(later_batches):
                return int(chunk.position_bytes[later_batches[0]])
        return log.size_bytes


def _read_upload(objects: RemoteObjects) -> Upload | KafkaIndexError:
    try:
        if objects.layout is Layout.AIVEN:
            return _upload_from_manifest(objects)
        return _upload_from_log(objects)
    except CorruptObjectError as error:
        return error


def _upload_from_manifest(objects: RemoteObjects) -> Upload:
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


def _upload_from_log(objects: RemoteObjects) -> Upload:
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
                f"the upload is incomplete, or the log was truncated later: {source.stop.text}",
                path=f"{objects.name}.log",
            )
        size_bytes = log.size_bytes
    log_epochs = read_epochs(objects)
    # Keep the epoch of the segment's first offset, and all later epochs.
    first_entry = sum(entry.start_offset <= start_offset for entry in log_epochs) - 1
    epochs = tuple(
        EpochEntry(entry.epoch, max(entry.start_offset, start_offset))
        for entry in log_epochs[max(first_entry, 0) :]
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


def _missing_objects(event: SegmentEvent, template: RemoteObjects) -> RemoteObjects:
    """Return a segment without objects; its key is derived from its event and `template`."""
    key = replace(
        template.key,
        topic_id=event.id.topic_id,
        partition=event.id.partition,
        start_offset=event.start_offset,
        segment_id=event.id.segment_id,
    )
    return RemoteObjects(template.root, template.layout, key)


def _segment_id(objects: RemoteObjects) -> RemoteSegmentId:
    key = objects.key
    return RemoteSegmentId(key.topic_id, key.partition, key.segment_id)


def _main_path(objects: RemoteObjects) -> str:
    """Return the path of an existing object of the segment, preferably its log."""
    suffixes = (LOG_SUFFIX, MANIFEST_SUFFIX, *objects.sizes)
    return objects.name + next(suffix for suffix in suffixes if suffix in objects.sizes)
