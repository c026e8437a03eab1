"""``metadata``: what Kafka's own topics say of a cluster, as tables or as a summary."""

from __future__ import annotations

import base64
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
import pyarrow as pa
from pyarrow import types

from kafka_index.cli.dump_output import DumpOutput
from kafka_index.cli.exit_status import ExitCode, run_summary
from kafka_index.cli.options import Option, command, flag, option, option_group
from kafka_index.cli.record_text import readable_time
from kafka_index.cli.shared_options import Detail, detail_options, max_decompressed_option
from kafka_index.cli.terminal import Paint, print_error, print_text
from kafka_index.core.cluster.metadata.directory import ClusterMetadata, Faults
from kafka_index.core.cluster.metadata.tables import LAG_TABLES, METADATA_TABLES, read_for_table
from kafka_index.core.errors import plural
from kafka_index.core.format.human import format_bytes
from kafka_index.core.format.times import now_ms
from kafka_index.core.job.request import Group
from kafka_index.core.log.future_timestamps import future_segments
from kafka_index.core.logdir.listing import list_any
from kafka_index.core.output.report_file import ReportFile, check_report_path

_HELP = """Print what Kafka's own topics say of a cluster: __cluster_metadata (its newest snapshot,
    then its log), __consumer_offsets, __transaction_state and __remote_log_metadata.

    PATH is a broker's data directory, a metadata log directory, or a directory of one partition;
    several may be given. Files are opened read-only. Without --what, a summary is printed.

    Tables: topics, partitions, brokers; groups, offsets; transactions, producers; remote-segments.
    They are as of the last record in the files. lag compares the offsets that groups committed
    with the logs below PATH, and lag-history does so for every commit. Credentials are never read
    out, and configurations that may be secret have the value [hidden].

    Exit codes: 0, done; 1, records are damaged or missing: the rest is printed, and lines on stderr
    report the damage; 2, wrong usage, or the topics are not there; 3, a file cannot be read because
    of permission, disk or memory; 70, an internal error.
    """
_EXAMPLES = """\
kafka-index metadata /var/kafka/data
kafka-index metadata /var/kafka/metadata --what topics
kafka-index metadata /var/kafka/data --what offsets --json
kafka-index metadata /var/kafka/data --what groups --output groups.parquet
kafka-index metadata /var/kafka/data --what lag
"""
_ERRORS_SHOWN = 10
_SHORT = 40
_TIMESTAMP_MS = "_timestamp_ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataOptions:
    """The options of ``metadata``."""

    paths: tuple[str, ...] = option_group(
        Option(
            ["--input", "inputs"],
            Group.INPUT,
            multiple=True,
            metavar="PATH",
            help="The same as PATH without --input.",
        ),
        click.Argument(["paths"], nargs=-1, metavar="PATH..."),
        make=lambda inputs, paths: (*inputs, *paths),
    )
    what: str | None = option(
        "--what",
        group=Group.SELECTION,
        type=click.Choice([*METADATA_TABLES, *LAG_TABLES]),
        help="The table to print.  [default: a summary]",
    )
    as_json: bool = flag("--json", group=Group.OUTPUT, help="Print JSON lines.")
    output: str | None = option(
        "--output",
        group=Group.OUTPUT,
        metavar="FILE",
        help="Write the table to FILE: .parquet, .arrow or .json (JSON lines).",
    )
    max_decompressed_bytes: int = max_decompressed_option()
    detail: Detail = detail_options()

    def __post_init__(self) -> None:
        if not self.paths:
            raise click.UsageError("no input: give PATH")
        if self.output is None:
            return
        if self.as_json:
            raise click.UsageError("--json and --output are mutually exclusive")
        if self.what is None:
            raise click.UsageError("--output requires --what")
        check_report_path(self.output)


def _run(options: MetadataOptions) -> ExitCode:
    what = options.what
    most = options.max_decompressed_bytes
    if what in LAG_TABLES:
        from kafka_index.core.query.lag import read_lag  # noqa: PLC0415, slow to import

        table, faults = read_lag(options.paths, what, max_decompressed_bytes=most)
        _put_table(table, options)
    else:
        found = read_for_table(options.paths, what, max_decompressed_bytes=most)
        faults = found.faults
        if what is not None:
            _put_table(METADATA_TABLES[what].of(found), options)
        elif options.as_json:
            options.detail.stdout.write(json.dumps(_summary(found, options.paths)) + "\n")
        else:
            stdout = options.detail.stdout
            print_text(stdout, _summary_lines(_summary(found, options.paths), Paint(stdout)))
    sys.stdout.flush()
    return _report(faults)


def _with_times(table: pa.Table) -> pa.Table:
    """Return a table whose timestamps are ISO 8601, under names without a unit."""
    for number, name in enumerate(table.column_names):
        if name.endswith(_TIMESTAMP_MS):
            values = table[name].to_pylist()
            times = [None if one is None else readable_time(one) for one in values]
            short = name.removesuffix(_TIMESTAMP_MS) + "_time"
            table = table.set_column(number, short, pa.array(times, pa.string()))
    return table


def _put_table(table: pa.Table, options: MetadataOptions) -> None:
    """Print a table, or write it to a file."""
    if options.output is not None:
        with ReportFile(options.output, table.schema) as file:
            file.write_table(table)
        return
    output = DumpOutput(options.detail.stdout, as_json=options.as_json)
    for batch in (table if options.as_json else _with_times(table)).to_batches():
        output.rows(batch if options.as_json else _readable(batch))
    output.remark(plural(table.num_rows, "row"))


def _report(faults: Faults) -> ExitCode:
    """Print the faults; return the exit code."""
    run_summary().add_count("faults", faults.total)
    for fault in faults.first[:_ERRORS_SHOWN]:
        print_error(str(fault))
    more = faults.total - min(len(faults.first), _ERRORS_SHOWN)
    if more:
        print_error(f"and {plural(more, 'more fault')}")
    return ExitCode.of_faults(faults.first)


def _summary(found: ClusterMetadata, paths: Sequence[str]) -> dict[str, Any]:
    """Return the members of a summary; those of topics that were not there are None."""
    cluster = found.cluster
    of_cluster: dict[str, object] = dict.fromkeys(
        ("topics", "partitions", "brokers", "features", "next_producer_id")
    )
    if cluster is not None:
        block = cluster.producer_ids
        of_cluster = {
            "topics": len(cluster.topics),
            "partitions": sum(len(topic.partitions) for topic in cluster.topics.values()),
            "brokers": len(cluster.brokers),
            "features": cluster.features,
            "next_producer_id": None if block is None else block.next_producer_id,
        }
    groups, transactions, segments = found.groups, found.transactions, found.remote_segments
    return {
        "sources": [source._asdict() for source in found.sources],
        **of_cluster,
        "groups": None if groups is None else Counter(one.kind for one in groups),
        "committed_offsets": None if found.offsets is None else len(found.offsets),
        "transactions": None
        if transactions is None
        else Counter(one.state for one in transactions),
        "remote_segments": None
        if segments is None
        else Counter(one.state.name for one in segments),
        "records": _records(found, is_known=True),
        "unknown_records": _records(found, is_known=False),
        "future_timestamps": {
            topic: {"segments": count, "size_bytes": size_bytes}
            for topic, (count, size_bytes) in sorted(
                future_segments(list_any(paths, topics=None).segments, now_ms()).items()
            )
        },
        "faults": found.faults.total,
    }


def _records(found: ClusterMetadata, *, is_known: bool) -> dict[str, dict[str, int]]:
    """Return the numbers of records of each topic by their types, known ones or others."""
    return {
        topic: {
            name.name: count for name, count in sorted(counts.items()) if name.is_known == is_known
        }
        for topic, counts in found.counts.items()
    }


def _summary_lines(summary: Mapping[str, Any], paint: Paint) -> Iterator[str]:
    for source in summary["sources"]:
        snapshot = "" if source["snapshot"] is None else f"snapshot {source['snapshot']}, "
        yield (
            f"{paint.strong(source['path'])}: {snapshot}{plural(source['records'], 'record')}, "
            f"end offset {source['end_offset']}"
        )
    if summary["topics"] is not None:
        counts = [plural(summary[f"{noun}s"], noun) for noun in ("topic", "partition", "broker")]
        if summary["next_producer_id"] is not None:
            counts.append(f"next producer id {summary['next_producer_id']}")
        yield f"{paint.strong('cluster')}: {', '.join(counts)}"
        levels = ", ".join(f"{name} {level}" for name, level in sorted(summary["features"].items()))
        yield f"{paint.strong('features')}: {levels or 'none'}"
    if summary["groups"] is not None:
        offsets = plural(summary["committed_offsets"] or 0, "committed offset")
        yield f"{paint.strong('groups')}: {_counted(summary['groups'])}; {offsets}"
    for name in ("transactions", "remote_segments"):
        if summary[name] is not None:
            yield f"{paint.strong(name.replace('_', ' '))}: {_counted(summary[name])}"
    for topic, counts in summary["records"].items():
        known = ", ".join(f"{name} {count}" for name, count in counts.items())
        yield f"{paint.strong(f'records of {topic}')}: {known or 'none'}"
        unknown = summary["unknown_records"][topic].items()
        if unknown:
            texts = ", ".join(f"{name} {count}" for name, count in unknown)
            yield paint.notable(f"unknown, not decoded: {texts}")
    for topic, future in summary["future_timestamps"].items():
        yield paint.notable(
            f"timestamps of {topic} in the future delay retention by time: "
            f"{plural(future['segments'], 'segment')}, {format_bytes(future['size_bytes'])}"
        )


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


def _readable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose nested columns are text: ``1,2,3`` and ``a=b``.

    Structures are shortened: a member of a group is its id, a partition its topic and number.
    """
    columns = [
        pa.array([_text(value) for value in column.to_pylist()], pa.string())
        if types.is_nested(column.type) or types.is_binary(column.type)
        else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _text(value: object) -> str | None:
    match value:
        case None:
            return None
        case bytes():
            return base64.b64encode(value).decode()
        case list():
            return ",".join(_item(item) for item in value) or None
    return str(value)


def _item(value: object) -> str:
    match value:
        case (name, content):
            return f"{name}={content}"
        case {"member_id": member}:
            return str(member)[:_SHORT]
        case {"topic": topic, "partition": partition}:
            return f"{topic}-{partition}"
        case {"leader_epoch": epoch, "start_offset": offset}:
            return f"{epoch}:{offset}"
    return str(value)


make_command = partial(
    command,
    "metadata",
    MetadataOptions,
    _run,
    help_text=_HELP,
    usage="[--what TABLE] [OPTIONS]",
    examples=_EXAMPLES,
)
