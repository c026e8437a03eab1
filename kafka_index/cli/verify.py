"""Runs a verification, from options to an exit code: verify, report, print."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.verify_summary import VerifyOutcome, verify_page
from kafka_index.storage.report_file import ReportFile
from kafka_index.verification import VERIFY_SCHEMA
from kafka_index.verification.verifying import VerifyJob, VerifyRequest

if TYPE_CHECKING:
    from kafka_index.cli.verify_command import VerifyOptions


def run_verify(options: VerifyOptions) -> ExitCode:
    """Verify a dump, print a summary, and return its exit code.

    Raises `KafkaIndexError` if the run as a whole cannot start or continue.
    """
    config, properties = options.settings
    job = VerifyJob.prepare(
        VerifyRequest(
            inputs=options.inputs,
            tiered=options.tiered,
            indexes=options.indexes,
            metadata=options.metadata,
            against=options.against,
            topics=options.topics,
            fast=options.fast,
            config=config,
            properties=properties,
        )
    )
    segments = job.segments
    with ExitStack() as stack:
        writer = None
        if options.report is not None:
            writer = stack.enter_context(
                ReportFile(options.report, VERIFY_SCHEMA, verify_page(segments, options.topics))
            )
        outcome = VerifyOutcome(writer, len(segments), segments.total_bytes, options.detail)
        with outcome:
            job.run(options.engine, outcome)
        # Printed first: where the report cannot be finished, the answer is not lost.
        return outcome.print_summary(
            job.skipped, job.cluster, fast=options.fast, topics=options.topics
        )
