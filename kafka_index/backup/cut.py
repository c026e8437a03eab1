"""The cut: the logs of a running broker, opened and measured; what they hold is read later.

A broker appends, rolls, cleans, deletes and moves logs meanwhile. So each partition is looked at
until a look meets no change (`look_at`), before anything is cut. The cut of a partition then asks
for two things alone: that its directory has not changed since, or else it is looked at again, and
where its last log ends, as no other grows: its size, or, in a preallocated one, the zeros after its
last batch. Nothing is written, locked or linked, and the files
that are read keep their times of access where the platform allows that.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import os
import resource
import stat
import struct
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

import msgspec

from kafka_index.dump.small_files import topic_id_in
from kafka_index.errors import InputError, KafkaIndexError, plural
from kafka_index.layout.checkpoints import parse_leader_epoch_checkpoint, parse_offset_checkpoint
from kafka_index.layout.names import (
    BROKER_LOCK,
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
from kafka_index.layout.records import LOG_OVERHEAD_BYTES, RECORD_BATCH_OVERHEAD_BYTES
from kafka_index.stores.backup.manifest import PartitionBackup, SeenSegment

#: The topics that are cut first, in this order.
COORDINATOR_TOPICS = (TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC)

_LOOKS = 60
_BETWEEN_LOOKS_S = 0.02
_END_LOOKS, _BETWEEN_END_LOOKS_S = 5, 0.001
# A message of magic 0 without key and value.
_LEAST_BATCH_BYTES = LOG_OVERHEAD_BYTES + 14
# A directory that changed no longer ago may change again without a later time: clocks of file
# systems tick every few milliseconds.
_TICK_NS = 100_000_000
_FREE_DESCRIPTORS = 256
_DESCRIPTORS = "/dev/fd"
# O_NONBLOCK so that a named pipe is not waited for.
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_UNMARKED_FLAGS = _READ_FLAGS | getattr(os, "O_NOATIME", 0)
_READ_BYTES = 1 << 16
# struct flock of Linux on 64 bits: type, whence, start, length, process.
_FLOCK = struct.Struct("hh4xqqi4x")


class LeftOutError(Exception):
    """A partition is not in this run; `is_fault`: no later run will have it either."""

    def __init__(self, reason: str, *, is_fault: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_fault = is_fault


class _GoneError(Exception):
    """A directory or a file is no longer there."""


class CutLog(msgspec.Struct, gc=False):
    """A log, as it was cut.

    `end_bytes`: the batches end there, before the zeros of a preallocated log. `settled_bytes` were
    there before anything was cut. The descriptor is -1 for a log that is not open: nothing of it
    has to be read, or the process may not open more.
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

    def is_as(self, seen: SeenSegment | None) -> bool:
        """Return whether an earlier run has seen the same, and stored all of it."""
        return seen is not None and seen.is_done and self.is_file_of(seen)

    def is_file_of(self, seen: SeenSegment | None) -> bool:
        """Return whether an earlier run has seen the same file, and it is unchanged."""
        return seen is not None and (
            (self.device, self.inode, self.ctime_ns, self.size_bytes)
            == (seen.device, seen.inode, seen.ctime_ns, seen.size_bytes)
        )

    def opened(self) -> int:
        """Return the descriptor, opening the log if it is not open.

        Raises `LeftOutError` if it is another file now, or cannot be opened.
        """
        if self.descriptor >= 0:
            return self.descriptor
        for path in (self.path, self.path + DELETED_SUFFIX):
            try:
                descriptor = open_unmarked(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise unreadable(path, error) from error
            found = os.fstat(descriptor)
            if (found.st_dev, found.st_ino) == (self.device, self.inode):
                self.descriptor = descriptor
                return descriptor
            os.close(descriptor)
        raise LeftOutError(f"{self.path}: it was deleted or replaced before it was read")

    def find_end(self, start_bytes: int) -> None:
        """Find the end of the batches, by their headers from one of them on.

        What cannot be read, or is damaged, is for the reading to say.
        """
        self.end_bytes = self.size_bytes
        was_open = self.descriptor >= 0
        with suppress(LeftOutError, OSError):
            last = max(self.size_bytes - RECORD_BATCH_OVERHEAD_BYTES, 0)
            if not any(os.pread(self.opened(), RECORD_BATCH_OVERHEAD_BYTES, last)):
                for start in (start_bytes, 0):
                    end = _end_of_batches(self.descriptor, start, self.size_bytes)
                    if end is not None:
                        self.end_bytes = end
                        break
        if not was_open:
            self.close()

    @property
    def is_preallocated(self) -> bool:
        """Whether it can grow without another size."""
        return self.end_bytes < self.size_bytes

    def close(self) -> None:
        """Close the log."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


@dataclass(slots=True)
class CutPartition:
    """A partition, as it was looked at and cut.

    The logs ascend; of a partition whose files are all as an earlier run has stored them, `known`,
    there is only the last one. `id_ns` is the time at which its id was written: a checkpoint that
    was written earlier can name another topic. The files are those of the metadata log that are
    kept whole. `is_cleaned` is only known of what was looked at for an earlier run.
    """

    partition: TopicPartition
    path: str
    directory: int
    topic_id: str
    device: int
    inode: int
    ctime_ns: int
    id_ns: int
    looked_ns: int
    logs: list[CutLog]
    epochs: tuple[tuple[int, int], ...] = ()
    snapshot: bytes | None = None
    files: dict[str, bytes] = field(default_factory=dict)
    known: PartitionBackup | None = None
    is_cleaned: bool = False

    @property
    def bases(self) -> list[int]:
        """The base offsets of all its logs."""
        return [each.base_offset for each in (self.known.segments if self.known else self.logs)]

    def close(self) -> None:
        """Close its logs."""
        for log in self.logs:
            log.close()

    def is_at(self, found: os.stat_result) -> bool:
        """Return whether it is this directory, whatever is in it."""
        return (found.st_dev, found.st_ino) == (self.device, self.inode)

    @property
    def seen_directory(self) -> tuple[int, int, int] | None:
        """Device, inode and ctime of the directory; None if it may change without another ctime."""
        is_settled = self.looked_ns - self.ctime_ns > _TICK_NS
        return (self.device, self.inode, self.ctime_ns) if is_settled else None

    def is_unchanged(self, found: os.stat_result) -> bool:
        """Return whether no name in it can have changed since the look."""
        return self.seen_directory == (found.st_dev, found.st_ino, found.st_ctime_ns)


#: Partitions, as they were looked at.
Looked = dict[TopicPartition, CutPartition]


class OpenFiles:
    """The number of logs that may be open: what the process may open, but for some."""

    def __init__(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            with suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
                soft = hard
        self._left = max(soft - _FREE_DESCRIPTORS - len(os.listdir(_DESCRIPTORS)), 0)
        if soft == resource.RLIM_INFINITY:
            self._left = 1 << 30

    def hold(self, log: CutLog) -> None:
        """Open a log that is not open; where no more may be open it is opened when it is read."""
        if log.descriptor < 0 and self._left:
            with suppress(LeftOutError):
                log.opened()
                self._left -= 1

    def open(self, name: str, dir_fd: int) -> int:
        """Open a file; return -1 where no more may be open."""
        if not self._left:
            return -1
        try:
            descriptor = open_unmarked(name, dir_fd=dir_fd)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._left = 0
                return -1
            raise
        self._left -= 1
        return descriptor


def open_unmarked(path: str, *, dir_fd: int | None = None, flags: int = 0) -> int:
    """Open a file or directory to be read; its time of access stays, where that is allowed."""
    try:
        return os.open(path, flags | _UNMARKED_FLAGS, dir_fd=dir_fd)
    except PermissionError:
        return os.open(path, flags | _READ_FLAGS, dir_fd=dir_fd)


def read_unmarked(path: str, *, dir_fd: int | None = None) -> tuple[bytes, os.stat_result]:
    """Return the bytes of a small file, and what it is."""
    descriptor = open_unmarked(path, dir_fd=dir_fd)
    try:
        data = b""
        while more := os.read(descriptor, _READ_BYTES):
            data += more
        return data, os.fstat(descriptor)
    finally:
        os.close(descriptor)


def unreadable(path: str, error: OSError) -> LeftOutError:
    """Return the reason for a partition that the disk or a permission keeps from being read."""
    return LeftOutError(f"{path}: cannot be read: {error.strerror}", is_fault=True)


@dataclass(frozen=True)
class BrokerCheckpoint:
    """A checkpoint of offsets of one data directory, and when it was written."""

    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    mtime_ns: int = 0

    @classmethod
    def read(cls, directory: str, name: str) -> BrokerCheckpoint:
        """Read a checkpoint; empty where there is none, or no broker reads it."""
        path = os.path.join(directory, name)
        try:
            data, found = read_unmarked(path)
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise InputError(f"cannot read the file: {error.strerror}", path=path) from error
        try:
            return cls(parse_offset_checkpoint(data.decode(), path=path), found.st_mtime_ns)
        except (InputError, UnicodeDecodeError):
            return cls()

    def of(self, partition: CutPartition, *, must_be_later: bool) -> int | None:
        """Return the entry of a partition.

        With `must_be_later`, None where it may be of an earlier topic of that name.
        """
        is_later = not must_be_later or self.mtime_ns > partition.id_ns
        return self.offsets.get(partition.partition) if is_later else None


def is_held(directory: str) -> bool:
    """Return whether a broker on this machine holds a data directory; its lock is only asked."""
    try:
        descriptor = open_unmarked(os.path.join(directory, BROKER_LOCK))
    except OSError:
        return False
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, asked)
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
    except OSError:
        return True
    finally:
        os.close(descriptor)


class Cutting:
    """The partitions of data directories, looked at and then cut, group by group.

    `known` is what an earlier run has of partitions: a directory that is as it was is not listed,
    and a log that is as it was not opened. `looked` is what an earlier run of this process has
    looked at, and others have stored: of a directory that is as it was only the last log is looked
    at, and opened with what a cleaner may replace. A context manager, at whose end all logs are
    closed.
    """

    def __init__(
        self,
        directories: Sequence[str],
        is_wanted: Callable[[str], bool],
        known: Mapping[TopicPartition, PartitionBackup],
        looked: Looked | None = None,
    ) -> None:
        self._directories = directories
        self._is_wanted = is_wanted
        self._known = known
        self._parsed: dict[str, TopicPartition | None] = {}
        # The newest listing, and what the directories were when it was made, if that was one
        # moment for all of them.
        self._listed: list[tuple[TopicPartition, int, int]] = []
        self._listed_at: list[tuple[int, int, int]] | None = None
        self._open_files = OpenFiles()
        # Where batches of last logs ended, by device and inode.
        self._ends: dict[tuple[int, int], int] = {}
        self._looked = looked or {}
        self.partitions: Looked = {}
        self.left_out: dict[TopicPartition, LeftOutError] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for partition in {*self._looked, *self.partitions}:
            for found in (self._looked.get(partition), self.partitions.get(partition)):
                if found is not None:
                    found.close()

    def look(self) -> None:
        """Look at all partitions: what they have now is older than all that is cut."""
        earlier, self._looked = self._looked, {}
        for partition, directory in self._places(lambda _: True).items():
            # A partition that cannot be looked at now may be cut a moment later.
            with suppress(LeftOutError, _GoneError):
                found = self._look_again(partition, directory, earlier.get(partition))
                for log in found.logs:
                    log.settled_bytes = log.end_bytes
                self._looked[partition] = found
        self.left_out.clear()

    def cut(self, topics: Collection[str] = (), *, others_than: Collection[str] = ()) -> None:
        """Cut the partitions of some topics, or those of all but some."""

        def is_now(topic: str) -> bool:
            return topic in topics or (bool(others_than) and topic not in others_than)

        for partition, directory in self._places(is_now).items():
            try:
                before = self._looked.pop(partition, None)
                self.partitions[partition] = self._look_again(partition, directory, before)
            except LeftOutError as error:
                self.left_out[partition] = error
            except _GoneError:
                # In the run or not, both are right; but it may have moved, or be another already.
                if self._is_back(partition):
                    self.left_out[partition] = LeftOutError("it was moved while it was cut")

    def _is_back(self, partition: TopicPartition) -> bool:
        name = partition.directory_name
        return any(os.path.isdir(os.path.join(each, name)) for each in self._directories)

    def _look_again(
        self, partition: TopicPartition, directory: int, before: CutPartition | None
    ) -> CutPartition:
        """Return a partition as it is now: as it was looked at before, if nothing has changed."""
        try:
            if before is not None and before.directory == directory:
                try:
                    found = os.stat(before.path)
                except FileNotFoundError as error:
                    raise _GoneError from error
                if before.is_unchanged(found) and self._measure(before):
                    if before.known is None:
                        for log in before.logs if before.is_cleaned else before.logs[-1:]:
                            self._open_files.hold(log)
                    return before
            after = self._look_at(partition, directory)
            _settle(after, before)
        except BaseException:
            if before is not None:
                before.close()
            raise
        if before is not None:
            before.close()
        return after

    def _measure(self, found: CutPartition) -> bool:
        """Take the size of the last log; return whether no log was replaced since the look."""
        log = found.logs[-1] if found.logs else None
        if log is None:
            return True
        try:
            now = os.stat(log.path) if log.descriptor < 0 else os.fstat(log.descriptor)
        except OSError:
            return False
        if (now.st_dev, now.st_ino) != (log.device, log.inode):
            return False
        is_grown = (now.st_size, now.st_ctime_ns) != (log.size_bytes, log.ctime_ns)
        if is_grown and found.known is not None:
            return False
        if now.st_size < log.settled_bytes:
            log.settled_bytes = 0
        is_preallocated = log.is_preallocated
        log.size_bytes, log.ctime_ns = now.st_size, now.st_ctime_ns
        if is_grown:
            self._open_files.hold(log)
        if is_grown or is_preallocated:
            self._find_end(log, log.end_bytes)
        return True

    def _find_end(self, log: CutLog, start_bytes: int) -> None:
        key = log.device, log.inode
        log.find_end(self._ends.get(key, start_bytes))
        self._ends[key] = log.end_bytes

    def _look_at(self, partition: TopicPartition, directory: int) -> CutPartition:
        """Return a partition by a look that met no change."""
        path = os.path.join(self._directories[directory], partition.directory_name)
        reason = ""
        for number in range(_LOOKS):
            if number:
                time.sleep(_BETWEEN_LOOKS_S)
            try:
                found = self._known_at(partition, path, directory) if not number else None
                return found or self._look_once(partition, path, directory)
            except _ChangedError as error:
                reason = str(error)
            except (FileNotFoundError, NotADirectoryError) as error:
                reason = "a file was gone"
                if not os.path.isdir(path):
                    raise _GoneError from error
            except OSError as error:
                raise unreadable(path, error) from error
            except KafkaIndexError as error:
                raise LeftOutError(str(error), is_fault=True) from error
        raise LeftOutError(f"{reason} at each of {plural(_LOOKS, 'look')}")

    def _known_at(
        self, partition: TopicPartition, path: str, directory: int
    ) -> CutPartition | None:
        """Return a partition whose directory is as an earlier run has seen it; None for others."""
        known = self._known.get(partition)
        if known is None or known.seen_directory is None:
            return None
        looked_ns = time.time_ns()
        at = os.stat(path)
        if (at.st_dev, at.st_ino, at.st_ctime_ns) != known.seen_directory:
            return None
        last = known.segments[-1:]
        found = CutPartition(
            partition,
            path,
            directory,
            known.topic_id,
            at.st_dev,
            at.st_ino,
            at.st_ctime_ns,
            os.stat(f"{path}/{PARTITION_METADATA}").st_mtime_ns,
            looked_ns,
            [_log_of_seen(path, each) for each in last],
            known.epochs,
            None if known.snapshot is None else base64.b64decode(known.snapshot),
        )
        if not self._measure(found):
            return None
        if all(log.is_as(each) for log, each in zip(found.logs, last, strict=True)):
            found.known = known
            return found
        # No log before the last one has anything that is not stored.
        found.logs = [*(_log_of_seen(path, each) for each in known.segments[:-1]), *found.logs]
        self._open_files.hold(found.logs[-1])
        return found

    def _look_once(self, partition: TopicPartition, path: str, directory: int) -> CutPartition:
        looked_ns = time.time_ns()
        held = open_unmarked(path, flags=os.O_DIRECTORY)
        logs: list[CutLog] = []
        try:
            before = os.fstat(held)
            names = os.listdir(held)
            try:
                id_text, id_file = read_unmarked(PARTITION_METADATA, dir_fd=held)
            except FileNotFoundError:
                raise LeftOutError("it has no topic id yet") from None
            topic_id = topic_id_in(id_text.decode(errors="replace"), f"{path}/{PARTITION_METADATA}")
            known = self._known.get(partition)
            is_known = known is not None and known.topic_id == topic_id
            seen = {each.base_offset: each for each in known.segments} if known and is_known else {}
            bases = _bases(names)
            for base, name in bases.items():
                # One by one: logs that are open are closed if the next one fails.
                logs.append(self._log(held, f"{path}/{name}", name, base, seen.get(base)))
            earlier = seen.get(logs[-1].base_offset) if logs else None
            if logs and not logs[-1].is_as(earlier):
                self._find_end(logs[-1], earlier.covered_bytes if earlier else 0)
            epochs = _read_epochs(held, names, path)
            snapshot = _read_snapshot(held, names, logs)
            files = {}
            if partition.topic == CLUSTER_METADATA_TOPIC:
                files = _read_metadata_files(held, names)
            _refuse_changes(held, path, before, names, logs, looked_ns)
        except BaseException:
            for log in logs:
                log.close()
            raise
        finally:
            os.close(held)
        return CutPartition(
            partition,
            path,
            directory,
            topic_id,
            before.st_dev,
            before.st_ino,
            before.st_ctime_ns,
            id_file.st_mtime_ns,
            looked_ns,
            logs,
            epochs,
            snapshot,
            files,
        )

    def _log(self, held: int, path: str, name: str, base: int, seen: SeenSegment | None) -> CutLog:
        if seen is not None:
            log = _log_of(path, base, os.stat(name, dir_fd=held))
            if log.is_as(seen):
                return log
        descriptor = self._open_files.open(name, held)
        if descriptor < 0:
            return _log_of(path, base, os.stat(name, dir_fd=held))
        try:
            return _log_of(path, base, os.fstat(descriptor), descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def _places(self, is_now: Callable[[str], bool]) -> dict[TopicPartition, int]:
        """Return the directories of partitions by two listings that agree, or one of one moment.

        A partition that is in two directories, or is there in one listing alone, is asked for
        again; if that does not end, it is left out.
        """
        before = last = None
        for number in range(_LOOKS):
            if number > 1:
                time.sleep(_BETWEEN_LOOKS_S)
            now = self._list(is_now)
            is_certain = self._listed_at is not None or now == before
            if is_certain and all(len(each) == 1 for each in now.values()):
                break
            before, last = now, before
        else:
            for partition, each in now.items():
                if len(each) > 1 or (last or {}).get(partition) != each:
                    self.left_out[partition] = LeftOutError("it was created or moved meanwhile")
        return {
            partition: next(iter(each))[0]
            for partition, each in sorted(now.items(), key=_order)
            if partition not in self.left_out
        }

    def _list(self, is_now: Callable[[str], bool]) -> dict[TopicPartition, set[tuple[int, int]]]:
        """Return directories and inodes of the live partitions, by one listing of each.

        The newest listing does while no directory has changed since.
        """
        at = self._moments()
        if at is None or at != self._listed_at:
            self._listed = [
                (partition, number, inode)
                for number, path in enumerate(self._directories)
                for name, inode in _entries(path)
                if (partition := self._partition_named(name)) is not None
            ]
            self._listed_at = at if at == self._moments() else None
        found: dict[TopicPartition, set[tuple[int, int]]] = {}
        for partition, number, inode in self._listed:
            if is_now(partition.topic):
                found.setdefault(partition, set()).add((number, inode))
        return found

    def _partition_named(self, name: str) -> TopicPartition | None:
        """Return the wanted partition whose directory has a name; None for other directories."""
        if name not in self._parsed:
            partition = parse_partition_directory(name)
            is_wanted = partition is not None and self._is_wanted(partition.topic)
            self._parsed[name] = partition if is_wanted else None
        return self._parsed[name]

    def _moments(self) -> list[tuple[int, int, int]] | None:
        """Return what the data directories are; None if one may change without another ctime."""
        now_ns = time.time_ns()
        try:
            found = [os.stat(path) for path in self._directories]
        except OSError:
            return None
        if any(now_ns - each.st_ctime_ns <= _TICK_NS for each in found):
            return None
        return [(each.st_dev, each.st_ino, each.st_ctime_ns) for each in found]


class _ChangedError(Exception):
    """A look met a change, and has to be repeated."""


def _order(found: tuple[TopicPartition, object]) -> tuple[int, str, int]:
    """Return the place of a partition in a cut: coordinators first, the metadata log last."""
    topic, partition = found[0].topic, found[0].partition
    if topic in COORDINATOR_TOPICS:
        return COORDINATOR_TOPICS.index(topic), topic, partition
    return len(COORDINATOR_TOPICS) + (topic == CLUSTER_METADATA_TOPIC), topic, partition


def _entries(path: str) -> list[tuple[str, int]]:
    """Return the names and inodes of the directories in a data directory."""
    try:
        held = open_unmarked(path, flags=os.O_DIRECTORY)
        try:
            with os.scandir(held) as entries:
                return [(each.name, each.inode()) for each in entries if each.is_dir()]
        finally:
            os.close(held)
    except OSError as error:
        raise InputError(f"cannot read the directory: {error.strerror}", path=path) from error


def _bases(names: Sequence[str]) -> dict[int, str]:
    """Return the base offsets of the logs, ascending, and the names.

    Raises `_ChangedError` while a cleaner renames some.
    """
    found = {}
    for name in sorted(names):
        if name.endswith(LOG_SUFFIX):
            parsed = parse_segment_file(name)
            if parsed is not None:
                found[parsed.base_offset] = name
        elif name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            raise _ChangedError("a cleaned log was about to replace others")
    return found


def _log_of(path: str, base: int, found: os.stat_result, descriptor: int = -1) -> CutLog:
    if not stat.S_ISREG(found.st_mode):
        raise LeftOutError(f"{path}: not a regular file", is_fault=True)
    size = found.st_size
    file = found.st_dev, found.st_ino, found.st_ctime_ns, size
    return CutLog(path, base, *file, end_bytes=size, descriptor=descriptor)


def _log_of_seen(path: str, seen: SeenSegment) -> CutLog:
    name = segment_file_name(seen.base_offset, LOG_SUFFIX)
    file = seen.device, seen.inode, seen.ctime_ns, seen.size_bytes
    return CutLog(f"{path}/{name}", seen.base_offset, *file, end_bytes=seen.size_bytes)


def _end_of_batches(descriptor: int, position: int, size_bytes: int) -> int | None:
    """Return where zeros follow the batches from one of them on; None if something else does."""
    if position > size_bytes:
        return None
    for _ in range(_END_LOOKS):
        while True:
            header = os.pread(descriptor, RECORD_BATCH_OVERHEAD_BYTES, position)
            if not any(header):
                return position
            after = position + LOG_OVERHEAD_BYTES + int.from_bytes(header[8:12], "big", signed=True)
            if after - position < _LEAST_BATCH_BYTES or after > size_bytes:
                break
            position = after
        # The header may be just being written.
        time.sleep(_BETWEEN_END_LOOKS_S)
    return None


def _read_epochs(held: int, names: Sequence[str], path: str) -> tuple[tuple[int, int], ...]:
    if LEADER_EPOCH_CHECKPOINT not in names:
        return ()
    data, _ = read_unmarked(LEADER_EPOCH_CHECKPOINT, dir_fd=held)
    file = f"{path}/{LEADER_EPOCH_CHECKPOINT}"
    entries = parse_leader_epoch_checkpoint(data.decode(errors="replace"), path=file)
    return tuple((each.epoch, each.start_offset) for each in entries)


def _read_snapshot(held: int, names: Sequence[str], logs: Sequence[CutLog]) -> bytes | None:
    """Return the snapshot of the producers before the first log."""
    name = segment_file_name(logs[0].base_offset, SNAPSHOT_SUFFIX) if logs else ""
    return read_unmarked(name, dir_fd=held)[0] if name in names else None


def _read_metadata_files(held: int, names: Sequence[str]) -> dict[str, bytes]:
    """Return the newest snapshot of the metadata log, and the state of its quorum."""
    snapshots = sorted(name for name in names if is_metadata_snapshot(name))
    kept = [*snapshots[-1:], *([QUORUM_STATE] if QUORUM_STATE in names else [])]
    return {name: read_unmarked(name, dir_fd=held)[0] for name in kept}


def _refuse_changes(
    held: int,
    path: str,
    before: os.stat_result,
    names: Sequence[str],
    logs: Sequence[CutLog],
    looked_ns: int,
) -> None:
    """Raise `_ChangedError` if the directory is not what it was before its files were looked at."""
    named = os.stat(path)
    if (named.st_dev, named.st_ino) != (before.st_dev, before.st_ino):
        raise _ChangedError("the directory was replaced")
    if named.st_ctime_ns != before.st_ctime_ns:
        raise _ChangedError("its files changed")
    if looked_ns - before.st_ctime_ns > _TICK_NS:
        return
    if sorted(os.listdir(held)) != sorted(names):
        raise _ChangedError("its files changed")
    for log in logs:
        now = os.stat(os.path.basename(log.path), dir_fd=held)
        if (now.st_dev, now.st_ino) != (log.device, log.inode):
            raise _ChangedError("a log was replaced")


def _settle(after: CutPartition, before: CutPartition | None) -> None:
    """Say of each log how much of it was there before anything was cut."""
    if before is None or before.topic_id != after.topic_id:
        return
    sizes = {(log.device, log.inode): log.settled_bytes for log in before.logs}
    for log in after.logs:
        settled = sizes.get((log.device, log.inode), 0)
        log.settled_bytes = settled if settled <= log.size_bytes else 0
