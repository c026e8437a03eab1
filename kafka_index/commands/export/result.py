"""The results of an export, for each split, each partition (a row of the report), and the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import pyarrow as pa

from kafka_index.commands.export.export_state import ExportedBatch
from kafka_index.core.errors import KafkaIndexError, plural
from kafka_index.core.format.human import format_bytes, shown_path
from kafka_index.core.job.result import (
    BAD,
    GOOD,
    NOTABLE,
    MissingOffsets,
    ReportSpec,
    Result,
    RunOutcome,
    Section,
    Severity,
    Status,
    count_statuses,
    report_schema,
    report_table,
)
from kafka_index.core.log.missing_offsets import ScannedLog
from kafka_index.core.query.record_stream import decode_counts, decode_section

EXPORT_REPORT_SCHEMA = report_schema(
    [
        ("first_offset", pa.int64()),
        ("next_offset", pa.int64()),
        ("records", pa.int64()),
        ("files", pa.int64()),
        ("size_bytes", pa.int64()),
        ("skipped_ranges", pa.int64()),
        ("position_bytes", pa.int64()),
        ("missing_ranges", pa.int64()),
        ("decode_errors", pa.int64()),
        ("decode_error_codes", pa.string()),
    ],
    required=(
        "topic",
        "partition",
        "status",
        "records",
        "files",
        "size_bytes",
        "skipped_ranges",
        "missing_ranges",
        "decode_errors",
    ),
)
EXPORT_REPORT = ReportSpec(EXPORT_REPORT_SCHEMA)


class ExportStatus(StrEnum):
    """The outcome of the export of a partition."""

    #: The new offsets were exported, even if they contain no records.
    EXPORTED = "exported"
    #: There is no new offset.
    UNCHANGED = "unchanged"
    #: Records were exported, except for damaged or lost records.
    DAMAGED = "damaged"
    #: The partition was not exported to its end.
    FAILED = "failed"
    #: The export continued after the log had lost data (`OnDataLoss.CONTINUE`).
    CONTINUED = "continued"
    #: The partition was exported again from the start (`OnDataLoss.RESTART`).
    RESTARTED = "restarted"


_MEANINGS: Mapping[ExportStatus, tuple[Severity, str]] = {
    ExportStatus.EXPORTED: (GOOD, "new records were exported"),
    ExportStatus.UNCHANGED: (GOOD, "the log has no new offsets"),
    ExportStatus.DAMAGED: (NOTABLE, "records were exported, except corrupt ranges"),
    ExportStatus.FAILED: (BAD, "the export is incomplete"),
    ExportStatus.CONTINUED: (NOTABLE, "the export continued after the log lost data"),
    ExportStatus.RESTARTED: (NOTABLE, "the partition was exported again after the log lost data"),
}
_WITH_DATA_LOSS = (ExportStatus.FAILED, ExportStatus.CONTINUED, ExportStatus.RESTARTED)


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """A row of the report: the offsets and files of a partition that this run exported.

    Attributes
    ----------
    first_offset, next_offset : int, optional
        The offsets that this run exported, `next_offset` exclusive.
    skipped_ranges : int
        The number of skipped corrupt ranges.
    path, position_bytes, reason : optional
        The first corrupt range, or the failure.
    is_retriable : bool
        The environment caused the failure.
    missing_offsets : MissingOffsets
        Missing offsets within the range that this run exported.
    is_shorter : bool
        This export replaced a longer export.
    decode_counts : mapping of str to int
        The number of keys and values that did not decode, by error code.
    is_rejected : bool
        The files were not committed, because the table or the files cannot be used.
    """

    topic: str
    partition: int
    status: ExportStatus
    first_offset: int | None = None
    next_offset: int | None = None
    records: int = 0
    files: int = 0
    size_bytes: int = 0
    skipped_ranges: int = 0
    path: str | None = None
    position_bytes: int | None = None
    reason: str | None = None
    is_retriable: bool = False
    missing_offsets: MissingOffsets = field(default_factory=MissingOffsets)
    is_shorter: bool = False
    decode_counts: Mapping[str, int] = field(default_factory=dict)
    is_rejected: bool = False

    @property
    def decode_errors(self) -> int:
        """The number of keys and values that did not decode."""
        return sum(self.decode_counts.values())

    @property
    def decode_error_codes(self) -> str | None:
        """The number of keys and values that did not decode, keyed by error code."""
        counts = sorted(self.decode_counts.items())
        return ", ".join(f"{code}: {count}" for code, count in counts) or None

    @property
    def missing_ranges(self) -> int:
        """The number of ranges of missing offsets."""
        return self.missing_offsets.count


@dataclass(frozen=True, slots=True)
class ReportedError:
    """The location and reason of a skipped corrupt range, or of a failure."""

    path: str | None
    position_bytes: int | None
    reason: str

    @classmethod
    def from_error(cls, error: KafkaIndexError) -> ReportedError:
        reason = f"{error.described}; {error.hint}" if error.hint else error.described
        return cls(error.path, error.position_bytes, reason)


@dataclass(frozen=True, slots=True)
class SplitResult:
    """The result of the export of one split, under its number in the plan; small, and picklable.

    Attributes
    ----------
    skipped_ranges : tuple of ReportedError
        The first corrupt ranges.
    skipped_count : int
        The number of all corrupt ranges.
    is_unchanged : bool
        No file was written, because the data files of an earlier run may have more records.
    failure : ReportedError, optional
        Why no data file was written.
    is_retriable : bool
        The environment caused the failure.
    last_batch : ExportedBatch, optional
        The last batch that was read.
    seen : tuple of SeenLog
        The offsets that were read.
    decode_counts : mapping of str to int
        The number of keys and values that did not decode, by error code.
    """

    number: int
    records: int = 0
    files: int = 0
    size_bytes: int = 0
    skipped_ranges: tuple[ReportedError, ...] = ()
    skipped_count: int = 0
    is_unchanged: bool = False
    failure: ReportedError | None = None
    is_retriable: bool = False
    last_batch: ExportedBatch | None = None
    seen: tuple[ScannedLog, ...] = ()
    decode_counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class ExportResult(Result):
    """The result of `export_records`: a row per partition, as in ``export --report``.

    Parameters
    ----------
    partitions : list of PartitionReport
        The offsets and files of each partition, and why it is damaged or failed.
    output : str
        The output folder.
    unread : tuple of str
        Entries of the input that were not read, each with the reason.
    skipped : tuple of (str, str)
        Entries of the input that a broker would not load, with the reason.
    notes : tuple of str
        Further facts, such as a time range without records.
    """

    partitions: list[PartitionReport]
    output: str
    unread: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    command = "export"
    status_header = ("status", "partitions")

    @property
    def headline(self) -> str:
        """The number of exported records and files, and of skipped ranges and failed partitions."""
        counts = self.counts
        exported = (
            f"{plural(counts['records'], 'record')} in {plural(counts['files'], 'file')} of "
            f"{format_bytes(self.sizes_bytes['output'])}, in {self.output}"
        )
        not_exported = self._failure_text
        return f"{exported}; {not_exported}" if not_exported else exported

    @property
    def _failure_text(self) -> str:
        """The numbers of skipped ranges and failed partitions; empty if there are none."""
        ranges = sum(row.skipped_ranges for row in self.partitions)
        failed = sum(row.status is ExportStatus.FAILED for row in self.partitions)
        parts = [f"{plural(ranges, 'corrupt range')} skipped"] if ranges else []
        parts += [f"{plural(failed, 'partition')} failed"] if failed else []
        return ", ".join(parts)

    @property
    def statuses(self) -> list[Status]:
        """The number of partitions by status."""
        return count_statuses((row.status for row in self.partitions), _MEANINGS)

    @property
    def facts(self) -> tuple[str, ...]:
        """The notes."""
        return self.notes

    @property
    def sections(self) -> list[Section]:
        """Corrupt ranges and failures, in the order of partitions."""
        reported_rows = [
            row
            for row in self.partitions
            if row.skipped_ranges or row.is_shorter or row.status in _WITH_DATA_LOSS
        ]
        data_loss = f"the logs of {plural(len(reported_rows), 'partition')} lost data"
        title = f"{self._failure_text or data_loss}:"
        return [
            Section(title, list(map(_partition_line, reported_rows)), BAD, noun="partition"),
            decode_section(self.decode_errors),
        ]

    @property
    def decode_errors(self) -> Mapping[str, int]:
        """Keys and values that did not decode, a row per error code."""
        counts: Counter[str] = Counter()
        for row in self.partitions:
            counts.update(row.decode_counts)
        return dict(sorted(counts.items()))

    @property
    def outcome(self) -> RunOutcome:
        """Usage for a rejected table or file, environment for a failed read; otherwise, damage."""
        if any(row.is_rejected for row in self.partitions):
            return RunOutcome.USAGE
        bad = (ExportStatus.DAMAGED, ExportStatus.FAILED)
        faults = (
            row.is_retriable for row in self.partitions if row.status in bad or row.is_shorter
        )
        return RunOutcome.of_faults(faults).with_damage((*self.unread, *self.decode_errors))

    @property
    def missing_offsets(self) -> MissingOffsets:
        """The missing offsets within the exported ranges."""
        return MissingOffsets.joined(row.missing_offsets for row in self.partitions)

    @property
    def counts(self) -> Mapping[str, int]:
        """Partitions by status, records, and files."""
        return {
            **{f"partitions_{status.name}": status.numbers[0] for status in self.statuses},
            "records": sum(row.records for row in self.partitions),
            "files": sum(row.files for row in self.partitions),
            **decode_counts(self.decode_errors),
        }

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Bytes of the files."""
        return {"output": sum(row.size_bytes for row in self.partitions)}

    def to_arrow(self) -> pa.Table:
        """Return the rows of the report."""
        return report_table(self.partitions, EXPORT_REPORT_SCHEMA)


def _partition_line(row: PartitionReport) -> str:
    location = "" if row.path is None else f"{shown_path(row.path)}: "
    if row.position_bytes is not None:
        location += f"at byte {row.position_bytes}: "
    further_ranges = f" and {row.skipped_ranges - 1} more" if row.skipped_ranges > 1 else ""
    return f"{row.topic}-{row.partition}: {location}{row.reason}{further_ranges}"
