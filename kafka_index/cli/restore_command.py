"""``restore``: check, restore, report, print."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import click

from kafka_index.cli.exit_status import ExitCode, run_summary
from kafka_index.cli.options import (
    TIME_HELP,
    Whole,
    add_unread,
    choice,
    command,
    flag,
    option,
    request_of,
)
from kafka_index.cli.restore_summary import RestoreOutcome, restore_page
from kafka_index.cli.shared_options import (
    Detail,
    detail_options,
    engine_options,
    input_option,
    load_with_properties,
    max_decompressed_option,
    refuse_no_logs,
    report_option,
    settings_options,
    tiered_options,
    topics_option,
)
from kafka_index.cli.terminal import print_log
from kafka_index.commands.restore.cluster import ClusterMode
from kafka_index.commands.restore.job import RestoreJob
from kafka_index.commands.restore.output_files import Link, sync_directory, write_durably
from kafka_index.commands.restore.plan import RestoreRequest
from kafka_index.commands.restore.point_in_time import Until
from kafka_index.commands.restore.restore_partition import restore_on
from kafka_index.commands.restore.restored_partition import LostRange, Salvage
from kafka_index.commands.restore.result import RESTORE_SCHEMA, RestoreResult
from kafka_index.core.cluster.remote.options import TieredOptions
from kafka_index.core.errors import InputError
from kafka_index.core.format.config import LogConfig, parse_integer
from kafka_index.core.format.names import TopicPartition, is_legal_topic, parse_partition_directory
from kafka_index.core.fs.store import is_remote
from kafka_index.core.job.engine import Engine
from kafka_index.core.job.request import Group
from kafka_index.core.log.filter.condition import read_keys
from kafka_index.core.output.report_file import open_report
from kafka_index.core.query.bounds import read_offsets_file

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
    """
_EXAMPLES = """\
kafka-index restore --input /snapshot/data --output /var/kafka/data --report restore.parquet
kafka-index restore --input s3://backup/broker-1 --output /var/kafka/data --new-topic-ids
kafka-index restore --input /backup/1 /backup/2 --output /var/kafka/data --salvage batches
kafka-index restore --input /dump/data /dump/metadata --output /var/kafka/data \\
    --seed /var/kafka/metadata
"""
_JOB_EXAMPLES = """\
spark-submit jobs/restore.py --input /mnt/dump --output /mnt/restored/data
"""
_HARD_LINKS = (
    "warning: with --link hard a broker that cuts a log of the output cuts it in the dump too"
)


def _topic_configs(texts: tuple[str, ...]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        topic, _, setting = text.partition(":")
        name, separator, value = setting.partition("=")
        if not (is_legal_topic(topic) and name and separator):
            raise click.BadParameter(f"{text!r} is not TOPIC:NAME=VALUE")
        found.setdefault(topic, {})[name] = value
    return found


def _until(value: str | None) -> Until:
    if value is None:
        return Until()
    if os.path.exists(value):
        return Until(offsets=read_offsets_file(value))
    try:
        return Until.of(value, run_summary().started_ms)
    except InputError as error:
        raise click.BadParameter(f"no such file, and {error}") from error


def _keys(value: str | None) -> tuple[bytes, ...]:
    return () if value is None else read_keys(value)


def _renames(texts: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        old, _, new = text.partition("=")
        if not (is_legal_topic(old) and is_legal_topic(new)) or old in found:
            raise click.BadParameter(f"{text!r} is not OLD=NEW, each once")
        found[old] = new
    return found


def _log_starts(texts: tuple[str, ...]) -> dict[TopicPartition, int]:
    found = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        partition, offset = parse_partition_directory(name), parse_integer(number)
        if partition is None or offset is None or offset < 0:
            raise click.BadParameter(f"{text!r} is not TOPIC-N=OFFSET")
        found[partition] = offset
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions(RestoreRequest):
    """The options of ``restore``: the request, and how it is carried out and reported."""

    inputs: Sequence[str] = input_option("Dumps to read; may be repeated, or name several.")
    output: str = option(
        "--output", group=Group.OUTPUT, metavar="DIR", help="The data directory to make."
    )
    tiered: TieredOptions | None = tiered_options()
    topics: re.Pattern[str] | None = topics_option()
    salvage: Salvage = option(
        "--salvage",
        group=Group.BEHAVIOUR,
        **choice(Salvage),
        default=Salvage.PREFIX.value,
        help="The part of a damaged segment to keep: the valid prefix, or all sound batches; none "
        "leaves its partition out. Later segments are kept.",
    )
    link: Link = option(
        "--link",
        group=Group.BEHAVIOUR,
        **choice(Link),
        default=Link.AUTO.value,
        help="How logs are taken over; auto clones where the file system can, else copies. "
        "With hard, a broker can cut the logs of the dump.",
    )
    log_starts: Mapping[TopicPartition, int] = option(
        "--log-start",
        group=Group.BEHAVIOUR,
        multiple=True,
        parse=_log_starts,
        metavar="TOPIC-N=OFFSET",
        help="Where a log starts, instead of the dump's checkpoint. May be repeated.",
    )
    cluster: ClusterMode = option(
        "--cluster",
        group=Group.CLUSTER,
        **choice(ClusterMode),
        default=ClusterMode.FRESH.value,
        help="For a fresh cluster, or for that of the dump, which must be wholly down: then "
        "its metadata log is copied along.",
    )
    seeds: Sequence[str] = option(
        "--seed",
        group=Group.CLUSTER,
        multiple=True,
        metavar="METADATA_DIR",
        help="With fresh: the formatted metadata log directory of a controller, which gets "
        "topics, ids, settings, epochs and producer ids. Once for every controller.",
    )
    node_id: int | None = option(
        "--node-id",
        group=Group.CLUSTER,
        type=Whole(min=0),
        metavar="N",
        help="The broker that gets the output, where neither it nor --seed says.",
    )
    topic_configs: Mapping[str, Mapping[str, str]] = option(
        "--topic-config",
        group=Group.CLUSTER,
        multiple=True,
        parse=_topic_configs,
        metavar="TOPIC:NAME=VALUE",
        help="A setting of a seeded topic, before that of the dump's metadata log. May be "
        "repeated.",
    )
    renames: Mapping[str, str] = option(
        "--rename",
        group=Group.CLUSTER,
        multiple=True,
        parse=_renames,
        metavar="OLD=NEW",
        help="With fresh: another name for a topic, which gets a new id; groups lose their "
        "offsets of it. May be repeated.",
    )
    new_topic_ids: bool = flag(
        "--new-topic-ids",
        group=Group.CLUSTER,
        help="Give new ids to topics whose id is not known; groups may lose their offsets.",
    )
    until: Until = option(
        "--until",
        group=Group.SELECTION,
        parse=_until,
        metavar="TIME|FILE",
        help="Where logs end: before the first batch with a timestamp after TIME, or that "
        "reaches the offset in FILE (Spark's startingOffsets, or lines of "
        f"topic,partition,offset). {TIME_HELP}",
    )
    goes_by_create_time: bool = flag(
        "--create-time",
        group=Group.SELECTION,
        help="Let the time of --until count for topics with the timestamps of clients, too.",
    )
    consistent: bool = flag(
        "--consistent",
        group=Group.SELECTION,
        help="For a run of a backup, with --until: keep or remove each transaction as a whole, in "
        "all partitions and with its offsets; logs end a little earlier for that.",
    )
    drop_keys: tuple[bytes, ...] = option(
        "--drop-keys",
        group=Group.SELECTION,
        parse=_keys,
        metavar="FILE",
        help="Drop records with these keys, one per line: text, hex: or base64:, so that what was "
        "erased since the dump stays so.",
    )
    clamp_groups: bool = flag(
        "--clamp-groups",
        group=Group.CLUSTER,
        help="Let groups that committed offsets after the end of a log begin there: that is "
        "appended to __consumer_offsets. A run of a backup in a fresh cluster has it anyway.",
    )
    metadata_output: str | None = option(
        "--metadata-output",
        group=Group.CLUSTER,
        metavar="DIR",
        help="With same: where the metadata log goes if it has a directory of its own.",
    )
    all_brokers_restored: bool = flag(
        "--all-brokers-restored",
        group=Group.CLUSTER,
        help="With same: all brokers of the cluster are restored to one point in time.",
    )
    settings: tuple[LogConfig, Mapping[str, str] | None] = settings_options(
        make=load_with_properties
    )
    max_decompressed_bytes: int = max_decompressed_option()
    report: str | None = report_option("a row per partition and per lost range", has_page=True)
    engine: Engine = engine_options()
    detail: Detail = detail_options()

    def __post_init__(self) -> None:
        refuse_no_logs(self.inputs, self.tiered)
        if not self.output:
            raise click.UsageError("no output: give --output DIR")
        RestoreRequest.__post_init__(self)

    @property
    def request(self) -> RestoreRequest:
        """The request, whose settings can be replaced by those of the metadata log."""
        config, properties = self.settings
        return request_of(RestoreRequest, self, config=config, properties=properties)


def _run(options: RestoreOptions) -> ExitCode:
    job = RestoreJob.prepare(options.request)
    code = ExitCode.DONE
    lost: list[LostRange] = []
    with ExitStack() as reporting:
        page = restore_page(job, lost)
        file = reporting.enter_context(open_report(options.report, RESTORE_SCHEMA, page))
        if options.link is Link.HARD and options.detail is not Detail.QUIET:
            print_log(_HARD_LINKS)
        with ExitStack() as progress:
            outcome = progress.enter_context(RestoreOutcome(job.plan, options.detail))

            def write_report(result: RestoreResult) -> None:
                progress.close()
                if file is None:
                    return
                lost.extend(one for each in result.partitions for one in each.lost)
                file.write_table(result.to_arrow())
                reporting.close()
                if not is_remote(file.path):
                    if result.runbook is not None:
                        write_durably(f"{file.path}.runbook.txt", result.runbook.encode())
                    sync_directory(os.path.dirname(os.path.abspath(file.path)))

            def conclude(result: RestoreResult) -> None:
                nonlocal code
                code = add_unread(outcome.print_summary(result))
                sys.stdout.flush()
                run_summary().write(code, code.name.lower())

            job.run(
                restore_on(options.engine, outcome),
                outcome.on_restored,
                report=write_report,
                conclude=conclude,
            )
    return code


make_command = partial(
    command,
    "restore",
    RestoreOptions,
    _run,
    help_text=_HELP,
    usage="(--input PATH... | --tiered URI) --output DIR [OPTIONS]",
    examples=_EXAMPLES,
    job_examples=_JOB_EXAMPLES,
)
