"""Runs a lookup, from options to an exit code: list, open queries, answer, publish, report."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from kafka_index.cli.exit_status import ExitCode, run_summary
from kafka_index.cli.html.page import BAD, DUMP, GOOD, NOTABLE, Conclusion, Page, Totals, explain
from kafka_index.cli.html.page_writer import PageWriter
from kafka_index.cli.lookup_summary import (
    EXPLAINED,
    damage_lines,
    exit_code,
    invalid_lines,
    note_lines,
    warn_of_starts,
    warn_of_unindexed,
)
from kafka_index.cli.progress import Outcome, skipped_lines
from kafka_index.cli.shared_options import Detail
from kafka_index.cli.terminal import Table, print_error, print_log, print_text, status_table
from kafka_index.commands.lookup.output import answer_target, format_of_answers
from kafka_index.commands.lookup.queries import open_queries
from kafka_index.commands.lookup.query_executor import (
    LookupManifest,
    Prepare,
    answer_queries,
    inputs_digest,
    written,
)
from kafka_index.commands.lookup.query_stats import reset_offsets_csv, starting_offsets_json
from kafka_index.commands.lookup.report import (
    LOOKUP_REPORT_SCHEMA,
    LookupTotals,
    SplitReport,
    StartingOffset,
    behind_gaps,
)
from kafka_index.core.errors import InputError, KafkaIndexError, ReadError, plural
from kafka_index.core.format.human import format_count
from kafka_index.core.fs.inputs import Skipped, list_unread
from kafka_index.core.fs.paths import absolute_path, refuse_overlap
from kafka_index.core.fs.registry import whole_file
from kafka_index.core.fs.store import is_remote
from kafka_index.core.job.engine import Engine, Workers
from kafka_index.core.log.read.answers import (
    GAP,
    INDEX_REFUSED,
    NO_INDEX,
    TAIL,
    UNREADABLE,
    Finding,
    Status,
)
from kafka_index.core.log.read.choices import Resolve, UpperBound
from kafka_index.core.logdir.segment_table import PartitionSegments
from kafka_index.core.output.report_file import PageMaker, ReportFile, open_report
from kafka_index.core.query.inventory import Inventory, collect_inventory
from kafka_index.core.query.keys import By
from kafka_index.core.query.lookups import LookupSettings

if TYPE_CHECKING:
    from kafka_index.cli.lookup_command import LookupOptions
    from kafka_index.core.fs.durable_files import AtomicFile

# What a run over the same inputs would end with again.
_FINAL = (ExitCode.DONE, ExitCode.DAMAGE)
_Render = Callable[[Sequence[StartingOffset]], str]


def run_lookup(paths: str, options: LookupOptions) -> ExitCode:
    """Answer the queries of files at a path or a glob, and print a summary.

    Raises `KafkaIndexError` if the run as a whole cannot start or continue.
    """
    by = By(options.by)
    resolve = by.default_resolve if options.resolve is None else Resolve(options.resolve)
    queries = open_queries(paths, by)
    inventory = collect_inventory(
        options.inputs,
        tiered=options.tiered,
        indexes=options.indexes,
        upper_bound=UpperBound(options.upper_bound),
        topics=options.topics,
    )
    settings = LookupSettings(by, resolve, options.config)
    texts = _offset_texts(options)
    inputs = [*options.folders, paths]
    digest = inputs_digest(
        queries,
        inventory,
        settings,
        output_format=format_of_answers(options.output, queries),
        upper_bound=UpperBound(options.upper_bound),
    )
    output = absolute_path(options.output)
    others = [
        absolute_path(path) for path in (*(path for path, _ in texts), options.report) if path
    ]
    done = None if options.overwrite else LookupManifest.read(output)
    is_repeat = done is not None and done.is_of(digest, output, others)
    if done is not None and is_repeat and done.exit_code in _FINAL:
        return _print_done(done, output, options)

    def announce(sizes: Mapping[str, int]) -> None:
        LookupManifest.of_unfinished(digest, sizes).write(output)

    with ExitStack() as stack:
        # A file that cannot be written ends the run before the work.
        target = answer_target(
            options.output,
            queries,
            inputs=inputs,
            # A retry replaces the answers of a run that could not read everything.
            overwrite=options.overwrite or is_repeat,
        )
        files = stack.enter_context(offsets_files(options, inputs, target.path))
        # The answers come last: what a failed run leaves then, the same command replaces.
        reporting = stack.enter_context(ExitStack())
        report = reporting.enter_context(
            open_report(
                options.report, LOOKUP_REPORT_SCHEMA, lookup_page(inventory, options.fail_on)
            )
        )
        stack.enter_context(target)
        unindexed = warn_of_unindexed(inventory, by, options.detail)
        warn_of_starts(inventory, options.detail)
        with LookupOutcome(report, queries.rows, options.detail) as outcome:
            folder = os.path.dirname(target.part_path(queries.splits[0]))
            directories = inventory.partitions["directory"].to_pylist()
            with options.engine.start(
                "lookup",
                after_failure="no answers were written: run again",
                listener=outcome,
                works=len(queries.splits),
                inputs=[*directories, *queries.files],
                outputs=[folder],
            ) as workers:
                for split in answer_queries(
                    workers,
                    queries,
                    inventory,
                    settings,
                    target,
                    starting_offsets=bool(texts),
                    prepare=_prepare(options.engine, workers, unindexed),
                ):
                    outcome.on_split(split)
        if not outcome.totals.rows:
            # A run without queries must not report success.
            raise InputError("there are no queries", path=paths, hint="check --queries")
        write_offsets(files, outcome.totals.starting_offsets, outcome.totals.findings)
        if report is not None:
            report.write_table(outcome.totals.report_table())
        reporting.close()
        for file, _ in files:
            file.commit()
        target.publish(outcome.totals.rows_of_split, announce)
        code = outcome.print_summary(inventory.skipped, f"answers in {target.path}")
    queries_of_status = tuple(
        (status.text, count) for status, count in outcome.totals.queries_of_status.items()
    )
    try:
        LookupManifest(digest, written(output, others), queries_of_status, code).write(output)
    except (KafkaIndexError, OSError) as error:
        # The answers are whole: only a rerun will not know it.
        print_log(f"the run is not recorded: {error}")
    return _with_failing(code, queries_of_status, options)


def _prepare(engine: Engine, workers: Workers, unindexed: pa.Table) -> Prepare | None:
    """Return what builds missing indexes once for all tasks; threads share what they build."""
    if not engine.on_spark or not unindexed.num_rows:
        return None
    from kafka_index.spark.lookup import build_missing_indexes  # noqa: PLC0415, PySpark

    return partial(build_missing_indexes, workers, unindexed)


def _print_done(done: LookupManifest, output: str, options: LookupOptions) -> ExitCode:
    """Print that an earlier run has done the same; return its exit code."""
    for status, count in done.queries:
        run_summary().add_count(f"queries_{status}", count)
    if options.detail is not Detail.QUIET:
        total = plural(sum(count for _, count in done.queries), "query", "queries")
        line = f"answers in {output} are up to date with these inputs, by size and time: {total}"
        print_text(sys.stdout, [f"{line}, nothing to do"])
    return _with_failing(ExitCode(done.exit_code), done.queries, options)


def _with_failing(
    code: ExitCode, queries: Sequence[tuple[str, int]], options: LookupOptions
) -> ExitCode:
    """Return the exit code of a run that also fails for some statuses (``--fail-on``)."""
    failing = [(status, count) for status, count in queries if status in options.fail_on and count]
    for status, count in failing:
        print_error(f"{plural(count, 'query is', 'queries are')} {status} (--fail-on)")
    return ExitCode.first([code, *([ExitCode.DAMAGE] if failing else [])])


class LookupOutcome(Outcome):
    """The listener of an engine that answers queries; a context manager around its run.

    The report gets the rows of the splits that were answered when an error or a signal ends the
    run. The number of queries is None when unknown.
    """

    def __init__(
        self, report: ReportFile | None, total_queries: int | None, detail: Detail
    ) -> None:
        super().__init__(total_queries or 0, None, detail, nouns=("query", "queries"))
        self.totals = LookupTotals()
        self._report = report
        self._total_queries = total_queries

    def _add_notes(self, error: BaseException) -> None:
        if self.totals.rows:
            of_all = f" of {self._total_queries:,}" if self._total_queries else ""
            error.add_note(f"{self.totals.rows:,}{of_all} queries were answered")
            if self._report is not None:
                self._report.write_table(self.totals.report_table())
        error.add_note("no answers were written")

    def on_split(self, report: SplitReport) -> None:
        """Add the report of a finished split; called by one thread at a time."""
        self.totals.add(report)
        self._progress.advance(report.rows)

    def print_summary(self, skipped: Sequence[Skipped], target: str) -> ExitCode:
        """Print the summary and return the exit code.

        `target` is the place of the answers, as printed.
        """
        findings, paint = self.totals.findings, self._paint
        queries = self.totals.queries_of_status
        unanswered, total = queries[Status.UNREADABLE], sum(queries.values())
        for status, count in queries.items():
            run_summary().add_count(f"queries_{status.text}", count)
        run_summary().add_count("queries_behind_missing_offsets", behind_gaps(findings))
        lines: list[str | Table] = [
            status_table(
                ("status", "queries"),
                [(status.text, format_count(count)) for status, count in queries.items() if count],
                {status.text: text for status, text in EXPLAINED.items()},
                {Status.FOUND.text: paint.good, Status.UNREADABLE.text: paint.bad},
                paint,
            ),
            "",
            f"{plural(total, 'query', 'queries')} in {self._timed(total)}, {target}",
            *self._startup_lines(),
            *invalid_lines(self.totals.invalid_queries, queries[Status.INVALID_QUERY], paint),
            *note_lines(findings, paint, self._detail),
            *skipped_lines(skipped, paint, self._detail),
        ]
        left_out = self.totals.findings_left_out
        self._print(lines, damage_lines(findings, unanswered, left_out, paint))
        return exit_code(findings, unanswered=unanswered > 0)


def _offset_texts(options: LookupOptions) -> list[tuple[str, _Render]]:
    """Return the files of offsets that are asked for, and what renders each."""
    asked: list[tuple[str | None, _Render]] = [
        (options.starting_offsets, starting_offsets_json),
        (options.reset_offsets, reset_offsets_csv),
    ]
    return [(path, render) for path, render in asked if path is not None]


@contextmanager
def offsets_files(
    options: LookupOptions, inputs: Sequence[str], target: str | None = None
) -> Iterator[list[tuple[AtomicFile, _Render]]]:
    """Open the files of offsets that are asked for; yield each with what renders it.

    Raises `InputError` if one of them or the report is an input, the answers, or another.
    """
    texts = _offset_texts(options)
    _refuse_side_files(target, inputs, [path for path, _ in texts], options.report)
    with ExitStack() as stack:
        yield [
            (stack.enter_context(whole_file(absolute_path(path))), render) for path, render in texts
        ]


def write_offsets(
    files: Sequence[tuple[AtomicFile, _Render]],
    starts: Sequence[StartingOffset],
    findings: Sequence[Finding],
) -> None:
    """Write files of offsets; refuse to where a partition could not be read."""
    unread = next((each for each in findings if each.retriable and each.queries), None)
    if files and unread is not None:
        raise ReadError(
            f"no starting offsets: {unread.reason}",
            path=unread.path,
            hint="fix that and run again",
        )
    for file, render in files:
        file.write(render(starts).encode())


def lookup_page(inventory: Inventory, failing: Collection[str] = ()) -> PageMaker:
    """Return the maker of the page of ``lookup`` over the logs of an inventory.

    The run also fails for queries of the `failing` statuses.
    """
    texts = {
        **{status.text: text for status, text in EXPLAINED.items()},
        NO_INDEX: "a segment without index files: built in memory",
        INDEX_REFUSED: "an index file that does not fit its log: built in memory instead",
        TAIL: "a log that ends before the end of its file",
        GAP: "queries for missing offsets, answered with the next batch",
    }
    severities = dict.fromkeys(texts, NOTABLE)
    severities |= {Status.FOUND.text: GOOD, NO_INDEX: GOOD, UNREADABLE: BAD}
    severities |= {Status.LOG_END.text: GOOD}
    explained = explain(texts, severities, dict.fromkeys((INDEX_REFUSED, TAIL, UNREADABLE), DUMP))

    def verdict(totals: Totals) -> Conclusion:
        queries = plural(totals.units, "query", "queries")
        if totals.bad:
            return Conclusion(BAD, f"{totals.bad:,} of {queries} unreadable")
        if faults := totals.others[UNREADABLE] + len(list_unread()):
            return Conclusion(BAD, f"{queries} read, {plural(faults, 'place')} of damage")
        for status in failing:
            if count := totals.found[status]:
                return Conclusion(BAD, f"{count:,} of {queries} {status} (--fail-on)")
        answered, malformed = (
            totals.found[status.text] for status in (Status.FOUND, Status.INVALID_QUERY)
        )
        text = f"{queries} read, {answered:,} found"
        return (
            Conclusion(NOTABLE, f"{text}, {malformed:,} malformed")
            if malformed
            else Conclusion(GOOD, text)
        )

    page = Page(
        "lookup",
        "queries",
        ("status", "reason_code"),
        explained,
        verdict,
        units="status",
        weight="queries",
        segments=partial(_segments, inventory),
    )
    return partial(PageWriter, page, run_summary().about())


def _segments(inventory: Inventory) -> Iterator[pa.RecordBatch]:
    for code in range(inventory.partitions.num_rows):
        segments = inventory.files_of(code).segments
        if segments:
            yield PartitionSegments.of(segments).rows()


def _refuse_side_files(
    target: str | None, inputs: Sequence[str], texts: Sequence[str], report: str | None
) -> None:
    """Refuse to write over what is read, into the output, or twice into one file."""
    taken = [] if target is None else [_real(target)]
    for path in (*texts, *([] if report is None else [report])):
        real = _real(absolute_path(path))
        if not is_remote(real) and os.path.isdir(real):
            raise InputError("a folder, not a file", path=path, hint="name a file in it")
        if not is_remote(real) and os.path.exists(real) and not os.path.isfile(real):
            raise InputError("not a regular file", path=path, hint="name another file")
        refuse_overlap(real, path, inputs)
        if any(
            f"{real}/".startswith(f"{other}/") or f"{other}/".startswith(f"{real}/")
            for other in taken
        ):
            raise InputError(
                "this path is taken by the answers or another file",
                path=path,
                hint="name another one",
            )
        taken.append(real)


def _real(path: str) -> str:
    return path if is_remote(path) else os.path.realpath(path)
