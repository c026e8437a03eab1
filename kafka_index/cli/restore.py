"""A restore, from a request to an exit code: check, restore, report, print."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack

from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.options import Detail, add_refused_links
from kafka_index.cli.restore_page import restore_page
from kafka_index.cli.restore_summary import RestoreOutcome
from kafka_index.cli.run_summary import run_summary
from kafka_index.cli.terminal import print_log
from kafka_index.execution import Engine
from kafka_index.restore.job import RestoreJob
from kafka_index.restore.log_files import Link
from kafka_index.restore.partition_restoring import restore_on
from kafka_index.restore.report import RESTORE_SCHEMA, report_rows
from kafka_index.restore.request import RestoreRequest
from kafka_index.restore.restored_partition import LostRange, RestoreResult
from kafka_index.restore.root_files import sync_directory, write_durably
from kafka_index.storage.report_file import ReportFile
from kafka_index.stores import is_remote

_HARD_LINKS = (
    "warning: with --link hard a broker that cuts a log of the output cuts it in the dump too"
)


def run_restore(
    request: RestoreRequest, engine: Engine, report: str | None, detail: Detail
) -> ExitCode:
    """Run a restore, print its summary and runbook, and return its exit code."""
    job = RestoreJob.prepare(request)
    code = ExitCode.DONE
    lost: list[LostRange] = []
    with ExitStack() as reporting:
        file = None
        if report is not None:
            page = restore_page(job, lost)
            file = reporting.enter_context(ReportFile(report, RESTORE_SCHEMA, page))
        if request.link is Link.HARD and detail is not Detail.QUIET:
            print_log(_HARD_LINKS)
        with ExitStack() as progress:
            outcome = progress.enter_context(RestoreOutcome(job.plan, detail))

            def write_report(result: RestoreResult) -> None:
                progress.close()
                if file is None:
                    return
                lost.extend(one for each in result.partitions for one in each.lost)
                file.write_table(report_rows(result.partitions, result.beyond_end))
                reporting.close()
                if not is_remote(file.path):
                    if result.runbook is not None:
                        write_durably(f"{file.path}.runbook.txt", result.runbook.encode())
                    sync_directory(os.path.dirname(file.path))

            def conclude(result: RestoreResult) -> None:
                nonlocal code
                code = add_refused_links(outcome.print_summary(result))
                sys.stdout.flush()
                run_summary().write(code, code.name.lower())

            job.run(
                restore_on(engine, outcome),
                outcome.on_restored,
                report=write_report,
                conclude=conclude,
            )
    return code
