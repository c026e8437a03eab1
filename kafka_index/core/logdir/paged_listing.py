"""List the partition directories of an object store by pages, as columns.

Listing a prefix takes one request per 1,000 objects, whatever the number of directories.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.core.errors import KafkaIndexError
from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.format.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    OFFSET_DIGITS,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TopicPartition,
)
from kafka_index.core.fs.registry import scan_directory, store_of
from kafka_index.core.fs.store import DirectoryEntry, Entry, StoredEntry
from kafka_index.core.fs.uris import OBJECT_SCHEMES, scheme_of
from kafka_index.core.logdir.segment_table import PartitionSegments

_FOLDER_AND_NAME = r"(?s)^(?P<folder>[^/]*)/(?P<name>.*)$"
_ODD_NAME = rf"(\{SWAP_SUFFIX}|\{CLEANED_SUFFIX}|\{DELETED_SUFFIX})(/|$)|\{LOG_SUFFIX}/"
_LOG_NAME = rf"^[0-9]{{{OFFSET_DIGITS}}}\{LOG_SUFFIX}$"
_INDEX_NAME = rf"^[0-9]{{{OFFSET_DIGITS}}}({'|'.join(map(re.escape, INDEX_SUFFIXES))})$"
_MAX_LOG_NAME = str(INT64_MAX).zfill(OFFSET_DIGITS) + LOG_SUFFIX


@dataclass(frozen=True, slots=True)
class StoredDirectory:
    """The objects of one directory of an object store; `name` is the name of the directory.

    Each row has the name, size, modification time and version of an object; rows are sorted by
    name.
    """

    name: str
    rows: pa.Table

    def entries(self, directory: str) -> list[Entry]:
        """Return the entries with their full paths; `directory` is the path of this directory."""
        entries: dict[str, Entry] = {}
        for row in self.rows.to_pylist():
            name, separator, _ = row["name"].partition("/")
            path = f"{directory}/{name}"
            if separator:
                entry = DirectoryEntry(path, is_directory=True)
            else:
                entry = DirectoryEntry(
                    path,
                    size_bytes=row["size_bytes"],
                    mtime_ns=row["mtime_ns"],
                    version=row["version"],
                )
            entries[path] = StoredEntry(entry)
        return list(entries.values())

    def plain_segments(self, partition: TopicPartition, directory: str) -> PartitionSegments | None:
        """Return the segments of a partition; None if each entry must be inspected.

        `kafka_index.core.logdir.segment_table.list_plain_partition` applies the same rules.
        """
        names = self.rows.column("name")
        if pc.any(pc.match_substring_regex(names, _ODD_NAME)).as_py():
            return None
        logs = self.rows.filter(pc.ends_with(names, LOG_SUFFIX))
        logs = logs.filter(pc.invert(pc.match_substring(logs.column("name"), "/")))
        names = logs.column("name")
        is_log = pc.and_(
            pc.match_substring_regex(names, _LOG_NAME), pc.less_equal(names, _MAX_LOG_NAME)
        )
        if not pc.all(is_log).as_py():
            return None
        digits = pc.utf8_slice_codeunits(names, 0, OFFSET_DIGITS)
        versions = logs.column("version").combine_chunks()
        all_names = self.rows.column("name")
        is_start_entry = pc.or_(
            pc.and_(
                pc.ends_with(all_names, SNAPSHOT_SUFFIX),
                # Snapshot names have equal length, so string order is offset order.
                pc.less_equal(
                    all_names, digits[0].as_py() + SNAPSHOT_SUFFIX if len(digits) else ""
                ),
            ),
            pc.equal(all_names, LEADER_EPOCH_CHECKPOINT),
        )
        stems = pc.utf8_slice_codeunits(all_names, 0, OFFSET_DIGITS)
        is_lone_index = pc.and_(
            pc.match_substring_regex(all_names, _INDEX_NAME),
            pc.invert(pc.is_in(stems, value_set=digits.combine_chunks())),
        )
        return PartitionSegments(
            partition,
            directory,
            digits.cast(pa.int64()).to_numpy(),
            logs.column("size_bytes").to_numpy(),
            logs.column("mtime_ns").to_numpy(),
            versions if pc.any(pc.not_equal(versions, "")).as_py() else None,
            start_entries=self._filter_entries(is_start_entry, directory),
            lone_indexes=self._filter_entries(is_lone_index, directory),
        )

    def _filter_entries(self, mask: pa.ChunkedArray, directory: str) -> tuple[Entry, ...]:
        return tuple(StoredDirectory(self.name, self.rows.filter(mask)).entries(directory))


def list_directories(root: str) -> Iterator[StoredDirectory]:
    """List the objects below a prefix of an object store by pages, and yield them by directory.

    Raises `KafkaIndexError` if the store cannot be read.
    """
    name: str | None = None
    batches: list[pa.RecordBatch] = []
    for page in store_of(root).list_tree(root):
        for folder, rows in _split_page(page):
            if folder != name and name is not None:
                yield StoredDirectory(name, pa.Table.from_batches(batches))
                batches = []
            name = folder
            batches.append(rows)
    if name is not None:
        yield StoredDirectory(name, pa.Table.from_batches(batches))


def scan_directories(directories: Iterable[str]) -> Iterator[tuple[str, list[Entry]]]:
    """Yield directories with their entries, in no particular order; skip unreadable directories.

    If `directories` has most directories below a prefix of an object store, the prefix is listed
    once for all of them.
    """
    directories_by_root: dict[str, list[str]] = {}
    for directory in directories:
        directories_by_root.setdefault(os.path.dirname(directory), []).append(directory)
    for root, root_directories in directories_by_root.items():
        unlisted = dict.fromkeys(root_directories)
        with suppress(KafkaIndexError):
            for stored_directory in (
                list_directories(root) if _prefers_listing(root_directories, root) else ()
            ):
                path = f"{root}/{stored_directory.name}"
                if path in unlisted:
                    yield path, stored_directory.entries(path)
                    del unlisted[path]
        for path in unlisted:
            # A folder of index files may not exist.
            with suppress(KafkaIndexError):
                yield path, scan_directory(path)


def _prefers_listing(directories: Sequence[str], root: str) -> bool:
    if len(directories) == 1 or scheme_of(root) not in OBJECT_SCHEMES:
        return False
    entries = [entry for entry in store_of(root).list_directory(root) if entry.is_directory]
    return 2 * len(directories) >= len(entries)


def _split_page(page: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of a page by folder; skip objects that are in no folder."""
    folders_and_names = pc.extract_regex(page["path"], _FOLDER_AND_NAME)
    is_inside = pc.is_valid(folders_and_names)
    folders_and_names, page = folders_and_names.filter(is_inside), page.filter(is_inside)
    folders = folders_and_names.field("folder").dictionary_encode()
    rows = page.set_column(0, "name", folders_and_names.field("name"))
    codes = folders.indices.to_numpy()
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    ends = np.append(starts, len(codes))[1:]
    for start_row, end_row in zip(starts.tolist(), ends.tolist(), strict=True):
        yield (
            folders.dictionary[int(codes[start_row])].as_py(),
            rows.slice(start_row, end_row - start_row),
        )
