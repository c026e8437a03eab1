"""The request of ``build``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.fs.uris import select_remote
from kafka_index.core.job.request import (
    TIME_HELP,
    ChoiceKind,
    ChoicesKind,
    CommandSpec,
    FlagKind,
    Group,
    IntegerKind,
    Moment,
    OffKind,
    PathKind,
    TimeKind,
    parameter,
)
from kafka_index.core.log.choices import BuildOutput
from kafka_index.core.parameters import (
    KafkaSettings,
    LogRequest,
    config_parameter,
    topics_parameter,
)


class InputFormat(StrEnum):
    """The format of the input."""

    #: Parquet if all input paths are Parquet files or folders with Parquet files, otherwise logs.
    AUTO = "auto"
    LOG = "log"
    PARQUET = "parquet"


class RowKind(StrEnum):
    """What a report row is about."""

    SEGMENT = "segment"
    PARTITION = "partition"
    #: An input entry that a broker would not load.
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest(LogRequest):
    """Parameters of a build; with neither `output` nor `in_place`, a dry run."""

    output: str | None = parameter(
        PathKind(),
        Group.OUTPUT,
        "Write the files to this folder, with a folder for each partition.",
        default=None,
    )
    in_place: bool = parameter(
        FlagKind(),
        Group.OUTPUT,
        "Write the files next to the logs. Rejected while a broker has locked the directory.",
        default=False,
    )
    format: InputFormat = parameter(
        ChoiceKind(InputFormat), Group.INPUT, "Format of the input.", default=InputFormat.AUTO
    )
    topics: Any = topics_parameter()
    what: frozenset[BuildOutput] | None = parameter(
        ChoicesKind(BuildOutput),
        Group.SELECTION,
        f"Files to build, separated by commas: {', '.join(BuildOutput)}.  [default: all; from "
        "Parquet, all files that the columns allow]",
        default=None,
    )
    config: KafkaSettings = config_parameter(
        index_size_max_bytes=(
            IntegerKind(4, INT32_MAX),
            "Maximum size of an index file. Overrides --config.  [default: 10485760]",
        )
    )
    expire_producers_at: Moment | None = parameter(
        TimeKind(),
        Group.BEHAVIOUR,
        f"Drop producers that would have expired by TIME (producer.id.expiration.ms). {TIME_HELP}",
        default=None,
    )
    verify_crc: bool = parameter(
        OffKind(),
        Group.BEHAVIOUR,
        "Read batch headers only. Much faster, but corrupt records are not detected.",
        "--no-verify-crc",
        default=True,
    )
    overwrite: bool = parameter(
        FlagKind(),
        Group.OUTPUT,
        "Build every segment, even if its files are correct.",
        "--overwrite",
        "--force",
        default=False,
    )
    dry_run: bool = parameter(
        FlagKind(),
        Group.OUTPUT,
        "Write nothing; only print the segments that would be checked.",
        default=False,
    )
    report_rows: frozenset[RowKind] = parameter(
        ChoicesKind(RowKind),
        Group.OUTPUT,
        f"The rows of the report, separated by commas: {', '.join(RowKind)}.  [default: segment]",
        default=frozenset((RowKind.SEGMENT,)),
    )
    fail_fast: bool = parameter(
        FlagKind(), Group.BEHAVIOUR, "Stop at the first segment that fails.", default=False
    )

    def __post_init__(self) -> None:
        super(BuildRequest, self).__post_init__()
        if self.output and self.in_place:
            self.refuse("{output} and {in_place} are mutually exclusive")
        if not (self.output or self.in_place or self.dry_run):
            self.refuse("no output: give {output} or {in_place}")
        if self.tiered and (self.in_place or self.format is InputFormat.PARQUET):
            conflicting_option = "{in_place}" if self.in_place else "{format} parquet"
            self.refuse(f"{{tiered}} and {conflicting_option} are mutually exclusive")
        if not self.in_place:
            return
        remote = select_remote(self.inputs)
        if remote:
            self.refuse(
                f"{{in_place}} requires logs on a local disk, but {remote[0]} is in a store: give "
                "{output}"
            )
        outputs = self.what or frozenset()
        if BuildOutput.INDEX in outputs and BuildOutput.TIME_INDEX not in outputs:
            self.refuse(
                "{in_place} cannot build index without timeindex, because a broker would create an "
                "empty .timeindex"
            )


BUILD = CommandSpec(
    "build",
    BuildRequest,
    work="commands.build.job:build",
    spark_work="spark.indexes:build",
    help="""Rebuild the files that a broker keeps next to its logs, for every segment at PATH.

    These files are the offset, time and transaction indexes, the producer snapshots, and the leader
    epoch checkpoint.

    PATH is a data directory of a broker, a topic-partition directory, or a glob of directories.
    Several paths can be given: `--input A --input B`, `--input A B` or `--input dump/*`. With
    `--format parquet`, PATH is a Parquet file or a folder of Parquet files. Logs are opened
    read-only.

    \b
    Exit codes:
      0   Every segment was built, or was already correct.
      1   A segment is damaged. The summary and the report list it.
      2   Wrong usage, or nothing was found.
      3   Retriable failure: permission, disk, memory, network or cluster.
      70  Internal error.
    """,
    usage="(--input PATH... | --tiered URI) (--output PATH | --in-place) [OPTIONS]",
    examples="""\
kafka-index build --input /dump/broker-1 --output /tmp/indexes
kafka-index build --input /dump/* --output /tmp/indexes --topics 'orders|payments'
kafka-index build --input /var/kafka/orders-0 --in-place --config server.properties
kafka-index build --input /dump/broker-1 --output /tmp/indexes \\
    --engine spark --master 'local[8]' --report report.parquet
kafka-index build --input /dump/broker-1 --dry-run
""",
    job_examples="""\
spark-submit jobs/build_index.py --input /dump/broker-1 --output /indexes
spark-submit --master spark://host:7077 jobs/build_index.py \\
    --input /mnt/dump/* --output /mnt/indexes --report /mnt/report.parquet
""",
    report="commands.build.result:BUILD_REPORT",
    report_rows="a row for each segment",
    has_page=True,
)
