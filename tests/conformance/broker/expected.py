"""State of a running broker that no rebuild can know, its own neither.

Whatever is named here differs for a live broker alone: what brokers find again in the logs when
everything else is gone has to be ours without exception.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka_index.layout.names import SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX, parse_partition_directory

from .topics import FOLLOWED, TOPICS, TRIMMED, TRIMMED_TO

if TYPE_CHECKING:
    from pathlib import Path

_COMPACTED = {topic.name for topic in (*TOPICS, *FOLLOWED) if topic.is_compacted}


def is_remembered_past_compaction(name: Path) -> bool:
    """Whether a file holds producers and transactions that compaction may have removed.

    Snapshots and transaction indexes were written when the batches were there. Compaction removes
    batches of a producer, its last one in a segment and the first one of a transaction too.
    """
    is_state = name.suffix in {SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX}
    return is_state and _topic(name) in _COMPACTED


def is_snapshot_below_the_log_start(name: Path) -> bool:
    """Whether a file is a snapshot from before the records that were deleted.

    A broker drops it at its next start, where it would make none.
    """
    is_snapshot = name.suffix == SNAPSHOT_SUFFIX and _topic(name) == TRIMMED.name
    return is_snapshot and int(name.stem) <= TRIMMED_TO


def is_known_to_live_brokers_alone(name: Path) -> bool:
    """Whether a live broker's file may differ from what its logs give."""
    return is_remembered_past_compaction(name) or is_snapshot_below_the_log_start(name)


def _topic(name: Path) -> str:
    directory = parse_partition_directory(name.parent.name)
    assert directory is not None
    return directory.topic
