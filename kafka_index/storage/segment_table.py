"""The segments of a dump as columns, partition by partition.

A dump may have millions of segments. A `SegmentFile` is made when a partition is worked on, and
not before.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import overload

import numpy as np

from kafka_index.layout.integers import Longs
from kafka_index.layout.names import LOG_SUFFIX, TopicPartition, segment_file_name
from kafka_index.storage.partition_files import SegmentFile


@dataclass(frozen=True, eq=False, slots=True)
class PartitionSegments:
    """The live segments of a partition, by base offset.

    Parameters
    ----------
    partition : TopicPartition
        The partition.
    directory : str
        The directory of its logs.
    base_offsets, sizes_bytes, mtimes_ns : ndarray of int64, shape (n,)
        Of each log.
    odd : tuple of SegmentFile
        The segments themselves where the columns do not say all of them, as of objects with
        versions and of swapped logs; otherwise empty.
    """

    partition: TopicPartition
    directory: str
    base_offsets: Longs
    sizes_bytes: Longs
    mtimes_ns: Longs
    odd: tuple[SegmentFile, ...] = ()

    @classmethod
    def of(cls, segments: Sequence[SegmentFile]) -> PartitionSegments:
        """Return the columns of one or more segments of a partition, by base offset."""
        first = segments[0]
        return cls(
            TopicPartition(first.topic, first.partition),
            first.partition_directory,
            np.array([each.base_offset for each in segments], np.int64),
            np.array([each.log_size_bytes for each in segments], np.int64),
            np.array([each.log_mtime_ns for each in segments], np.int64),
            tuple(segments),
        )

    def __len__(self) -> int:
        """Return the number of segments."""
        return len(self.base_offsets)

    def files(self) -> list[SegmentFile]:
        """Return the segments, by base offset."""
        if self.odd:
            return list(self.odd)
        topic, partition = self.partition.topic, self.partition.partition
        last = len(self) - 1
        columns = (self.base_offsets.tolist(), self.sizes_bytes.tolist(), self.mtimes_ns.tolist())
        return [
            SegmentFile(
                topic,
                partition,
                base_offset,
                os.path.join(self.directory, segment_file_name(base_offset, LOG_SUFFIX)),
                size_bytes,
                mtime_ns,
                number == last,
            )
            for number, (base_offset, size_bytes, mtime_ns) in enumerate(zip(*columns, strict=True))
        ]


class SegmentTable(Sequence[SegmentFile]):
    """The segments of a dump, sorted by topic, partition and base offset.

    Parameters
    ----------
    partitions : sequence of PartitionSegments
        Sorted, none of them empty.
    """

    def __init__(self, partitions: Sequence[PartitionSegments]) -> None:
        self.partitions = partitions
        self._ends = np.cumsum([len(each) for each in partitions], dtype=np.int64)

    @classmethod
    def of(cls, segments: Iterable[SegmentFile]) -> SegmentTable:
        """Return the table of sorted segments."""
        if isinstance(segments, SegmentTable):
            return segments
        key = attrgetter("topic", "partition")
        return cls([PartitionSegments.of(list(own)) for _, own in groupby(segments, key=key)])

    @property
    def total_bytes(self) -> int:
        """Size of all logs."""
        return sum(int(each.sizes_bytes.sum()) for each in self.partitions)

    def __len__(self) -> int:
        """Return the number of segments."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def __iter__(self) -> Iterator[SegmentFile]:
        """Iterate over the segments; those of one partition exist at a time."""
        for each in self.partitions:
            yield from each.files()

    @overload
    def __getitem__(self, index: int) -> SegmentFile: ...
    @overload
    def __getitem__(self, index: slice) -> list[SegmentFile]: ...
    def __getitem__(self, index: int | slice) -> SegmentFile | list[SegmentFile]:
        """Return a segment, or some of them."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(index)
        place = int(np.searchsorted(self._ends, number, "right"))
        start = int(self._ends[place - 1]) if place else 0
        return self.partitions[place].files()[number - start]
