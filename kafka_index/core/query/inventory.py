"""The partitions and segments of a dump as tables that can be sent to every worker.

A lookup must read a remote segment without index files completely, so these segments are listed
before the lookup.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.core.cluster.listing import list_logs
from kafka_index.core.errors import plural
from kafka_index.core.format.checkpoints import EpochEntry
from kafka_index.core.format.human import format_bytes
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TopicPartition,
    index_name_for,
    parse_partition_directory,
    segment_file_name,
)
from kafka_index.core.fs.inputs import Skipped
from kafka_index.core.fs.paths import index_root_of
from kafka_index.core.fs.registry import scan_directory, store_of
from kafka_index.core.fs.uris import TieredOptions, is_segment_path
from kafka_index.core.log.choices import By, UpperBound
from kafka_index.core.log.read.partition_files import CheckpointReader, PartitionFiles
from kafka_index.core.log.read.segment_indexes import FetchedIndexes
from kafka_index.core.logdir.listing import Listing
from kafka_index.core.logdir.partition_files import SegmentFile

Codes = NDArray[np.int32]
#: The code if the partition does not exist, or the topic is null.
NO_PARTITION = -1
# An array indexed by partition number is the fastest way to find a code. Its size is limited,
# because a directory named t-2147483647 would otherwise exhaust memory.
_CELLS_PER_PARTITION = 16
_MIN_CELLS = 1 << 16
_PARTITION_BITS = 32

#: One row per partition: directory, values from checkpoints, and the rows of its segments in the
#: segment table.
PARTITION_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("directory", pa.string(), nullable=False),
        pa.field("index_directory", pa.string()),
        pa.field("log_start_offset", pa.int64(), nullable=False),
        pa.field("high_watermark", pa.int64()),
        pa.field("epochs", pa.list_(pa.int32()), nullable=False),
        pa.field("epoch_start_offsets", pa.list_(pa.int64()), nullable=False),
        pa.field("local_start_offset", pa.int64()),
        pa.field("tiered_end_offset", pa.int64()),
        pa.field("is_stable", pa.bool_(), nullable=False),
        pa.field("cleaned_to", pa.int64(), nullable=False),
        pa.field("first_segment", pa.int64(), nullable=False),
        pa.field("segment_count", pa.int64(), nullable=False),
    ]
)
# Fields of `PartitionFiles` that are columns of the same name.
_UNCHANGED_FIELDS = tuple(
    field.name for field in fields(PartitionFiles) if field.name not in ("segments", "epochs")
)
#: One row per segment. Only a remote segment has a `directory` of its own.
SEGMENT_SCHEMA = pa.schema(
    [
        pa.field("base_offset", pa.int64(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("mtime_ns", pa.int64(), nullable=False),
        pa.field("is_swap", pa.bool_(), nullable=False),
        pa.field("version", pa.string(), nullable=False),
        pa.field("directory", pa.string()),
    ]
)

#: One row per segment: the code of its partition, and its number within the partition.
UNINDEXED_SCHEMA = pa.schema(
    [
        pa.field("code", pa.int32(), nullable=False),
        pa.field("segment", pa.int32(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
    ]
)


class PartitionCodes:
    """Maps a topic name and partition number to a partition code from 0 to 2^31 - 1."""

    def __init__(self, topics: Sequence[str], partitions: Longs, codes: Codes) -> None:
        self._topics = {topic: number for number, topic in enumerate(dict.fromkeys(topics))}
        numbers = np.array([self._topics[topic] for topic in topics], np.int64)
        counts = np.zeros(len(self._topics), np.int64)
        np.maximum.at(counts, numbers, partitions + 1)
        self._dense: Codes | None = None
        if counts.sum() <= _CELLS_PER_PARTITION * len(codes) + _MIN_CELLS:
            # An unknown topic gets the last number, for which there are no partitions.
            self._counts = np.append(counts, 0)
            self._starts = np.append(0, np.cumsum(counts))
            self._dense = np.full(max(int(counts.sum()), 1), NO_PARTITION, np.int32)
            self._dense[self._starts[numbers] + partitions] = codes
        else:
            keys = (numbers << _PARTITION_BITS) | partitions
            order = np.argsort(keys)
            self._keys, self._codes = keys[order], codes[order]

    def find(self, topics: pa.Array | pa.ChunkedArray, partitions: Longs) -> Codes:
        """Return the code of each row's partition, or `NO_PARTITION`."""
        if not len(partitions):
            return np.empty(0, np.int32)
        topic_numbers = self._find_topic_numbers(topics)
        if self._dense is None:
            return self._find_sparse(topic_numbers, partitions)
        is_known = (partitions >= 0) & (partitions < self._counts[topic_numbers])
        cells = np.where(is_known, self._starts[topic_numbers] + partitions, 0)
        return np.where(is_known, self._dense[cells], np.int32(NO_PARTITION))

    def _find_sparse(self, topic_numbers: Longs, partitions: Longs) -> Codes:
        # An unknown topic gets a number above those of all known topics, so no key matches.
        is_known = (partitions >= 0) & (partitions < 1 << _PARTITION_BITS)
        keys = (topic_numbers << _PARTITION_BITS) | np.where(is_known, partitions, 0)
        positions = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        is_known &= self._keys[positions] == keys
        return np.where(is_known, self._codes[positions], np.int32(NO_PARTITION))

    def _find_topic_numbers(self, topics: pa.Array | pa.ChunkedArray) -> Longs:
        if isinstance(topics, pa.ChunkedArray):
            topics = pa.concat_arrays(topics.chunks)
        encoded = topics if pa.types.is_dictionary(topics.type) else pc.dictionary_encode(topics)
        unknown = len(self._topics)
        numbers = np.array(
            [
                *(self._topics.get(name, unknown) for name in _decode_names(encoded.dictionary)),
                unknown,
            ],
            np.int64,
        )
        # A null topic is treated as an unknown topic.
        indices = encoded.indices.fill_null(len(encoded.dictionary))
        row_numbers: Longs = numbers[indices.to_numpy(zero_copy_only=False)]
        return row_numbers


def _decode_names(names: pa.Array) -> list[str]:
    """Return topic names as str; null or invalid UTF-8 becomes a name that no topic has."""
    cells = names.cast(pa.large_binary()).to_pylist()
    return ["" if cell is None else cell.decode(errors="replace") for cell in cells]


class Inventory:
    """The partitions and segments of a dump as sorted tables; immutable and picklable.

    `skipped` lists deleted and unusable files, with reasons.
    """

    def __init__(
        self, partitions: pa.Table, segments: pa.Table, skipped: Sequence[Skipped] = ()
    ) -> None:
        self.partitions = partitions.combine_chunks()
        # Only remote segments have a directory other than the directory of their partition.
        if "directory" in segments.column_names and (
            segments["directory"].null_count == segments.num_rows
        ):
            segments = segments.drop_columns("directory")
        self.segments = segments.combine_chunks()
        self.skipped = tuple(skipped)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the tables only; derived values are recomputed."""
        return Inventory, (self.partitions, self.segments, self.skipped)

    @property
    def partition_count(self) -> int:
        return int(np.count_nonzero(self._segment_counts))

    @property
    def segment_count(self) -> int:
        return int(self.segments.num_rows)

    @property
    def uncertain_starts(self) -> int:
        """Number of partitions without a log directory, whose log start is only a lower bound."""
        ends = self.partitions["tiered_end_offset"]
        if ends.null_count == len(ends):
            return 0
        starts = self.partitions["local_start_offset"].to_pylist()
        tiered = zip(ends.to_pylist(), starts, strict=True)
        return sum(end is not None and start is None for end, start in tiered)

    def codes(self, topics: pa.Array | pa.ChunkedArray, partitions: Longs) -> Codes:
        """Return the partition code of each topic and partition number, as int32.

        A partition code is a row number of the table `partitions`. It is `NO_PARTITION` if the
        partition has no segments or the topic is null. Topics may be dictionary-encoded.
        """
        return self._codes.find(topics, partitions)

    def partition_name(self, code: int) -> tuple[str, int]:
        """Return the topic name and partition number for a partition code."""
        return self.partitions["topic"][code].as_py(), self.partitions["partition"][code].as_py()

    def base_offsets(self, code: int) -> Longs:
        """Return the ascending base offsets of the segments for a partition code."""
        first_segment = self.partitions["first_segment"][code].as_py()
        count = self.partitions["segment_count"][code].as_py()
        base_offsets: Longs = self.segments["base_offset"].slice(first_segment, count).to_numpy()
        return base_offsets

    def partition_files(self, code: int) -> PartitionFiles:
        row = self.partitions.slice(code, 1).to_pylist()[0]
        segments = self.segments.slice(row["first_segment"], row["segment_count"])
        columns = [
            segments[name].to_pylist() if name in segments.column_names else [None] * len(segments)
            for name in SEGMENT_SCHEMA.names
        ]
        last_number = segments.num_rows - 1
        return PartitionFiles(
            segments=tuple(
                SegmentFile(
                    row["topic"],
                    row["partition"],
                    base_offset,
                    os.path.join(
                        directory or row["directory"],
                        segment_file_name(base_offset, LOG_SUFFIX + SWAP_SUFFIX * is_swap),
                    ),
                    size_bytes,
                    mtime_ns,
                    is_last=number == last_number and not is_segment_path(directory or ""),
                    log_version=version,
                )
                for number, (
                    base_offset,
                    size_bytes,
                    mtime_ns,
                    is_swap,
                    version,
                    directory,
                ) in enumerate(zip(*columns, strict=True))
            ),
            epochs=tuple(map(EpochEntry, row["epochs"], row["epoch_start_offsets"])),
            **{name: row[name] for name in _UNCHANGED_FIELDS},
        )

    def files(self, topic: str, partition: int) -> PartitionFiles | None:
        """Return the files of a partition, None if it has no segments."""
        (code,) = self.codes(pa.array([topic], pa.string()), np.array([partition], np.int64))
        return None if code == NO_PARTITION else self.partition_files(int(code))

    @cached_property
    def needs_requests(self) -> bool:
        """Whether a log is remote."""
        return "directory" in self.segments.column_names or any(
            store_of(directory).needs_requests
            for directory in self.partitions["directory"].to_pylist()
        )

    @cached_property
    def fetched_indexes(self) -> FetchedIndexes:
        """The indexes of remote segments that this process has cached."""
        return FetchedIndexes()

    @cached_property
    def _segment_counts(self) -> Longs:
        counts: Longs = self.partitions["segment_count"].to_numpy()
        return counts

    @cached_property
    def _codes(self) -> PartitionCodes:
        rows = np.flatnonzero(self._segment_counts).astype(np.int32)
        partitions = self.partitions.select(["topic", "partition"]).take(pa.array(rows))
        return PartitionCodes(
            partitions["topic"].to_pylist(),
            partitions["partition"].to_numpy().astype(np.int64),
            rows,
        )


def collect_inventory(
    logs: Sequence[str],
    *,
    tiered: TieredOptions | None = None,
    indexes: str | None = None,
    upper_bound: UpperBound = UpperBound.LOG_END,
    topics: re.Pattern[str] | None = None,
) -> Inventory:
    """List the segments of a dump and read its checkpoint files.

    With tiered storage, log directories are optional. `indexes` has a folder of index files for
    each partition, as written by ``build --output``; by default, index files are next to the logs.
    `upper_bound` determines whether high watermarks are read. `topics` must match the full topic
    name. Raises `InputError` if `indexes` does not exist, and the errors of `list_logs` and
    `CheckpointReader`.
    """
    index_root = None if indexes is None else index_root_of(indexes)
    listing = list_logs(logs, tiered, topics=topics)
    reader = CheckpointReader(upper_bound)
    partitions = reader.read_all(listing.segments, index_root, listing.tiered)
    partitions += _list_empty_partitions(listing, partitions)
    partitions.sort(key=lambda files: (files.topic, files.partition))
    return Inventory(
        _partition_table(partitions, listing),
        _segment_table(listing.segments),
        [*listing.skipped, *reader.skipped],
    )


def _list_empty_partitions(
    listing: Listing, partitions: Sequence[PartitionFiles]
) -> Iterator[PartitionFiles]:
    """Yield the partitions that have a directory but no segments."""
    listed_partitions = {(files.topic, files.partition) for files in partitions}
    for directory in listing.partition_directories:
        partition = parse_partition_directory(os.path.basename(directory))
        if (
            partition is not None
            and (partition.topic, partition.partition) not in listed_partitions
        ):
            listed_partitions.add((partition.topic, partition.partition))
            yield PartitionFiles(partition.topic, partition.partition, ())


def _partition_table(partitions: Sequence[PartitionFiles], listing: Listing) -> pa.Table:
    directories = {
        os.path.basename(directory): directory for directory in listing.partition_directories
    }
    rows = []
    first_segment = 0
    for files in partitions:
        name = TopicPartition(files.topic, files.partition).directory_name
        rows.append(
            {
                **{name: getattr(files, name) for name in _UNCHANGED_FIELDS},
                "directory": _checkpoint_directory(files, listing) or directories.get(name, ""),
                "epochs": [entry.epoch for entry in files.epochs],
                "epoch_start_offsets": [entry.start_offset for entry in files.epochs],
                "first_segment": first_segment,
                "segment_count": len(files.segments),
            }
        )
        first_segment += len(files.segments)
    return pa.Table.from_pylist(rows, schema=PARTITION_SCHEMA)


def _checkpoint_directory(files: PartitionFiles, listing: Listing) -> str | None:
    """Return the directory with a partition's checkpoints, None without local segments."""
    tiered = listing.tiered.get(TopicPartition(files.topic, files.partition))
    if tiered is not None:
        return tiered.local_directory
    return files.segments[0].partition_directory if files.segments else None


def _segment_table(segments: Sequence[SegmentFile]) -> pa.Table:
    return pa.table(
        [
            [segment.base_offset for segment in segments],
            [segment.log_size_bytes for segment in segments],
            [segment.log_mtime_ns for segment in segments],
            [segment.log_path.endswith(SWAP_SUFFIX) for segment in segments],
            [segment.log_version for segment in segments],
            [
                segment.partition_directory if is_segment_path(segment.log_path) else None
                for segment in segments
            ],
        ],
        schema=SEGMENT_SCHEMA,
    )


def find_unindexed(inventory: Inventory, by: By) -> pa.Table:
    """Return the remote segments that lack index files for the lookup, as `UNINDEXED_SCHEMA`.

    Every lookup requires offset indexes, and a lookup by timestamp also requires time indexes.
    Folders are listed concurrently.
    """
    tables = [UNINDEXED_SCHEMA.empty_table()]
    if inventory.needs_requests:
        from kafka_index.core.fs.fetched_file import requests  # noqa: PLC0415, remote only

        suffixes = [OFFSET_INDEX_SUFFIX, *([TIME_INDEX_SUFFIX] if by is By.TIMESTAMP else [])]

        def find(code: int) -> pa.Table:
            return _find_in_partition(code, inventory.partition_files(code), suffixes)

        tables += requests(os.getpid()).map(find, range(inventory.partitions.num_rows))
    return pa.concat_tables(tables)


def _find_in_partition(code: int, files: PartitionFiles, suffixes: list[str]) -> pa.Table:
    segments = [
        (number, segment)
        for number, segment in enumerate(files.segments)
        if store_of(segment.log_path).needs_requests and not is_segment_path(segment.log_path)
    ]
    if not segments:
        return UNINDEXED_SCHEMA.empty_table()
    folder = files.index_directory or segments[0][1].partition_directory
    can_list = store_of(folder).needs_requests or os.path.isdir(folder)
    names = {entry.name for entry in scan_directory(folder)} if can_list else set()
    unindexed = [
        {"code": code, "segment": number, "size_bytes": segment.log_size_bytes}
        for number, segment in segments
        if not all(
            index_name_for(os.path.basename(segment.log_path), suffix) in names
            for suffix in suffixes
        )
    ]
    return pa.Table.from_pylist(unindexed, UNINDEXED_SCHEMA)


def inventory_notes(inventory: Inventory, unindexed: pa.Table) -> Iterator[str]:
    """Yield notes to print before a lookup, about unindexed segments and uncertain log starts.

    `unindexed` is the result of `find_unindexed`.
    """
    if unindexed.num_rows:
        segments = plural(unindexed.num_rows, "remote segment")
        size_bytes = sum(unindexed["size_bytes"].to_pylist())
        yield (
            f"{segments} without index files ({format_bytes(size_bytes)}): each requested segment "
            "is read completely, once; `kafka-index build --output` writes index files"
        )
    if partitions := inventory.uncertain_starts:
        yield (
            f"{plural(partitions, 'partition')} without a log directory: the log start may be "
            "after the start of the first remote segment; to read the log start, give the log "
            "directory with --input"
        )
