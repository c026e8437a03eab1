"""Scratch files: what is not published yet, beside the place where it will be.

``.<final name>.<run id>.<attempt id>.tmp`` in the folder of the final file, so that a rename
publishes it. A broker ignores such names (LogLoader.load looks at suffixes), but it refuses
to start on a file it cannot READ (LogLoader.removeTempFilesAndCollectSwapFiles). A killed run
leaves scratch files behind, so they have the log's mode and owner from the beginning.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from kafka_index.core.errors import PublishError
from kafka_index.core.fs.durable_files import publish_error
from kafka_index.core.fs.registry import store_of

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
