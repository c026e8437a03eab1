"""The files of an output, each durable: at its root, in its partitions, and logs of the dump.

An unfinished restore has no ``meta.properties``, without which no broker starts, and no clean
shutdown file. Both are written before the logs, under hidden names, and renamed at the end
(`LastFiles`).

Logs are cloned, copied or linked; the dump is only read. A clone (reflink) shares the blocks of its
source until one of the two is written. A hard link is the same file: a broker that truncates it
truncates the log of the dump.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress

from kafka_index.commands.restore.request import Link
from kafka_index.core.errors import InputError
from kafka_index.core.format.checkpoints import format_offset_checkpoint
from kafka_index.core.format.names import (
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    LOG_SUFFIX,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    TopicPartition,
)
from kafka_index.core.fs.durable_files import (
    AtomicFile,
    clone_file,
    publishing,
    sync,
)
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import Bytes, ByteSource
from kafka_index.core.log.scan.file_records import log_changed, open_log
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.output.output import LastFiles

#: In this order, after everything else: with the first a broker starts, with the last it trusts
#: the logs.
_LAST = (META_PROPERTIES, CLEAN_SHUTDOWN)
_COPY_BYTES = 64 << 20
_NO_RANGE_COPIES = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
_NO_LINKS = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP})
_PROBE = "probe"


def make_directory(path: str) -> None:
    """Make a directory, if it is missing."""
    with publishing(path, "make the directory"):
        os.makedirs(path, exist_ok=True)


def write_checkpoints(
    output: str,
    ends: Mapping[TopicPartition, int],
    log_starts: Mapping[TopicPartition, int],
    cleaned: Mapping[TopicPartition, int],
) -> None:
    """Write the checkpoints at the root, durably."""
    for name, offsets in (
        (RECOVERY_POINT_CHECKPOINT, ends),
        (REPLICATION_CHECKPOINT, ends),
        (LOG_START_CHECKPOINT, log_starts),
        (CLEANER_CHECKPOINT, cleaned),
    ):
        if offsets or name != CLEANER_CHECKPOINT:
            write_durably(os.path.join(output, name), format_offset_checkpoint(offsets).encode())
    sync_directory(output)


def last_files(output: str) -> LastFiles:
    """Return the files by which a broker starts on an output, and trusts its logs."""
    return LastFiles(output, _LAST)


def disable_startup(output: str, properties: Mapping[str, str], broker_epoch: int) -> None:
    """Hide what lets a broker start, durably; it stays ready for the end of the restore."""
    last = last_files(output)
    last.hide()
    if properties and not os.path.exists(last.hidden(META_PROPERTIES)):
        text = "".join(f"{name}={value}\n" for name, value in sorted(properties.items()))
        write_durably(last.hidden(META_PROPERTIES), text.encode())
    text = f'{{"version":0,"brokerEpoch":{broker_epoch}}}'
    write_durably(last.hidden(CLEAN_SHUTDOWN), text.encode())
    sync_directory(output)


def write_durably(path: str, data: bytes) -> None:
    """Write a complete file, durably."""
    with AtomicFile(path) as file:
        file.write(data)
        file.commit()


def sync_directory(path: str) -> None:
    """Make the entries of a directory durable."""
    sync([path], "make the directory durable")


def write_partition_metadata(directory: str, topic_id: str) -> None:
    """Write the topic id of a partition."""
    path = os.path.join(directory, PARTITION_METADATA)
    with (
        publishing(path, "write the partition metadata"),
        open(path, "w", encoding="ascii", newline="") as file,
    ):
        file.write(f"version: 0\ntopic_id: {topic_id}")


def remove_build_files(directory: str) -> None:
    """Remove the files of a partition that only a build needs."""
    with publishing(directory, "remove a file of the build"):
        for name in os.listdir(directory):
            if name.startswith("."):
                os.unlink(os.path.join(directory, name))


def choose_link(link: Link, sample: SegmentFile, staging: str) -> Link:
    """Return the way logs get into the output, after a trial with one of them."""
    if link is Link.COPY:
        return link
    probe = os.path.join(staging, _PROBE)
    try:
        if not store_of(sample.log_path).has_links:
            works = False
        elif link is Link.HARD:
            works = _link(sample.log_path, probe)
        else:
            works = _clone(sample.log_path, probe)
    finally:
        _remove(probe)
    if works:
        return Link.HARD if link is Link.HARD else Link.REFLINK
    if link is Link.AUTO:
        return Link.COPY
    raise InputError(
        f"the input cannot be taken over with --link {link}",
        path=sample.log_path,
        expected="input and output on one file system"
        + (" that shares blocks (XFS, btrfs)" if link is Link.REFLINK else ""),
        hint="use --link auto or --link copy",
    )


def copy_or_link(segment: SegmentFile, target: str, link: Link) -> None:
    """Make the log of a segment a file of the output, with its modification time."""
    _remove(target)
    is_rolled = not segment.is_last and segment.log_path.endswith(LOG_SUFFIX)
    with closing(_open_listed(segment)) as source:
        is_linked = link is Link.HARD and is_rolled and _link(segment.log_path, target)
        if is_linked or (link is Link.REFLINK and _clone(segment.log_path, target)):
            pass
        elif store_of(segment.log_path).needs_requests:
            write_log(target, source.stream())
        else:
            _copy(segment.log_path, target, segment.log_size_bytes)
        how = None if segment.log_version else source.changed()
        if how is not None:
            raise log_changed(segment.log_path, how)
    # A link is the file of the dump, and has its time.
    if not is_linked and not store_of(segment.log_path).needs_requests:
        _take_time(target, segment.log_mtime_ns)


def _open_listed(segment: SegmentFile) -> ByteSource:
    """Open a log that was listed; if it is gone, the dump is changing."""
    path = segment.log_path
    try:
        return open_log(path, segment)
    except InputError:
        if store_of(path).needs_requests or os.path.lexists(path):
            raise
        raise log_changed(path, "it was removed after it was listed") from None


def own_copy(path: str) -> None:
    """Replace a link to a log of the dump by a copy."""
    if _is_own(os.lstat(path)):
        return
    aside = f"{path}.copy"
    found = os.stat(path)
    _copy(path, aside, found.st_size)
    _take_time(aside, found.st_mtime_ns)
    with publishing(path, "replace a link"):
        os.replace(aside, path)


def truncate_log(path: str, size_bytes: int) -> None:
    """Truncate a log of the output, never one of the dump."""
    own_copy(path)
    mtime_ns = os.stat(path).st_mtime_ns
    with (
        publishing(path, "cut the copy of a log"),
        open(path, "r+b", opener=_open_unlinked) as file,
    ):
        file.truncate(size_bytes)
    _take_time(path, mtime_ns)


def _is_own(info: os.stat_result) -> bool:
    return stat.S_ISREG(info.st_mode) and info.st_nlink == 1


def _open_unlinked(path: str, flags: int) -> int:
    """Open a log for writing; never through a link, which may lead to the dump."""
    opened = os.open(path, flags | os.O_NOFOLLOW)
    if not _is_own(os.fstat(opened)):
        os.close(opened)
        raise OSError(errno.EMLINK, "the file has another name", path)
    return opened


def _link(source: str, target: str) -> bool:
    with publishing(target, "link a log"):
        try:
            # A log may be a symbolic link, which is not followed otherwise.
            os.link(os.path.realpath(source), target)
        except OSError as error:
            if error.errno in _NO_LINKS:
                return False
            raise
    return True


def _clone(source: str, target: str) -> bool:
    with publishing(target, "clone a log"):
        return clone_file(source, target)


def _copy(source: str, target: str, size_bytes: int) -> None:
    with publishing(target, "copy a log"), open(source, "rb") as old, open(target, "wb") as new:
        done = 0
        while done < size_bytes:
            wanted = min(_COPY_BYTES, size_bytes - done)
            moved = _copy_range(old.fileno(), new.fileno(), wanted, done)
            if moved == 0:
                break
            done += moved


def _copy_range(old: int, new: int, size_bytes: int, offset: int) -> int:
    try:
        return os.copy_file_range(old, new, size_bytes, offset, offset)
    except OSError as error:
        if error.errno not in _NO_RANGE_COPIES:
            raise
    os.lseek(new, offset, os.SEEK_SET)
    return os.sendfile(new, old, offset, size_bytes)


def write_log(target: str, pieces: Iterable[Bytes]) -> None:
    """Write a log of the output."""
    with publishing(target, "copy a log"), open(target, "wb") as new:
        new.writelines(piece.data for piece in pieces)


def _take_time(path: str, mtime_ns: int) -> None:
    # Retention goes by it where a segment has no timestamps.
    with publishing(path, "set the modification time"):
        os.utime(path, ns=(mtime_ns, mtime_ns))


def _remove(path: str) -> None:
    with publishing(path, "replace a file"), suppress(FileNotFoundError):
        os.unlink(path)
