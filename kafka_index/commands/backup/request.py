"""The requests of ``backup``, ``backups list``, ``backups verify`` and ``backups expire``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.times import now_ms
from kafka_index.core.job.request import (
    ArgumentError,
    CommandSpec,
    DurationKind,
    FlagKind,
    Group,
    IntegerKind,
    IntegersKind,
    Moment,
    NumberKind,
    PathKind,
    PathsKind,
    Request,
    TextKind,
    TimeKind,
    parameter,
)
from kafka_index.core.parameters import (
    DEFAULT_SETTINGS,
    KafkaSettings,
    SettingsKind,
    topics_parameter,
)

#: Timeout of brokers at a barrier.
DEFAULT_WAIT = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupRequest(Request):
    inputs: tuple[str, ...] = parameter(
        PathsKind(),
        Group.INPUT,
        "All data directories of the broker, and the directory of its metadata log. The option "
        "takes several paths, and may be repeated.",
        "--input",
        default=(),
    )
    node_id: int | None = parameter(
        IntegerKind(0, INT32_MAX),
        Group.INPUT,
        "Node ID of the broker, if the directories belong to several brokers.",
        "--node",
        default=None,
    )
    topics: Any = topics_parameter()
    output: str = parameter(
        PathKind("URI"), Group.OUTPUT, "Repository, which is created if it does not exist."
    )
    brokers: tuple[int, ...] = parameter(
        IntegersKind(0, INT32_MAX),
        Group.CLUSTER,
        "IDs of the brokers in the backup. Brokers synchronize, and capture their logs at the same "
        "time.  [default: the brokers of the repository, of the previous backup, or of the "
        "metadata log]",
        default=(),
    )
    wait: timedelta = parameter(
        DurationKind(),
        Group.CLUSTER,
        "How long a broker waits for other brokers. A backup that lacks a broker is incomplete.",
        default=DEFAULT_WAIT,
    )
    cut_at: Moment | None = parameter(
        TimeKind(),
        Group.CLUSTER,
        "Capture the logs at this cutoff time, instead of synchronizing. Set it to the same TIME "
        "on all brokers.",
        default=None,
    )
    bootstrap_server: str | None = parameter(
        TextKind("HOST:PORT"),
        Group.CLUSTER,
        "Request high watermarks from the broker, instead of waiting up to 10 s for its "
        "checkpoint. The listener must be unencrypted.",
        default=None,
    )
    config: KafkaSettings = parameter(
        SettingsKind(),
        Group.SETTINGS,
        "The broker's server.properties.",
        default=DEFAULT_SETTINGS,
    )
    max_bandwidth: float | None = parameter(
        NumberKind(0, is_above=True),
        Group.ENGINE,
        "Limit for reads of logs, in millions of bytes per second.",
        default=None,
        metavar="MB/S",
    )

    def __post_init__(self) -> None:
        if not self.inputs:
            raise ArgumentError("no input: give {inputs} DIR")
        if self.cut_at is not None and self.cut_at <= now_ms():
            self.refuse("{cut_at} is not in the future")


BACKUP = CommandSpec(
    "backup",
    BackupRequest,
    work="commands.backup.agent:backup",
    help="""Back up a running broker: copy its new data to a repository.

    Run the command on the machine of the broker, or on a machine that mounts a snapshot of its
    disks. --input takes all data directories, and the directory of the metadata log. The command
    never writes, locks or links a file in these directories.

    At the cutoff time, all logs are opened and measured within milliseconds. Their batches are read
    afterwards. The backup contains complete batches with valid checksums, up to a high watermark
    that the broker wrote after the cutoff time.

    The repository is a folder, or the URI of an object store with conditional writes. Objects of a
    repository are never overwritten. A backup is written atomically.

    \b
    Exit codes:
      0   The broker is in the backup.
      1   A partition or checkpoint is damaged, or three backups in a row
          skipped a partition.
      2   Wrong usage.
      3   Retriable failure: permission, disk, memory or store. Partitions that
          could not be read are skipped; otherwise the repository is
          unchanged.
      70  Internal error.
    """,
    usage="--input DIR... --output URI [OPTIONS]",
    examples="""\
kafka-index backup --input /var/kafka/data --output s3://backups/cluster-1
kafka-index backup --input /disk1 /disk2 /metadata --output /backups --topics 'orders.*'
kafka-index backup --input /data /metadata --output s3://backups/cluster-1 --brokers 1,2,3 \\
    --every 5m --max-bandwidth 50 --metrics /var/lib/node_exporter/backup.prom
""",
    report="commands.backup.result:BACKUP_REPORT",
    report_rows="a row for each partition",
    has_engine=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryRequest(Request):
    """Parameters of a command about a repository of backups."""

    uri: str = parameter(PathKind("URI"), Group.INPUT, "", is_argument=True, metavar="URI")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListBackupsRequest(RepositoryRequest):
    last: int | None = parameter(
        IntegerKind(1),
        Group.SELECTION,
        "List only the last N backups.  [default: all]",
        default=None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyBackupsRequest(RepositoryRequest):
    backup: str | None = parameter(
        TextKind("ID"),
        Group.SELECTION,
        "Check only this backup, by ID or time.  [default: all backups]",
        default=None,
    )
    sample: float = parameter(
        NumberKind(0, 100),
        Group.SELECTION,
        "Read P percent of the objects.  [default: 100]",
        default=100.0,
        metavar="P",
    )
    repair: bool = parameter(
        FlagKind(),
        Group.BEHAVIOUR,
        "Mark missing and altered objects. The next backup stores them again, if the logs still "
        "contain their batches.",
        default=False,
    )


def _keep_parameter(help_text: str, default: int) -> Any:
    return parameter(IntegerKind(), Group.SELECTION, help_text, default=default)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireBackupsRequest(RepositoryRequest):
    keep_last: int = _keep_parameter("Keep the last N complete backups.", 1)
    keep_daily: int = _keep_parameter(
        "Keep the last backup of each of the last N days (UTC) with a backup.", 7
    )
    keep_weekly: int = _keep_parameter(
        "Keep the last backup of each of the last N weeks with a backup.", 4
    )
    keep_monthly: int = _keep_parameter(
        "Keep the last backup of each of the last N months with a backup.", 12
    )
    dry_run: bool = parameter(
        FlagKind(),
        Group.BEHAVIOUR,
        "Print which backups would expire, without changing the repository.",
        default=False,
    )


LIST_BACKUPS = CommandSpec(
    "backups list",
    ListBackupsRequest,
    work="commands.backup.backups:list_backups",
    help="""Print the backups in a repository, and how much data a restore would lose now.

    URI is the --output of `kafka-index backup`. A backup is complete if all of its brokers have
    stored their manifests. An inconsistent backup is also complete, but its brokers did not
    synchronize: transactions and consumer groups may differ between brokers. The column new_bytes
    is the size that the backup added to the repository, and bytes is the total size of the backup.
    The gap is the time since the previous complete backup.

    \b
    Exit codes:
      0   All manifests were read.
      1   A manifest is damaged.
      2   Wrong usage, or the repository does not exist.
      3   Retriable failure: permission, disk, network or memory.
      70  Internal error.
    """,
    usage="[OPTIONS]",
    examples="kafka-index backups list s3://backups/kafka --last 10\n",
    report="commands.backup.result:LIST_REPORT",
    report_rows="a row for each backup",
    has_json=True,
    json_help="Print JSON lines.",
    has_engine=False,
    page="backup",
)
VERIFY_BACKUPS = CommandSpec(
    "backups verify",
    VerifyBackupsRequest,
    work="commands.backup.backups:verify_backups",
    help="""Check that all objects in the manifests of a repository exist and are unchanged.

    The name and size of every object are compared with a listing. Objects that are read must match
    the hash in their manifest, and consist of complete batches with valid checksums. --sample 5
    reads about 5 % of the objects, at random. --sample 0 reads no object.

    --repair marks missing and altered objects. The next backup of the broker compares the log with
    the hash, and stores the object again.

    \b
    Exit codes:
      0   All checked objects are unchanged.
      1   An object is missing or altered.
      2   Wrong usage, or the repository or backup does not exist.
      3   Retriable failure: permission, disk, network or memory.
      70  Internal error.
    """,
    usage="[OPTIONS]",
    examples="""\
kafka-index backups verify s3://backups/kafka --sample 5
kafka-index backups verify /mnt/backups --backup 20261120T120000.000Z
kafka-index backups verify s3://backups/kafka --repair
""",
    report="commands.backup.result:VERIFY_REPORT",
    report_rows="a row for each object",
    has_json=True,
    json_help="Print JSON lines of missing, altered, damaged and unreadable objects.",
    has_engine=False,
    page="backup",
)
EXPIRE_BACKUPS = CommandSpec(
    "backups expire",
    ExpireBackupsRequest,
    work="commands.backup.backups:expire_backups",
    help="""Expire the backups that no --keep option covers, and delete objects that only expired
    backups use.

    The newest complete backup and the newest backup of each broker never expire. An expired backup
    disappears from the list at once. Run the command again after a day to delete its objects: until
    then, running restores and backups can finish. Backups may run concurrently.

    \b
    Exit codes:
      0   Done.
      1   A manifest is damaged, and nothing was deleted.
      2   Wrong usage, or the repository does not exist.
      3   Retriable failure: permission, disk, network or memory.
      70  Internal error.
    """,
    usage="[OPTIONS]",
    examples="""\
kafka-index backups expire s3://backups/kafka --dry-run
kafka-index backups expire /mnt/backups --keep-last 24 --keep-daily 30
""",
    report="commands.backup.result:EXPIRE_REPORT",
    report_rows="a row for each backup",
    has_json=True,
    json_help="Print JSON lines.",
    has_engine=False,
    page="backup",
)
