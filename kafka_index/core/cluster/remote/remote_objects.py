"""List the objects of remote segments, in both layouts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kafka_index.core.cluster.remote.options import TieredOptions
from kafka_index.core.errors import InputError, KafkaIndexError, is_retriable
from kafka_index.core.format.names import LOG_SUFFIX, TXN_INDEX_SUFFIX
from kafka_index.core.fs.inputs import Skipped, admit_inputs
from kafka_index.core.fs.paths import absolute_path
from kafka_index.core.fs.registry import directory_exists, store_of
from kafka_index.core.fs.tiered.manifest import INDEX_NAMES
from kafka_index.core.fs.tiered.tiered_store import INDEXES_SUFFIX, MANIFEST_SUFFIX, read_manifest
from kafka_index.core.fs.uris import (
    UUID_PATTERN,
    Layout,
    SegmentKey,
    parse_key,
    segment_path,
)

# The objects of a completed upload, in the order in which they are written.
_COMPLETE = {
    Layout.LOCAL: (
        LOG_SUFFIX,
        *(suffix for suffix in INDEX_NAMES if suffix != TXN_INDEX_SUFFIX),
    ),
    Layout.AIVEN: (LOG_SUFFIX, INDEXES_SUFFIX, MANIFEST_SUFFIX),
}
# The index object of a segment that Aiven's plugin stored as rows of an Iceberg table.
_ICEBERG = re.compile(rf"(?:.*/)?metadata/{UUID_PATTERN}\.puffin")
_ICEBERG_REASON = (
    "a segment in Iceberg format: its records are rows of a table, and its batches are not stored"
)


@dataclass(slots=True)
class RemoteObjects:
    """The objects of one segment, whose key is below `root`, a path or URI.

    Sizes are in bytes, by suffix. Modification time (0 if unknown) and ETag are those of the log
    object.
    """

    root: str
    layout: Layout
    key: SegmentKey
    sizes: dict[str, int] = field(default_factory=dict)
    log_mtime_ns: int = 0
    log_version: str = ""

    @property
    def name(self) -> str:
        """Path or URI of the objects without suffix."""
        return f"{self.root}/{self.key.name}"

    @property
    def log_object(self) -> str:
        return self.name + LOG_SUFFIX

    @property
    def missing(self) -> list[str]:
        """The suffixes of objects that are missing for a completed upload."""
        return [suffix for suffix in _COMPLETE[self.layout] if suffix not in self.sizes]

    def path(self, suffix: str, limit_bytes: int | None = None) -> str:
        """Return the path for opening a file of the segment; its log can end at `limit_bytes`."""
        return segment_path(self.layout, self.root, self.key, suffix, limit_bytes)


def list_remote_objects(options: TieredOptions) -> tuple[list[RemoteObjects], list[Skipped]]:
    """List all segments with objects below the given folders, and all other objects.

    Raises `InputError` if a folder does not exist, cannot be listed, or contains only Iceberg
    tables.
    """
    found: list[RemoteObjects] = []
    skipped: list[Skipped] = []
    for uri in options.uris:
        root = absolute_path(uri).rstrip("/")
        if not directory_exists(root):
            raise InputError("the folder of tiered storage does not exist", path=uri)
        admit_inputs([root])
        segments, iceberg = _list_root(root, options)
        if iceberg and not segments:
            raise InputError(
                "the segments are in Iceberg format, which is not supported: their records are "
                "rows of tables, and their batches are not stored",
                path=iceberg[0],
            )
        found += segments
        skipped += [Skipped(path, _ICEBERG_REASON) for path in iceberg]
    return found, skipped


def _list_root(root: str, options: TieredOptions) -> tuple[list[RemoteObjects], list[str]]:
    segments: dict[str, RemoteObjects] = {}
    iceberg = []
    for path, size, mtime_ns, version in _files(root):
        parsed = _parse(path, options)
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


def _files(root: str) -> Iterator[tuple[str, int, int, str]]:
    for batch in store_of(root).list_tree(root):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _parse(path: str, options: TieredOptions) -> tuple[Layout, SegmentKey, str] | None:
    for layout in Layout if options.layout is None else (Layout(options.layout),):
        parsed = parse_key(layout, path)
        if parsed is not None:
            prefix = options.key_prefix or ""
            if layout is Layout.AIVEN and not path.startswith(prefix):
                return None
            return layout, *parsed
    return None


def topic_names(
    objects: Mapping[str, Sequence[RemoteObjects]], known: Mapping[str, str]
) -> tuple[dict[str, str], list[Skipped]]:
    """Return the names of topics by ID, and the topics without a name.

    `known` are names by ID, from events and log directories.
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
    """Return the topic ID to use for each name.

    `latest_upload_ns` is the time of each ID's last upload. `local_ids` has the IDs of topics with
    partition directories, which take precedence. Raises `InputError` if a `wanted` ID is unknown,
    or two of them have the same name.
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
        asked_name = names.get(topic_id) or next(
            (name for name, local_id in local_ids.items() if local_id == topic_id), None
        )
        if asked_name is None:
            raise InputError("no topic has this id", found=topic_id, hint="check --topic-id")
        if asked.setdefault(asked_name, topic_id) != topic_id:
            found = f"{asked[asked_name]} and {topic_id}"
            raise InputError(f"two topic ids of the topic {asked_name}", found=found)
    return chosen | asked


def _name_in_manifests(segments: Sequence[RemoteObjects]) -> str | None:
    for segment in segments:
        try:
            return read_manifest(store_of(segment.root), segment.name).topic
        except KafkaIndexError as error:
            if is_retriable(error):
                raise
            # Another object may be valid; this error is reported for the segment.
            continue
    return None
