"""Look up tables of queries in memory or files; each split of files becomes one output part."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.commands.lookup.output import (
    ARROW_ENDING,
    AnswerTarget,
    LookupManifest,
    inputs_digest,
    list_output_files,
    manifest_file,
    open_answers,
    resolve_answer_format,
)
from kafka_index.commands.lookup.queries import (
    READ_ROWS,
    SPLIT_ROWS,
    Queries,
    QueryFormat,
    QuerySplit,
    check_columns,
    open_queries,
    read_split,
)
from kafka_index.commands.lookup.request import LookupRequest, MemoryLookupRequest
from kafka_index.commands.lookup.result import (
    MAX_FINDINGS,
    MAX_INVALID,
    InvalidQuery,
    LookupResult,
    LookupTotals,
    QueryGroup,
    SplitReport,
    StartingOffset,
    find_starting_offsets,
    offsets_files,
    write_offsets,
)
from kafka_index.core.errors import InputError, KafkaIndexError, argument_text
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.times import now_ms
from kafka_index.core.fs.inputs import reading_inputs, skipped_texts, unread_texts
from kafka_index.core.fs.paths import absolute_path
from kafka_index.core.fs.registry import atomic_file
from kafka_index.core.job.engine import SILENT, Engine, Listener, Workers
from kafka_index.core.job.request import TimeKind
from kafka_index.core.job.result import ReportSink, RunOutcome
from kafka_index.core.log.choices import By, Resolve, Status
from kafka_index.core.log.read.answers import (
    Answers,
    SpecialTimestamp,
)
from kafka_index.core.logdir.segment_table import PartitionSegments
from kafka_index.core.query.inventory import (
    NO_PARTITION,
    Inventory,
    find_unindexed,
    inventory_notes,
)
from kafka_index.core.query.lookups import (
    PARTITION,
    TOPIC,
    Keys,
    Lookups,
    LookupSettings,
    QueryBatch,
    SharedLookups,
    integers,
    plain_array,
)

# If a run has one of these outcomes, a repeated run over the same inputs has the same outcome.
_FINAL = (RunOutcome.DONE, RunOutcome.DAMAGE)


def look_up(
    request: LookupRequest,
    engine: Engine,
    listener: Listener | None = None,
    report: ReportSink | None = None,
    *,
    build_missing: BuildMissing | None = None,
) -> LookupResult:
    """Look up a table of queries.

    If tasks do not share memory, `build_missing` builds missing indexes once for all tasks. Raises
    `KafkaIndexError` if the run cannot start or continue.
    """
    with reading_inputs(follow_links=request.follow_links) as unread:
        if isinstance(request, MemoryLookupRequest):
            result = _look_up_table(request)
        else:
            listener = listener or SILENT
            result = _FileLookup(request, engine, listener, report, build_missing).run()
    return replace(result, unread=unread_texts(unread))


# ------------------------------------------------------------------------------- tables in memory


def _look_up_table(request: MemoryLookupRequest) -> LookupResult:
    by = request.by
    assert by is not None  # noqa: S101, functions give it
    names = pa.schema([(TOPIC, pa.string()), (PARTITION, pa.int32()), (by.column, pa.int64())])
    table = _to_table(request.queries, names)
    queries = _parse_times(table, by)
    check_columns(queries.schema, by)
    settings = LookupSettings(by, request.resolve, request.log_config)
    with Lookups(request.collect_inventory(), settings) as lookups:
        answers = lookups.answer_rows(queries)
        findings = lookups.drain_findings()
    answer_table = answers.to_arrow()
    schema = pa.schema([*table.schema, *answer_table.schema], metadata=table.schema.metadata)
    counts = np.bincount(answers.status, minlength=len(Status)).tolist()
    return LookupResult(
        pa.table([*table.columns, *answer_table.columns], schema=schema),
        {status.text: counts[status] for status in Status},
        findings,
    )


def _to_table(rows: object, columns: pa.Schema) -> pa.Table:
    """Convert an object that exports Arrow's C stream, or a list of dicts, to a table.

    An empty list becomes an empty table with `columns`. Raises `InputError` for anything else.
    """
    expected = "a table that exports Arrow's C stream interface, or a list of dicts"
    queries: Any = rows
    try:
        if isinstance(queries, pa.Table):
            return queries
        if hasattr(queries, "__arrow_c_stream__") or isinstance(queries, pa.RecordBatch):
            return pa.table(queries)
        is_list = isinstance(queries, Sequence) and not isinstance(queries, str | bytes | bytearray)
        if is_list and all(isinstance(row, Mapping) for row in queries):
            names = dict.fromkeys(name for row in queries for name in row)
            values = {name: [row.get(name) for row in queries] for name in names}
            return pa.table(values) if queries else columns.empty_table()
    except (pa.ArrowException, TypeError) as error:
        raise InputError(f"queries is not a table: {error}", expected=expected) from error
    raise InputError("queries is not a table", expected=expected, found=argument_text(rows))


def _parse_times(table: pa.Table, by: By) -> pa.Table:
    """Convert a column of strings with absolute or relative times to milliseconds.

    Raises `InputError` for the first string that is not a time.
    """
    if by is not By.TIMESTAMP or table.schema.names.count(by.column) != 1:
        return table
    column = plain_array(table.column(by.column))
    types = pa.types
    if not any(
        is_text(column.type)
        for is_text in (types.is_string, types.is_large_string, types.is_string_view)
    ):
        return table
    time_strings = column.cast(pa.string())
    keys, now = Keys.from_column(time_strings, by), now_ms()
    values, is_valid = keys.values.copy(), keys.is_valid
    if is_valid is not None:
        is_valid = is_valid.copy()
        for row in np.flatnonzero(
            ~is_valid & time_strings.is_valid().to_numpy(zero_copy_only=False)
        ):
            values[row] = TimeKind().convert(
                time_strings[int(row)].as_py(), "queries: timestamp", now
            )
            is_valid[row] = True
    position = table.schema.get_field_index(by.column)
    return table.set_column(position, by.column, Keys(values, is_valid).to_arrow())


# ------------------------------------------------------------------------------- tables in files


class _FileLookup:
    """Looks up queries in files, and writes the answers to files."""

    def __init__(
        self,
        request: LookupRequest,
        engine: Engine,
        listener: Listener,
        report: ReportSink | None,
        build_missing: BuildMissing | None,
    ) -> None:
        self._request = request
        self._build_missing = build_missing
        self._engine = engine
        self._listener = listener
        self._report = report
        self._by = by = request.by or By.OFFSET
        self._queries = open_queries(request.queries, by)
        self._inventory = request.collect_inventory()
        self._settings = LookupSettings(
            by, request.resolve or by.default_resolve, request.log_config
        )
        self._output = absolute_path(str(request.output))
        self._totals = LookupTotals()

    def run(self) -> LookupResult:
        """Look up the queries, unless the answers of an earlier run are up to date."""
        request, output = self._request, self._output
        digest = inputs_digest(
            self._queries,
            self._inventory,
            self._settings,
            output_format=resolve_answer_format(str(request.output), self._queries),
            upper_bound=request.upper_bound,
        )
        side_files = [absolute_path(path) for path, _ in request.offsets_files]
        previous = None if request.overwrite else manifest_file(output).read()
        is_repeat = previous is not None and previous.matches(digest, output, side_files)
        # If a report is requested, run again, because the manifest does not contain the report
        # rows.
        if previous is not None and is_repeat and previous.is_finished and self._report is None:
            return self._result(dict(previous.queries), repeated=previous.outcome)
        # Check the output before the lookups, so that a run with an invalid output ends early.
        target = AnswerTarget(
            str(request.output),
            self._queries,
            inputs=[*request.folders, request.queries],
            # A repeated run replaces the answers of an earlier run that could not read all logs.
            overwrite=request.overwrite or is_repeat,
        )
        with offsets_files(request, target.path) as files, target:
            self._answer_queries(target)
            totals = self._totals
            write_offsets(files, totals.starting_offsets, totals.findings)
            for file, _ in files:
                file.commit()
            target.publish(
                totals.rows_of_split,
                lambda sizes: manifest_file(output).write(
                    LookupManifest(
                        inputs=digest,
                        files=tuple((path, size, "") for path, size in sizes.items()),
                    )
                ),
            )
        result = self._result(
            {status.text: count for status, count in totals.queries_of_status.items()}
        )
        try:
            manifest = LookupManifest(
                inputs=digest,
                is_finished=result.ended in _FINAL,
                files=list_output_files(output, side_files),
                queries=tuple(result.queries.items()),
                outcome=result.ended,
            )
            manifest_file(output).write(manifest)
        except (KafkaIndexError, OSError) as error:
            # The answers are complete, but a repeated run will not find the manifest.
            self._listener.on_note(f"the manifest of the run cannot be written: {error}")
        return result

    def _result(
        self, queries: Mapping[str, int], *, repeated: RunOutcome | None = None
    ) -> LookupResult:
        totals = self._totals
        return LookupResult(
            totals.report_table(),
            queries,
            totals.findings,
            skipped=skipped_texts(self._inventory.skipped),
            further_findings=totals.further_findings,
            invalid=totals.invalid_queries,
            output=self._output,
            fail_on=self._request.fail_on,
            repeated=repeated,
        )

    def _answer_queries(self, target: AnswerTarget) -> None:
        queries, inventory, totals = self._queries, self._inventory, self._totals
        unindexed = find_unindexed(inventory, self._by)
        for note in inventory_notes(inventory, unindexed):
            self._listener.on_note(note)
        if self._report is not None:
            self._report.add_segments(_segment_rows(inventory))
        self._listener.on_plan(queries.rows or 0, None, ("query", "queries"))
        try:
            with self._engine.start(
                "lookup",
                after_failure="no answers were written: run again",
                listener=self._listener,
                tasks=len(queries.splits),
                inputs=[*inventory.partitions["directory"].to_pylist(), *queries.files],
                outputs=[os.path.dirname(target.part_path(queries.splits[0]))],
            ) as workers:
                for split in answer_queries(
                    workers,
                    queries,
                    inventory,
                    self._settings,
                    target,
                    starting_offsets=bool(self._request.offsets_files),
                    prepare=self._make_prepare(workers, unindexed),
                ):
                    totals.add(split)
                    self._listener.on_done(split.rows)
        except BaseException as error:
            if totals.rows:
                total = f" of {queries.rows:,}" if queries.rows else ""
                error.add_note(f"{totals.rows:,}{total} queries were answered")
                if self._report is not None:
                    self._report.write_table(totals.report_table())
            error.add_note("no answers were written")
            raise
        if not totals.rows:
            # A run without queries must not report success.
            raise InputError(
                "the files contain no queries", path=self._request.queries, hint="check --queries"
            )

    def _make_prepare(self, workers: Workers, unindexed: pa.Table) -> Prepare | None:
        """Return the function that builds missing indexes, None if it is not needed."""
        if self._build_missing is None or workers.in_process or not unindexed.num_rows:
            return None
        return partial(self._build_missing, workers, unindexed)


def _segment_rows(inventory: Inventory) -> Iterator[pa.RecordBatch]:
    for code in range(inventory.partitions.num_rows):
        segments = inventory.partition_files(code).segments
        if segments:
            yield PartitionSegments.from_files(segments).rows()


def answer_split(
    split: QuerySplit,
    lookups: Lookups,
    part_path: str,
    *,
    attempt_id: str,
    starting_offsets: bool = False,
) -> SplitReport:
    """Look up the queries of a split, and write the answers to one file, atomically and durably.

    `lookups` belongs to this thread or worker. The report includes its findings since the last
    report. The file name extension of `part_path` (`AnswerTarget.part_path`) determines the format
    of the answers. With an unknown extension, answers have the format of the queries. Concurrent
    attempts at a split have different attempt IDs, which consist of letters, digits and
    underscores. Raises `InputError` if the queries cannot be read or converted to the format, and
    `PublishError` if the part cannot be written.
    """
    to_join = part_path.endswith(ARROW_ENDING)
    form = QueryFormat.PARQUET if to_join else QueryFormat.from_path(part_path) or split.format
    stats = SplitStats(split, lookups, starting_offsets=starting_offsets)
    folder, name = os.path.split(part_path)
    scratch = os.path.join(folder, f".{name}.{attempt_id}.tmp")
    # If not all segments can stay open, every batch of queries opens them again. In this case, use
    # a few large batches.
    needs_large_batches = lookups.inventory.segment_count > lookups.settings.max_open_segments
    batches = read_split(
        split,
        as_parquet=form is QueryFormat.PARQUET,
        max_rows=SPLIT_ROWS if needs_large_batches else READ_ROWS,
    )
    with atomic_file(part_path, scratch_path=scratch, noun="answers") as file:
        try:
            with (
                file.writing(),
                open_answers(file.scratch_path, form, split, to_join=to_join) as write,
            ):
                for rows in batches:
                    queries = QueryBatch.from_table(rows, split.by)
                    answers = lookups.answer(queries)
                    write(rows, queries, answers)
                    stats.add(rows, queries, answers)
        except pa.ArrowException as error:
            raise InputError(
                f"the queries cannot be written as {form.text}: {error}", path=split.path
            ) from error
        file.commit(durable=not to_join)
    return stats.report()


@dataclass(frozen=True, slots=True)
class SplitTask:
    """A split of the queries, and the path of the part with its answers."""

    split: QuerySplit
    part_path: str


#: Called before the lookups, with the shared lookups and all splits.
Prepare = Callable[[SharedLookups, Sequence[SplitTask]], None]
#: Called before the lookups, with the workers, the segments without indexes, the shared lookups,
#: and all splits.
BuildMissing = Callable[[Workers, pa.Table, SharedLookups, Sequence[SplitTask]], None]


def answer_queries(
    workers: Workers,
    queries: Queries,
    inventory: Inventory,
    settings: LookupSettings,
    target: AnswerTarget,
    *,
    starting_offsets: bool = False,
    prepare: Prepare | None = None,
) -> Generator[SplitReport, None, None]:
    """Answer all queries, and write the answers as parts of the target, without publishing it.

    The caller has entered the context of the target. Each thread has its own `Lookups`, and one
    batch of a split in memory. For remote logs, if there are more threads than splits, several
    threads answer the queries of a split. `prepare` is called before the first lookup. Raises
    `InputError` if queries cannot be read, and `PublishError` if answers cannot be written.
    """
    tasks = [SplitTask(split, target.part_path(split)) for split in queries.splits]
    helpers = workers.count // max(len(tasks), 1) if inventory.needs_requests else 1
    with SharedLookups(inventory, settings, target.index_folder, helpers=helpers) as lookups:
        if prepare is not None:
            prepare(lookups, tasks)
        reports = workers.run(
            tasks,
            partial(_run_task, lookups=lookups, starting_offsets=starting_offsets),
            sizes=[task.split.size_bytes for task in tasks],
            description="answer {:,} splits of queries",
        )
        with closing(reports):
            for report in reports:
                if isinstance(report, InputError):
                    raise report
                yield report


def _run_task(
    task: SplitTask, attempt_id: str, *, lookups: SharedLookups, starting_offsets: bool
) -> SplitReport | InputError:
    """Answer a split; return an `InputError` instead of raising it, so that it is not retried."""
    try:
        return answer_split(
            task.split,
            lookups.open(),
            task.part_path,
            attempt_id=attempt_id,
            starting_offsets=starting_offsets,
        )
    except InputError as error:
        return error


# --------------------------------------------------------------------------- the report of a split

# Maximum number of nonexistent partitions that are counted separately.
_MAX_UNKNOWN = 1_000

_MAX_CELL = 60
_KEY_PROBLEMS = {
    By.OFFSET: "not an integer",
    By.TIMESTAMP: "neither milliseconds nor a time from 1970 on",
}


class SplitStats:
    """Collects the report of a split, batch by batch.

    Until `report` is called, `lookups` is used only for this split. Raises `InputError` if starting
    offsets are requested at the index level, because this level does not determine log ends.
    """

    def __init__(
        self, split: QuerySplit, lookups: Lookups, *, starting_offsets: bool = False
    ) -> None:
        if starting_offsets and lookups.settings.resolve is Resolve.INDEX:
            raise InputError(
                "the index level has no starting offsets", hint="give --resolve batch or record"
            )
        self._split = split
        self._lookups = lookups
        self._rows = 0
        self._counts = StatusCounts(lookups.inventory)
        self._starts: list[StartingOffset] = []
        self._invalid: list[InvalidQuery] = []
        # If there are more queries than partitions, two queries have the same partition, which is
        # an error. One more query than partitions is enough to detect this.
        self._max_starts = lookups.inventory.partition_count + 1 if starting_offsets else 0

    def add(self, rows: pa.RecordBatch, queries: QueryBatch, answers: Answers) -> None:
        """Count queries by the status of their answers; `rows` are the original queries."""
        if len(self._invalid) < MAX_INVALID:
            invalid_rows = np.flatnonzero(answers.status == Status.INVALID_QUERY)
            for row in invalid_rows[: MAX_INVALID - len(self._invalid)].tolist():
                self._invalid.append(self._invalid_query(rows, queries, row))
        self._rows += len(answers)
        self._counts.add(queries.topics, queries.partitions, answers.status)
        count = min(self._max_starts - len(self._starts), len(answers))
        if count > 0:
            self._starts += find_starting_offsets(self._lookups, queries, answers, count)

    def _invalid_query(self, rows: pa.RecordBatch, queries: QueryBatch, row: int) -> InvalidQuery:
        topic = plain_array(queries.topics.slice(row, 1))[0].as_py()
        return InvalidQuery(
            self._split.path,
            self._split.first_row + self._rows + row + 1,
            topic,
            queries.partitions[row].as_py(),
            self._invalid_reason(rows, queries, row, topic),
        )

    def _invalid_reason(
        self, rows: pa.RecordBatch, queries: QueryBatch, row: int, topic: str | None
    ) -> str:
        settings, keys = self._lookups.settings, queries.keys
        name = settings.by.column
        if topic is None:
            return "topic is missing"
        if not queries.partitions[row].is_valid:
            return _describe_cell(PARTITION, rows.column(PARTITION)[row].as_py(), "not an integer")
        if keys.is_valid is not None and not keys.is_valid[row]:
            return _describe_cell(name, rows.column(name)[row].as_py(), _KEY_PROBLEMS[settings.by])
        value = int(keys.values[row])
        if settings.by is By.OFFSET:
            return f"offset {value} is negative"
        if keys.specials and value >= min(SpecialTimestamp):
            return f"timestamp {value} cannot be looked up at the level {settings.resolve.value}"
        return f"timestamp {value} is before 1970 and is not a special timestamp of ListOffsets"

    def report(self) -> SplitReport:
        findings = self._lookups.drain_findings()
        return SplitReport(
            number=self._split.number,
            rows=self._rows,
            counts=self._counts.counts(),
            findings=tuple(findings[:MAX_FINDINGS]),
            further_findings=max(len(findings) - MAX_FINDINGS, 0),
            starting_offsets=tuple(self._starts),
            invalid=tuple(self._invalid),
        )


def _describe_cell(name: str, cell: object, problem: str) -> str:
    if cell is None:
        return f"{name} is missing or {problem}"
    cell_text = str(cell)
    if len(cell_text) > _MAX_CELL:
        cell_text = f"{cell_text[:_MAX_CELL]}..."
    return f"{name} {cell_text!r} is {problem}"


class StatusCounts:
    """Counts queries by partition and status; vectorized, because lookups are fast."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._counts: Longs = np.zeros(0, np.int64)
        self._other_counts: Counter[QueryGroup] = Counter()

    def add(self, topics: pa.Array, partitions: pa.Array, statuses: NDArray[np.int8]) -> None:
        numbers, is_present = integers(partitions)
        codes = self._inventory.codes(topics, numbers)
        if is_present is not None:
            codes = np.where(is_present, codes, np.int32(NO_PARTITION))
        # The counters of a partition are adjacent. The counters of queries without a partition come
        # first.
        cells = (codes - NO_PARTITION) * np.int64(len(Status)) + statuses
        size = (self._inventory.partitions.num_rows + 1) * len(Status)
        counts = np.bincount(cells, minlength=size)
        self._counts = counts if not len(self._counts) else self._counts + counts
        unmatched_rows = np.flatnonzero(codes == NO_PARTITION)
        if len(unmatched_rows):
            # A partition number that does not fit into int64 is counted as missing.
            is_missing = None if is_present is None else ~is_present[unmatched_rows]
            unmatched_partitions = pa.array(numbers[unmatched_rows], mask=is_missing)
            self._add_unmatched(
                topics.take(pa.array(unmatched_rows)),
                unmatched_partitions,
                statuses[unmatched_rows],
            )

    def counts(self) -> Counter[QueryGroup]:
        counts = Counter(self._other_counts)
        for cell in np.flatnonzero(self._counts[len(Status) :]).tolist():
            code, status = divmod(cell, len(Status))
            group = (*self._inventory.partition_name(code), status)
            counts[group] += int(self._counts[cell + len(Status)])
        return counts

    def _add_unmatched(
        self, topics: pa.Array, partitions: pa.Array, statuses: NDArray[np.int8]
    ) -> None:
        names = ["topic", "partition", "status"]
        # Use binary instead of string, because strings in Parquet files may not be UTF-8.
        topic_bytes = plain_array(topics).cast(pa.large_binary())
        table = pa.table([topic_bytes, partitions, pa.array(statuses)], names=names)
        grouped = table.group_by(names).aggregate([([], "count_all")])
        # Count only the most frequent groups separately, because each query may have its own group.
        grouped = grouped.sort_by([("count_all", "descending")])
        for row in grouped.slice(0, _MAX_UNKNOWN).to_pylist():
            name = None if row["topic"] is None else row["topic"].decode(errors="replace")
            self._add_group((name, row["partition"], row["status"]), row["count_all"])
        rare_groups = grouped.slice(_MAX_UNKNOWN)
        for row in rare_groups.group_by("status").aggregate([("count_all", "sum")]).to_pylist():
            self._add_group((None, None, row["status"]), row["count_all_sum"])

    def _add_group(self, group: QueryGroup, queries: int) -> None:
        if len(self._other_counts) >= _MAX_UNKNOWN and group not in self._other_counts:
            group = (None, None, group[2])
        self._other_counts[group] += queries
