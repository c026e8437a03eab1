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
    parameter,
)
from kafka_index.core.parameters import (
    ColumnsKind,
    OffsetsKind,
    RecordRequest,
    from_parameter,
    time_range_ms,
    to_parameter,
)
from kafka_index.core.query.choices import Isolation, isolation_parameter


class ExportFormat(StrEnum):
    """The format of the data files."""

    PARQUET = "parquet"
    JSONL = "jsonl"

    @property
    def ending(self) -> str:
        """The ending of their names."""
        return f".{self.value}"


class OnDataLoss(StrEnum):
    """The action if a log no longer has the records that were exported."""

    #: The partition is not exported.
    FAIL = "fail"
    #: It is exported from the last common offset, or from the log start offset.
    CONTINUE = "continue"
    #: It is exported again, to a staging directory that replaces the existing files at the end.
    RESTART = "restart"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest(RecordRequest):
    """Parameters of an export."""

    output: str = parameter(PathKind(), Group.OUTPUT, "Output folder, or its URI.")
    format: ExportFormat = parameter(
        ChoiceKind(ExportFormat),
        Group.OUTPUT,
        "Format of the files. Parquet is compressed with zstd.",
        default=ExportFormat.PARQUET,
    )
    offsets: Mapping[str, Mapping[int, int]] | None = parameter(
        OffsetsKind(),
        Group.SELECTION,
        "First offset of each partition. FILE has Spark's startingOffsets, or lines of "
        "topic,partition,offset, as `lookup` writes them.",
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

    @property
    def relative_times(self) -> dict[str, str]:
        """The bounds that are relative to now, as they were given, by ``from_ms`` and ``to_ms``."""
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
    help="""Export the records of the logs at PATH to Parquet or JSON lines.

    PATH is a data directory of a broker, a topic-partition directory, or a glob of either. It may
    be a URI. `--tiered` adds remote segments, or reads only those if --input is omitted. Logs are
    opened read-only.

    Files are written to OUTPUT/topic=NAME/partition=N/. Their names are the first and last offset
    that they contain. A second run exports only new records. --on-data-loss applies if the log lost
    records before they were exported, or if its history changed.

    \b
    Exit codes:
      0   Everything was exported.
      1   Corrupt batches were skipped. The summary and the report list them,
          and the next run reads them again.
      2   Wrong usage, or nothing was found.
      3   Retriable failure: permission, disk, memory, network or cluster.
      70  Internal error.
    """,
    usage="--input PATH... --output PATH [OPTIONS]",
    examples="""\
kafka-index export --input /dump/broker-1 --output /lake/kafka
kafka-index export --input /dump/broker-1 --topics 'orders.*' --from 2024-05-01 \\
    --to 2024-06-01 --by-date --output s3://lake/orders
kafka-index export --input /dump/broker-1 --format jsonl --columns offset,key,value \\
    --isolation read_committed --output records
""",
    job_examples="""\
spark-submit jobs/export.py --input /mnt/dump/broker-1 --output s3://lake/kafka
""",
    report="commands.export.result:EXPORT_REPORT",
    report_rows="a row for each partition",
)
