"""The results of lookups: reports of splits, results of tables and single queries, offset files.

The rows of a report are counts by partition and status, and findings about the logs.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import pyarrow as pa

from kafka_index.commands.lookup.request import LookupRequest
from kafka_index.core.errors import InputError, ReadError, plural
from kafka_index.core.format.human import shown_path
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.fs.durable_files import AtomicFile
from kafka_index.core.fs.paths import absolute_path, real_path, refuse_overlap
from kafka_index.core.fs.registry import atomic_file, store_of
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
from kafka_index.core.log.choices import By, Resolve, Status
from kafka_index.core.log.read.answers import (
    BATCH_BASE_OFFSET,
    FOUND_OFFSET,
    GAP,
    INDEX_REFUSED,
    NO_INDEX,
    TAIL,
    UNREADABLE,
    Answers,
    Findings,
    LookupFinding,
    SpecialTimestamp,
)
from kafka_index.core.query.inventory import NO_PARTITION
from kafka_index.core.query.lookups import Lookups, QueryBatch, integers, plain_array

#: A row with a ``status`` has the number of queries of a partition with this status (``queries``).
#: These rows add up to all queries. Any other row is a finding (``reason_code``,
#: ``segment_base_offset``, ``path``, ``position_bytes``, ``reason``). The ``queries`` of a finding
#: have no answer, or for `GAP`, their answer is the next batch. The first malformed queries are
#: findings with a file and a ``row`` number, which starts at 1.
LOOKUP_REPORT_SCHEMA = report_schema(
    [("queries", pa.int64()), ("position_bytes", pa.int64()), ("row", pa.int64())],
    required=("queries",),
)

# Statuses of queries with nonexistent or missing partitions, of which there may be any number.
_UNBOUNDED = (Status.UNKNOWN_PARTITION, Status.INVALID_QUERY)
_MAX_UNKNOWN = 10_000

#: Maximum number of findings in the report of a split.
MAX_FINDINGS = 1_000
#: Maximum number of malformed queries that are reported separately.
MAX_INVALID = 10

#: Topic and partition of queries, and the `Status` of their answers. Topic and partition are None
#: if the query has no valid value, or if a nonexistent partition is not counted separately.
QueryGroup = tuple[str | None, int | None, int]


@dataclass(frozen=True, slots=True)
class StartingOffset:
    """The offset at which to start reading a partition, None if the lookup did not find it."""

    topic: str | None
    partition: int | None
    status: int
    offset: int | None


@dataclass(frozen=True, slots=True)
class InvalidQuery:
    """A malformed query. Row numbers in a file start at 1 and do not count a CSV header."""

    path: str
    row: int
    topic: str | None
    partition: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class SplitReport:
    """The report of a task on its split; small and picklable.

    Attributes
    ----------
    number, rows : int
        The number of the split, and the number of its queries.
    counts : Counter
        Numbers of queries by partition and status.
    findings : tuple of LookupFinding
        The first `MAX_FINDINGS` findings.
    further_findings : int
        The number of findings that are not in `findings`.
    starting_offsets : tuple of StartingOffset
        A starting offset for each query, if requested. The number of starting offsets is at most
        the number of partitions plus one.
    invalid : tuple of InvalidQuery
        The first `MAX_INVALID` malformed queries.
    """

    number: int
    rows: int
    counts: Counter[QueryGroup]
    findings: tuple[LookupFinding, ...] = ()
    further_findings: int = 0
    starting_offsets: tuple[StartingOffset, ...] = ()
    invalid: tuple[InvalidQuery, ...] = ()


class LookupTotals:
    """The sum of the reports of all splits; not thread-safe.

    `rows_of_split` has the number of answers of each split, keyed by split number.
    `further_findings` is the number of unlisted findings, which may include duplicates of listed
    findings.
    """

    def __init__(self) -> None:
        self.rows_of_split: dict[int, int] = {}
        self.further_findings = 0
        self._counts: Counter[QueryGroup] = Counter()
        self._unknown = 0
        self._findings = Findings()
        self._starting_offsets: dict[int, tuple[StartingOffset, ...]] = {}
        self._invalid: dict[int, tuple[InvalidQuery, ...]] = {}

    def add(self, report: SplitReport) -> None:
        """Add the report of a split, except findings that were already added."""
        rows = self.rows_of_split.get(report.number, 0)
        self.rows_of_split[report.number] = rows + report.rows
        for group, queries in report.counts.items():
            self._count(group, queries)
        for finding in report.findings:
            self._findings.add(finding)
        self.further_findings += report.further_findings
        if report.invalid:
            self._invalid[report.number] = report.invalid
        if report.starting_offsets:
            self._starting_offsets[report.number] = report.starting_offsets

    @property
    def rows(self) -> int:
        """Number of answers."""
        return sum(self.rows_of_split.values())

    @property
    def queries_of_status(self) -> Mapping[Status, int]:
        """Number of queries by status, for all statuses."""
        totals = dict.fromkeys(Status, 0)
        for (_, _, status), queries in self._counts.items():
            totals[Status(status)] += queries
        return totals

    @property
    def findings(self) -> list[LookupFinding]:
        """Findings, sorted by partition, segment and position."""
        position = attrgetter("topic", "partition", "segment_base_offset", "position_bytes", "kind")
        return sorted(self._findings.all(), key=lambda finding: _none_first(position(finding)))

    @property
    def starting_offsets(self) -> list[StartingOffset]:
        """A starting offset for each query, in the order of the queries."""
        return [
            start
            for number in sorted(self._starting_offsets)
            for start in self._starting_offsets[number]
        ]

    @property
    def invalid_queries(self) -> list[InvalidQuery]:
        """The first `MAX_INVALID` malformed queries, in the order of the queries."""
        queries = [query for number in sorted(self._invalid) for query in self._invalid[number]]
        return queries[:MAX_INVALID]

    def report_table(self) -> pa.Table:
        """Return the report rows (`LOOKUP_REPORT_SCHEMA`): counts by partition, then findings."""
        rows: list[dict[str, object]] = [
            {
                "topic": topic,
                "partition": _int32_or_none(partition),
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
                "partition": _int32_or_none(query.partition),
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


#: The meanings of query statuses.
MEANINGS: Mapping[Status, str] = {
    Status.FOUND: "answered",
    Status.BEFORE_LOG_START: "the offset is before the log start offset",
    Status.LOG_END: "the offset is the log end offset: a fetch returns no record",
    Status.AFTER_LOG_END: "the offset is after the log end offset: out of range",
    Status.NO_RECORD_AT_OR_AFTER: "no record exists at or after the time or offset",
    Status.UNKNOWN_PARTITION: "the input has no segments of the partition",
    Status.INVALID_QUERY: "the query is malformed, null or negative, or requires another level",
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
            NO_INDEX: Meaning(GOOD, "the segment has no index files; indexes were built in memory"),
            INDEX_REFUSED: Meaning(
                NOTABLE,
                "the index file does not match its log; the index was rebuilt in memory",
                _DUMP,
            ),
            TAIL: Meaning(NOTABLE, "the log ends before the end of its file", _DUMP),
            GAP: Meaning(NOTABLE, "offsets are missing; queries were answered with the next batch"),
        },
        units="status",
        weight="queries",
    ),
)
# The columns that are printed first.
_FIRST_COLUMNS = (
    "status",
    "found_offset",
    "found_timestamp_ms",
    "batch_base_offset",
    "batch_last_offset",
)


class _QueriesResult(Result):
    """The result of queries: the number of queries by status, and findings about the logs."""

    command = "lookup"
    status_header = ("status", "queries")
    queries: Mapping[str, int]
    findings: Sequence[LookupFinding]

    @property
    def ended(self) -> RunOutcome:
        """The outcome of the queries only."""
        return queries_outcome(
            self.findings, unanswered=bool(self.queries.get(Status.UNREADABLE.text))
        )

    @property
    def outcome(self) -> RunOutcome:
        """Damage if corruption prevents an answer, environment if a failed read prevents it."""
        return self.ended.with_damage(self.unread)

    @property
    def counts(self) -> Mapping[str, int]:
        """Queries by status, and queries for missing offsets."""
        queries = {f"queries_{name}": count for name, count in self.queries.items()}
        return {**queries, "queries_behind_missing_offsets": count_gap_queries(self.findings)}

    @property
    def headline(self) -> str:
        """The number of queries by status, and of corrupt ranges without effect on answers."""
        total = plural(sum(self.queries.values()), "query", "queries")
        counts = ", ".join(f"{count:,} {name}" for name, count in self.queries.items() if count)
        ranges = sum(finding.kind == UNREADABLE for finding in self.findings)
        if ranges and not self.queries.get(Status.UNREADABLE.text):
            counts += f", {plural(ranges, 'corrupt range')}"
        return f"{total}: {counts}" if counts else total


@dataclass(frozen=True, repr=False)
class LookupResult(_QueriesResult):
    """The result of a table of queries.

    Parameters
    ----------
    rows : pa.Table
        From `lookup_offsets` and `lookup_timestamps`, a row for each query, in order: the columns
        of the query, followed by the answer columns. If a query is malformed or a log is
        unreadable, the status of the row reports it. For files of queries, the rows of the report.
    queries : mapping of str to int
        The numbers of queries by status.
    findings : sequence of LookupFinding
        Findings about the logs: missing or rejected index files, missing offsets, and corruption.
    unread : tuple of str
        Entries of the input that were not read, each with the reason.
    further_findings : int
        The number of findings that are not listed, which may include duplicates of listed findings.
    invalid : sequence of InvalidQuery
        The first malformed queries.
    output : str, optional
        The path of the answers.
    fail_on : tuple of str
        The result is not ok if a query has one of these statuses.
    repeated : RunOutcome, optional
        If the answers of an earlier run over the same inputs are up to date: its outcome.
    """

    rows: pa.Table
    queries: Mapping[str, int]
    findings: Sequence[LookupFinding] = ()
    unread: Sequence[str] = ()
    skipped: Sequence[tuple[str, str]] = ()
    further_findings: int = 0
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
        """The outcome; damage if a query has a status of ``--fail-on``."""
        return super().outcome.with_damage(self._failing_statuses)

    @property
    def conclusion(self) -> Conclusion:
        """The conclusion; its severity is at least notable if queries are malformed."""
        conclusion = super().conclusion
        if conclusion.severity is GOOD and self.queries.get(Status.INVALID_QUERY.text):
            return replace(conclusion, severity=NOTABLE)
        return conclusion

    @property
    def _failing_statuses(self) -> list[str]:
        return [status for status in self.fail_on if self.queries.get(status)]

    @property
    def headline(self) -> str:
        """The number of queries by status, and the path of the answers."""
        headline = super().headline
        if self.output is not None:
            headline += f"; answers in {self.output}"
        if self.repeated is not None:
            headline += " are up to date with the inputs, by size and time: nothing to do"
        for status in self._failing_statuses:
            count = plural(self.queries[status], "query is", "queries are")
            headline += f"; {count} {status} (--fail-on)"
        return headline

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
        lines = [
            f"{shown_path(query.path)}, row {query.row}: {query.reason}" for query in self.invalid
        ]
        sections = [Section(malformed, lines, total=count)] if lines else []
        return sections + findings_sections(
            self.findings, self.queries.get(Status.UNREADABLE.text, 0), self.further_findings
        )

    def to_arrow(self) -> pa.Table:
        """Return the rows."""
        return self.rows

    def _preview_rows(self) -> pa.Table:
        """Return the rows, with answer columns before the other columns."""
        names = self.rows.column_names
        first_columns = [names.index(name) for name in _FIRST_COLUMNS if names.count(name) == 1]
        return self.rows.select(list(dict.fromkeys((*first_columns, *range(len(names))))))


@dataclass(frozen=True, repr=False)
class SingleLookupResult(_QueriesResult):
    """The result of a single query: an answer for each partition.

    `queries` has the number of answers by status; the status is ``listed`` for a query without a
    key. `bounds` explains the status of a single answer.
    """

    answers: Sequence[Mapping[str, Any]]
    queries: Mapping[str, int]
    findings: Sequence[LookupFinding]
    unread: Sequence[str] = ()
    bounds: str = ""

    @property
    def sections(self) -> list[Section]:
        """The findings by kind."""
        return findings_sections(self.findings, self.queries.get(Status.UNREADABLE.text, 0))

    def to_arrow(self) -> pa.Table:
        """Return the answers."""
        return pa.Table.from_pylist(list(self.answers))


def findings_sections(
    findings: Sequence[LookupFinding], unanswered_count: int, unlisted_count: int = 0
) -> list[Section]:
    """Return the findings by kind.

    `unanswered_count` is the number of queries with status `UNREADABLE`. `unlisted_count` is the
    number of findings that are not in `findings`.
    """
    lines: dict[str, list[str]] = {}
    for finding in findings:
        lines.setdefault(finding.kind, []).append(finding_line(finding))
    unindexed = {
        (finding.topic, finding.partition, finding.segment_base_offset)
        for finding in findings
        if finding.kind == NO_INDEX
    }
    refused = plural(
        len(lines.get(INDEX_REFUSED, ())),
        "index file that does not match its log",
        "index files that do not match their logs",
    )
    gap_queries = plural(count_gap_queries(findings), "query", "queries")
    tails = plural(len(lines.get(TAIL, ())), "log that ends", "logs that end")
    titles: list[tuple[str, str, Severity]] = [
        (
            NO_INDEX,
            f"{plural(len(unindexed), 'segment')} without index files (built in memory):",
            GOOD,
        ),
        (INDEX_REFUSED, f"{refused} (rebuilt in memory):", NOTABLE),
        (GAP, f"{gap_queries} for missing offsets, answered with the next batch:", NOTABLE),
        (TAIL, f"{tails} before the end of the file:", NOTABLE),
    ]
    sections = [
        Section(title, lines[kind], severity) for kind, title, severity in titles if kind in lines
    ]
    damage = [finding for finding in findings if finding.kind == UNREADABLE]
    if damage or unanswered_count:
        cause = "failed reads" if any(finding.retriable for finding in damage) else "corruption"
        title = f"{plural(unanswered_count, 'query', 'queries')} not answered because of {cause}:"
        further_lines = [f"and up to {unlisted_count:,} more"] if unlisted_count else []
        sections.append(Section(title, [*lines.get(UNREADABLE, ()), *further_lines], BAD))
    return sections


def finding_line(finding: LookupFinding) -> str:
    """Format a finding as one line with its position and reason."""
    position = "" if finding.position_bytes is None else f" at byte {finding.position_bytes}"
    return f"{shown_path(finding.path)}{position}: {finding.reason}"


def count_gap_queries(findings: Iterable[LookupFinding]) -> int:
    """Return the number of queries for missing offsets, which are answered with the next batch."""
    return sum(finding.queries for finding in findings if finding.kind == GAP)


def _none_first(values: Iterable[object]) -> tuple[object, ...]:
    """Return a key that sorts None before any other value."""
    return tuple((value is not None, value) for value in values)


def queries_outcome(findings: Iterable[LookupFinding], *, unanswered: bool) -> RunOutcome:
    """Return the outcome of queries with these findings.

    `unanswered` is True if queries have the status `UNREADABLE`. If no finding explains this, the
    cause is assumed to be corruption.
    """
    is_retriable = [finding.retriable for finding in findings if finding.kind == UNREADABLE]
    return RunOutcome.of_faults(is_retriable or [False] * bool(unanswered))


def _int32_or_none(partition: int | None) -> int | None:
    return None if partition is None or abs(partition) > INT32_MAX else partition


# --------------------------------------------------------------------- files of starting offsets

# If a query has the first statuses, reading starts at the log end. The other statuses have no
# starting offset.
_AT_LOG_END = (Status.LOG_END, Status.NO_RECORD_AT_OR_AFTER, Status.AFTER_LOG_END)
_WITHOUT_OFFSET = (Status.UNKNOWN_PARTITION, Status.INVALID_QUERY, Status.UNREADABLE)

_Formatter = Callable[[Sequence[StartingOffset]], str]


@contextmanager
def offsets_files(
    request: LookupRequest, target: str | None = None
) -> Iterator[list[tuple[AtomicFile, _Formatter]]]:
    """Open the requested files of offsets; yield each file with the function that formats it.

    Raises `InputError` if a path is an input, is inside the output, or is given twice.
    """
    refuse_side_files(request, target)
    with ExitStack() as stack:
        yield [
            (stack.enter_context(atomic_file(absolute_path(path))), _FORMATTERS[name])
            for path, name in request.offsets_files
        ]


def write_offsets(
    files: Sequence[tuple[AtomicFile, _Formatter]],
    starts: Sequence[StartingOffset],
    findings: Sequence[LookupFinding],
) -> None:
    """Write the files of offsets; raise `ReadError` if a log could not be read."""
    failed_read = next(
        (finding for finding in findings if finding.retriable and finding.queries), None
    )
    if files and failed_read is not None:
        raise ReadError(
            f"the starting offsets cannot be determined: {failed_read.reason}",
            path=failed_read.path,
            hint="make the log readable and run again",
        )
    for file, format_offsets in files:
        file.write(format_offsets(starts).encode())


def refuse_side_files(
    request: LookupRequest, target: str | None, report: str | None = None
) -> None:
    """Reject side files that overlap with an input, the output, or each other."""
    output_paths = [] if target is None else [real_path(target)]
    queries = [request.queries] if request.queries else []
    inputs = [*request.folders, *queries]
    side_paths = [path for path, _ in request.offsets_files]
    for path in (*side_paths, *([] if report is None else [report])):
        real = real_path(path)
        if os.path.isdir(real):
            raise InputError(
                "the path is a folder, not a file", path=path, hint="give a file in the folder"
            )
        if store_of(real).is_special(real):
            raise InputError("the path is not a regular file", path=path, hint="give another file")
        refuse_overlap(real, path, inputs)
        if any(
            f"{real}/".startswith(f"{output}/") or f"{output}/".startswith(f"{real}/")
            for output in output_paths
        ):
            raise InputError(
                "the path equals, contains or is inside another output of this run",
                path=path,
                hint="give another path",
            )
        output_paths.append(real)


def find_starting_offsets(
    lookups: Lookups, queries: QueryBatch, answers: Answers, count: int
) -> list[StartingOffset]:
    """Return the starting offsets for the first `count` queries.

    At the record level, a starting offset is the offset of the found record. At the batch level, it
    is the requested offset, or for a timestamp, the base offset of the found batch. If no record
    was found, it is the log end, or the log start if the requested offset is lower.
    """
    topics = plain_array(queries.topics.slice(0, count)).cast(pa.large_binary()).to_pylist()
    partitions = plain_array(queries.partitions.slice(0, count))
    numbers, _ = integers(partitions)
    codes = lookups.inventory.codes(queries.topics.slice(0, count), numbers).tolist()
    found_offsets = _select_offsets(lookups, queries, answers, count)
    starts = []
    for row, (topic, partition, code) in enumerate(
        zip(topics, partitions.to_pylist(), codes, strict=True)
    ):
        status = Status(int(answers.status[row]))
        offset: int | None = None
        if code != NO_PARTITION and status not in _WITHOUT_OFFSET:
            log_start = lookups.start_offset(code)
            special = _special_timestamp(lookups, queries, row)
            if special is SpecialTimestamp.EARLIEST or status is Status.BEFORE_LOG_START:
                offset = log_start
            elif special is SpecialTimestamp.LATEST or status in _AT_LOG_END:
                offset = lookups.end_offset(code)
            else:
                # The first records of a batch may be below the log start, and therefore deleted.
                offset = max(int(found_offsets[row]), log_start)
            if offset is None:
                status = Status.UNREADABLE
        name = None if topic is None else topic.decode(errors="replace")
        starts.append(StartingOffset(name, partition, status, offset))
    return starts


def _select_offsets(lookups: Lookups, queries: QueryBatch, answers: Answers, count: int) -> Longs:
    offsets: Longs = queries.keys.values
    if lookups.settings.resolve is Resolve.RECORD:
        offsets = answers.values[FOUND_OFFSET]
    elif lookups.settings.by is By.TIMESTAMP:
        offsets = answers.values[BATCH_BASE_OFFSET]
    return offsets[:count]


def _special_timestamp(lookups: Lookups, queries: QueryBatch, row: int) -> SpecialTimestamp | None:
    key = int(queries.keys.values[row])
    if lookups.settings.by is By.OFFSET or not queries.keys.specials or key >= 0:
        return None
    return SpecialTimestamp(key)


def check_starting_offsets(starts: Sequence[StartingOffset]) -> dict[str, dict[int, int]]:
    """Return starting offsets keyed by topic and partition, sorted.

    Raises `InputError` if two queries have the same partition, or a query has no offset.
    """
    offsets: dict[str, dict[int, int]] = {}
    for start in starts:
        name = f"{start.topic}-{start.partition}"
        if start.topic is None or start.partition is None or start.offset is None:
            raise InputError(
                f"{name} has no starting offset: {Status(start.status).text}",
                hint="starting offsets require an answer for each query",
            )
        topic_offsets = offsets.setdefault(start.topic, {})
        if start.partition in topic_offsets:
            raise InputError(
                f"two queries have the partition {name}",
                hint="give one query for each partition",
            )
        topic_offsets[start.partition] = start.offset
    return {topic: dict(sorted(offsets[topic].items())) for topic in sorted(offsets)}


def starting_offsets_json(starts: Sequence[StartingOffset]) -> str:
    """Format offsets for Spark's ``startingOffsets`` (or ``endingOffsets``): one line of JSON.

    Spark requires an offset for every partition of the topics to which it subscribes. Raises the
    errors of `check_starting_offsets`.
    """
    return json.dumps(check_starting_offsets(starts), separators=(",", ":")) + "\n"


def reset_offsets_csv(starts: Sequence[StartingOffset]) -> str:
    """Format offsets for ``kafka-consumer-groups --reset-offsets --from-file`` with one group.

    The result has lines of topic, partition and offset, without a header
    (CsvUtils.CsvRecordNoGroup). No valid topic name requires quotes. Raises the errors of
    `check_starting_offsets`.
    """
    return "".join(
        f"{topic},{partition},{offset}\n"
        for topic, offsets in check_starting_offsets(starts).items()
        for partition, offset in offsets.items()
    )


_FORMATTERS: Mapping[str, _Formatter] = {
    "starting_offsets": starting_offsets_json,
    "reset_offsets": reset_offsets_csv,
}
