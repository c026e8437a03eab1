"""List a dump: live segments, and skipped entries with reasons."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from kafka_index.core.errors import InputError, first_of, plural
from kafka_index.core.format.names import (
    LOG_SUFFIX,
    META_PROPERTIES,
    NOT_PARTITIONS,
    OFFSET_CHECKPOINTS,
    ROOT_FILES,
    DirectoryKind,
    TopicPartition,
    is_legal_topic,
    parse_segment_file,
    split_directory_name,
)
from kafka_index.core.fs.inputs import (
    BROKEN_LINK,
    LINKED_OUT,
    Skipped,
    admit_linked,
    is_within,
    linked_out,
    note_unread,
    run_cache,
)
from kafka_index.core.fs.paths import absolute_path, expand_directories, layout_hint
from kafka_index.core.fs.registry import identity_of, scan_directory, scan_input, store_of
from kafka_index.core.fs.store import Entry
from kafka_index.core.fs.uris import OBJECT_SCHEMES, is_backup_path, scheme_of
from kafka_index.core.logdir.data_directory import DataDirectory
from kafka_index.core.logdir.partition_files import SegmentFile, TieredPartition, list_partition
from kafka_index.core.logdir.segment_table import (
    PartitionSegments,
    SegmentTable,
    list_plain_partition,
)

if TYPE_CHECKING:
    from kafka_index.core.logdir.paged_listing import StoredDirectory

__all__ = ["Listing", "SegmentFile", "Skipped", "list_dump"]

_MAX_SUGGESTIONS = 5
# Minimum similarity of a suggested topic name, from 0 to 1.
_MIN_SIMILARITY = 0.5

_REASONS = {
    DirectoryKind.DELETE: "the partition is marked for deletion",
    DirectoryKind.FUTURE: "the partition is still being moved to this directory (future replica)",
    DirectoryKind.STRAY: "the cluster no longer contains this stray partition",
}


@dataclass
class Listing:
    """The content of a dump.

    Attributes
    ----------
    segments
        Live segments, sorted by topic, partition and base offset.
    skipped
        Skipped directory entries with reasons, sorted by path.
    data_directories
        Absolute paths of the parents of partition directories, without duplicates.
    partition_directories
        Absolute paths of partition directories, without duplicates. A directory can be empty.
    tiered
        The partitions that have remote segments, or once had remote segments.
    """

    segments: Sequence[SegmentFile] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    data_directories: list[str] = field(default_factory=list)
    partition_directories: list[str] = field(default_factory=list)
    tiered: dict[TopicPartition, TieredPartition] = field(default_factory=dict)


def list_dump(inputs: Sequence[str], *, topics: re.Pattern[str] | None) -> Listing:
    """List the live segments of a dump, sorted; `topics` must match the full name of a topic.

    Inputs are data directories, partition directories, or globs of either, as paths or URIs. An
    existing path is never treated as a glob. A directory is a partition if it contains logs. It is
    also a partition if its name is ``<topic>-<partition>``, and it contains neither partition
    directories nor ``meta.properties``: a data directory can be named ``data-1``. `list_partition`
    decides which segments are live. Unreadable logs are listed, too: reading them fails later.

    Raises `InputError` if a path is missing, a directory cannot be read, no live segment is found,
    or two directories contain the same partition.
    """
    listing, lister = _list_inputs(inputs, topics)
    if not listing.segments:
        raise _no_segments_error(inputs, topics, lister)
    return listing


def list_any(inputs: Sequence[str], *, topics: re.Pattern[str] | None) -> Listing:
    """List a dump like `list_dump`, but allow dumps without segments."""
    return _list_inputs(inputs, topics)[0]


def _list_inputs(
    inputs: Sequence[str], topics: re.Pattern[str] | None
) -> tuple[Listing, _DumpLister]:
    lister = _DumpLister(inputs, topics)
    for directory in expand_directories(inputs):
        lister.visit(directory)
    listing = lister.listing
    partitions = sorted(lister.partitions, key=lambda segments: segments.partition)
    _reject_duplicates(partitions)
    listing.segments = SegmentTable(partitions)
    listing.skipped.sort(key=lambda skipped: skipped.path)
    return listing, lister


class _DumpLister:
    def __init__(self, inputs: Sequence[str], topics: re.Pattern[str] | None) -> None:
        self._inputs = inputs
        self.listing = Listing()
        self.partitions: list[PartitionSegments] = []
        self.topics_seen: set[str] = set()
        self.has_selected = False
        self._topics = topics
        self._listed_directories: dict[Hashable, tuple[str, TopicPartition]] = {}
        self._listed_parents: set[Hashable] = set()
        self._skipped_paths: set[str] = set()
        self._root_names: dict[str, set[str]] = {}

    def visit(self, directory: str) -> None:
        """List one input directory of any kind."""
        name = os.path.basename(directory)
        split = split_directory_name(name)
        if split is not None and split[1] is not DirectoryKind.LIVE:
            # A directory that an input path names is listed even if Kafka marked it as deleted or
            # stray.
            is_complete = split[1] in (DirectoryKind.DELETE, DirectoryKind.STRAY)
            if not is_complete or directory not in map(absolute_path, self._inputs):
                self._skip(directory, _REASONS[split[1]])
                return
        entries = scan_input(directory)
        if self._is_data_directory(entries, named_as_partition=split is not None):
            self._visit_data_directory(directory, entries)
        elif split is None:
            raise InputError(
                "the directory contains segments, but its name is not a partition name",
                path=directory,
                expected="<topic>-<partition>",
                found=name,
                hint="rename the directory",
            )
        else:
            self._visit_partition(
                directory, split[0], partial(self._list_entries, split[0], entries)
            )

    @staticmethod
    def _is_data_directory(entries: list[Entry], *, named_as_partition: bool) -> bool:
        has_logs = False
        has_partitions = False
        for entry in entries:
            parsed = parse_segment_file(entry.name)
            if parsed is not None:
                has_logs |= parsed.kind == LOG_SUFFIX
            elif entry.name == META_PROPERTIES or (
                split_directory_name(entry.name) is not None and entry.is_directory()
            ):
                has_partitions = True
        if named_as_partition:
            return has_partitions and not has_logs
        return has_partitions or not has_logs

    def _visit_data_directory(self, directory: str, entries: list[Entry]) -> None:
        self._skip_links(entries)
        self._root_names[directory] = {entry.name for entry in entries}
        live_partitions = dict(self._live_partitions(entries))
        # A paged listing would also contain the objects of all topics that are not selected.
        is_paged = scheme_of(directory) in OBJECT_SCHEMES or is_backup_path(directory)
        if self._topics is None and is_paged:
            self._visit_stored_partitions(directory, live_partitions)
        for path, partition in live_partitions.items():
            self._visit_partition(path, partition, partial(self._list_partition, partition, path))

    def _visit_stored_partitions(
        self, root: str, live_partitions: dict[str, TopicPartition]
    ) -> None:
        """List partitions of an object store by pages; remove these from `live_partitions`."""
        # Imported here, because only object stores and backup repositories list pages.
        from kafka_index.core.logdir.paged_listing import list_directories  # noqa: PLC0415

        for stored_directory in list_directories(root):
            path = f"{root}/{stored_directory.name}"
            partition = live_partitions.pop(path, None)
            if partition is not None:
                list_segments = partial(self._list_stored, partition, path, stored_directory)
                self._visit_partition(path, partition, list_segments)

    def _live_partitions(self, entries: list[Entry]) -> Iterator[tuple[str, TopicPartition]]:
        """Yield live partition directories; record misplaced or dead entries as skipped."""
        for entry in entries:
            split = split_directory_name(entry.name)
            if not entry.is_directory():
                parsed = parse_segment_file(entry.name)
                if parsed is not None and parsed.kind == LOG_SUFFIX:
                    self._skip(entry.path, "the log is outside of any partition directory")
                elif (
                    split is not None
                    and entry.is_broken_link()
                    and self._is_selected(split[0].topic)
                ):
                    self._skip(entry.path, BROKEN_LINK)
                    note_unread(entry.path, BROKEN_LINK)
            elif split is None:
                if entry.name not in NOT_PARTITIONS:
                    self._skip(entry.path, "the directory name is not a partition name")
            elif split[1] is not DirectoryKind.LIVE:
                if self._is_selected(split[0].topic):
                    self._skip(entry.path, _REASONS[split[1]])
            else:
                yield entry.path, split[0]

    def _visit_partition(
        self,
        directory: str,
        partition: TopicPartition,
        list_segments: Callable[[], PartitionSegments | None],
    ) -> None:
        self.topics_seen.add(partition.topic)
        if not self._is_selected(partition.topic):
            return
        self.has_selected = True
        identity = identity_of(directory)
        listed_directory = self._listed_directories.setdefault(identity, (directory, partition))
        if listed_directory[0] is not directory:
            if listed_directory[1] != partition:
                self._skip(directory, f"the directory is the same as {listed_directory[0]}")
            return
        admit_linked(directory)
        segments = list_segments()
        if segments is not None and len(segments):
            self.partitions.append(segments)
        self.listing.partition_directories.append(directory)
        # A linked partition directory has two parents, and a broker may run on either of them.
        for parent in _data_directories(directory):
            parent_identity = identity_of(parent)
            if parent_identity not in self._listed_parents:
                self._listed_parents.add(parent_identity)
                self.listing.data_directories.append(parent)
                self._skip_root_links(parent)
                self._skip_bad_checkpoints(parent)

    def _list_partition(
        self, partition: TopicPartition, directory: str
    ) -> PartitionSegments | None:
        segments = _list_plain(partition, directory)
        if segments is not None:
            return segments
        return self._list_entries(partition, scan_directory(directory))

    def _list_stored(
        self, partition: TopicPartition, directory: str, stored_directory: StoredDirectory
    ) -> PartitionSegments | None:
        segments = stored_directory.plain_segments(partition, directory)
        if segments is not None:
            return segments
        return self._list_entries(partition, stored_directory.entries(directory))

    def _list_entries(
        self, partition: TopicPartition, entries: list[Entry]
    ) -> PartitionSegments | None:
        self._skip_links(entries)
        segments, skipped = list_partition(partition, entries)
        self.listing.skipped += skipped
        segments.sort(key=lambda segment: segment.base_offset)
        return PartitionSegments.from_files(segments) if segments else None

    def _is_selected(self, topic: str) -> bool:
        return self._topics is None or self._topics.fullmatch(topic) is not None

    def _skip_links(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            target = entry.linked_out()
            if target is not None:
                self._skip(entry.path, LINKED_OUT, target)

    def _skip_root_links(self, directory: str) -> None:
        for name in (*OFFSET_CHECKPOINTS, *ROOT_FILES):
            skipped_link = linked_out(os.path.join(directory, name))
            if skipped_link is not None:
                self._skip(skipped_link.path, LINKED_OUT, skipped_link.target)

    def _skip_bad_checkpoints(self, directory: str) -> None:
        """Record offset checkpoints on which a broker fails as skipped."""
        checkpoints_by_directory = (
            run_cache("checkpoints") if store_of(directory).needs_requests else {}
        )
        checkpoints = checkpoints_by_directory.get(directory)
        if checkpoints is None:
            names = self._root_names.get(directory, OFFSET_CHECKPOINTS)
            data_directory = DataDirectory(directory, tolerated=True)
            checkpoints = [
                data_directory.checkpoint(name) for name in OFFSET_CHECKPOINTS if name in names
            ]
            checkpoints_by_directory[directory] = checkpoints
        self.listing.skipped += filter(
            None, (checkpoint.note_fault() for checkpoint in checkpoints)
        )

    def _skip(self, path: str, reason: str, target: str = "") -> None:
        if path not in self._skipped_paths:
            self._skipped_paths.add(path)
            self.listing.skipped.append(Skipped(path, reason, target))


def _data_directories(directory: str) -> tuple[str, ...]:
    parent = os.path.dirname(directory)
    store = store_of(directory)
    real, real_parent = os.path.dirname(store.real_path(directory)), store.real_path(parent)
    # A link to a path within the parent does not count: Kubernetes mounts volumes with such links.
    return (parent,) if real == parent or is_within(real, [real_parent]) else (parent, real)


def _list_plain(partition: TopicPartition, directory: str) -> PartitionSegments | None:
    """Return the segments of a local directory; None if each entry must be inspected."""
    if store_of(directory).needs_requests:
        return None
    try:
        return list_plain_partition(partition, directory)
    except OSError:
        return None


def _reject_duplicates(partitions: Sequence[PartitionSegments]) -> None:
    for partition, duplicate in pairwise(partitions):
        if partition.partition == duplicate.partition:
            raise InputError(
                f"the partition {partition.partition.directory_name} is also in "
                f"{duplicate.directory}",
                path=partition.directory,
                hint="give only one replica of a partition in each run",
            )


def _no_segments_error(
    inputs: Sequence[str], topics: re.Pattern[str] | None, lister: _DumpLister
) -> InputError:
    path = ", ".join(inputs)
    format_hint = layout_hint(expand_directories(inputs))
    if format_hint is not None:
        return InputError("no segments found", path=path, hint=format_hint)
    if topics is not None and lister.topics_seen and not lister.has_selected:
        return no_topic_matches(topics, lister.topics_seen, path)
    skipped = lister.listing.skipped
    hint = "give a data directory, a partition directory, or a glob of such directories"
    if skipped:
        skipped_count = plural(len(skipped), "skipped entry", "skipped entries")
        hint = f"the first of {skipped_count} is {skipped[0].path}: {skipped[0].reason}"
    elif lister.topics_seen:
        hint = "the partition directories contain no .log files"
    return InputError("no segments found", path=path, hint=hint)


def no_topic_matches(topics: re.Pattern[str], known_topics: Iterable[str], path: str) -> InputError:
    names = sorted(known_topics)
    return InputError(
        f"no topic matches {topics.pattern!r} (the full name must match)",
        path=path,
        found=first_of(names, _MAX_SUGGESTIONS),
        hint=_suggest_topics(topics.pattern, names),
    )


def _suggest_topics(pattern: str, names: Sequence[str]) -> str | None:
    """Return a hint with topic names similar to the alternatives of a pattern, or None.

    Topic names contain no commas, so a comma is treated as a separator of alternatives.
    """
    similar_names = partial(difflib.get_close_matches, possibilities=names, cutoff=_MIN_SIMILARITY)
    alternatives = [
        alternative.strip().replace("\\", "") for alternative in re.split("[,|]", pattern)
    ]
    if "," not in pattern or not all(map(is_legal_topic, alternatives)):
        return _suggestion(
            dict.fromkeys(
                name
                for alternative in alternatives
                for name in similar_names(alternative, n=_MAX_SUGGESTIONS)
            )
        )
    suggested_topics = [
        name
        for alternative in alternatives
        for name in similar_names(alternative, n=1) or [alternative]
    ]
    suggested_pattern = "|".join(dict.fromkeys(suggested_topics))
    return f"did you mean '{suggested_pattern}'? Alternatives are separated by |"


def did_you_mean(name: str, names: Iterable[str]) -> str | None:
    """Return a hint with the names that are similar to `name`, or None."""
    return _suggestion(
        difflib.get_close_matches(name, sorted(set(names)), _MAX_SUGGESTIONS, _MIN_SIMILARITY)
    )


def _suggestion(names: Iterable[str]) -> str | None:
    similar_names = list(names)[:_MAX_SUGGESTIONS]
    return f"did you mean {' or '.join(similar_names)}?" if similar_names else None
