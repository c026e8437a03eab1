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
    KafkaSettings,
    LogRequest,
    config_parameter,
    topics_parameter,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRequest(LogRequest):
    """Parameters of ``verify``; if `against` is given, two copies are compared instead."""

    indexes: str | None = parameter(
        PathKind(),
        Group.INPUT,
        "Verify the index files in this folder, which `build --output` wrote.  [default: next to "
        "the logs]",
        default=None,
    )
    metadata: str | None = parameter(
        PathKind("DIR"),
        Group.INPUT,
        "Metadata log directory, for topic IDs and cleanup policies.  [default: the metadata log "
        "in the input, if any]",
        default=None,
    )
    against: tuple[str, ...] = parameter(
        PathsKind(takes_more=False),
        Group.INPUT,
        "Compare the batches with another copy of the same partitions. May be repeated.",
        default=(),
    )
    topics: re.Pattern[str] | None = topics_parameter()
    fast: bool = parameter(
        FlagKind(),
        Group.BEHAVIOUR,
        "Read batch headers only. Much faster, but corrupt records are not detected.",
        default=False,
    )
    config: KafkaSettings = config_parameter()
    now: Moment | None = parameter(
        TimeKind(),
        Group.BEHAVIOUR,
        "Startup time of the broker, which determines the expired producers.  [default: now] "
        f"{TIME_HELP}",
        default=None,
    )

    def __post_init__(self) -> None:
        super(VerifyRequest, self).__post_init__()
        for name in ("indexes", "fast"):
            if self.against and getattr(self, name):
                self.refuse(f"{{against}} and {{{name}}} are mutually exclusive")

    @property
    def next_command(self) -> str:
        """The command to run if a file, or a difference of two copies, is harmful."""
        tiered = () if self.tiered is None else self.tiered.uris
        inputs = [f"--input {shlex.join(self.inputs)}"] if self.inputs else []
        inputs += [f"--tiered {shlex.quote(uri)}" for uri in tiered]
        if self.against:
            input_options = (" ".join(inputs), f"--input {shlex.join(self.against)}")
            return "; ".join(f"kafka-index verify {copy_inputs}" for copy_inputs in input_options)
        return f"kafka-index restore {' '.join(inputs)} --output NEW_DIRECTORY --salvage batches"


VERIFY = CommandSpec(
    "verify",
    VerifyRequest,
    work="commands.verify.job:verify",
    help="""Compare every file of the log directories at PATH with its correct content.

    PATH is a data directory of a broker, a topic-partition directory, or a glob of either. It may
    be a URI. Logs, indexes, producer snapshots, leader epochs and the files in the root of the data
    directory are checked. Each log is read once, and no file is changed.

    A file is identical if it has the bytes that `build` would write. A file is equivalent if its
    bytes differ, but are also correct. A file is harmful if a broker would lose records, make
    records unreadable, return wrong results, or not start. The report has the effect of each
    harmful file.

    `--fast` reads batch headers only, and does not verify checksums. `--against` compares the
    batches of two copies instead of verifying files.

    \b
    Exit codes:
      0   No file is harmful.
      1   A file is harmful, or an entry of the input was not read.
      2   Wrong usage, or nothing was found.
      3   Retriable failure: permission, disk, memory, network or cluster,
          or a file changed while it was read.
      70  Internal error.
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
