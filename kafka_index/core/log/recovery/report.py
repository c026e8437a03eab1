"""The build report: rows of segments, or of partitions and data directories, and its file."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.core.errors import KafkaIndexError, is_retriable
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.format.records import NO_TIMESTAMP
from kafka_index.core.fs.inputs import Skipped
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.output.report_file import PageMaker, ReportFile
from kafka_index.core.records.batch_table import OVERLAP, PREALLOCATED_TAIL

BUILT = "built"
UNCHANGED = "unchanged"
TRUNCATED = "truncated"
FAILED = "failed"
STATUSES = (BUILT, UNCHANGED, TRUNCATED, FAILED)

#: The reason code of a segment that an error ended: its file, or its target, cannot be used.
ERROR = "error"

REPORT_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("segment_base_offset", pa.int64(), nullable=False),
        pa.field("log_path", pa.string(), nullable=False),
        pa.field("log_size_bytes", pa.int64(), nullable=False),
        pa.field("valid_bytes", pa.int64()),
        pa.field("batch_count", pa.int64()),
        pa.field("offset_entries", pa.int64()),
        pa.field("time_entries", pa.int64()),
        pa.field("next_offset", pa.int64()),
        pa.field("max_timestamp_ms", pa.int64()),
        pa.field("status", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
        pa.field("position_bytes", pa.int64()),
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("aborted_txns", pa.int64()),
        pa.field("producers", pa.int64()),
        pa.field("note", pa.string()),
        pa.field("retriable", pa.bool_(), nullable=False),
        pa.field("reason_code", pa.string()),
    ]
)
#: What a row is about, in the column ``kind``.
SEGMENT, PARTITION, SKIPPED = "segment", "partition", "skipped"
KINDS = (SEGMENT, PARTITION, SKIPPED)
#: `REPORT_SCHEMA`, and: what a row is about (``kind``), how many segments it is about
#: (``segments``), where their files are (``output_path``), and the run (``run_id``).
FILE_SCHEMA = pa.schema(
    [
        *(field.with_nullable(field.name != "status") for field in REPORT_SCHEMA),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("segments", pa.int64()),
        pa.field("output_path", pa.string()),
        pa.field("run_id", pa.string()),
    ]
)
_ROWS_AT_A_TIME = 64 * 1024
#: The worst one last: that of a partition is the worst of its segments.
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


@dataclass(frozen=True, slots=True)
class SegmentCounts:
    """The counts of a scanned segment.

    `valid_bytes` is the length of the prefix that the indexes cover, and `batch_count` its record
    batches. `next_offset` comes after the last one, as a broker reads it: the base offset where
    offsets go back after the last index entry. The largest timestamp is -1 for none.
    """

    valid_bytes: int
    batch_count: int
    offset_entries: int
    time_entries: int
    next_offset: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """The result of one segment; one of which only the log is known has failed.

    Parameters
    ----------
    topic, partition, segment_base_offset
        The segment.
    log_path : str
        Its log, absolute.
    log_size_bytes : int
        Size of the log.
    counts : SegmentCounts, optional
        What the scan counted; None when the segment failed before that was known.
    status : str
        One of `STATUSES`.
    reason : str, optional
        Why the status is not ``built``, or which batches are out of order, for people.
    position_bytes : int, optional
        Where in the log the reason lies.
    seconds : float
        Time it took.
    aborted_txns : int, optional
        Entries of ``.txnindex``; None when no state was asked for.
    producers : int, optional
        Producers known at the segment's end; None when no state was asked for.
    note : str, optional
        What is worth knowing of a segment that has nothing wrong with it.
    retriable : bool
        The segment failed because of permission, disk or memory, not because of its data.
    reason_code : str, optional
        What programs go by: the code of the reason, such as ``bad_crc``; without a reason that of
        the note, if it has one.
    """

    topic: str
    partition: int
    segment_base_offset: int
    log_path: str
    log_size_bytes: int
    counts: SegmentCounts | None = None
    status: str = FAILED
    reason: str | None = None
    position_bytes: int | None = None
    seconds: float = 0.0
    aborted_txns: int | None = None
    producers: int | None = None
    note: str | None = None
    retriable: bool = False
    reason_code: str | None = None

    def failed(self, code: str, reason: str, position_bytes: int | None = None) -> Self:
        """Return the row of the segment, failed."""
        return replace(
            self, status=FAILED, reason=reason, reason_code=code, position_bytes=position_bytes
        )

    def failed_by(self, error: KafkaIndexError) -> Self:
        """Return the row of the segment, failed by an error."""
        row = self.failed(ERROR, str(error), error.position_bytes)
        return replace(row, retriable=is_retriable(error))

    @property
    def is_preallocated_tail(self) -> bool:
        """Whether the log ends in the zeros of preallocation, and all before them is sound."""
        return self.reason_code == PREALLOCATED_TAIL

    @property
    def is_damage(self) -> bool:
        """Whether someone should look at this segment, and the exit code say so."""
        is_cut = self.status == TRUNCATED and not self.is_preallocated_tail
        # Recovery keeps batches that are out of order, and readers do not.
        return self.status == FAILED or is_cut or self.reason_code == OVERLAP


def empty_row(segment: SegmentFile) -> SegmentReport:
    """Return the row of a segment of which only the log is known."""
    return SegmentReport(
        segment.topic,
        segment.partition,
        segment.base_offset,
        segment.log_path,
        segment.log_size_bytes,
    )


_COUNT_NAMES = tuple(field.name for field in fields(SegmentCounts))
_ROW_NAMES = tuple(name for name in REPORT_SCHEMA.names if name not in _COUNT_NAMES)


def report_table(rows: Sequence[SegmentReport]) -> pa.Table:
    """Return report rows as an Arrow table of `REPORT_SCHEMA`."""
    columns = {name: [getattr(row, name) for row in rows] for name in _ROW_NAMES}
    columns |= {
        name: [None if row.counts is None else getattr(row.counts, name) for row in rows]
        for name in _COUNT_NAMES
    }
    return pa.table(columns, schema=REPORT_SCHEMA)


def report_rows(table: pa.Table) -> list[SegmentReport]:
    """Return the rows of an Arrow table of `REPORT_SCHEMA`."""
    rows = []
    for row in table.select(REPORT_SCHEMA.names).to_pylist():
        counts = [row.pop(name) for name in _COUNT_NAMES]
        known = None if counts[0] is None else SegmentCounts(*counts)
        rows.append(SegmentReport(**row, counts=known))
    return rows


class ReportWriter(ReportFile):
    """Writes the build report row by row, of some of `KINDS`; see `ReportFile`.

    The target root has a folder for each partition; None where files go beside their logs.
    """

    def __init__(
        self,
        path: str,
        *,
        target_root: str | None = None,
        run_id: str | None = None,
        kinds: Collection[str] = (SEGMENT,),
        page: PageMaker | None = None,
    ) -> None:
        super().__init__(path, FILE_SCHEMA, page)
        self._target_root = target_root
        self._run_id = run_id
        self._kinds = frozenset(kinds)
        self._pending: list[SegmentReport] = []
        self._partitions: pa.Table | None = None
        #: Segments with batches that are out of order.
        self.out_of_order = 0

    def write(self, rows: Sequence[SegmentReport]) -> None:
        """Add rows of segments."""
        self._pending += rows
        self._count(len(rows))
        if len(self._pending) >= _ROWS_AT_A_TIME:
            self._finish()

    def write_table(self, table: pa.Table) -> None:
        """Add rows of segments, a table of `REPORT_SCHEMA`."""
        self._finish()
        self._count(table.num_rows)
        self._write_segments(table)

    def write_rest(self, skipped: Sequence[Skipped]) -> None:
        """Add, after those of all segments, rows of partitions and of what was passed over."""
        self._finish()
        if self._partitions is not None and PARTITION in self._kinds:
            rows = self._partitions.sort_by([("topic", "ascending"), ("partition", "ascending")])
            status = pa.array(_RANKED).take(rows["rank"].combine_chunks())
            self._write_rows(rows.append_column("status", status), PARTITION)
        # A file that was not read for where it leads is a row whatever rows are asked for.
        rest = [entry for entry in skipped if entry.target or SKIPPED in self._kinds]
        if rest:
            table = pa.table(
                {
                    "log_path": [entry.path for entry in rest],
                    "status": [SKIPPED] * len(rest),
                    "reason": [
                        f"{entry.reason}: {entry.shown}" if entry.target else entry.reason
                        for entry in rest
                    ],
                }
            )
            self._write_rows(table, SKIPPED)

    def _finish(self) -> None:
        if self._pending:
            rows, self._pending = self._pending, []
            self._write_segments(report_table(rows))

    def _write_segments(self, table: pa.Table) -> None:
        self.out_of_order += pc.sum(pc.equal(table["reason_code"], OVERLAP)).as_py() or 0
        place = table.schema.get_field_index("max_timestamp_ms")
        times = table.column(place)
        known = pc.if_else(pc.equal(times, NO_TIMESTAMP), None, times)
        table = table.set_column(place, "max_timestamp_ms", known)
        table = table.append_column("segments", pa.repeat(pa.scalar(1, pa.int64()), len(table)))
        table = table.append_column("output_path", self._output_paths(table))
        if SEGMENT in self._kinds:
            self._write_rows(table, SEGMENT)
        if PARTITION in self._kinds:
            self._add_to_partitions(table)

    def _add_to_partitions(self, table: pa.Table) -> None:
        keys = ["topic", "partition", "output_path"]
        table = table.append_column("rank", pc.index_in(table["status"], pa.array(_RANKED)))
        # Made of columns alone, tables have the same schema, in which all fields are nullable.
        table = pa.table({name: table[name] for name in (*keys, *_SUMS, *_MAXIMA)})
        if self._partitions is not None:
            table = pa.concat_tables([self._partitions, table])
        asked = [*((name, "sum") for name in _SUMS), *((name, "max") for name in _MAXIMA)]
        groups = table.group_by(keys).aggregate(asked)
        names = {f"{name}_{function}": name for name, function in asked}
        self._partitions = groups.select([*keys, *names]).rename_columns([*keys, *names.values()])

    def _output_paths(self, table: pa.Table) -> pa.Array:
        if self._target_root is None:
            return pc.replace_substring_regex(table["log_path"], "/[^/]*$", "")
        partitions = table.select(["topic", "partition"]).to_pydict()
        names = map(TopicPartition, partitions["topic"], partitions["partition"])
        return pa.array(
            [os.path.join(self._target_root, each.directory_name) for each in names], pa.string()
        )

    def _write_rows(self, table: pa.Table, kind: str) -> None:
        same = {"kind": kind, "run_id": self._run_id}
        columns = [
            table[field.name].cast(field.type)
            if field.name in table.column_names
            else pa.repeat(pa.scalar(same.get(field.name), field.type), len(table))
            for field in FILE_SCHEMA
        ]
        self._write(pa.table(columns, schema=FILE_SCHEMA))
