"""What a partition is besides its segments where some of them are in tiered storage."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_index.layout.checkpoints import EpochEntry


@dataclass(frozen=True, slots=True)
class TieredPartition:
    """A partition with remote segments.

    Parameters
    ----------
    topic_id : str
        Of its topic.
    local_directory : str, optional
        Its directory in a log directory; None where none was given, or has this partition.
    log_start_offset : int
        What lies below was deleted.
    is_lower_bound : bool
        Whether the log may start later: without a log directory its start is that of the first
        segment.
    local_start_offset : int, optional
        Base offset of the first local segment; None for none.
    tiered_end_offset : int
        The last offset that was uploaded, -1 for none.
    epochs : tuple of EpochEntry
        Its leader epochs, from the log's start on.
    """

    topic_id: str
    local_directory: str | None
    log_start_offset: int
    is_lower_bound: bool
    local_start_offset: int | None
    tiered_end_offset: int
    epochs: tuple[EpochEntry, ...]
