"""Remote segments without index files: a lookup reads them whole, which is worth knowing before."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.layout.names import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, index_name_for
from kafka_index.lookup.inventory import Inventory
from kafka_index.lookup.keys import By
from kafka_index.reading.fetched_log import requests
from kafka_index.reading.partition_files import PartitionFiles
from kafka_index.storage.directories import scan_directory
from kafka_index.stores import is_remote
from kafka_index.stores.tiered.segment_paths import is_segment_path

#: A row per segment: its partition's number in the inventory, and its own in the partition.
UNINDEXED_SCHEMA = pa.schema(
    [
        pa.field("code", pa.int32(), nullable=False),
        pa.field("segment", pa.int32(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Unindexed:
    """Remote segments without the index files that lookups need, as rows of `UNINDEXED_SCHEMA`."""

    rows: pa.Table

    @property
    def segments(self) -> int:
        """The number of segments."""
        return int(self.rows.num_rows)

    @property
    def size_bytes(self) -> int:
        """Size of their logs."""
        return int(pc.sum(self.rows["size_bytes"]).as_py() or 0)


def find_unindexed(inventory: Inventory, by: By) -> Unindexed:
    """List the folders of index files of remote segments, several at a time.

    Lookups by timestamp need time indexes, too.
    """
    tables = [UNINDEXED_SCHEMA.empty_table()]
    if inventory.is_remote:
        suffixes = [OFFSET_INDEX_SUFFIX, *([TIME_INDEX_SUFFIX] if by is By.TIMESTAMP else [])]

        def find(code: int) -> pa.Table:
            return _find(code, inventory.files_of(code), suffixes)

        tables += requests(os.getpid()).map(find, range(inventory.partitions.num_rows))
    return Unindexed(pa.concat_tables(tables))


def _find(code: int, files: PartitionFiles, suffixes: list[str]) -> pa.Table:
    segments = [
        (number, segment)
        for number, segment in enumerate(files.segments)
        if is_remote(segment.log_path) and not is_segment_path(segment.log_path)
    ]
    if not segments:
        return UNINDEXED_SCHEMA.empty_table()
    folder = files.index_directory or segments[0][1].partition_directory
    there = {entry.name for entry in scan_directory(folder)} if _exists(folder) else set()
    bare = [
        (number, segment.log_size_bytes)
        for number, segment in segments
        if not all(
            index_name_for(os.path.basename(segment.log_path), suffix) in there
            for suffix in suffixes
        )
    ]
    columns = [
        [code] * len(bare),
        [number for number, _ in bare],
        [size_bytes for _, size_bytes in bare],
    ]
    return pa.table(columns, schema=UNINDEXED_SCHEMA)


def _exists(folder: str) -> bool:
    return is_remote(folder) or os.path.isdir(folder)
