"""``import``: tables of records to logs that a broker mounts."""

from __future__ import annotations

import os

import click

from kafka_index.cli.exit_code import ExitCode
from kafka_index.cli.import_tables import run_import
from kafka_index.cli.options import (
    SUBMITTED,
    Decorator,
    Detail,
    command,
    paths_options,
    run_options,
)
from kafka_index.cli.run_summary import run_summary
from kafka_index.cli.terminal import print_log
from kafka_index.cli.text import format_bytes, format_count, plural
from kafka_index.errors import ConfigError, InputError
from kafka_index.execution import Engine
from kafka_index.layout.message_bytes import uuid_bytes
from kafka_index.layout.names import TopicPartition
from kafka_index.storage import local_path, refuse_overlap
from kafka_index.stores import is_remote
from kafka_index.writing.import_record import ImportCounts
from kafka_index.writing.import_settings import ImportMode, ImportSettings
from kafka_index.writing.table_files import list_table_files

_HELP = """Write tables of records as the logs of partitions, which a broker mounts.

    PATH is a Parquet file, a file of JSON lines, a folder of them, or a glob of either, with the
    columns that export writes: topic, partition, and key or value; offset, timestamp, timestampType
    and headers where there are any. With a column offset, offsets are kept, gaps included;
    otherwise --order-by names the column in whose order the records get them.

    Each partition appears whole or not at all. A data directory that a running broker holds is
    refused; logs that are there are continued with --append, and those that an earlier import has
    written are replaced with --overwrite.

    Exit codes: 0, all records are written; 2, wrong usage, or a record cannot be written; 3, a
    failure of permission, disk, memory or cluster, worth a retry; 70, an internal error.

    \b
    Examples:
    """
_CONSOLE_EXAMPLES = """\
  kafka-index import --input /export/orders --output /var/kafka/data
      kafka-index import --input events.parquet --output /tmp/logs --order-by event_time \\
          --property compression.type=zstd --property segment.bytes=104857600
"""
_JOB_EXAMPLES = """\
  spark-submit jobs/import.py --input /mnt/export --output /mnt/logs
"""


def _options() -> list[Decorator]:
    return [
        *paths_options("--input", "inputs", "Files and folders of records; may be repeated."),
        click.option(
            "--output",
            metavar="DIR",
            required=True,
            help="The data directory to write to, made if it is not there.",
        ),
        click.option("--append", is_flag=True, help="Continue the logs of partitions that exist."),
        click.option(
            "--overwrite",
            is_flag=True,
            help="Replace the partitions in DIR, all of which an import has to have written.",
        ),
        click.option(
            "--order-by",
            metavar="COLUMN",
            help="Without a column offset: the column in whose order records get their offsets.",
        ),
        click.option(
            "--property",
            "properties",
            multiple=True,
            callback=_pairs,
            metavar="NAME=VALUE",
            help="A setting under Kafka's name: segment.bytes, compression.type, batch.size, "
            "message.timestamp.type and others of a topic. May be repeated.",
        ),
        click.option(
            "--topic-id",
            "topic_ids",
            multiple=True,
            callback=_topic_ids,
            metavar="TOPIC=ID",
            help="The topic id for the partition.metadata of new partitions, without which a "
            "broker takes them for stray. May be repeated.",
        ),
    ]


def _pairs(
    _context: click.Context, _option: click.Parameter, value: tuple[str, ...]
) -> dict[str, str]:
    pairs = [text.partition("=") for text in value]
    for name, equals, _ in pairs:
        if not (name and equals):
            raise click.BadParameter(f"{name!r} is not NAME=VALUE")
    return {name.strip(): content.strip() for name, _, content in pairs}


def _topic_ids(
    context: click.Context, option: click.Parameter, value: tuple[str, ...]
) -> dict[str, str]:
    ids = _pairs(context, option, value)
    for topic_id in ids.values():
        try:
            uuid_bytes(topic_id)
        except ValueError as error:
            raise click.BadParameter(f"{topic_id!r} is not a topic id") from error
    return ids


def make_command(*, as_job: bool) -> click.Command:
    """Return the ``import`` command, or as a job for ``spark-submit`` that is always on Spark."""

    def import_(
        inputs: tuple[str, ...],
        output: str,
        append: bool,  # noqa: FBT001, because click passes options by name
        overwrite: bool,  # noqa: FBT001, because click passes options by name
        order_by: str | None,
        properties: dict[str, str],
        topic_ids: dict[str, str],
        detail: Detail,
        engine: Engine = SUBMITTED,
    ) -> int:
        if not inputs:
            raise click.UsageError("no input: give --input PATH")
        if append and overwrite:
            raise click.UsageError("--append and --overwrite are mutually exclusive")
        if is_remote(output):
            raise click.UsageError(
                f"logs are written to a file system, for a broker to mount, and {output} is in a "
                "store: write to a folder, and copy it"
            )
        mode = ImportMode.APPEND if append else ImportMode.CREATE
        mode = ImportMode.OVERWRITE if overwrite else mode
        try:
            settings = ImportSettings.of_properties(
                properties, mode=mode, order_by=order_by, topic_ids=topic_ids
            )
        except ConfigError as error:
            raise click.BadParameter(str(error), param_hint="--property") from error
        root = os.path.realpath(local_path(output))
        refuse_overlap(root, output, inputs)
        summary = _Summary(detail)
        try:
            is_new = run_import(
                engine,
                list_table_files(inputs),
                root,
                settings,
                properties,
                summary,
                summary.on_partition,
            )
        except InputError as error:
            if summary.partitions:
                error.add_note(f"{plural(summary.partitions, 'partition')} are written")
            raise
        if not is_new and detail is not Detail.QUIET:
            print_log(f"{root}: imported by an earlier run, and not written again")
        return summary.finish(root)

    import_.__name__ = "import"
    return command(
        import_,
        [*_options(), *run_options(as_job=as_job)],
        help_text=_HELP + (_JOB_EXAMPLES if as_job else _CONSOLE_EXAMPLES),
        usage="--input PATH... --output DIR [OPTIONS]",
        has_links=False,
    )


class _Summary:
    """Counts what is written, and prints it."""

    def __init__(self, detail: Detail) -> None:
        self.partitions = self._records = self._bytes = 0
        self._detail = detail

    def on_begin(self) -> None:
        """Do nothing: what is written is printed."""

    def on_share(self, done: int, total: int) -> None:
        """Do nothing, likewise."""

    def on_partition(self, partition: TopicPartition, counts: ImportCounts) -> None:
        """Add a partition that is in its place."""
        self.partitions += 1
        self._records += counts.records
        self._bytes += counts.size_bytes
        if self._detail is Detail.VERBOSE:
            click.echo(
                f"{partition.directory_name}: {format_count(counts.records)} records from offset "
                f"{counts.first_offset}, log end {counts.end_offset}, "
                f"{plural(counts.segments, 'segment')}"
            )

    def finish(self, root: str) -> ExitCode:
        """Print the summary."""
        summary = run_summary()
        summary.add_count("partitions", self.partitions)
        summary.add_count("records", self._records)
        summary.add_bytes("logs", self._bytes)
        if self._detail is not Detail.QUIET:
            click.echo(
                f"{plural(self._records, 'record')} in {plural(self.partitions, 'partition')} "
                f"({format_bytes(self._bytes)}) in {root}"
            )
        return ExitCode.DONE
