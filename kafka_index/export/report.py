"""The report of an export: a row for each partition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from enum import Enum

import pyarrow as pa

EXPORT_REPORT_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("first_offset", pa.int64()),
        pa.field("next_offset", pa.int64()),
        pa.field("records", pa.int64(), nullable=False),
        pa.field("files", pa.int64(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("left_out", pa.int64(), nullable=False),
        pa.field("path", pa.string()),
        pa.field("position_bytes", pa.int64()),
        pa.field("reason", pa.string()),
    ]
)


class ExportStatus(Enum):
    """The outcome of the export of a partition."""

    #: Records were exported, or there were none between the bounds.
    EXPORTED = "exported"
    #: Nothing is new since the last export.
    UNCHANGED = "unchanged"
    #: What is damaged was left out, the rest exported.
    DAMAGED = "damaged"
    #: The partition was not exported to its end.
    FAILED = "failed"
    #: What the log lost is left out, or replaced, and the rest exported (`OnDataLoss.CONTINUE`).
    CONTINUED = "continued"
    #: The partition was exported anew, in place of what was there (`OnDataLoss.RESTART`).
    RESTARTED = "restarted"


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """A row of the report: the offsets, the end exclusive, and the files that this run exported.

    `left_out` counts batches or parts of segments that are damaged and left out; path, position and
    reason are those of the first, or of the failure. `is_retriable`: the environment is at fault
    for a failure.
    """

    topic: str
    partition: int
    status: ExportStatus
    first_offset: int | None = None
    next_offset: int | None = None
    records: int = 0
    files: int = 0
    size_bytes: int = 0
    left_out: int = 0
    path: str | None = None
    position_bytes: int | None = None
    reason: str | None = None
    is_retriable: bool = False


def report_table(rows: Iterable[PartitionReport]) -> pa.Table:
    """Return rows as a table of `EXPORT_REPORT_SCHEMA`."""
    names = EXPORT_REPORT_SCHEMA.names
    return pa.Table.from_pylist(
        [
            dict(zip(names, (*cells[:2], cells[2].value, *cells[3:-1]), strict=True))
            for cells in map(astuple, rows)
        ],
        EXPORT_REPORT_SCHEMA,
    )
