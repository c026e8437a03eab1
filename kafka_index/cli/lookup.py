"""How a lookup runs, from options to an exit code: list, open queries, answer, publish, tell."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.lookup_options import BulkOptions, LogOptions
from kafka_index.cli.lookup_outcome import LookupOutcome
from kafka_index.cli.text_file import TextFile
from kafka_index.engines.lookup_engines import LookupEngine, LookupWork, local_engine, spark_engine
from kafka_index.errors import InputError
from kafka_index.lookup import (
    LOOKUP_REPORT_SCHEMA,
    AnswerTarget,
    By,
    LookupSettings,
    QueryFormat,
    StartingOffset,
    collect_inventory,
    open_queries,
    reset_offsets_csv,
    starting_offsets_json,
)
from kafka_index.reading.answers import Resolve, UpperBound
from kafka_index.storage import local_path, refuse_overlap
from kafka_index.storage.report_file import ReportFile


def run_lookup(options: BulkOptions, where: LogOptions) -> ExitCode:
    """Answer the queries of files, and tell how it went.

    Parameters
    ----------
    options : BulkOptions
        Which queries, and where their answers go.
    where : LogOptions
        Which logs, and how far.

    Raises
    ------
    KafkaIndexError
        Whatever keeps the run as a whole from starting or going on.
    """
    by = By(options.by)
    resolve = by.default_resolve if where.resolve is None else Resolve(where.resolve)
    queries = open_queries(options.queries, by)
    inventory = collect_inventory(
        where.logs,
        indexes=where.indexes,
        upper_bound=UpperBound(where.upper_bound),
        topics=options.topics,
    )
    texts = _texts(options)
    inputs = [*where.logs, options.queries, *([where.indexes] if where.indexes else [])]
    with ExitStack() as stack:
        # Whatever cannot be written is found out before the work.
        form = None if options.output_format is None else QueryFormat(options.output_format)
        target = AnswerTarget(
            options.output,
            queries,
            output_format=form,
            inputs=inputs,
            overwrite=options.overwrite,
        )
        _refuse_side_files(target.path, inputs, [path for path, _ in texts], options.report)
        report = (
            None
            if options.report is None
            else stack.enter_context(ReportFile(options.report, LOOKUP_REPORT_SCHEMA))
        )
        files = [(stack.enter_context(TextFile(path)), render) for path, render in texts]
        stack.enter_context(target)
        work = LookupWork(
            queries,
            inventory,
            LookupSettings(by, resolve, where.config),
            target,
            starting_offsets=bool(texts),
        )
        with LookupOutcome(queries.rows, options.detail) as outcome:
            _engine(options)(work, outcome)
        if not outcome.totals.rows:
            # A run that looked nothing up never says that all is well.
            raise InputError("there are no queries", path=options.queries, hint="check --queries")
        target.publish(outcome.totals.rows_of_split)
        if report is not None:
            report.write_table(outcome.totals.report_table())
        code = outcome.tell(inventory.skipped, target=f"answers in {target.path}")
        for file, render in files:
            file.write(render(outcome.totals.starting_offsets))
    return code


def _engine(options: BulkOptions) -> LookupEngine:
    if options.engine == "spark":
        return spark_engine(options.master, group_by_partition=options.group_by_partition)
    return local_engine(options.threads)


_Render = Callable[[Sequence[StartingOffset]], str]


def _texts(options: BulkOptions) -> list[tuple[str, _Render]]:
    asked: list[tuple[str | None, _Render]] = [
        (options.starting_offsets, starting_offsets_json),
        (options.reset_offsets, reset_offsets_csv),
    ]
    return [(path, render) for path, render in asked if path is not None]


def _refuse_side_files(
    target: str, inputs: Sequence[str], texts: Sequence[str], report: str | None
) -> None:
    """Refuse to write over what is read, into the output, or twice into one file."""
    taken = [os.path.realpath(target)]
    for path in (*texts, *([] if report is None else [report])):
        real = os.path.realpath(local_path(path))
        if os.path.isdir(real):
            raise InputError("a folder, not a file", path=path, hint="name a file in it")
        refuse_overlap(real, path, inputs)
        if any(os.path.commonpath([one, real]) in (one, real) for one in taken):
            raise InputError(
                "this is where the answers go, or another file", path=path, hint="name another one"
            )
        taken.append(real)
