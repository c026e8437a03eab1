"""The request of ``rewrite``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kafka_index.core.job.request import (
    CommandSpec,
    FlagKind,
    Group,
    PathKind,
    TextKind,
    parameter,
)
from kafka_index.core.log.choices import DecodeErrors
from kafka_index.core.parameters import (
    DecodeFields,
    KafkaSettings,
    KeysKind,
    LocalFolderKind,
    LogRequest,
    config_parameter,
    decode_errors_parameter,
    format_topics,
    max_decompressed_parameter,
    topics_parameter,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteRequest(DecodeFields, LogRequest):
    """Parameters of a rewrite. If `output` is None, the rewrite is a dry run."""

    output: str | None = parameter(
        LocalFolderKind(),
        Group.OUTPUT,
        "Output folder. It must be empty, or contain an unfinished rewrite.",
        default=None,
    )
    drop_keys: tuple[bytes, ...] | None = parameter(
        KeysKind(),
        Group.SELECTION,
        "Drop records with these keys. FILE has one key per line, as text, hex: or base64:.",
        default=None,
    )
    drop_where: str | None = parameter(
        TextKind("EXPR"),
        Group.SELECTION,
        "Drop records that satisfy the condition EXPR. With --decode, it may compare members such "
        "as value.customer.id.",
        default=None,
    )
    topics: Any = topics_parameter()
    config: KafkaSettings = config_parameter()
    dry_run: bool = parameter(
        FlagKind(), Group.OUTPUT, "Write nothing; only count the records to drop.", default=False
    )
    overwrite: bool = parameter(
        FlagKind(),
        Group.BEHAVIOUR,
        "Write the output even if no record matches, or if every record matches.",
        "--overwrite",
        "--force",
        default=False,
    )
    metadata: str | None = parameter(
        PathKind("DIR"),
        Group.INPUT,
        "Directory of the metadata log, which shows which topics are compacted.",
        default=None,
    )
    allow_revive: bool = parameter(
        FlagKind(),
        Group.BEHAVIOUR,
        "Drop the newest record of a key even if an older record of the key reappears.",
        default=False,
    )
    max_decompressed_bytes: int = max_decompressed_parameter()
    decode_errors: DecodeErrors = decode_errors_parameter(
        "Skip a partition with a record that does not decode, or keep such records.",
        DecodeErrors.FAIL,
    )

    def __post_init__(self) -> None:
        super(RewriteRequest, self).__post_init__()
        if self.decode is not None and self.drop_where is None:
            self.refuse("{decode} requires {drop_where}")
        if self.drop_where is not None and self.decode is None:
            from kafka_index.core.log.filter.selection import Condition  # noqa: PLC0415, slow to import

            Condition.parse(self.drop_where)
        if (self.drop_keys is None) == (self.drop_where is None):
            self.refuse("give either {drop_keys} or {drop_where}")
        if (self.output is None) != self.dry_run:
            self.refuse("give either {output} or {dry_run}")

    @property
    def of_topics(self) -> str:
        """The restriction to some topics, in words; empty for the complete input."""
        return format_topics(self.topics)


_EXAMPLES = """\
kafka-index rewrite --input /dump/broker-1 --output /clean --drop-keys keys.txt
kafka-index rewrite --input /dump/broker-1 --dry-run \\
    --drop-where "topic = 'orders' AND header('tenant') = 'acme'"
kafka-index rewrite --input /dump/broker-1 --output /clean --topics orders --decode value \\
    --drop-where "value.customer.id = 'c-17'"
"""
REWRITE = CommandSpec(
    "rewrite",
    RewriteRequest,
    work="commands.rewrite.job:rewrite",
    help="""Copy log directories without selected records. All other records keep their offsets.

    Records are selected by key, or by a condition over topic, partition, offset, timestamp, key and
    header('NAME'). Batches that lose no record are copied byte for byte. Other batches are encoded
    again, as the log cleaner does. Control records, transactions and producers are kept. All index
    files, snapshots and leader epochs are rebuilt. Internal topics are copied unchanged.

    The input is never changed. Damaged partitions are skipped. --dry-run prints how many records
    would be dropped.

    \b
    Exit codes:
      0   All partitions were rewritten.
      1   A partition is damaged, and was skipped.
      2   Wrong usage; or no record matches, every record matches, or an
          older record of a key would reappear.
      3   Retriable failure: permission, disk, memory or cluster.
      70  Internal error.
    """,
    usage="(--input PATH... | --tiered URI) (--output DIR | --dry-run) "
    "(--drop-keys FILE | --drop-where EXPR)",
    examples=_EXAMPLES,
    job_examples=_EXAMPLES,
    report="commands.rewrite.result:REWRITE_REPORT",
    report_rows="a row per partition",
)
