"""Base classes of results: a conclusion, counts, and a table of rows."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, TypeVar

import pyarrow as pa

from kafka_index.core.errors import (
    CorruptLogError,
    DamageError,
    InputError,
    ReadError,
    plural,
    printable,
)

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

#: Maximum number of missing offset ranges in a result; further ranges are only counted.
MAX_GAPS = 100
_TEXT_ROWS, _HTML_ROWS = 12, 50
_TEXT_WIDTH, _CELL_WIDTH = 118, 48
_GAP = "  "
_StatusValue = TypeVar("_StatusValue", bound=StrEnum)


#: The first columns of every report about partitions or files.
_FIRST_COLUMNS = (
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("segment_base_offset", pa.int64()),
    ("path", pa.string()),
    ("status", pa.string()),
    ("reason_code", pa.string()),
    ("reason", pa.string()),
)


def report_schema(
    columns: Iterable[tuple[str, pa.DataType]], *, required: Iterable[str] = ()
) -> pa.Schema:
    """Return a schema: common columns, then `columns`; columns in `required` are not nullable."""
    required_names = set(required)
    return pa.schema(
        pa.field(name, column_type, nullable=name not in required_names)
        for name, column_type in (*_FIRST_COLUMNS, *columns)
    )


def report_table(rows: Iterable[object], schema: pa.Schema) -> pa.Table:
    """Convert objects to report rows; a column is null if the object has no such attribute."""
    names = schema.names
    return pa.Table.from_pylist(
        [{name: getattr(row, name, None) for name in names} for row in rows], schema=schema
    )


class RunOutcome(StrEnum):
    """The outcome of a completed run."""

    DONE = "done"
    #: The data has errors: it is corrupt, lost or unreadable.
    DAMAGE = "damage"
    #: A permission was missing, or disk, memory or network failed; the same call may succeed later.
    ENVIRONMENT = "environment"
    #: An input, an output or a setting was rejected.
    USAGE = "usage"

    @classmethod
    def of_faults(cls, retriable: Iterable[bool]) -> RunOutcome:
        """Return the outcome of a run; `retriable` has a value for each error of the run."""
        causes = set(retriable)
        return cls.ENVIRONMENT if True in causes else cls.DAMAGE if causes else cls.DONE

    def with_damage(self, places: Sequence[object]) -> RunOutcome:
        """Return the outcome of a run that also found errors in the data, at `places`."""
        return RunOutcome.DAMAGE if places and self is RunOutcome.DONE else self

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return {
            RunOutcome.DONE: 0,
            RunOutcome.DAMAGE: 1,
            RunOutcome.USAGE: 2,
            RunOutcome.ENVIRONMENT: 3,
        }[self]


@dataclass(frozen=True, slots=True)
class OffsetGap:
    """A range of offsets that no batch of a partition contains.

    Attributes
    ----------
    end_offset : int
        End of the range, exclusive.
    is_lost : bool
        Whether the records are lost, because compaction did not remove them. If False, the cause of
        the gap is unknown.
    path, position_bytes
        The `.log` file and the position of the next batch.
    """

    topic: str
    partition: int
    first_offset: int
    end_offset: int
    is_lost: bool
    reason: str
    path: str
    position_bytes: int

    def __str__(self) -> str:
        partition = f"{self.topic}-{self.partition}"
        offsets = f"offsets {self.first_offset} to {self.end_offset - 1}"
        return f"{partition}: {offsets} are missing: {self.reason}"

    def error(self) -> CorruptLogError:
        return CorruptLogError(
            f"offsets {self.first_offset} to {self.end_offset - 1} are missing: {self.reason}",
            path=self.path,
            position_bytes=self.position_bytes,
            hint="restore the partition from another replica",
        )


@dataclass(frozen=True, slots=True)
class MissingOffsets:
    """Missing offsets in the logs that were read: the first ranges, and a count of other ranges."""

    ranges: tuple[OffsetGap, ...] = ()
    more: int = 0

    @property
    def count(self) -> int:
        return len(self.ranges) + self.more

    @property
    def lost(self) -> tuple[OffsetGap, ...]:
        return tuple(gap for gap in self.ranges if gap.is_lost)

    def as_object(self) -> dict[str, object]:
        """Return the JSON object for ``--summary``."""
        names = ("topic", "partition", "first_offset", "end_offset", "is_lost", "reason")
        ranges = [{name: getattr(gap, name) for name in names} for gap in self.ranges]
        return {"count": self.count, "ranges": ranges}

    @classmethod
    def joined(cls, missing_offsets: Iterable[Self]) -> Self:
        """Combine the missing offsets of several partitions; lost ranges come first."""
        partitions = list(missing_offsets)
        ranges = [gap for part in partitions for gap in part.ranges]
        ranges.sort(key=lambda gap: not gap.is_lost)
        more = sum(part.more for part in partitions) + max(len(ranges) - MAX_GAPS, 0)
        return cls(tuple(ranges[:MAX_GAPS]), more)


class Severity(IntEnum):
    """The severity of a report row, a list or a conclusion."""

    GOOD = 0
    NOTABLE = 1
    BAD = 2


GOOD, NOTABLE, BAD = Severity.GOOD, Severity.NOTABLE, Severity.BAD


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The conclusion of a run in one line, and a suggested command.

    Only a conclusion may use the words "nothing", "all" and "safe".
    """

    severity: Severity
    text: str
    next_command: str | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """A row of the status table: status, numbers, optional size in bytes, and meaning."""

    name: str
    numbers: tuple[int, ...]
    severity: Severity
    meaning: str
    size_bytes: int | None = None


def count_statuses(
    values: Iterable[_StatusValue], meanings: Mapping[_StatusValue, tuple[Severity, str]]
) -> list[Status]:
    """Return a row for each status that `values` contains, in the order of the meanings."""
    counts = Counter(values)
    return [
        Status(status.value, (counts[status],), *meaning)
        for status, meaning in meanings.items()
        if counts[status]
    ]


@dataclass(frozen=True, slots=True)
class Section:
    """A list below the status table.

    Attributes
    ----------
    lines : sequence of str
        The first lines. `total` is the number of all lines, including omitted lines.
    noun : str, optional
        Singular noun for what a line describes, for texts such as "and 3 more partitions".
    after : str
        Text after the number of omitted lines.
    is_detail : bool
        Print the list only with ``--verbose``.
    shows_all : bool
        Print all lines.
    """

    title: str
    lines: Sequence[str]
    severity: Severity = Severity.NOTABLE
    total: int | None = None
    noun: str | None = None
    after: str = ""
    is_detail: bool = False
    shows_all: bool = False


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of a value in a report column whose values an HTML page counts.

    `command` is a command line that shows details of a row. Column names are in braces.
    """

    severity: Severity
    text: str
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot of a report column; an HTML page omits plots without values.

    The plot has a bar for each row, or for each ``start_timestamp_ms`` if the rows have times. If
    `is_histogram`, the column contains JSON with the count of each bin by its smallest size.
    """

    title: str
    column: str
    unit: str
    is_histogram: bool = False


@dataclass(frozen=True, slots=True)
class PageColumns:
    """How an HTML page counts the rows of a report.

    Attributes
    ----------
    nouns : str
        Plural noun for what is counted, such as ``segments``.
    found_in : tuple of str
        Columns with findings. A row is counted under its first finding that is not null. It has the
        worst severity among its findings.
    meanings : mapping of str to Meaning
        The meanings of findings, best first.
    units, unit_values
        A column, and the values that it has in counted rows. If `units` is None, all rows are
        counted. If `unit_values` is empty, rows in which the column is not null are counted.
    weight : str, optional
        A column with the number of units that a row represents; by default 1.
    worst_where : str, optional
        A boolean column; a row is bad only if the value is True.
    decided_by : tuple of str and mapping of str to Severity, optional
        A column, and severities by value, which override the severities of findings.
    rows_are_segments : bool
        Rows are segments with ``log_path``. If False, the run passes segments to
        `ReportSink.add_segments`.
    plots : tuple of Plot
        Plots of report columns.
    """

    nouns: str
    found_in: tuple[str, ...]
    meanings: Mapping[str, Meaning] = field(default_factory=dict)
    units: str | None = None
    unit_values: tuple[str, ...] = ()
    weight: str | None = None
    worst_where: str | None = None
    decided_by: tuple[str, Mapping[str, Severity]] | None = None
    rows_are_segments: bool = False
    plots: tuple[Plot, ...] = ()


@dataclass(frozen=True, slots=True)
class ReportSpec:
    """The report of a command.

    Attributes
    ----------
    schema : pa.Schema
        The columns.
    page : PageColumns, optional
        How an HTML page counts the rows; if None, the command has no page.
    is_streamed : bool
        Rows are written to the `ReportSink` while they arrive, because their number is not bounded.
        In this case, the ``rows`` of the result are all rows if a Python function was called, and
        the first notable rows if a command was run. If False, `Result.to_arrow` returns the rows.
    """

    schema: pa.Schema
    page: PageColumns | None = None
    is_streamed: bool = False


class ReportSink(Protocol):
    """Receives report rows while they arrive."""

    def write_table(self, table: pa.Table) -> None:
        """Add rows with the columns of the report."""

    def add_segments(self, segments: Iterable[pa.RecordBatch]) -> None:
        """Add the input segments for plots; the iterable is consumed when the page is written."""

    def publish(self, conclusion: Conclusion, extra_files: Mapping[str, str]) -> None:
        """Publish the report durably before the run continues; afterwards, no rows can be added.

        `extra_files` has the contents of files next to a local report, keyed by file name suffix.
        """


class ReportRows:
    """A `ReportSink` that collects the rows in memory, for Python functions."""

    def __init__(self, schema: pa.Schema) -> None:
        self._tables = [schema.empty_table()]

    def write_table(self, table: pa.Table) -> None:
        self._tables.append(table)

    def add_segments(self, segments: Iterable[pa.RecordBatch]) -> None:
        """Do nothing, since only HTML pages show segments."""

    def publish(self, _conclusion: Conclusion, _extra_files: Mapping[str, str]) -> None:
        """Do nothing, since there is no file."""

    def to_table(self) -> pa.Table:
        return pa.concat_tables(self._tables)


class Result(ABC):
    """The result of a function of this package: a conclusion, counts, and a table of rows.

    Its representation is the conclusion and the first rows, in notebooks as a table. A result
    implements Arrow's C stream interface: ``pyarrow.table(result)``, ``polars.DataFrame(result)``,
    or ``SELECT * FROM result`` in DuckDB.
    """

    __slots__ = ()

    #: Headers of the status table: the status, then each number.
    status_header: ClassVar[tuple[str, ...]] = ("status", "count")

    @property
    @abstractmethod
    def command(self) -> str:
        """The name of the corresponding command."""

    @property
    @abstractmethod
    def headline(self) -> str:
        """A sentence about the work or the findings, without unread entries and missing offsets."""

    @property
    def conclusion(self) -> Conclusion:
        """The conclusion, printed in the terminal, the summary, HTML pages and notebooks."""
        severity = {RunOutcome.DONE: GOOD, RunOutcome.ENVIRONMENT: NOTABLE}.get(self.outcome, BAD)
        return Conclusion(severity, self._conclusion_text(), self.next_command)

    @property
    def statuses(self) -> Sequence[Status]:
        """Rows of the status table; empty if the result has no status table."""
        return ()

    @property
    def facts(self) -> Sequence[str]:
        """Lines below the status table; each line is a sentence without a full stop."""
        return ()

    @property
    def sections(self) -> Sequence[Section]:
        """Lists below the status table, for example of findings."""
        return ()

    @property
    def work_bytes(self) -> int:
        """Number of bytes that were read, to compute the throughput; 0 if unknown."""
        return 0

    @property
    def next_command(self) -> str | None:
        """The suggested next command, if any."""
        return None

    @property
    def skipped(self) -> Sequence[tuple[str, str]]:
        """Input entries that a broker would not load: paths with reasons."""
        return ()

    @property
    @abstractmethod
    def outcome(self) -> RunOutcome:
        """The outcome, which determines the exit code of the command."""

    @property
    @abstractmethod
    def counts(self) -> Mapping[str, int]:
        """Counts, with the names used in ``--summary``."""

    @property
    def unread(self) -> Sequence[str]:
        """Input entries that were not read, with reasons; if there are any, `ok` is False."""
        return ()

    @property
    def missing_offsets(self) -> MissingOffsets:
        """Missing offsets in the logs that were read; if records are lost, `ok` is False."""
        return MissingOffsets()

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Sizes in bytes, with the names used in ``--summary``."""
        return {}

    @abstractmethod
    def to_arrow(self) -> pa.Table:
        """Return the rows of the command's report."""

    @property
    def ok(self) -> bool:
        """Whether the command would exit with code 0."""
        return self.outcome is RunOutcome.DONE

    @property
    def summary(self) -> dict[str, object]:
        """The summary of the run for ``--summary``: outcome, counts and sizes."""
        return {
            "command": self.command,
            "outcome": self.outcome.value,
            "exit_code": self.outcome.exit_code,
            "conclusion": self.conclusion.text,
            "next_command": self.next_command,
            "counts": dict(self.counts),
            "bytes": dict(self.sizes_bytes),
            "missing_offsets": self.missing_offsets.as_object(),
        }

    def as_object(self) -> dict[str, object]:
        """Return the result as a JSON object, for ``--json``."""
        return self.summary

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a pandas data frame; integers stay integers even with nulls."""
        return self.to_arrow().to_pandas(types_mapper=_pandas_type)

    def raise_for_damage(self) -> None:
        """Raise an error unless the result is ok.

        Raises
        ------
        DamageError
            The data has errors.
        ReadError
            The environment failed; repeating the same call may succeed.
        InputError
            An input, an output or a setting was rejected.
        """
        if self.outcome is RunOutcome.DAMAGE:
            raise DamageError(f"{self.command}: {self._conclusion_text()}")
        if self.outcome is RunOutcome.ENVIRONMENT:
            raise ReadError(f"{self.command}: {self._conclusion_text()}", hint="repeat the call")
        if self.outcome is RunOutcome.USAGE:
            raise InputError(f"{self.command}: {self._conclusion_text()}")

    def _preview_rows(self) -> pa.Table:
        """Return the rows to print first, by default all rows."""
        return self.to_arrow()

    def _format_hidden_count(self, count: int) -> str:
        """Return the text about rows that are not printed."""
        return f"and {plural(count, 'more row')}; to_arrow() returns all rows"

    def _conclusion_text(self) -> str:
        """Return the headline, the first unread entry, and the first lost offsets."""
        parts = [self.headline]
        if self.unread:
            entries = plural(len(self.unread), "entry", "entries")
            parts.append(f"{entries} not read, such as {self.unread[0]}")
        lost_ranges = self.missing_offsets.lost
        if lost_ranges:
            count = plural(len(lost_ranges), "offset range")
            parts.append(f"{count} missing, such as {lost_ranges[0]}")
        return "; ".join(parts)

    def _outcome_word(self) -> str:
        """Return the outcome as one word."""
        return "ok" if self.ok else self.outcome.value

    def __bool__(self) -> bool:
        """Raise `TypeError`, because results would always be true, even if not ok."""
        name = type(self).__name__
        raise TypeError(f"a {name} is neither true nor false; use {name}.ok")

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the rows through Arrow's C stream interface."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        """Return the conclusion, counts and first rows as text that fits on a screen."""
        table = self._preview_rows()
        counts = ", ".join(f"{name} {count:,}" for name, count in self.counts.items() if count)
        lines = [f"{type(self).__name__}: {printable(self._conclusion_text())}"[:_TEXT_WIDTH]]
        lines += [counts[:_TEXT_WIDTH]] if counts else []
        lines += _format_table(table.slice(0, _TEXT_ROWS))
        if table.num_rows > _TEXT_ROWS:
            lines.append(self._format_hidden_count(table.num_rows - _TEXT_ROWS))
        next_line = f"next: {self.next_command}"
        # Omit the command if it is too long, because a shortened command could not be run.
        if self.next_command and len(next_line) <= _TEXT_WIDTH:
            lines.append(next_line)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the conclusion and first rows for a notebook."""
        table = self._preview_rows()
        shown_rows = table.slice(0, _HTML_ROWS)
        head = "".join(f"<th>{html.escape(name)}</th>" for name in table.column_names)
        body = "".join(
            f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>"
            for row in _format_cells(shown_rows)
        )
        hidden_count = table.num_rows - shown_rows.num_rows
        more = f"<p>{self._format_hidden_count(hidden_count)}</p>" if hidden_count else ""
        if self.next_command:
            more += f"<p>next: <code>{html.escape(self.next_command)}</code></p>"
        return (
            f"<div><p><strong>{html.escape(self.command)}: {self._outcome_word()}</strong>: "
            f"{html.escape(printable(self._conclusion_text()))}</p>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}</div>"
        )


@dataclass(frozen=True, repr=False)
class TableResult(Result):
    """A result that consists of a table and an outcome.

    Parameters
    ----------
    rows : pa.Table
        The rows.
    ended : RunOutcome
        The outcome: damage or environment if rows report errors.
    unread : tuple of str
        Input entries that were not read, with reasons.
    """

    rows: pa.Table
    ended: RunOutcome
    unread: tuple[str, ...] = ()

    @property
    def outcome(self) -> RunOutcome:
        """The outcome, which determines the exit code of the command."""
        return self.ended.with_damage(self.unread)

    def to_arrow(self) -> pa.Table:
        """Return the rows."""
        return self.rows


def _pandas_type(arrow_type: pa.DataType) -> object | None:
    """Return the nullable pandas type for integers; None for other types."""
    if not pa.types.is_integer(arrow_type):
        return None
    import pandas as pd  # noqa: PLC0415, optional

    pandas_type: object = pd.api.types.pandas_dtype(
        str(arrow_type).replace("int", "Int").replace("u", "U")
    )
    return pandas_type


def _format_table(table: pa.Table) -> list[str]:
    """Format the columns that have values and fit into the width of the text."""
    rows = _format_cells(table)
    lines = [""] * (len(rows) + 1)
    hidden_columns = 0
    for name, column, cells in zip(
        table.column_names, table.columns, zip(*rows, strict=True), strict=False
    ):
        if column.null_count == len(column):
            continue
        texts = [name, *cells]
        width = max(map(len, texts))
        if len(lines[0]) + len(_GAP) + width > _TEXT_WIDTH:
            hidden_columns += 1
            continue
        gap = _GAP if lines[0] else ""
        lines = [f"{line}{gap}{text:<{width}}" for line, text in zip(lines, texts, strict=True)]
    if hidden_columns:
        lines[0] += f"{_GAP}(+{hidden_columns})"
    return [line.rstrip() for line in lines if line] if rows else []


def _format_cells(table: pa.Table) -> list[Sequence[str]]:
    columns = [map(_format_cell, column.to_pylist()) for column in table.columns]
    return list(zip(*columns, strict=True))


def _format_cell(value: object) -> str:
    return "" if value is None else _shorten(printable(str(value)), _CELL_WIDTH)


def _shorten(text: str, width: int) -> str:
    """Omit a middle part of a text, but little of its end, since paths differ at their ends."""
    if len(text) <= width:
        return text
    prefix_length = width // 4
    return f"{text[:prefix_length]}…{text[prefix_length + 1 - width :]}"
