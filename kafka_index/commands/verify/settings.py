"""Settings of a verification for all partitions, and topics of the cluster metadata."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from kafka_index.core.cluster.listing import DumpMetadata
from kafka_index.core.format.config import LogConfig
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.fs.local_work import workspace
from kafka_index.core.job.engine import new_run_id
from kafka_index.core.log.choices import ALL_OUTPUTS, BuildOutput
from kafka_index.core.log.recovery.settings import BuildSettings
from kafka_index.core.logdir.data_directory import DataDirectory
from kafka_index.core.logdir.partition_files import SegmentFile, TieredPartition
from kafka_index.core.logdir.segment_table import SegmentTable
from kafka_index.core.startup.partition_loading import Loading


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """A topic in the cluster metadata.

    ``cleanup.policy`` is None if neither the metadata nor the broker's settings set it.
    """

    topic_id: str
    cleanup_policy: str | None


def known_topics(
    found_cluster: DumpMetadata, segments: SegmentTable, properties: Mapping[str, str] | None = None
) -> dict[str, KnownTopic]:
    """Return the topics that have segments and exist in the cluster metadata, by name.

    `properties` are all settings of the broker.
    """
    cluster = found_cluster.image
    if cluster is None:
        return {}
    names = {partition.partition.topic for partition in segments.partitions}
    topics = {name: cluster.find_topic(name) for name in names}
    return {
        name: KnownTopic(
            topic.topic_id, cluster.cleanup_policy(name, properties, found_cluster.node_id)
        )
        for name, topic in topics.items()
        if topic is not None
    }


# A build reads the leader epoch checkpoint. Verification therefore compares this file with the
# batches, not with a built file.
_OUTPUTS = ALL_OUTPUTS - {BuildOutput.EPOCHS}


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """The settings of a verification.

    Attributes
    ----------
    now_ms
        Time at which the broker would start. Producers that have expired at this time are ignored.
    indexes
        Folder with the files to verify, in one folder per partition. By default, they are next to
        the logs.
    fast
        Read only batch headers, without verifying checksums.
    run_id
        Unique ID of the run.
    tiered, topics
        Partitions with remote segments, and topics in the cluster metadata by name.
    """

    now_ms: int
    config: LogConfig = field(default_factory=LogConfig)
    indexes: str | None = None
    fast: bool = False
    run_id: str = field(default_factory=new_run_id)
    tiered: Mapping[TopicPartition, TieredPartition] = field(default_factory=dict)
    topics: Mapping[str, KnownTopic] = field(default_factory=dict)

    def scratch_root(self) -> str:
        """Return the local folder for the expected files."""
        return os.path.join(workspace(), f"verify-{self.run_id}")

    def build_settings(self) -> BuildSettings:
        """Return the settings of the build that creates the expected files."""
        return BuildSettings(
            config=self.config,
            target_root=self.scratch_root(),
            outputs=_OUTPUTS,
            verify_crc=not self.fast,
            force=True,
            run_id=self.run_id,
            keeps_digests=False,
            tiered=self.tiered,
        )

    def loading(self, root: DataDirectory, partition: TopicPartition) -> Loading:
        """Return the conditions under which a starting broker loads a partition."""
        return Loading.from_directory(root, partition, self.config, lambda: self.now_ms)

    def index_directory(self, segment: SegmentFile) -> str:
        directory = segment.partition_directory
        if self.indexes is None:
            return directory
        return f"{self.indexes.rstrip('/')}/{segment.topic}-{segment.partition}"
