"""Publishing: how finished index files appear where a broker will read them.

The one rule: a broker rebuilds a segment that has no ``.index`` and trusts a segment that has it
(LogLoader.loadSegmentFiles, LogSegment.sanityCheck), and silently makes an empty ``.timeindex``
where only that one is missing. So an ``.index`` may exist only beside the files it belongs to::

    all scratch files of the group      data made durable (one sync for many files)
    each segment    old .index          removed: from here on the broker would rebuild
                    .timeindex, ...     renamed into place
                    .index              renamed into place: from here on the broker trusts it
    all touched folders                 entries made durable (again one sync for many)

A killed process leaves one of these states. So does a power cut, which may undo a tail of the
steps but not one from their middle: ext4, XFS and btrfs commit the changes of one folder's
entries in the order in which they were made, and NFS makes each durable before it answers. On a
file system without that promise (ext2, FAT) only the killed process is covered.

In an object store a file is put whole under its name, and in HDFS written aside, closed and
renamed; each is durable before the next one is written, in the same order.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache

from kafka_index.core.errors import InputError, KafkaIndexError, PublishError, StagedFileGoneError
from kafka_index.core.format.names import OFFSET_INDEX_SUFFIX, SWAP_SUFFIX
from kafka_index.core.fs.durable_files import make_durable, publish_error
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import DirectoryEntry
from kafka_index.core.fs.uris import OBJECT_SCHEMES, scheme_of

#: Stands for the name of a data file, which is known once its rows are.
ROWS = "rows"
# Only names this package gives: sweeping must never remove another program's file.
_SCRATCH = re.compile(
    r"\.(?P<final>\.?[0-9]{20}\.[A-Za-z.-]+|leader-epoch-checkpoint|\.partition\.kafka-index|rows)"
    r"\.(?P<run>[A-Za-z0-9_]+)\.(?P<attempt>[A-Za-z0-9_]+)\.tmp"
)
_NEW_FILE_MODE = 0o666


def scratch_path(final_path: str, run_id: str, attempt_id: str) -> str:
    """Return the scratch file's path for a file of a segment, or a data file.

    The name of the file starts with the 20 digits of a base offset, after a dot or not, or is that
    of the leader epochs' checkpoint, or `ROWS`. Ids have letters, digits and underscores, and two
    attempts at one file never share both. Raises `ValueError` for another form, because a sweep
    would not find the file again.
    """
    directory, name = os.path.split(final_path)
    scratch_name = f".{name}.{run_id}.{attempt_id}.tmp"
    match = _SCRATCH.fullmatch(scratch_name)
    if match is None or match.groups() != (name, run_id, attempt_id):
        raise ValueError(f"cannot make a scratch name of {name!r}, {run_id!r}, {attempt_id!r}")
    return os.path.join(directory, scratch_name)


def is_scratch(name: str) -> bool:
    """Return whether a file name (no path) is that of a scratch file."""
    return _SCRATCH.fullmatch(name) is not None


def create_scratch(path: str, *, attributes_of: str | None) -> int:
    """Create a scratch file and return its descriptor, open for reading and writing.

    A leftover of the same attempt is replaced. The file takes the mode and owner of the log in
    `attributes_of` (in place). Raises `PublishError` if the file cannot be created, or the owner
    cannot be set; no file is left.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        try:
            descriptor = os.open(path, flags, _NEW_FILE_MODE)
        except FileExistsError:
            os.unlink(path)
            descriptor = os.open(path, flags, _NEW_FILE_MODE)
        except FileNotFoundError:
            # The first file of a partition in the workspace of this process.
            os.makedirs(os.path.dirname(path), exist_ok=True)
            descriptor = os.open(path, flags, _NEW_FILE_MODE)
    except OSError as error:
        raise publish_error(error, path, "create a file") from error
    try:
        if attributes_of is not None:
            take_attributes(descriptor, attributes_of)
    except BaseException:
        os.close(descriptor)
        remove_scratch(path)
        raise
    return descriptor


def write_scratch(path: str, data: bytes | memoryview, *, attributes_of: str | None) -> None:
    """Write a whole scratch file (see `create_scratch`), durable only once published.

    Raises `PublishError` if it cannot be created or written; no file is left.
    """
    descriptor = create_scratch(path, attributes_of=attributes_of)
    try:
        view = memoryview(data).cast("B")
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError as error:
        remove_scratch(path)
        raise publish_error(error, path, "write a file") from error
    finally:
        os.close(descriptor)


def take_attributes(target: int | str, log_path: str) -> None:
    """Give a file (descriptor or path) the mode and owner of a log, where they differ.

    Raises `PublishError`, which names both owners, if this user may not.
    """
    try:
        wanted, found = os.stat(log_path), os.stat(target)
    except OSError as error:
        raise publish_error(error, log_path, "look at mode and owner of the log") from error
    owner, had = (wanted.st_uid, wanted.st_gid), (found.st_uid, found.st_gid)
    place = log_path if isinstance(target, int) else target
    if owner != had:
        try:
            os.chown(target, *owner)
        except OSError as error:
            raise PublishError(
                f"cannot give a new file the owner of its log: {error.strerror}",
                path=place,
                expected=f"{owner[0]}:{owner[1]}",
                found=f"{had[0]}:{had[1]}",
                hint="run as the broker's user or as root, or use --output",
            ) from error
    # After chown, which may clear mode bits.
    mode = stat.S_IMODE(wanted.st_mode)
    if mode != stat.S_IMODE(found.st_mode) or owner != had:
        try:
            os.chmod(target, mode)
        except OSError as error:
            raise publish_error(error, place, "give a new file the mode of its log") from error


def remove_scratch(path: str) -> None:
    """Remove a scratch file after a failure, if it is there and can be removed.

    Best effort: the failure that led here is the one to report, and what stays is swept.
    """
    with suppress(OSError):
        os.unlink(path)


def sweep(directories: Iterable[str], *, run_id: str | None) -> int:
    """Remove scratch files left in these folders, but not below them; return their number.

    Call it while holding the target's lock: then no other run's files can be in use. A folder that
    does not exist is empty. With a run id, only the files of that run are removed. Raises
    `PublishError` if a folder cannot be read or a file cannot be removed.
    """
    removed = 0
    for directory in directories:
        try:
            with os.scandir(directory) as entries:
                names = [entry.name for entry in entries]
        except FileNotFoundError:
            continue
        except OSError as error:
            raise publish_error(error, directory, "sweep the folder") from error
        for name in names:
            match = _SCRATCH.fullmatch(name)
            if match is None or (run_id is not None and match["run"] != run_id):
                continue
            path = os.path.join(directory, name)
            try:
                os.unlink(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise publish_error(error, path, "remove a leftover file") from error
            removed += 1
    return removed


@contextmanager
def swept_target(
    target_root: str | None, partition_directories: Sequence[str], *, run_id: str
) -> Iterator[None]:
    """Remove scratch files from a run's target before and after the run.

    Enter it while holding the target's lock: no other run is at work then, so that leftovers are
    those of a killed one. Without a target root the partition directories are swept, in place. An
    output in an object store or HDFS has a staging directory instead. The folders that the run has
    made and left empty are removed. Raises the errors of `sweep`.
    """
    if target_root is not None and not store_of(target_root).stages_beside:
        yield
        return
    before = list(partition_directories) if target_root is None else _folders_in(target_root)
    sweep(before, run_id=None)
    try:
        yield
    finally:
        after = before if target_root is None else _folders_in(target_root)
        sweep(after, run_id=run_id)
        for directory in set(after).difference(before):
            with suppress(OSError):  # not empty
                os.rmdir(directory)


def _folders_in(root: str) -> list[str]:
    with os.scandir(root) as entries:
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


# Segments whose files are put at a time; the files of each are in memory.
_PUTS_AT_A_TIME = 8
_OFFSET_INDEX_NAMES = (OFFSET_INDEX_SUFFIX, OFFSET_INDEX_SUFFIX + SWAP_SUFFIX)


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A finished scratch file and the path it is to have, in the same folder if that is local."""

    scratch_path: str
    final_path: str

    def __post_init__(self) -> None:
        """Refuse a rename that would not be one."""
        if os.path.dirname(self.scratch_path) != os.path.dirname(self.final_path) and (
            store_of(self.final_path).stages_beside
        ):
            raise ValueError(f"not in one folder: {self.scratch_path}, {self.final_path}")


@dataclass(frozen=True, slots=True)
class Publication:
    """Files of one folder, ready to be published: those of a segment, or others.

    They appear in this order, the ``.index`` of a segment last, and get the mode and owner of the
    log `attributes_of`, which a build in place gives. Files other than those of a segment are whole
    on their own, and nothing is removed before they appear. `is_new`: no other run has left
    anything of the segment, and nothing is removed first. `is_shared`: another attempt may publish
    the same scratch files, even at the same moment.
    """

    files: tuple[StagedFile, ...]
    attributes_of: str | None = None
    is_segment: bool = False
    is_new: bool = False
    is_shared: bool = False

    def __post_init__(self) -> None:
        """Refuse an order in which a crash would leave files that contradict each other."""
        indexes = [f.final_path.endswith(_OFFSET_INDEX_NAMES) for f in self.files]
        if self.is_segment and (not indexes or not indexes[-1] or any(indexes[:-1])):
            raise ValueError("the .index must be among the files of a segment, once, and last")

    @property
    def removed_first(self) -> str | None:
        """The old ``.index`` of a segment, removed before the files appear; None for no file."""
        index = self.files[-1].final_path
        # A swapped log without its index gets one of zeros when a broker starts
        # (LogLoader.load asks it for its next offset): there the old index stays until the
        # new one replaces it.
        is_removed = self.is_segment and not self.is_new and not index.endswith(SWAP_SUFFIX)
        return index if is_removed else None

    @property
    def directory(self) -> str:
        """The folder of all files."""
        return os.path.dirname(self.files[0].final_path)


def publish_group(publications: Sequence[Publication]) -> list[PublishError | None]:
    """Publish the finished files of several segments, durably.

    Returns None or an error for each publication, in order: None when its files are in place and
    durable. After an error the segment has either no ``.index`` or a whole one, old or new, and its
    scratch files are gone, unless another attempt may need them. One segment's error leaves the
    others alone.
    """
    if not all(store_of(each.directory).stages_beside for each in publications):
        return list(_stores_requests().map(_put_in_store, publications))
    errors: list[PublishError | None] = [_prepare(each) for each in publications]
    undurable = make_durable(
        staged.scratch_path
        for each, error in zip(publications, errors, strict=True)
        if error is None
        for staged in each.files
    )
    for number, each in enumerate(publications):
        if errors[number] is None:
            errors[number] = _first_failure(each, undurable) or _put_in_place(each)
        if errors[number] is not None and not each.is_shared:
            for staged in each.files:
                remove_scratch(staged.scratch_path)
    # Also the folders of failed segments: an old .index may have been removed there.
    folders = {each.directory: _folders(each) for each in publications}
    undurable = make_durable(path for paths in folders.values() for path in paths)
    for number, each in enumerate(publications):
        for path in folders[each.directory]:
            if errors[number] is None and path in undurable:
                errors[number] = publish_error(undurable[path], path, "make the folder durable")
    return errors


def _put_in_store(publication: Publication) -> PublishError | None:
    """Put each file whole, in the order in which local ones would be renamed."""
    directory = publication.directory
    store = store_of(directory)
    try:
        # Where another attempt has just put them in place, its .index must stay.
        contents = [_content_of(staged) for staged in publication.files]
        if publication.removed_first is not None:
            store.delete([publication.removed_first])
        for staged, content in zip(publication.files, contents, strict=True):
            store.put(staged.final_path, content)
    except PublishError as error:
        return error
    except KafkaIndexError as error:
        return PublishError(error.message, path=error.path or directory, hint=error.hint)
    finally:
        for staged in publication.files:
            if store_of(staged.scratch_path).stages_beside:
                remove_scratch(staged.scratch_path)
    return None


def _content_of(staged: StagedFile) -> bytes:
    try:
        return store_of(staged.scratch_path).read(staged.scratch_path)
    except FileNotFoundError as error:
        raise _gone(staged) from error
    except InputError as error:
        raise PublishError(
            f"cannot read the finished file: {error.message}", path=staged.scratch_path
        ) from error


@cache
def _stores_requests() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_PUTS_AT_A_TIME, thread_name_prefix="publish")


def _prepare(publication: Publication) -> PublishError | None:
    """Set mode and owner before anything is visible."""
    for staged in publication.files:
        try:
            if publication.attributes_of is not None:
                take_attributes(staged.scratch_path, publication.attributes_of)
            elif not os.path.exists(staged.scratch_path):
                return _gone(staged)
        except PublishError as error:
            return error
    return None


def _gone(staged: StagedFile) -> PublishError:
    return StagedFileGoneError(
        "the finished file is gone before it was published",
        path=staged.scratch_path,
        hint="is another run writing to the same target?",
    )


def _first_failure(publication: Publication, failures: dict[str, OSError]) -> PublishError | None:
    for staged in publication.files:
        failure = failures.get(staged.scratch_path)
        if isinstance(failure, FileNotFoundError):
            return _gone(staged)
        if failure is not None:
            return publish_error(failure, staged.final_path, "make the file durable")
    return None


def _put_in_place(publication: Publication) -> PublishError | None:
    path = publication.directory
    try:
        if publication.removed_first is not None:
            found = [os.stat(path := staged.scratch_path) for staged in publication.files]
            path = publication.removed_first
            _remove_old(path, found[-1], publication.files[-1].scratch_path)
        for staged in publication.files:
            path = staged.final_path
            os.replace(staged.scratch_path, path)
    except OSError as error:
        for staged in publication.files:
            if isinstance(error, FileNotFoundError) and not os.path.exists(staged.scratch_path):
                return _gone(staged)
        return publish_error(error, path, "put the file in place")
    return None


def _remove_old(path: str, new: os.stat_result, scratch_path: str) -> None:
    """Remove an old ``.index``, but not the new one, which another attempt may have put there."""
    # Looked at under a scratch name that nobody else uses, where it is not replaced meanwhile.
    aside = f"{scratch_path.removesuffix('.tmp')}_{os.urandom(4).hex()}.tmp"
    with suppress(FileNotFoundError):
        os.rename(path, aside)
        if os.path.samestat(os.stat(aside), new):
            os.rename(aside, path)
        else:
            os.unlink(aside)


def left_to_publish(publication: Publication) -> Publication | None:
    """Return the publication if an interrupted attempt has published nothing of the segment.

    None means that nothing waits: all of it was published, or it was given up.
    """
    if not store_of(publication.files[0].scratch_path).stages_beside:
        # Objects are copied, and not renamed: those of another attempt are put again.
        return publication
    left = tuple(file for file in publication.files if os.path.exists(file.scratch_path))
    if left and left[-1] == publication.files[-1]:
        return replace(publication, files=left)
    return None


def _folders(publication: Publication) -> tuple[str, ...]:
    """Return the folders whose entries changed: a target folder may itself be new."""
    directory = publication.directory
    if publication.attributes_of is not None:
        return (directory,)
    return (directory, os.path.dirname(directory))


class TargetFiles:
    """The files of a target folder; one of a store is listed once in a run, when asked for."""

    def __init__(self, directory: str, run_id: str) -> None:
        self.directory = directory
        self._store = store_of(directory)
        self._run_id = run_id

    def exists(self, path: str) -> bool:
        """Return whether there is a file."""
        if self._store.needs_requests:
            return path in self._listed
        return os.path.exists(path)

    def holds(self, path: str, data: bytes) -> bool:
        """Return whether there is a file with these bytes."""
        try:
            needs_requests = self._store.needs_requests
            found = self._listed.get(path) if needs_requests else self._store.info(path)
            is_as_long = found is not None and found.size_bytes == len(data)
            return is_as_long and self._store.read(path) == data
        except (OSError, KafkaIndexError):
            # It is about to be replaced; whatever is wrong there shows then.
            return False

    @cached_property
    def _listed(self) -> dict[str, DirectoryEntry]:
        if is_new_folder(self.directory, self._run_id):
            return {}
        found = self._store.list_directory(self.directory)
        return {entry.path: entry for entry in found if not entry.is_directory}


def is_new_folder(directory: str, run_id: str) -> bool:
    """Return whether a folder of an object store was not there when the run began to look.

    One listing answers this for all folders of a target, and saves requests for files that cannot
    exist.
    Whatever is there by now, an attempt of the same run has put: no other run holds the target.
    """
    if scheme_of(directory) not in OBJECT_SCHEMES:
        return False
    root, name = os.path.split(directory)
    try:
        # Threads begin together, and one of them lists.
        with _listing:
            return name not in _folders_before(root, run_id)
    except KafkaIndexError:
        # Whatever is wrong there shows when something is written.
        return False


_listing = threading.Lock()


@lru_cache(4)
def _folders_before(root: str, run_id: str) -> frozenset[str]:
    del run_id
    found = store_of(root).list_directory(root)
    return frozenset(os.path.basename(entry.path) for entry in found if entry.is_directory)
