"""The results of ``build``, and of a dry run."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.commands.build.request import BuildRequest, RowKind
from kafka_index.core.errors import plural
from kafka_index.core.format.human import format_bytes, shown_path
from kafka_index.core.format.names import LOG_SUFFIX, TopicPartition
from kafka_index.core.format.records import NO_TIMESTAMP
from kafka_index.core.fs.inputs import Skipped, skipped_texts
from kafka_index.core.job.engine import Listener
from kafka_index.core.job.result import (
    BAD,
    GOOD,
    NOTABLE,
    Meaning,
    PageColumns,
    ReportSink,
    ReportSpec,
    Result,
    RunOutcome,
    Section,
    Severity,
    Status,
)
from kafka_index.core.log.recovery.settings import (
    BUILT,
    FAILED,
    REPORT_SCHEMA,
    STATUSES,
    TRUNCATED,
    UNCHANGED,
    BuildSettings,
    SegmentReport,
    report_rows,
    report_table,
)
from kafka_index.core.records.batch_table import OVERLAP, PREALLOCATED_TAIL

#: Status of a partition in the report of a dry run.
PLANNED = "planned"
SKIPPED = "skipped"
#: The columns of the build report: those of `REPORT_SCHEMA`, ``kind`` (a `RowKind`), ``segments``
#: (the number of segments that the row counts), ``output_path`` (the folder of the built files),
#: and ``run_id``.
FILE_SCHEMA = pa.schema(
    [
        *(field.with_nullable(field.name != "status") for field in REPORT_SCHEMA),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("segments", pa.int64()),
        pa.field("output_path", pa.string()),
        pa.field("run_id", pa.string()),
    ]
)
_MEANINGS: Mapping[str, tuple[Severity, str]] = {
    BUILT: (GOOD, "the index files were written"),
    UNCHANGED: (GOOD, "the index files were already correct"),
    TRUNCATED: (BAD, "the log is valid up to a position, and later batches are not indexed"),
    FAILED: (BAD, "no index files were written"),
}
BUILD_REPORT = ReportSpec(
    FILE_SCHEMA,
    PageColumns(
        "segments",
        ("status",),
        {
            **{
                status: Meaning(*meaning, "kafka-index dump {log_path}")
                for status, meaning in _MEANINGS.items()
            },
            SKIPPED: Meaning(NOTABLE, "the entry is not a live log"),
            PLANNED: Meaning(GOOD, "a dry run does not build the partition"),
        },
        units="kind",
        unit_values=(RowKind.SEGMENT.value,),
        # The same reason codes decide `SegmentReport.is_damage`.
        decided_by=("reason_code", {PREALLOCATED_TAIL: GOOD, OVERLAP: BAD}),
        rows_are_segments=True,
    ),
    is_streamed=True,
)
_ORDER = [(name, "ascending") for name in ("topic", "partition", "segment_base_offset")]
_DISPLAYED_COLUMNS = (
    *("topic", "partition", "segment_base_offset", "status"),
    *("batch_count", "next_offset", "reason"),
)
#: Maximum number of report rows of segments that are buffered before they are written.
_MAX_BUFFERED_ROWS = 64 * 1024
#: Maximum number of damaged segments in a result; further damaged segments are only counted.
_MAX_DAMAGED = 100
# Statuses of a segment, from best to worst. A partition has the worst status of its segments.
_RANKED = [UNCHANGED, BUILT, TRUNCATED, FAILED]
_SUMS = (
    "log_size_bytes",
    "valid_bytes",
    "batch_count",
    "offset_entries",
    "time_entries",
    "seconds",
    "aborted_txns",
    "segments",
)
_MAXIMA = ("next_offset", "max_timestamp_ms", "rank", "retriable")


@dataclass(frozen=True, repr=False)
class BuildResult(Result):
    """The result of `build_indexes`: one row per segment, as in ``build --report``.

    Parameters
    ----------
    segments, log_bytes : mapping of str to int
        The number of segments by status, and the size of their logs.
    offset_entries, time_entries : int
        The number of entries in their index files.
    target : str, optional
        The folder of the index files; None if they are next to the logs.
    damaged : tuple of SegmentReport
        The first damaged segments, with status ``truncated`` or ``failed``, or with batches
        out of order (reason code ``overlap``). A preallocated tail is not damage.
    damaged_count, retriable_count : int
        The number of damaged segments, and of segments that failed because of the environment.
    not_started : int
        Number of segments that were not started.
    preallocated : int
        Number of logs that end in preallocated zeros.
    notes : int
        The number of segments with a note; `first_note` is the first of these segments.
    assumed : str, optional
        A line about the settings that were assumed.
    skipped : tuple of (str, str)
        Input entries that a broker would not load, with reasons.
    unread : tuple of str
        Input entries that were not read, with reasons.
    rows : pa.Table
        The rows of the report, if a Python function was called.
    """

    segments: Mapping[str, int]
    log_bytes: Mapping[str, int]
    offset_entries: int
    time_entries: int
    target: str | None
    damaged: tuple[SegmentReport, ...] = ()
    damaged_count: int = 0
    retriable_count: int = 0
    not_started: int = 0
    preallocated: int = 0
    notes: int = 0
    first_note: SegmentReport | None = None
    assumed: str | None = None
    skipped: tuple[tuple[str, str], ...] = ()
    unread: tuple[str, ...] = ()
    rows: pa.Table = field(default_factory=FILE_SCHEMA.empty_table)

    command = "build"
    status_header = ("status", "segments", "log bytes")

    @property
    def headline(self) -> str:
        """The number of segments by status, and the location of their files."""
        status_counts = [f"{count:,} {status}" for status, count in self.segments.items()]
        total = sum(self.segments.values())
        summary = f"{plural(total, 'segment')}: {', '.join(status_counts) or 'none finished'}"
        if self.damaged_count:
            damaged = plural(self.damaged_count, "segment")
            summary = f"{damaged} of {total:,} damaged or failed: {', '.join(status_counts)}"
        elif len(status_counts) == 1:
            summary = f"{plural(total, 'segment')} {next(iter(self.segments))}"
        if self.not_started:
            summary += f", {self.not_started:,} not started"
        location = "next to the logs" if self.target is None else f"in {self.target}"
        return f"{summary}; files {location}"

    @property
    def statuses(self) -> list[Status]:
        """The number of segments by status, with the size of their logs."""
        return [
            Status(status, (count,), *_MEANINGS[status], size_bytes=self.log_bytes[status])
            for status, count in self.segments.items()
        ]

    @property
    def facts(self) -> list[str]:
        """Numbers of index entries and preallocated logs, a note, and assumed settings."""
        offset_entries = plural(self.offset_entries, "offset entry", "offset entries")
        time_entries = plural(self.time_entries, "time entry", "time entries")
        lines = [f"{offset_entries}, {time_entries}"]
        if self.preallocated:
            lines.append(
                f"{plural(self.preallocated, 'log ends', 'logs end')} in preallocated zeros, "
                "which are not damage"
            )
        if self.first_note is not None:
            lines.append(
                f"{plural(self.notes, 'segment has a note', 'segments have notes')} in the report, "
                f"such as {shown_path(self.first_note.log_path)}: {self.first_note.note}"
            )
        return lines if self.assumed is None else [*lines, self.assumed]

    @property
    def sections(self) -> list[Section]:
        """The damaged segments."""
        title = f"{plural(self.damaged_count, 'segment')} damaged or failed:"
        lines = list(map(_format_damage, self.damaged))
        return [Section(title, lines, BAD, self.damaged_count, "segment")] if lines else []

    @property
    def next_command(self) -> str | None:
        """The command that prints the first damaged log, unless a later run may succeed."""
        if self.outcome is RunOutcome.ENVIRONMENT:
            return None
        paths = [row.log_path for row in self.damaged if row.log_path.endswith(LOG_SUFFIX)]
        return f"kafka-index dump {shlex.quote(shown_path(paths[0]))}" if paths else None

    @property
    def outcome(self) -> RunOutcome:
        """``environment`` if a read or job failed, ``damage`` if a segment is damaged."""
        was_stopped = FAILED in self.segments
        if self.retriable_count or (self.not_started and not was_stopped):
            return RunOutcome.ENVIRONMENT
        return RunOutcome.DONE.with_damage([*self.damaged, *self.unread])

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of segments by status, and of index entries."""
        return {
            **{f"segments_{status}": self.segments.get(status, 0) for status in STATUSES},
            "segments_not_started": self.not_started,
            "offset_entries": self.offset_entries,
            "time_entries": self.time_entries,
        }

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Size of all logs, and size of the logs that were read."""
        return {"logs": sum(self.log_bytes.values()), "log_read": self.work_bytes}

    @property
    def work_bytes(self) -> int:
        """Size of the logs that were read."""
        return sum(self.log_bytes.values()) - self.log_bytes.get(UNCHANGED, 0)

    def to_arrow(self) -> pa.Table:
        """Return the report rows, sorted by topic, partition and base offset."""
        return self.rows.sort_by(_ORDER)

    def _preview_rows(self) -> pa.Table:
        """Return the rows of damaged segments, or all rows if no segment is damaged."""
        rows = self.to_arrow()
        damaged_rows = rows.filter(
            pc.invert(pc.is_in(rows["status"], pa.array([BUILT, UNCHANGED])))
        )
        return (damaged_rows if damaged_rows.num_rows else rows).select(_DISPLAYED_COLUMNS)


def _format_damage(row: SegmentReport) -> str:
    position = "" if row.position_bytes is None else f" at byte {row.position_bytes}"
    return f"{row.log_path}: {row.status}{position}: {row.reason or 'unknown reason'}"


@dataclass(frozen=True, repr=False)
class BuildPlan(Result):
    """The result of a dry run: the logs that a build would check.

    Parameters
    ----------
    partitions : mapping of TopicPartition to (int, int)
        The number of segments of each partition, and the total size of their logs.
    skipped : tuple of (str, str)
        Input entries that a broker would not load, with reasons.
    unread : tuple of str
        Input entries that were not read, with reasons.
    """

    partitions: Mapping[TopicPartition, tuple[int, int]]
    skipped: tuple[tuple[str, str], ...] = ()
    unread: tuple[str, ...] = ()

    command = "build"

    @classmethod
    def from_sizes(cls, sizes: Sequence[tuple[TopicPartition, int, int]]) -> Self:
        """Create the plan from (partition, segments, bytes); add up items of one partition."""
        sums: dict[TopicPartition, tuple[int, int]] = {}
        for partition, count, size_bytes in sizes:
            previous_count, previous_bytes = sums.get(partition, (0, 0))
            sums[partition] = previous_count + count, previous_bytes + size_bytes
        return cls(dict(sorted(sums.items())))

    @property
    def headline(self) -> str:
        return (
            f"would build {plural(self.counts['segments'], 'segment')} of "
            f"{plural(len(self.partitions), 'partition')}, "
            f"{format_bytes(self.sizes_bytes['logs'])} of logs"
        )

    @property
    def sections(self) -> list[Section]:
        lines = [
            f"{partition.directory_name}: {plural(count, 'segment')}, {format_bytes(size_bytes)}"
            for partition, (count, size_bytes) in self.partitions.items()
        ]
        return [Section("partitions:", lines, GOOD, noun="partition")]

    @property
    def outcome(self) -> RunOutcome:
        """``damage`` if an entry was not read."""
        return RunOutcome.DONE.with_damage(self.unread)

    @property
    def counts(self) -> Mapping[str, int]:
        segments = sum(count for count, _ in self.partitions.values())
        return {"partitions": len(self.partitions), "segments": segments}

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        return {"logs": sum(size_bytes for _, size_bytes in self.partitions.values())}

    def to_arrow(self) -> pa.Table:
        """Return one row per partition, with the columns of the build report."""
        rows = [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "kind": RowKind.PARTITION.value,
                "status": PLANNED,
                "segments": count,
                "log_size_bytes": size_bytes,
            }
            for partition, (count, size_bytes) in self.partitions.items()
        ]
        return pa.Table.from_pylist(rows, schema=FILE_SCHEMA)


class BuildRows:
    """Counts the report rows of a build, keeps those of damaged segments, and writes all rows.

    A context manager around the build, called by one thread at a time. `planned` is the total
    number of segments, 0 if unknown.
    """

    def __init__(
        self,
        request: BuildRequest,
        settings: BuildSettings,
        listener: Listener,
        report: ReportSink | None,
        *,
        planned: int = 0,
    ) -> None:
        self._kinds = request.report_rows
        self._target_root = settings.target_root
        self._run_id = settings.run_id
        self._listener = listener
        self._report = report
        self._planned = planned
        self._pending: list[SegmentReport] = []
        self._unchanged: list[pa.Table] = []
        self._buffered_rows = 0
        self._partitions: pa.Table | None = None
        self._segments = Counter[str]()
        self._log_bytes = Counter[str]()
        self._damaged: list[SegmentReport] = []
        self._first_note: SegmentReport | None = None
        self._numbers = Counter[str]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self._flush()
        if error is not None:
            published_count = self._segments.total() - self._segments[FAILED]
            total = f" of {self._planned:,}" if self._planned else ""
            error.add_note(f"{published_count:,}{total} segments are finished and published")

    def on_scanned(self, row: SegmentReport) -> None:
        self._listener.on_done(1, row.log_size_bytes)

    def on_report(self, row: SegmentReport) -> None:
        self._pending.append(row)
        self._buffer_rows(1)

    def on_unchanged(self, rows: pa.Table) -> None:
        """Add the rows of the segments of a partition whose files are up to date."""
        self._unchanged.append(rows.select(REPORT_SCHEMA.names))
        self._buffer_rows(rows.num_rows)

    def result(self, skipped: Sequence[Skipped] = (), assumed: str | None = None) -> BuildResult:
        """Write report rows of partitions and of skipped input entries; return the result."""
        self._flush()
        if self._partitions is not None:
            rows = self._partitions.sort_by(_ORDER[:2])
            status = pa.array(_RANKED).take(rows["rank"].combine_chunks())
            self._write(rows.append_column("status", status), RowKind.PARTITION)
        # Every report has a row for each link that was not followed.
        skipped_entries = [
            skipped_entry
            for skipped_entry in skipped
            if skipped_entry.target or RowKind.SKIPPED in self._kinds
        ]
        if skipped_entries:
            paths = [skipped_entry.path for skipped_entry in skipped_entries]
            reasons = [
                f"{skipped_entry.reason}: {skipped_entry.path_with_target}"
                if skipped_entry.target
                else skipped_entry.reason
                for skipped_entry in skipped_entries
            ]
            columns = {
                "log_path": paths,
                "status": [SKIPPED] * len(skipped_entries),
                "reason": reasons,
            }
            self._write(pa.table(columns), RowKind.SKIPPED)
        statuses = [status for status in STATUSES if self._segments[status]]
        return BuildResult(
            {status: self._segments[status] for status in statuses},
            {status: self._log_bytes[status] for status in statuses},
            self._numbers["offset_entries"],
            self._numbers["time_entries"],
            self._target_root,
            tuple(self._damaged),
            self._numbers["damaged"],
            self._numbers["retriable"],
            max(self._planned - self._segments.total(), 0),
            self._numbers["preallocated"],
            self._numbers["notes"],
            self._first_note,
            assumed,
            skipped_texts(skipped),
        )

    def _buffer_rows(self, count: int) -> None:
        self._buffered_rows += count
        if self._buffered_rows >= _MAX_BUFFERED_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._buffered_rows:
            tables = [*self._unchanged, report_table(self._pending)]
            self._pending, self._unchanged, self._buffered_rows = [], [], 0
            self._add_rows(pa.concat_tables(tables).combine_chunks())

    def _add_rows(self, table: pa.Table) -> None:
        """Count rows of `REPORT_SCHEMA`, and write them to the report."""
        self._count_rows(table)
        if self._report is None:
            return
        column_index = table.schema.get_field_index("max_timestamp_ms")
        times = table.column(column_index)
        known_times = pc.if_else(pc.equal(times, NO_TIMESTAMP), None, times)
        table = table.set_column(column_index, "max_timestamp_ms", known_times)
        table = table.append_column("segments", pa.repeat(pa.scalar(1, pa.int64()), len(table)))
        table = table.append_column("output_path", self._output_paths(table))
        if RowKind.SEGMENT in self._kinds:
            self._write(table, RowKind.SEGMENT)
        if RowKind.PARTITION in self._kinds:
            self._add_to_partitions(table)

    def _count_rows(self, table: pa.Table) -> None:
        groups = table.group_by("status").aggregate(
            [("status", "count"), ("log_size_bytes", "sum")]
        )
        for row in groups.to_pylist():
            self._segments[row["status"]] += row["status_count"]
            self._log_bytes[row["status"]] += row["log_size_bytes_sum"]
        for name in ("offset_entries", "time_entries"):
            self._numbers[name] += pc.sum(table[name]).as_py() or 0
        is_right = pc.is_in(table["status"], pa.array([BUILT, UNCHANGED]))
        is_silent = pc.and_(pc.is_null(table["note"]), pc.is_null(table["reason"]))
        for row in report_rows(table.filter(pc.invert(pc.and_(is_right, is_silent)))):
            if row.is_damage:
                self._numbers.update(damaged=1, retriable=int(row.retriable))
                if len(self._damaged) < _MAX_DAMAGED:
                    self._damaged.append(row)
            elif row.is_preallocated_tail:
                self._numbers["preallocated"] += 1
            if row.note is not None:
                self._numbers["notes"] += 1
                self._first_note = self._first_note or row

    def _add_to_partitions(self, table: pa.Table) -> None:
        keys = ["topic", "partition", "output_path"]
        table = table.append_column("rank", pc.index_in(table["status"], pa.array(_RANKED)))
        # A table created from columns has only nullable fields, so that the schemas match in
        # `concat_tables`.
        table = pa.table({name: table[name] for name in (*keys, *_SUMS, *_MAXIMA)})
        if self._partitions is not None:
            table = pa.concat_tables([self._partitions, table])
        aggregations = [*((name, "sum") for name in _SUMS), *((name, "max") for name in _MAXIMA)]
        groups = table.group_by(keys).aggregate(aggregations)
        names = {f"{name}_{function}": name for name, function in aggregations}
        self._partitions = groups.select([*keys, *names]).rename_columns([*keys, *names.values()])

    def _output_paths(self, table: pa.Table) -> pa.Array:
        if self._target_root is None:
            return pc.replace_substring_regex(table["log_path"], "/[^/]*$", "")
        partitions = table.select(["topic", "partition"]).to_pydict()
        names = map(TopicPartition, partitions["topic"], partitions["partition"])
        return pa.array(
            [os.path.join(self._target_root, partition.directory_name) for partition in names],
            pa.string(),
        )

    def _write(self, table: pa.Table, kind: RowKind) -> None:
        if self._report is None:
            return
        constants = {"kind": kind.value, "run_id": self._run_id}
        columns = [
            table[field.name].cast(field.type)
            if field.name in table.column_names
            else pa.repeat(pa.scalar(constants.get(field.name), field.type), len(table))
            for field in FILE_SCHEMA
        ]
        self._report.write_table(pa.table(columns, schema=FILE_SCHEMA))
