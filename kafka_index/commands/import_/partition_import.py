"""The data directory of an import, and its partitions: each is a log in a staging directory.

If an import appends to a log, it compares the log before and after loading. A broker that loads a
log after an unclean shutdown truncates it at the first invalid batch, and deletes all later
segments. An import does neither. It truncates only an incomplete last batch or preallocated zeros,
and only if the log does not then end before a checkpointed offset or an earlier imported record.
The truncated bytes of a batch are counted.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from concurrent.futures import Executor
from dataclasses import dataclass

import pyarrow as pa

from kafka_index.commands.import_.import_columns import check_continues, check_order, import_rows
from kafka_index.commands.import_.import_manifest import (
    IMPORT_MANIFEST,
    ImportCounts,
    counts_of_run,
    imported_end_offset,
    is_import,
    partition_names,
    write_import_manifest,
)
from kafka_index.commands.import_.request import ImportMode, ImportSettings
from kafka_index.core.errors import InputError, KafkaIndexError
from kafka_index.core.format.integers import INT32_MAX
from kafka_index.core.format.names import (
    CLEAN_SHUTDOWN,
    LOG_START_CHECKPOINT,
    LOG_SUFFIX,
    PARTITION_METADATA,
    TopicPartition,
    parse_segment_file,
    segment_file_name,
)
from kafka_index.core.fs.durable_files import copy_file, publish_error
from kafka_index.core.log.append.partition_log_writer import PartitionLogWriter
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.logdir.data_directory import DataDirectory
from kafka_index.core.output.output import (
    Output,
    Signature,
    StagedPartition,
    publish_directory,
    read_signature,
    withdraw_directory,
)
from kafka_index.core.records.batch_table import PREALLOCATED_TAIL, ScanStop
from kafka_index.core.records.record_batch import BatchEncoder


class ImportTarget:
    """The partitions that an import publishes in a locked data directory.

    Raises `InputError` if a partition to overwrite has changed since its import.
    """

    def __init__(self, output: Output, mode: ImportMode) -> None:
        self.output = output
        self._mode = mode
        self._published: set[str] = set()
        if mode is ImportMode.OVERWRITE:
            check_overwrite(output.root)

    def publish(self, partition: ImportedPartition) -> None:
        if not partition.is_published:
            publish_directory(self.output.root, partition.staged)
        self._published.add(partition.staged.partition.directory_name)

    def remove_other_partitions(self) -> None:
        """With `OVERWRITE`, remove the partitions that this import did not write."""
        if self._mode is not ImportMode.OVERWRITE:
            return
        for name in partition_names(self.output.root):
            if name not in self._published:
                path = os.path.join(self.output.root, name)
                if not is_import(path):
                    raise changed_partition_error(path)
                withdraw_directory(path, self.output.staging)


def check_overwrite(root: str) -> None:
    """Raise `InputError` if a partition of a directory has changed since its import."""
    for name in partition_names(root):
        if not is_import(os.path.join(root, name)):
            raise changed_partition_error(os.path.join(root, name))


def check_loaded(
    log: PartitionLogWriter, directory: str, partition: TopicPartition, logs: Signature
) -> int:
    """Raise `InputError` if loading the copy of a partition lost records.

    `directory` is the original partition, and `logs` are its logs. Returns the number of truncated
    bytes, without the zeros of a preallocated file.
    """
    cut_bytes = 0
    sizes = {
        segment_file_name(segment.base_offset, LOG_SUFFIX): segment.size_bytes
        for segment in log.segments
    }
    original_sizes = [
        (name, size) for name, size, _ in logs if parse_segment_file(name) is not None
    ]
    for name, size in original_sizes:
        remaining_bytes = sizes.get(name)
        if remaining_bytes == size:
            continue
        path = os.path.join(directory, name)
        scan_end = (
            _scan_to_end(path)
            if remaining_bytes is not None and name == original_sizes[-1][0]
            else None
        )
        if scan_end is None or scan_end.position_bytes != remaining_bytes or not scan_end.is_tail:
            raise InputError(
                "the log is corrupt: a broker would delete records when it loads the log",
                path=path,
                position_bytes=remaining_bytes,
                hint="run kafka-index verify to list the corruption; kafka-index restore writes an "
                "intact copy, to which records can be appended",
            )
        committed_end = DataDirectory(os.path.dirname(directory)).committed_end(partition)
        if committed_end > log.log_end_offset:
            raise InputError(
                "committed records are lost: the log ends before its high watermark or recovery "
                "point",
                path=path,
                position_bytes=remaining_bytes,
                expected=f"a log end offset of {committed_end} or more",
                found=log.log_end_offset,
                hint="restore the partition from another replica",
            )
        cut_bytes = 0 if scan_end.code == PREALLOCATED_TAIL else size - remaining_bytes
    imported_end = imported_end_offset(directory)
    if imported_end > log.log_end_offset:
        raise InputError(
            "records of an earlier import are lost: the log ends before them",
            path=os.path.join(directory, original_sizes[-1][0]) if original_sizes else directory,
            expected=f"a log end offset of {imported_end} or more",
            found=log.log_end_offset,
            hint="import the records again into an empty folder; if the truncation was intended, "
            f"remove {IMPORT_MANIFEST}",
        )
    return cut_bytes


def _scan_to_end(path: str) -> ScanStop | None:
    """Return why and where a scan ends before the end of the file; otherwise None."""
    scan = LogFileSource(path)
    deque(scan.chunks(), maxlen=0)
    return scan.stop


@dataclass(frozen=True, slots=True)
class ImportedPartition:
    """A partition whose records are written.

    If `is_published`, an interrupted attempt of this run has already published the partition.
    """

    staged: StagedPartition
    counts: ImportCounts
    is_published: bool = False


class PartitionImport:
    """Writes the records of one partition to a staging directory.

    `compressors` are additional threads that compress batches.
    """

    def __init__(
        self,
        root: str,
        staging: str,
        partition: TopicPartition,
        settings: ImportSettings,
        compressors: Executor | None = None,
    ) -> None:
        self.partition = partition
        self._compressors = compressors
        self._settings = settings
        self._target = os.path.join(root, partition.directory_name)
        self._directory = os.path.join(staging, partition.directory_name)
        self._old_signature = read_signature(self._target)
        self._log: PartitionLogWriter | None = None
        self._encoder: BatchEncoder | None = None
        self._unwritten_rows: pa.RecordBatch | None = None
        self._last_order: pa.Scalar | None = None
        self._records = 0
        self._first_offset = -1
        self._cut_bytes = 0
        self._published = counts_of_run(self._target, settings.run_id)
        if self._old_signature is not None and self._published is None:
            self._check_target()

    def append(self, batch: pa.RecordBatch) -> None:
        """Append the next records of the partition."""
        if self._published is not None:
            return
        order_by = self._settings.order_by
        try:
            if order_by is not None and len(batch):
                self._last_order = check_order(batch, order_by, self._last_order)
            records = (
                batch
                if self._unwritten_rows is None
                else pa.concat_batches([self._unwritten_rows, batch])
            )
            written_count = self._write(records, keeps_last=True)
        except KafkaIndexError as error:
            self._add_path(error)
            raise
        self._unwritten_rows = records.slice(written_count)

    def finish(self) -> ImportedPartition:
        """Write the remaining records, and close the log."""
        if self._published is not None:
            staged = StagedPartition(self.partition, self._directory, self._old_signature)
            return ImportedPartition(staged, self._published, is_published=True)
        try:
            if self._unwritten_rows is not None and len(self._unwritten_rows):
                self._write(self._unwritten_rows, keeps_last=False)
        except KafkaIndexError as error:
            self._add_path(error)
            raise
        if self._log is None:
            raise InputError("the partition has no records", path=self._target)
        log, self._unwritten_rows = self._log, None
        end_offset = log.log_end_offset
        sizes = [segment.size_bytes for segment in log.segments]
        log.close()
        self._log = None
        self._write_metadata()
        counts = ImportCounts(
            self._records, self._first_offset, end_offset, len(sizes), sum(sizes), self._cut_bytes
        )
        write_import_manifest(self._directory, self._settings.run_id, counts)
        return ImportedPartition(
            StagedPartition(self.partition, self._directory, self._old_signature), counts
        )

    def abort(self) -> None:
        """Close the log without publishing it."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _write(self, batch: pa.RecordBatch, *, keeps_last: bool) -> int:
        """Write records; return the number of written records.

        With `keeps_last`, the records of the last batch are not written, because more records may
        be added to this batch.
        """
        if not len(batch):
            return 0
        has_offsets = "offset" in batch.schema.names
        if self._log is None:
            first_offset = batch.column("offset")[0].as_py() if has_offsets else None
            self._log = self._open(first_offset or 0)
        log = self._log
        if has_offsets and self._records:
            check_continues(batch, log.log_end_offset)
        rows = import_rows(batch, self._settings, log.log_end_offset)
        if self._encoder is None:
            epochs = log.leader_epochs
            epoch = epochs[-1].epoch if epochs else 0
            settings = self._settings
            self._encoder = BatchEncoder(
                settings.compression, settings.max_batch_bytes, epoch, self._compressors
            )
            self._epoch = epoch
            self._first_offset = int(rows.rows.offsets[0])
        written_count = 0
        for encoded_batch in self._encoder.encode(
            rows.rows,
            rows.groups,
            uses_append_time=rows.uses_append_time,
            keeps_last=keeps_last,
        ):
            end_row = written_count + encoded_batch.records
            first_offset, last_offset = (
                int(rows.rows.offsets[written_count]),
                int(rows.rows.offsets[end_row - 1]),
            )
            active = log.active_segment
            if not active.size_bytes and last_offset - active.base_offset > INT32_MAX:
                # The append would roll, and leave an empty segment, at which a search by time ends.
                log.begin_active_segment_at(first_offset)
            log.append_each_as_follower(encoded_batch.data, self._epoch)
            written_count = end_row
        self._records += written_count
        return written_count

    def _open(self, first_offset: int) -> PartitionLogWriter:
        """Open the staged log, which is empty or a copy of the log to append to."""
        root = DataDirectory(os.path.dirname(self._target))
        log_start_offsets = root.required_checkpoint(LOG_START_CHECKPOINT).offsets
        log_start_offset = log_start_offsets.get(self.partition, 0)
        if self._old_signature is None or self._settings.mode is ImportMode.OVERWRITE:
            self._check_log_start(root, log_start_offset, max(first_offset, 0))
            try:
                os.mkdir(self._directory)
            except OSError as error:
                raise publish_error(error, self._directory, "make a folder") from error
            return self._load(max(first_offset, 0), was_clean=True)
        try:
            clean_shutdown = os.path.join(os.path.dirname(self._target), CLEAN_SHUTDOWN)
            was_clean = is_import(self._target) or os.path.exists(clean_shutdown)
            self._copy_target()
        except OSError as error:
            raise publish_error(error, error.filename or self._directory, "copy the log") from error
        log = self._load(log_start_offset, was_clean=was_clean)
        try:
            self._cut_bytes = check_loaded(log, self._target, self.partition, self._old_signature)
        except BaseException:
            log.close()
            raise
        return log

    def _check_log_start(
        self, root: DataDirectory, log_start_offset: int, first_offset: int
    ) -> None:
        """Raise `InputError` if the checkpointed log start is above the first imported offset."""
        if log_start_offset > first_offset:
            raise InputError(
                f"a broker would delete records of {self.partition.directory_name}, because its "
                "checkpointed log start offset is above the first imported offset",
                path=os.path.join(root.path, LOG_START_CHECKPOINT),
                expected=f"{first_offset} or less, or no entry",
                found=log_start_offset,
                hint="remove the line of the partition and correct the count on line 2, or give "
                "another --output",
            )

    def _load(self, log_start: int, *, was_clean: bool) -> PartitionLogWriter:
        return PartitionLogWriter(
            self._directory,
            self._settings.log,
            log_start_offset=log_start,
            was_clean=was_clean,
            clock=lambda: self._settings.now_ms,
        )

    def _copy_target(self) -> None:
        """Copy the partition, without links, because loading may truncate its logs."""
        os.mkdir(self._directory)
        with os.scandir(self._target) as entries:
            for entry in entries:
                if entry.is_file():
                    copy_file(entry.path, os.path.join(self._directory, entry.name))

    def _check_target(self) -> None:
        mode = self._settings.mode
        if mode is ImportMode.CREATE:
            raise InputError(
                "the partition already exists",
                path=self._target,
                hint="give --append, another --output, or --overwrite after an earlier import",
            )
        if mode is ImportMode.OVERWRITE and not is_import(self._target):
            raise changed_partition_error(self._target)

    def _write_metadata(self) -> None:
        """Write the topic ID of a new partition; without an ID, a broker treats it as stray."""
        path = os.path.join(self._directory, PARTITION_METADATA)
        topic_id = self._settings.topic_ids.get(self.partition.topic)
        if os.path.exists(path):
            return
        target_path = os.path.join(self._target, PARTITION_METADATA)
        try:
            if topic_id is not None:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(f"version: 0\ntopic_id: {topic_id}\n")
            elif os.path.exists(target_path):
                shutil.copy2(target_path, path)
        except OSError as error:
            raise publish_error(error, path, "write a file") from error

    def _add_path(self, error: KafkaIndexError) -> None:
        if error.path is None:
            error.path = self._target


def changed_partition_error(path: str) -> InputError:
    return InputError(
        "no import wrote the partition, or the partition has changed since its import",
        path=path,
        hint="give --append, or remove the partition",
    )
