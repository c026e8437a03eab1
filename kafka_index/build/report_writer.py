"""The file of the build report: a row per segment; on request also of partitions and the rest."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.build.report import (
    BUILT,
    FAILED,
    REPORT_SCHEMA,
    TRUNCATED,
    UNCHANGED,
    SegmentReport,
    report_table,
)
from kafka_index.layout.names import TopicPartition
from kafka_index.layout.records import NO_TIMESTAMP
from kafka_index.storage import Skipped
from kafka_index.storage.report_file import PageMaker, ReportFile

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
_RANKS = pa.array([UNCHANGED, BUILT, TRUNCATED, FAILED])
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
            status = _RANKS.take(rows["rank"].combine_chunks())
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
        table = table.append_column("rank", pc.index_in(table["status"], _RANKS))
        # Made of columns alone, tables have the same schema, in which all fields are nullable.
        table = pa.table({name: table[name] for name in (*keys, *_SUMS, *_MAXIMA)})
        if self._partitions is not None:
            table = pa.concat_tables([self._partitions, table])
        asked = [*((name, "sum") for name in _SUMS), *((name, "max") for name in _MAXIMA)]
        groups = table.group_by(keys).aggregate(asked)
        columns = [groups[name] for name in keys]
        columns += [groups[f"{name}_{function}"] for name, function in asked]
        self._partitions = pa.table(columns, names=[*keys, *(name for name, _ in asked)])

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
