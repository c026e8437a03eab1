"""``lookup``: a table of queries is answered into files, a question on the screen."""

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
    """Return the ``lookup`` command, or as a job for ``spark-submit``: on Spark, files only."""
    return derive(LOOKUP_JOB if as_job else LOOKUP, as_job=as_job, run=_run)


def _run(spec: CommandSpec, request: LookupRequest, options: RunOptions) -> int:
    if not isinstance(request, ConsoleLookupRequest) or not request.is_question:
        if options.report is not None:
            from kafka_index.commands.lookup.starting_offsets import refuse_side_files  # noqa: PLC0415, slow to import

            refuse_side_files(request, request.output, options.report)
        return run_request(spec, request, options)
    given = {
        "--report": options.report is not None,
        "--engine": options.engine.on_spark,
        "--threads": options.engine != type(options.engine)(),
    }
    for name, is_given in given.items():
        if is_given:
            raise click.UsageError(f"{name} goes with --queries, not with a single question")
    # Imports take nearly all of the time: import only what a question needs, and collect no
    # garbage during imports, nor when the process ends.
    gc.disable()
    try:
        from kafka_index.cli.question_text import print_answer  # noqa: PLC0415, slow to import

        return print_answer(request, options.verbosity)
    finally:
        gc.freeze()
        gc.enable()
