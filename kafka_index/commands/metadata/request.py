"""The requests of ``metadata`` and of `list_partitions`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kafka_index.core.job.request import ChoiceKind, CommandSpec, Group, parameter
from kafka_index.core.parameters import (
    InputRequest,
    LogRequest,
    max_decompressed_parameter,
    topics_parameter,
)


class TableName(StrEnum):
    """The tables of Kafka's internal topics."""

    TOPICS = "topics"
    PARTITIONS = "partitions"
    BROKERS = "brokers"
    GROUPS = "groups"
    OFFSETS = "offsets"
    TRANSACTIONS = "transactions"
    PRODUCERS = "producers"
    REMOTE_SEGMENTS = "remote-segments"
    #: Committed offsets of groups, compared with the log ends.
    LAG = "lag"
    #: The lag at the time of each commit.
    LAG_HISTORY = "lag-history"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataRequest(InputRequest):
    """Parameters of a read of Kafka's internal topics."""

    what: TableName | None = parameter(
        ChoiceKind(TableName),
        Group.SELECTION,
        "Table to print.  [default: an overview]",
        default=None,
    )
    max_decompressed_bytes: int = max_decompressed_parameter()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsRequest(LogRequest):
    """Parameters of a list of partitions."""

    topics: Any = topics_parameter()


METADATA = CommandSpec(
    "metadata",
    MetadataRequest,
    work="commands.metadata.read_tables:read_tables",
    help="""Print the content of Kafka's internal topics: __cluster_metadata,
    __consumer_offsets, __transaction_state and __remote_log_metadata.

    PATH is a data directory of a broker, a metadata log directory, or a topic-partition directory.
    It may be repeated, also with --input. Files are opened read-only. The newest snapshot of
    __cluster_metadata is read first, then the log after it.

    Tables show the state after the last record in the files. Without --what, an overview is
    printed. lag compares the committed offsets of groups with the logs at PATH, and lag-history
    does so for every commit. Credentials are never printed, and sensitive configurations have the
    value [hidden].

    \b
    Exit codes:
      0   Everything was read.
      1   Records are corrupt or missing. The rest is printed, and stderr
          lists the errors.
      2   Wrong usage, or the topics are not in the input.
      3   Retriable failure: permission, disk or memory.
      70  Internal error.
    """,
    usage="PATH... [--what TABLE] [OPTIONS]",
    examples="""\
kafka-index metadata /var/kafka/data
kafka-index metadata /var/kafka/metadata --what topics
kafka-index metadata /var/kafka/data --what offsets --json
kafka-index metadata /var/kafka/data --what groups --output groups.parquet
kafka-index metadata /var/kafka/data --what lag
""",
    has_engine=False,
)
