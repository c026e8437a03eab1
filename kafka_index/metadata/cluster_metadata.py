"""The content of the topics that Kafka keeps its own state in, and why records are missing."""

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
    """A partition directory that was read, with the offset after its last record.

    `snapshot` names the snapshot that was loaded before the log; its records are counted too.
    """

    path: str
    snapshot: str | None
    records: int
    end_offset: int


@dataclass
class ClusterMetadata:
    """The content of Kafka's own topics; None for a topic that was not found.

    `open_offsets` are those of transactions that are open at the end of ``__consumer_offsets``.
    `counts` has the records by topic and type, and `faults` the reasons why records are missing.
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
