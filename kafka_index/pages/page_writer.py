"""Writes the rows of a report as a page: collects the rows of the page, then makes the file."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.pages.page import Page, Severity, Totals
from kafka_index.pages.page_text import PageText, Part, bokeh_folder, pack_columns
from kafka_index.pages.segment_times import (
    SEGMENT_SCHEMA,
    first_timestamps,
    with_times,
)

#: Rows of a page; what wants attention may add as many again, the rest is only counted.
MAX_ROWS = 400_000
#: Columns of a page that are no column of the report.
FOUND, SEVERITY, FIRST_TIMESTAMP = "found_", "severity_", "first_timestamp_ms"


class PageWriter:
    """The page of a report, written when it is closed; a sink of `storage.report_file.ReportFile`.

    `about` has the facts about the run by name, for the last lines.
    """

    def __init__(self, page: Page, about: Mapping[str, str], path: str, schema: pa.Schema) -> None:
        self._page = page
        self._about = about
        self._path = path
        self._schema = schema
        self._folder = bokeh_folder(path)
        self._totals = Totals()
        self._kept: list[pa.Table] = []
        self._kept_rows = self._rows = 0
        self._is_whole = True

    def write_table(self, table: pa.Table) -> None:
        """Add rows of the report."""
        severities = self._page.severities(table)
        found = self._page.found(table)
        self._count(table, found, severities.to_numpy())
        self._rows += len(table)
        table = table.append_column(FOUND, found).append_column(SEVERITY, severities)
        room = max(MAX_ROWS - self._kept_rows, 0)
        if len(table) > room:
            bad = table.filter(pc.greater(severities, int(Severity.GOOD)))
            more = max(2 * MAX_ROWS - self._kept_rows, 0)
            table = table.slice(0, room) if not bad.num_rows else bad.slice(0, more)
        if not len(table):
            return
        if self._page.segments is None:
            firsts = first_timestamps(table["log_path"].to_pylist())
            table = table.append_column(FIRST_TIMESTAMP, firsts)
        self._kept.append(table)
        self._kept_rows += len(table)

    def interrupt(self) -> None:
        """Note that an error or a signal ends the run: what is there is not all."""
        self._is_whole = False

    def close(self) -> None:
        """Write the page."""
        text = PageText(self._page, self._totals, self._about, is_whole=self._is_whole)
        rows = self._table()
        parts = [Part("rows", pack_columns(rows), len(rows), self._rows)]
        # The columns are packed: the rows are not needed any more.
        self._kept, rows = [], None
        segments = self._segments()
        if segments is not None:
            shown = segments.slice(0, MAX_ROWS)
            parts.append(Part("segments", pack_columns(shown), len(shown), len(segments)))
        with open(self._path, "w", encoding="utf-8") as file:
            file.writelines(text.pieces(parts, self._folder))

    def _count(self, table: pa.Table, found: pa.ChunkedArray, severities: NDArray[np.int8]) -> None:
        totals = self._totals
        units = self._page.are_units(table).to_numpy()
        weights = self._page.weights(table)
        for severity, counter in ((None, totals.found), (Severity.BAD, totals.bad_of)):
            counted = pa.array(units if severity is None else units & (severities == severity))
            groups = pa.table({"found": found, "weight": weights}).filter(counted)
            sums = groups.group_by("found").aggregate([("weight", "sum")])
            for row in sums.to_pylist():
                counter[row["found"]] += row["weight_sum"]
        amounts = weights.to_numpy()
        totals.bad += int(amounts[units & (severities == Severity.BAD)].sum())
        totals.notable += int(amounts[units & (severities == Severity.NOTABLE)].sum())
        totals.others.update(found.filter(pa.array(~units)).to_pylist())
        totals.bad_others += int(np.count_nonzero(~units & (severities == Severity.BAD)))

    def _table(self) -> pa.Table:
        if self._kept:
            return pa.concat_tables(self._kept)
        schema = self._schema.append(pa.field(FOUND, pa.string()))
        return schema.append(pa.field(SEVERITY, pa.int8())).empty_table()

    def _segments(self) -> pa.Table | None:
        """Return the segments of the dump; None where the rows are the segments."""
        if self._page.segments is None:
            return None
        batches = [with_times(batch, reading=self._is_whole) for batch in self._page.segments()]
        return pa.Table.from_batches(batches, SEGMENT_SCHEMA)
