"""The result of a rewrite: a row per partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import pyarrow as pa

from kafka_index.core.errors import plural
from kafka_index.core.job.result import (
    BAD,
    GOOD,
    NOTABLE,
    Conclusion,
    MissingOffsets,
    ReportSpec,
    Result,
    RunOutcome,
    Section,
    Status,
    report_schema,
    report_table,
)
from kafka_index.core.log.filter.selection import key_counts, key_sections

REWRITE_REPORT_SCHEMA = report_schema(
    [("records", pa.int64()), ("dropped", pa.int64()), ("missing_ranges", pa.int64())],
    required=("topic", "partition", "status", "missing_ranges"),
)
REWRITE_REPORT = ReportSpec(REWRITE_REPORT_SCHEMA)


class RewriteStatus(StrEnum):
    """The outcome of the rewrite of a partition."""

    #: A dry run has counted the records to drop.
    MATCHED = "matched"
    #: The output has the partition without the dropped records.
    REWRITTEN = "rewritten"
    #: The output has a copy of this partition of an internal topic.
    COPIED = "copied"
    #: The output lacks the partition: it is corrupt, or cannot be read or written.
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class RewrittenPartition:
    """A partition of a rewrite: a row of its report.

    Parameters
    ----------
    topic, partition : str, int
        The partition.
    records, dropped : int or None
        The number of records, and of dropped records; None if they were not counted.
    status : RewriteStatus
        The outcome.
    reason : str or None
        Why the partition is skipped; otherwise its first lost offsets, or a note.
    is_retriable : bool
        Whether a partition was skipped because of the environment.
    missing_offsets : MissingOffsets
        The missing offsets of the partition.
    """

    topic: str
    partition: int
    records: int | None
    dropped: int | None
    status: RewriteStatus
    reason: str | None = None
    is_retriable: bool = False
    missing_offsets: MissingOffsets = field(default_factory=MissingOffsets)

    @property
    def missing_ranges(self) -> int:
        """The number of ranges of missing offsets."""
        return self.missing_offsets.count


@dataclass(frozen=True, repr=False)
class RewriteResult(Result):
    """The result of `rewrite_dump`: a row per partition, as in ``rewrite --report``.

    Parameters
    ----------
    partitions : list of RewrittenPartition
        For each partition, the number of records and of dropped records, or why it was skipped.
    output : str or None
        The folder; None for a dry run.
    refusal : str or None
        Why a rewrite would be rejected, for a dry run.
    is_new : bool
        Whether this call wrote the output; False if an earlier call has finished it.
    of_topics : str
        The restriction to some topics, in words; empty for all topics.
    unread : tuple of str
        Input entries that were not read, with reasons.
    skipped : tuple of (str, str)
        Input entries that a broker would not load, with reasons.
    records_by_line : dict of int to int
        The number of records by line of the key file, from 1; empty for a condition.
    next_command : str or None
        The command that shows the corruption.
    """

    partitions: list[RewrittenPartition]
    output: str | None
    refusal: str | None = None
    is_new: bool = True
    of_topics: str = ""
    unread: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    records_by_line: Mapping[int, int] = field(default_factory=dict)
    next_command: str | None = None

    command = "rewrite"

    status_header = ("topic", "partitions", "records", "dropped")

    @property
    def headline(self) -> str:
        """The number of records and dropped records, and why a rewrite would be rejected."""
        counts = self.counts
        partitions = plural(counts["partitions"] - counts["partitions_skipped"], "partition")
        output = (
            "; nothing is written" if self.output is None else f"; {partitions} in {self.output}"
        )
        records = plural(counts["records"], "record")
        total = f"{counts['records_dropped']:,} of {records}{self.of_topics} dropped{output}"
        refusal = (
            f"the rewrite would be rejected: {self.refusal}; " if self.refusal is not None else ""
        )
        earlier_run = "" if self.is_new else ", finished by an earlier run"
        skipped_count = counts["partitions_skipped"]
        skipped = f"; {plural(skipped_count, 'partition')} skipped" if skipped_count else ""
        return f"{refusal}{total}{earlier_run}{skipped}"

    @property
    def conclusion(self) -> Conclusion:
        """The conclusion, notable if a rewrite would be rejected."""
        conclusion = super().conclusion
        if self.refusal is None:
            return conclusion
        return replace(conclusion, severity=max(conclusion.severity, NOTABLE))

    @property
    def statuses(self) -> list[Status]:
        """The topics that lose records; in a dry run all topics."""
        return [
            Status(topic, counts, GOOD, "")
            for topic, counts in self.by_topic.items()
            if counts[2] or self.output is None
        ]

    @property
    def sections(self) -> list[Section]:
        """Skipped partitions, notes, and records by line of the keys."""
        skipped = [f"{row.topic}-{row.partition}: {row.reason}" for row in self.skipped_partitions]
        notes = [
            row.reason
            for row in self.partitions
            if row.status is not RewriteStatus.SKIPPED
            and row.reason is not None
            and not row.missing_offsets.lost
        ]
        return [
            Section("notes:", notes, noun="note"),
            *key_sections(self.records_by_line),
            Section(f"{plural(len(skipped), 'partition')} skipped:", skipped, BAD),
        ]

    @property
    def skipped_partitions(self) -> list[RewrittenPartition]:
        """The partitions that are corrupt, or cannot be read or written."""
        return [row for row in self.partitions if row.status is RewriteStatus.SKIPPED]

    @property
    def outcome(self) -> RunOutcome:
        """Damage for skipped partitions, environment if a retry may succeed."""
        faults = (row.is_retriable for row in self.skipped_partitions)
        return RunOutcome.of_faults(faults).with_damage((*self.unread, *self.missing_offsets.lost))

    @property
    def missing_offsets(self) -> MissingOffsets:
        """The missing offsets of all partitions."""
        return MissingOffsets.joined(row.missing_offsets for row in self.partitions)

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of partitions, records, dropped records and skipped partitions."""
        return {
            **key_counts(self.records_by_line),
            "partitions": len(self.partitions),
            "records": sum(row.records or 0 for row in self.partitions),
            "records_dropped": sum(row.dropped or 0 for row in self.partitions),
            "partitions_skipped": len(self.skipped_partitions),
        }

    @property
    def by_topic(self) -> Mapping[str, tuple[int, int, int]]:
        """The numbers of partitions, records and dropped records of each topic."""
        topics: dict[str, tuple[int, int, int]] = {}
        for row in self.partitions:
            partitions, records, dropped = topics.get(row.topic, (0, 0, 0))
            topics[row.topic] = (
                partitions + 1,
                records + (row.records or 0),
                dropped + (row.dropped or 0),
            )
        return topics

    def to_arrow(self) -> pa.Table:
        """Return the rows of the report."""
        return report_table(self.partitions, REWRITE_REPORT_SCHEMA)
