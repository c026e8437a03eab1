"""Remote segments without index files: a lookup reads them whole, which is worth knowing before."""

from __future__ import annotations

import os
from typing import NamedTuple

from kafka_index.layout.names import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, index_name_for
from kafka_index.lookup.inventory import Inventory
from kafka_index.lookup.keys import By
from kafka_index.reading.fetched_log import requests
from kafka_index.reading.partition_files import PartitionFiles
from kafka_index.storage.directories import scan_directory
from kafka_index.stores import is_remote
from kafka_index.stores.tiered.segment_paths import is_segment_path


class Unindexed(NamedTuple):
    """Remote segments without the index files that lookups need.

    Parameters
    ----------
    segments : int
        How many.
    size_bytes : int
        Size of their logs.
    """

    segments: int
    size_bytes: int


def find_unindexed(inventory: Inventory, by: By) -> Unindexed:
    """List the folders of index files of remote segments, several at a time.

    Parameters
    ----------
    inventory : Inventory
        The logs.
    by : By
        Lookups by timestamp need time indexes, too.
    """
    if not inventory.is_remote:
        return Unindexed(0, 0)
    suffixes = [OFFSET_INDEX_SUFFIX, *([TIME_INDEX_SUFFIX] if by is By.TIMESTAMP else [])]

    def find(code: int) -> Unindexed:
        return _find(inventory.files_of(code), suffixes)

    found = list(requests(os.getpid()).map(find, range(inventory.partitions.num_rows)))
    return Unindexed(sum(each.segments for each in found), sum(each.size_bytes for each in found))


def _find(files: PartitionFiles, suffixes: list[str]) -> Unindexed:
    segments = [
        segment
        for segment in files.segments
        if is_remote(segment.log_path) and not is_segment_path(segment.log_path)
    ]
    if not segments:
        return Unindexed(0, 0)
    folder = files.index_directory or segments[0].partition_directory
    there = {entry.name for entry in scan_directory(folder)} if _exists(folder) else set()
    sizes = [
        segment.log_size_bytes
        for segment in segments
        if not all(
            index_name_for(os.path.basename(segment.log_path), suffix) in there
            for suffix in suffixes
        )
    ]
    return Unindexed(len(sizes), sum(sizes))


def _exists(folder: str) -> bool:
    return is_remote(folder) or os.path.isdir(folder)
