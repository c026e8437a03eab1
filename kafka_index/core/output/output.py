"""An output: locked, staged, published, and described for later runs.

However a run ends, its output has either the old files or the complete new files. A run takes these
steps:

    refuse     an output that is an input, lies in an input, or contains one
    lock       the output, against brokers and other runs
    sweep      staging directories of killed runs: nothing uses them while the lock is held
    begin      write a state file that marks the run as unfinished
    stage      files and directories where a rename can publish them
    publish    each unit, once all of its files are durable
    clean      the staging directory
    finish     write a state file that marks the run as finished: the same command does nothing

The same command continues an unfinished run.

Partition directories are staged in the data directory itself, since a rename does not cross file
systems. The staging directory is named ``kafka-index-0.<id>-delete``. A broker that starts on the
output of a killed run treats it as a partition that was being deleted, and removes it
(``LogManager.loadLog``). Any other name would keep the broker from starting
(``UnifiedLog.parseTopicPartitionName``).

An output that is a file, or a directory of parts, is staged in ``.NAME.<id>.tmp`` next to it. On
the local disk and in HDFS, a rename publishes it. Object stores have no rename: the parts are
copied on the server. ``_SUCCESS`` is written last. A directory of parts without it is from a killed
run, and the next run replaces it. In a store, an output that is a file or a directory of parts has
no lock: if two runs write to it, one run removes the parts of the other.

`kafka_index.core.output.publish` publishes the files of a segment.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import asdict, dataclass
from typing import Any, Generic, Self, TypeVar, cast

from kafka_index.core.errors import InputError, KafkaIndexError, PublishError, is_retriable
from kafka_index.core.format.names import LOG_SUFFIX, TopicPartition
from kafka_index.core.format.state_files import decode_state
from kafka_index.core.fs.durable_files import (
    exchange,
    make_durable,
    publish_error,
    publishing,
    sync,
)
from kafka_index.core.fs.paths import local_path, refuse_overlap
from kafka_index.core.fs.registry import atomic_file, scan_directory, store_of
from kafka_index.core.output.locks import RUNS_FOLDER, DirectoryLock, StoreLock

State = TypeVar("State")
#: Called with the sizes in bytes of the files to publish, by path.
Announce = Callable[[Mapping[str, int]], None]

#: The file that Spark writes into a complete folder.
SUCCESS = "_SUCCESS"
#: The names of staging directories in a data directory.
STAGING = re.compile(r"kafka-index-0\.[0-9a-f]{32}-delete")
# This file distinguishes a staging directory from the directory of a deleted topic with the same
# name.
_STAGING_FILE = ".kafka-index"
_ANY_NAME = re.compile(r".*")
# Suffix of an old output that is being replaced.
_OLD_SUFFIX = ".old"
# Attempts to remove a directory: Spark tasks of a killed run may still write and remove files in
# it.
_MAX_ATTEMPTS = 100
_LOGGER = logging.getLogger(__name__)

#: The logs of a partition directory: name, size and modification time.
Signature = tuple[tuple[str, int, int], ...]


def _announce_nothing(_sizes: Mapping[str, int]) -> None:
    pass


@dataclass(frozen=True, slots=True)
class StateFile(Generic[State]):
    """A small file that describes an output for later runs; it is replaced atomically.

    The file contains a dataclass and a version as JSON. A file with other content is rejected with
    `hint`, or treated as missing if `hint` is None.
    """

    path: str
    state_type: type[State]
    version: int = 1
    what: str = "state file"
    hint: str | None = None

    def read(self) -> State | None:
        """Return the state; None if the file is missing."""
        try:
            data = store_of(self.path).read(self.path)
        except FileNotFoundError:
            return None
        except KafkaIndexError as error:
            if self.hint is not None or is_retriable(error):
                raise
            return None
        state = decode_state(data, self.state_type, self.version)
        if state is None and self.hint is not None:
            raise InputError(
                f"this version cannot read the {self.what}", path=self.path, hint=self.hint
            )
        return state

    def write(self, state: State, *, durable: bool = True) -> None:
        """Write the state; raises `PublishError` if that fails."""
        text = json.dumps({"version": self.version, **asdict(cast("Any", state))}, sort_keys=True)
        with atomic_file(self.path, noun=self.what) as file:
            file.write(f"{text}\n".encode())
            file.commit(durable=durable)
        if durable:
            folder = os.path.dirname(self.path)
            store_of(folder).make_durable([folder], f"make the {self.what} durable")

    def remove(self) -> None:
        """Remove the file if it exists."""
        store_of(self.path).delete([self.path])


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The run that writes or has written an output.

    `inputs` is a digest of the inputs and settings that determine the output. A command with the
    same digest continues an unfinished run, and does not repeat a finished one.
    """

    inputs: str
    is_finished: bool = False


class Output:
    """An output that is locked against other runs and brokers while a run writes to it.

    A context manager around the run, in the driver. On entry, the directory is created and locked,
    and staging directories of killed runs are removed. On exit, unpublished files are removed.
    `root` is an absolute path or a URI. `staging` is the path of the staging directory, which
    `make_staging` creates. Raises `InputError` if the output overlaps an input, and `PublishError`
    if the output cannot be created, written or locked.
    """

    def __init__(
        self,
        root: str,
        lock: AbstractContextManager[object],
        staging: str,
        *,
        leftovers: re.Pattern[str] | None = _ANY_NAME,
        directory: str | None = None,
    ) -> None:
        self.root = root
        self._directory = root if directory is None else directory
        self.staging = staging
        self._lock = lock
        self._leftovers = leftovers
        self._is_handed_over = False
        self._stack = ExitStack()

    @classmethod
    def for_tables(
        cls,
        root: str,
        output_option: str,
        inputs: Iterable[str],
        run_id: str,
        *,
        hint: str = "choose another --output",
    ) -> Self:
        """Return an output of data or index files, which no broker opens.

        `output_option` is the output as the user wrote the option. `inputs` are paths and globs.
        `hint` is the hint of the error if the output overlaps an input.
        """
        refuse_overlap(root, output_option, inputs, hint=hint)
        is_locked = store_of(root).has_locks
        lock = DirectoryLock.for_output(root) if is_locked else StoreLock(root, run_id)
        return cls(root, lock, f"{root}/{RUNS_FOLDER}/{run_id}")

    @classmethod
    def for_data_directory(
        cls,
        output_option: str,
        inputs: Iterable[str] = (),
        *,
        extra_directories: Iterable[str] = (),
        staging: str | None = None,
    ) -> Self:
        """Return a data directory as output, with the lock that a broker uses.

        The output is a local directory, whose links are resolved. `extra_directories` are further
        data directories to lock. `staging` is a staging directory that another process got from
        `hand_over`.
        """
        root = os.path.realpath(local_path(output_option))
        refuse_overlap(root, output_option, inputs, hint="choose another --output")
        lock = DirectoryLock.for_data_directories([root, *extra_directories])
        if staging is not None:
            return cls(root, lock, staging, leftovers=None)
        new_staging = os.path.join(root, f"kafka-index-0.{uuid.uuid4().hex}-delete")
        return cls(root, lock, new_staging, leftovers=STAGING)

    @classmethod
    def for_path(cls, path: str, output_option: str, inputs: Iterable[str]) -> Self:
        """Return an output that is a file, or a directory that is published atomically."""
        refuse_overlap(path, output_option, inputs)
        folder, name = os.path.split(path)
        lock: AbstractContextManager[object] = nullcontext()
        if store_of(path).has_locks:
            lock = DirectoryLock([folder], file_name=f".{name}.kafka-index.lock")
        return cls(
            path,
            lock,
            os.path.join(folder, f".{name}.{os.urandom(8).hex()}.tmp"),
            leftovers=re.compile(rf"\.{re.escape(name)}\.[0-9a-f]{{16}}\.tmp(?:{_OLD_SUFFIX})?"),
            directory=folder,
        )

    def __enter__(self) -> Self:
        """Create and lock the output; remove staging directories of killed runs."""
        store_of(self._directory).make_writable_directory(self._directory)
        with ExitStack() as stack:
            stack.enter_context(self._lock)
            for path in self._list_leftovers():
                if path.endswith(_OLD_SUFFIX) and not os.path.lexists(self.root):
                    # A run was killed while it replaced the output: move the old output back.
                    store_of(path).rename(path, self.root)
                else:
                    remove_directory(path)
            stack.callback(self._discard_staging)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove unpublished files, and unlock the output."""
        self._stack.close()

    def make_staging(self) -> str:
        """Create the staging directory; return its path."""
        store_of(self.staging).make_directory(self.staging)
        if self._leftovers is STAGING:
            path = os.path.join(self.staging, _STAGING_FILE)
            with publishing(path, "create the directory"), open(path, "a", encoding="ascii"):
                pass
        return self.staging

    def hand_over(self) -> str:
        """Create the staging directory for another process, which publishes its content."""
        self._is_handed_over = True
        return self.make_staging()

    def remove_staging(self) -> None:
        """Remove the staging directory with unpublished and replaced files."""
        remove_directory(self.staging)

    def publish_file(self, staged: str, announce: Announce = _announce_nothing) -> None:
        """Rename a durable file in the staging directory to the output.

        `announce` is called with the size of the output before the rename.
        """
        store = store_of(self.root)
        announce({self.root: store.info(staged).size_bytes})
        store.rename(staged, self.root)
        store.make_durable([self._directory], "make the output durable")

    def publish_folder(
        self, names: Collection[str], announce: Announce = _announce_nothing
    ) -> None:
        """Publish durable files of the staging directory as a folder, ``_SUCCESS`` last.

        Other files of the staging directory are from abandoned attempts. `announce` is called with
        the sizes of all files of the output before the first one is published.
        """
        store, staging = store_of(self.root), self.staging
        ready = {entry.name: entry.info().size_bytes for entry in scan_directory(staging)}
        if store.has_rename:
            store.delete([f"{staging}/{name}" for name in ready if name not in names])
            store.put(f"{staging}/{SUCCESS}", b"")
            store.make_durable([staging], "make the output durable")
        sizes = {f"{self.root}/{name}": ready[name] for name in names}
        announce({**sizes, f"{self.root}/{SUCCESS}": 0})
        if not store.stages_locally:
            old_names = {
                entry.name for entry in scan_directory(self.root) if entry.path != self.root
            }
            # Remove _SUCCESS first, so that readers see that the folder is incomplete.
            store.delete([f"{self.root}/{SUCCESS}"] if SUCCESS in old_names else [])
            if store.has_rename:
                store.delete([f"{self.root}/{name}" for name in old_names - {SUCCESS}])
                store.rename(staging, self.root)
                return
            for name in names:
                store.rename(f"{staging}/{name}", f"{self.root}/{name}")
            store.delete([f"{self.root}/{name}" for name in old_names.difference(names, {SUCCESS})])
            store.put(f"{self.root}/{SUCCESS}", b"")
            return
        with publishing(self.root, "publish the output"):
            if os.path.isdir(self.root):
                _swap_directories(staging, self.root)
            else:
                os.rename(staging, self.root)
        store.make_durable([self._directory], "make the output durable")

    def _discard_staging(self) -> None:
        if not self._is_handed_over:
            try:
                self.remove_staging()
            except KafkaIndexError as error:
                _LOGGER.warning(
                    "%s; the next run with this output removes the staging directory", error
                )

    def _list_leftovers(self) -> list[str]:
        """Return the staging directories of killed runs."""
        if self._leftovers is None:
            return []
        folder = os.path.dirname(self.staging)
        return [
            entry.path
            for entry in store_of(folder).list_directory(folder)
            if entry.is_directory
            and not os.path.islink(entry.path)
            and self._leftovers.fullmatch(os.path.basename(entry.path))
            and (self._leftovers is not STAGING or _is_staging_directory(entry.path))
        ]


def _swap_directories(new_path: str, old_path: str) -> None:
    """Swap two folders of one file system, atomically if the file system supports it.

    Otherwise `old_path` does not exist for a moment. A run that is killed in this moment leaves the
    old folder under the name of the new folder with the suffix ``.old``. Raises `OSError` if the
    swap failed; `old_path` is unchanged in this case.
    """
    if exchange(new_path, old_path):
        return
    renamed_path = new_path + _OLD_SUFFIX
    os.rename(old_path, renamed_path)
    try:
        os.rename(new_path, old_path)
    except BaseException:
        os.rename(renamed_path, old_path)
        raise
    os.rename(renamed_path, new_path)


# ---------------------------------------------------------------------------- partition directories


@dataclass(frozen=True, slots=True)
class StagedPartition:
    """A staged partition directory; small and picklable.

    Attributes
    ----------
    replaces : Signature, optional
        The logs of the replaced directory; None for a new partition.
    is_shared : bool
        Another attempt may publish the same logs concurrently.
    """

    partition: TopicPartition
    directory: str
    replaces: Signature | None = None
    is_shared: bool = False


def _is_staging_directory(path: str) -> bool:
    """Return whether a directory is a staging directory; after a killed run, it may be empty."""
    return os.path.exists(os.path.join(path, _STAGING_FILE)) or not os.listdir(path)


def remove_directory(path: str) -> None:
    """Remove a directory with its content; raises `PublishError` if that fails."""
    if not store_of(path).stages_locally:
        store_of(path).delete_tree(path)
        return
    for tries_left in reversed(range(_MAX_ATTEMPTS)):
        if not os.path.lexists(path):
            return
        try:
            _remove_tree(path)
        except OSError as error:
            is_shared = error.errno in (errno.ENOENT, errno.ENOTEMPTY)
            if not is_shared or not tries_left:
                raise publish_error(
                    error, error.filename or path, "remove the directory"
                ) from error


def _remove_tree(path: str) -> None:
    if os.path.islink(path):
        # Do not follow the link: its target may belong to another program.
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    staging_file = os.path.join(path, _STAGING_FILE)
    for name in os.listdir(path):
        entry_path = os.path.join(path, name)
        if os.path.isdir(entry_path) and not os.path.islink(entry_path):
            shutil.rmtree(entry_path)
        elif entry_path != staging_file:
            os.unlink(entry_path)
    # Remove this file last: it marks a partly removed directory as a staging directory for the next
    # run.
    with suppress(FileNotFoundError):
        os.unlink(staging_file)
    os.rmdir(path)


def read_signature(directory: str) -> Signature | None:
    """Return the logs of a partition directory; None if the directory does not exist."""
    try:
        with os.scandir(directory) as entries:
            logs = sorted(entry.name for entry in entries if entry.name.endswith(LOG_SUFFIX))
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise InputError("the path of the partition is not a directory", path=directory) from error
    log_statuses = ((name, os.stat(os.path.join(directory, name))) for name in logs)
    return tuple((name, status.st_size, status.st_mtime_ns) for name, status in log_statuses)


def publish_directory(root: str, staged: StagedPartition) -> None:
    """Publish a staged partition with `publish_directories`; raise the partition's error."""
    for error in publish_directories(root, [staged]):
        if error is not None:
            raise error


def publish_directories(
    root: str, partitions: Sequence[StagedPartition]
) -> list[KafkaIndexError | None]:
    """Make staged partitions durable, and move each into the data directory atomically.

    A replaced directory is moved to the path of its staged directory. One sync makes the files of
    all partitions durable. Returns None or an error for each partition; an error does not affect
    the other partitions. Raises `PublishError` if the data directory cannot be made durable.
    """
    paths: dict[str, list[str]] = {}
    errors: list[KafkaIndexError | None] = [None] * len(partitions)
    for number, staged in enumerate(partitions):
        try:
            _check_unchanged(root, staged)
            paths[staged.directory] = _list_staged_paths(staged.directory)
        except KafkaIndexError as error:
            errors[number] = error
    failures = make_durable(path for staged_paths in paths.values() for path in staged_paths)
    for number, staged in enumerate(partitions):
        try:
            for path in paths.get(staged.directory, ()):
                if path in failures:
                    raise publish_error(failures[path], path, "make the partition durable")
            if errors[number] is None:
                _move_to_output(staged, os.path.join(root, staged.partition.directory_name))
        except KafkaIndexError as error:
            errors[number] = error
    sync([root], "make the data directory durable")
    return errors


def _check_unchanged(root: str, staged: StagedPartition) -> None:
    target = os.path.join(root, staged.partition.directory_name)
    if not staged.is_shared and read_signature(target) != staged.replaces:
        raise InputError(
            "another process changed the partition directory during this run",
            path=target,
            hint="stop the process that writes to the directory, and run again",
        )


def _list_staged_paths(directory: str) -> list[str]:
    with publishing(directory, "list a staged partition"), os.scandir(directory) as entries:
        return [
            directory,
            *(entry.path for entry in entries if entry.is_file(follow_symlinks=False)),
        ]


def _move_to_output(staged: StagedPartition, target: str) -> None:
    try:
        if staged.replaces is None:
            os.rename(staged.directory, target)
        elif not exchange(staged.directory, target):
            raise PublishError(
                "this file system cannot replace a directory atomically",
                path=target,
                hint="choose an empty --output on ext4, XFS, Btrfs or tmpfs, and move the result",
            )
    except OSError as error:
        if not (staged.is_shared and _have_same_logs(staged.directory, target)):
            raise publish_error(error, target, "publish the partition") from error


def _have_same_logs(directory: str, target: str) -> bool:
    """Return whether two directories exist, with logs of the same names and sizes."""
    logs, target_logs = read_signature(directory), read_signature(target)
    if logs is None or target_logs is None:
        return False
    return [log_version[:2] for log_version in logs] == [
        log_version[:2] for log_version in target_logs
    ]


def withdraw_directory(directory: str, staging: str) -> str:
    """Move a partition of the output into the staging directory; return the new path."""
    path = os.path.join(staging, os.path.basename(directory))
    with publishing(directory, "remove the partition"):
        os.rename(directory, path)
    return path


def make_staged_directory(path: str) -> None:
    """Create a directory in a staging directory; fails if the run has ended."""
    with publishing(path, "create the directory"), suppress(FileExistsError):
        os.mkdir(path)


# --------------------------------------------------------------------------------------- last files


@dataclass(frozen=True, slots=True)
class LastFiles:
    """Files that complete a directory: they appear last, in the order of `names`.

    Each file is first written under a hidden name, and renamed at the end: a rename succeeds even
    if the disk is full. The files of an earlier run are hidden before the directory changes.
    """

    directory: str
    names: tuple[str, ...]

    def hidden(self, name: str) -> str:
        """Return the hidden path of a file."""
        return os.path.join(self.directory, f".kafka-index.{name}.hidden")

    def hide(self) -> None:
        """Durably rename the existing files to their hidden paths, in reverse order."""
        for name in reversed(self.names):
            self._rename(os.path.join(self.directory, name), self.hidden(name))

    def publish(self) -> None:
        """Rename the hidden files to their final names, each durably."""
        for name in self.names:
            self._rename(self.hidden(name), os.path.join(self.directory, name))

    def _rename(self, path: str, new_path: str) -> None:
        with publishing(path, "rename the file"):
            try:
                os.replace(path, new_path)
            except FileNotFoundError:
                return
        sync([self.directory], "make the renamed file durable")
