"""What was found in the topics that Kafka keeps its own state in, and why records are missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from kafka_index.errors import KafkaIndexError
from kafka_index.metadata.cluster_image import ClusterImage
from kafka_index.metadata.decoding import RecordName
from kafka_index.metadata.group_state import CommittedOffset, Group
from kafka_index.metadata.transaction_state import Transaction
from kafka_index.tiered.metadata_records import SegmentEvent

_MAX_FAULTS = 100


@dataclass
class Faults:
    """Faults that were met: the first ones, and how many there were in all."""

    first: list[KafkaIndexError] = field(default_factory=list)
    total: int = 0

    def add(self, faults: Iterable[KafkaIndexError]) -> None:
        """Add faults."""
        for fault in faults:
            self.total += 1
            if len(self.first) < _MAX_FAULTS:
                self.first.append(fault)


class Source(NamedTuple):
    """A partition directory that was read.

    Parameters
    ----------
    path : str
        The directory.
    snapshot : str or None
        The name of the snapshot that was loaded before the log.
    records : int
        How many records there were, those of the snapshot included.
    end_offset : int
        The offset after the last one.
    """

    path: str
    snapshot: str | None
    records: int
    end_offset: int


@dataclass
class ClusterMetadata:
    """What was found; None where the topic it comes from was not.

    Parameters
    ----------
    cluster : ClusterImage or None
        From ``__cluster_metadata``.
    groups, offsets : list or None
        From ``__consumer_offsets``.
    open_offsets : list of CommittedOffset
        Of transactions that are open at the end of that.
    transactions : list of Transaction or None
        From ``__transaction_state``.
    remote_segments : list of SegmentEvent or None
        From ``__remote_log_metadata``.
    counts : dict of str to Counter of RecordName
        Records by topic and type.
    sources : list of Source
        What was read.
    faults : Faults
        Why records are missing.
    """

    cluster: ClusterImage | None = None
    groups: list[Group] | None = None
    offsets: list[CommittedOffset] | None = None
    open_offsets: list[CommittedOffset] = field(default_factory=list)
    transactions: list[Transaction] | None = None
    remote_segments: list[SegmentEvent] | None = None
    counts: dict[str, Counter[RecordName]] = field(default_factory=dict)
    sources: list[Source] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)
