"""The request of ``restore``, and the requested log ends.

A log is truncated before the first batch that has a timestamp after the requested time or contains
the requested offset.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from os import PathLike
from typing import TYPE_CHECKING, Any

from kafka_index.core.errors import ConfigError, InputError, argument_text
from kafka_index.core.format.config import parse_integer
from kafka_index.core.format.integers import INT32_MAX, INT64_MAX
from kafka_index.core.format.names import (
    INTERNAL_PREFIX,
    TopicPartition,
    is_legal_topic,
    parse_partition_directory,
)
from kafka_index.core.format.times import is_relative, parse_time, time_text
from kafka_index.core.job.request import (
    TIME_HELP,
    ChoiceKind,
    CommandSpec,
    FlagKind,
    Group,
    IntegerKind,
    Kind,
    PathKind,
    PathsKind,
    parameter,
)
from kafka_index.core.parameters import (
    KafkaSettings,
    KeysKind,
    LocalFolderKind,
    LogRequest,
    PairsKind,
    config_parameter,
    max_decompressed_parameter,
    to_properties,
    topics_parameter,
)

if TYPE_CHECKING:
    from kafka_index.core.format.config import LogConfig
    from kafka_index.core.records.batch_table import BatchColumns


class Salvage(StrEnum):
    """Which part of a damaged log is kept."""

    PREFIX = "prefix"
    BATCHES = "batches"
    NONE = "none"


class Link(StrEnum):
    """Whether logs of the dump are cloned, copied or linked to the output."""

    AUTO = "auto"
    REFLINK = "reflink"
    COPY = "copy"
    HARD = "hard"


class ClusterMode(StrEnum):
    """Whether the output is for a fresh cluster or for the source cluster."""

    FRESH = "fresh"
    SAME = "same"


@dataclass(frozen=True, slots=True)
class Limit:
    """Where a log is truncated: at a time or an offset, whichever the log reaches first."""

    time_ms: int = INT64_MAX
    offset: int = INT64_MAX

    def first_excluded_row(self, batches: BatchColumns) -> int | None:
        """Return the row of the first batch that the limit excludes; None if there is none."""
        is_excluded = batches.last_offset >= self.offset
        is_excluded |= batches.max_timestamp_ms > self.time_ms
        excluded_rows = is_excluded.nonzero()[0]
        return int(excluded_rows[0]) if len(excluded_rows) else None


@dataclass(frozen=True, slots=True)
class Until:
    """The requested ends of logs.

    Attributes
    ----------
    time_ms : int, optional
        All logs end before their first batch with a later timestamp.
    offsets : mapping of str to mapping of int to int
        End offsets by topic and partition number.
    relative : str, optional
        The text of ``--until`` if its time is relative to now.
    transaction_ends : mapping of TopicPartition to int
        The end offsets at the transaction boundary of a backup.
    is_consistent : bool
        Whether only `transaction_ends` apply; they are at or before the requested ends.
    """

    time_ms: int | None = None
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    relative: str | None = None
    transaction_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    is_consistent: bool = False

    @property
    def is_requested(self) -> bool:
        """Whether ``--until`` was given."""
        return self.time_ms is not None or bool(self.offsets)

    @property
    def end_text(self) -> str:
        """The requested end as shown in messages; empty if no end was requested."""
        if self.time_ms is not None:
            return time_text(self.time_ms)
        return "the requested offsets" if self.offsets else ""

    def end_offset_for(self, partition: TopicPartition) -> int | None:
        """Return the requested end offset of a partition."""
        return self.offsets.get(partition.topic, {}).get(partition.partition)

    def limit_for(self, partition: TopicPartition) -> Limit | None:
        """Return the limit of a partition; None if the complete log is restored."""
        limit = Limit(offset=self.transaction_ends.get(partition, INT64_MAX))
        if not self.is_consistent:
            time_ms, offset = self.time_ms, self.end_offset_for(partition)
            limit = Limit(
                INT64_MAX if time_ms is None else time_ms,
                limit.offset if offset is None else min(limit.offset, offset),
            )
        return None if limit == Limit() else limit

    @property
    def digest_text(self) -> str:
        """A text that is equal if the log ends are equal."""
        offsets = sorted(
            (topic, sorted(partition_offsets.items()))
            for topic, partition_offsets in self.offsets.items()
        )
        transaction_ends = sorted(
            (partition.directory_name, end_offset)
            for partition, end_offset in self.transaction_ends.items()
        )
        return f"{self.relative or self.time_ms} {offsets} {transaction_ends} {self.is_consistent}"


class UntilKind(Kind):
    """A time, a mapping of offsets by topic and partition, or a file with offsets."""

    metavar = "TIME|FILE"

    def convert(self, value: Any, name: str, now: int) -> Until:
        if isinstance(value, Until):
            return value
        is_file = isinstance(value, str) and os.path.exists(value)
        if is_file or isinstance(value, PathLike | Mapping):
            from kafka_index.core.arguments import convert_offsets  # noqa: PLC0415, slow to import

            return Until(offsets=convert_offsets(value, name))
        try:
            time_ms = parse_time(value, now=now)
        except InputError as error:
            if isinstance(value, str):
                error.message = f"neither a file nor a time: {error.message}"
            raise
        return Until(time_ms, relative=str(value) if is_relative(value) else None)


class LogStartsKind(Kind):
    """Log start offsets by the names of partition directories."""

    metavar = "TOPIC-N=OFFSET"
    is_multiple = True

    def convert(self, value: Any, name: str, now: int) -> dict[TopicPartition, int]:  # noqa: ARG002
        offset_by_name = value
        if isinstance(value, tuple):
            # The name of a topic has no equals sign.
            pairs = [str(text).partition("=") for text in value]
            offset_by_name = {key: parse_integer(number) for key, _, number in pairs}
        if not isinstance(offset_by_name, Mapping):
            raise ConfigError(
                f"{name} is not a mapping from partitions to offsets",
                expected="such as {'orders-0': 123}",
                found=argument_text(offset_by_name),
            )
        log_starts = {}
        for key, offset in offset_by_name.items():
            partition = parse_partition_directory(key) if isinstance(key, str) else None
            if partition is None or offset is None:
                raise ConfigError(
                    f"{name} does not have the form {self.metavar}",
                    found=argument_text(value if offset is None else key),
                )
            log_starts[partition] = IntegerKind().convert(offset, f"{name} of {key}", 0)
        return log_starts


class TopicConfigsKind(Kind):
    """Topic settings, keyed by topic name."""

    metavar = "TOPIC:NAME=VALUE"
    is_multiple = True

    def convert(self, value: Any, name: str, now: int) -> dict[str, dict[str, str]]:  # noqa: ARG002
        if isinstance(value, tuple):
            return self._parse_settings(value, name)
        if not isinstance(value, Mapping) or not all(isinstance(topic, str) for topic in value):
            raise ConfigError(
                f"{name} is not a mapping from topics to settings",
                expected="such as {'orders': {'retention.ms': '-1'}}",
                found=argument_text(value),
            )
        return {
            topic: to_properties(configs, f"{name} of {topic}") for topic, configs in value.items()
        }

    def _parse_settings(
        self, arguments: tuple[object, ...], name: str
    ) -> dict[str, dict[str, str]]:
        configs_by_topic: dict[str, dict[str, str]] = {}
        for argument in arguments:
            topic, _, setting = str(argument).partition(":")
            key, separator, value = setting.partition("=")
            if not (is_legal_topic(topic) and key and separator):
                raise ConfigError(
                    f"{name} does not have the form {self.metavar}", found=argument_text(argument)
                )
            configs_by_topic.setdefault(topic, {})[key] = value
        return configs_by_topic


class RenamesKind(PairsKind):
    """New names of topics by their old names."""

    def __init__(self) -> None:
        super().__init__("OLD=NEW")

    def convert(self, value: Any, name: str, now: int) -> dict[str, str]:
        renames = super().convert(value, name, now)
        for topic in (*renames, *renames.values()):
            if not is_legal_topic(topic):
                raise ConfigError(f"{name}: invalid topic name", found=repr(topic))
            if topic.startswith(INTERNAL_PREFIX):
                raise ConfigError(f"{name}: an internal topic cannot be renamed", found=topic)
        return renames


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRequest(LogRequest):
    """Parameters of a restore."""

    output: str = parameter(LocalFolderKind(), Group.OUTPUT, "The data directory to create.")
    topics: Any = topics_parameter()
    salvage: Salvage = parameter(
        ChoiceKind(Salvage),
        Group.BEHAVIOUR,
        "What to keep of a damaged segment: prefix keeps the batches before the damage, batches "
        "keeps all valid batches, and none skips the partition. Later segments are kept.",
        default=Salvage.PREFIX,
    )
    link: Link = parameter(
        ChoiceKind(Link),
        Group.BEHAVIOUR,
        "How to create the logs of the output. auto clones logs if the file system supports "
        "clones, and copies logs otherwise. With hard, a broker may truncate logs of the input.",
        default=Link.AUTO,
    )
    log_starts: Mapping[TopicPartition, int] = parameter(
        LogStartsKind(),
        Group.BEHAVIOUR,
        "Log start offset of a partition. Overrides the checkpoint of the input. May be repeated.",
        "--log-start",
        default=None,
    )
    cluster: ClusterMode = parameter(
        ChoiceKind(ClusterMode),
        Group.CLUSTER,
        "Restore for a fresh cluster, or for the source cluster. same also copies the metadata "
        "log, and requires that all brokers of the source cluster are stopped.",
        default=ClusterMode.FRESH,
    )
    seeds: tuple[str, ...] = parameter(
        PathsKind("METADATA_DIR", takes_more=False),
        Group.CLUSTER,
        "With fresh: formatted metadata log directory of a controller, which gets topics, IDs, "
        "settings, epochs and producer IDs. Repeat the option for every controller.",
        "--seed",
        default=(),
    )
    node_id: int | None = parameter(
        IntegerKind(0, INT32_MAX),
        Group.CLUSTER,
        "Node ID of the broker, if neither the output nor --seed contains it.",
        default=None,
    )
    topic_configs: Mapping[str, Mapping[str, str]] = parameter(
        TopicConfigsKind(),
        Group.CLUSTER,
        "Setting of a seeded topic. Overrides the metadata log of the input. May be repeated.",
        "--topic-config",
        default=None,
    )
    renames: Mapping[str, str] = parameter(
        RenamesKind(),
        Group.CLUSTER,
        "With fresh: rename a topic. The topic gets a new ID. Groups lose their committed offsets "
        "of the topic. May be repeated.",
        "--rename",
        default=None,
    )
    new_topic_ids: bool = parameter(
        FlagKind(),
        Group.CLUSTER,
        "Assign new IDs to topics whose ID is unknown. Groups may lose the committed offsets of "
        "these topics.",
        default=False,
    )
    until: Until = parameter(
        UntilKind(),
        Group.SELECTION,
        "End each log before its first batch with a timestamp after TIME, or at the offset in "
        f"FILE. FILE has Spark's startingOffsets, or lines of topic,partition,offset. {TIME_HELP}",
        default=None,
    )
    create_time: bool = parameter(
        FlagKind(),
        Group.SELECTION,
        "Apply an --until time also to topics that use CreateTime.",
        default=False,
    )
    consistent: bool = parameter(
        FlagKind(),
        Group.SELECTION,
        "With --until, for a backup: keep or drop complete transactions, in all partitions and "
        "with their committed offsets. Logs may end earlier than --until.",
        default=False,
    )
    drop_keys: tuple[bytes, ...] = parameter(
        KeysKind(),
        Group.SELECTION,
        "Drop records with these keys, so that erased records do not reappear. FILE has one key "
        "per line, as text, hex: or base64:.",
        default=None,
    )
    clamp_groups: bool = parameter(
        FlagKind(),
        Group.CLUSTER,
        "Reset committed offsets after the end of a log to the log end. New records are appended "
        "to __consumer_offsets. Implied if a backup is restored into a fresh cluster.",
        default=False,
    )
    metadata_output: str | None = parameter(
        PathKind("DIR"),
        Group.CLUSTER,
        "With same: directory of the metadata log, if it is not in --output.",
        default=None,
    )
    all_brokers_restored: bool = parameter(
        FlagKind(),
        Group.CLUSTER,
        "With same: confirm that all brokers of the cluster are restored to the same point in "
        "time.",
        default=False,
    )
    config: KafkaSettings = config_parameter()
    max_decompressed_bytes: int = max_decompressed_parameter()

    def __post_init__(self) -> None:
        super(RestoreRequest, self).__post_init__()
        empty = {"log_starts": {}, "topic_configs": {}, "renames": {}, "until": Until()}
        for name, value in (*empty.items(), ("drop_keys", ())):
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        for mode, names in _CLUSTER_MODE_FIELDS.items():
            for name in names:
                is_requested = getattr(self, name) or getattr(self, name) == ""
                if is_requested and self.cluster is not mode:
                    self.refuse(f"{{{name}}} requires {{cluster}} {mode}")
        if self.consistent and not any(path.startswith("backup:") for path in self.inputs):
            self.refuse("{consistent} requires a backup: give {inputs} backup:URI")
        if self.topic_configs and not self.seeds:
            self.refuse("{topic_configs} requires {seeds}")

    @property
    def log_config(self) -> LogConfig:
        """The settings of logs."""
        return self.config.config


_CLUSTER_MODE_FIELDS = {
    ClusterMode.FRESH: ("seeds", "new_topic_ids", "renames"),
    ClusterMode.SAME: ("metadata_output", "all_brokers_restored"),
}
RESTORE = CommandSpec(
    "restore",
    RestoreRequest,
    work="commands.restore.job:restore",
    help="""Create a data directory on which a Kafka 4.3.1 broker starts without log recovery.

    PATH is a data directory, a topic-partition directory, or a glob of either. A partition may be
    in several paths. --output is a local directory that is empty or freshly formatted. If --output
    has an unfinished restore of the same input and options, the restore is completed. The input is
    never changed.

    The checksums of every log are verified. The valid batches of damaged segments are recovered,
    and the report has a row for each lost range. The clean shutdown file is written last. A runbook
    with the remaining steps is printed, and written next to the report.

    \b
    Exit codes:
      0   Everything was restored.
      1   A record was lost, or a partition was skipped.
      2   Wrong usage, no input was found, or --output contains other files.
      3   Retriable failure: permission, disk, memory or network. Run the
          command again to complete the restore.
      70  Internal error.
    """,
    usage="(--input PATH... | --tiered URI) --output DIR [OPTIONS]",
    examples="""\
kafka-index restore --input /snapshot/data --output /var/kafka/data --report restore.parquet
kafka-index restore --input s3://backup/broker-1 --output /var/kafka/data --new-topic-ids
kafka-index restore --input /backup/1 /backup/2 --output /var/kafka/data --salvage batches
kafka-index restore --input /dump/data /dump/metadata --output /var/kafka/data \\
    --seed /var/kafka/metadata
""",
    job_examples="""\
spark-submit jobs/restore.py --input /mnt/dump --output /mnt/restored/data
""",
    report="commands.restore.result:RESTORE_REPORT",
    report_rows="a row per partition and per lost range",
    has_page=True,
)
