"""The capture of the partitions of data directories, group by group.

All partitions are inspected before the first one is captured. Capturing a partition means to
inspect it again, which takes microseconds if its directory has not changed. A captured log is
opened and measured; its batches are read later.
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
from kafka_index.core.log.scan.scanner import entry_length, last_offset_of
from kafka_index.core.logdir.metadata_files import parse_topic_id

_END_ATTEMPTS, _END_PAUSE_S = 5, 0.001
# A v0 message without key and value.
_LEAST_BATCH_BYTES = LOG_OVERHEAD_BYTES + 14
_HEADERS_BYTES = 1 << 20
_FREE_DESCRIPTORS = 256
_DESCRIPTORS = "/dev/fd"
#: Maximum number of inspections of a partition that keeps changing.
MAX_ATTEMPTS = 60
_ATTEMPT_PAUSE_S = 0.02
# A directory that changed within this time may change again with the same ctime: the clocks of file
# systems have a resolution of some milliseconds.
_TICK_NS = 100_000_000
#: Topics that are captured first, in this order.
COORDINATOR_TOPICS = (TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC)


class SkippedError(Exception):
    """A partition is skipped by this backup.

    `is_fault`: a later backup would skip it too, unless it is `retriable`.
    """

    def __init__(self, reason: str, *, is_fault: bool = False, retriable: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_fault, self.retriable = is_fault, retriable


def unreadable(path: str, error: OSError) -> SkippedError:
    """Return the error for a partition that cannot be read because of the disk or a permission."""
    reason = f"{path}: cannot be read: {error.strerror}"
    return SkippedError(reason, is_fault=True, retriable=is_retriable(error))


class ConcurrentChangeError(Exception):
    """The partition changed during an inspection, which is then repeated."""


class RemovedError(Exception):
    """A directory or file was deleted concurrently."""


class CapturedLog(msgspec.Struct, gc=False):
    """A captured log.

    Attributes
    ----------
    end_bytes : int
        End of the batches, before the zeros of a preallocated log.
    settled_bytes : int
        Bytes that existed before any log was captured.
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

    def is_stored_as(self, seen: SeenSegment | None) -> bool:
        """Return whether an earlier backup stored this whole file and it is unchanged."""
        return seen is not None and seen.is_done and self.is_same_file(seen)

    def is_same_file(self, seen: SeenSegment | None) -> bool:
        """Return whether the file is unchanged since an earlier backup."""
        return seen is not None and (
            (self.device, self.inode, self.ctime_ns, self.size_bytes)
            == (seen.device, seen.inode, seen.ctime_ns, seen.size_bytes)
        )

    def open(self) -> int:
        """Return the descriptor; open the log if necessary.

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
                raise unreadable(path, error) from error
            found = os.fstat(descriptor)
            if (found.st_dev, found.st_ino) == (self.device, self.inode):
                self.descriptor = descriptor
                return descriptor
            os.close(descriptor)
        raise SkippedError(f"{self.path}: it was deleted or replaced before it was read")

    def find_end(self, start_bytes: int) -> None:
        """Find the end of the batches by their headers, from the start of a batch.

        Errors are reported when the batches are read.
        """
        self.end_bytes = self.size_bytes
        was_open = self.descriptor >= 0
        with suppress(SkippedError, OSError):
            last = max(self.size_bytes - RECORD_BATCH_OVERHEAD_BYTES, 0)
            if not any(os.pread(self.open(), RECORD_BATCH_OVERHEAD_BYTES, last)):
                for start in (start_bytes, 0):
                    end = _end_of_batches(self.descriptor, start, self.size_bytes)
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


def _end_of_batches(descriptor: int, position: int, size_bytes: int) -> int | None:
    """Return the position of the zeros after the batches; None if other bytes follow them."""
    if position > size_bytes:
        return None
    for _ in range(_END_ATTEMPTS):
        while True:
            header = os.pread(descriptor, RECORD_BATCH_OVERHEAD_BYTES, position)
            if not any(header):
                return position
            after = position + LOG_OVERHEAD_BYTES + int.from_bytes(header[8:12], "big", signed=True)
            if after - position < _LEAST_BATCH_BYTES or after > size_bytes:
                break
            position = after
        # The header may be incomplete because the broker is writing it.
        time.sleep(_END_PAUSE_S)
    return None


class OpenFiles:
    """Opens logs up to the limit of open files, and leaves some descriptors free."""

    def __init__(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
                soft = hard
        self._left = max(soft - _FREE_DESCRIPTORS - len(os.listdir(_DESCRIPTORS)), 0)
        if soft == resource.RLIM_INFINITY:
            self._left = 1 << 30

    def open_if_allowed(self, log: CapturedLog) -> None:
        """Open a log if the limit allows it; otherwise it is opened when it is read."""
        if log.descriptor < 0 and self._left:
            with suppress(SkippedError):
                log.open()
                self._left -= 1

    def open(self, name: str, dir_fd: int) -> int:
        """Open a file; return -1 if too many files are open."""
        if not self._left:
            return -1
        try:
            descriptor = open_noatime(name, dir_fd=dir_fd)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._left = 0
                return -1
            raise
        self._left -= 1
        return descriptor


@dataclass(slots=True)
class CapturedPartition:
    """An inspected or captured partition.

    Attributes
    ----------
    seen_directory : tuple of int, optional
        Its `directory_version`.
    id_ns : int
        Time at which the topic ID was written; an earlier checkpoint may belong to another topic.
    logs : list of CapturedLog
        Ascending; only the last one if `known` is given.
    files : dict of str to bytes
        Files of the metadata log that are stored unchanged.
    known : PartitionBackup, optional
        The partition in an earlier backup, if all files are unchanged since then.
    is_cleaned : bool
        Whether the log is compacted; only set for partitions of an earlier backup of this process.
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
    def bases(self) -> list[int]:
        return [each.base_offset for each in (self.known.segments if self.known else self.logs)]

    def close(self) -> None:
        for log in self.logs:
            log.close()

    def is_at(self, status: os.stat_result) -> bool:
        """Return whether it is the same directory; its content may differ."""
        return (status.st_dev, status.st_ino) == (self.device, self.inode)


#: Inspected partitions.
InspectedPartitions = dict[TopicPartition, CapturedPartition]


class LogCapture:
    """The partitions of data directories, inspected and then captured, group by group.

    `known` is passed to `PartitionInspector`. `inspected` has the partitions that an earlier backup
    of this process inspected and other brokers stored. In an unchanged directory, only the last log
    and the files that the log cleaner may replace are inspected.
    """

    def __init__(
        self,
        directories: Sequence[str],
        is_requested: Callable[[str], bool],
        known: Mapping[TopicPartition, PartitionBackup],
        inspected: InspectedPartitions | None = None,
    ) -> None:
        self._directories = directories
        self._is_requested = is_requested
        self._inspector = PartitionInspector(directories, known)
        self._parsed: dict[str, TopicPartition | None] = {}
        # The newest listing, and the directory versions if none changed during it.
        self._listed: list[tuple[TopicPartition, int, int]] = []
        self._listed_at: list[tuple[int, int, int] | None] | None = None
        self._inspected = inspected or {}
        self.partitions: InspectedPartitions = {}
        self.skipped: dict[TopicPartition, SkippedError] = {}

    def close(self) -> None:
        for captured in (*self._inspected.values(), *self.partitions.values()):
            captured.close()

    def inspect(self) -> None:
        """Inspect all partitions; the batches found precede every capture."""
        earlier, self._inspected = self._inspected, {}
        for partition, directory in self._locate(lambda _: True).items():
            # A partition that cannot be inspected now may be captured later.
            with suppress(SkippedError, RemovedError):
                captured = self._inspector.inspect(partition, directory, earlier.get(partition))
                for log in captured.logs:
                    log.settled_bytes = log.end_bytes
                self._inspected[partition] = captured
        self.skipped.clear()

    def capture(self, topics: Collection[str] = (), *, others_than: Collection[str] = ()) -> None:
        def is_selected(topic: str) -> bool:
            return topic in topics or (bool(others_than) and topic not in others_than)

        for partition, directory in self._locate(is_selected).items():
            try:
                before = self._inspected.pop(partition, None)
                self.partitions[partition] = self._inspector.inspect(partition, directory, before)
            except SkippedError as error:
                self.skipped[partition] = error
            except RemovedError:
                # A deleted partition may be omitted, but it may also have moved or been recreated.
                if self._exists(partition):
                    self.skipped[partition] = SkippedError("it was moved during the capture")

    def _exists(self, partition: TopicPartition) -> bool:
        name = partition.directory_name
        return any(os.path.isdir(os.path.join(each, name)) for each in self._directories)

    def _locate(self, is_selected: Callable[[str], bool]) -> dict[TopicPartition, int]:
        """Return the directories of partitions, from two equal listings or one atomic listing.

        The listing is repeated while a partition is in two directories, or in only one of two
        listings. If this does not end, the partition is skipped.
        """
        before = last = None
        for _ in attempts(at_once=2):
            now = self._list(is_selected)
            is_certain = self._listed_at is not None or now == before
            if is_certain and all(len(each) == 1 for each in now.values()):
                break
            before, last = now, before
        else:
            for partition, each in now.items():
                if len(each) > 1 or (last or {}).get(partition) != each:
                    self.skipped[partition] = SkippedError(
                        "it was created or moved during the capture"
                    )
        return {
            partition: next(iter(each))[0]
            for partition, each in sorted(now.items(), key=_order)
            if partition not in self.skipped
        }

    def _list(
        self, is_selected: Callable[[str], bool]
    ) -> dict[TopicPartition, set[tuple[int, int]]]:
        """Return directories and inodes of the live partitions.

        The directories are listed again only if one has changed since the newest listing.
        """
        at = self._versions()
        if at is None or at != self._listed_at:
            self._listed = [
                (partition, number, inode)
                for number, path in enumerate(self._directories)
                for name, inode in _entries(path)
                if (partition := self._partition_named(name)) is not None
            ]
            self._listed_at = at if at == self._versions() else None
        found: dict[TopicPartition, set[tuple[int, int]]] = {}
        for partition, number, inode in self._listed:
            if is_selected(partition.topic):
                found.setdefault(partition, set()).add((number, inode))
        return found

    def _partition_named(self, name: str) -> TopicPartition | None:
        """Return the requested partition with this directory name; None for other directories."""
        if name not in self._parsed:
            partition = parse_partition_directory(name)
            is_requested = partition is not None and self._is_requested(partition.topic)
            self._parsed[name] = partition if is_requested else None
        return self._parsed[name]

    def _versions(self) -> list[tuple[int, int, int] | None] | None:
        """Return the versions of the directories; None if one may change with the same ctime."""
        now_ns = time.time_ns()
        try:
            found = [directory_version(os.stat(path), now_ns) for path in self._directories]
        except OSError:
            return None
        return None if None in found else found


def _order(item: tuple[TopicPartition, object]) -> tuple[int, str, int]:
    """Return the sort key of a capture: coordinators' topics first, the metadata log last."""
    topic, partition = item[0].topic, item[0].partition
    if topic in COORDINATOR_TOPICS:
        return COORDINATOR_TOPICS.index(topic), topic, partition
    return len(COORDINATOR_TOPICS) + (topic == CLUSTER_METADATA_TOPIC), topic, partition


def _entries(path: str) -> list[tuple[str, int]]:
    """Return the names and inodes of the directories in a data directory."""
    try:
        descriptor = open_noatime(path, flags=os.O_DIRECTORY)
        try:
            with os.scandir(descriptor) as entries:
                return [(each.name, each.inode()) for each in entries if each.is_dir()]
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InputError(f"cannot read the directory: {error.strerror}", path=path) from error


class PartitionInspector:
    """Inspects the partitions of data directories.

    `known` has the partitions of an earlier backup: an unchanged directory is not listed, and an
    unchanged log is not opened.
    """

    def __init__(
        self, directories: Sequence[str], known: Mapping[TopicPartition, PartitionBackup]
    ) -> None:
        self._directories = directories
        self._known = known
        self._open_files = OpenFiles()
        # The ends of the batches of last logs, keyed by device and inode.
        self._ends: dict[tuple[int, int], int] = {}

    def inspect(
        self, partition: TopicPartition, directory: int, before: CapturedPartition | None
    ) -> CapturedPartition:
        """Return the current state of a partition; `before` itself if it has not changed."""
        after = None
        try:
            if before and before.directory == directory and self._is_unchanged(before):
                after = before
                if before.known is None:
                    for log in before.logs if before.is_cleaned else before.logs[-1:]:
                        self._open_files.open_if_allowed(log)
            else:
                after = self._inspect_until_unchanged(partition, directory)
                _settle(after, before)
            return after
        finally:
            # Closed only now: while a file is open, its inode is not reused.
            if before is not None and after is not before:
                before.close()

    def _is_unchanged(self, before: CapturedPartition) -> bool:
        """Return whether a partition is unchanged, except for the end of its last log."""
        try:
            at = os.stat(before.path)
        except FileNotFoundError:
            return False
        # The same ctime means that no name in the directory has changed.
        is_same = (at.st_dev, at.st_ino, at.st_ctime_ns) == before.seen_directory
        return is_same and self._measure(before)

    def _measure(self, captured: CapturedPartition) -> bool:
        """Measure the last log again; return False if it was replaced since the inspection."""
        log = captured.logs[-1] if captured.logs else None
        if log is None:
            return True
        try:
            now = os.stat(log.path) if log.descriptor < 0 else os.fstat(log.descriptor)
        except OSError:
            return False
        if (now.st_dev, now.st_ino) != (log.device, log.inode):
            return False
        is_grown = (now.st_size, now.st_ctime_ns) != (log.size_bytes, log.ctime_ns)
        if is_grown and captured.known is not None:
            return False
        if now.st_size < log.settled_bytes:
            log.settled_bytes = 0
        is_preallocated = log.is_preallocated
        log.size_bytes, log.ctime_ns = now.st_size, now.st_ctime_ns
        if is_grown:
            self._open_files.open_if_allowed(log)
        if is_grown or is_preallocated:
            self._find_end(log, log.end_bytes)
        return True

    def _find_end(self, log: CapturedLog, start_bytes: int) -> None:
        key = log.device, log.inode
        log.find_end(self._ends.get(key, start_bytes))
        self._ends[key] = log.end_bytes

    def _inspect_until_unchanged(
        self, partition: TopicPartition, directory: int
    ) -> CapturedPartition:
        """Inspect a partition repeatedly until it does not change concurrently."""
        path = os.path.join(self._directories[directory], partition.directory_name)
        reason = ""
        for number in attempts(at_once=1):
            try:
                found = self._known_at(partition, path, directory) if not number else None
                return found or self._inspect_once(partition, path, directory)
            except ConcurrentChangeError as error:
                reason = str(error)
            except (FileNotFoundError, NotADirectoryError) as error:
                reason = "a file was deleted"
                if not os.path.isdir(path):
                    raise RemovedError from error
            except OSError as error:
                raise unreadable(path, error) from error
            except KafkaIndexError as error:
                retriable = is_retriable(error)
                raise SkippedError(str(error), is_fault=True, retriable=retriable) from error
        raise SkippedError(f"{reason} during each of {plural(MAX_ATTEMPTS, 'attempt')}")

    def _known_at(
        self, partition: TopicPartition, path: str, directory: int
    ) -> CapturedPartition | None:
        """Return a partition whose directory is unchanged since an earlier backup, else None."""
        known = self._known.get(partition)
        if known is None or known.seen_directory is None:
            return None
        at = os.stat(path)
        if (at.st_dev, at.st_ino, at.st_ctime_ns) != known.seen_directory:
            return None
        last = known.segments[-1:]
        captured = CapturedPartition(
            partition,
            path,
            directory,
            known.topic_id,
            at.st_dev,
            at.st_ino,
            known.seen_directory,
            os.stat(f"{path}/{PARTITION_METADATA}").st_mtime_ns,
            [_log_of_seen(path, each) for each in last],
            known.epochs,
            known.snapshot,
        )
        if not self._measure(captured):
            return None
        if all(log.is_stored_as(each) for log, each in zip(captured.logs, last, strict=True)):
            captured.known = known
            return captured
        # All logs before the last one are stored.
        captured.logs = [
            *(_log_of_seen(path, each) for each in known.segments[:-1]),
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
            before = os.fstat(directory_fd)
            names = os.listdir(directory_fd)
            try:
                id_text, id_file = read_noatime(PARTITION_METADATA, dir_fd=directory_fd)
            except FileNotFoundError:
                raise SkippedError("it has no topic id yet") from None
            topic_id = parse_topic_id(
                id_text.decode(errors="replace"), f"{path}/{PARTITION_METADATA}"
            )
            known = self._known.get(partition)
            is_known = known is not None and known.topic_id == topic_id
            seen = {each.base_offset: each for each in known.segments} if known and is_known else {}
            bases = _bases(names)
            for base, name in bases.items():
                # Appended one by one, so that open logs are closed if the next one fails.
                logs.append(self._log(directory_fd, f"{path}/{name}", name, base, seen.get(base)))
            earlier = seen.get(logs[-1].base_offset) if logs else None
            if logs and not logs[-1].is_stored_as(earlier):
                self._find_end(logs[-1], earlier.covered_bytes if earlier else 0)
            epochs = _read_epochs(directory_fd, names, path)
            snapshot = _read_snapshot(directory_fd, names, logs)
            files = {}
            if partition.topic == CLUSTER_METADATA_TOPIC:
                files = _read_metadata_files(directory_fd, names)
            seen_directory = directory_version(before, started_ns)
            _refuse_changes(
                directory_fd, path, before, names, logs, is_settled=seen_directory is not None
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
            before.st_dev,
            before.st_ino,
            seen_directory,
            id_file.st_mtime_ns,
            logs,
            epochs,
            snapshot,
            files,
        )

    def _log(
        self, directory_fd: int, path: str, name: str, base: int, seen: SeenSegment | None
    ) -> CapturedLog:
        if seen is not None:
            log = _log_of(path, base, os.stat(name, dir_fd=directory_fd))
            if log.is_stored_as(seen):
                return log
        descriptor = self._open_files.open(name, directory_fd)
        if descriptor < 0:
            return _log_of(path, base, os.stat(name, dir_fd=directory_fd))
        try:
            return _log_of(path, base, os.fstat(descriptor), descriptor)
        except BaseException:
            os.close(descriptor)
            raise


def directory_version(directory: os.stat_result, started_ns: int) -> tuple[int, int, int] | None:
    """Return device, inode and ctime of a directory; None if it may change with the same ctime.

    `started_ns` is the time before the inspection.
    """
    is_settled = started_ns - directory.st_ctime_ns > _TICK_NS
    return (directory.st_dev, directory.st_ino, directory.st_ctime_ns) if is_settled else None


def attempts(at_once: int) -> Iterator[int]:
    """Count attempts, with a pause before each after the first `at_once`."""
    for number in range(MAX_ATTEMPTS):
        if number >= at_once:
            time.sleep(_ATTEMPT_PAUSE_S)
        yield number


def _bases(names: Sequence[str]) -> dict[int, str]:
    """Return the base offsets of the logs, ascending, with their names.

    Raises `ConcurrentChangeError` while the log cleaner renames files.
    """
    found = {}
    for name in sorted(names):
        if name.endswith(LOG_SUFFIX):
            parsed = parse_segment_file(name)
            if parsed is not None:
                found[parsed.base_offset] = name
        elif name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            raise ConcurrentChangeError("a cleaned log was about to replace others")
    return found


def _log_of(path: str, base: int, status: os.stat_result, descriptor: int = -1) -> CapturedLog:
    if not stat.S_ISREG(status.st_mode):
        raise SkippedError(f"{path}: not a regular file", is_fault=True)
    size = status.st_size
    file = status.st_dev, status.st_ino, status.st_ctime_ns, size
    return CapturedLog(path, base, *file, end_bytes=size, descriptor=descriptor)


def _log_of_seen(path: str, seen: SeenSegment) -> CapturedLog:
    name = segment_file_name(seen.base_offset, LOG_SUFFIX)
    file = seen.device, seen.inode, seen.ctime_ns, seen.size_bytes
    return CapturedLog(f"{path}/{name}", seen.base_offset, *file, end_bytes=seen.size_bytes)


def _read_epochs(directory_fd: int, names: Sequence[str], path: str) -> tuple[tuple[int, int], ...]:
    if LEADER_EPOCH_CHECKPOINT not in names:
        return ()
    data, _ = read_noatime(LEADER_EPOCH_CHECKPOINT, dir_fd=directory_fd)
    file = f"{path}/{LEADER_EPOCH_CHECKPOINT}"
    entries = parse_leader_epoch_checkpoint(data.decode(errors="replace"), path=file)
    return tuple((each.epoch, each.start_offset) for each in entries)


def _read_snapshot(
    directory_fd: int, names: Sequence[str], logs: Sequence[CapturedLog]
) -> bytes | None:
    """Return the producer snapshot at the start of the first log."""
    name = segment_file_name(logs[0].base_offset, SNAPSHOT_SUFFIX) if logs else ""
    return read_noatime(name, dir_fd=directory_fd)[0] if name in names else None


def _read_metadata_files(directory_fd: int, names: Sequence[str]) -> dict[str, bytes]:
    """Return the newest snapshot of the metadata log, and its quorum state."""
    snapshots = sorted(name for name in names if is_metadata_snapshot(name))
    kept = [*snapshots[-1:], *([QUORUM_STATE] if QUORUM_STATE in names else [])]
    return {name: read_noatime(name, dir_fd=directory_fd)[0] for name in kept}


def _refuse_changes(
    directory_fd: int,
    path: str,
    before: os.stat_result,
    names: Sequence[str],
    logs: Sequence[CapturedLog],
    *,
    is_settled: bool,
) -> None:
    """Raise `ConcurrentChangeError` if the directory changed since the inspection started."""
    named = os.stat(path)
    if (named.st_dev, named.st_ino) != (before.st_dev, before.st_ino):
        raise ConcurrentChangeError("the directory was replaced")
    if named.st_ctime_ns != before.st_ctime_ns:
        raise ConcurrentChangeError("its files changed")
    if is_settled:
        return
    if sorted(os.listdir(directory_fd)) != sorted(names):
        raise ConcurrentChangeError("its files changed")
    for log in logs:
        now = os.stat(os.path.basename(log.path), dir_fd=directory_fd)
        if (now.st_dev, now.st_ino) != (log.device, log.inode):
            raise ConcurrentChangeError("a log was replaced")


def _settle(after: CapturedPartition, before: CapturedPartition | None) -> None:
    """Copy the settled bytes of each log from the inspection before the captures."""
    if before is None or before.topic_id != after.topic_id:
        return
    sizes = {(log.path, log.device, log.inode): log.settled_bytes for log in before.logs}
    for log in after.logs:
        settled = sizes.get((log.path, log.device, log.inode), 0)
        log.settled_bytes = settled if settled <= log.size_bytes else 0


@contextmanager
def open_reader(
    log: CapturedLog, end_bytes: int, bandwidth: Bandwidth
) -> Iterator[LowImpactReader]:
    """Open a log for reading up to a position; raises `SkippedError` if that fails."""
    try:
        with LowImpactReader(log.open(), log.path, end_bytes, bandwidth) as file:
            yield file
    except OSError as error:
        raise unreadable(log.path, error) from error
    except KafkaIndexError as error:
        retriable = is_retriable(error)
        raise SkippedError(str(error), is_fault=True, retriable=retriable) from error


def find_batch(
    log: CapturedLog, last_offset: int, header: bytes, near_bytes: int, bandwidth: Bandwidth
) -> int | None:
    """Return the end position of the batch with a header; None if the log does not contain it.

    The batch is expected to end at `near_bytes`, as in an earlier backup; otherwise the headers are
    searched. Raises `SkippedError` if the log cannot be read.
    """
    size = LOG_OVERHEAD_BYTES + entry_length(np.frombuffer(header, np.uint8))
    with open_reader(log, log.size_bytes, bandwidth) as file:
        if size <= near_bytes <= log.size_bytes:
            there = np.zeros(len(header), np.uint8)
            file.read_into(near_bytes - size, there.data)
            if there.tobytes() == header:
                return near_bytes
        return _seek_to(file, log, last_offset, header)


def _seek_to(
    file: LowImpactReader, log: CapturedLog, last_offset: int, header: bytes
) -> int | None:
    columns = np.empty((SCAN_COLUMNS, CHUNK_BATCHES), np.int64)
    position, wanted = 0, _HEADERS_BYTES
    while position < log.size_bytes:
        window = np.empty(min(wanted, log.size_bytes - position), np.uint8)
        filled = file.read_into(position, window.data)
        is_over, window = filled < len(window), window[:filled]
        code, after, count = scan_batches(
            window,
            position,
            log.size_bytes,
            position,
            log.base_offset,
            False,  # noqa: FBT003, because kernels take arguments by position
            columns,
            0,
        )
        lasts: Longs = BatchColumns(*columns[:, :count]).last_offset
        row = int(np.searchsorted(lasts, last_offset))
        if row < count:
            start = int(columns[0, row]) - position
            is_same = window[start : start + len(header)].tobytes() == header
            return position + start + int(columns[1, row]) if is_same else None
        if not count:
            # A log may be shorter than when it was captured.
            if code != SCAN_NEED_BYTES or is_over:
                return None
            wanted = max(2 * wanted, LOG_OVERHEAD_BYTES + entry_length(window))
            continue
        position = int(after)
    return None


def last_offset_in(header: bytes) -> int:
    return last_offset_of(np.frombuffer(header, np.uint8))
