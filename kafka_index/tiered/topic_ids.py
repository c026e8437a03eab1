"""Topics by id: their names, and which of several topics of one name is the live one."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from kafka_index.errors import InputError, KafkaIndexError, is_retriable
from kafka_index.layout.names import PARTITION_METADATA, parse_partition_directory
from kafka_index.storage import Skipped
from kafka_index.storage.log_directory import read_checkpoint_text
from kafka_index.stores import store_of
from kafka_index.stores.tiered.segment_paths import Layout
from kafka_index.stores.tiered.tiered_store import read_manifest
from kafka_index.tiered.remote_objects import RemoteObjects

_TOPIC_ID_KEY = "topic_id:"


def local_topic_ids(partition_directories: Iterable[str]) -> dict[str, str]:
    """Return the id of each topic that has a partition directory, by its name.

    A directory without ``partition.metadata`` (PartitionMetadataFile) has no id.
    """
    ids: dict[str, str] = {}
    for directory in partition_directories:
        partition = parse_partition_directory(os.path.basename(directory))
        if partition is None or partition.topic in ids:
            continue
        text = read_checkpoint_text(os.path.join(directory, PARTITION_METADATA)) or ""
        for line in text.splitlines():
            if line.startswith(_TOPIC_ID_KEY):
                ids[partition.topic] = line.removeprefix(_TOPIC_ID_KEY).strip()
    return ids


def topic_names(
    objects: Mapping[str, Sequence[RemoteObjects]], known: Mapping[str, str]
) -> tuple[dict[str, str], list[Skipped]]:
    """Return the names of topics with objects, by id, and the topics that have none.

    `known` are names by id, from events and log directories.
    """
    names: dict[str, str] = {}
    skipped = []
    for topic_id, segments in objects.items():
        first = segments[0]
        name = known.get(topic_id)
        if name is None and first.layout is Layout.LOCAL:
            name = first.key.prefixed_topic
        if name is None:
            name = _name_in_manifests(segments)
        if name is None:
            reason = "no manifest of this topic id can be read, so that its name is unknown"
            skipped.append(Skipped(f"{first.root}/{first.key.parent}", reason))
        else:
            names[topic_id] = name
    return names, skipped


def choose_topic_ids(
    names: Mapping[str, str],
    latest_upload_ns: Mapping[str, int],
    local_ids: Mapping[str, str],
    wanted: Sequence[str],
) -> dict[str, str]:
    """Return the topic id to take for each name.

    `latest_upload_ns` is the time when the last segment of each id was written. `local_ids` has the
    id of each topic with partition directories: the live one. Raises `InputError` if a wanted id is
    nowhere, or two of them have one name.
    """
    ids: dict[str, list[str]] = defaultdict(list)
    for topic_id, name in names.items():
        ids[name].append(topic_id)
    chosen = {
        name: local_ids.get(name)
        or max(same_name, key=lambda topic_id: (latest_upload_ns.get(topic_id, 0), topic_id))
        for name, same_name in ids.items()
    }
    asked: dict[str, str] = {}
    for topic_id in wanted:
        asked_name = names.get(topic_id) or _local_name(topic_id, local_ids)
        if asked_name is None:
            raise InputError("no topic has this id", found=topic_id, hint="check --topic-id")
        if asked.setdefault(asked_name, topic_id) != topic_id:
            found = f"{asked[asked_name]} and {topic_id}"
            raise InputError(f"two topic ids of the topic {asked_name}", found=found)
    return chosen | asked


def _local_name(topic_id: str, local_ids: Mapping[str, str]) -> str | None:
    return next((name for name, local_id in local_ids.items() if local_id == topic_id), None)


def _name_in_manifests(segments: Sequence[RemoteObjects]) -> str | None:
    for segment in segments:
        try:
            return read_manifest(store_of(segment.root), segment.name).topic
        except KafkaIndexError as error:
            if is_retriable(error):
                raise
            # Another one may be sound, and this one is reported with its segment.
            continue
    return None
