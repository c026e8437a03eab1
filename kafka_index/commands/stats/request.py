"""The request of ``stats``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kafka_index.core.job.request import (
    ChoiceKind,
    CommandSpec,
    FlagKind,
    Group,
    IntegerKind,
    Moment,
    TimeKind,
    parameter,
)
from kafka_index.core.parameters import (
    LogRequest,
    max_decompressed_parameter,
    time_range_ms,
    topics_parameter,
)

_MAX_HOT_KEYS = 10_000


class StatsBy(StrEnum):
    """What a row of the statistics counts."""

    #: A topic, and its replicas at each broker if the input has several brokers.
    TOPIC = "topic"
    #: A replica of a partition.
    PARTITION = "partition"
    #: A topic in a day or an hour, in UTC.
    DAY = "day"
    HOUR = "hour"

    @property
    def milliseconds(self) -> int:
        """The length of the day or hour, 0 for topics and partitions."""
        return {StatsBy.DAY: 86_400_000, StatsBy.HOUR: 3_600_000}.get(self, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsRequest(LogRequest):
    """Parameters of statistics."""

    topics: Any = topics_parameter()
    from_time: Moment | None = parameter(
        TimeKind(),
        Group.SELECTION,
        "Only batches whose largest timestamp is at or after TIME.",
        "--from",
        default=None,
    )
    to_time: Moment | None = parameter(
        TimeKind(),
        Group.SELECTION,
        "Only batches whose largest timestamp is before TIME.",
        "--to",
        default=None,
    )
    by: StatsBy = parameter(
        ChoiceKind(StatsBy),
        Group.OUTPUT,
        "Rows: topics, replicas of partitions, or topics in each day or hour (UTC) of the largest "
        "timestamp of a batch.",
        default=StatsBy.TOPIC,
    )
    sizes: bool = parameter(
        FlagKind(),
        Group.OUTPUT,
        "Also read the records: sizes of keys and values, compression ratio, null keys, "
        "tombstones, schema IDs.",
        default=False,
    )
    keys: int | None = parameter(
        IntegerKind(1, _MAX_HOT_KEYS),
        Group.OUTPUT,
        "Also read the keys: the number of distinct keys, and the N most frequent keys.",
        default=None,
    )
    retention_ms: int | None = parameter(
        IntegerKind(-1),
        Group.SETTINGS,
        "Predict the remaining records and bytes if retention.ms is N.",
        default=None,
    )
    retention_bytes: int | None = parameter(
        IntegerKind(-1),
        Group.SETTINGS,
        "Predict the remaining records and bytes if retention.bytes is N.",
        default=None,
    )
    compact: bool = parameter(
        FlagKind(),
        Group.SETTINGS,
        "Predict the remaining records and bytes if the topics are compacted now.",
        default=False,
    )
    max_decompressed_bytes: int = max_decompressed_parameter()

    def __post_init__(self) -> None:
        super(StatsRequest, self).__post_init__()
        time_range_ms(self.from_time, self.to_time)
        limits = [
            name for name in ("retention_ms", "retention_bytes") if getattr(self, name) is not None
        ]
        if not (limits or self.compact):
            return
        what_if = limits[0] if limits else "compact"
        if limits and self.compact:
            self.refuse(f"{{compact}} and {{{what_if}}} are mutually exclusive")
        if self.from_time is not None or self.to_time is not None:
            bound = "from_time" if self.from_time is not None else "to_time"
            self.refuse(f"{{{what_if}}} and {{{bound}}} are mutually exclusive")
        if self.by.milliseconds:
            self.refuse(f"{{by}} must be topic or partition if {{{what_if}}} is given")


STATS = CommandSpec(
    "stats",
    StatsRequest,
    work="commands.stats.stats_job:count",
    help="""Count the records and bytes of the logs at PATH, by topic, partition, day or hour.

    PATH is a data directory of a broker, a topic-partition directory, or a glob of either. It may
    be a URI. Logs are opened read-only. --tiered adds remote segments. Without --input, only remote
    segments are read.

    Only batch headers are read: records, bytes, batches, codecs, times, transactions, producers.
    --sizes, --keys and --compact read the records, and verify checksums. A partition may be in
    several directories: totals of a topic count one replica of it.

    \b
    Exit codes:
      0   All selected batches were counted.
      1   Corrupt ranges were skipped, or offsets are missing.
      2   Wrong usage, or nothing was found.
      3   Retriable failure: permission, disk, memory, network or cluster.
      70  Internal error.
    """,
    usage="--input PATH... [OPTIONS]",
    examples="""\
kafka-index stats --input /dump/broker-1
kafka-index stats --input /dump/* --topics 'orders.*' --by hour --from yesterday \\
    --report orders.html
kafka-index stats --input /dump/broker-1 --sizes --keys 20
kafka-index stats --input /dump/* --retention-ms 86400000
""",
    job_examples="""\
spark-submit jobs/stats.py --input s3://dumps/broker-1 --by day --report stats.parquet
""",
    report="commands.stats.result:STATS_REPORT",
    report_rows="a row for each topic, replica, day or hour",
    has_page=True,
)
