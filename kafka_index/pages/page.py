"""The page of a command: how its rows are judged, counted, and explained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


class Severity(IntEnum):
    """The attention that a row wants."""

    GOOD = 0
    NOTABLE = 1
    BAD = 2


GOOD, NOTABLE, BAD = Severity.GOOD, Severity.NOTABLE, Severity.BAD
#: The command that shows more about a file.
DUMP = "kafka-index dump {path}"


@dataclass(frozen=True, slots=True)
class Explained:
    """A value of the column that a report is counted by, and its meaning.

    The command shows more about a row: a command line with columns in braces, which the page fills
    in and quotes for a shell.
    """

    severity: Severity
    text: str
    command: str | None = None


def explain(
    texts: Mapping[str, str], severities: Mapping[str, Severity], commands: Mapping[str, str]
) -> dict[str, Explained]:
    """Return what a page explains: of each value its text, its severity, and a command."""
    return {
        str(name): Explained(severities[str(name)], text, commands.get(str(name)))
        for name, text in texts.items()
    }


@dataclass(frozen=True, slots=True)
class Verdict:
    """The conclusion of a report, in one line."""

    severity: Severity
    text: str


@dataclass(slots=True)
class Totals:
    """The totals of all rows of a report, left-out rows included.

    `found` counts units, such as segments, by their finding, `bad` and `notable` by severity.
    `bad_others` and `others` count the rows that are not units, such as those of whole partitions.
    """

    found: Counter[str] = field(default_factory=Counter)
    bad_of: Counter[str] = field(default_factory=Counter)
    bad: int = 0
    notable: int = 0
    bad_others: int = 0
    others: Counter[str] = field(default_factory=Counter)

    @property
    def units(self) -> int:
        """All units."""
        return self.found.total()


#: Rows with the columns ``topic``, ``partition``, ``segment_base_offset``, ``log_path`` and
#: ``log_size_bytes``.
SegmentBatches = Callable[[], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Page:
    """The page of a command.

    `nouns` names the units that are counted, such as ``segments``. `found_in` are the columns with
    findings: a row is counted by the first that is not null, and is as bad as the worst;
    `explained` has their values, the best first. `units` is a column, and `unit_values` its values
    in the rows that are counted: all rows if it is None, any value that is not null if there are
    none. `weight` is a column with the number of units of a row, by default 1. `worst_where` is a
    column of booleans that makes a row bad, and without which it is not. `segments` are those of
    the dump; None if the rows are segments.
    """

    command: str
    nouns: str
    found_in: tuple[str, ...]
    explained: Mapping[str, Explained]
    verdict: Callable[[Totals], Verdict]
    units: str | None = None
    unit_values: tuple[str, ...] = ()
    weight: str | None = None
    worst_where: str | None = None
    segments: SegmentBatches | None = None

    def found(self, table: pa.Table) -> pa.ChunkedArray:
        """Return the findings, row by row."""
        columns = [table[name] for name in self.found_in]
        return pc.coalesce(*columns, pa.scalar("", pa.string()))

    def severities(self, table: pa.Table) -> pa.Array:
        """Return `Severity` row by row, as int8."""
        severities = np.full(len(table), int(Severity.GOOD), np.int8)
        for name in self.found_in:
            np.maximum(severities, self._severities_of(table[name]), out=severities)
        if self.worst_where is not None:
            worst = pc.fill_null(table[self.worst_where], pa.scalar(value=False)).to_numpy()
            severities = np.minimum(severities, np.int8(Severity.NOTABLE))
            severities[worst] = Severity.BAD
        return pa.array(severities)

    def are_units(self, table: pa.Table) -> pa.ChunkedArray:
        """Return which rows are counted."""
        if self.units is None:
            return pa.chunked_array([pa.repeat(pa.scalar(value=True), len(table))])
        if not self.unit_values:
            return table[self.units].is_valid()
        return pc.is_in(table[self.units], pa.array(self.unit_values, pa.string()))

    def weights(self, table: pa.Table) -> pa.ChunkedArray:
        """Return how many units each row is."""
        if self.weight is None:
            return pa.chunked_array([pa.repeat(pa.scalar(1, pa.int64()), len(table))])
        return table[self.weight]

    def _severities_of(self, column: pa.ChunkedArray) -> NDArray[np.int8]:
        """Return the severities of values; that of null is good, an unknown one is notable."""
        names = pa.array(self.explained, pa.string())
        # The last one is that of a value without a place.
        ranks = [int(each.severity) for each in self.explained.values()]
        ranks_of = np.array([*ranks, int(Severity.NOTABLE)], np.int8)
        places = pc.fill_null(pc.index_in(column, names), -1).to_numpy()
        severities: NDArray[np.int8] = ranks_of[places]
        severities[column.is_null().to_numpy()] = Severity.GOOD
        return severities
