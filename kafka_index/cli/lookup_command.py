"""``lookup``: runs a table of queries and writes result files, or prints a single query."""

from __future__ import annotations

import gc

import click

from kafka_index.cli.command import RunOptions, run_request
from kafka_index.cli.command import make_command as derive
from kafka_index.commands.lookup.request import (
    LOOKUP,
    LOOKUP_JOB,
    ConsoleLookupRequest,
    LookupRequest,
)
from kafka_index.core.job.request import CommandSpec


def make_command(*, as_job: bool) -> click.Command:
    """Return the ``lookup`` command, or the ``spark-submit`` job, which writes files only."""
    return derive(LOOKUP_JOB if as_job else LOOKUP, as_job=as_job, run=_run)


def _run(spec: CommandSpec, request: LookupRequest, options: RunOptions) -> int:
    if not isinstance(request, ConsoleLookupRequest) or not request.is_single:
        if options.report is not None:
            from kafka_index.commands.lookup.result import refuse_side_files  # noqa: PLC0415, slow to import

            refuse_side_files(request, request.output, options.report)
        return run_request(spec, request, options)
    has_option = {
        "--report": options.report is not None,
        "--engine": options.engine.on_spark,
        "--threads": options.engine != type(options.engine)(),
    }
    for name, is_given in has_option.items():
        if is_given:
            raise click.UsageError(f"{name} requires --queries")
    # A single query spends most of its time importing modules, and imports create no garbage.
    gc.disable()
    try:
        from kafka_index.cli.question_text import print_query_result  # noqa: PLC0415, slow to import

        return print_query_result(request, options.verbosity)
    finally:
        gc.freeze()
        gc.enable()
