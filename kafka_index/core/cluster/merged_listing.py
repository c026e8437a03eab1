"""List a dump with tiered storage, and merge the local and remote segments of each partition."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from kafka_index.core.cluster.remote.remote_log_metadata import (
    RemoteLogMetadata,
    read_remote_log_metadata,
)
from kafka_index.core.cluster.remote.uploads import (
    RemoteObjects,
    UnfinishedUpload,
    Upload,
    choose_topic_ids,
    end_position,
    list_remote_objects,
    read_epochs,
    same_content,
    topic_names,
    uploads_from_events,
    uploads_from_objects,
)
from kafka_index.core.errors import InputError, KafkaIndexError, is_retriable, plural
from kafka_index.core.format.checkpoints import EpochEntry
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.leader_epochs import LeaderEpochCache
from kafka_index.core.format.names import (
    LOG_SUFFIX,
    REMOTE_LOG_METADATA_TOPIC,
    TopicPartition,
    parse_partition_directory,
)
from kafka_index.core.fs.inputs import Skipped
from kafka_index.core.fs.uris import Layout, SegmentKey, TieredOptions
from kafka_index.core.logdir.data_directory import DataDirectories
from kafka_index.core.logdir.listing import Listing, list_any, no_topic_matches
from kafka_index.core.logdir.metadata_files import read_epochs_or_skip, read_topic_id
from kafka_index.core.logdir.partition_files import SegmentFile, TieredPartition


@dataclass(frozen=True, slots=True)
class ReadableSegment:
    """A remote segment that is read, and the last offset that is read from it."""

    upload: Upload
    end_offset: int


@dataclass(frozen=True, slots=True)
class RejectedSegment:
    """A remote segment that is not read, and the reason."""

    upload: Upload
    reason: str


def choose_segments(
    candidates: Sequence[Upload],
    lineage: Sequence[EpochEntry],
    *,
    same_content: Callable[[Upload, Upload], bool],
) -> tuple[list[ReadableSegment], list[RejectedSegment]]:
    """Choose the remote segments of a partition that are read; candidates are in any order.

    `lineage` has the ascending leader epochs of the log, and is empty if they are unknown. The
    readable segments ascend and do not overlap. If two segments overlap, the segment that starts
    later is read from its start on, as in `RemoteLogLeaderEpochState`. A segment within the range
    of another segment is rejected. Of two segments with the same range, the earlier upload is
    rejected. The reason states whether both have the same bytes (`same_content`).
    """
    readable: list[ReadableSegment] = []
    rejected: list[RejectedSegment] = []
    valid = []
    for candidate in candidates:
        end_offset = valid_end(candidate, lineage)
        if end_offset < candidate.start_offset:
            epochs = ", ".join(
                f"{entry.epoch} from offset {entry.start_offset}" for entry in candidate.epochs
            )
            reason = f"the segment's leader epochs differ from the log's leader epochs: {epochs}"
            rejected.append(RejectedSegment(candidate, reason))
        else:
            valid.append(ReadableSegment(candidate, end_offset))
    # Sort by start offset. On ties, the longest segment comes first, then the latest upload.
    valid.sort(key=lambda s: (s.upload.start_offset, -s.end_offset, -s.upload.uploaded_ms))
    for segment in valid:
        previous = readable[-1] if readable else None
        if previous is None or segment.upload.start_offset > previous.end_offset:
            readable.append(segment)
        elif segment.end_offset <= previous.end_offset:
            rejected.append(_reject_contained(segment, previous, same_content))
        else:
            readable[-1] = ReadableSegment(previous.upload, segment.upload.start_offset - 1)
            readable.append(segment)
    return readable, rejected


def valid_end(segment: Upload, lineage: Sequence[EpochEntry]) -> int:
    """Return the last offset up to which a segment's leader epochs match those of the log.

    If no offset matches, the result is below the segment's start offset. Offsets below the first
    epoch in `lineage` are not checked, because a broker deletes epochs together with the first
    segments of a log.
    """
    if not lineage:
        return segment.end_offset
    ends = [*(entry.start_offset - 1 for entry in lineage[1:]), INT64_MAX]
    ranges = {
        entry.epoch: (entry.start_offset if number else 0, end_offset)
        for number, (entry, end_offset) in enumerate(zip(lineage, ends, strict=True))
    }
    first_entry = lineage[0]
    valid_offset = segment.start_offset - 1
    segment_ends = [*(entry.start_offset - 1 for entry in segment.epochs[1:]), segment.end_offset]
    for entry, segment_end in zip(segment.epochs, segment_ends, strict=True):
        start = max(entry.start_offset, segment.start_offset)
        if entry.epoch < first_entry.epoch:
            allowed = (0, first_entry.start_offset - 1)
        else:
            allowed = ranges.get(entry.epoch, (INT64_MAX, -1))
        if start < allowed[0]:
            return valid_offset
        valid_offset = min(segment_end, allowed[1])
        if valid_offset < segment_end:
            return max(valid_offset, segment.start_offset - 1)
    return valid_offset


def _reject_contained(
    inner: ReadableSegment, outer: ReadableSegment, same_content: Callable[[Upload, Upload], bool]
) -> RejectedSegment:
    start_offset, end_offset = inner.upload.start_offset, inner.end_offset
    offsets = f"offsets {start_offset} to {end_offset}"
    if (start_offset, end_offset) != (outer.upload.start_offset, outer.end_offset):
        return RejectedSegment(inner.upload, f"a longer segment also contains {offsets}")
    is_equal = same_content(inner.upload, outer.upload)
    content = "the same content" if is_equal else "different content"
    return RejectedSegment(inner.upload, f"a later upload also contains {offsets}, with {content}")


@dataclass(frozen=True, slots=True)
class LocalPartition:
    """The local segments of a partition, in order of base offset.

    `directory` is None if the partition has no local log. `log_start_offset` is from the checkpoint
    file.
    """

    directory: str | None
    segments: Sequence[SegmentFile]
    log_start_offset: int | None
    epochs: tuple[EpochEntry, ...]

    @property
    def start_offset(self) -> int | None:
        """Base offset of the first local segment, None if there is no local segment."""
        return self.segments[0].base_offset if self.segments else None


@dataclass(frozen=True, slots=True)
class RemotePartition:
    """The remote segments of a partition; log start offset and leader epochs of the complete log.

    `segments` contain the offsets below the first local segment, in order. `skipped` are all other
    remote segments. `log_start_offset` is from the checkpoint file, or the start offset of the
    first segment.
    """

    segments: list[SegmentFile]
    skipped: list[Skipped]
    log_start_offset: int
    epochs: tuple[EpochEntry, ...]


def merge_partition(
    partition: TopicPartition,
    uploads: Sequence[Upload],
    unfinished_uploads: Sequence[UnfinishedUpload],
    local: LocalPartition,
) -> RemotePartition:
    """Choose the remote segments for the offsets below the first local segment.

    `unfinished_uploads` are segments with missing or damaged objects, of a partition without remote
    log metadata events. A broker reads offsets of local segments from the log directory
    (``ReplicaManager.readFromLog``). It does not read remote segments below the log start offset,
    and deletes them later.
    """
    starts = [upload.start_offset for upload in uploads]
    if local.start_offset is not None:
        starts.append(local.start_offset)
    log_start = local.log_start_offset
    if log_start is None:
        log_start = min(starts, default=0)
    epochs = local.epochs or _latest_epochs(uploads)
    readable, rejected = choose_segments(
        uploads,
        epochs,
        same_content=lambda inner, outer: same_content(inner.objects, outer.objects),
    )
    skipped = [Skipped(segment.upload.objects.log_object, segment.reason) for segment in rejected]
    files = []
    for segment in _clip_below_local(readable, local.start_offset):
        if segment.end_offset < log_start:
            reason = (
                f"the segment ends at offset {segment.end_offset}, below the log start offset "
                f"{log_start}"
            )
            skipped.append(Skipped(segment.upload.objects.log_object, reason))
        else:
            files.append(_limit_segment_file(partition, segment.upload, segment.end_offset))
    ranges = [(segment.upload.start_offset, segment.end_offset) for segment in readable]
    for unfinished in unfinished_uploads:
        start = unfinished.objects.key.start_offset
        later_starts = [start_offset for start_offset, _ in ranges if start_offset > start]
        if local.start_offset is not None:
            later_starts.append(local.start_offset)
        is_covered = any(start_offset <= start <= end_offset for start_offset, end_offset in ranges)
        if is_covered or not later_starts or max(later_starts) <= start or start < log_start:
            skipped.append(unfinished.skipped)
        else:
            # The log continues after this segment, and no other segment contains its offsets. List
            # the segment, so that reading its offsets reports an error.
            size = unfinished.objects.sizes.get(LOG_SUFFIX, 0)
            files.append(_segment_file(partition, unfinished.objects, start, size))
    files.sort(key=lambda file: file.base_offset)
    cache = LeaderEpochCache(epochs)
    cache.truncate_from_start(log_start)
    return RemotePartition(files, skipped, log_start, cache.entries)


def _clip_below_local(
    readable: Sequence[ReadableSegment], local_start: int | None
) -> list[ReadableSegment]:
    """Return the segments that start below the first local segment, without its offsets."""
    if local_start is None:
        return list(readable)
    return [
        ReadableSegment(segment.upload, min(segment.end_offset, local_start - 1))
        for segment in readable
        if segment.upload.start_offset < local_start
    ]


def _limit_segment_file(partition: TopicPartition, upload: Upload, end_offset: int) -> SegmentFile:
    size_bytes, limit = upload.size_bytes, None
    if end_offset < upload.end_offset:
        size_bytes = limit = end_position(upload, end_offset)
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
    """Return the leader epochs of the segment with the highest leader epoch and end offset."""
    uploads_with_epochs = [upload for upload in uploads if upload.epochs]
    if not uploads_with_epochs:
        return ()
    latest = max(
        uploads_with_epochs, key=lambda upload: (upload.epochs[-1].epoch, upload.end_offset)
    )
    try:
        return read_epochs(latest.objects)
    except (KafkaIndexError, FileNotFoundError) as error:
        if is_retriable(error):
            raise
        # Use the epochs that are known from the upload; reading the segment reports the corruption.
        return latest.epochs


def list_merged(
    inputs: Sequence[str], options: TieredOptions, *, topics: re.Pattern[str] | None
) -> Listing:
    """List the remote and local segments of topics whose full name matches `topics`.

    `inputs` are log directories as in `list_dump`, or empty. In each partition, remote segments for
    offsets below the first local segment precede the local segments. `skipped` includes unused
    remote segments, and `tiered` describes partitions with remote segments. Raises the errors of
    `list_dump` and `list_remote_objects`, and `InputError` if there are no segments or a topic ID
    is unknown. Raises `CorruptLogError` if ``__remote_log_metadata`` in the log directory is
    corrupt.
    """
    objects, skipped = list_remote_objects(options)
    if not objects:
        raise InputError(
            "the tiered storage contains no remote segments",
            path=", ".join(options.uris),
            hint="give the folder that the storage plugin writes to; "
            "check --tiered-format and --key-prefix",
        )
    local, metadata = _list_local(inputs, topics)
    merged = _MergedListing(local, metadata, options)
    merged.add_remote(objects, topics)
    listing = merged.listing
    listing.skipped += skipped
    listing.segments = sorted(
        [*listing.segments, *merged.remote_segments],
        key=lambda s: (s.topic, s.partition, s.base_offset),
    )
    listing.skipped.sort(key=lambda entry: entry.path)
    if not listing.segments:
        raise InputError(
            "no segments found",
            path=", ".join((*options.uris, *inputs)),
            hint=_skipped_hint(listing.skipped),
        )
    return listing


def _skipped_hint(skipped: Sequence[Skipped]) -> str | None:
    if not skipped:
        return None
    count = plural(len(skipped), "path was", "paths were")
    return f"{count} skipped; the first is {skipped[0].path}: {skipped[0].reason}"


def _list_local(
    inputs: Sequence[str], topics: re.Pattern[str] | None
) -> tuple[Listing, RemoteLogMetadata]:
    if not inputs:
        return Listing(), RemoteLogMetadata()
    metadata_topic = re.escape(REMOTE_LOG_METADATA_TOPIC)
    matched_topics = (
        None if topics is None else re.compile(f"(?:{topics.pattern})|{metadata_topic}")
    )
    listing = list_any(inputs, topics=matched_topics)
    metadata_segments = [s for s in listing.segments if s.topic == REMOTE_LOG_METADATA_TOPIC]
    metadata = RemoteLogMetadata.from_events(
        record.event for record in read_remote_log_metadata(metadata_segments)
    )
    if topics is not None and not topics.fullmatch(REMOTE_LOG_METADATA_TOPIC):
        _remove_topic(listing, REMOTE_LOG_METADATA_TOPIC)
    return listing, metadata


def _remove_topic(listing: Listing, topic: str) -> None:
    listing.segments = [s for s in listing.segments if s.topic != topic]
    listing.partition_directories = [
        directory
        for directory in listing.partition_directories
        if (partition := _parse_partition(directory)) is None or partition.topic != topic
    ]


def _parse_partition(directory: str) -> TopicPartition | None:
    return parse_partition_directory(os.path.basename(directory))


class _MergedListing:
    """The listing of log directories, to which remote segments are added."""

    def __init__(self, local: Listing, metadata: RemoteLogMetadata, options: TieredOptions) -> None:
        self.listing = local
        self._metadata = metadata
        self._options = options
        self._directories = {
            partition: directory
            for directory in local.partition_directories
            if (partition := _parse_partition(directory)) is not None
        }
        self._local_ids = self._read_topic_ids()
        self._roots = DataDirectories()
        self.remote_segments: list[SegmentFile] = []
        self._local_segments = {
            partition: list(members)
            for partition, members in groupby(
                local.segments, lambda s: TopicPartition(s.topic, s.partition)
            )
        }

    def add_remote(self, objects: Sequence[RemoteObjects], topics: re.Pattern[str] | None) -> None:
        by_topic: dict[str, list[RemoteObjects]] = defaultdict(list)
        for segment in objects:
            by_topic[segment.key.topic_id].append(segment)
        local_names = {topic_id: name for name, topic_id in self._local_ids.items()}
        names, unnamed_topics = topic_names(by_topic, local_names | self._metadata.topics)
        self.listing.skipped += unnamed_topics
        names |= {
            topic_id: name
            for topic_id, name in self._metadata.topics.items()
            if self._local_ids.get(name, topic_id) == topic_id
        }
        if topics is not None:
            all_names = names
            names = {topic_id: name for topic_id, name in names.items() if topics.fullmatch(name)}
            if not names and not self._local_segments:
                raise no_topic_matches(topics, all_names.values(), ", ".join(self._options.uris))
        latest_upload_ns = {
            topic_id: max(segment.log_mtime_ns for segment in segments)
            for topic_id, segments in by_topic.items()
        }
        selected_ids = choose_topic_ids(
            names, latest_upload_ns, self._local_ids, self._options.topic_ids
        )
        for topic_id, name in names.items():
            segments = by_topic.get(topic_id, [])
            if selected_ids[name] != topic_id:
                self._skip_topic(topic_id, name, selected_ids[name], segments)
                continue
            if self._local_ids.get(name, topic_id) != topic_id:
                self._skip_local(name)
            self._add_topic(topic_id, name, segments, objects[0])
        for partition in self._local_segments:
            if partition not in self.listing.tiered:
                self._add_local(partition)

    def _add_local(self, partition: TopicPartition) -> None:
        """Add a tiered partition without uploads.

        If a partition is not tiered, a broker checkpoints its log start offset only if it is above
        the base offset of the first segment (UnifiedLog.logStartOffset,
        LogManager.checkpointLogStartOffsets).
        """
        local = self._local_partition(partition)
        log_start, local_start = local.log_start_offset, local.start_offset
        if log_start is None or local_start is None or log_start > local_start:
            return
        topic_id = self._local_ids.get(partition.topic, "")
        self.listing.tiered[partition] = TieredPartition(
            topic_id,
            local.directory,
            log_start,
            is_lower_bound=False,
            local_start_offset=local_start,
            tiered_end_offset=-1,
            epochs=local.epochs,
        )

    def _skip_topic(
        self, topic_id: str, name: str, selected_id: str, segments: Sequence[RemoteObjects]
    ) -> None:
        reason = (
            f"topic ID {selected_id} was selected for the name {name}; to read this topic, give "
            f"--topic-id {topic_id}"
        )
        folders = {f"{segment.root}/{segment.key.parent}".rstrip("/") for segment in segments}
        self.listing.skipped += [Skipped(folder, reason) for folder in sorted(folders)]

    def _skip_local(self, name: str) -> None:
        """Skip the local segments of a topic if another topic ID was selected for its name."""
        reason = f"the partition belongs to another topic named {name}, {self._local_ids[name]}"
        self.listing.skipped += [
            Skipped(directory, reason)
            for partition, directory in self._directories.items()
            if partition.topic == name
        ]
        _remove_topic(self.listing, name)
        for partition in [key for key in self._directories if key.topic == name]:
            del self._directories[partition]
            self._local_segments.pop(partition, None)

    def _add_topic(
        self,
        topic_id: str,
        name: str,
        segments: Sequence[RemoteObjects],
        template: RemoteObjects,
    ) -> None:
        by_partition: dict[int, list[RemoteObjects]] = defaultdict(list)
        for segment in segments:
            by_partition[segment.key.partition].append(segment)
        for other_id, number in self._metadata.partitions:
            if other_id == topic_id:
                by_partition.setdefault(number, [])
        for number, partition_objects in sorted(by_partition.items()):
            location = (
                partition_objects[0]
                if partition_objects
                else _derive_location(template, topic_id, name, number)
            )
            self._add_partition(TopicPartition(name, number), topic_id, partition_objects, location)

    def _add_partition(
        self,
        partition: TopicPartition,
        topic_id: str,
        objects: Sequence[RemoteObjects],
        location: RemoteObjects,
    ) -> None:
        unfinished: list[UnfinishedUpload] = []
        if (topic_id, partition.partition) in self._metadata.partitions:
            uploads, skipped = uploads_from_events(objects, self._metadata, location)
            self.listing.skipped += skipped
        else:
            uploads, unfinished = uploads_from_objects(objects)
        local = self._local_partition(partition)
        remote_part = merge_partition(partition, uploads, unfinished, local)
        self.remote_segments += remote_part.segments
        self.listing.skipped += remote_part.skipped
        uploaded_to = self._metadata.uploaded_to.get((topic_id, partition.partition), -1)
        self.listing.tiered[partition] = TieredPartition(
            topic_id,
            local.directory,
            remote_part.log_start_offset,
            local.log_start_offset is None,
            local.start_offset,
            max(uploaded_to, *(upload.end_offset for upload in uploads), -1),
            remote_part.epochs,
        )

    def _local_partition(self, partition: TopicPartition) -> LocalPartition:
        directory = self._directories.get(partition)
        if directory is None:
            return LocalPartition(None, [], None, ())
        return LocalPartition(
            directory,
            self._local_segments.get(partition, []),
            self._roots.for_partition(directory).log_start_offset(partition),
            read_epochs_or_skip(directory, self.listing.skipped).entries,
        )

    def _read_topic_ids(self) -> dict[str, str]:
        """Return the IDs of topics with local partitions, keyed by topic name."""
        ids: dict[str, str] = {}
        for partition, directory in self._directories.items():
            if partition.topic in ids:
                continue
            try:
                topic_id = read_topic_id(directory)
            except KafkaIndexError as error:
                if is_retriable(error):
                    raise
                path = error.path or directory
                self.listing.skipped.append(
                    Skipped(path, f"the topic ID cannot be read: {error.message}")
                )
            else:
                if topic_id is not None:
                    ids[partition.topic] = topic_id
        return ids


def _derive_location(
    template: RemoteObjects, topic_id: str, name: str, partition: int
) -> RemoteObjects:
    """Derive the location of a partition without objects from the objects of any segment."""
    key = SegmentKey("", name, topic_id, partition, 0, "")
    if template.layout is Layout.LOCAL:
        folder = template.key.parent.rstrip("/").rpartition("/")[0]
        parent = f"{folder}/{name}-{partition}-{topic_id}/".lstrip("/")
    else:
        parent = f"{name}-{topic_id}/{partition}/"
    return RemoteObjects(template.root, template.layout, replace(key, parent=parent))
