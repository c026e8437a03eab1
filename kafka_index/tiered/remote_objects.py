"""Listing the objects of remote segments, whichever layout they have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from kafka_index.errors import InputError
from kafka_index.layout.names import LOG_SUFFIX, TXN_INDEX_SUFFIX
from kafka_index.storage import Skipped
from kafka_index.storage.directories import directory_exists
from kafka_index.storage.paths import absolute_path
from kafka_index.stores import is_remote, store_of
from kafka_index.stores.inputs import admit_inputs
from kafka_index.stores.tiered.manifest import INDEX_NAMES
from kafka_index.stores.tiered.segment_paths import (
    UUID_PATTERN,
    Layout,
    SegmentKey,
    parse_key,
    segment_path,
)
from kafka_index.stores.tiered.tiered_store import INDEXES_SUFFIX, MANIFEST_SUFFIX
from kafka_index.tiered.options import TieredOptions

# What a finished upload has, in the order in which it is written.
_COMPLETE = {
    Layout.LOCAL: (
        LOG_SUFFIX,
        *(suffix for suffix in INDEX_NAMES if suffix != TXN_INDEX_SUFFIX),
    ),
    Layout.AIVEN: (LOG_SUFFIX, INDEXES_SUFFIX, MANIFEST_SUFFIX),
}
# Where Aiven's plugin writes the index of a segment that it stored as rows of an Iceberg table.
_ICEBERG = re.compile(rf"(?:.*/)?metadata/{UUID_PATTERN}\.puffin")
_ICEBERG_REASON = (
    "a segment in Iceberg format: its records are rows of a table, and its batches are not stored"
)


@dataclass(slots=True)
class RemoteObjects:
    """The objects of one segment, whose key is below the root, a path or URI.

    Sizes are in bytes, by suffix; modification time (0 without one) and ETag are those of the log
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
        """Path or URI of the log object."""
        return self.name + LOG_SUFFIX

    @property
    def missing(self) -> list[str]:
        """The suffixes of the objects that a finished upload would have, and this has not."""
        return [suffix for suffix in _COMPLETE[self.layout] if suffix not in self.sizes]

    def path(self, suffix: str, limit_bytes: int | None = None) -> str:
        """Return the path by which a file of the segment is opened, its log cut if wanted."""
        return segment_path(self.layout, self.root, self.key, suffix, limit_bytes)


def list_remote_objects(options: TieredOptions) -> tuple[list[RemoteObjects], list[Skipped]]:
    """List every segment that has an object below some folders, and the other objects.

    Raises `InputError` if a folder does not exist, cannot be listed, or holds nothing but Iceberg
    tables.
    """
    found: list[RemoteObjects] = []
    skipped: list[Skipped] = []
    for uri in options.uris:
        root = absolute_path(uri).rstrip("/")
        if not directory_exists(root):
            raise InputError("the folder of tiered storage does not exist", path=uri)
        if not is_remote(root):
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
