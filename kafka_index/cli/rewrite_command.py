"""``rewrite``: the options, the report, and what is printed."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import click

from kafka_index.cli.exit_status import ExitCode, run_summary
from kafka_index.cli.options import command, flag, option, request_of
from kafka_index.cli.progress import Outcome, key_lines, missing_lines, skipped_lines
from kafka_index.cli.shared_options import (
    Detail,
    LogOptions,
    detail_options,
    engine_options,
    max_decompressed_option,
    report_option,
    settings_options,
    topics_option,
)
from kafka_index.cli.terminal import Paint, Table, print_error, print_log, print_text
from kafka_index.commands.rewrite.job import (
    REWRITE_REPORT_SCHEMA,
    RewriteJob,
    RewriteRequest,
    RewriteResult,
    RewriteStatus,
)
from kafka_index.core.format.config import LogConfig
from kafka_index.core.format.human import format_count
from kafka_index.core.fs.inputs import Skipped
from kafka_index.core.fs.store import is_remote
from kafka_index.core.job.engine import Engine
from kafka_index.core.job.request import Group
from kafka_index.core.log.filter.condition import Condition, Selection, read_keys
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.output.report_file import open_report

_HELP = """Copy a dump without some of its records; all others keep their offsets.

    Records are dropped by their keys, or by a condition over topic, partition, offset, timestamp,
    key and header('NAME'). Batches that lose none are copied byte for byte; the others are encoded
    again as the log cleaner does it. Control records, transactions and producers stay. All index
    files, snapshots and epochs are rebuilt. Internal topics are copied as they are.

    The input is never changed. A damaged partition is left out. --dry-run prints what would be
    dropped.

    Exit codes: 0, all partitions are rewritten; 1, a partition is damaged and left out; 2, wrong
    usage, or refused: nothing matches, everything matches, or an older record would be revived; 3,
    a failure of permission, disk, memory or cluster, worth a retry; 70, an internal error.
    """
_EXAMPLES = """\
kafka-index rewrite --input /dump/broker-1 --output /clean --drop-keys keys.txt
kafka-index rewrite --input /dump/broker-1 --dry-run \\
    --drop-where "topic = 'orders' AND header('tenant') = 'acme'"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteOptions(LogOptions):
    """The options of a rewrite, checked except against the disk; without `output` a dry run."""

    output: str | None = option(
        "--output",
        group=Group.OUTPUT,
        metavar="DIR",
        help="An empty folder, or one of an unfinished rewrite.",
    )
    drop_keys: str | None = option(
        "--drop-keys",
        group=Group.SELECTION,
        metavar="FILE",
        help="Drop records with these keys, one per line: text, hex: or base64:.",
    )
    drop_where: str | None = option(
        "--drop-where",
        group=Group.SELECTION,
        metavar="EXPR",
        help="Drop records that satisfy a condition.",
    )
    topics: re.Pattern[str] | None = topics_option()
    config: LogConfig = settings_options()
    dry_run: bool = flag(
        "--dry-run", group=Group.OUTPUT, help="Print what is dropped, and write nothing."
    )
    overwrite: bool = flag(
        "--overwrite",
        "--force",
        group=Group.BEHAVIOUR,
        help="Go on even if no record matches, or every record.",
    )
    metadata: str | None = option(
        "--metadata",
        group=Group.INPUT,
        metavar="DIR",
        help="The metadata log directory, which says what topics are compacted.",
    )
    allow_revive: bool = flag(
        "--allow-revive",
        group=Group.BEHAVIOUR,
        help="Drop the newest record of a key even if an older one stays.",
    )
    max_decompressed_bytes: int = max_decompressed_option()
    report: str | None = report_option("a row per partition")
    engine: Engine = engine_options()
    detail: Detail = detail_options()

    def __post_init__(self) -> None:
        LogOptions.__post_init__(self)
        if (self.drop_keys is None) == (self.drop_where is None):
            raise click.UsageError("give one of --drop-keys and --drop-where")
        if (self.output is None) != self.dry_run:
            raise click.UsageError("give --output DIR, or --dry-run without it")
        if self.output is not None and is_remote(self.output):
            raise click.UsageError(
                f"logs are written to a file system, and {self.output} is in a store: write to a "
                "folder, and copy it"
            )

    @property
    def selection(self) -> Selection:
        """The records that are dropped; reads the file of keys."""
        if self.drop_where is not None:
            return Selection(condition=Condition.parse(self.drop_where))
        return Selection(read_keys(self.drop_keys or ""))


def run_rewrite(options: RewriteOptions) -> ExitCode:
    """Run a rewrite, print its summary, and return its exit code.

    Raises `KafkaIndexError` if the run as a whole cannot start, or is refused.
    """
    job = RewriteJob.prepare(request_of(RewriteRequest, options))
    with open_report(options.report, REWRITE_REPORT_SCHEMA) as report:
        with _RewriteOutcome(job, options.detail) as outcome:
            result = job.run(options.engine, outcome)
        if result.refusal is not None:
            print_log(f"would be refused: {result.refusal}")
        if not result.is_new:
            print_log(f"{result.output}: finished by an earlier run, and not written again")
        if report is not None:
            report.write_table(result.to_arrow())
    _print(result, options.detail, job.listing.skipped)
    return ExitCode(result.outcome.exit_code)


class _RewriteOutcome(Outcome):
    """The listener of an engine that rewrites; a context manager around its run."""

    def __init__(self, job: RewriteJob, detail: Detail) -> None:
        segments = [segment for plan in job.plans for segment in plan.segments]
        # Both passes read all of it; a dry run makes one.
        passes = 1 if job.request.output is None else 2
        size_bytes = passes * sum(segment.log_size_bytes for segment in segments)
        super().__init__(len(segments), size_bytes, detail)

    def on_first(self, segment: SegmentFile) -> None:
        """Show that the first of two passes has read a segment."""
        self._progress.advance(0, segment.log_size_bytes)

    def on_last(self, segment: SegmentFile) -> None:
        """Show that the last pass has read a segment."""
        self._progress.advance(1, segment.log_size_bytes)


def _print(result: RewriteResult, detail: Detail, skipped: Sequence[Skipped]) -> None:
    run_summary().add_result(result)
    for row in result.left_out:
        print_error(f"left out: {row.topic}-{row.partition}: {row.reason}")
    if detail is Detail.QUIET:
        return
    for row in result.partitions:
        is_note = row.status is not RewriteStatus.LEFT_OUT and not row.missing_offsets.lost
        if is_note and row.reason is not None:
            print_log(row.reason)
    rows = [
        [topic, *map(format_count, counts)]
        for topic, counts in result.by_topic.items()
        if counts[2] or result.output is None or detail is Detail.VERBOSE
    ]
    table = Table(["topic", "partitions", "records", "dropped"], rows)
    paint = Paint(sys.stdout)
    lines = key_lines(result.records_by_line, paint)
    lines += missing_lines(result.missing_offsets, paint)
    lines += skipped_lines(skipped, paint, detail)
    print_text(sys.stdout, [*([table] if rows else []), result.total, *lines])


make_command = partial(
    command,
    "rewrite",
    RewriteOptions,
    run_rewrite,
    help_text=_HELP,
    usage="(--input PATH... | --tiered URI) (--output DIR | --dry-run) "
    "(--drop-keys FILE | --drop-where EXPR)",
    examples=_EXAMPLES,
    job_examples=_EXAMPLES,
)
