"""What a lookup knows of the logs before it opens any: small enough to send to every worker."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.layout.checkpoints import EpochEntry
from kafka_index.layout.names import LOG_SUFFIX, SWAP_SUFFIX, segment_file_name
from kafka_index.lookup.inventory.partition_codes import NO_PARTITION, Codes, PartitionCodes
from kafka_index.reading.partition_files import PartitionFiles
from kafka_index.storage import SegmentFile, Skipped

#: A row per partition: its folder, its checkpoints, and where its segments are in the other table.
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
        pa.field("first_segment", pa.int64(), nullable=False),
        pa.field("segment_count", pa.int64(), nullable=False),
    ]
)
#: A row per segment.
SEGMENT_SCHEMA = pa.schema(
    [
        pa.field("base_offset", pa.int64(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("mtime_ns", pa.int64(), nullable=False),
        pa.field("is_swap", pa.bool_(), nullable=False),
    ]
)


class Inventory:
    """The partitions and segments of a dump. Immutable, picklable.

    Parameters
    ----------
    partitions : pa.Table
        `PARTITION_SCHEMA`, sorted by topic and partition.
    segments : pa.Table
        `SEGMENT_SCHEMA`, in the order of the partitions, by base offset.
    skipped : sequence of Skipped
        What of the dump is not live or cannot be used, and why.
    """

    def __init__(
        self, partitions: pa.Table, segments: pa.Table, skipped: Sequence[Skipped] = ()
    ) -> None:
        self.partitions = partitions.combine_chunks()
        self.segments = segments.combine_chunks()
        self.skipped = tuple(skipped)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the tables; what is made of them is made again where it is needed."""
        return Inventory, (self.partitions, self.segments, self.skipped)

    @property
    def partition_count(self) -> int:
        """Partitions that hold segments."""
        return int(np.count_nonzero(self._segment_counts))

    @property
    def segment_count(self) -> int:
        """Segments of all partitions."""
        return int(self.segments.num_rows)

    @property
    def total_bytes(self) -> int:
        """Size of all logs."""
        return int(pc.sum(self.segments["size_bytes"]).as_py() or 0)

    def has_partition_directory(self, topic: str, partition: int) -> bool:
        """Return whether the dump has a folder of that partition, with segments or without."""
        return self._row_of(self._all_codes, topic, partition) != NO_PARTITION

    def codes(self, topics: pa.Array | pa.ChunkedArray, partitions: NDArray[np.int64]) -> Codes:
        """Return the number of the partition of each row.

        Parameters
        ----------
        topics : Array of strings or binaries, also dictionary-encoded, shape (n,)
            Topics; null is none.
        partitions : ndarray of int64, shape (n,)
            Any numbers.

        Returns
        -------
        ndarray of int32, shape (n,)
            A row of `partitions`; `NO_PARTITION`, which is -1, where there are no segments.
        """
        return self._codes.find(topics, partitions)

    def name_of(self, code: int) -> tuple[str, int]:
        """Return topic and partition of a number that `codes` gave."""
        return self.partitions["topic"][code].as_py(), self.partitions["partition"][code].as_py()

    def files_of(self, code: int) -> PartitionFiles:
        """Return the files of the partition of a number that `codes` gave."""
        row = self.partitions.slice(code, 1).to_pylist()[0]
        segments = self.segments.slice(row["first_segment"], row["segment_count"])
        columns = [segments[name].to_pylist() for name in SEGMENT_SCHEMA.names]
        last = segments.num_rows - 1
        return PartitionFiles(
            topic=row["topic"],
            partition=row["partition"],
            segments=tuple(
                SegmentFile(
                    row["topic"],
                    row["partition"],
                    base_offset,
                    os.path.join(row["directory"], _log_name(base_offset, is_swap=is_swap)),
                    size_bytes,
                    mtime_ns,
                    is_last=number == last,
                )
                for number, (base_offset, size_bytes, mtime_ns, is_swap) in enumerate(
                    zip(*columns, strict=True)
                )
            ),
            index_directory=row["index_directory"],
            log_start_offset=row["log_start_offset"],
            high_watermark=row["high_watermark"],
            epochs=tuple(map(EpochEntry, row["epochs"], row["epoch_start_offsets"])),
        )

    def files(self, topic: str, partition: int) -> PartitionFiles | None:
        """Return the files of a partition; None when there are no segments of it."""
        code = self._row_of(self._codes, topic, partition)
        return None if code == NO_PARTITION else self.files_of(code)

    @staticmethod
    def _row_of(codes: PartitionCodes, topic: str, partition: int) -> int:
        return int(codes.find(pa.array([topic], pa.string()), np.array([partition], np.int64))[0])

    @cached_property
    def _segment_counts(self) -> NDArray[np.int64]:
        counts: NDArray[np.int64] = self.partitions["segment_count"].to_numpy()
        return counts

    @cached_property
    def _codes(self) -> PartitionCodes:
        return self._codes_of(np.flatnonzero(self._segment_counts).astype(np.int32))

    @cached_property
    def _all_codes(self) -> PartitionCodes:
        return self._codes_of(np.arange(self.partitions.num_rows, dtype=np.int32))

    def _codes_of(self, rows: Codes) -> PartitionCodes:
        kept = self.partitions.select(["topic", "partition"]).take(pa.array(rows))
        return PartitionCodes(
            kept["topic"].to_pylist(), kept["partition"].to_numpy().astype(np.int64), rows
        )


def _log_name(base_offset: int, *, is_swap: bool) -> str:
    return segment_file_name(base_offset, LOG_SUFFIX + SWAP_SUFFIX * is_swap)
