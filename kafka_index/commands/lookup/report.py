"""The report of a run: counts by partition and status, and findings about the logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter

import pyarrow as pa

from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.job.result import RunOutcome, report_schema
from kafka_index.core.log.read.answers import GAP, UNREADABLE, Finding, Findings, Status

#: A row holds how many queries of a partition have a status (``status``, ``queries``), or a finding
#: (``reason_code``, ``segment_base_offset``, ``path``, ``position_bytes``, ``reason``, and in
#: ``queries`` how many have no answer because of it, or for `GAP` one from behind a gap). The first
#: malformed queries are findings too, each with its file and its ``row`` in it, from 1. The rows
#: with a status add up to all queries.
LOOKUP_REPORT_SCHEMA = report_schema(
    [("queries", pa.int64()), ("position_bytes", pa.int64()), ("row", pa.int64())],
    required=("queries",),
)

# Queries may name any number of partitions that do not exist.
_UNBOUNDED = (Status.UNKNOWN_PARTITION, Status.INVALID_QUERY)
_MAX_UNKNOWN = 10_000

#: Findings that the report of a split holds.
MAX_FINDINGS = 1_000
#: Malformed queries that are reported one by one.
MAX_INVALID = 10

#: Topic and partition, as in the queries, and `Status` of their answers. The first two are None
#: for queries that name none, and for the rest of too many partitions that do not exist.
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
    """A query that cannot be answered as it is.

    Its row counts from 1 in the file; the header of CSV does not count.
    """

    path: str
    row: int
    topic: str | None
    partition: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class SplitReport:
    """The report of a task on its split; small, picklable.

    `counts` has the queries of each partition and status, which add up to `rows`. At most
    `MAX_FINDINGS` are listed; `findings_left_out` counts the others. Starting offsets, if
    requested, are one a query, up to one more than there are partitions. `invalid` has the first
    `MAX_INVALID`.
    """

    number: int
    rows: int
    counts: Counter[QueryGroup]
    findings: tuple[Finding, ...] = ()
    findings_left_out: int = 0
    starting_offsets: tuple[StartingOffset, ...] = ()
    invalid: tuple[InvalidQuery, ...] = ()


class LookupTotals:
    """The reports of all splits, added up; not thread-safe.

    `rows_of_split` counts the answers of each split, by its number, and `findings_left_out` the
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
        """Add a split; findings that several splits report are one finding."""
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
        """Answers so far."""
        return sum(self.rows_of_split.values())

    @property
    def queries_of_status(self) -> Mapping[Status, int]:
        """Queries of each status, including those of no query."""
        totals = dict.fromkeys(Status, 0)
        for (_, _, status), queries in self._counts.items():
            totals[Status(status)] += queries
        return totals

    @property
    def findings(self) -> list[Finding]:
        """Findings, sorted by partition, segment and position."""
        place = attrgetter("topic", "partition", "segment_base_offset", "position_bytes", "kind")
        return sorted(self._findings.all(), key=lambda finding: _none_first(place(finding)))

    @property
    def starting_offsets(self) -> list[StartingOffset]:
        """One a query, in the order of the queries."""
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


def behind_gaps(findings: Iterable[Finding]) -> int:
    """Return the number of queries for offsets that no batch holds, and the next one answers."""
    return sum(finding.queries for finding in findings if finding.kind == GAP)


def _none_first(values: Iterable[object]) -> tuple[object, ...]:
    """Return a key that sorts None before any other value."""
    return tuple((value is not None, value) for value in values)


def outcome_of(findings: Iterable[Finding], *, unanswered: bool) -> RunOutcome:
    """Return the outcome for findings of all kinds; `unanswered`: some query is unreadable."""
    causes = [finding.retriable for finding in findings if finding.kind == UNREADABLE]
    return RunOutcome.of_faults(causes or [False] * bool(unanswered))


def _as_int32(partition: int | None) -> int | None:
    """Return the number of a partition, or None for a number that no partition can have."""
    return None if partition is None or abs(partition) > INT32_MAX else partition
