"""The request of ``export``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from kafka_index.core.job.request import (
    ChoiceKind,
    CommandSpec,
    FlagKind,
    Group,
    Moment,
    PathKind,
    TextKind,
    parameter,
)
from kafka_index.core.log.choices import Isolation
from kafka_index.core.parameters import (
    ColumnsKind,
    DecodeRequest,
    OffsetsKind,
    from_parameter,
    isolation_parameter,
    time_range_ms,
    to_parameter,
)


class ExportFormat(StrEnum):
    """The format of the data files, or the table format that they are committed to."""

    PARQUET = "parquet"
    JSONL = "jsonl"
    ICEBERG = "iceberg"
    DELTA = "delta"

    @property
    def is_table(self) -> bool:
        """Whether the data files are committed to a table."""
        return self in (ExportFormat.ICEBERG, ExportFormat.DELTA)

    @property
    def ending(self) -> str:
        """The ending of the names of data files."""
        return f".{(ExportFormat.PARQUET if self.is_table else self).value}"


class History(StrEnum):
    """Which records of a topic its table contains."""

    #: All records.
    FULL = "full"
    #: The newest record of each key of a partition, unless it is a tombstone.
    LATEST = "latest"


class OnDataLoss(StrEnum):
    """The action if a log no longer has the records that were exported."""

    #: The partition is not exported.
    FAIL = "fail"
    #: The partition is exported from the last common offset, or from the log start offset.
    CONTINUE = "continue"
    #: The partition is exported again to a staging directory, whose files finally replace the data
    #: files.
    RESTART = "restart"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest(DecodeRequest):
    """Parameters of an export."""

    output: str | None = parameter(
        PathKind(),
        Group.OUTPUT,
        "Output folder or URI. With --format iceberg, the default is a folder in the warehouse of "
        "the catalog.",
        default=None,
    )
    format: ExportFormat = parameter(
        ChoiceKind(ExportFormat),
        Group.OUTPUT,
        "Format of the data files, or of a table for each topic. Parquet is compressed with zstd.",
        default=ExportFormat.PARQUET,
    )
    catalog: str | None = parameter(
        PathKind("NAME|URI"),
        Group.OUTPUT,
        "Iceberg catalog: its name in pyiceberg's configuration, or its URI, such as "
        "sqlite:////lake/catalog.db or https://HOST/api.",
        default=None,
    )
    namespace: str | None = parameter(
        TextKind("NAME"),
        Group.OUTPUT,
        "Namespace of the tables in the Iceberg catalog. Its levels are separated by dots.",
        default=None,
    )
    history: History = parameter(
        ChoiceKind(History),
        Group.OUTPUT,
        "Records in a table: all records, or only the newest record of each key without deleted "
        "keys.",
        default=History.FULL,
    )
    offsets: Mapping[str, Mapping[int, int]] | None = parameter(
        OffsetsKind(),
        Group.SELECTION,
        "First offset of each partition. FILE contains Spark's startingOffsets, or lines of "
        "topic,partition,offset as `lookup` writes.",
        default=None,
    )
    from_time: Moment | None = from_parameter()
    to_time: Moment | None = to_parameter()
    columns: tuple[str, ...] | None = parameter(
        ColumnsKind(),
        Group.OUTPUT,
        "Columns, separated by commas.  [default: the columns of Spark's Kafka source]",
        default=None,
    )
    isolation: Isolation = isolation_parameter()
    by_date: bool = parameter(
        FlagKind(),
        Group.OUTPUT,
        "Write a folder date=YYYY-MM-DD for each day, in UTC.",
        default=False,
    )
    on_data_loss: OnDataLoss = parameter(
        ChoiceKind(OnDataLoss),
        Group.BEHAVIOUR,
        "What to do if the log no longer matches the earlier export: fail, continue from the last "
        "common offset, or export again.",
        default=OnDataLoss.FAIL,
    )

    def __post_init__(self) -> None:
        super(ExportRequest, self).__post_init__()
        time_range_ms(self.from_time, self.to_time)
        if self.format is ExportFormat.ICEBERG:
            if self.catalog is None or not self.namespace:
                self.refuse("{format} iceberg requires {catalog} and {namespace}")
        elif self.catalog is not None or self.namespace is not None:
            self.refuse("{catalog} and {namespace} require {format} iceberg")
        elif self.output is None:
            self.refuse("{output} is required")
        if self.history is History.LATEST and not self.format.is_table:
            self.refuse("{history} latest requires {format} iceberg or delta")

    @property
    def relative_times(self) -> dict[str, str]:
        """The bounds that are relative to now, as given; the keys are ``from_ms`` and ``to_ms``."""
        bounds = {"from_ms": self.from_time, "to_ms": self.to_time}
        return {
            name: str(moment.given)
            for name, moment in bounds.items()
            if moment is not None and moment.is_relative
        }


EXPORT = CommandSpec(
    "export",
    ExportRequest,
    work="commands.export.export_job:export",
    help="""Export the records of the logs at PATH to Parquet, JSON lines, Iceberg or Delta tables.

    PATH is a data directory of a broker, a topic-partition directory, or a glob of either. It may
    be a URI. `--tiered` adds remote segments, or reads only those if --input is omitted. Logs are
    opened read-only.

    Files are written to OUTPUT/topic=NAME/partition=N/. Their names are the first and last offset
    that they contain. A second run exports only new records. With --decode, keys or values become
    columns with the types of their schemas. --on-data-loss applies if the log lost
    records before they were exported, or if its history changed.

    With --format iceberg or delta, OUTPUT/NAME is the table of a topic. Each run commits its
    complete files, and the complete files of killed runs. With --history latest, a table has the
    newest record of each key. A tombstone deletes the row of its key.

    \b
    Exit codes:
      0   Everything was exported.
      1   Corrupt batches were skipped. The summary and the report list them,
          and the next run reads them again. Or keys or values did not decode.
      2   Wrong usage, no input was found, or a table rejected its files.
      3   Retriable failure: permission, disk, memory, network or cluster.
      70  Internal error.
    """,
    usage="--input PATH... --output PATH [OPTIONS]",
    examples="""\
kafka-index export --input /dump/broker-1 --output /lake/kafka
kafka-index export --input /dump/broker-1 --topics 'orders.*' --from 2024-05-01 \\
    --to 2024-06-01 --by-date --output s3://lake/orders
kafka-index export --input /dump/broker-1 --topics orders --decode value --output typed
kafka-index export --input /dump/broker-1 --format jsonl --columns offset,key,value \\
    --isolation read_committed --output records
kafka-index export --input /dump/broker-1 --format delta --output s3://lake/delta
kafka-index export --input /dump/broker-1 --format iceberg --catalog prod --namespace kafka
kafka-index export --input /dump/broker-1 --topics customers --format delta --history latest \\
    --output s3://lake/customers
""",
    job_examples="""\
spark-submit jobs/export.py --input /mnt/dump/broker-1 --output s3://lake/kafka
""",
    report="commands.export.result:EXPORT_REPORT",
    report_rows="a row for each partition",
)
