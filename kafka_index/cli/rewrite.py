"""A rewrite, from options to an exit code: match, decide, write, report, print."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pyarrow as pa

from kafka_index.cli.build_summary import skipped_lines
from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.options import Detail
from kafka_index.cli.run_summary import run_summary
from kafka_index.cli.terminal import Table, print_error, print_log, print_text
from kafka_index.cli.text import Paint, format_count, plural
from kafka_index.errors import (
    CorruptLogError,
    InputError,
    KafkaIndexError,
    ReadError,
    is_retriable,
)
from kafka_index.execution import Engine
from kafka_index.metadata import read_cluster
from kafka_index.metadata.directory import FoundCluster, find_cluster
from kafka_index.records.decompression import shared_budget
from kafka_index.storage import Skipped
from kafka_index.storage.report_file import ReportFile
from kafka_index.tiered.options import TieredOptions
from kafka_index.writing.rewrite_output import RewriteOutput
from kafka_index.writing.rewrite_plan import plan_rewrite, tiered_starts
from kafka_index.writing.rewriting import (
    MatchedPartition,
    RewriteSettings,
    digest_of,
    match_partitions,
    rewrite_partitions,
    summary_by_topic,
)

_REPORT = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("records", pa.int64()),
        pa.field("dropped", pa.int64()),
        pa.field("status", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
    ]
)
_Outcomes = Sequence[tuple[MatchedPartition, KafkaIndexError | None]]


@dataclass(frozen=True, slots=True)
class RewriteOptions:
    """The options of a rewrite, checked except against the disk; without `output` a dry run."""

    inputs: tuple[str, ...]
    output: str | None
    tiered: TieredOptions | None
    topics: re.Pattern[str] | None
    metadata: str | None
    settings: RewriteSettings
    force: bool
    report: str | None
    engine: Engine
    detail: Detail

    @property
    def of_topics(self) -> str:
        """The restriction to some topics, for people; empty for the whole input."""
        return "" if self.topics is None else f" of the topics that match {self.topics.pattern!r}"


def run_rewrite(options: RewriteOptions) -> ExitCode:
    """Run a rewrite, print its summary, and return its exit code.

    Raises `KafkaIndexError` if the run as a whole cannot start, or is refused.
    """
    budget = shared_budget(options.settings.max_decompressed_bytes)
    cluster = None
    if options.metadata is not None:
        cluster = read_cluster([options.metadata], budget=budget)
    plans, listing = plan_rewrite(options.inputs, options.topics, cluster, options.tiered)
    directories = listing.data_directories
    found = FoundCluster(cluster) if cluster else find_cluster(None, directories, budget)
    settings = replace(options.settings, config=found.settings(options.settings.config))
    options = replace(options, settings=settings)
    with ExitStack() as stack:
        report = (
            stack.enter_context(ReportFile(options.report, _REPORT)) if options.report else None
        )
        output = None
        if options.output is not None:
            remote = () if options.tiered is None else options.tiered.uris
            local = (plan.local_directory for plan in plans)
            inputs = [*options.inputs, *remote, *filter(None, local)]
            digest = digest_of(plans, options.settings)
            output = stack.enter_context(RewriteOutput(options.output, inputs, digest))
        workers = stack.enter_context(
            options.engine.start(
                "rewrite",
                after_failure="finished partitions are kept: run again to continue",
                inputs=[plan.directory for plan in plans],
                outputs=[] if output is None else [output.root],
            )
        )
        matched = list(match_partitions(workers, plans, settings))
        outcomes: _Outcomes = [(each, each.error) for each in matched]
        if output is None:
            try:
                _decide(matched, options, listing.skipped)
            except InputError as error:
                print_log(f"would be refused: {error}")
        elif output.is_finished:
            outcomes = [
                (each, each.error or output.left_out(each.plan.partition)) for each in matched
            ]
            print_log(f"{output.root}: finished by an earlier run, and not written again")
        else:
            _decide(matched, options, listing.skipped)
            output.begin()
            sound = [each for each in matched if each.error is None]
            written = list(
                rewrite_partitions(workers, sound, output.root, output.staging, settings)
            )
            outcomes = [(each, each.error) for each in matched if each.error is not None]
            outcomes = sorted([*outcomes, *written], key=lambda one: one[0].plan.partition)
            done = {
                each.plan.partition: None if each.match is None else each.match.end_offset
                for each, error in written
                if error is None
            }
            if not any(error is not None and is_retriable(error) for _, error in outcomes):
                output.finish(directories, done, tiered_starts(plans))
        if report is not None:
            report.write_table(_report(outcomes, is_dry=output is None))
    root = None if output is None else output.root
    _print(matched, outcomes, options, root, listing.skipped)
    errors = [error for _, error in outcomes if error is not None]
    return ExitCode.first(ExitCode.of_part(retriable=is_retriable(error)) for error in errors)


def _decide(
    matched: Sequence[MatchedPartition], options: RewriteOptions, skipped: Sequence[Skipped]
) -> None:
    """Refuse what is hardly meant."""
    found = [each.match for each in matched if each.match is not None]
    for each in matched:
        if each.match is not None and each.match.revived is not None:
            dropped, older = each.match.revived
            raise InputError(
                f"dropping the record at offset {dropped} would make the older one of its key at "
                f"offset {older} the newest",
                path=each.plan.directory,
                hint="drop the whole key; or give --metadata, where the topic is not compacted; or "
                "--allow-revive",
            )
    if options.force or not found:
        return
    records = sum(each.records for each in found)
    dropped = sum(each.dropped for each in found)
    unread = [each.error for each in matched if each.error is not None]
    if not dropped and unread:
        kind = ReadError if any(map(is_retriable, unread)) else CorruptLogError
        raise kind(
            f"no record matches in what can be read, and {plural(len(unread), 'partition')} cannot "
            f"be: {unread[0]}"
        )
    if not dropped:
        looked_at = plural(records, "record") + options.of_topics
        if skipped:
            entries = plural(len(skipped), "entry", "entries")
            looked_at += f"; skipped {entries}, such as {skipped[0].path}: {skipped[0].reason}"
        raise InputError(
            "no record matches, so that the output would be a copy",
            found=looked_at,
            hint="correct the keys or the condition, or give --force",
        )
    if dropped == records:
        raise InputError(
            "every record matches",
            found=plural(records, "record") + options.of_topics,
            hint="correct the keys or the condition, or give --force",
        )


def _report(outcomes: _Outcomes, *, is_dry: bool) -> pa.Table:
    rows = []
    for each, error in outcomes:
        status = "matched" if is_dry else "copied" if each.match is None else "rewritten"
        rows.append(
            {
                "topic": each.plan.partition.topic,
                "partition": each.plan.partition.partition,
                "records": None if each.match is None else each.match.records,
                "dropped": None if each.match is None else each.match.dropped,
                "status": status if error is None else "left_out",
                "reason": _note(each) if error is None else str(error),
            }
        )
    return pa.Table.from_pylist(rows, schema=_REPORT)


def _note(each: MatchedPartition) -> str | None:
    return None if each.match is None else each.match.note


def _print(
    matched: Sequence[MatchedPartition],
    outcomes: _Outcomes,
    options: RewriteOptions,
    root: str | None,
    skipped: Sequence[Skipped],
) -> None:
    topics: Mapping[str, tuple[int, int, int]] = summary_by_topic(matched)
    records = sum(records for _, records, _ in topics.values())
    dropped = sum(dropped for _, _, dropped in topics.values())
    summary = run_summary()
    summary.add_count("partitions", len(matched))
    summary.add_count("records", records)
    summary.add_count("records_dropped", dropped)
    left_out = [(each, error) for each, error in outcomes if error is not None]
    summary.add_count("partitions_left_out", len(left_out))
    for each, error in left_out:
        print_error(f"left out: {each.plan.partition.directory_name}: {error}")
    if options.detail is Detail.QUIET:
        return
    for note in (_note(each) for each, failure in outcomes if failure is None):
        if note is not None:
            print_log(note)
    rows = [
        [topic, *map(format_count, counts)]
        for topic, counts in topics.items()
        if counts[2] or root is None or options.detail is Detail.VERBOSE
    ]
    kept = plural(len(matched) - len(left_out), "partition")
    where = "; nothing is written" if root is None else f"; {kept} in {root}"
    total = (
        f"{format_count(dropped)} of {plural(records, 'record')}{options.of_topics} dropped{where}"
    )
    table = Table(["topic", "partitions", "records", "dropped"], rows)
    every = options.detail is Detail.VERBOSE
    lines = skipped_lines(skipped, Paint(sys.stdout), every=every)
    print_text(sys.stdout, [*([table] if rows else []), total, *lines])
