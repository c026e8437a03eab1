"""Entry point for listing the logs of a command, local and remote."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kafka_index.core.errors import InputError, KafkaIndexError, is_retriable
from kafka_index.core.format.config import LogConfig
from kafka_index.core.format.integers import INT32_MAX, parse_java_integer
from kafka_index.core.format.names import METADATA_LOG
from kafka_index.core.fs.paths import expand_directories
from kafka_index.core.fs.registry import configure_stores, scan_input, storage_options, store_of
from kafka_index.core.fs.uris import TieredOptions
from kafka_index.core.logdir.data_directory import DataDirectory
from kafka_index.core.logdir.listing import Listing, list_any, list_dump

if TYPE_CHECKING:
    from kafka_index.core.cluster.metadata.cluster_image import ClusterImage


def list_logs(
    inputs: Sequence[str], tiered: TieredOptions | None, *, topics: re.Pattern[str] | None
) -> Listing:
    """List the local and remote segments of topics whose full name matches `topics`.

    With tiered storage, log directories are optional. Raises the errors of `list_dump` and
    `kafka_index.core.cluster.merged_listing.list_merged`.
    """
    if tiered is None:
        return list_dump(inputs, topics=topics)
    if tiered.keys:
        # Add the keys to the store options, because these options are sent to every Spark task.
        configure_stores(replace(storage_options(), tiered_keys=tiered.keys))
    # This import is rarely needed, and takes about as long as a single lookup.
    from kafka_index.core.cluster.merged_listing import list_merged  # noqa: PLC0415

    return list_merged(inputs, tiered, topics=topics)


def list_dumps(
    inputs: Sequence[str], tiered: TieredOptions | None, *, topics: re.Pattern[str] | None
) -> list[Listing]:
    """List each data directory separately, because a partition may be in several of them.

    With tiered storage, return one listing; then a partition may be in only one data directory.
    """
    if tiered is not None:
        return [list_logs(inputs, tiered, topics=topics)]
    return [list_any([path], topics=topics) for path in expand_directories(inputs)]


@dataclass(frozen=True, slots=True)
class DumpMetadata:
    """The cluster metadata of a dump.

    Attributes
    ----------
    image : ClusterImage, optional
        None if the dump has no complete metadata log.
    path, fault : str, optional
        The path of the metadata log, and the reason why a metadata log is not used.
    node_id : int, optional
        The node ID of the broker; None if it is unknown, or the dump is from several brokers.
    """

    image: ClusterImage | None = None
    path: str | None = None
    fault: str | None = None
    node_id: int | None = None

    def settings(self, config: LogConfig) -> LogConfig:
        """Return the settings of logs; settings in `config` take precedence over the metadata."""
        return (
            config if self.image is None else add_cluster_settings(self.image, config, self.node_id)
        )

    def assumption_warning(self, config: LogConfig, topics: Iterable[str]) -> str | None:
        """Return a warning if default settings are assumed for topics, otherwise None."""
        if self.image is not None or all(map(config.is_given, set(topics))):
            return None
        reason = self.fault or "the input has no metadata log"
        return (
            f"index.interval.bytes={config.default.index_interval_bytes} was assumed, because "
            f"{reason}; give --config or the metadata log directory"
        )


def add_cluster_settings(image: ClusterImage, config: LogConfig, node_id: int | None) -> LogConfig:
    """Add the settings of a cluster to `config`; settings in `config` take precedence."""
    topics = {topic.name: image.topic_configs(topic.name) for topic in image.topics.values()}
    return config.with_cluster(topics, image.broker_configs(node_id))


def find_cluster(
    metadata_log: str | None, data_directories: Iterable[str], max_bytes: int
) -> DumpMetadata:
    """Read the metadata log at a path, or if the path is None, the first metadata log in the dump.

    `max_bytes` is the memory limit of the process for decompressed records. Raises `InputError` if
    the path does not contain a complete metadata log.
    """
    directories = sorted(data_directories)
    node_id = read_node_id(map(DataDirectory, directories))
    if metadata_log is not None:
        return DumpMetadata(_read_cluster(metadata_log, max_bytes), metadata_log, node_id=node_id)
    for directory in directories:
        path = os.path.join(directory, METADATA_LOG)
        try:
            if (store_of(path).needs_requests or os.path.isdir(path)) and scan_input(path):
                return DumpMetadata(_read_cluster(path, max_bytes), path, node_id=node_id)
        except InputError as error:
            if is_retriable(error):
                raise
            # Do not raise the error: the report describes it in the rows of the files.
            return DumpMetadata(fault=str(error))
    return DumpMetadata()


def _read_cluster(path: str, max_bytes: int) -> ClusterImage:
    # Slow to import, and most dumps have no metadata log.
    from kafka_index.core.cluster.metadata.directory import read_cluster  # noqa: PLC0415
    from kafka_index.core.records.decompression import shared_budget  # noqa: PLC0415

    return read_cluster([path], budget=shared_budget(max_bytes))


def read_node_id(directories: Iterable[DataDirectory]) -> int | None:
    """Return the node ID in data directories, None if there is none or they differ."""
    node_ids = set()
    for directory in directories:
        try:
            node_id = directory.properties.get("node.id")
        except KafkaIndexError as error:
            if is_retriable(error):
                raise
            continue
        if node_id is not None:
            node_ids.add(parse_java_integer(node_id, INT32_MAX))
    return node_ids.pop() if len(node_ids) == 1 else None
