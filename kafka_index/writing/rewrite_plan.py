"""The input of a rewrite: the partitions of a dump, with their segments in tiered storage."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from kafka_index.build.plan import partition_of
from kafka_index.dump.data_directory import DataDirectory
from kafka_index.dump.listing import list_logs
from kafka_index.layout.names import INTERNAL_TOPICS, REMOTE_LOG_METADATA_TOPIC, TopicPartition
from kafka_index.metadata import ClusterImage
from kafka_index.storage import Listing, SegmentFile
from kafka_index.storage.tiered_partition import TieredPartition
from kafka_index.stores.tiered.segment_paths import is_segment_path
from kafka_index.tiered.options import TieredOptions

CLEANUP_POLICY = "cleanup.policy"


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """A partition to rewrite, with its segments by base offset.

    `may_be_compacted` is false if the metadata log says that it is not; `tiered` has the facts
    about one whose segments may be remote.
    """

    partition: TopicPartition
    segments: tuple[SegmentFile, ...]
    may_be_compacted: bool = True
    tiered: TieredPartition | None = None

    @property
    def directory(self) -> str:
        """The local directory; of a tiered partition without one, the first segment."""
        return self.local_directory or self.segments[0].partition_directory

    @property
    def local_directory(self) -> str | None:
        """Its directory in a log directory, which a tiered partition need not have."""
        if self.tiered is not None:
            return self.tiered.local_directory
        return self.segments[0].partition_directory

    @property
    def begins_remotely(self) -> bool:
        """Whether its first segment is in tiered storage, where there are no files beside it."""
        return is_segment_path(self.segments[0].log_path)

    @property
    def log_start_offset(self) -> int | None:
        """The log start offset, if it is known."""
        if self.tiered is not None:
            return self.tiered.log_start_offset
        return DataDirectory(os.path.dirname(self.directory)).log_start_offset(self.partition)

    @property
    def is_internal(self) -> bool:
        """Whether it is one of Kafka's own topics, which is copied as it is."""
        return self.partition.topic in INTERNAL_TOPICS

    @property
    def size_bytes(self) -> int:
        """Size of its logs."""
        return sum(segment.log_size_bytes for segment in self.segments)


def plan_rewrite(
    inputs: Sequence[str],
    topics: re.Pattern[str] | None,
    cluster: ClusterImage | None = None,
    tiered: TieredOptions | None = None,
) -> tuple[list[PartitionPlan], Listing]:
    """Return the partitions of a dump, and its listing.

    The cluster knows the settings of topics. With tiered storage all segments become local ones, so
    that the topic in which brokers keep the states of remote segments is left out. Raises the
    errors of `kafka_index.dump.listing.list_logs`.
    """
    listing = list_logs(inputs, tiered, topics=topics)
    plans = [
        PartitionPlan(
            partition,
            tuple(members),
            _may_be_compacted(partition.topic, cluster),
            listing.tiered.get(partition),
        )
        for partition, members in groupby(listing.segments, key=partition_of)
        if tiered is None or partition.topic != REMOTE_LOG_METADATA_TOPIC
    ]
    return plans, listing


def _may_be_compacted(topic: str, cluster: ClusterImage | None) -> bool:
    if cluster is None or cluster.topic_named(topic) is None:
        return True
    return "compact" in cluster.topic_configs(topic).get(CLEANUP_POLICY, "delete")


def tiered_starts(plans: Sequence[PartitionPlan]) -> dict[TopicPartition, int]:
    """Return where tiered partitions start, if that is after the base offset of a segment."""
    return {
        plan.partition: plan.tiered.log_start_offset
        for plan in plans
        if plan.tiered is not None and plan.tiered.log_start_offset > plan.segments[0].base_offset
    }
