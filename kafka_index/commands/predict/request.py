"""The request of ``predict``."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_index.core.job.request import (
    CommandSpec,
    Group,
    PathKind,
    PathsKind,
    Request,
    parameter,
)
from kafka_index.core.parameters import (
    DEFAULT_SETTINGS,
    KafkaSettings,
    SettingsKind,
    max_decompressed_parameter,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictRequest(Request):
    """Parameters of ``predict``."""

    inputs: tuple[str, ...] = parameter(
        PathsKind("DIR"),
        Group.INPUT,
        "All data directories of one broker, on local disks.",
        "--input",
        default=(),
    )
    metadata: str | None = parameter(
        PathKind("DIR"), Group.INPUT, "Metadata log directory.", default=None
    )
    config: KafkaSettings = parameter(
        SettingsKind(),
        Group.SETTINGS,
        "Kafka settings, such as the broker's server.properties.",
        default=DEFAULT_SETTINGS,
    )
    known_losses: str | None = parameter(
        PathKind("FILE"),
        Group.INPUT,
        "Report of a restore. Offsets with status lost in the report do not count as losses.",
        default=None,
    )
    max_decompressed_bytes: int = max_decompressed_parameter()

    def __post_init__(self) -> None:
        if not self.inputs:
            self.refuse("no input: give {inputs} with all data directories of one broker")


PREDICT = CommandSpec(
    "predict",
    PredictRequest,
    work="commands.predict.predict_job:predict",
    help="""Predict what a Kafka 4.3.1 broker does to its log directories at startup.

    Give all data directories of the broker. Partitions are loaded as the broker would load them,
    and nothing is written. A directory that a running broker has locked is rejected.

    The prediction lists the log start and end offset of each partition before and after startup. It
    lists the segments that are kept, rebuilt, truncated, deleted or replaced. It lists the records
    that are lost or become unreadable, with their offsets and times.

    `--metadata` is the metadata log directory. The prediction then includes stray partitions,
    missing partitions and topic settings. The conclusion then also counts the segments that
    retention deletes 30 seconds after startup. By default, the metadata log is in metadata.log.dir
    of --config, or in one of the data directories.

    \b
    The conclusion begins with the verdict, and lists what was not checked:
      safe            The broker starts and loses nothing.
      loses           The broker starts, but records are lost or unreadable.
      does_not_serve  The broker starts, but a partition is stray, or is not
                      readable up to its end.
      does_not_start  The broker does not start.
      unknown         A file was not read, or a fact is not known.

    \b
    Exit codes:
      0   The verdict is safe.
      1   Any other verdict.
      2   Wrong usage, or the broker is running.
      3   Retriable failure: permission, disk or memory.
      70  Internal error.
    """,
    usage="--input DIR... [OPTIONS]",
    examples="""\
kafka-index predict --input /var/kafka/data-1 /var/kafka/data-2 --metadata /var/kafka/metadata
kafka-index predict --input /restored/data --config server.properties --json
""",
    report="commands.predict.predict_job:PREDICT_REPORT",
    report_rows="a row for each segment",
    has_page=True,
    has_json=True,
    has_engine=False,
)
