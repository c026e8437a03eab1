"""The results of lookups: of a split of queries, of a table, and of a single query.

The rows of a report are counts by partition and status, and findings about the logs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import pyarrow as pa

from kafka_index.core.errors import plural
from kafka_index.core.format.human import shown_path
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.job.result import (
    BAD,
    GOOD,
    NOTABLE,
    Conclusion,
    Meaning,
    PageColumns,
    ReportSpec,
    Result,
    RunOutcome,
    Section,
    Severity,
    report_schema,
)
from kafka_index.core.job.result import Status as StatusRow
from kafka_index.core.log.choices import Status
from kafka_index.core.log.read.answers import (
    GAP,
    INDEX_REFUSED,
    NO_INDEX,
    TAIL,
    UNREADABLE,
    Findings,
    LookupFinding,
)

#: A row is the number of queries of a partition with a status (``status``, ``queries``), or a
#: finding (``reason_code``, ``segment_base_offset``, ``path``, ``position_bytes``, ``reason``). The
#: ``queries`` of a finding have no answer because of it, or for `GAP` the next batch as answer. The
#: first malformed queries are findings with a file and a ``row`` in it, from 1. The rows with a
#: status add up to all queries.
LOOKUP_REPORT_SCHEMA = report_schema(
    [("queries", pa.int64()), ("position_bytes", pa.int64()), ("row", pa.int64())],
    required=("queries",),
)

# Queries may name any number of partitions that do not exist.
_UNBOUNDED = (Status.UNKNOWN_PARTITION, Status.INVALID_QUERY)
_MAX_UNKNOWN = 10_000

#: Maximum number of findings in the report of a split.
MAX_FINDINGS = 1_000
#: Maximum number of malformed queries that are reported separately.
MAX_INVALID = 10

#: Topic and partition, as in the queries, and `Status` of their answers. Topic and partition are
#: None for queries without them, and for further partitions that do not exist.
QueryGroup = tuple[str | None, int | None, int]


@dataclass(frozen=True, slots=True)
class StartingOffset:
    """The offset at which to start reading a partition, by one query; None without one."""

    topic: str | None
    partition: int | None
    status: int
    offset: int | None


@dataclass(frozen=True, slots=True)
class InvalidQuery:
    """A malformed query; rows of a file are numbered from 1, without the header of CSV."""

    path: str
    row: int
    topic: str | None
    partition: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class SplitReport:
    """The report of a task on its split; small and picklable.

    `counts` has the number of queries by partition and status, `rows` their sum. At most
    `MAX_FINDINGS` are listed; `findings_left_out` counts the others. If requested, there is a
    starting offset for each query, but at most one more than partitions. `invalid` has the first
    `MAX_INVALID` malformed queries.
    """

    number: int
    rows: int
    counts: Counter[QueryGroup]
    findings: tuple[LookupFinding, ...] = ()
    findings_left_out: int = 0
    starting_offsets: tuple[StartingOffset, ...] = ()
    invalid: tuple[InvalidQuery, ...] = ()


class LookupTotals:
    """The sum of the reports of all splits; not thread-safe.

    `rows_of_split` has the number of answers by number of the split. `findings_left_out` counts
    findings that are not listed; some may equal listed ones.
    """

    def __init__(self) -> None:
        self.rows_of_split: dict[int, int] = {}
        self.findings_left_out = 0
        self._counts: Counter[QueryGroup] = Counter()
        self._unknown = 0
        self._findings = Findings()
        self._starts: dict[int, tuple[StartingOffset, ...]] = {}
        self._invalid: dict[int, tuple[InvalidQuery, ...]] = {}

    def add(self, report: SplitReport) -> None:
        """Add a split; the same finding of several splits is listed once."""
        rows = self.rows_of_split.get(report.number, 0)
        self.rows_of_split[report.number] = rows + report.rows
        for group, queries in report.counts.items():
            self._count(group, queries)
        for finding in report.findings:
            self._findings.add(finding)
        self.findings_left_out += report.findings_left_out
        if report.invalid:
            self._invalid[report.number] = report.invalid
        if report.starting_offsets:
            self._starts[report.number] = report.starting_offsets

    @property
    def rows(self) -> int:
        """Number of answers."""
        return sum(self.rows_of_split.values())

    @property
    def queries_of_status(self) -> Mapping[Status, int]:
        """Number of queries by status, 0 included."""
        totals = dict.fromkeys(Status, 0)
        for (_, _, status), queries in self._counts.items():
            totals[Status(status)] += queries
        return totals

    @property
    def findings(self) -> list[LookupFinding]:
        """Findings, sorted by partition, segment and position."""
        place = attrgetter("topic", "partition", "segment_base_offset", "position_bytes", "kind")
        return sorted(self._findings.all(), key=lambda finding: _none_first(place(finding)))

    @property
    def starting_offsets(self) -> list[StartingOffset]:
        """A starting offset for each query, in the order of the queries."""
        return [start for number in sorted(self._starts) for start in self._starts[number]]

    @property
    def invalid_queries(self) -> list[InvalidQuery]:
        """The first `MAX_INVALID` malformed queries, in the order of the queries."""
        first = [one for number in sorted(self._invalid) for one in self._invalid[number]]
        return first[:MAX_INVALID]

    def report_table(self) -> pa.Table:
        """Return the report, `LOOKUP_REPORT_SCHEMA`: counts by partition, then findings."""
        rows: list[dict[str, object]] = [
            {
                "topic": topic,
                "partition": _as_int32(partition),
                "status": Status(status).text,
                "queries": self._counts[topic, partition, status],
            }
            for topic, partition, status in sorted(self._counts, key=_none_first)
        ]
        rows += [
            {
                "topic": finding.topic,
                "partition": finding.partition,
                "queries": finding.queries,
                "reason_code": finding.kind,
                "segment_base_offset": finding.segment_base_offset,
                "path": finding.path,
                "position_bytes": finding.position_bytes,
                "reason": finding.reason,
            }
            for finding in self.findings
        ]
        rows += [
            {
                "topic": query.topic,
                "partition": _as_int32(query.partition),
                "queries": 1,
                "reason_code": Status.INVALID_QUERY.text,
                "path": query.path,
                "reason": query.reason,
                "row": query.row,
            }
            for query in self.invalid_queries
        ]
        return pa.Table.from_pylist(rows, schema=LOOKUP_REPORT_SCHEMA)

    def _count(self, group: QueryGroup, queries: int) -> None:
        if group[2] in _UNBOUNDED and group not in self._counts:
            if self._unknown >= _MAX_UNKNOWN:
                group = (None, None, group[2])
            self._unknown += 1
        self._counts[group] += queries


#: What the statuses of queries mean.
MEANINGS: Mapping[Status, str] = {
    Status.FOUND: "answered",
    Status.BEFORE_LOG_START: "before the log start offset",
    Status.LOG_END: "the log end offset: a fetch returns no record",
    Status.AFTER_LOG_END: "after the log end offset: out of range",
    Status.NO_RECORD_AT_OR_AFTER: "no record at or after the time, or compaction left none",
    Status.UNKNOWN_PARTITION: "the input has no segments of that partition",
    Status.INVALID_QUERY: "malformed, null, negative, or not possible at this level",
    Status.UNREADABLE: "corruption or a failed read prevents the answer",
}
_SEVERITIES = {Status.FOUND: GOOD, Status.LOG_END: GOOD, Status.UNREADABLE: BAD}
_DUMP = "kafka-index dump {path}"

LOOKUP_REPORT = ReportSpec(
    LOOKUP_REPORT_SCHEMA,
    PageColumns(
        "queries",
        ("status", "reason_code"),
        {
            **{
                status.text: Meaning(_SEVERITIES.get(status, NOTABLE), text, None)
                for status, text in MEANINGS.items()
            },
            Status.UNREADABLE.text: Meaning(BAD, MEANINGS[Status.UNREADABLE], _DUMP),
            NO_INDEX: Meaning(GOOD, "a segment without index files: built in memory"),
            INDEX_REFUSED: Meaning(
                NOTABLE, "an index file that does not match its log: built in memory", _DUMP
            ),
            TAIL: Meaning(NOTABLE, "a log that ends before the end of its file", _DUMP),
            GAP: Meaning(NOTABLE, "queries for missing offsets, answered with the next batch"),
        },
        units="status",
        weight="queries",
    ),
)
# The columns of answers that are printed first.
_FIRST = ("status", "found_offset", "found_timestamp_ms", "batch_base_offset", "batch_last_offset")


class _QueriesResult(Result):
    """A result of queries: their number by status, and findings about the logs."""

    command = "lookup"
    status_header = ("status", "queries")
    queries: Mapping[str, int]
    findings: Sequence[LookupFinding]

    @property
    def ended(self) -> RunOutcome:
        """The outcome of the queries only."""
        return outcome_of(self.findings, unanswered=bool(self.queries.get(Status.UNREADABLE.text)))

    @property
    def outcome(self) -> RunOutcome:
        """Damage if corruption makes an answer unreadable, environment if a failed read does."""
        return self.ended.with_damage(self.unread)

    @property
    def counts(self) -> Mapping[str, int]:
        """Queries by status, and queries for missing offsets."""
        behind = behind_gaps(self.findings)
        queries = {f"queries_{name}": count for name, count in self.queries.items()}
        return {**queries, "queries_behind_missing_offsets": behind}

    @property
    def headline(self) -> str:
        """The number of queries by status, and of corrupt ranges without effect on answers."""
        total = plural(sum(self.queries.values()), "query", "queries")
        found = ", ".join(f"{count:,} {name}" for name, count in self.queries.items() if count)
        places = sum(finding.kind == UNREADABLE for finding in self.findings)
        if places and not self.queries.get(Status.UNREADABLE.text):
            found += f", {plural(places, 'corrupt range')}"
        return f"{total}: {found}" if found else total


@dataclass(frozen=True, repr=False)
class LookupResult(_QueriesResult):
    """The result of a table of queries.

    Parameters
    ----------
    rows : pa.Table
        From `lookup_offsets` and `lookup_timestamps`, a row for each query, in order: its columns,
        followed by the answer columns. The error of a query or a log is the status of its row. For
        files of queries, the rows of the report.
    queries : mapping of str to int
        The numbers of queries by status.
    findings : sequence of LookupFinding
        Missing and rejected index files, missing offsets, and corruption.
    unread : tuple of str
        Entries of the input that were not read, each with the reason.
    findings_left_out : int
        Maximum number of findings that are not listed.
    invalid : sequence of InvalidQuery
        The first malformed queries.
    output : str, optional
        The path of the answers.
    fail_on : tuple of str
        The statuses of queries with which the result is not ok.
    repeated : RunOutcome, optional
        The outcome of an earlier run over the same inputs, whose answers are up to date.
    """

    rows: pa.Table
    queries: Mapping[str, int]
    findings: Sequence[LookupFinding] = ()
    unread: Sequence[str] = ()
    skipped: Sequence[tuple[str, str]] = ()
    findings_left_out: int = 0
    invalid: Sequence[InvalidQuery] = ()
    output: str | None = None
    fail_on: tuple[str, ...] = ()
    repeated: RunOutcome | None = None

    @property
    def ended(self) -> RunOutcome:
        """The outcome of the queries only."""
        return super().ended if self.repeated is None else self.repeated

    @property
    def outcome(self) -> RunOutcome:
        """Damage also for statuses of ``--fail-on``."""
        return super().outcome.with_damage(self._failing)

    @property
    def conclusion(self) -> Conclusion:
        """The conclusion; malformed queries are notable."""
        found = super().conclusion
        if found.severity is GOOD and self.queries.get(Status.INVALID_QUERY.text):
            return replace(found, severity=NOTABLE)
        return found

    @property
    def _failing(self) -> list[str]:
        return [status for status in self.fail_on if self.queries.get(status)]

    @property
    def headline(self) -> str:
        """The number of queries by status, and the path of the answers."""
        text = super().headline
        if self.output is not None:
            text += f"; answers in {self.output}"
        if self.repeated is not None:
            text += " are up to date with these inputs, by size and time: nothing to do"
        for status in self._failing:
            count = plural(self.queries[status], "query is", "queries are")
            text += f"; {count} {status} (--fail-on)"
        return text

    @property
    def statuses(self) -> list[StatusRow]:
        """The number of queries by status."""
        return [
            StatusRow(status.text, (count,), _SEVERITIES.get(status, NOTABLE), MEANINGS[status])
            for status in Status
            if (count := self.queries.get(status.text, 0))
        ]

    @property
    def sections(self) -> list[Section]:
        """Malformed queries, and the findings by kind."""
        count = self.queries.get(Status.INVALID_QUERY.text, 0)
        malformed = f"{plural(count, 'malformed query', 'malformed queries')}:"
        lines = [f"{shown_path(one.path)}, row {one.row}: {one.reason}" for one in self.invalid]
        sections = [Section(malformed, lines, total=count)] if lines else []
        return sections + findings_sections(
            self.findings, self.queries.get(Status.UNREADABLE.text, 0), self.findings_left_out
        )

    def to_arrow(self) -> pa.Table:
        """Return the rows."""
        return self.rows

    def _preview_rows(self) -> pa.Table:
        """Return the rows with the answers first."""
        names = self.rows.column_names
        first = [names.index(name) for name in _FIRST if names.count(name) == 1]
        return self.rows.select([*first, *(at for at in range(len(names)) if at not in first)])


@dataclass(frozen=True, repr=False)
class QuestionResult(_QueriesResult):
    """The result of a single query: an answer for each partition.

    `queries` counts answers by status, or as ``listed`` for a query without a key. `place` explains
    the status of a single answer.
    """

    answers: Sequence[Mapping[str, Any]]
    queries: Mapping[str, int]
    findings: Sequence[LookupFinding]
    unread: Sequence[str] = ()
    place: str = ""

    @property
    def sections(self) -> list[Section]:
        """The findings by kind."""
        return findings_sections(self.findings, self.queries.get(Status.UNREADABLE.text, 0))

    def to_arrow(self) -> pa.Table:
        """Return the answers."""
        return pa.Table.from_pylist(list(self.answers))


def findings_sections(
    findings: Iterable[LookupFinding], unanswered: int, left_out: int = 0
) -> list[Section]:
    """Return the findings by kind; `unanswered` queries are unreadable."""
    lines: dict[str, list[str]] = {}
    listed = list(findings)
    for finding in listed:
        lines.setdefault(finding.kind, []).append(finding_line(finding))
    damage = [finding for finding in listed if finding.kind == UNREADABLE]
    cause = "failed reads" if any(finding.retriable for finding in damage) else "corruption"
    behind = plural(behind_gaps(listed), "query", "queries")
    missing = {
        (one.topic, one.partition, one.segment_base_offset)
        for one in listed
        if one.kind == NO_INDEX
    }
    titles: list[tuple[str, str, Severity]] = [
        (NO_INDEX, f"{plural(len(missing), 'segment')} without index files: built in memory", GOOD),
        (INDEX_REFUSED, "{}: built in memory instead", NOTABLE),
        (GAP, f"{behind} for missing offsets, answered with the next batch:", NOTABLE),
        (TAIL, "{} before the end of the file:", NOTABLE),
    ]
    nouns = {
        INDEX_REFUSED: (
            "index file that does not match its log",
            "index files that do not match their logs",
        ),
        TAIL: ("log ends", "logs end"),
    }
    sections = [
        Section(
            title.format(plural(len(lines[kind]), *nouns[kind])) if kind in nouns else title,
            lines[kind],
            severity,
        )
        for kind, title, severity in titles
        if kind in lines
    ]
    if damage or unanswered:
        title = f"{plural(unanswered, 'query', 'queries')} not answered because of {cause}:"
        more = f"and up to {left_out:,} more" if left_out else ""
        sections.append(
            Section(title, [*lines.get(UNREADABLE, ()), *([more] if more else [])], BAD)
        )
    return sections


def finding_line(finding: LookupFinding) -> str:
    """Return a finding as one line: place and reason."""
    place = "" if finding.position_bytes is None else f" at byte {finding.position_bytes}"
    return f"{shown_path(finding.path)}{place}: {finding.reason}"


def behind_gaps(findings: Iterable[LookupFinding]) -> int:
    """Return the number of queries for missing offsets, answered with the next batch."""
    return sum(finding.queries for finding in findings if finding.kind == GAP)


def _none_first(values: Iterable[object]) -> tuple[object, ...]:
    """Return a key that sorts None before any other value."""
    return tuple((value is not None, value) for value in values)


def outcome_of(findings: Iterable[LookupFinding], *, unanswered: bool) -> RunOutcome:
    """Return the outcome for findings of all kinds; `unanswered` means unreadable queries."""
    causes = [finding.retriable for finding in findings if finding.kind == UNREADABLE]
    return RunOutcome.of_faults(causes or [False] * bool(unanswered))


def _as_int32(partition: int | None) -> int | None:
    """Return a partition number, None for a number that does not fit into int32."""
    return None if partition is None or abs(partition) > INT32_MAX else partition
