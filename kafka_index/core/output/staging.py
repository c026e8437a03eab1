"""Partition directories that are written aside, and take their place by one rename.

They lie in the data directory itself, since a rename does not cross file systems, in a folder named
``kafka-index-0.<id>-delete``: a broker that starts beside what a killed run has left takes it for a
partition that was being deleted, and removes it (``LogManager.loadLog``). Any other name would keep
that broker from starting (``UnifiedLog.parseTopicPartitionName``).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from kafka_index.core.errors import InputError, PublishError
from kafka_index.core.format.names import LOG_SUFFIX, TopicPartition
from kafka_index.core.fs.durable_files import exchange, publish_error, sync

_STAGING = re.compile(r"kafka-index-0\.[0-9a-f]{32}-delete")
#: In each staging folder, so that it is not taken for a deleted topic of that name.
_MARK = ".kafka-index"
_ACTION = "make it durable"

#: The logs of a partition directory as they were: name, size and modification time.
Signature = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class StagedPartition:
    """A partition directory that waits to be published; small, and picklable.

    `replaces` are the logs of the directory that it replaces; None for a new one.
    """

    partition: TopicPartition
    directory: str
    replaces: Signature | None = None


def staging_directory(root: str) -> str:
    """Return the path of a new staging folder in a data directory; it is not made."""
    return os.path.join(root, f"kafka-index-0.{uuid.uuid4().hex}-delete")


def create_staging(path: str) -> None:
    """Make a staging folder; remove the staging folders that killed runs have left."""
    root = os.path.dirname(path)
    for leftover in _leftovers(root):
        remove_directory(leftover)
    try:
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, _MARK), "a", encoding="ascii"):
            pass
    except OSError as error:
        raise publish_error(error, path, "make a folder") from error


def _leftovers(root: str) -> Iterator[str]:
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(root)):
            path = os.path.join(root, name)
            if not _STAGING.fullmatch(name) or not os.path.isdir(path):
                continue
            # One without the mark and anything else was just being made, or removed.
            if os.path.exists(os.path.join(path, _MARK)) or not os.listdir(path):
                yield path


def remove_directory(path: str) -> None:
    """Remove a folder with its content; raises `PublishError` if that fails."""
    try:
        mark = os.path.join(path, _MARK)
        for name in os.listdir(path):
            inner = os.path.join(path, name)
            if os.path.isdir(inner) and not os.path.islink(inner):
                shutil.rmtree(inner)
            elif inner != mark:
                os.unlink(inner)
        # Last, so that what an interrupted removal leaves is still recognized.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(mark)
        os.rmdir(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise publish_error(error, error.filename or path, "remove a folder") from error


def signature_of(directory: str) -> Signature | None:
    """Return the logs of a partition directory; None when there is no such directory."""
    try:
        with os.scandir(directory) as entries:
            logs = sorted(entry.name for entry in entries if entry.name.endswith(LOG_SUFFIX))
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise InputError("not a directory", path=directory) from error
    found = [(name, os.stat(os.path.join(directory, name))) for name in logs]
    return tuple((name, status.st_size, status.st_mtime_ns) for name, status in found)


def publish_directory(root: str, staged: StagedPartition) -> None:
    """Make a staged partition durable, and give it its place in the data directory.

    Whatever kills the process meanwhile, there is the old directory or the whole new one. The
    replaced directory is left in the place of the staged one.
    """
    target = os.path.join(root, staged.partition.directory_name)
    if signature_of(target) != staged.replaces:
        raise InputError(
            "the partition was changed while its new files were written",
            path=target,
            hint="stop what writes there, and run again",
        )
    _sync_tree(staged.directory)
    try:
        if staged.replaces is None:
            os.rename(staged.directory, target)
        elif not exchange(staged.directory, target):
            raise PublishError(
                "this file system cannot replace a folder by another at one moment",
                path=target,
                hint="import into an empty folder on ext4, XFS, Btrfs or tmpfs, and move the "
                "result",
            )
    except OSError as error:
        raise publish_error(error, target, "publish the partition") from error
    sync([root], _ACTION)


def _sync_tree(directory: str) -> None:
    paths = [directory]
    with os.scandir(directory) as entries:
        paths += [entry.path for entry in entries if entry.is_file(follow_symlinks=False)]
    sync(paths, _ACTION)
