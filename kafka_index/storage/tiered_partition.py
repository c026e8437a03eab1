"""The facts about a partition with segments in tiered storage, besides its segments."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_index.layout.checkpoints import EpochEntry


@dataclass(frozen=True, slots=True)
class TieredPartition:
    """A partition with remote segments.

    The local directory is None if no log directory was given, or none has this partition. Offsets
    below the log start offset were deleted. `is_lower_bound`: the log may start later, because
    without a log directory its start is that of the first segment. `local_start_offset` is the base
    offset of the first local segment; None for none. The last offset that was uploaded is -1 for
    none. The leader epochs are those from the log's start on.
    """

    topic_id: str
    local_directory: str | None
    log_start_offset: int
    is_lower_bound: bool
    local_start_offset: int | None
    tiered_end_offset: int
    epochs: tuple[EpochEntry, ...]
