"""``rewrite``: match, decide, write, report, print."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import click
import pyarrow as pa

from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.options import command, option
from kafka_index.cli.progress import skipped_lines
from kafka_index.cli.run_summary import run_summary
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
from kafka_index.cli.terminal import (
    Paint,
    Table,
    format_count,
    plural,
    print_error,
    print_log,
    print_text,
)
from kafka_index.config import LogConfig
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
from kafka_index.stores import is_remote
from kafka_index.writing.condition import Condition, Selection, parse_keys
from kafka_index.writing.rewrite_output import RewriteOutput
from kafka_index.writing.rewriting import (
    MatchedPartition,
    RewriteSettings,
    digest_of,
    match_partitions,
    plan_rewrite,
    rewrite_partitions,
    summary_by_topic,
    tiered_starts,
)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteOptions(LogOptions):
    """The options of a rewrite, checked except against the disk; without `output` a dry run."""

    output: str | None = option(
        "--output", metavar="DIR", help="An empty folder, or one of an unfinished rewrite."
    )
    drop_keys: str | None = option(
        "--drop-keys",
        metavar="FILE",
        help="Drop records with these keys, one per line: text, hex: or base64:.",
    )
    drop_where: str | None = option(
        "--drop-where", metavar="EXPR", help="Drop records that satisfy a condition."
    )
    topics: re.Pattern[str] | None = topics_option()
    config: LogConfig = settings_options()
    dry_run: bool = option(
        "--dry-run", is_flag=True, help="Print what is dropped, and write nothing."
    )
    overwrite: bool = option(
        "--overwrite",
        "--force",
        is_flag=True,
        help="Go on even if no record matches, or every record.",
    )
    metadata: str | None = option(
        "--metadata",
        metavar="DIR",
        help="The metadata log directory, which says what topics are compacted.",
    )
    allow_revive: bool = option(
        "--allow-revive",
        is_flag=True,
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
    def of_topics(self) -> str:
        """The restriction to some topics, for people; empty for the whole input."""
        return "" if self.topics is None else f" of the topics that match {self.topics.pattern!r}"

    @property
    def selection(self) -> Selection:
        """The records that are dropped; reads the file of keys."""
        if self.drop_where is not None:
            return Selection(condition=Condition.parse(self.drop_where))
        path = self.drop_keys or ""
        try:
            with open(path, encoding="utf-8", newline="\n") as file:
                return Selection(parse_keys(file, path=path))
        except OSError as error:
            raise InputError(f"cannot read the keys: {error.strerror}", path=path) from error
        except UnicodeDecodeError as error:
            raise InputError(
                "the file of keys is not UTF-8", path=path, hint="write other bytes as hex:"
            ) from error


def run_rewrite(options: RewriteOptions) -> ExitCode:
    """Run a rewrite, print its summary, and return its exit code.

    Raises `KafkaIndexError` if the run as a whole cannot start, or is refused.
    """
    selection = options.selection
    budget = shared_budget(options.max_decompressed_bytes)
    cluster = None
    if options.metadata is not None:
        cluster = read_cluster([options.metadata], budget=budget)
    plans, listing = plan_rewrite(options.inputs, options.topics, cluster, options.tiered)
    directories = listing.data_directories
    found = FoundCluster(cluster) if cluster else find_cluster(None, directories, budget)
    settings = RewriteSettings(
        selection,
        found.settings(options.config),
        options.max_decompressed_bytes,
        options.allow_revive,
    )
    with ExitStack() as stack:
        report = (
            stack.enter_context(ReportFile(options.report, _REPORT)) if options.report else None
        )
        output = None
        if options.output is not None:
            remote = () if options.tiered is None else options.tiered.uris
            local = (plan.local_directory for plan in plans)
            inputs = [*options.inputs, *remote, *filter(None, local)]
            digest = digest_of(plans, settings)
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
    if options.overwrite or not found:
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
            hint="correct the keys or the condition, or give --overwrite",
        )
    if dropped == records:
        raise InputError(
            "every record matches",
            found=plural(records, "record") + options.of_topics,
            hint="correct the keys or the condition, or give --overwrite",
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
    lines = skipped_lines(skipped, Paint(sys.stdout), options.detail)
    print_text(sys.stdout, [*([table] if rows else []), total, *lines])


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
