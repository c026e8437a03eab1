"""``metadata``: what Kafka's own topics say of a cluster, as tables or as a summary."""

from __future__ import annotations

import base64
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TextIO

import click
import pyarrow as pa
from pyarrow import types

from kafka_index.cli.dump_output import DumpOutput
from kafka_index.cli.options import Group, argument, command, flag, option
from kafka_index.cli.record_text import readable_time
from kafka_index.cli.run_end import ExitCode, run_summary
from kafka_index.cli.shared_options import max_decompressed_option, verbose_option
from kafka_index.cli.terminal import Paint, print_error, print_text
from kafka_index.errors import plural
from kafka_index.lookup.lag import LAG_TABLES, read_lag
from kafka_index.metadata import METADATA_TABLES, ClusterMetadata, read_for_table
from kafka_index.metadata.directory import Faults
from kafka_index.storage.report_file import ReportFile, check_report_path

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

    paths: tuple[str, ...] = argument("PATH...")
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
    verbose: bool = verbose_option()

    def __post_init__(self) -> None:
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
        table, faults = read_lag(options.paths, what, max_decompressed_bytes=most)
        _put_table(table, options)
    else:
        found = read_for_table(options.paths, what, max_decompressed_bytes=most)
        faults = found.faults
        if what is None:
            _print_summary(found, sys.stdout, as_json=options.as_json)
        else:
            _put_table(METADATA_TABLES[what].of(found), options)
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
    output = DumpOutput(sys.stdout, as_json=options.as_json)
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


def _print_summary(found: ClusterMetadata, stream: TextIO, *, as_json: bool) -> None:
    """Print the summary, as text or as one JSON object."""
    if as_json:
        stream.write(json.dumps(_as_object(found)) + "\n")
        return
    print_text(stream, _summary_text(found, Paint(stream)))


def _summary_text(found: ClusterMetadata, paint: Paint) -> Iterator[str]:
    for source in found.sources:
        snapshot = "" if source.snapshot is None else f"snapshot {source.snapshot}, "
        yield (
            f"{paint.strong(source.path)}: {snapshot}{plural(source.records, 'record')}, "
            f"end offset {source.end_offset}"
        )
    yield from (f"{paint.strong(title)}: {text}" for title, text in _lines(found))
    for topic, counts in found.counts.items():
        known = [f"{name.name} {count}" for name, count in sorted(counts.items()) if name.is_known]
        yield f"{paint.strong(f'records of {topic}')}: {', '.join(known) or 'none'}"
        unknown = [f"{n.name} {count}" for n, count in sorted(counts.items()) if not n.is_known]
        if unknown:
            yield paint.notable(f"unknown, not decoded: {', '.join(unknown)}")


def _lines(found: ClusterMetadata) -> Iterator[tuple[str, str]]:
    cluster = found.cluster
    if cluster is not None:
        partitions = sum(len(topic.partitions) for topic in cluster.topics.values())
        block = cluster.producer_ids
        yield (
            "cluster",
            f"{plural(len(cluster.topics), 'topic')}, {plural(partitions, 'partition')}, "
            f"{plural(len(cluster.brokers), 'broker')}"
            + ("" if block is None else f", next producer id {block.next_producer_id}"),
        )
        features = ", ".join(f"{name} {level}" for name, level in sorted(cluster.features.items()))
        yield "features", features or "none"
    if found.groups is not None:
        kinds = Counter(group.kind for group in found.groups)
        yield (
            "groups",
            f"{_counted(kinds)}; {plural(len(found.offsets or []), 'committed offset')}",
        )
    if found.transactions is not None:
        yield "transactions", _counted(Counter(one.state for one in found.transactions))
    if found.remote_segments is not None:
        yield "remote segments", _counted(Counter(one.state.name for one in found.remote_segments))


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


def _as_object(found: ClusterMetadata) -> dict[str, object]:
    cluster = found.cluster
    return {
        "sources": [source._asdict() for source in found.sources],
        "topics": None if cluster is None else len(cluster.topics),
        "partitions": None
        if cluster is None
        else sum(len(topic.partitions) for topic in cluster.topics.values()),
        "brokers": None if cluster is None else len(cluster.brokers),
        "features": None if cluster is None else cluster.features,
        "next_producer_id": None
        if cluster is None or cluster.producer_ids is None
        else cluster.producer_ids.next_producer_id,
        "groups": None if found.groups is None else Counter(one.kind for one in found.groups),
        "committed_offsets": None if found.offsets is None else len(found.offsets),
        "transactions": None
        if found.transactions is None
        else Counter(one.state for one in found.transactions),
        "remote_segments": None
        if found.remote_segments is None
        else Counter(one.state.name for one in found.remote_segments),
        "records": {
            topic: {name.name: count for name, count in sorted(counts.items()) if name.is_known}
            for topic, counts in found.counts.items()
        },
        "unknown_records": {
            topic: {name.name: count for name, count in sorted(counts.items()) if not name.is_known}
            for topic, counts in found.counts.items()
        },
        "faults": found.faults.total,
    }


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
