"""Find the segments of a partition and read its checkpoints, without opening a segment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from kafka_index.core.errors import InputError
from kafka_index.core.format.checkpoints import EpochEntry
from kafka_index.core.format.config import to_choice
from kafka_index.core.format.names import REPLICATION_CHECKPOINT, TopicPartition
from kafka_index.core.fs.inputs import Skipped
from kafka_index.core.log.choices import UpperBound
from kafka_index.core.logdir.data_directory import DataDirectories
from kafka_index.core.logdir.metadata_files import read_epochs_or_skip
from kafka_index.core.logdir.partition_files import SegmentFile, TieredPartition


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """The segments of a partition by base offset, and its checkpointed offsets; picklable.

    Attributes
    ----------
    index_directory
        Directory of the index files; None if index files are next to the logs.
    log_start_offset
        Log start offset, which is at or above the first base offset.
    high_watermark
        High watermark, which is the upper bound of results. None if the log end offset is the upper
        bound.
    epochs
        Entries of ``leader-epoch-checkpoint`` from the log start offset on.
    local_start_offset, tiered_end_offset
        For a tiered partition: base offset of the first local segment, and the last uploaded
        offset, -1 without one. None for other partitions.
    is_stable
        Whether results end at the last stable offset.
    cleaned_to
        The log cleaner has processed all offsets below this offset; 0 if unknown.
    """

    topic: str
    partition: int
    segments: tuple[SegmentFile, ...]
    index_directory: str | None = None
    log_start_offset: int = 0
    high_watermark: int | None = None
    epochs: tuple[EpochEntry, ...] = ()
    local_start_offset: int | None = None
    tiered_end_offset: int | None = None
    is_stable: bool = False
    cleaned_to: int = 0

    @property
    def is_tiered(self) -> bool:
        """Whether the partition may have remote segments."""
        return self.tiered_end_offset is not None


class CheckpointReader:
    """Reads the checkpoints of data directories and partition directories.

    Parameters
    ----------
    upper_bound
        Determines whether high watermarks are read, and whether results end at the last stable
        offset.

    Attributes
    ----------
    skipped
        Checkpoints that were not used, with reasons.
    """

    def __init__(self, upper_bound: UpperBound | str) -> None:
        upper_bound = to_choice(UpperBound, upper_bound, "upper_bound")
        self.skipped: list[Skipped] = []
        self._reads_high_watermark = upper_bound is not UpperBound.LOG_END
        self._is_stable = upper_bound is UpperBound.LAST_STABLE_OFFSET
        self._directories = DataDirectories()

    def read(
        self,
        partition: TopicPartition,
        segments: Sequence[SegmentFile],
        index_directory: str | None,
        tiered: TieredPartition | None = None,
    ) -> PartitionFiles:
        """Read the checkpoints of a partition.

        `segments` must be sorted by base offset and not empty; all local segments must have the
        same directory. The log start offset is the checkpointed offset, or the first base offset if
        that is higher (LogLoader.load). A partition without an entry in the high watermark
        checkpoint has no committed records (Partition.createLog). Unreadable leader epoch
        checkpoints are ignored, and added to `skipped`. Raises `InputError` if this process may not
        read a checkpoint, or if requested high watermarks are missing, and `DamageError` if the
        high watermark checkpoint is malformed.
        """
        directory: str | None = segments[0].partition_directory
        if tiered is not None:
            directory, start, epochs = (
                tiered.local_directory,
                tiered.log_start_offset,
                tiered.epochs,
            )
        else:
            start, epochs = self._read_start_and_epochs(partition, segments[0])
        return PartitionFiles(
            topic=partition.topic,
            partition=partition.partition,
            segments=tuple(segments),
            index_directory=index_directory,
            log_start_offset=start,
            high_watermark=self._read_high_watermark(partition, segments[0], directory, start),
            epochs=epochs,
            local_start_offset=None if tiered is None else tiered.local_start_offset,
            tiered_end_offset=None if tiered is None else tiered.tiered_end_offset,
            is_stable=self._is_stable,
            cleaned_to=0
            if directory is None
            else self._directories.for_partition(directory).cleaned_to(partition) or 0,
        )

    def read_all(
        self,
        segments: Iterable[SegmentFile],
        index_root: str | None,
        tiered: Mapping[TopicPartition, TieredPartition] | None = None,
    ) -> list[PartitionFiles]:
        """Group sorted segments by partition, and read the checkpoints of each partition.

        `index_root` has a folder of index files for each partition. Raises the errors of `read`.
        """
        tiered_partitions = tiered or {}
        partitions = []
        for partition, partition_segments in groupby(
            segments, lambda segment: TopicPartition(segment.topic, segment.partition)
        ):
            name = partition.directory_name
            folder = None if index_root is None else os.path.join(index_root, name)
            partitions.append(
                self.read(
                    partition, list(partition_segments), folder, tiered_partitions.get(partition)
                )
            )
        return partitions

    def _read_start_and_epochs(
        self, partition: TopicPartition, first_segment: SegmentFile
    ) -> tuple[int, tuple[EpochEntry, ...]]:
        """Return the log start offset, and the leader epochs that a loading broker keeps.

        Source: LogLoader.load.
        """
        directory = first_segment.partition_directory
        checkpointed = self._directories.for_partition(directory).log_start_offset(partition)
        if checkpointed is not None and checkpointed < first_segment.base_offset:
            # For a partition without remote segments, a broker writes a checkpoint entry only if
            # the log start offset is above the first base offset.
            self.skipped.append(
                Skipped(
                    directory,
                    "the log start checkpoint is below the first segment: earlier segments were "
                    "deleted by retention, or are in tiered storage (--tiered)",
                )
            )
        cache = read_epochs_or_skip(directory, self.skipped)
        cache.truncate_from_start(checkpointed or 0)
        return max(checkpointed or 0, first_segment.base_offset), cache.entries

    def _read_high_watermark(
        self,
        partition: TopicPartition,
        first_segment: SegmentFile,
        directory: str | None,
        start: int,
    ) -> int | None:
        if not self._reads_high_watermark:
            return None
        if directory is None:
            raise InputError(
                "tiered storage contains no high watermarks",
                path=first_segment.log_path,
                hint="omit --upper-bound, or give the log directory too",
            )
        data_directory = self._directories.for_partition(directory)
        if not data_directory.required_checkpoint(REPLICATION_CHECKPOINT).exists:
            raise InputError(
                f"high watermarks are unknown: the directory has no {REPLICATION_CHECKPOINT}",
                path=data_directory.path,
                hint="omit --upper-bound, or add the file from the same copy",
            )
        return max(data_directory.high_watermark(partition) or 0, start)
