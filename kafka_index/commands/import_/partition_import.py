"""The data directory of an import, and its partitions: each is a log in a staging directory.

If an import appends to a log, it compares the log before and after loading. A broker that loads a
log after an unclean shutdown truncates it at the first invalid batch, and deletes all later
segments. An import does neither. It truncates only an incomplete last batch or preallocated zeros,
and only if neither a checkpoint nor an earlier import has a later end. The truncated bytes of a
batch are counted.
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
    end_of_import,
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

    Raises `InputError` if it would overwrite a partition that has changed since its import.
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

    def remove_others(self) -> None:
        """With `OVERWRITE`, remove the partitions that this import did not write."""
        if self._mode is not ImportMode.OVERWRITE:
            return
        for name in partition_names(self.output.root):
            if name not in self._published:
                path = os.path.join(self.output.root, name)
                if not is_import(path):
                    raise not_an_import(path)
                withdraw_directory(path, self.output.staging)


def check_overwrite(root: str) -> None:
    """Reject a directory with a partition that has changed since its import."""
    for name in partition_names(root):
        if not is_import(os.path.join(root, name)):
            raise not_an_import(os.path.join(root, name))


def check_loaded(
    log: PartitionLogWriter, directory: str, partition: TopicPartition, logs: Signature
) -> int:
    """Check that loading the copy of a partition lost no records; return the truncated bytes.

    `directory` is the original, and `logs` its logs. Truncated zeros do not count.
    """
    cut_bytes = 0
    sizes = {
        segment_file_name(segment.base_offset, LOG_SUFFIX): segment.size_bytes
        for segment in log.segments
    }
    was = [(name, size) for name, size, _ in logs if parse_segment_file(name) is not None]
    for name, size in was:
        left = sizes.get(name)
        if left == size:
            continue
        path = os.path.join(directory, name)
        stop = _stop_of(path) if left is not None and name == was[-1][0] else None
        if stop is None or stop.position_bytes != left or not stop.is_tail:
            raise InputError(
                "the log is corrupt: loading would delete records",
                path=path,
                position_bytes=left,
                hint="kafka-index verify shows the corruption; kafka-index restore makes an intact "
                "copy, to which an import can append",
            )
        committed = DataDirectory(os.path.dirname(directory)).committed_end(partition)
        if committed > log.log_end_offset:
            raise InputError(
                "the log ends before its high watermark or recovery point: committed records are "
                "lost",
                path=path,
                position_bytes=left,
                expected=f"an end at offset {committed} or later",
                found=log.log_end_offset,
                hint="restore the partition from another replica",
            )
        cut_bytes = 0 if stop.code == PREALLOCATED_TAIL else size - left
    recorded = end_of_import(directory)
    if recorded > log.log_end_offset:
        raise InputError(
            "the log ends before records of an earlier import: they are lost",
            path=os.path.join(directory, was[-1][0]) if was else directory,
            expected=f"an end at offset {recorded} or later",
            found=log.log_end_offset,
            hint="import them again into an empty folder; if a broker has truncated the log on "
            f"purpose, remove {IMPORT_MANIFEST}",
        )
    return cut_bytes


def _stop_of(path: str) -> ScanStop | None:
    """Return why a scan of the active segment ends before its end."""
    scan = LogFileSource(path)
    deque(scan.chunks(), maxlen=0)
    return scan.stop


@dataclass(frozen=True, slots=True)
class ImportedPartition:
    """A partition whose records are written, before its publication.

    `is_published` is True if an interrupted attempt of this run has already published it.
    """

    staged: StagedPartition
    counts: ImportCounts
    is_published: bool = False


class PartitionImport:
    """Writes the records of one partition to a directory of its own.

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
        self._replaces = read_signature(self._target)
        self._log: PartitionLogWriter | None = None
        self._encoder: BatchEncoder | None = None
        self._tail: pa.RecordBatch | None = None
        self._last_order: pa.Scalar | None = None
        self._records = 0
        self._first_offset = -1
        self._cut_bytes = 0
        self._published = counts_of_run(self._target, settings.run_id)
        if self._replaces is not None and self._published is None:
            self._check_target()

    def append(self, batch: pa.RecordBatch) -> None:
        """Append the next records of the partition."""
        if self._published is not None:
            return
        order_by = self._settings.order_by
        try:
            if order_by is not None and len(batch):
                self._last_order = check_order(batch, order_by, self._last_order)
            joined = batch if self._tail is None else pa.concat_batches([self._tail, batch])
            written = self._write(joined, keeps_last=True)
        except KafkaIndexError as error:
            self._add_path(error)
            raise
        self._tail = joined.slice(written)

    def finish(self) -> ImportedPartition:
        """Write the remaining records, and close the log."""
        if self._published is not None:
            staged = StagedPartition(self.partition, self._directory, self._replaces)
            return ImportedPartition(staged, self._published, is_published=True)
        try:
            if self._tail is not None and len(self._tail):
                self._write(self._tail, keeps_last=False)
        except KafkaIndexError as error:
            self._add_path(error)
            raise
        if self._log is None:
            raise InputError("there is no record to write", path=self._target)
        log, self._tail = self._log, None
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
            StagedPartition(self.partition, self._directory, self._replaces), counts
        )

    def abort(self) -> None:
        """Close the log without publishing it."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _write(self, batch: pa.RecordBatch, *, keeps_last: bool) -> int:
        """Write records; return how many.

        With `keeps_last`, the records of the last batch are not written, because it may grow.
        """
        if not len(batch):
            return 0
        has_offsets = "offset" in batch.schema.names
        if self._log is None:
            first = batch.column("offset")[0].as_py() if has_offsets else None
            self._log = self._open(first or 0)
        log = self._log
        if has_offsets and self._records:
            check_continues(batch, log.log_end_offset)
        found = import_rows(batch, self._settings, log.log_end_offset)
        if self._encoder is None:
            epochs = log.leader_epochs
            epoch = epochs[-1].epoch if epochs else 0
            settings = self._settings
            self._encoder = BatchEncoder(
                settings.compression, settings.max_batch_bytes, epoch, self._compressors
            )
            self._epoch = epoch
            self._first_offset = int(found.rows.offsets[0])
        written = 0
        for encoded in self._encoder.encode(
            found.rows,
            found.groups,
            uses_append_time=found.uses_append_time,
            keeps_last=keeps_last,
        ):
            end = written + encoded.records
            first, last = int(found.rows.offsets[written]), int(found.rows.offsets[end - 1])
            active = log.active_segment
            if not active.size_bytes and last - active.base_offset > INT32_MAX:
                # Searches by time would end at an empty segment.
                log.begin_active_segment_at(first)
            log.append_each_as_follower(encoded.data, self._epoch)
            written = end
        self._records += written
        return written

    def _open(self, first_offset: int) -> PartitionLogWriter:
        """Open the staged log: empty, or a copy of the log to append to."""
        root = DataDirectory(os.path.dirname(self._target))
        starts = root.required_checkpoint(LOG_START_CHECKPOINT).offsets
        checkpointed = starts.get(self.partition, 0)
        if self._replaces is None or self._settings.mode is ImportMode.OVERWRITE:
            self._check_log_start(root, checkpointed, max(first_offset, 0))
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
        log = self._load(checkpointed, was_clean=was_clean)
        try:
            self._cut_bytes = check_loaded(log, self._target, self.partition, self._replaces)
        except BaseException:
            log.close()
            raise
        return log

    def _check_log_start(self, root: DataDirectory, checkpointed: int, first_offset: int) -> None:
        """Reject a new log whose records a broker would delete because of an old checkpoint."""
        if checkpointed > first_offset:
            raise InputError(
                f"the checkpointed log start offset of {self.partition.directory_name} is above "
                "the first record: a broker would delete the records below it",
                path=os.path.join(root.path, LOG_START_CHECKPOINT),
                expected=f"{first_offset} or less, or no entry",
                found=checkpointed,
                hint="remove its line and correct the count on line 2, or choose another folder",
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
                "the partition exists",
                path=self._target,
                hint="append to it, overwrite it if it is from an import, or choose another folder",
            )
        if mode is ImportMode.OVERWRITE and not is_import(self._target):
            raise not_an_import(self._target)

    def _write_metadata(self) -> None:
        """Write the topic ID of a new partition, without which a broker treats it as stray."""
        path = os.path.join(self._directory, PARTITION_METADATA)
        topic_id = self._settings.topic_ids.get(self.partition.topic)
        if os.path.exists(path):
            return
        old = os.path.join(self._target, PARTITION_METADATA)
        try:
            if topic_id is not None:
                with open(path, "w", encoding="utf-8") as file:
                    file.write(f"version: 0\ntopic_id: {topic_id}\n")
            elif os.path.exists(old):
                shutil.copy2(old, path)
        except OSError as error:
            raise publish_error(error, path, "write a file") from error

    def _add_path(self, error: KafkaIndexError) -> None:
        if error.path is None:
            error.path = self._target


def not_an_import(path: str) -> InputError:
    return InputError(
        "the partition was not written by an import, or has changed since",
        path=path,
        hint="append to it, or remove it yourself",
    )
