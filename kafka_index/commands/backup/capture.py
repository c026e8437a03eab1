"""Capture the partitions in the data directories of a broker, group by group.

All partitions are inspected before the first partition is captured. To capture a partition, it is
inspected again, which takes microseconds if its directory has not changed. The inspection opens new
logs and finds the end of their batches, but the batches are read later.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import msgspec
import numpy as np

from kafka_index.commands.backup.low_impact_io import (
    Bandwidth,
    LowImpactReader,
    open_noatime,
    read_noatime,
)
from kafka_index.core.errors import InputError, KafkaIndexError, is_retriable, plural
from kafka_index.core.format.checkpoints import parse_leader_epoch_checkpoint
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    DELETED_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    PARTITION_METADATA,
    QUORUM_STATE,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
    is_metadata_snapshot,
    parse_partition_directory,
    parse_segment_file,
    segment_file_name,
)
from kafka_index.core.format.records import LOG_OVERHEAD_BYTES, RECORD_BATCH_OVERHEAD_BYTES
from kafka_index.core.fs.backup.manifest import PartitionBackup, SeenSegment
from kafka_index.core.kernels.scan import (
    CHUNK_BATCHES,
    SCAN_COLUMNS,
    SCAN_NEED_BYTES,
    BatchColumns,
    scan_batches,
)
from kafka_index.core.log.scan.scanner import entry_length, read_last_offset
from kafka_index.core.logdir.metadata_files import parse_topic_id

_END_ATTEMPTS, _END_PAUSE_S = 5, 0.001
# Size of a v0 message without key and value.
_MIN_BATCH_BYTES = LOG_OVERHEAD_BYTES + 14
_SEARCH_WINDOW_BYTES = 1 << 20
_RESERVED_DESCRIPTORS = 256
_DESCRIPTOR_DIRECTORY = "/dev/fd"
#: Maximum number of inspections of a partition that keeps changing.
MAX_ATTEMPTS = 60
_ATTEMPT_PAUSE_S = 0.02
# A directory that changed within this time may change again with the same ctime: the clocks of file
# systems have a resolution of some milliseconds.
_CTIME_RESOLUTION_NS = 100_000_000
#: Topics that are captured first, in this order.
COORDINATOR_TOPICS = (TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC)


class SkippedError(Exception):
    """A partition that this backup must skip.

    If `is_fault`, later backups will skip the partition too, unless the error is `retriable`.
    """

    def __init__(self, reason: str, *, is_fault: bool = False, retriable: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_fault, self.retriable = is_fault, retriable


def unreadable_error(path: str, error: OSError) -> SkippedError:
    """Return the error for a partition that cannot be read because of the disk or a permission."""
    reason = f"cannot read {path}: {error.strerror}"
    return SkippedError(reason, is_fault=True, retriable=is_retriable(error))


class ConcurrentChangeError(Exception):
    """The partition changed during an inspection, which is then repeated."""


class RemovedError(Exception):
    """The partition directory was deleted during the inspection."""


class CapturedLog(msgspec.Struct, gc=False):
    """The `.log` file of a segment of an inspected or captured partition.

    Attributes
    ----------
    end_bytes : int
        Position after the last batch; in a preallocated file, zeros follow.
    settled_bytes : int
        End of the batches that existed before any log was captured.
    descriptor : int
        -1 if the log is not open: no batch needs to be read, or too many files are open.
    """

    path: str
    base_offset: int
    device: int
    inode: int
    ctime_ns: int
    size_bytes: int
    end_bytes: int
    settled_bytes: int = 0
    descriptor: int = -1

    def is_stored_as(self, earlier_segment: SeenSegment | None) -> bool:
        """Return whether an earlier backup stored all batches of the file, unchanged since then."""
        return (
            earlier_segment is not None
            and earlier_segment.is_done
            and self.is_same_file(earlier_segment)
        )

    def is_same_file(self, earlier_segment: SeenSegment | None) -> bool:
        """Return whether the file is unchanged since an earlier backup."""
        return earlier_segment is not None and (
            (self.device, self.inode, self.ctime_ns, self.size_bytes)
            == (
                earlier_segment.device,
                earlier_segment.inode,
                earlier_segment.ctime_ns,
                earlier_segment.size_bytes,
            )
        )

    def open(self) -> int:
        """Return the descriptor, after opening the log if necessary.

        Raises `SkippedError` if the file was replaced or cannot be opened.
        """
        if self.descriptor >= 0:
            return self.descriptor
        for path in (self.path, self.path + DELETED_SUFFIX):
            try:
                descriptor = open_noatime(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise unreadable_error(path, error) from error
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) == (self.device, self.inode):
                self.descriptor = descriptor
                return descriptor
            os.close(descriptor)
        raise SkippedError(f"{self.path} was deleted or replaced before the backup read the file")

    def find_end(self, start_bytes: int) -> None:
        """Set `end_bytes` by following the batch headers from `start_bytes`, the start of a batch.

        Errors are ignored: they are reported when the batches are read.
        """
        self.end_bytes = self.size_bytes
        was_open = self.descriptor >= 0
        with suppress(SkippedError, OSError):
            tail_position = max(self.size_bytes - RECORD_BATCH_OVERHEAD_BYTES, 0)
            if not any(os.pread(self.open(), RECORD_BATCH_OVERHEAD_BYTES, tail_position)):
                for start in (start_bytes, 0):
                    end = _find_zeros(self.descriptor, start, self.size_bytes)
                    if end is not None:
                        self.end_bytes = end
                        break
        if not was_open:
            self.close()

    @property
    def is_preallocated(self) -> bool:
        """Whether the log can grow without a change of the file size."""
        return self.end_bytes < self.size_bytes

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _find_zeros(descriptor: int, position: int, size_bytes: int) -> int | None:
    """Return the position of the zeros after the last batch; None if other bytes follow it."""
    if position > size_bytes:
        return None
    for _ in range(_END_ATTEMPTS):
        while True:
            header = os.pread(descriptor, RECORD_BATCH_OVERHEAD_BYTES, position)
            if not any(header):
                return position
            next_position = (
                position + LOG_OVERHEAD_BYTES + int.from_bytes(header[8:12], "big", signed=True)
            )
            if next_position - position < _MIN_BATCH_BYTES or next_position > size_bytes:
                break
            position = next_position
        # The header may be incomplete because the broker is writing it.
        time.sleep(_END_PAUSE_S)
    return None


class OpenFiles:
    """Opens logs up to the limit of open files, and leaves some descriptors free."""

    def __init__(self) -> None:
        soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft_limit != hard_limit:
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
                soft_limit = hard_limit
        self._available = max(
            soft_limit - _RESERVED_DESCRIPTORS - len(os.listdir(_DESCRIPTOR_DIRECTORY)), 0
        )
        if soft_limit == resource.RLIM_INFINITY:
            self._available = 1 << 30

    def open_if_allowed(self, log: CapturedLog) -> None:
        """Open a log if the limit of open files allows it; otherwise the reader opens the log."""
        if log.descriptor < 0 and self._available:
            with suppress(SkippedError):
                log.open()
                self._available -= 1

    def open(self, name: str, dir_fd: int) -> int:
        """Open a file; return -1 if too many files are open."""
        if not self._available:
            return -1
        try:
            descriptor = open_noatime(name, dir_fd=dir_fd)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._available = 0
                return -1
            raise
        self._available -= 1
        return descriptor


@dataclass(slots=True)
class CapturedPartition:
    """An inspected or captured partition.

    Attributes
    ----------
    seen_directory : tuple of int, optional
        The `directory_version` of the partition directory.
    id_ns : int
        Modification time of ``partition.metadata``. A checkpoint written before this time may
        belong to an earlier topic of the same name.
    logs : list of CapturedLog
        In order of base offset; only the last log if `known` is given.
    files : dict of str to bytes
        Files of the metadata log that are stored unchanged, by name.
    known : PartitionBackup, optional
        The partition in an earlier backup, if all files are unchanged since then.
    is_cleaned : bool
        Whether the log is compacted; set only when a later backup of this process reuses this
        object.
    """

    partition: TopicPartition
    path: str
    directory: int
    topic_id: str
    device: int
    inode: int
    seen_directory: tuple[int, int, int] | None
    id_ns: int
    logs: list[CapturedLog]
    epochs: tuple[tuple[int, int], ...] = ()
    snapshot: bytes | None = None
    files: dict[str, bytes] = field(default_factory=dict)
    known: PartitionBackup | None = None
    is_cleaned: bool = False

    @property
    def base_offsets(self) -> list[int]:
        return [
            segment.base_offset for segment in (self.known.segments if self.known else self.logs)
        ]

    def close(self) -> None:
        for log in self.logs:
            log.close()

    def is_same_directory(self, status: os.stat_result) -> bool:
        """Return whether a stat result is of this directory, even if its content has changed."""
        return (status.st_dev, status.st_ino) == (self.device, self.inode)


InspectedPartitions = dict[TopicPartition, CapturedPartition]


class LogCapture:
    """Inspects all partitions in data directories, then captures them group by group.

    `earlier_backups` is passed to `PartitionInspector`. `inspected_partitions` has the partitions
    that an earlier backup of this process inspected and other brokers stored. If the directory of
    such a partition is unchanged, only the end of the last log is determined again. The other logs
    are opened only if the log cleaner may replace them.
    """

    def __init__(
        self,
        directories: Sequence[str],
        is_requested: Callable[[str], bool],
        earlier_backups: Mapping[TopicPartition, PartitionBackup],
        inspected_partitions: InspectedPartitions | None = None,
    ) -> None:
        self._directories = directories
        self._is_requested = is_requested
        self._inspector = PartitionInspector(directories, earlier_backups)
        self._partitions_by_name: dict[str, TopicPartition | None] = {}
        # The newest listing of the data directories, and their versions. The versions are None if a
        # data directory changed during the listing.
        self._listing: list[tuple[TopicPartition, int, int]] = []
        self._listing_versions: list[tuple[int, int, int] | None] | None = None
        self._inspected_partitions = inspected_partitions or {}
        self.partitions: InspectedPartitions = {}
        self.skipped: dict[TopicPartition, SkippedError] = {}

    def close(self) -> None:
        for captured in (*self._inspected_partitions.values(), *self.partitions.values()):
            captured.close()

    def inspect(self) -> None:
        """Inspect all partitions, and record the ends of batches that precede every capture."""
        earlier_inspections, self._inspected_partitions = self._inspected_partitions, {}
        for partition, directory in self._locate_partitions(lambda _: True).items():
            # A partition that cannot be inspected now may be captured later.
            with suppress(SkippedError, RemovedError):
                captured = self._inspector.inspect(
                    partition, directory, earlier_inspections.get(partition)
                )
                for log in captured.logs:
                    log.settled_bytes = log.end_bytes
                self._inspected_partitions[partition] = captured
        self.skipped.clear()

    def capture(self, topics: Collection[str] = (), *, others_than: Collection[str] = ()) -> None:
        def is_selected(topic: str) -> bool:
            return topic in topics or (bool(others_than) and topic not in others_than)

        for partition, directory in self._locate_partitions(is_selected).items():
            try:
                inspected = self._inspected_partitions.pop(partition, None)
                self.partitions[partition] = self._inspector.inspect(
                    partition, directory, inspected
                )
            except SkippedError as error:
                self.skipped[partition] = error
            except RemovedError:
                # A deleted partition may be omitted, but a moved or recreated partition may not.
                if self._partition_exists(partition):
                    self.skipped[partition] = SkippedError(
                        "the partition was moved during the capture"
                    )

    def _partition_exists(self, partition: TopicPartition) -> bool:
        name = partition.directory_name
        return any(os.path.isdir(os.path.join(directory, name)) for directory in self._directories)

    def _locate_partitions(self, is_selected: Callable[[str], bool]) -> dict[TopicPartition, int]:
        """Return the data directory of each partition, as an index, from a reliable listing.

        A listing is reliable if no data directory changed during the listing, or if two listings in
        a row are equal. While this is not so, or a partition is in two data directories, the
        listing is repeated. After the last attempt, partitions that were created or moved are
        skipped.
        """
        previous_listing = second_last_listing = None
        for _ in attempts(at_once=2):
            listing = self._list_partitions(is_selected)
            is_certain = self._listing_versions is not None or listing == previous_listing
            if is_certain and all(len(locations) == 1 for locations in listing.values()):
                break
            previous_listing, second_last_listing = listing, previous_listing
        else:
            for partition, locations in listing.items():
                if len(locations) > 1 or (second_last_listing or {}).get(partition) != locations:
                    self.skipped[partition] = SkippedError(
                        "the partition was created or moved during the capture"
                    )
        return {
            partition: next(iter(locations))[0]
            for partition, locations in sorted(listing.items(), key=_capture_order)
            if partition not in self.skipped
        }

    def _list_partitions(
        self, is_selected: Callable[[str], bool]
    ) -> dict[TopicPartition, set[tuple[int, int]]]:
        """Return the data directory (as an index) and the inode of the selected partitions.

        The data directories are listed again only if one of them has changed since the newest
        listing.
        """
        versions = self._directory_versions()
        if versions is None or versions != self._listing_versions:
            self._listing = [
                (partition, directory, inode)
                for directory, path in enumerate(self._directories)
                for name, inode in _list_directories(path)
                if (partition := self._parse_requested(name)) is not None
            ]
            self._listing_versions = versions if versions == self._directory_versions() else None
        locations: dict[TopicPartition, set[tuple[int, int]]] = {}
        for partition, directory, inode in self._listing:
            if is_selected(partition.topic):
                locations.setdefault(partition, set()).add((directory, inode))
        return locations

    def _parse_requested(self, name: str) -> TopicPartition | None:
        """Return the requested partition with this directory name; None for other directories."""
        if name not in self._partitions_by_name:
            partition = parse_partition_directory(name)
            is_requested = partition is not None and self._is_requested(partition.topic)
            self._partitions_by_name[name] = partition if is_requested else None
        return self._partitions_by_name[name]

    def _directory_versions(self) -> list[tuple[int, int, int] | None] | None:
        """Return the version of each data directory; None if a version is unknown."""
        now_ns = time.time_ns()
        try:
            versions = [directory_version(os.stat(path), now_ns) for path in self._directories]
        except OSError:
            return None
        return None if None in versions else versions


def _capture_order(keyed_partition: tuple[TopicPartition, object]) -> tuple[int, str, int]:
    """Return the sort key of a capture: coordinators' topics first, the metadata log last."""
    topic, partition = keyed_partition[0].topic, keyed_partition[0].partition
    if topic in COORDINATOR_TOPICS:
        return COORDINATOR_TOPICS.index(topic), topic, partition
    return len(COORDINATOR_TOPICS) + (topic == CLUSTER_METADATA_TOPIC), topic, partition


def _list_directories(path: str) -> list[tuple[str, int]]:
    """Return the names and inodes of the directories in a data directory."""
    try:
        descriptor = open_noatime(path, flags=os.O_DIRECTORY)
        try:
            with os.scandir(descriptor) as entries:
                return [(entry.name, entry.inode()) for entry in entries if entry.is_dir()]
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InputError(f"cannot read the directory: {error.strerror}", path=path) from error


class PartitionInspector:
    """Inspects the partitions of data directories.

    `earlier_backups` contains the partitions of an earlier backup. A directory that is unchanged
    since then is not listed, and an unchanged log is not opened.
    """

    def __init__(
        self, directories: Sequence[str], earlier_backups: Mapping[TopicPartition, PartitionBackup]
    ) -> None:
        self._directories = directories
        self._earlier_backups = earlier_backups
        self._open_files = OpenFiles()
        # The end of the batches in each partition's last log, keyed by device and inode.
        self._batch_ends: dict[tuple[int, int], int] = {}

    def inspect(
        self, partition: TopicPartition, directory: int, inspected: CapturedPartition | None
    ) -> CapturedPartition:
        """Return the current state of a partition, or `inspected` itself if nothing has changed."""
        current = None
        try:
            if inspected and inspected.directory == directory and self._is_unchanged(inspected):
                current = inspected
                if inspected.known is None:
                    for log in inspected.logs if inspected.is_cleaned else inspected.logs[-1:]:
                        self._open_files.open_if_allowed(log)
            else:
                current = self._inspect_until_unchanged(partition, directory)
                _copy_settled_bytes(current, inspected)
            return current
        finally:
            # Close `inspected` only after the new inspection, because the inodes of open files are
            # not reused.
            if inspected is not None and current is not inspected:
                inspected.close()

    def _is_unchanged(self, inspected: CapturedPartition) -> bool:
        """Return whether a partition is unchanged, except for the end of its last log."""
        try:
            status = os.stat(inspected.path)
        except FileNotFoundError:
            return False
        # The same ctime means that no name in the directory has changed.
        is_same = (status.st_dev, status.st_ino, status.st_ctime_ns) == inspected.seen_directory
        return is_same and self._remeasure_last_segment(inspected)

    def _remeasure_last_segment(self, captured: CapturedPartition) -> bool:
        """Measure the last log again; return False if the log was replaced since the inspection."""
        log = captured.logs[-1] if captured.logs else None
        if log is None:
            return True
        try:
            status = os.stat(log.path) if log.descriptor < 0 else os.fstat(log.descriptor)
        except OSError:
            return False
        if (status.st_dev, status.st_ino) != (log.device, log.inode):
            return False
        is_grown = (status.st_size, status.st_ctime_ns) != (log.size_bytes, log.ctime_ns)
        if is_grown and captured.known is not None:
            return False
        if status.st_size < log.settled_bytes:
            log.settled_bytes = 0
        is_preallocated = log.is_preallocated
        log.size_bytes, log.ctime_ns = status.st_size, status.st_ctime_ns
        if is_grown:
            self._open_files.open_if_allowed(log)
        if is_grown or is_preallocated:
            self._find_end(log, log.end_bytes)
        return True

    def _find_end(self, log: CapturedLog, start_bytes: int) -> None:
        key = log.device, log.inode
        log.find_end(self._batch_ends.get(key, start_bytes))
        self._batch_ends[key] = log.end_bytes

    def _inspect_until_unchanged(
        self, partition: TopicPartition, directory: int
    ) -> CapturedPartition:
        """Inspect a partition; repeat the inspection if the partition changed during it."""
        path = os.path.join(self._directories[directory], partition.directory_name)
        reason = ""
        for attempt in attempts(at_once=1):
            try:
                reused = self._reuse_earlier(partition, path, directory) if not attempt else None
                return reused or self._inspect_once(partition, path, directory)
            except ConcurrentChangeError as error:
                reason = str(error)
            except (FileNotFoundError, NotADirectoryError) as error:
                reason = "a file was deleted"
                if not os.path.isdir(path):
                    raise RemovedError from error
            except OSError as error:
                raise unreadable_error(path, error) from error
            except KafkaIndexError as error:
                retriable = is_retriable(error)
                raise SkippedError(str(error), is_fault=True, retriable=retriable) from error
        raise SkippedError(
            f"{reason} during all {plural(MAX_ATTEMPTS, 'attempt')} to capture the partition"
        )

    def _reuse_earlier(
        self, partition: TopicPartition, path: str, directory: int
    ) -> CapturedPartition | None:
        """Return a partition as in an earlier backup; None if the directory has changed."""
        earlier_backup = self._earlier_backups.get(partition)
        if earlier_backup is None or earlier_backup.seen_directory is None:
            return None
        status = os.stat(path)
        if (status.st_dev, status.st_ino, status.st_ctime_ns) != earlier_backup.seen_directory:
            return None
        last_segments = earlier_backup.segments[-1:]
        captured = CapturedPartition(
            partition,
            path,
            directory,
            earlier_backup.topic_id,
            status.st_dev,
            status.st_ino,
            earlier_backup.seen_directory,
            os.stat(f"{path}/{PARTITION_METADATA}").st_mtime_ns,
            [_log_from_segment(path, segment) for segment in last_segments],
            earlier_backup.epochs,
            earlier_backup.snapshot,
        )
        if not self._remeasure_last_segment(captured):
            return None
        if all(
            log.is_stored_as(segment)
            for log, segment in zip(captured.logs, last_segments, strict=True)
        ):
            captured.known = earlier_backup
            return captured
        # The earlier backup has stored all logs except the last one.
        captured.logs = [
            *(_log_from_segment(path, segment) for segment in earlier_backup.segments[:-1]),
            *captured.logs,
        ]
        self._open_files.open_if_allowed(captured.logs[-1])
        return captured

    def _inspect_once(
        self, partition: TopicPartition, path: str, directory: int
    ) -> CapturedPartition:
        started_ns = time.time_ns()
        directory_fd = open_noatime(path, flags=os.O_DIRECTORY)
        logs: list[CapturedLog] = []
        try:
            directory_status = os.fstat(directory_fd)
            names = os.listdir(directory_fd)
            try:
                id_text, id_file = read_noatime(PARTITION_METADATA, dir_fd=directory_fd)
            except FileNotFoundError:
                raise SkippedError("the partition has no topic ID yet") from None
            topic_id = parse_topic_id(
                id_text.decode(errors="replace"), f"{path}/{PARTITION_METADATA}"
            )
            earlier_backup = self._earlier_backups.get(partition)
            is_same_topic = earlier_backup is not None and earlier_backup.topic_id == topic_id
            earlier_segments = (
                {segment.base_offset: segment for segment in earlier_backup.segments}
                if earlier_backup and is_same_topic
                else {}
            )
            names_by_base = _parse_logs(names)
            for base_offset, name in names_by_base.items():
                # Append logs one by one, so that open logs are closed if the next log fails.
                logs.append(
                    self._inspect_log(
                        directory_fd,
                        f"{path}/{name}",
                        name,
                        base_offset,
                        earlier_segments.get(base_offset),
                    )
                )
            earlier_last = earlier_segments.get(logs[-1].base_offset) if logs else None
            if logs and not logs[-1].is_stored_as(earlier_last):
                self._find_end(logs[-1], earlier_last.covered_bytes if earlier_last else 0)
            epochs = _read_epochs(directory_fd, names, path)
            snapshot = _read_snapshot(directory_fd, names, logs)
            files = {}
            if partition.topic == CLUSTER_METADATA_TOPIC:
                files = _read_metadata_files(directory_fd, names)
            seen_directory = directory_version(directory_status, started_ns)
            _refuse_changes(
                directory_fd,
                path,
                directory_status,
                names,
                logs,
                is_settled=seen_directory is not None,
            )
        except BaseException:
            for log in logs:
                log.close()
            raise
        finally:
            os.close(directory_fd)
        return CapturedPartition(
            partition,
            path,
            directory,
            topic_id,
            directory_status.st_dev,
            directory_status.st_ino,
            seen_directory,
            id_file.st_mtime_ns,
            logs,
            epochs,
            snapshot,
            files,
        )

    def _inspect_log(
        self,
        directory_fd: int,
        path: str,
        name: str,
        base_offset: int,
        earlier_segment: SeenSegment | None,
    ) -> CapturedLog:
        if earlier_segment is not None:
            log = _log_from_status(path, base_offset, os.stat(name, dir_fd=directory_fd))
            if log.is_stored_as(earlier_segment):
                return log
        descriptor = self._open_files.open(name, directory_fd)
        if descriptor < 0:
            return _log_from_status(path, base_offset, os.stat(name, dir_fd=directory_fd))
        try:
            return _log_from_status(path, base_offset, os.fstat(descriptor), descriptor)
        except BaseException:
            os.close(descriptor)
            raise


def directory_version(directory: os.stat_result, started_ns: int) -> tuple[int, int, int] | None:
    """Return device, inode and ctime of a directory; None if a later change may keep the ctime.

    `started_ns` is a time before the directory was read.
    """
    is_settled = started_ns - directory.st_ctime_ns > _CTIME_RESOLUTION_NS
    return (directory.st_dev, directory.st_ino, directory.st_ctime_ns) if is_settled else None


def attempts(at_once: int) -> Iterator[int]:
    """Yield the number of each attempt; pause before all attempts except the first `at_once`."""
    for number in range(MAX_ATTEMPTS):
        if number >= at_once:
            time.sleep(_ATTEMPT_PAUSE_S)
        yield number


def _parse_logs(names: Sequence[str]) -> dict[int, str]:
    """Return the names of the `.log` files, keyed by ascending base offset.

    Raises `ConcurrentChangeError` while the log cleaner renames files.
    """
    names_by_base = {}
    for name in sorted(names):
        if name.endswith(LOG_SUFFIX):
            segment_file = parse_segment_file(name)
            if segment_file is not None:
                names_by_base[segment_file.base_offset] = name
        elif name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            raise ConcurrentChangeError("the log cleaner was replacing segments")
    return names_by_base


def _log_from_status(
    path: str, base_offset: int, status: os.stat_result, descriptor: int = -1
) -> CapturedLog:
    if not stat.S_ISREG(status.st_mode):
        raise SkippedError(f"{path} is not a regular file", is_fault=True)
    size = status.st_size
    file = status.st_dev, status.st_ino, status.st_ctime_ns, size
    return CapturedLog(path, base_offset, *file, end_bytes=size, descriptor=descriptor)


def _log_from_segment(path: str, segment: SeenSegment) -> CapturedLog:
    name = segment_file_name(segment.base_offset, LOG_SUFFIX)
    file = segment.device, segment.inode, segment.ctime_ns, segment.size_bytes
    return CapturedLog(f"{path}/{name}", segment.base_offset, *file, end_bytes=segment.size_bytes)


def _read_epochs(directory_fd: int, names: Sequence[str], path: str) -> tuple[tuple[int, int], ...]:
    if LEADER_EPOCH_CHECKPOINT not in names:
        return ()
    data, _ = read_noatime(LEADER_EPOCH_CHECKPOINT, dir_fd=directory_fd)
    file = f"{path}/{LEADER_EPOCH_CHECKPOINT}"
    entries = parse_leader_epoch_checkpoint(data.decode(errors="replace"), path=file)
    return tuple((entry.epoch, entry.start_offset) for entry in entries)


def _read_snapshot(
    directory_fd: int, names: Sequence[str], logs: Sequence[CapturedLog]
) -> bytes | None:
    """Return the producer snapshot at the base offset of the first log; None if it is missing."""
    name = segment_file_name(logs[0].base_offset, SNAPSHOT_SUFFIX) if logs else ""
    return read_noatime(name, dir_fd=directory_fd)[0] if name in names else None


def _read_metadata_files(directory_fd: int, names: Sequence[str]) -> dict[str, bytes]:
    """Return the newest snapshot of the metadata log and the quorum state file, by name."""
    snapshots = sorted(name for name in names if is_metadata_snapshot(name))
    file_names = [*snapshots[-1:], *([QUORUM_STATE] if QUORUM_STATE in names else [])]
    return {name: read_noatime(name, dir_fd=directory_fd)[0] for name in file_names}


def _refuse_changes(
    directory_fd: int,
    path: str,
    directory_status: os.stat_result,
    names: Sequence[str],
    logs: Sequence[CapturedLog],
    *,
    is_settled: bool,
) -> None:
    """Raise `ConcurrentChangeError` if the directory changed since the inspection started."""
    current_status = os.stat(path)
    if (current_status.st_dev, current_status.st_ino) != (
        directory_status.st_dev,
        directory_status.st_ino,
    ):
        raise ConcurrentChangeError("the partition directory was replaced")
    if current_status.st_ctime_ns != directory_status.st_ctime_ns:
        raise ConcurrentChangeError("files were added, renamed or deleted")
    if is_settled:
        return
    if sorted(os.listdir(directory_fd)) != sorted(names):
        raise ConcurrentChangeError("files were added, renamed or deleted")
    for log in logs:
        log_status = os.stat(os.path.basename(log.path), dir_fd=directory_fd)
        if (log_status.st_dev, log_status.st_ino) != (log.device, log.inode):
            raise ConcurrentChangeError("a segment was replaced")


def _copy_settled_bytes(captured: CapturedPartition, inspected: CapturedPartition | None) -> None:
    """Copy `settled_bytes` of each log from the inspection that preceded all captures."""
    if inspected is None or inspected.topic_id != captured.topic_id:
        return
    settled_sizes = {(log.path, log.device, log.inode): log.settled_bytes for log in inspected.logs}
    for log in captured.logs:
        settled_bytes = settled_sizes.get((log.path, log.device, log.inode), 0)
        log.settled_bytes = settled_bytes if settled_bytes <= log.size_bytes else 0


@contextmanager
def open_reader(
    log: CapturedLog, end_bytes: int, bandwidth: Bandwidth
) -> Iterator[LowImpactReader]:
    """Open a log for reading up to a position; raises `SkippedError` if that fails."""
    try:
        with LowImpactReader(log.open(), log.path, end_bytes, bandwidth) as file:
            yield file
    except OSError as error:
        raise unreadable_error(log.path, error) from error
    except KafkaIndexError as error:
        retriable = is_retriable(error)
        raise SkippedError(str(error), is_fault=True, retriable=retriable) from error


def find_batch(
    log: CapturedLog, last_offset: int, header: bytes, expected_end_bytes: int, bandwidth: Bandwidth
) -> int | None:
    """Return the end position of the batch with this header; None if the log lacks the batch.

    If the batch no longer ends at `expected_end_bytes`, the headers of all batches are searched.
    Raises `SkippedError` if the log cannot be read.
    """
    size_bytes = LOG_OVERHEAD_BYTES + entry_length(np.frombuffer(header, np.uint8))
    with open_reader(log, log.size_bytes, bandwidth) as file:
        if size_bytes <= expected_end_bytes <= log.size_bytes:
            stored_header = np.zeros(len(header), np.uint8)
            file.read_into(expected_end_bytes - size_bytes, stored_header.data)
            if stored_header.tobytes() == header:
                return expected_end_bytes
        return _search_header(file, log, last_offset, header)


def _search_header(
    file: LowImpactReader, log: CapturedLog, last_offset: int, header: bytes
) -> int | None:
    columns = np.empty((SCAN_COLUMNS, CHUNK_BATCHES), np.int64)
    position, window_bytes = 0, _SEARCH_WINDOW_BYTES
    while position < log.size_bytes:
        window = np.empty(min(window_bytes, log.size_bytes - position), np.uint8)
        read_bytes = file.read_into(position, window.data)
        is_truncated, window = read_bytes < len(window), window[:read_bytes]
        code, next_position, count = scan_batches(
            window,
            position,
            log.size_bytes,
            position,
            log.base_offset,
            False,  # noqa: FBT003, because kernels take arguments by position
            columns,
            0,
        )
        last_offsets: Longs = BatchColumns(*columns[:, :count]).last_offset
        row = int(np.searchsorted(last_offsets, last_offset))
        if row < count:
            start = int(columns[0, row]) - position
            is_same = window[start : start + len(header)].tobytes() == header
            return position + start + int(columns[1, row]) if is_same else None
        if not count:
            # The broker may have truncated the log since the capture.
            if code != SCAN_NEED_BYTES or is_truncated:
                return None
            window_bytes = max(2 * window_bytes, LOG_OVERHEAD_BYTES + entry_length(window))
            continue
        position = int(next_position)
    return None


def last_offset_in(header: bytes) -> int:
    return read_last_offset(np.frombuffer(header, np.uint8))
