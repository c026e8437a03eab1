"""``import``: tables of records to logs that a broker mounts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

import click

from kafka_index.cli.exit_status import ExitCode, run_summary
from kafka_index.cli.options import command, flag, option
from kafka_index.cli.shared_options import Detail, detail_options, engine_options, input_option
from kafka_index.cli.terminal import print_log
from kafka_index.commands.import_.import_manifest import ImportCounts
from kafka_index.commands.import_.import_settings import ImportMode, ImportSettings
from kafka_index.commands.import_.import_target import import_root
from kafka_index.commands.import_.layouts import ImportLayout, list_layout_files
from kafka_index.commands.import_.local_import import import_files
from kafka_index.commands.import_.table_files import TableFile
from kafka_index.core.errors import ConfigError, plural
from kafka_index.core.format.human import format_bytes, format_count
from kafka_index.core.format.message_bytes import uuid_bytes
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.fs.store import is_remote
from kafka_index.core.job.engine import Engine
from kafka_index.core.job.request import Group

_HELP = """Write tables of records as the logs of partitions, which a broker mounts.

    PATH is a Parquet file, a file of JSON lines, a folder of them, or a glob of either, with the
    columns that export writes: topic, partition, and key or value; offset, timestamp, timestampType
    and headers where there are any. With a column offset, offsets are kept, gaps included;
    otherwise --order-by names the column in whose order the records get them. With --layout the
    files are those of another export, and have its names and columns.

    Each partition appears whole or not at all. A data directory that a running broker holds is
    refused; logs that are there are continued with --append, and those that an earlier import has
    written are replaced with --overwrite.

    Exit codes: 0, all records are written; 2, wrong usage, or a record cannot be written; 3, a
    failure of permission, disk, memory or cluster, worth a retry; 70, an internal error.
    """
_EXAMPLES = """\
kafka-index import --input /export/orders --output /var/kafka/data
kafka-index import --input events.parquet --output /tmp/logs --order-by event_time \\
    --property compression.type=zstd --property segment.bytes=104857600
kafka-index import --input /backup/topics --output /tmp/logs --layout confluent-s3 \\
    --layout-property value.converter=json
"""
_JOB_EXAMPLES = """\
spark-submit jobs/import.py --input /mnt/export --output /mnt/logs
"""


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, equals, _ in pairs:
        if not (name and equals):
            raise click.BadParameter(f"{name!r} is not NAME=VALUE")
    return {name.strip(): content.strip() for name, _, content in pairs}


def _topic_ids(texts: Sequence[str]) -> dict[str, str]:
    ids = _pairs(texts)
    for topic_id in ids.values():
        try:
            uuid_bytes(topic_id)
        except ValueError as error:
            raise click.BadParameter(f"{topic_id!r} is not a topic id") from error
    return ids


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """The options of ``import``."""

    inputs: tuple[str, ...] = input_option("Files and folders of records; may be repeated.")
    output: str = option(
        "--output",
        group=Group.OUTPUT,
        metavar="DIR",
        required=True,
        help="The data directory to write to, made if it is not there.",
    )
    append: bool = flag(
        "--append", group=Group.OUTPUT, help="Continue the logs of partitions that exist."
    )
    overwrite: bool = flag(
        "--overwrite",
        group=Group.OUTPUT,
        help="Replace the partitions in DIR, all of which an import has to have written.",
    )
    order_by: str | None = option(
        "--order-by",
        group=Group.INPUT,
        metavar="COLUMN",
        help="Without a column offset: the column in whose order records get their offsets.",
    )
    layout: str | None = option(
        "--layout",
        group=Group.INPUT,
        type=click.Choice([str(each) for each in ImportLayout]),
        help="The files are of another export: of Spark's Kafka source, kcat -J, or an S3 sink "
        "connector; auto recognises them.  [default: those of kafka-index export]",
    )
    layout_properties: dict[str, str] = option(
        "--layout-property",
        group=Group.INPUT,
        multiple=True,
        parse=_pairs,
        metavar="NAME=VALUE",
        help="A setting of the connector that the files do not hold: key.converter, "
        "value.converter, header.converter (string, bytes, json), file.name.template and others. "
        "May be repeated.",
    )
    properties: dict[str, str] = option(
        "--property",
        group=Group.SETTINGS,
        multiple=True,
        parse=_pairs,
        metavar="NAME=VALUE",
        help="A setting under Kafka's name: segment.bytes, compression.type, batch.size, "
        "message.timestamp.type and others of a topic. May be repeated.",
    )
    topic_ids: dict[str, str] = option(
        "--topic-id",
        group=Group.SETTINGS,
        multiple=True,
        parse=_topic_ids,
        metavar="TOPIC=ID",
        help="The topic id for the partition.metadata of new partitions, without which a "
        "broker takes them for stray. May be repeated.",
    )
    engine: Engine = engine_options()
    detail: Detail = detail_options()

    def __post_init__(self) -> None:
        if not self.inputs:
            raise click.UsageError("no input: give --input PATH")
        if self.append and self.overwrite:
            raise click.UsageError("--append and --overwrite are mutually exclusive")
        if is_remote(self.output):
            raise click.UsageError(
                f"logs are written to a file system, for a broker to mount, and {self.output} is "
                "in a store: write to a folder, and copy it"
            )

    @property
    def settings(self) -> ImportSettings:
        """The settings of the work."""
        mode = ImportMode.APPEND if self.append else ImportMode.CREATE
        try:
            return ImportSettings.of_properties(
                self.properties,
                mode=ImportMode.OVERWRITE if self.overwrite else mode,
                order_by=self.order_by,
                topic_ids=self.topic_ids,
            )
        except ConfigError as error:
            raise click.BadParameter(str(error), param_hint="--property") from error


def _files(options: ImportOptions) -> tuple[list[TableFile], list[str]]:
    layout = None if options.layout is None else ImportLayout(options.layout)
    try:
        return list_layout_files(options.inputs, layout, options.layout_properties)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="--layout-property") from error


def _run(options: ImportOptions) -> ExitCode:
    from kafka_index.api.writing import ImportedLog, ImportResult  # noqa: PLC0415, slow to import

    settings, root = options.settings, import_root(options.output, options.inputs)
    (files, notices), detail = _files(options), options.detail
    rows: list[ImportedLog] = []

    def on_partition(partition: TopicPartition, counts: ImportCounts) -> None:
        rows.append(ImportedLog(partition.topic, partition.partition, **asdict(counts)))
        _print_partition(partition, counts, detail)

    if detail is not Detail.QUIET:
        for notice in notices:
            print_log(notice)
    if options.engine.on_spark:
        from kafka_index.spark.import_tables import import_on_spark  # noqa: PLC0415, PySpark

        is_new = import_on_spark(
            options.engine, files, root, settings, options.properties, on_partition
        )
    else:
        is_new = import_files(options.engine, files, root, settings, on_partition)
    result = ImportResult(rows, root, is_new)
    run_summary().add_result(result)
    if detail is not Detail.QUIET:
        if not is_new:
            print_log(f"{root}: imported by an earlier run, and not written again")
        size = format_bytes(result.sizes_bytes["logs"])
        records, partitions = (
            plural(result.counts[f"{noun}s"], noun) for noun in ("record", "partition")
        )
        click.echo(f"{records} in {partitions} ({size}) in {root}")
    return ExitCode.DONE


def _print_partition(partition: TopicPartition, counts: ImportCounts, detail: Detail) -> None:
    """Print what was cut off a partition that is in its place, and in VERBOSE detail its counts."""
    if counts.cut_bytes:
        print_log(
            f"{partition.directory_name}: its last batch was not written to its end, and was "
            f"cut off, as a broker does ({format_bytes(counts.cut_bytes)})"
        )
    if detail is Detail.VERBOSE:
        click.echo(
            f"{partition.directory_name}: {format_count(counts.records)} records from offset "
            f"{counts.first_offset}, log end {counts.end_offset}, "
            f"{plural(counts.segments, 'segment')}"
        )


make_command = partial(
    command,
    "import",
    ImportOptions,
    _run,
    help_text=_HELP,
    usage="--input PATH... --output DIR [OPTIONS]",
    examples=_EXAMPLES,
    job_examples=_JOB_EXAMPLES,
    has_links=False,
)
