"""What the metadata log of a cluster says of the topics of a dump.

It is that of ``--metadata``, or the one that lies in a data directory of the dump, as where brokers
are controllers too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from kafka_index.errors import InputError
from kafka_index.layout.internal_topics import METADATA_LOG
from kafka_index.metadata import ClusterImage, read_cluster
from kafka_index.records.decompression import DecompressionBudget
from kafka_index.storage.directories import scan_directory
from kafka_index.storage.segment_table import SegmentTable
from kafka_index.stores import is_remote


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """A topic as the metadata has it.

    Parameters
    ----------
    topic_id : str
        Its id.
    cleanup_policy : str or None
        ``cleanup.policy``; None where the metadata does not set it, so that each broker goes by its
        ``server.properties``.
    """

    topic_id: str
    cleanup_policy: str | None


def known_topics(cluster: ClusterImage | None, segments: SegmentTable) -> dict[str, KnownTopic]:
    """Return the topics of segments that the metadata knows, by name."""
    if cluster is None:
        return {}
    names = {each.partition.topic for each in segments.partitions}
    found = {name: cluster.topic_named(name) for name in names}
    return {
        name: KnownTopic(topic.topic_id, cluster.cleanup_policy(name))
        for name, topic in found.items()
        if topic is not None
    }


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """The metadata of a dump.

    Parameters
    ----------
    image : ClusterImage or None
        None where there is none, or not one that is whole.
    fault : str or None
        Why the metadata log of the dump does not count.
    """

    image: ClusterImage | None = None
    fault: str | None = None


def find_cluster(
    given: str | None, data_directories: Iterable[str], budget: DecompressionBudget
) -> FoundCluster:
    """Read the metadata log that was given, or else the first one in the dump.

    Raises
    ------
    InputError
        What was given is not a metadata log that is whole.
    """
    if given is not None:
        return FoundCluster(read_cluster([given], budget=budget))
    for directory in sorted(data_directories):
        path = os.path.join(directory, METADATA_LOG)
        try:
            if (is_remote(path) or os.path.isdir(path)) and scan_directory(path):
                return FoundCluster(read_cluster([path], budget=budget))
        except InputError as error:
            # Its own rows say what is wrong with it.
            return FoundCluster(fault=str(error))
    return FoundCluster()
