"""The settings of a build: output files and their paths."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Self

import pyarrow as pa

from kafka_index.core.errors import KafkaIndexError, is_retriable
from kafka_index.core.format.config import LogConfig
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.fs.local_work import workspace
from kafka_index.core.fs.registry import store_of
from kafka_index.core.job.engine import new_run_id
from kafka_index.core.log.choices import ALL_OUTPUTS, INDEX_OUTPUTS, BuildOutput
from kafka_index.core.log.state.partition_state import ProducerExpiration
from kafka_index.core.logdir.partition_files import SegmentFile, TieredPartition
from kafka_index.core.output.locks import RUNS_FOLDER
from kafka_index.core.output.publish import scratch_path
from kafka_index.core.records.batch_table import OVERLAP, PREALLOCATED_TAIL

BUILT = "built"
UNCHANGED = "unchanged"
TRUNCATED = "truncated"
FAILED = "failed"
STATUSES = (BUILT, UNCHANGED, TRUNCATED, FAILED)

#: Reason code of a segment whose file or target cannot be used.
ERROR = "error"

REPORT_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("segment_base_offset", pa.int64(), nullable=False),
        pa.field("log_path", pa.string(), nullable=False),
        pa.field("log_size_bytes", pa.int64(), nullable=False),
        pa.field("valid_bytes", pa.int64()),
        pa.field("batch_count", pa.int64()),
        pa.field("offset_entries", pa.int64()),
        pa.field("time_entries", pa.int64()),
        pa.field("next_offset", pa.int64()),
        pa.field("max_timestamp_ms", pa.int64()),
        pa.field("status", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
        pa.field("position_bytes", pa.int64()),
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("aborted_txns", pa.int64()),
        pa.field("producers", pa.int64()),
        pa.field("note", pa.string()),
        pa.field("retriable", pa.bool_(), nullable=False),
        pa.field("reason_code", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class SegmentCounts:
    """The counts of a scanned segment.

    Attributes
    ----------
    valid_bytes
        Length of the indexed prefix of the log.
    batch_count
        Number of batches in this prefix.
    next_offset
        The offset after the last batch, as a broker determines it; the base offset if offsets
        decrease after the last index entry.
    max_timestamp_ms
        The largest timestamp, -1 for none.
    """

    valid_bytes: int
    batch_count: int
    offset_entries: int
    time_entries: int
    next_offset: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """The result of one segment.

    Parameters
    ----------
    topic, partition, segment_base_offset
        The segment.
    log_path : str
        Absolute path of the log.
    log_size_bytes : int
        Size of the log.
    counts : SegmentCounts, optional
        Counts of the scan; None if the segment failed earlier.
    status : str
        One of `STATUSES`.
    reason : str, optional
        Why the status is not ``built``, or the first batch that is out of order.
    position_bytes : int, optional
        Position in the log to which the reason refers.
    seconds : float
        Duration.
    aborted_txns : int, optional
        Number of entries in ``.txnindex``; None if not built.
    producers : int, optional
        Number of producers at the segment's end; None if not built.
    note : str, optional
        Information about a segment without errors.
    retriable : bool
        True if the segment failed because of permission, disk or memory, not because of its data.
    reason_code : str, optional
        Machine-readable code of the reason, such as ``bad_crc``. Without a reason, the code of the
        note.
    """

    topic: str
    partition: int
    segment_base_offset: int
    log_path: str
    log_size_bytes: int
    counts: SegmentCounts | None = None
    status: str = FAILED
    reason: str | None = None
    position_bytes: int | None = None
    seconds: float = 0.0
    aborted_txns: int | None = None
    producers: int | None = None
    note: str | None = None
    retriable: bool = False
    reason_code: str | None = None

    def failed(self, code: str, reason: str, position_bytes: int | None = None) -> Self:
        """Return the row with status failed."""
        return replace(
            self, status=FAILED, reason=reason, reason_code=code, position_bytes=position_bytes
        )

    def failed_by(self, error: KafkaIndexError) -> Self:
        """Return the row with status failed, caused by an error."""
        row = self.failed(ERROR, str(error), error.position_bytes)
        return replace(row, retriable=is_retriable(error))

    @property
    def is_preallocated_tail(self) -> bool:
        """Whether valid batches are followed by preallocated zeros up to the end of the log."""
        return self.reason_code == PREALLOCATED_TAIL

    @property
    def is_damage(self) -> bool:
        """Whether the segment has corruption, which affects the exit code."""
        is_truncated = self.status == TRUNCATED and not self.is_preallocated_tail
        # Recovery keeps batches that are out of order, but readers skip these batches.
        return self.status == FAILED or is_truncated or self.reason_code == OVERLAP


def empty_row(segment: SegmentFile) -> SegmentReport:
    """Return the row of a segment that was not scanned."""
    return SegmentReport(
        segment.topic,
        segment.partition,
        segment.base_offset,
        segment.log_path,
        segment.log_size_bytes,
    )


_COUNT_NAMES = tuple(field.name for field in fields(SegmentCounts))
_ROW_NAMES = tuple(name for name in REPORT_SCHEMA.names if name not in _COUNT_NAMES)


def report_table(rows: Sequence[SegmentReport]) -> pa.Table:
    columns = {name: [getattr(row, name) for row in rows] for name in _ROW_NAMES}
    columns |= {
        name: [None if row.counts is None else getattr(row.counts, name) for row in rows]
        for name in _COUNT_NAMES
    }
    return pa.table(columns, schema=REPORT_SCHEMA)


def report_rows(table: pa.Table) -> list[SegmentReport]:
    rows = []
    for row in table.select(REPORT_SCHEMA.names).to_pylist():
        values = [row.pop(name) for name in _COUNT_NAMES]
        counts = None if values[0] is None else SegmentCounts(*values)
        rows.append(SegmentReport(**row, counts=counts))
    return rows


@dataclass(frozen=True, slots=True)
class ScanSettings:
    """The settings that affect the scan of a segment."""

    index_interval_bytes: int
    index_size_max_bytes: int
    verify_crc: bool


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """The settings of a build.

    Attributes
    ----------
    target_root
        Root of the output, with the partition directories; None to write next to the logs.
    expiration
        Idle producers to omit from snapshots, as a broker that starts now; None to omit none.
    force
        Rebuild segments whose files are up to date.
    run_id
        Unique ID of letters, digits and underscores.
    tiered
        Partitions with remote segments.
    shares_staged
        Stage files for a remote target in its store, because another process publishes them.
    keeps_digests
        Compute digests of written files for the build manifest; required for publishing.
    keeps_manifest
        Write a build manifest, so that the next build recognizes unchanged files.
    """

    config: LogConfig = field(default_factory=LogConfig)
    target_root: str | None = None
    outputs: frozenset[BuildOutput] = ALL_OUTPUTS
    expiration: ProducerExpiration | None = None
    verify_crc: bool = True
    force: bool = False
    run_id: str = field(default_factory=new_run_id)
    tiered: Mapping[TopicPartition, TieredPartition] = field(default_factory=dict)
    shares_staged: bool = False
    keeps_digests: bool = True
    keeps_manifest: bool = True

    @property
    def in_place(self) -> bool:
        """Whether index files are written next to their logs."""
        return self.target_root is None

    @property
    def needs_state(self) -> bool:
        """Whether an output file depends on earlier segments."""
        return not INDEX_OUTPUTS.issuperset(self.outputs)

    @property
    def _stages_next_to_target(self) -> bool:
        return self.target_root is None or store_of(self.target_root).stages_locally

    def work_path(self, final_path: str, attempt_id: str) -> str:
        """Return the local path for writing a file: next to its target if the target is local."""
        if self._stages_next_to_target:
            return scratch_path(final_path, self.run_id, attempt_id)
        return scratch_path(_move_below(final_path, workspace()), self.run_id, attempt_id)

    def staged_path(self, final_path: str, attempt_id: str) -> str:
        """Return the path of a scanned file until it is published."""
        if not self.shares_staged or self.target_root is None or self._stages_next_to_target:
            return self.work_path(final_path, attempt_id)
        root = f"{self.target_root}/{RUNS_FOLDER}/{self.run_id}"
        return scratch_path(_move_below(final_path, root), self.run_id, attempt_id)

    def attributes_of(self, log_path: str) -> str | None:
        """Return the log whose mode and owner index files inherit; None in another folder."""
        return log_path if self.in_place else None

    def scan_settings(self, topic: str) -> ScanSettings:
        config = self.config.for_topic(topic)
        return ScanSettings(
            config.index_interval_bytes, config.index_size_max_bytes, verify_crc=self.verify_crc
        )


def _move_below(final_path: str, root: str) -> str:
    """Return the path of a partition's file below another root."""
    folder, name = os.path.split(final_path)
    return os.path.join(root, os.path.basename(folder), name)
