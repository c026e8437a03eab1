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
    """Parameters of a prediction."""

    inputs: tuple[str, ...] = parameter(
        PathsKind("DIR"),
        Group.INPUT,
        "All data directories of one broker, on a local disk.",
        "--input",
        default=(),
    )
    metadata: str | None = parameter(
        PathKind("DIR"), Group.INPUT, "The metadata log directory.", default=None
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
        "A restore report. The offsets that it lists as lost are not predicted as losses.",
        default=None,
    )
    max_decompressed_bytes: int = max_decompressed_parameter()

    def __post_init__(self) -> None:
        if not self.inputs:
            self.refuse("no input: give {inputs}, all data directories of one broker")


PREDICT = CommandSpec(
    "predict",
    PredictRequest,
    work="commands.predict.job:predict",
    help="""Predict what a broker of Kafka 4.3.1 does to its log directories when it starts.

    Nothing is written. A directory that a running broker has locked is refused.

    Give all data directories of the broker. Each partition is loaded as the broker loads it. The
    prediction has the segments that are kept, rebuilt, truncated, deleted or replaced, the log
    start and log end before and after, and the records that are lost or hidden, with their offsets
    and times. With --metadata, a metadata log directory, stray and missing partitions are found,
    and the settings of topics apply. The conclusion then has the number of segments that retention
    deletes 30 seconds after the start.

    The conclusion begins with the verdict: safe, loses, does_not_serve (it starts, but a partition
    is stray or cannot be read to its end), does_not_start, or unknown. It lists what was not
    judged. Without --metadata, the metadata log is that of metadata.log.dir in --config, or the one
    in the directories, if any.

    Exit codes: 0, safe; 1, any other verdict; 2, wrong usage, or a running broker; 3, a file cannot
    be read because of permission, disk or memory; 70, an internal error.
    """,
    usage="--input DIR... [OPTIONS]",
    examples="""\
kafka-index predict --input /var/kafka/data-1 /var/kafka/data-2 --metadata /var/kafka/metadata
kafka-index predict --input /restored/data --config server.properties --json
""",
    report="commands.predict.result:PREDICT_REPORT",
    report_rows="a row for each segment",
    has_page=True,
    has_json=True,
    has_engine=False,
)
