"""What the fold of a partition begins from, as its record has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from kafka_index.layout.names import (
    LEADER_EPOCH_CHECKPOINT,
    SNAPSHOT_SUFFIX,
    parse_segment_file,
)
from kafka_index.storage.directories import Entry
from kafka_index.storage.tiered_partition import TieredPartition


@dataclass(frozen=True, slots=True)
class PartitionStartFiles:
    """What a fold begins from, by sizes and times: equal texts mean an equal start."""

    text: str

    @classmethod
    def of(
        cls, first_base_offset: int, entries: Sequence[Entry], log_start_offset: int | None
    ) -> PartitionStartFiles:
        """Return the start of a partition.

        Parameters
        ----------
        first_base_offset : int
            Of its first segment.
        entries : sequence of Entry
            The directory of its logs.
        log_start_offset : int, optional
            As checkpointed.
        """
        files = []
        for entry in entries:
            if entry.name != LEADER_EPOCH_CHECKPOINT:
                if not entry.name.endswith(SNAPSHOT_SUFFIX):
                    continue
                parsed = parse_segment_file(entry.name)
                if parsed is None or parsed.transient or parsed.base_offset > first_base_offset:
                    continue
            info = entry.info()
            files.append([entry.name, info.size_bytes, info.mtime_ns, info.version])
        return cls(orjson.dumps([log_start_offset, sorted(files)]).decode())

    @classmethod
    def of_tiered(cls, tiered: TieredPartition) -> PartitionStartFiles:
        """Return the start of a partition whose first segment may be remote."""
        epochs = [[entry.epoch, entry.start_offset] for entry in tiered.epochs]
        return cls(orjson.dumps([tiered.log_start_offset, epochs, tiered.is_lower_bound]).decode())


#: Where no file depends on earlier segments.
NO_START = PartitionStartFiles("")
