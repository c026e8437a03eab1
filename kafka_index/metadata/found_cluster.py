"""The metadata log of a dump: the given one, or one in a data directory of the dump.

That is where the metadata of a broker lies that is a controller too. It knows the topics, and the
settings by which their brokers wrote.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kafka_index.config import LogConfig
from kafka_index.errors import InputError, is_retriable
from kafka_index.layout.integers import INT32_MAX, parse_java_integer
from kafka_index.layout.java_texts import properties_of
from kafka_index.layout.names import META_PROPERTIES, METADATA_LOG
from kafka_index.metadata.cluster_image import ClusterImage
from kafka_index.metadata.directory import read_cluster
from kafka_index.records.decompression import DecompressionBudget
from kafka_index.storage.directories import scan_input
from kafka_index.storage.log_directory import read_checkpoint_text
from kafka_index.stores import is_remote


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """The metadata of a dump.

    The image is None if there is none, or not one that is whole. `path` is its metadata log, and
    `fault` the reason why the metadata log of the dump does not count. `node_id` is the broker of
    the dump; None if the dump is not of one broker, or it is not known.
    """

    image: ClusterImage | None = None
    path: str | None = None
    fault: str | None = None
    node_id: int | None = None

    def settings(self, config: LogConfig) -> LogConfig:
        """Return the settings of the topics: those that were given, then those of the metadata."""
        return config if self.image is None else settings_of(self.image, config, self.node_id)

    def settings_text(self, config: LogConfig, topics: Iterable[str]) -> str | None:
        """Return the assumption about the settings of topics, as a line; None for nothing."""
        assumed = sorted(topic for topic in set(topics) if not config.is_given(topic))
        if self.image is not None or not assumed:
            return None
        reason = f"; {self.fault}" if self.fault else ""
        return (
            f"assumed index.interval.bytes={config.default.index_interval_bytes}, as the input has "
            f"no metadata log: give --config or its directory{reason}"
        )


def settings_of(image: ClusterImage, config: LogConfig, node_id: int | None) -> LogConfig:
    """Return settings with those of a cluster where none were given."""
    topics = {topic.name: image.topic_configs(topic.name) for topic in image.topics.values()}
    return config.with_cluster(topics, image.broker_configs(node_id))


def find_cluster(
    given: str | None, data_directories: Iterable[str], budget: DecompressionBudget
) -> FoundCluster:
    """Read the metadata log that was given, or else the first one in the dump.

    Raises `InputError` if the given one is not a metadata log that is whole.
    """
    directories = sorted(data_directories)
    node_id = _node_id(directories)
    if given is not None:
        return FoundCluster(read_cluster([given], budget=budget), given, node_id=node_id)
    for directory in directories:
        path = os.path.join(directory, METADATA_LOG)
        try:
            if (is_remote(path) or os.path.isdir(path)) and scan_input(path):
                return FoundCluster(read_cluster([path], budget=budget), path, node_id=node_id)
        except InputError as error:
            if is_retriable(error):
                raise
            # Its own rows say what is wrong with it.
            return FoundCluster(fault=str(error))
    return FoundCluster()


def _node_id(directories: Sequence[str]) -> int | None:
    """Return the node that data directories are of; None where that is not one, or not known."""
    found = set()
    for directory in directories:
        try:
            text = read_checkpoint_text(os.path.join(directory, META_PROPERTIES)) or ""
        except InputError as error:
            if is_retriable(error):
                raise
            continue
        node_id = properties_of(text).get("node.id")
        if node_id is not None:
            found.add(parse_java_integer(node_id, INT32_MAX))
    return found.pop() if len(found) == 1 else None
