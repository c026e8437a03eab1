"""A restore, from options to an exit code: plan, check, lock, restore, complete, print."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.options import Detail
from kafka_index.cli.restore_summary import RestoreOutcome
from kafka_index.cli.terminal import print_log
from kafka_index.config import LogConfig
from kafka_index.errors import InputError
from kafka_index.layout.names import TopicPartition
from kafka_index.restore.cluster import Identity, dump_identity, new_uuid
from kafka_index.restore.dump_files import Dump, read_dumps
from kafka_index.restore.log_files import Link
from kafka_index.restore.log_restoring import Salvage
from kafka_index.restore.output import Output, check_output, write_durably
from kafka_index.restore.plan import (
    RestoreChoices,
    RestorePlan,
    found_topic_ids,
    plan_restore,
    topics_without_id,
    with_topic_ids,
)
from kafka_index.restore.report import RESTORE_SCHEMA, report_rows
from kafka_index.restore.run import Restored, complete, output_lock, restore_logs
from kafka_index.restore.runbook import RunbookFacts, runbook
from kafka_index.storage.report_file import ReportFile
from kafka_index.stores import is_remote
from kafka_index.tiered.options import TieredOptions


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """The options of a restore, checked except against the disk."""

    inputs: tuple[str, ...]
    tiered: TieredOptions | None
    output: str
    salvage: Salvage
    link: Link
    topics: re.Pattern[str] | None
    log_starts: Mapping[TopicPartition, int]
    new_topic_ids: bool
    config: LogConfig
    report: str | None
    threads: int
    detail: Detail


def run_restore(options: RestoreOptions) -> ExitCode:
    """Run a restore, print its summary and runbook, and return its exit code.

    Raises
    ------
    KafkaIndexError
        The run as a whole cannot start or continue.
    """
    dump = read_dumps(options.inputs, options.tiered, topics=options.topics)
    plan = plan_restore(dump, _choices(options, dump))
    remote = () if options.tiered is None else options.tiered.uris
    directories = [each.directory for replicas in dump.replicas.values() for each in replicas]
    output = check_output(
        options.output,
        [*options.inputs, *remote, *directories],
        plan.digest,
        [each.partition.directory_name for each in plan.partitions],
    )
    if output.begun is not None:
        plan = with_topic_ids(plan, output.begun.topic_ids)
    with ExitStack() as stack:
        report = None
        if options.report is not None:
            report = stack.enter_context(ReportFile(options.report, RESTORE_SCHEMA))
        stack.enter_context(output_lock(output))
        if options.link is Link.HARD and options.detail is not Detail.QUIET:
            print_log(
                "warning: with --link hard a broker that cuts a log of the output cuts it in the "
                "dump too"
            )
        with RestoreOutcome(plan, options.detail) as outcome:
            outcome.on_begin()
            restored = restore_logs(
                plan,
                output,
                options.config,
                threads=options.threads,
                on_restored=outcome.on_restored,
            )
        identity = Identity(dump_identity(dump))
        is_complete = not any(each.retriable for each in restored.partitions)
        if is_complete:
            complete(plan, output, restored, identity)
        if report is not None:
            report.write_table(report_rows(restored.partitions))
    text = None
    if is_complete:
        text = runbook(_facts(plan, output, restored, identity))
        _write_runbook(options.report, text)
    return outcome.print_summary(restored.partitions, output.path, text)


def _choices(options: RestoreOptions, dump: Dump) -> RestoreChoices:
    unknown = set(options.log_starts).difference(dump.replicas)
    if unknown:
        name = min(unknown).directory_name
        raise InputError("--log-start names a partition that is not in the input", found=name)
    topic_ids = {}
    if options.new_topic_ids:
        known = found_topic_ids(dump)
        topic_ids = {topic: new_uuid() for topic in topics_without_id(dump, known)}
    return RestoreChoices(
        salvage=options.salvage,
        link=options.link,
        topic_ids=topic_ids,
        log_starts=options.log_starts,
        settings=repr(options.config),
    )


def _facts(
    plan: RestorePlan, output: Output, restored: Restored, identity: Identity
) -> RunbookFacts:
    return RunbookFacts(
        output.path,
        restored.partitions,
        restored.link,
        identity,
        bool(output.properties),
        plan.dump.notes,
    )


def _write_runbook(report: str | None, text: str) -> None:
    if report is not None and not is_remote(report):
        write_durably(f"{report}.runbook.txt", text.encode())
