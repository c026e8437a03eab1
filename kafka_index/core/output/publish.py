"""Files of a segment: staged as scratch files, and published where a broker reads them.

A scratch file is ``.<final name>.<run id>.<attempt id>.tmp`` in the folder of the final file, so
that a rename publishes it. A broker ignores these names (``LogLoader.load`` checks the suffixes),
but it does not start if it cannot read a file
(``LogLoader.removeTempFilesAndCollectSwapFiles``). A killed run leaves scratch files. So they have
the mode and owner of the log from the beginning.

A broker rebuilds a segment without ``.index``, and trusts a segment with one
(``LogLoader.loadSegmentFiles``, ``LogSegment.sanityCheck``). It creates an empty ``.timeindex`` if
only that file is missing. So an ``.index`` may exist only next to the files that belong to it. A
group of segments is published in this order:

    all scratch files       made durable (one sync for many files)
    each segment            old ``.index`` removed: from now on, a broker would rebuild it
                            ``.timeindex`` and others renamed
                            ``.index`` renamed: from now on, a broker trusts it
    all changed folders     entries made durable (one sync for many folders)

A killed process leaves one of these states. So does a power failure. It may undo the last steps,
but no step before a completed step. ext4, XFS and btrfs commit changes of the entries of a folder
in order, and NFS makes each change durable before it responds. On file systems without this
guarantee (ext2, FAT), only a killed process is covered.

In an object store, a file is put under its final name. In HDFS, it is written to a temporary file,
closed and renamed. Each file is durable before the next one is written, in the same order.
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

#: Placeholder for the name of a data file, which is known only after its rows are written.
ROWS = "rows"
# Matches only names of this package, so that files of other programs are never removed.
_SCRATCH = re.compile(
    r"\.(?P<final>\.?[0-9]{20}\.[A-Za-z.-]+|leader-epoch-checkpoint|\.partition\.kafka-index|rows)"
    r"\.(?P<run>[A-Za-z0-9_]+)\.(?P<attempt>[A-Za-z0-9_]+)\.tmp"
)
_NEW_FILE_MODE = 0o666


def scratch_path(final_path: str, run_id: str, attempt_id: str) -> str:
    """Return the path of the scratch file for a file of a segment or a data file.

    The final name is the leader epoch checkpoint, `ROWS`, or a name that starts with a base offset
    of 20 digits, optionally after a dot. IDs consist of letters, digits and underscores. The two
    IDs together are unique for a file. Raises `ValueError` for other names, which `sweep` would
    not find.
    """
    directory, name = os.path.split(final_path)
    scratch_name = f".{name}.{run_id}.{attempt_id}.tmp"
    match = _SCRATCH.fullmatch(scratch_name)
    if match is None or match.groups() != (name, run_id, attempt_id):
        raise ValueError(f"invalid scratch file name: {scratch_name!r}")
    return os.path.join(directory, scratch_name)


def is_scratch(name: str) -> bool:
    """Return whether a file name without a path is the name of a scratch file."""
    return _SCRATCH.fullmatch(name) is not None


def create_scratch(path: str, *, attributes_of: str | None) -> int:
    """Create a scratch file; return its descriptor, open for reading and writing.

    A leftover of the same attempt is replaced. The file gets the mode and owner of the log at
    `attributes_of`, if given. Raises `PublishError` if the file cannot be created or the owner
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
            # This may be the first file of a partition in the working folder of this process.
            os.makedirs(os.path.dirname(path), exist_ok=True)
            descriptor = os.open(path, flags, _NEW_FILE_MODE)
    except OSError as error:
        raise publish_error(error, path, "create a file") from error
    try:
        if attributes_of is not None:
            copy_attributes(descriptor, attributes_of)
    except BaseException:
        os.close(descriptor)
        remove_scratch(path)
        raise
    return descriptor


def write_scratch(path: str, data: bytes | memoryview, *, attributes_of: str | None) -> None:
    """Create and write a scratch file (`create_scratch`), which publishing makes durable.

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


def copy_attributes(target: int | str, log_path: str) -> None:
    """Set the mode and owner of a file, as descriptor or path, to those of a log.

    Raises `PublishError` with both owners if this user may not change them.
    """
    try:
        log_status, target_status = os.stat(log_path), os.stat(target)
    except OSError as error:
        raise publish_error(error, log_path, "read the mode and owner of the log") from error
    log_owner, target_owner = (
        (log_status.st_uid, log_status.st_gid),
        (target_status.st_uid, target_status.st_gid),
    )
    reported_path = log_path if isinstance(target, int) else target
    if log_owner != target_owner:
        try:
            os.chown(target, *log_owner)
        except OSError as error:
            raise PublishError(
                f"cannot set the owner of a new file to the owner of the log: {error.strerror}",
                path=reported_path,
                expected=f"{log_owner[0]}:{log_owner[1]}",
                found=f"{target_owner[0]}:{target_owner[1]}",
                hint="run as the broker's user or as root, or use --output",
            ) from error
    # Set the mode after chown, which may clear mode bits.
    mode = stat.S_IMODE(log_status.st_mode)
    if mode != stat.S_IMODE(target_status.st_mode) or log_owner != target_owner:
        try:
            os.chmod(target, mode)
        except OSError as error:
            action = "set the mode of a new file to the mode of the log"
            raise publish_error(error, reported_path, action) from error


def remove_scratch(path: str) -> None:
    """Remove a scratch file after a failure, if possible.

    The original failure is reported. The next run sweeps a file that cannot be removed.
    """
    with suppress(OSError):
        os.unlink(path)


def sweep(directories: Iterable[str], *, run_id: str | None) -> None:
    """Remove the scratch files in these folders, but not in folders below them.

    The target must be locked, so that no other run uses them. Missing folders are ignored. With a
    run ID, only the files of this run are removed. Raises `PublishError` if a folder cannot be read
    or a file cannot be removed.
    """
    for directory in directories:
        try:
            with os.scandir(directory) as entries:
                names = [entry.name for entry in entries]
        except FileNotFoundError:
            continue
        except OSError as error:
            raise publish_error(
                error, directory, "remove temporary files from the folder"
            ) from error
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
                raise publish_error(
                    error, path, "remove a temporary file of a killed run"
                ) from error


@contextmanager
def swept_target(
    target_root: str | None, partition_directories: Sequence[str], *, run_id: str
) -> Iterator[None]:
    """Remove scratch files from the target of a run before and after the run.

    The target must be locked. Without a target root, the partition directories are swept. An output
    in an object store or HDFS has a staging directory instead. Empty folders that the run has
    created are removed. Raises the errors of `sweep`.
    """
    if target_root is not None and not store_of(target_root).stages_locally:
        yield
        return
    initial_directories = (
        list(partition_directories) if target_root is None else _list_directories(target_root)
    )
    sweep(initial_directories, run_id=None)
    try:
        yield
    finally:
        final_directories = (
            initial_directories if target_root is None else _list_directories(target_root)
        )
        sweep(final_directories, run_id=run_id)
        for directory in set(final_directories).difference(initial_directories):
            with suppress(OSError):  # The folder has files.
                os.rmdir(directory)


def _list_directories(root: str) -> list[str]:
    with os.scandir(root) as entries:
        return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


# Maximum number of segments that are put concurrently; their files are in memory.
_MAX_CONCURRENT_PUTS = 8
_OFFSET_INDEX_NAMES = (OFFSET_INDEX_SUFFIX, OFFSET_INDEX_SUFFIX + SWAP_SUFFIX)


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A complete scratch file and its final path, in the same folder if it is local."""

    scratch_path: str
    final_path: str

    def __post_init__(self) -> None:
        """Reject files that a rename cannot publish."""
        if os.path.dirname(self.scratch_path) != os.path.dirname(self.final_path) and (
            store_of(self.final_path).stages_locally
        ):
            raise ValueError(
                f"{self.scratch_path} and {self.final_path} are in different directories"
            )


@dataclass(frozen=True, slots=True)
class Publication:
    """Staged files of one folder, to be published in this order.

    Attributes
    ----------
    attributes_of : str, optional
        The log whose mode and owner the files get, for a build in place.
    is_segment : bool
        The files belong to a segment, and its ``.index`` is last. Other files are independent of
        each other.
    is_new : bool
        The segment has no older files, so that none is removed first.
    is_shared : bool
        Another attempt may publish the same scratch files, also concurrently.
    """

    files: tuple[StagedFile, ...]
    attributes_of: str | None = None
    is_segment: bool = False
    is_new: bool = False
    is_shared: bool = False

    def __post_init__(self) -> None:
        """Reject an order in which a crash would leave contradictory files."""
        indexes = [f.final_path.endswith(_OFFSET_INDEX_NAMES) for f in self.files]
        if self.is_segment and (not indexes or not indexes[-1] or any(indexes[:-1])):
            raise ValueError("the last file of a segment must be its only .index")

    @property
    def old_index_path(self) -> str | None:
        """The old ``.index``, which is removed before the files appear; None if there is none."""
        index = self.files[-1].final_path
        # A broker creates an index of zeros for a swap file without an index (LogLoader.load reads
        # its next offset). So the old index stays until the new one replaces it.
        is_removed = self.is_segment and not self.is_new and not index.endswith(SWAP_SUFFIX)
        return index if is_removed else None

    @property
    def directory(self) -> str:
        return os.path.dirname(self.files[0].final_path)


def publish_group(publications: Sequence[Publication]) -> list[PublishError | None]:
    """Publish staged files of several segments durably.

    Returns None or an error for each publication, in order. After an error, the segment has no
    ``.index`` or a complete one, old or new. Its scratch files are removed, unless another attempt
    may need them. An error of a segment does not affect the others.
    """
    if not all(store_of(publication.directory).stages_locally for publication in publications):
        return list(_put_executor().map(_put_in_store, publications))
    errors: list[PublishError | None] = [
        _set_attributes(publication) for publication in publications
    ]
    undurable = make_durable(
        staged.scratch_path
        for publication, error in zip(publications, errors, strict=True)
        if error is None
        for staged in publication.files
    )
    for number, publication in enumerate(publications):
        if errors[number] is None:
            errors[number] = _first_durability_error(publication, undurable) or _publish_locally(
                publication
            )
        if errors[number] is not None and not publication.is_shared:
            for staged in publication.files:
                remove_scratch(staged.scratch_path)
    # Include the folders of failed segments, from which an old .index may have been removed.
    folders = {
        publication.directory: _changed_directories(publication) for publication in publications
    }
    undurable = make_durable(path for paths in folders.values() for path in paths)
    for number, publication in enumerate(publications):
        for path in folders[publication.directory]:
            if errors[number] is None and path in undurable:
                errors[number] = publish_error(undurable[path], path, "make the folder durable")
    return errors


def _put_in_store(publication: Publication) -> PublishError | None:
    """Put the files in the order in which local files are renamed."""
    directory = publication.directory
    store = store_of(directory)
    try:
        # Read the scratch files before the delete. If another attempt has just published them,
        # reading fails and its .index stays.
        contents = [_read_staged(staged) for staged in publication.files]
        if publication.old_index_path is not None:
            store.delete([publication.old_index_path])
        for staged, content in zip(publication.files, contents, strict=True):
            store.put(staged.final_path, content)
    except PublishError as error:
        return error
    except KafkaIndexError as error:
        return PublishError(error.message, path=error.path or directory, hint=error.hint)
    finally:
        for staged in publication.files:
            if store_of(staged.scratch_path).stages_locally:
                remove_scratch(staged.scratch_path)
    return None


def _read_staged(staged: StagedFile) -> bytes:
    try:
        return store_of(staged.scratch_path).read(staged.scratch_path)
    except FileNotFoundError as error:
        raise _missing_scratch_error(staged) from error
    except InputError as error:
        raise PublishError(
            f"cannot read the staged file: {error.message}", path=staged.scratch_path
        ) from error


@cache
def _put_executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MAX_CONCURRENT_PUTS, thread_name_prefix="publish")


def _set_attributes(publication: Publication) -> PublishError | None:
    """Set the mode and owner before any file is published."""
    for staged in publication.files:
        try:
            if publication.attributes_of is not None:
                copy_attributes(staged.scratch_path, publication.attributes_of)
            elif not os.path.exists(staged.scratch_path):
                return _missing_scratch_error(staged)
        except PublishError as error:
            return error
    return None


def _missing_scratch_error(staged: StagedFile) -> PublishError:
    return StagedFileGoneError(
        "a staged file was removed before it was published",
        path=staged.scratch_path,
        hint="check that no other run writes to the same target",
    )


def _first_durability_error(
    publication: Publication, failures: dict[str, OSError]
) -> PublishError | None:
    for staged in publication.files:
        failure = failures.get(staged.scratch_path)
        if isinstance(failure, FileNotFoundError):
            return _missing_scratch_error(staged)
        if failure is not None:
            return publish_error(failure, staged.final_path, "make the file durable")
    return None


def _publish_locally(publication: Publication) -> PublishError | None:
    path = publication.directory
    try:
        if publication.old_index_path is not None:
            statuses = [os.stat(path := staged.scratch_path) for staged in publication.files]
            path = publication.old_index_path
            _remove_old_index(path, statuses[-1], publication.files[-1].scratch_path)
        for staged in publication.files:
            path = staged.final_path
            os.replace(staged.scratch_path, path)
    except OSError as error:
        for staged in publication.files:
            if isinstance(error, FileNotFoundError) and not os.path.exists(staged.scratch_path):
                return _missing_scratch_error(staged)
        return publish_error(error, path, "publish the file")
    return None


def _remove_old_index(path: str, new_status: os.stat_result, scratch_path: str) -> None:
    """Remove an old ``.index``, but not if another attempt has just published a new one."""
    # First move the file to a unique scratch name, so that no other attempt replaces it between
    # comparison and removal.
    renamed_path = f"{scratch_path.removesuffix('.tmp')}_{os.urandom(4).hex()}.tmp"
    with suppress(FileNotFoundError):
        os.rename(path, renamed_path)
        if os.path.samestat(os.stat(renamed_path), new_status):
            os.rename(renamed_path, path)
        else:
            os.unlink(renamed_path)


def unpublished_files(publication: Publication) -> Publication | None:
    """Return the files that an interrupted attempt has not published.

    Returns None if the segment was published or abandoned.
    """
    if not store_of(publication.files[0].scratch_path).stages_locally:
        # Objects are copied, not renamed: objects of another attempt are put again.
        return publication
    unpublished = tuple(file for file in publication.files if os.path.exists(file.scratch_path))
    if unpublished and unpublished[-1] == publication.files[-1]:
        return replace(publication, files=unpublished)
    return None


def _changed_directories(publication: Publication) -> tuple[str, ...]:
    """Return the folders whose entries changed; the parent too, since the target may be new."""
    directory = publication.directory
    if publication.attributes_of is not None:
        return (directory,)
    return (directory, os.path.dirname(directory))


class TargetFiles:
    """The files of a target folder; a remote folder is listed only once, on first use."""

    def __init__(self, directory: str, run_id: str) -> None:
        self.directory = directory
        self._store = store_of(directory)
        self._run_id = run_id

    def exists(self, path: str) -> bool:
        if self._store.needs_requests:
            return path in self._entries
        return os.path.exists(path)

    def has_content(self, path: str, data: bytes) -> bool:
        """Return whether a file exists and contains `data`."""
        try:
            needs_requests = self._store.needs_requests
            entry = self._entries.get(path) if needs_requests else self._store.info(path)
            is_same_size = entry is not None and entry.size_bytes == len(data)
            return is_same_size and self._store.read(path) == data
        except (OSError, KafkaIndexError):
            # The caller replaces the file, and the write reports the problem.
            return False

    @cached_property
    def _entries(self) -> dict[str, DirectoryEntry]:
        if is_new_folder(self.directory, self._run_id):
            return {}
        entries = self._store.list_directory(self.directory)
        return {entry.path: entry for entry in entries if not entry.is_directory}


def is_new_folder(directory: str, run_id: str) -> bool:
    """Return whether a folder of an object store did not exist at the first call of the run.

    One listing for all folders of a target saves requests for files that cannot exist. Objects that
    exist by now were put by attempts of the same run, because the run has locked the target.
    """
    if scheme_of(directory) not in OBJECT_SCHEMES:
        return False
    root, name = os.path.split(directory)
    try:
        # Threads start at the same time: one lists the root, and the others wait for the cached
        # result.
        with _listing_lock:
            return name not in _list_initial_directories(root, run_id)
    except KafkaIndexError:
        # Writing will report the problem.
        return False


_listing_lock = threading.Lock()


@lru_cache(4)
def _list_initial_directories(root: str, run_id: str) -> frozenset[str]:
    del run_id
    entries = store_of(root).list_directory(root)
    return frozenset(os.path.basename(entry.path) for entry in entries if entry.is_directory)
