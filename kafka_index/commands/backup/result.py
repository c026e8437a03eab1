"""The result of a run of one broker: a row per partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from kafka_index.core.errors import plural
from kafka_index.core.format.names import CLUSTER_METADATA_TOPIC
from kafka_index.core.job.result import Result, RunOutcome, report_schema, report_table

#: A partition that so many runs in a row have missed is a fault.
MISSED_TOO_OFTEN = 3

BACKUP_REPORT_SCHEMA = report_schema(
    [
        ("topic_id", pa.string()),
        ("log_start_offset", pa.int64()),
        ("log_end_offset", pa.int64()),
        ("high_watermark", pa.int64()),
        ("size_bytes", pa.int64()),
        ("new_bytes", pa.int64()),
        ("read_bytes", pa.int64()),
        ("pieces", pa.int64()),
        ("runs_missed", pa.int64()),
    ],
    required=("topic", "partition", "status"),
)


class BackupStatus(StrEnum):
    """The outcome of a run for a partition."""

    #: It has new pieces.
    STORED = "stored"
    #: All that it has was in the repository.
    UNCHANGED = "unchanged"
    #: It is not in this run; the next one takes it.
    MISSED = "missed"
    #: It is damaged, or cannot be read.
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class BackedUpPartition:
    """A partition of a run: a row of its report.

    Parameters
    ----------
    topic, partition : str, int
        The partition.
    path : str or None
        Its directory.
    status : BackupStatus
        The outcome.
    reason : str or None
        Why it is not in the run.
    topic_id : str or None
        The id of its topic.
    log_start_offset, log_end_offset, high_watermark : int or None
        The offsets that the run has, the end exclusive, and the high watermark.
    size_bytes, new_bytes, read_bytes : int or None
        Bytes of all pieces, of the new ones, and read from logs.
    pieces : int or None
        Number of pieces.
    runs_missed : int or None
        How many runs in a row have missed it, with this one.
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
    pieces: int | None = None
    runs_missed: int | None = None

    @property
    def is_fault(self) -> bool:
        """Whether it needs to be looked at by somebody."""
        return self.status is BackupStatus.UNREADABLE or (self.runs_missed or 0) >= MISSED_TOO_OFTEN


@dataclass(frozen=True, repr=False)
class BackupResult(Result):
    """The result of `backup`: a row per partition, as in ``backup --report``.

    Parameters
    ----------
    run : str
        Name of the run.
    node_id : int
        The broker.
    repository : str
        The root of the repository.
    partitions : list of BackedUpPartition
        The partitions that are in the run, and the missed ones.
    high_watermarks_from : str
        The origin of high watermarks: ``checkpoint``, ``old checkpoint``, ``log end``, ``broker``
        or ``earlier run``.
    cut_ms, wait_ms : int
        How long the cut took, and the wait for high watermarks.
    """

    run: str
    node_id: int
    repository: str
    partitions: list[BackedUpPartition]
    high_watermarks_from: str
    cut_ms: int
    wait_ms: int

    command = "backup"

    @property
    def headline(self) -> str:
        """The run, its partitions, and its new bytes."""
        counts = self.counts
        taken = counts["partitions"] - counts["partitions_missed"]
        missed = counts["partitions_missed"]
        lacking = f", {missed:,} missed" if missed else ""
        new = plural(self.sizes_bytes["new"], "new byte")
        return (
            f"run {self.run}, broker {self.node_id}: {plural(taken, 'partition')}{lacking}; {new}"
        )

    @property
    def missed(self) -> list[BackedUpPartition]:
        """The partitions that are not in the run."""
        return [row for row in self.partitions if row.reason is not None]

    @property
    def lacks_metadata(self) -> bool:
        """Whether no input directory contains a metadata log."""
        return all(row.topic != CLUSTER_METADATA_TOPIC for row in self.partitions)

    @property
    def outcome(self) -> RunOutcome:
        """Damage for a partition that cannot be read, or was missed too often."""
        return RunOutcome.DONE.with_damage([row for row in self.partitions if row.is_fault])

    @property
    def counts(self) -> Mapping[str, int]:
        """Partitions, the ones with new pieces, and the missed ones."""
        stored = [row for row in self.partitions if row.status is BackupStatus.STORED]
        return {
            "partitions": len(self.partitions),
            "partitions_stored": len(stored),
            "partitions_missed": len(self.missed),
            "pieces": sum(row.pieces or 0 for row in self.partitions),
        }

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Bytes of all pieces, of the new ones, and read from logs."""
        return {
            "stored": sum(row.size_bytes or 0 for row in self.partitions),
            "new": sum(row.new_bytes or 0 for row in self.partitions),
            "log_read": sum(row.read_bytes or 0 for row in self.partitions),
        }

    def to_arrow(self) -> pa.Table:
        """Return the rows of the report."""
        return report_table(self.partitions, BACKUP_REPORT_SCHEMA)
