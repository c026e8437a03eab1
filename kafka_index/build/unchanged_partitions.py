"""The partitions of which nothing has changed since they were built, found several at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pyarrow as pa

from kafka_index.build.known_partition import KnownPartition, wants_record
from kafka_index.build.partition_start_files import NO_START, PartitionStartFiles
from kafka_index.build.settings import BuildSettings
from kafka_index.errors import KafkaIndexError
from kafka_index.storage import target_directory
from kafka_index.storage.directories import scan_directory
from kafka_index.storage.log_directory import LogDirectory
from kafka_index.storage.partition_record import PartitionRecord
from kafka_index.storage.segment_table import PartitionSegments, SegmentTable
from kafka_index.storage.target_files import is_new_folder

# Requests to a store, or folders of a disk, that are looked at at a time.
_LOOKS_AT_A_TIME = 8
_PARTITIONS_AT_A_TIME = 256


class UnchangedPartitions:
    """Finds the partitions of which nothing has changed since they were built.

    Parameters
    ----------
    settings : BuildSettings
        How and where to a run builds.
    """

    def __init__(self, settings: BuildSettings) -> None:
        self._settings = settings
        self._log_directories: dict[str, LogDirectory] = {}

    def split(self, segments: SegmentTable) -> Iterator[tuple[PartitionSegments, pa.Table | None]]:
        """Yield each partition with its report; without one where it has to be built.

        Parameters
        ----------
        segments : SegmentTable
            Every segment of each partition.
        """
        partitions = iter(segments.partitions)
        if not wants_record(self._settings) or self._settings.force:
            yield from ((members, None) for members in partitions)
            return
        with ThreadPoolExecutor(_LOOKS_AT_A_TIME, thread_name_prefix="unchanged") as pool:
            for some in _batched(partitions):
                yield from zip(some, pool.map(self.rows_of, some), strict=True)

    def rows_of(self, segments: PartitionSegments) -> pa.Table | None:
        """Return the report of a partition, if it is right as it is; None to build it."""
        partition, log_directory = segments.partition, segments.directory
        tiered = self._settings.tiered.get(partition)
        try:
            directory = target_directory(self._settings.target_root, partition, log_directory)
            if is_new_folder(directory, self._settings.run_id):
                return None
            record = PartitionRecord.read(directory)
            if record is None or not record.is_whole:
                return None
            if not self._settings.needs_state:
                start = NO_START
            elif tiered is not None:
                start = PartitionStartFiles.of_tiered(tiered)
            else:
                root = self._log_directory(os.path.dirname(log_directory))
                start = PartitionStartFiles.of(
                    int(segments.base_offsets[0]),
                    scan_directory(log_directory),
                    root.log_start_offset(partition),
                )
        except KafkaIndexError:
            # Building meets the same error, and reports it.
            return None
        return KnownPartition(directory, record).unchanged_rows(segments, self._settings, start)

    def _log_directory(self, path: str) -> LogDirectory:
        root = self._log_directories.get(path)
        return root or self._log_directories.setdefault(path, LogDirectory(path))


def _batched(partitions: Iterator[PartitionSegments]) -> Iterator[list[PartitionSegments]]:
    while some := list(islice(partitions, _PARTITIONS_AT_A_TIME)):
        yield some
