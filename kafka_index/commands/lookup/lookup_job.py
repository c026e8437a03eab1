"""Looks up tables of queries in memory, or in files: each split becomes a part of the output."""

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
    format_of_answers,
    inputs_digest,
    manifest_of,
    open_answers,
    written,
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
)
from kafka_index.commands.lookup.starting_offsets import (
    inventory_of,
    offsets_files,
    starting_offsets_of,
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
from kafka_index.core.log.choices import Resolve, Status
from kafka_index.core.log.read.answers import (
    Answers,
    SpecialTimestamp,
)
from kafka_index.core.logdir.segment_table import PartitionSegments
from kafka_index.core.query.choices import By
from kafka_index.core.query.inventory import Inventory, find_unindexed, inventory_notes
from kafka_index.core.query.keys import (
    NO_PARTITION,
    PARTITION,
    TOPIC,
    Keys,
    QueryBatch,
    integers,
    plain_array,
)
from kafka_index.core.query.lookups import Lookups, LookupSettings, SharedLookups

# A run over the same inputs would have the same of these outcomes again.
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

    `build_missing` builds missing indexes once for all tasks that do not share memory. Raises
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
    table = _table_of(request.queries, names)
    asked = _with_times(table, by)
    check_columns(asked.schema, by)
    settings = LookupSettings(by, request.resolve, request.log_config)
    with Lookups(inventory_of(request), settings) as lookups:
        answers = lookups.answer_rows(asked)
        findings = lookups.drain_findings()
    found = answers.to_arrow()
    schema = pa.schema([*table.schema, *found.schema], metadata=table.schema.metadata)
    counts = np.bincount(answers.status, minlength=len(Status)).tolist()
    return LookupResult(
        pa.table([*table.columns, *found.columns], schema=schema),
        {status.text: counts[status] for status in Status},
        findings,
    )


def _table_of(rows: object, columns: pa.Schema) -> pa.Table:
    """Convert an object that exports Arrow's C stream, or a list of dicts, to a table.

    An empty list becomes an empty table with `columns`. Raises `InputError` for anything else.
    """
    expected = "a table that exports Arrow's C stream interface, or a list of dicts"
    given: Any = rows
    try:
        if isinstance(given, pa.Table):
            return given
        if hasattr(given, "__arrow_c_stream__") or isinstance(given, pa.RecordBatch):
            return pa.table(given)
        is_list = isinstance(given, Sequence) and not isinstance(given, str | bytes | bytearray)
        if is_list and all(isinstance(row, Mapping) for row in given):
            names = dict.fromkeys(name for row in given for name in row)
            found = {name: [row.get(name) for row in given] for name in names}
            return pa.table(found) if given else columns.empty_table()
    except (pa.ArrowException, TypeError) as error:
        raise InputError(f"queries is not a table: {error}", expected=expected) from error
    raise InputError("queries is not a table", expected=expected, found=argument_text(rows))


def _with_times(table: pa.Table, by: By) -> pa.Table:
    """Convert times given as text, which may be relative, to milliseconds.

    Raises `InputError` with the first text that is not a time.
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
    texts = column.cast(pa.string())
    keys, now = Keys.of(texts, by), now_ms()
    values, valid = keys.values.copy(), keys.valid
    if valid is not None:
        valid = valid.copy()
        for row in np.flatnonzero(~valid & texts.is_valid().to_numpy(zero_copy_only=False)):
            values[row] = TimeKind().convert(texts[int(row)].as_py(), "queries: timestamp", now)
            valid[row] = True
    place = table.schema.get_field_index(by.column)
    return table.set_column(place, by.column, Keys(values, valid).to_arrow())


# ------------------------------------------------------------------------------- tables in files


class _FileLookup:
    """Looks up queries of files, and writes the answers to files."""

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
        self._inventory = inventory_of(request)
        self._settings = LookupSettings(
            by, request.resolve or by.default_resolve, request.log_config
        )
        self._output = absolute_path(str(request.output))
        self._totals = LookupTotals()

    def run(self) -> LookupResult:
        """Look up the queries, unless an earlier run has done so."""
        request, output = self._request, self._output
        digest = inputs_digest(
            self._queries,
            self._inventory,
            self._settings,
            output_format=format_of_answers(str(request.output), self._queries),
            upper_bound=request.upper_bound,
        )
        others = [absolute_path(path) for path, _ in request.offsets_files]
        done = None if request.overwrite else manifest_of(output).read()
        is_repeat = done is not None and done.is_of(digest, output, others)
        # The rows of a report are not in the manifest.
        if done is not None and is_repeat and done.is_finished and self._report is None:
            return self._result(dict(done.queries), repeated=done.outcome)
        # If a file cannot be written, the run ends before the lookups.
        target = AnswerTarget(
            str(request.output),
            self._queries,
            inputs=[*request.folders, request.queries],
            # A retry replaces the answers of a run that could not read everything.
            overwrite=request.overwrite or is_repeat,
        )
        with offsets_files(request, target.path) as files, target:
            self._answer(target)
            totals = self._totals
            write_offsets(files, totals.starting_offsets, totals.findings)
            for file, _ in files:
                file.commit()
            target.publish(
                totals.rows_of_split,
                lambda sizes: manifest_of(output).write(
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
                files=written(output, others),
                queries=tuple(result.queries.items()),
                outcome=result.ended,
            )
            manifest_of(output).write(manifest)
        except (KafkaIndexError, OSError) as error:
            # The answers are complete, but a rerun will not find the manifest.
            self._listener.on_note(f"the run is not recorded: {error}")
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
            findings_left_out=totals.findings_left_out,
            invalid=totals.invalid_queries,
            output=self._output,
            fail_on=self._request.fail_on,
            repeated=repeated,
        )

    def _answer(self, target: AnswerTarget) -> None:
        queries, inventory, totals = self._queries, self._inventory, self._totals
        unindexed = find_unindexed(inventory, self._by)
        for note in inventory_notes(inventory, unindexed):
            self._listener.on_note(note)
        if self._report is not None:
            self._report.add_segments(_segments(inventory))
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
                    prepare=self._prepare(workers, unindexed),
                ):
                    totals.add(split)
                    self._listener.on_done(split.rows)
        except BaseException as error:
            if totals.rows:
                of_all = f" of {queries.rows:,}" if queries.rows else ""
                error.add_note(f"{totals.rows:,}{of_all} queries were answered")
                if self._report is not None:
                    self._report.write_table(totals.report_table())
            error.add_note("no answers were written")
            raise
        if not totals.rows:
            # A run without queries must not report success.
            raise InputError(
                "there are no queries", path=self._request.queries, hint="check --queries"
            )

    def _prepare(self, workers: Workers, unindexed: pa.Table) -> Prepare | None:
        """Return the function that builds missing indexes for all tasks; threads need none."""
        if self._build_missing is None or workers.in_process or not unindexed.num_rows:
            return None
        return partial(self._build_missing, workers, unindexed)


def _segments(inventory: Inventory) -> Iterator[pa.RecordBatch]:
    for code in range(inventory.partitions.num_rows):
        segments = inventory.files_of(code).segments
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

    `lookups` belong to this thread or worker; the report includes their earlier findings. The
    ending of the path (`AnswerTarget.part_path`) determines the format of the answers; any other
    ending means the format of the queries. Concurrent attempts at a split have different attempt
    IDs of letters, digits and underscores. Raises `InputError` if the queries cannot be read or
    written in that format, and `PublishError` if the part cannot be written.
    """
    to_join = part_path.endswith(ARROW_ENDING)
    form = QueryFormat.PARQUET if to_join else QueryFormat.of(part_path) or split.format
    tally = SplitStats(split, lookups, starting_offsets=starting_offsets)
    folder, name = os.path.split(part_path)
    scratch = os.path.join(folder, f".{name}.{attempt_id}.tmp")
    # Each batch opens all segments again. If not all can stay open, use few and large batches.
    many = lookups.inventory.segment_count > lookups.settings.max_open_segments
    batches = read_split(
        split,
        as_parquet=form is QueryFormat.PARQUET,
        max_rows=SPLIT_ROWS if many else READ_ROWS,
    )
    with atomic_file(part_path, scratch_path=scratch, what="answers") as file:
        try:
            with (
                file.writing(),
                open_answers(file.scratch_path, form, split, to_join=to_join) as write,
            ):
                for rows in batches:
                    queries = QueryBatch.of(rows, split.by)
                    answers = lookups.answer(queries)
                    write(rows, queries, answers)
                    tally.add(rows, queries, answers)
        except pa.ArrowException as error:
            raise InputError(
                f"the queries cannot be written as {form.text}: {error}", path=split.path
            ) from error
        file.commit(durable=not to_join)
    return tally.report()


@dataclass(frozen=True, slots=True)
class SplitTask:
    """A split of the queries, and the path of its part of the answers."""

    split: QuerySplit
    part_path: str


#: Called before the lookups, with the shared lookups and all splits.
Prepare = Callable[[SharedLookups, Sequence[SplitTask]], None]
#: The same, but first with the workers and the segments without indexes.
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
    """Answer all queries into the target, without publishing it.

    The target has been entered. Each thread has a `Lookups` of its own, a split at a time, and
    holds one batch. For remote logs, threads without a split answer for some partitions of
    another's. `prepare` is called before anything is answered. Raises `InputError` if queries
    cannot be read, and `PublishError` if answers cannot be written.
    """
    works = [SplitTask(each, target.part_path(each)) for each in queries.splits]
    helpers = workers.count // max(len(works), 1) if inventory.needs_requests else 1
    with SharedLookups(inventory, settings, target.index_folder, helpers=helpers) as lookups:
        if prepare is not None:
            prepare(lookups, works)
        done = workers.run(
            works,
            partial(_answer, lookups=lookups, starting_offsets=starting_offsets),
            sizes=[each.split.size_bytes for each in works],
            description="answer {:,} splits of queries",
        )
        with closing(done):
            for report in done:
                if isinstance(report, InputError):
                    raise report
                yield report


def _answer(
    work: SplitTask, attempt_id: str, *, lookups: SharedLookups, starting_offsets: bool
) -> SplitReport | InputError:
    """Answer a split, or return why its queries cannot be read: another attempt cannot either."""
    try:
        return answer_split(
            work.split,
            lookups.open(),
            work.part_path,
            attempt_id=attempt_id,
            starting_offsets=starting_offsets,
        )
    except InputError as error:
        return error


# --------------------------------------------------------------------------- the report of a split

# Maximum number of partitions that do not exist and are counted separately.
_MAX_UNKNOWN = 1_000

_MAX_CELL = 60
_WRONG_KEY = {
    By.OFFSET: "not an integer",
    By.TIMESTAMP: "neither milliseconds nor a time from 1970 on",
}


class SplitStats:
    """Collects the report of a split, batch by batch.

    Until `report`, the lookups are used for this split only. Raises `InputError` if starting
    offsets are requested at the index level, at which log ends are unknown.
    """

    def __init__(
        self, split: QuerySplit, lookups: Lookups, *, starting_offsets: bool = False
    ) -> None:
        if starting_offsets and lookups.settings.resolve is Resolve.INDEX:
            raise InputError(
                "the index level has no starting offsets", hint="resolve to batch or record"
            )
        self._split = split
        self._lookups = lookups
        self._rows = 0
        self._counts = StatusCounts(lookups.inventory)
        self._starts: list[StartingOffset] = []
        self._invalid: list[InvalidQuery] = []
        # With one more, two queries are about the same partition, which is an error anyway.
        wanted = lookups.inventory.partition_count + 1
        self._max_starts = wanted if starting_offsets else 0

    def add(self, rows: pa.RecordBatch, queries: QueryBatch, answers: Answers) -> None:
        """Count queries by the status of their answers; `rows` are the queries as read."""
        if len(self._invalid) < MAX_INVALID:
            wrong = np.flatnonzero(answers.status == Status.INVALID_QUERY)
            for row in wrong[: MAX_INVALID - len(self._invalid)].tolist():
                self._invalid.append(self._invalid_query(rows, queries, row))
        self._rows += len(answers)
        self._counts.add(queries.topics, queries.partitions, answers.status)
        wanted = min(self._max_starts - len(self._starts), len(answers))
        if wanted > 0:
            self._starts += starting_offsets_of(self._lookups, queries, answers, wanted)

    def _invalid_query(self, rows: pa.RecordBatch, queries: QueryBatch, row: int) -> InvalidQuery:
        topic = plain_array(queries.topics.slice(row, 1))[0].as_py()
        return InvalidQuery(
            self._split.path,
            self._split.first_row + self._rows + row + 1,
            topic,
            queries.partitions[row].as_py(),
            self._reason(rows, queries, row, topic),
        )

    def _reason(
        self, rows: pa.RecordBatch, queries: QueryBatch, row: int, topic: str | None
    ) -> str:
        settings, keys = self._lookups.settings, queries.keys
        name = settings.by.column
        if topic is None:
            return "no topic"
        if not queries.partitions[row].is_valid:
            return _not_a_number(PARTITION, rows.column(PARTITION)[row].as_py(), "not an integer")
        if keys.valid is not None and not keys.valid[row]:
            return _not_a_number(name, rows.column(name)[row].as_py(), _WRONG_KEY[settings.by])
        value = int(keys.values[row])
        if settings.by is By.OFFSET:
            return f"offset {value} is negative"
        if keys.specials and value >= min(SpecialTimestamp):
            return f"timestamp {value} has no answer at the level of {settings.resolve.value}"
        return f"timestamp {value} is before 1970, and is not one of Kafka's special timestamps"

    def report(self) -> SplitReport:
        findings = self._lookups.drain_findings()
        return SplitReport(
            number=self._split.number,
            rows=self._rows,
            counts=self._counts.counts(),
            findings=tuple(findings[:MAX_FINDINGS]),
            findings_left_out=max(len(findings) - MAX_FINDINGS, 0),
            starting_offsets=tuple(self._starts),
            invalid=tuple(self._invalid),
        )


def _not_a_number(name: str, cell: object, wrong: str) -> str:
    if cell is None:
        return f"no {name}, or it is {wrong}"
    text = str(cell)
    shown = text if len(text) <= _MAX_CELL else f"{text[:_MAX_CELL]}..."
    return f"{name} {shown!r} is {wrong}"


class StatusCounts:
    """Counts queries by partition and status; vectorized, because lookups are fast."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._known: Longs = np.zeros(0, np.int64)
        self._others: Counter[QueryGroup] = Counter()

    def add(self, topics: pa.Array, partitions: pa.Array, statuses: NDArray[np.int8]) -> None:
        numbers, present = integers(partitions)
        codes = self._inventory.codes(topics, numbers)
        if present is not None:
            codes = np.where(present, codes, np.int32(NO_PARTITION))
        # The counts of a partition are adjacent; counts of queries without a partition come first.
        cells = (codes - NO_PARTITION) * np.int64(len(Status)) + statuses
        size = (self._inventory.partitions.num_rows + 1) * len(Status)
        counts = np.bincount(cells, minlength=size)
        self._known = counts if not len(self._known) else self._known + counts
        others = np.flatnonzero(codes == NO_PARTITION)
        if len(others):
            missing = None if present is None else ~present[others]
            # A number beyond int64 is not a partition.
            left = pa.array(numbers[others], mask=missing)
            self._add_others(topics.take(pa.array(others)), left, statuses[others])

    def counts(self) -> Counter[QueryGroup]:
        counts = Counter(self._others)
        for cell in np.flatnonzero(self._known[len(Status) :]).tolist():
            code, status = divmod(cell, len(Status))
            group = (*self._inventory.name_of(code), status)
            counts[group] += int(self._known[cell + len(Status)])
        return counts

    def _add_others(
        self, topics: pa.Array, partitions: pa.Array, statuses: NDArray[np.int8]
    ) -> None:
        names = ["topic", "partition", "status"]
        # Not as strings, because strings in Parquet files may not be UTF-8.
        texts = plain_array(topics).cast(pa.large_binary())
        table = pa.table([texts, partitions, pa.array(statuses)], names=names)
        grouped = table.group_by(names).aggregate([([], "count_all")])
        # Only the most frequent ones are counted separately: there may be one for each query.
        grouped = grouped.sort_by([("count_all", "descending")])
        for row in grouped.slice(0, _MAX_UNKNOWN).to_pylist():
            name = None if row["topic"] is None else row["topic"].decode(errors="replace")
            self._add_other((name, row["partition"], row["status"]), row["count_all"])
        rest = grouped.slice(_MAX_UNKNOWN)
        for row in rest.group_by("status").aggregate([("count_all", "sum")]).to_pylist():
            self._add_other((None, None, row["status"]), row["count_all_sum"])

    def _add_other(self, group: QueryGroup, queries: int) -> None:
        if len(self._others) >= _MAX_UNKNOWN and group not in self._others:
            group = (None, None, group[2])
        self._others[group] += queries
