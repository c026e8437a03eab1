"""``restore``: its options, for the console script."""

from __future__ import annotations

import os
import re

import click

from kafka_index.cli.numbers import TIME_HELP, Whole
from kafka_index.cli.options import (
    SUBMITTED,
    Decorator,
    Detail,
    command,
    max_decompressed_option,
    paths_options,
    report_option,
    run_options,
    settings_options,
    topics_option,
)
from kafka_index.cli.restore import run_restore
from kafka_index.cli.run_summary import run_summary
from kafka_index.cli.tiered_options import check_input, tiered_options
from kafka_index.config import DEFAULT_MAX_DECOMPRESSED_BYTES, LogConfig, parse_integer
from kafka_index.errors import InputError
from kafka_index.execution import Engine
from kafka_index.layout.names import TopicPartition, is_legal_topic, parse_partition_directory
from kafka_index.restore.cluster import ClusterMode
from kafka_index.restore.log_files import Link
from kafka_index.restore.request import RestoreRequest
from kafka_index.restore.restored_partition import Salvage
from kafka_index.restore.until import Until
from kafka_index.tables.offsets_file import read_offsets_file
from kafka_index.tiered.options import TieredOptions

_HELP = """Make a data directory that a broker of 4.3.1 mounts at once: it recovers no log,
    and no record of the dump is lost. The input is never changed.

    PATH is a data directory, a partition directory, or a glob of either; a partition may be in
    several of them. --output is a local directory, empty or freshly formatted, or an unfinished
    restore of the same input and options, which is completed.

    Every log is verified with its checksums. What is damaged is salvaged, and every range that is
    lost is a row of the report. The marker of a clean shutdown is written last. A runbook says what
    remains to be done; it is printed, and written beside the report.

    Exit codes: 0, everything is restored; 1, a record was lost or a partition left out; 2, wrong
    usage, nothing was found, or an output that must not be written; 3, a failure of permission,
    disk, memory or network: run again to complete the restore; 70, an internal error.

    \b
    Examples:
    """
_CONSOLE_EXAMPLES = """\
  kafka-index restore --input /snapshot/data --output /var/kafka/data --report restore.parquet
      kafka-index restore --input s3://backup/broker-1 --output /var/kafka/data --new-topic-ids
      kafka-index restore --input /backup/1 /backup/2 --output /var/kafka/data --salvage batches
      kafka-index restore --input /dump/data /dump/metadata --output /var/kafka/data \\
          --seed /var/kafka/metadata
"""
_JOB_EXAMPLES = """\
  spark-submit jobs/restore.py --input /mnt/dump --output /mnt/restored/data
"""


def make_command(*, as_job: bool) -> click.Command:
    """Return the ``restore`` command, or as a job for ``spark-submit`` that is always on Spark."""

    def restore(
        inputs: tuple[str, ...],
        tiered: TieredOptions | None,
        output: str | None,
        salvage: str,
        link: str,
        topics: re.Pattern[str] | None,
        log_starts: dict[TopicPartition, int],
        cluster: str,
        seeds: tuple[str, ...],
        node_id: int | None,
        topic_configs: dict[str, dict[str, str]],
        until: Until,
        create_time: bool,  # noqa: FBT001, because click passes options by name
        clamp_groups: bool,  # noqa: FBT001, because click passes options by name
        renames: dict[str, str],
        new_topic_ids: bool,  # noqa: FBT001, because click passes options by name
        metadata_output: str | None,
        all_brokers_restored: bool,  # noqa: FBT001, because click passes options by name
        config_path: str | None,
        index_interval_bytes: int | None,
        report: str | None,
        max_decompressed_bytes: int | None,
        detail: Detail,
        engine: Engine = SUBMITTED,
    ) -> int:
        check_input(inputs, tiered)
        if output is None:
            raise click.UsageError("no output: give --output DIR")
        return run_restore(
            RestoreRequest(
                inputs=inputs,
                tiered=tiered,
                output=output,
                salvage=Salvage(salvage),
                link=Link(link),
                topics=topics,
                log_starts=log_starts,
                cluster=ClusterMode(cluster),
                seeds=seeds,
                node_id=node_id,
                topic_configs=topic_configs,
                until=until,
                goes_by_create_time=create_time,
                clamp_groups=clamp_groups,
                renames=renames,
                new_topic_ids=new_topic_ids,
                metadata_output=metadata_output,
                all_brokers_restored=all_brokers_restored,
                config=LogConfig.load(config_path, index_interval_bytes=index_interval_bytes),
                max_decompressed_bytes=max_decompressed_bytes or DEFAULT_MAX_DECOMPRESSED_BYTES,
            ),
            engine,
            report,
            detail,
        )

    return command(
        restore,
        [*_options(), *run_options(as_job=as_job)],
        help_text=_HELP + (_JOB_EXAMPLES if as_job else _CONSOLE_EXAMPLES),
        usage="(--input PATH... | --tiered URI) --output DIR [OPTIONS]",
    )


def _options() -> list[Decorator]:
    return [
        *paths_options("--input", "inputs", "Dumps to read; may be repeated, or name several."),
        *tiered_options(),
        click.option("--output", metavar="DIR", help="The data directory to make."),
        click.option(
            "--salvage",
            type=click.Choice([each.value for each in Salvage]),
            default=Salvage.PREFIX.value,
            show_default=True,
            help="Of a damaged segment keep the valid prefix, or all sound batches; or leave its "
            "partition out. Later segments are kept.",
        ),
        click.option(
            "--link",
            type=click.Choice([each.value for each in Link]),
            default=Link.AUTO.value,
            show_default=True,
            help="How logs are taken over; auto clones where the file system can, else copies. "
            "With hard, a broker can cut the logs of the dump.",
        ),
        topics_option(),
        click.option(
            "--log-start",
            "log_starts",
            multiple=True,
            callback=_log_starts,
            metavar="TOPIC-N=OFFSET",
            help="Where a log starts, instead of the dump's checkpoint. May be repeated.",
        ),
        click.option(
            "--cluster",
            type=click.Choice([each.value for each in ClusterMode]),
            default=ClusterMode.FRESH.value,
            show_default=True,
            help="For a fresh cluster, or for that of the dump, which must be wholly down: then "
            "its metadata log is copied along.",
        ),
        click.option(
            "--seed",
            "seeds",
            multiple=True,
            metavar="METADATA_DIR",
            help="With fresh: the formatted metadata log directory of a controller, which gets "
            "topics, ids, settings, epochs and producer ids. Once for every controller.",
        ),
        click.option(
            "--node-id",
            type=Whole(min=0),
            metavar="N",
            help="The broker that gets the output, where neither it nor --seed says.",
        ),
        click.option(
            "--topic-config",
            "topic_configs",
            multiple=True,
            callback=_topic_configs,
            metavar="TOPIC:NAME=VALUE",
            help="A setting of a seeded topic, before that of the dump's metadata log. May be "
            "repeated.",
        ),
        click.option(
            "--until",
            callback=_until,
            metavar="TIME|FILE",
            help="Where logs end: before the first batch with a timestamp after TIME, or that "
            "reaches the offset in FILE (Spark's startingOffsets, or lines of "
            f"topic,partition,offset). {TIME_HELP}",
        ),
        click.option(
            "--create-time",
            is_flag=True,
            help="Let the time of --until count for topics with the timestamps of clients, too.",
        ),
        click.option(
            "--clamp-groups",
            is_flag=True,
            help="Let groups that committed offsets after the end of a log begin there: that is "
            "appended to __consumer_offsets.",
        ),
        click.option(
            "--rename",
            "renames",
            multiple=True,
            callback=_renames,
            metavar="OLD=NEW",
            help="With fresh: another name for a topic, which gets a new id; groups lose their "
            "offsets of it. May be repeated.",
        ),
        click.option(
            "--new-topic-ids",
            is_flag=True,
            help="Give new ids to topics whose id is not known; groups may lose their offsets.",
        ),
        click.option(
            "--metadata-output",
            metavar="DIR",
            help="With same: where the metadata log goes if it has a directory of its own.",
        ),
        click.option(
            "--all-brokers-restored",
            is_flag=True,
            help="With same: all brokers of the cluster are restored to one point in time.",
        ),
        *settings_options(),
        report_option("a row per partition and per lost range", has_page=True),
        max_decompressed_option(),
    ]


def _topic_configs(
    _context: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        topic, _, setting = text.partition(":")
        name, separator, value = setting.partition("=")
        if not (is_legal_topic(topic) and name and separator):
            raise click.BadParameter(f"{text!r} is not TOPIC:NAME=VALUE")
        found.setdefault(topic, {})[name] = value
    return found


def _until(_context: click.Context, _option: click.Parameter, value: str | None) -> Until:
    if value is None:
        return Until()
    if os.path.exists(value):
        return Until(offsets=read_offsets_file(value))
    try:
        return Until.of(value, run_summary().started_ms)
    except InputError as error:
        raise click.BadParameter(f"no such file, and {error}") from error


def _renames(
    _context: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        old, _, new = text.partition("=")
        if not (is_legal_topic(old) and is_legal_topic(new)) or old in found:
            raise click.BadParameter(f"{text!r} is not OLD=NEW, each once")
        found[old] = new
    return found


def _log_starts(
    _context: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> dict[TopicPartition, int]:
    found = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        partition, offset = parse_partition_directory(name), parse_integer(number)
        if partition is None or offset is None or offset < 0:
            raise click.BadParameter(f"{text!r} is not TOPIC-N=OFFSET")
        found[partition] = offset
    return found
