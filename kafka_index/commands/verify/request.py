"""The request of ``verify``."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from kafka_index.core.job.request import (
    TIME_HELP,
    CommandSpec,
    FlagKind,
    Group,
    Moment,
    PathKind,
    PathsKind,
    TimeKind,
    parameter,
)
from kafka_index.core.parameters import (
    DEFAULT_SETTINGS,
    INDEX_INTERVAL,
    KafkaSettings,
    LogRequest,
    SettingsKind,
    topics_parameter,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRequest(LogRequest):
    """Parameters of a verification; with `against`, of a comparison of two copies."""

    indexes: str | None = parameter(
        PathKind(),
        Group.INPUT,
        "Verify the index files in this folder, as `build --output` writes it.  "
        "[default: those next to the logs]",
        default=None,
    )
    metadata: str | None = parameter(
        PathKind("DIR"),
        Group.INPUT,
        "The metadata log directory, for topic ids and the topics that are compacted.  "
        "[default: the one in the input, if any]",
        default=None,
    )
    against: tuple[str, ...] = parameter(
        PathsKind(takes_more=False),
        Group.INPUT,
        "Compare the batches with those of another copy; may be repeated.",
        default=(),
    )
    topics: re.Pattern[str] | None = topics_parameter()
    fast: bool = parameter(
        FlagKind(),
        Group.BEHAVIOUR,
        "Read batch headers only. Much faster, but corrupt records are not found.",
        default=False,
    )
    config: KafkaSettings = parameter(
        SettingsKind(index_interval_bytes=INDEX_INTERVAL),
        Group.SETTINGS,
        "Kafka settings, such as a broker's server.properties; "
        "topic.NAME.index.interval.bytes overrides one topic.",
        default=DEFAULT_SETTINGS,
    )
    now: Moment | None = parameter(
        TimeKind(),
        Group.BEHAVIOUR,
        "The time at which a broker would start, which decides the producers that have expired.  "
        f"[default: now] {TIME_HELP}",
        default=None,
    )

    def __post_init__(self) -> None:
        super(VerifyRequest, self).__post_init__()
        for name in ("indexes", "fast"):
            if self.against and getattr(self, name):
                self.refuse(f"{{against}} and {{{name}}} exclude each other")

    @property
    def next_command(self) -> str:
        """The command to run if something harmful was found."""
        tiered = () if self.tiered is None else self.tiered.uris
        inputs = [f"--input {shlex.join(self.inputs)}"] if self.inputs else []
        inputs += [f"--tiered {shlex.quote(uri)}" for uri in tiered]
        if self.against:
            copies = (" ".join(inputs), f"--input {shlex.join(self.against)}")
            return "; ".join(f"kafka-index verify {each}" for each in copies)
        return f"kafka-index restore {' '.join(inputs)} --output NEW_DIRECTORY --salvage batches"


VERIFY = CommandSpec(
    "verify",
    VerifyRequest,
    work="commands.verify.job:verify",
    help="""Compare every file of the dump below PATH with its correct content; nothing is changed.

    PATH is a data directory of a broker, a topic-partition directory, or a glob of either, or the
    URI of one. Each log is read once. Logs, indexes, producer snapshots, leader epochs, and the
    files in the root of the data directory are compared with the files that `build` would write. A
    file with other, but correct bytes is equivalent. A file is harmful if a broker that starts on
    it would lose or hide records, answer wrongly, or not start; the report states the effect.

    `--fast` reads the headers of batches only: a wrong checksum is not found. With `--against`
    the files are not verified: the batches of two copies of the same partitions are compared.

    Exit codes: 0, nothing is harmful; 1, something is; 2, wrong usage, or nothing was found; 3, a
    failure of permission, disk, memory, network or cluster, or a file that changed while it was
    read: retriable; 70, an internal error.
    """,
    usage="(--input PATH... | --tiered URI) [OPTIONS]",
    examples="""\
kafka-index verify --input /dump/broker-1 --report verify.parquet
kafka-index verify --input /dump/* --topics 'orders|payments' --fast
kafka-index verify --input /dump/broker-1 --against /dump/broker-2
kafka-index verify --input s3://backup/broker-1 --engine spark --master 'local[8]'
""",
    job_examples="""\
spark-submit jobs/verify.py --input /mnt/dump/* --report /mnt/verify.parquet
""",
    report="commands.verify.result:VERIFY_REPORT",
    report_rows="a row for each file and partition",
    has_page=True,
)
