"""Taking the inventory of a dump: listing it, and reading its checkpoints."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import groupby

import pyarrow as pa

from kafka_index.errors import InputError
from kafka_index.layout.names import SWAP_SUFFIX, TopicPartition, parse_partition_directory
from kafka_index.lookup.inventory.tables import PARTITION_SCHEMA, SEGMENT_SCHEMA, Inventory
from kafka_index.reading.answers import UpperBound
from kafka_index.reading.partition_files import CheckpointReader, PartitionFiles
from kafka_index.storage import Listing, SegmentFile, list_dump, local_path

__all__ = ["Inventory", "take_inventory"]


def take_inventory(
    logs: Sequence[str],
    *,
    indexes: str | None = None,
    upper_bound: UpperBound = UpperBound.LOG_END,
    topics: re.Pattern[str] | None = None,
) -> Inventory:
    """List a dump, and read its checkpoints.

    Parameters
    ----------
    logs : sequence of str
        Data directories, topic-partition directories, or globs of either.
    indexes : str, optional
        Folder with a folder of index files for each partition, as ``build --output`` writes it;
        None: the index files are beside the logs.
    upper_bound : UpperBound
        Whether to read high watermarks.
    topics : re.Pattern, optional
        Keep only topics that match it in full.

    Raises
    ------
    InputError
        As `list_dump` and `CheckpointReader`; or the folder of index files is missing.
    """
    index_root = None if indexes is None else _check_indexes(indexes)
    listing = list_dump(logs, topics=topics)
    reader = CheckpointReader(upper_bound)
    partitions = []
    for partition, segments in groupby(
        listing.segments, lambda one: TopicPartition(one.topic, one.partition)
    ):
        name = partition.directory_name
        folder = None if index_root is None else os.path.join(index_root, name)
        partitions.append(reader.read(partition, list(segments), folder))
    partitions += _without_segments(listing, partitions)
    partitions.sort(key=lambda files: (files.topic, files.partition))
    return Inventory(
        _partition_table(partitions, listing),
        _segment_table(listing.segments),
        [*listing.skipped, *reader.skipped],
    )


def _check_indexes(indexes: str) -> str:
    path = os.path.abspath(local_path(indexes))
    if not os.path.isdir(path):
        raise InputError(
            "the folder of index files is not there",
            path=indexes,
            hint="name a folder with a folder for each partition, as build --output writes it",
        )
    return path


def _without_segments(
    listing: Listing, partitions: Sequence[PartitionFiles]
) -> Iterator[PartitionFiles]:
    """Return the partitions that have a folder and no segments."""
    known = {(files.topic, files.partition) for files in partitions}
    for directory in listing.partition_directories:
        found = parse_partition_directory(os.path.basename(directory))
        if found is not None and (found.topic, found.partition) not in known:
            known.add((found.topic, found.partition))
            yield PartitionFiles(found.topic, found.partition, ())


def _partition_table(partitions: Sequence[PartitionFiles], listing: Listing) -> pa.Table:
    directories = {
        os.path.basename(directory): directory for directory in listing.partition_directories
    }
    rows = []
    first = 0
    for files in partitions:
        name = TopicPartition(files.topic, files.partition).directory_name
        segments = files.segments
        rows.append(
            (
                files.topic,
                files.partition,
                segments[0].partition_directory if segments else directories[name],
                files.index_directory,
                files.log_start_offset,
                files.high_watermark,
                [one.epoch for one in files.epochs],
                [one.start_offset for one in files.epochs],
                first,
                len(segments),
            )
        )
        first += len(segments)
    return pa.table(
        [
            pa.array(column, field.type)
            for column, field in zip(zip(*rows, strict=True), PARTITION_SCHEMA, strict=True)
        ],
        schema=PARTITION_SCHEMA,
    )


def _segment_table(segments: Sequence[SegmentFile]) -> pa.Table:
    return pa.table(
        [
            [segment.base_offset for segment in segments],
            [segment.log_size_bytes for segment in segments],
            [segment.log_mtime_ns for segment in segments],
            [segment.log_path.endswith(SWAP_SUFFIX) for segment in segments],
        ],
        schema=SEGMENT_SCHEMA,
    )
