"""The results of ``backup``, ``backups list``, ``backups verify`` and ``backups expire``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.core.errors import plural
from kafka_index.core.format.human import format_bytes, format_count
from kafka_index.core.format.names import CLUSTER_METADATA_TOPIC, METADATA_LOG
from kafka_index.core.format.times import Time, parse_time
from kafka_index.core.fs.paths import open_repository
from kafka_index.core.fs.uris import backup_path
from kafka_index.core.job.result import (
    BAD,
    GOOD,
    NOTABLE,
    Conclusion,
    ReportSpec,
    Result,
    RunOutcome,
    Section,
    Severity,
    Status,
    TableResult,
    count_statuses,
    report_schema,
    report_table,
)

#: Consecutive backups that may skip a partition; one more counts as damage.
MAX_SKIPPED = 2

BACKUP_REPORT_SCHEMA = report_schema(
    [
        ("topic_id", pa.string()),
        ("log_start_offset", pa.int64()),
        ("log_end_offset", pa.int64()),
        ("high_watermark", pa.int64()),
        ("size_bytes", pa.int64()),
        ("new_bytes", pa.int64()),
        ("read_bytes", pa.int64()),
        ("chunks", pa.int64()),
        ("backups_skipped", pa.int64()),
    ],
    required=("topic", "partition", "status"),
)
BACKUP_REPORT = ReportSpec(BACKUP_REPORT_SCHEMA)
#: One row per backup.
LIST_REPORT = ReportSpec(
    pa.schema(
        [
            pa.field("backup_id", pa.string(), nullable=False),
            pa.field("opened", pa.timestamp("ms", "UTC"), nullable=False),
            ("cutoff", pa.timestamp("ms", "UTC")),
            pa.field("status", pa.string(), nullable=False),
            pa.field("brokers", pa.list_(pa.int32()), nullable=False),
            pa.field("missing_brokers", pa.list_(pa.int32()), nullable=False),
            pa.field("partitions", pa.int64(), nullable=False),
            pa.field("skipped_partitions", pa.int64(), nullable=False),
            pa.field("new_bytes", pa.int64(), nullable=False),
            pa.field("bytes", pa.int64(), nullable=False),
            ("gap_ms", pa.int64()),
            pa.field("age_ms", pa.int64(), nullable=False),
            ("reason", pa.string()),
        ]
    )
)
#: One row per stored object, and per unreadable manifest.
VERIFY_REPORT = ReportSpec(
    report_schema(
        [
            ("backups", pa.int64()),
            ("size_bytes", pa.int64()),
            ("is_read", pa.bool_()),
            ("expected", pa.string()),
            ("found", pa.string()),
        ],
        required=("path", "status"),
    )
)
#: One row per backup.
EXPIRE_REPORT = ReportSpec(
    pa.schema(
        [
            pa.field("backup_id", pa.string(), nullable=False),
            pa.field("opened", pa.timestamp("ms", "UTC"), nullable=False),
            pa.field("status", pa.string(), nullable=False),
            pa.field("reason", pa.string(), nullable=False),
        ]
    )
)


class Source(StrEnum):
    """The source of the high watermarks of a backup."""

    #: A checkpoint that the broker wrote after the capture.
    CHECKPOINT = "checkpoint"
    #: A checkpoint from before the capture. No broker replaces the checkpoint, because the
    #: directories are a copy or the broker was killed. Records above its offsets may have been
    #: acknowledged.
    OLD_CHECKPOINT = "old checkpoint"
    #: The log ends, because the broker was shut down cleanly.
    LOG_END = "log end"
    #: The response of a running broker.
    BROKER = "broker"
    #: The earlier backup of the broker, because no log has new batches.
    EARLIER_BACKUP = "earlier backup"


class BackupStatus(StrEnum):
    """The outcome of a backup for a partition."""

    #: The partition has new chunks.
    STORED = "stored"
    #: All batches were already in the repository.
    UNCHANGED = "unchanged"
    #: The partition is not in this backup; the next backup tries again.
    SKIPPED = "skipped"
    #: The partition is corrupt or cannot be read.
    UNREADABLE = "unreadable"


_MEANINGS: Mapping[BackupStatus, tuple[Severity, str]] = {
    BackupStatus.STORED: (GOOD, "new batches were stored"),
    BackupStatus.UNCHANGED: (GOOD, "the repository already contained all batches"),
    BackupStatus.SKIPPED: (NOTABLE, "not in this backup; the next backup tries again"),
    BackupStatus.UNREADABLE: (BAD, "damaged or unreadable"),
}


@dataclass(frozen=True, slots=True)
class BackedUpPartition:
    """A partition of a backup: a row of the report.

    Parameters
    ----------
    topic, partition : str, int
        The partition.
    path : str or None
        The directory of the partition.
    status : BackupStatus
        The outcome.
    reason : str or None
        Why the partition is not in the backup.
    topic_id : str or None
        The ID of the topic.
    log_start_offset, log_end_offset, high_watermark : int or None
        The offsets in the backup, the end exclusive, and the high watermark.
    size_bytes, new_bytes, read_bytes : int or None
        Size of all chunks, size of new chunks, and bytes read from logs.
    chunks : int or None
        Number of chunks.
    backups_skipped : int or None
        Number of consecutive backups, including this one, that skipped the partition.
    retriable : bool
        Whether the partition could not be read because of permission, disk or memory.
    """

    topic: str
    partition: int
    path: str | None
    status: BackupStatus
    reason: str | None = None
    topic_id: str | None = None
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    high_watermark: int | None = None
    size_bytes: int | None = None
    new_bytes: int | None = None
    read_bytes: int | None = None
    chunks: int | None = None
    backups_skipped: int | None = None
    retriable: bool = False

    @property
    def is_fault(self) -> bool:
        """Whether the partition is corrupt, unreadable, or was skipped too often."""
        is_skipped = (self.backups_skipped or 0) > MAX_SKIPPED
        return self.status is BackupStatus.UNREADABLE or is_skipped


@dataclass(frozen=True, repr=False)
class BackupResult(Result):
    """The result of `backup_broker`: a row per partition, as in ``backup --report``.

    Parameters
    ----------
    backup_id : str
        The ID of the backup.
    node_id : int
        The broker.
    repository : str
        The root of the repository.
    partitions : list of BackedUpPartition
        The partitions in the backup, and the skipped partitions.
    high_watermarks_from : str
        The origin of high watermarks: ``checkpoint``, ``old checkpoint``, ``log end``, ``broker``
        or ``earlier backup``.
    cutoff_ms : int
        The cutoff time of this broker, in milliseconds since the epoch.
    capture_ms, wait_ms : int
        Duration of the capture of the logs, and of the wait for high watermarks.
    missing_brokers : tuple of int
        Expected brokers that did not reach the barrier; empty without a barrier.
    lag_bytes : int
        Bytes of captured logs that are not stored, because they are above a high watermark.
    unread : tuple of str
        Files of the input that were not read, each with the reason.
    """

    backup_id: str
    node_id: int
    repository: str
    partitions: list[BackedUpPartition]
    high_watermarks_from: str
    cutoff_ms: int
    capture_ms: int
    wait_ms: int
    missing_brokers: tuple[int, ...] = ()
    lag_bytes: int = 0
    unread: tuple[str, ...] = ()

    command = "backup"
    status_header = ("status", "partitions")

    @property
    def headline(self) -> str:
        """The backup, its partitions, and its new bytes."""
        skipped = f", {len(self.skipped_partitions):,} skipped" if self.skipped_partitions else ""
        count = len(self.partitions) - len(self.skipped_partitions)
        return (
            f"backup {self.backup_id} of broker {self.node_id}: {plural(count, 'partition')}"
            f"{skipped}; {format_bytes(self.sizes_bytes['new'])} new"
        )

    @property
    def conclusion(self) -> Conclusion:
        """The conclusion, notable if the backup lacks partitions or may lack the last records."""
        conclusion = super().conclusion
        if not self.skipped_partitions and self.high_watermarks_from != Source.OLD_CHECKPOINT:
            return conclusion
        return Conclusion(max(conclusion.severity, NOTABLE), conclusion.text)

    @property
    def statuses(self) -> list[Status]:
        """The number of partitions by status."""
        return count_statuses((row.status for row in self.partitions), _MEANINGS)

    @property
    def facts(self) -> list[str]:
        """What a restore of the backup may lack."""
        facts = []
        if self.high_watermarks_from == Source.OLD_CHECKPOINT:
            facts.append(
                "no broker is writing to the directories. The backup may lack records that were "
                "acknowledged in the last seconds before the broker was killed, or before the "
                "directories were copied"
            )
        if self.lacks_metadata:
            facts.append(
                f"no input contains the metadata log ({METADATA_LOG}): the backup lacks topic "
                "IDs, settings and leaders, which restore --seed and --cluster same require. Add "
                "the metadata.log.dir of the broker or of a controller to --input"
            )
        return facts

    @property
    def sections(self) -> list[Section]:
        """The skipped partitions, and with ``--verbose`` the partitions in the backup."""
        fault_lines = [_format_skipped(row) for row in self.skipped_partitions if row.is_fault]
        skipped_lines = [
            _format_skipped(row) for row in self.skipped_partitions if not row.is_fault
        ]
        stored_lines = [_format_stored(row) for row in self.partitions if row.reason is None]
        noun = "partition"
        return [
            Section("partitions:", stored_lines, GOOD, noun=noun, is_detail=True),
            Section("skipped partitions (the next backup tries again):", skipped_lines, noun=noun),
            Section(
                f"{plural(len(fault_lines), noun)} not in the backup:", fault_lines, BAD, noun=noun
            ),
        ]

    @property
    def skipped_partitions(self) -> list[BackedUpPartition]:
        """The partitions that are not in the backup."""
        return [row for row in self.partitions if row.reason is not None]

    @property
    def lacks_metadata(self) -> bool:
        """Whether no input directory contains a metadata log."""
        return all(row.topic != CLUSTER_METADATA_TOPIC for row in self.partitions)

    @property
    def outcome(self) -> RunOutcome:
        """Damage if a partition is corrupt or skipped too often; environment if a read failed."""
        faults = [row.retriable for row in self.partitions if row.is_fault]
        return RunOutcome.of_faults(faults).with_damage(self.unread)

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of partitions, partitions with new chunks, and skipped partitions."""
        stored_partitions = [row for row in self.partitions if row.status is BackupStatus.STORED]
        return {
            "partitions": len(self.partitions),
            "partitions_stored": len(stored_partitions),
            "partitions_skipped": len(self.skipped_partitions),
            "chunks": sum(row.chunks or 0 for row in self.partitions),
        }

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Size of all chunks, size of new chunks, and bytes read from logs."""
        return {
            "stored": sum(row.size_bytes or 0 for row in self.partitions),
            "new": sum(row.new_bytes or 0 for row in self.partitions),
            "log_read": sum(row.read_bytes or 0 for row in self.partitions),
        }

    @property
    def work_bytes(self) -> int:
        """The bytes that were read from logs."""
        return self.sizes_bytes["log_read"]

    def to_arrow(self) -> pa.Table:
        """Return the rows of the report."""
        return report_table(self.partitions, BACKUP_REPORT_SCHEMA)


def _format_skipped(row: BackedUpPartition) -> str:
    count = row.backups_skipped or 0
    repeated = f" ({format_count(count)} backups in a row)" if count > 1 else ""
    return f"{row.topic}-{row.partition}: {row.reason}{repeated}"


def _format_stored(row: BackedUpPartition) -> str:
    new_size, size = format_bytes(row.new_bytes or 0), format_bytes(row.size_bytes or 0)
    end = f"ends at offset {row.log_end_offset}, {new_size} new, {size} stored"
    return f"{row.topic}-{row.partition}: {row.status.value}, {end}"


@dataclass(frozen=True, repr=False)
class BackupRepository(TableResult):
    """A repository of backups, and the inputs that select a backup.

    Parameters
    ----------
    rows : pa.Table
        A row per backup, ascending: ID, opening time and cutoff time, status (``complete``,
        ``incomplete``, ``inconsistent``, ``damaged``), brokers and missing brokers, partitions,
        added bytes and total bytes, gap (the time from the cutoff of the previous complete backup
        to this cutoff), and age (the time since this cutoff).
    ended : RunOutcome
        Damage, if a manifest cannot be read.
    unread : tuple of str
        Always empty.
    root : str
        The repository, a path or a URI.
    now_ms : int
        The time to which ages refer, in milliseconds since the epoch.
    earlier : int
        The number of backups older than the rows.
    """

    root: str = ""
    now_ms: int = 0
    earlier: int = 0

    command = "backups list"

    @property
    def headline(self) -> str:
        """The number of backups, and how much data a restore would lose now."""
        count = plural(self.rows.num_rows + self.earlier, "backup")
        newest = self.newest
        if newest is None:
            return f"{count}, but no complete backup: a restore would lack brokers"
        lost_s = max(self.now_ms - newest["cutoff"], 0) / 1000
        skipped = newest["skipped_partitions"]
        skipped_text = (
            f", and {plural(skipped, 'partition')} that the newest backup skipped"
            if skipped
            else ""
        )
        return (
            f"{count}; a restore now would lose the last {_format_duration(lost_s)}{skipped_text}"
        )

    @property
    def newest(self) -> dict[str, Any] | None:
        """The row of the newest complete backup, with times in milliseconds, if any."""
        rows = self.rows
        for name in ("opened", "cutoff"):
            column_number = rows.column_names.index(name)
            rows = rows.set_column(column_number, name, rows[name].cast(pa.int64()))
        for row in reversed(rows.to_pylist()):
            if row["status"] in ("complete", "inconsistent"):
                return dict(row)
        return None

    @property
    def next_command(self) -> str | None:
        """The command that shows the damage."""
        return f"kafka-index backups verify {self.root}" if self.counts["damaged"] else None

    @property
    def counts(self) -> Mapping[str, int]:
        """Backups by status."""
        status = self.rows["status"].to_pylist()
        return {
            "backups": len(status) + self.earlier,
            "incomplete": status.count("incomplete"),
            "inconsistent": status.count("inconsistent"),
            "damaged": status.count("damaged"),
        }

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Bytes that the backups added, and size of the newest complete backup."""
        newest = self.newest
        size = 0 if newest is None else newest["bytes"]
        return {"new": pc.sum(self.rows["new_bytes"]).as_py() or 0, "newest": size}

    @property
    def printed_rows(self) -> pa.Table:
        """The rows that the command prints."""
        return self.rows

    def _preview_rows(self) -> pa.Table:
        return self.rows.sort_by([("backup_id", "descending")])

    def at(self, time: Time | None = None) -> str:
        """Return the path of a backup, as an input for other functions.

        Parameters
        ----------
        time : str, int, date or datetime, optional
            The newest complete backup at or before this time. By default the newest complete
            backup.

        Returns
        -------
        str
            The path of the backup, such as ``backup+s3://bucket/kafka/@20261120T120000.123Z``.

        Raises
        ------
        InputError
            The repository has no complete backup at or before the time.
        """
        selector = "" if time is None else f"ms:{parse_time(time)}"
        return backup_path(self.root, open_repository(self.root).find_backup(selector))


_INTACT = ("intact", "listed")
_ALTERED = ("missing", "altered", "damaged")


@dataclass(frozen=True, repr=False)
class VerifyBackupsResult(TableResult):
    """The result of ``backups verify``: a row per stored object in the manifests.

    Parameters
    ----------
    rows : pa.Table
        The objects, with the status ``intact``, ``listed`` (not read), ``missing``, ``altered``,
        ``damaged`` or ``unreadable``.
    ended : RunOutcome
        Damage, or the environment if an object could not be read.
    unread : tuple of str
        Always empty.
    root : str
        The repository, a path or a URI.
    is_repaired : bool
        Whether damaged objects were marked, so that the next backup stores the objects again.
    """

    root: str = ""
    is_repaired: bool = False

    command = "backups verify"

    @property
    def headline(self) -> str:
        """The number of missing and altered objects, or of intact objects if all are intact."""
        counts = self.counts
        faults = sum(counts[name] for name in _ALTERED)
        if faults:
            example = self.printed_rows.to_pylist()[0]["path"]
            repair_text = (
                "; the next backup tries to store these objects again" if self.is_repaired else ""
            )
            return f"{plural(faults, 'object')} missing or altered, such as {example}{repair_text}"
        if self.outcome is RunOutcome.ENVIRONMENT:
            return f"{plural(counts['unreadable'], 'object')} could not be read"
        unread_objects = counts["objects"] - counts["read"]
        unread_text = (
            f"; only names and sizes of {unread_objects:,} more were compared"
            if unread_objects
            else ""
        )
        size = format_bytes(self.sizes_bytes["read"])
        return f"{plural(counts['read'], 'object')} ({size}) match their manifests{unread_text}"

    @property
    def next_command(self) -> str | None:
        """The command that stores damaged objects again."""
        is_damaged = self.outcome is RunOutcome.DAMAGE and not self.is_repaired
        return f"kafka-index backups verify {self.root} --repair" if is_damaged else None

    @property
    def counts(self) -> Mapping[str, int]:
        """Objects by status."""
        status = self.rows["status"].to_pylist()
        return {
            "objects": len(status),
            "read": pc.sum(self.rows["is_read"]).as_py() or 0,
            **{name: status.count(name) for name in (*_INTACT, *_ALTERED, "unreadable")},
        }

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Bytes of all objects, and bytes of the objects that were read."""
        read = self.rows.filter(pc.fill_null(self.rows["is_read"], False))  # noqa: FBT003, as Arrow takes it
        return {
            "objects": pc.sum(self.rows["size_bytes"]).as_py() or 0,
            "read": pc.sum(read["size_bytes"]).as_py() or 0,
        }

    @property
    def printed_rows(self) -> pa.Table:
        """The rows of missing, altered, damaged and unreadable objects, with the status first."""
        is_intact = pc.is_in(self.rows["status"], value_set=pa.array(_INTACT))
        leading_columns = ["status", "reason", "path"]
        names = [
            *leading_columns,
            *(name for name in self.rows.column_names if name not in leading_columns),
        ]
        return self.rows.filter(pc.invert(is_intact)).select(names)

    def _preview_rows(self) -> pa.Table:
        return self.printed_rows if self.printed_rows.num_rows else self.rows


@dataclass(frozen=True, repr=False)
class ExpireBackupsResult(TableResult):
    """The result of ``backups expire``: a row per backup, and the deleted objects.

    Parameters
    ----------
    rows : pa.Table
        The backups, ascending, with the status ``kept`` or ``expired`` and the reason.
    ended : RunOutcome
        Always done.
    unread : tuple of str
        Always empty.
    deleted_objects, deleted_bytes : int
        Number and size of the deleted objects, which no manifest refers to. In a dry run, the
        objects that would be deleted.
    waiting_manifests : int
        Expired manifests whose objects are not deleted yet.
    is_dry : bool
        Whether this was a dry run, which changes nothing.
    """

    deleted_objects: int = 0
    deleted_bytes: int = 0
    waiting_manifests: int = 0
    is_dry: bool = False

    command = "backups expire"

    @property
    def headline(self) -> str:
        counts = self.counts
        would = "would be " if self.is_dry else ""
        return (
            f"{plural(counts['expired'], 'backup')} {would}expired, {counts['kept']:,} kept; "
            f"{plural(self.deleted_objects, 'object')} of {format_bytes(self.deleted_bytes)} "
            f"{would}deleted"
        )

    @property
    def counts(self) -> Mapping[str, int]:
        status = self.rows["status"].to_pylist()
        return {
            "kept": status.count("kept"),
            "expired": status.count("expired"),
            "deleted_objects": self.deleted_objects,
            "waiting_manifests": self.waiting_manifests,
        }

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        return {"deleted": self.deleted_bytes}

    @property
    def printed_rows(self) -> pa.Table:
        return self.rows


def _format_duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    remaining_s = int(seconds)
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    terms: list[str] = []
    for name, size in units:
        count, remaining_s = divmod(remaining_s, size)
        if count or terms or name == "s":
            terms.append(f"{count} {name}")
    return " ".join(terms[:2])
