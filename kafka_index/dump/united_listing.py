"""Listing a dump with tiered storage: each partition as the union of its segments."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from kafka_index.dump.data_directory import DataDirectories
from kafka_index.dump.small_files import read_epochs_or_skip, read_topic_id
from kafka_index.errors import InputError, KafkaIndexError, is_retriable
from kafka_index.layout.names import (
    REMOTE_LOG_METADATA_TOPIC,
    TopicPartition,
    parse_partition_directory,
)
from kafka_index.storage import Listing, Skipped
from kafka_index.storage.listing import list_any, no_topic_matches
from kafka_index.storage.partition_files import SegmentFile, TieredPartition
from kafka_index.stores.tiered.segment_paths import Layout, SegmentKey
from kafka_index.tiered.options import TieredOptions
from kafka_index.tiered.remote_log_metadata import RemoteLogMetadata, read_remote_log_metadata
from kafka_index.tiered.remote_objects import (
    RemoteObjects,
    choose_topic_ids,
    list_remote_objects,
    topic_names,
)
from kafka_index.tiered.union import LocalPartition, unite
from kafka_index.tiered.uploads import UnfinishedUpload, uploads_of_events, uploads_of_objects


def list_united(
    inputs: Sequence[str], options: TieredOptions, *, topics: re.Pattern[str] | None
) -> Listing:
    """List the segments of a dump, remote and local, of topics that match in full.

    The inputs are log directories as for `list_dump`; there may be none. The remote segments up to
    the first local one of a partition come before the local ones; `skipped` has the segments that
    are not served, and `tiered` the facts about the partitions. Raises `InputError` as `list_dump`
    and `list_remote_objects`, or if there are no segments or the id of a topic is unknown, and
    `CorruptLogError` if the log directory's ``__remote_log_metadata`` is damaged.
    """
    objects, skipped = list_remote_objects(options)
    if not objects:
        raise InputError(
            "no remote segments found",
            path=", ".join(options.uris),
            hint="give the folder that the storage plugin writes to; "
            "check --tiered-format and --key-prefix",
        )
    local, metadata = _list_local(inputs, topics)
    union = _Union(local, metadata, options)
    union.add_remote(objects, topics)
    listing = union.listing
    listing.skipped += skipped
    listing.segments = sorted(
        [*listing.segments, *union.remote_segments],
        key=lambda s: (s.topic, s.partition, s.base_offset),
    )
    listing.skipped.sort(key=lambda each: each.path)
    if not listing.segments:
        raise InputError(
            "no segments found",
            path=", ".join((*options.uris, *inputs)),
            hint=f"skipped {len(listing.skipped)}, the first: "
            + "".join(f"{each.path}: {each.reason}" for each in listing.skipped[:1]),
        )
    return listing


def _list_local(
    inputs: Sequence[str], topics: re.Pattern[str] | None
) -> tuple[Listing, RemoteLogMetadata]:
    """List the local segments of some topics, and read the metadata topic beside them."""
    if not inputs:
        return Listing(), RemoteLogMetadata()
    metadata_topic = re.escape(REMOTE_LOG_METADATA_TOPIC)
    wanted = None if topics is None else re.compile(f"(?:{topics.pattern})|{metadata_topic}")
    listing = list_any(inputs, topics=wanted)
    of_metadata = [s for s in listing.segments if s.topic == REMOTE_LOG_METADATA_TOPIC]
    metadata = RemoteLogMetadata.of_events(
        record.event for record in read_remote_log_metadata(of_metadata)
    )
    if topics is not None and not topics.fullmatch(REMOTE_LOG_METADATA_TOPIC):
        _remove_topic(listing, REMOTE_LOG_METADATA_TOPIC)
    return listing, metadata


def _remove_topic(listing: Listing, topic: str) -> None:
    listing.segments = [s for s in listing.segments if s.topic != topic]
    listing.partition_directories = [
        directory
        for directory in listing.partition_directories
        if (partition := _partition_of(directory)) is None or partition.topic != topic
    ]


def _partition_of(directory: str) -> TopicPartition | None:
    return parse_partition_directory(os.path.basename(directory))


class _Union:
    """Adds remote segments to the listing of a log directory."""

    def __init__(self, local: Listing, metadata: RemoteLogMetadata, options: TieredOptions) -> None:
        self.listing = local
        self._metadata = metadata
        self._options = options
        self._directories = {
            partition: directory
            for directory in local.partition_directories
            if (partition := _partition_of(directory)) is not None
        }
        self._local_ids = self._topic_ids()
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
        for each in objects:
            by_topic[each.key.topic_id].append(each)
        known = {topic_id: name for name, topic_id in self._local_ids.items()}
        names, nameless = topic_names(by_topic, known | self._metadata.topics)
        self.listing.skipped += nameless
        names |= {
            topic_id: name
            for topic_id, name in self._metadata.topics.items()
            if self._local_ids.get(name, topic_id) == topic_id
        }
        if topics is not None:
            found = names
            names = {topic_id: name for topic_id, name in names.items() if topics.fullmatch(name)}
            if not names and not self._local_segments:
                raise no_topic_matches(topics, found.values(), ", ".join(self._options.uris))
        latest = {
            topic_id: max(each.log_mtime_ns for each in segments)
            for topic_id, segments in by_topic.items()
        }
        chosen = choose_topic_ids(names, latest, self._local_ids, self._options.topic_ids)
        for topic_id, name in names.items():
            segments = by_topic.get(topic_id, [])
            if chosen[name] != topic_id:
                self._skip_topic(topic_id, name, chosen[name], segments)
                continue
            if self._local_ids.get(name, topic_id) != topic_id:
                self._drop_local(name)
            self._add_topic(topic_id, name, segments, objects[0])
        for partition in self._local_segments:
            if partition not in self.listing.tiered:
                self._add_local(partition)

    def _add_local(self, partition: TopicPartition) -> None:
        """Record a tiered partition without any upload yet.

        A broker checkpoints the log start of a partition that is not tiered only where it is
        above the first segment (UnifiedLog.logStartOffset, LogManager.checkpointLogStartOffsets).
        """
        local = self._local(partition)
        start, first = local.log_start_offset, local.start_offset
        if start is None or first is None or start > first:
            return
        topic_id = self._local_ids.get(partition.topic, "")
        self.listing.tiered[partition] = TieredPartition(
            topic_id,
            local.directory,
            start,
            is_lower_bound=False,
            local_start_offset=first,
            tiered_end_offset=-1,
            epochs=local.epochs,
        )

    def _skip_topic(
        self, topic_id: str, name: str, chosen: str, segments: Sequence[RemoteObjects]
    ) -> None:
        reason = f"another topic named {name} (the one taken is {chosen}): --topic-id {topic_id}"
        folders = {f"{each.root}/{each.key.parent}".rstrip("/") for each in segments}
        self.listing.skipped += [Skipped(folder, reason) for folder in sorted(folders)]

    def _drop_local(self, name: str) -> None:
        """Leave out the local segments of a topic whose name belongs to another id."""
        reason = f"of another topic named {name}, {self._local_ids[name]}"
        self.listing.skipped += [
            Skipped(directory, reason)
            for partition, directory in self._directories.items()
            if partition.topic == name
        ]
        _remove_topic(self.listing, name)
        for partition in [each for each in self._directories if each.topic == name]:
            del self._directories[partition]
            self._local_segments.pop(partition, None)

    def _add_topic(
        self,
        topic_id: str,
        name: str,
        segments: Sequence[RemoteObjects],
        elsewhere: RemoteObjects,
    ) -> None:
        by_partition: dict[int, list[RemoteObjects]] = defaultdict(list)
        for each in segments:
            by_partition[each.key.partition].append(each)
        for other_id, number in self._metadata.partitions:
            if other_id == topic_id:
                by_partition.setdefault(number, [])
        for number, members in sorted(by_partition.items()):
            place = members[0] if members else _place_of(elsewhere, topic_id, name, number)
            self._add_partition(TopicPartition(name, number), topic_id, members, place)

    def _add_partition(
        self,
        partition: TopicPartition,
        topic_id: str,
        objects: Sequence[RemoteObjects],
        place: RemoteObjects,
    ) -> None:
        unfinished: list[UnfinishedUpload] = []
        if (topic_id, partition.partition) in self._metadata.partitions:
            uploads, skipped = uploads_of_events(objects, self._metadata, place)
            self.listing.skipped += skipped
        else:
            uploads, unfinished = uploads_of_objects(objects)
        local = self._local(partition)
        united = unite(partition, uploads, unfinished, local)
        self.remote_segments += united.segments
        self.listing.skipped += united.skipped
        uploaded_to = self._metadata.uploaded_to.get((topic_id, partition.partition), -1)
        self.listing.tiered[partition] = TieredPartition(
            topic_id,
            local.directory,
            united.log_start_offset,
            local.log_start_offset is None,
            local.start_offset,
            max(uploaded_to, *(upload.end_offset for upload in uploads), -1),
            united.epochs,
        )

    def _local(self, partition: TopicPartition) -> LocalPartition:
        directory = self._directories.get(partition)
        if directory is None:
            return LocalPartition(None, [], None, ())
        return LocalPartition(
            directory,
            self._local_segments.get(partition, []),
            self._roots.of(directory).log_start_offset(partition),
            read_epochs_or_skip(directory, self.listing.skipped).entries,
        )

    def _topic_ids(self) -> dict[str, str]:
        """Return the id of each topic that has a local partition, by its name."""
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
                self.listing.skipped.append(Skipped(path, f"no topic id: {error.message}"))
            else:
                if topic_id is not None:
                    ids[partition.topic] = topic_id
        return ids


def _place_of(elsewhere: RemoteObjects, topic_id: str, name: str, partition: int) -> RemoteObjects:
    """Return where the objects of a partition without any would be."""
    key = SegmentKey("", name, topic_id, partition, 0, "")
    if elsewhere.layout is Layout.LOCAL:
        folder = elsewhere.key.parent.rstrip("/").rpartition("/")[0]
        parent = f"{folder}/{name}-{partition}-{topic_id}/".lstrip("/")
    else:
        parent = f"{name}-{topic_id}/{partition}/"
    return RemoteObjects(elsewhere.root, elsewhere.layout, replace(key, parent=parent))
