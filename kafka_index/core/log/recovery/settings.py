"""The settings of a build, the paths of its output files, and the rows of its report."""

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

#: Reason code of a segment whose log cannot be read, or whose files cannot be written.
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
    """Counts and offsets from the scan of a segment.

    Attributes
    ----------
    valid_bytes
        End position of the last valid batch in the ``.log`` file.
    batch_count
        Number of valid batches.
    next_offset
        The offset after the last valid batch, as a broker determines it. If offsets decrease after
        the last index entry, it can be the base offset.
    max_timestamp_ms
        The largest timestamp of the valid batches, -1 without one.
    """

    valid_bytes: int
    batch_count: int
    offset_entries: int
    time_entries: int
    next_offset: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """A row of the build report: the result of one segment.

    Parameters
    ----------
    topic, partition, segment_base_offset
        The segment.
    log_path : str
        Absolute path of the ``.log`` file.
    log_size_bytes : int
        Size of the ``.log`` file.
    counts : SegmentCounts, optional
        Counts of the scan; None if the segment failed earlier.
    status : str
        One of `STATUSES`.
    reason : str, optional
        Why the status is not ``built``. If the status is ``built``, describes the first batch that
        is out of order.
    position_bytes : int, optional
        Position in the ``.log`` file to which the reason refers.
    seconds : float
        Duration of the scan.
    aborted_txns : int, optional
        Number of entries in ``.txnindex``; None if not built.
    producers : int, optional
        Number of producers at the end of the segment; None if no state was built.
    note : str, optional
        Information about a segment without errors.
    retriable : bool
        True if the segment failed because of permissions, the disk or memory, not because of its
        data.
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
        """Return a copy with status failed."""
        return replace(
            self, status=FAILED, reason=reason, reason_code=code, position_bytes=position_bytes
        )

    def failed_by(self, error: KafkaIndexError) -> Self:
        """Return a copy with status failed, because of an error."""
        row = self.failed(ERROR, str(error), error.position_bytes)
        return replace(row, retriable=is_retriable(error))

    @property
    def is_preallocated_tail(self) -> bool:
        """Whether only preallocated zeros follow the valid batches."""
        return self.reason_code == PREALLOCATED_TAIL

    @property
    def is_damage(self) -> bool:
        """Whether the exit code reports the segment as failed or corrupt."""
        is_truncated = self.status == TRUNCATED and not self.is_preallocated_tail
        # A batch out of order counts as corruption: recovery keeps it, but readers skip it.
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
        Output folder, which contains a folder for each partition. None to write next to the logs.
    expiration
        Which idle producers to omit from snapshots, like a broker that starts now. None to keep
        all.
    force
        Build all segments, even if their files are up to date.
    run_id
        Unique ID of letters, digits and underscores.
    tiered
        The tiered partitions, which have remote segments.
    shares_staged
        For a remote target, upload temporary files to its store, because another process publishes
        them.
    keeps_digests
        Compute digests of the written files, which the build manifest and publishing require.
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
        """Whether index files are written next to their ``.log`` files."""
        return self.target_root is None

    @property
    def needs_state(self) -> bool:
        """Whether an output depends on producers or leader epochs of earlier segments."""
        return not INDEX_OUTPUTS.issuperset(self.outputs)

    @property
    def _stages_next_to_target(self) -> bool:
        return self.target_root is None or store_of(self.target_root).stages_locally

    def work_path(self, final_path: str, attempt_id: str) -> str:
        """Return the local temporary path of a file, next to its final path if that is local."""
        if self._stages_next_to_target:
            return scratch_path(final_path, self.run_id, attempt_id)
        return scratch_path(_move_below(final_path, workspace()), self.run_id, attempt_id)

    def staged_path(self, final_path: str, attempt_id: str) -> str:
        """Return the path that a file of a scanned segment has until it is published."""
        if not self.shares_staged or self.target_root is None or self._stages_next_to_target:
            return self.work_path(final_path, attempt_id)
        root = f"{self.target_root}/{RUNS_FOLDER}/{self.run_id}"
        return scratch_path(_move_below(final_path, root), self.run_id, attempt_id)

    def attributes_of(self, log_path: str) -> str | None:
        """Return the log whose mode and owner its index files inherit; None if not next to it."""
        return log_path if self.in_place else None

    def scan_settings(self, topic: str) -> ScanSettings:
        config = self.config.for_topic(topic)
        return ScanSettings(
            config.index_interval_bytes, config.index_size_max_bytes, verify_crc=self.verify_crc
        )


def _move_below(final_path: str, root: str) -> str:
    """Return the path that a file of a partition directory has below another root."""
    folder, name = os.path.split(final_path)
    return os.path.join(root, os.path.basename(folder), name)
