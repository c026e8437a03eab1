"""The request of ``import``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, Self

from kafka_index.core.errors import ConfigError
from kafka_index.core.format.config import parse_integer
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.message_bytes import uuid_bytes
from kafka_index.core.format.names import COMPRESSION_NAMES
from kafka_index.core.job.engine import new_run_id
from kafka_index.core.job.request import (
    ChoiceKind,
    CommandSpec,
    FlagKind,
    Group,
    PathsKind,
    Request,
    TextKind,
    parameter,
)
from kafka_index.core.log.append.settings import LogSettings, TimestampType
from kafka_index.core.parameters import LocalFolderKind, PairsKind

_COMPRESSION, _BATCH_SIZE = "compression.type", "batch.size"
_TIMESTAMP_TYPE = "message.timestamp.type"
#: Values of ``compression.type`` with which imported records are not compressed.
_NO_CODEC = frozenset(("producer", "uncompressed"))
_DEFAULT_BATCH_BYTES = 16384


class ImportMode(Enum):
    """The treatment of existing partitions."""

    #: Existing partitions are rejected.
    CREATE = "create"
    #: The records are appended.
    APPEND = "append"
    #: The records replace the records of an earlier import.
    OVERWRITE = "overwrite"


@dataclass(frozen=True, slots=True)
class ImportSettings:
    """The settings of an import; small and picklable.

    Attributes
    ----------
    compression : str
        none, gzip, snappy, lz4 or zstd.
    batch_bytes : int
        ``batch.size``, the maximum size of a batch before compression; a larger record has its own
        batch.
    timestamp_type : TimestampType, optional
        ``message.timestamp.type``. With LogAppendTime, all records get the time of the import. By
        default, each record has the type in its column ``timestampType``.
    order_by : str, optional
        Records without offsets get offsets in the order of this column.
    topic_ids : mapping of str to str
        Topic IDs for new partitions.
    run_id : str
        A unique ID of each import.
    """

    log: LogSettings = field(default_factory=LogSettings)
    compression: str = "none"
    batch_bytes: int = _DEFAULT_BATCH_BYTES
    timestamp_type: TimestampType | None = None
    order_by: str | None = None
    mode: ImportMode = ImportMode.CREATE
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    now_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    run_id: str = field(default_factory=new_run_id)

    @property
    def max_batch_bytes(self) -> int:
        """The maximum size of a batch with several records, within a broker's limits."""
        return min(self.batch_bytes, self.log.max_message_bytes, self.log.segment_bytes)

    @classmethod
    def of_properties(
        cls,
        properties: Mapping[str, str],
        *,
        mode: ImportMode,
        order_by: str | None = None,
        topic_ids: Mapping[str, str] | None = None,
    ) -> Self:
        """Convert properties with Kafka's names."""
        remaining = dict(properties)
        compression = remaining.pop(_COMPRESSION, "none")
        if compression in _NO_CODEC:
            compression = "none"
        if compression not in COMPRESSION_NAMES:
            raise ConfigError(
                f"{_COMPRESSION} has an unknown value",
                expected=f"one of {', '.join(COMPRESSION_NAMES)}",
                found=repr(compression),
            )
        log = LogSettings.of_properties(
            {name: remaining[name] for name in remaining if name != _BATCH_SIZE},
            (_COMPRESSION, _BATCH_SIZE),
        )
        return cls(
            log,
            compression,
            _batch_bytes(remaining),
            log.message_timestamp_type if _TIMESTAMP_TYPE in remaining else None,
            order_by,
            mode,
            topic_ids or {},
        )


def _batch_bytes(properties: Mapping[str, str]) -> int:
    configured = properties.get(_BATCH_SIZE, str(_DEFAULT_BATCH_BYTES))
    value = parse_integer(configured.strip())
    if value is None or not 0 <= value <= INT32_MAX:
        raise ConfigError(
            f"{_BATCH_SIZE} has an invalid value",
            expected=f"0..{INT32_MAX}",
            found=repr(configured),
        )
    return value


class ImportLayout(StrEnum):
    """The columns and names of the files of an export."""

    #: Detected from the files, if they are unambiguous.
    AUTO = "auto"
    #: The columns of Spark's Kafka source.
    SPARK = "spark"
    #: JSON lines of ``kcat -J``.
    KCAT = "kcat"
    #: Files of Confluent's S3 sink connector.
    CONFLUENT_S3 = "confluent-s3"
    #: Files of Aiven's S3 sink connector.
    AIVEN_S3 = "aiven-s3"


class TopicIdsKind(PairsKind):
    """Topic IDs, by topic."""

    def __init__(self) -> None:
        super().__init__("TOPIC=ID")

    def convert(self, value: Any, name: str, now: int) -> dict[str, str]:
        ids = super().convert(value, name, now)
        for topic, topic_id in ids.items():
            try:
                uuid_bytes(topic_id)
            except ValueError as error:
                raise ConfigError(
                    f"{name} of {topic} is not a valid topic ID", found=topic_id
                ) from error
        return ids


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest(Request):
    """Parameters of an import."""

    inputs: tuple[str, ...] = parameter(
        PathsKind(),
        Group.INPUT,
        "Files and folders of records. May be repeated.",
        "--input",
        default=(),
    )
    output: str = parameter(
        LocalFolderKind(),
        Group.OUTPUT,
        "Data directory to write to. It is created if it does not exist.",
    )
    append: bool = parameter(
        FlagKind(), Group.OUTPUT, "Append to the logs of existing partitions.", default=False
    )
    overwrite: bool = parameter(
        FlagKind(),
        Group.OUTPUT,
        "Replace all partitions in DIR. Each of them must be from an earlier import.",
        default=False,
    )
    order_by: str | None = parameter(
        TextKind("COLUMN"),
        Group.INPUT,
        "If the input has no column offset, assign offsets in the order of COLUMN.",
        default=None,
    )
    layout: ImportLayout | None = parameter(
        ChoiceKind(ImportLayout),
        Group.INPUT,
        "Tool that wrote the files: Spark's Kafka source, kcat -J, or an S3 sink connector. auto "
        "detects it from the files.  [default: kafka-index export]",
        default=None,
    )
    layout_properties: Mapping[str, str] | None = parameter(
        PairsKind(allows_numbers=True),
        Group.INPUT,
        "Setting of the sink connector that the files do not contain, such as value.converter "
        "(string, bytes, json) or file.name.template. May be repeated.",
        "--layout-property",
        default=None,
    )
    properties: Mapping[str, str] | None = parameter(
        PairsKind(allows_numbers=True),
        Group.SETTINGS,
        "Kafka setting of the topics, such as segment.bytes, compression.type, batch.size or "
        "message.timestamp.type. May be repeated.",
        "--property",
        default=None,
    )
    topic_ids: Mapping[str, str] | None = parameter(
        TopicIdsKind(),
        Group.SETTINGS,
        "Topic ID for the partition.metadata of new partitions. A broker treats partitions "
        "without an ID as stray. May be repeated.",
        "--topic-id",
        default=None,
    )

    def __post_init__(self) -> None:
        if not self.inputs:
            self.refuse("no input: give {inputs}")
        if self.append and self.overwrite:
            self.refuse("{append} and {overwrite} are mutually exclusive")
        if self.layout_properties and self.layout is None:
            self.refuse("{layout_properties} requires {layout}")
        self.settings()

    def settings(self) -> ImportSettings:
        """Return the settings of a new run.

        Raises `ConfigError` if a property is wrong.
        """
        mode = ImportMode.APPEND if self.append else ImportMode.CREATE
        return ImportSettings.of_properties(
            self.properties or {},
            mode=ImportMode.OVERWRITE if self.overwrite else mode,
            order_by=self.order_by,
            topic_ids=self.topic_ids,
        )


IMPORT = CommandSpec(
    "import",
    ImportRequest,
    work="commands.import_.import_job:import_tables",
    spark_work="spark.import_tables:import_tables",
    help="""Write tables of records as partition logs that a broker can load.

    PATH is a Parquet file, a file of JSON lines, a folder of them, or a glob. Its columns are those
    that `export` writes: topic, partition, and key or value. The columns offset, timestamp,
    timestampType and headers are optional. --layout reads the files of other tools.

    If the input has the column offset, records keep their offsets, gaps included. Otherwise offsets
    are assigned in the order of the column in --order-by.

    Each partition is written atomically. A data directory that a running broker has locked is
    rejected. --append continues existing logs, and --overwrite replaces the logs of an earlier
    import.

    \b
    Exit codes:
      0   All records were written.
      2   Wrong usage, or a record cannot be written.
      3   Retriable failure: permission, disk, memory or cluster.
      70  Internal error.
    """,
    usage="--input PATH... --output DIR [OPTIONS]",
    examples="""\
kafka-index import --input /export/orders --output /var/kafka/data
kafka-index import --input events.parquet --output /tmp/logs --order-by event_time \\
    --property compression.type=zstd --property segment.bytes=104857600
kafka-index import --input /backup/topics --output /tmp/logs --layout confluent-s3 \\
    --layout-property value.converter=json
""",
    job_examples="""\
spark-submit jobs/import.py --input /mnt/export --output /mnt/logs
""",
)
