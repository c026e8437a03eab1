"""The local working folder, for uploads to a store and for DuckDB sorts.

The folder is below TMPDIR and locked while its process lives. The next process that needs a working
folder removes the files of killed processes.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass

import pyarrow as pa

from kafka_index.core.errors import InputError, PublishError
from kafka_index.core.fs.durable_files import publish_error

_PREFIX = "kafka-index-work-"
_LOCK_SUFFIX = ".lock"

_workspace: _Workspace | None = None
_workspace_lock = threading.Lock()
_MEMORY_LIMIT = "1GB"
_REQUIRED_DESCRIPTORS = 16


@dataclass(frozen=True)
class _Workspace:
    process_id: int
    folder: str
    lock: int


def workspace() -> str:
    """Return the working folder of this process, which is created on first use.

    Raises `PublishError` if the folder cannot be created.
    """
    global _workspace  # noqa: PLW0603, because it is one a process
    with _workspace_lock:
        # A forked process has its parent's memory but needs its own folder.
        if _workspace is None or _workspace.process_id != os.getpid():
            root = tempfile.gettempdir()
            try:
                _remove_abandoned(root)
                _workspace = _create_workspace(root)
            except OSError as error:
                raise publish_error(error, root, "create a temporary folder") from error
            atexit.register(_remove_workspace, _workspace)
        return _workspace.folder


def _create_workspace(root: str) -> _Workspace:
    while True:
        descriptor, lock_path = tempfile.mkstemp(_LOCK_SUFFIX, _PREFIX, root)
        if _try_lock(descriptor, lock_path):
            folder = lock_path.removesuffix(_LOCK_SUFFIX)
            os.mkdir(folder, 0o700)
            return _Workspace(os.getpid(), folder, descriptor)
        # Another process removed the lock file before this process locked it.
        os.close(descriptor)


def _try_lock(descriptor: int, path: str) -> bool:
    """Lock a file; return False if another process has locked or removed it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


def _remove_abandoned(root: str) -> None:
    for name in os.listdir(root):
        if not (name.startswith(_PREFIX) and name.endswith(_LOCK_SUFFIX)):
            continue
        path = os.path.join(root, name)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            # The folder belongs to another user, or was removed concurrently.
            continue
        try:
            if _try_lock(descriptor, path):
                shutil.rmtree(path.removesuffix(_LOCK_SUFFIX), ignore_errors=True)
                with suppress(OSError):
                    os.unlink(path)
        finally:
            os.close(descriptor)


def _remove_workspace(workspace: _Workspace) -> None:
    if workspace.process_id != os.getpid():
        return
    shutil.rmtree(workspace.folder, ignore_errors=True)
    with suppress(OSError):
        os.unlink(workspace.folder + _LOCK_SUFFIX)


def sorted_batches(
    batches: Iterator[pa.RecordBatch],
    schema: pa.Schema,
    sort_columns: Sequence[str],
    *,
    rows: str,
    batch_rows: int,
    threads: int,
    nulls_first: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches, sorted by the columns in `sort_columns`.

    `rows` describes the rows in errors; a yielded batch has about `batch_rows` rows. Raises the
    errors that `batches` raises, and the errors of `query_batches`.
    """
    null_order = "NULLS FIRST" if nulls_first else "NULLS LAST"
    quoted_names = ('"' + name.replace('"', '""') + '"' for name in sort_columns)
    terms = ", ".join(f"{name} {null_order}" for name in quoted_names)
    query = f"SELECT * FROM input_rows ORDER BY {terms}"  # noqa: S608, the names are quoted
    return query_batches(batches, schema, query, rows=rows, batch_rows=batch_rows, threads=threads)


def query_batches(
    batches: Iterator[pa.RecordBatch],
    schema: pa.Schema,
    query: str,
    *,
    rows: str,
    batch_rows: int,
    threads: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the result of a DuckDB query; its table ``input_rows`` has the rows of `batches`.

    Raises `InputError` if DuckDB rejects the rows, and `PublishError` if the disk is full.
    """
    # DuckDB is slow to import, and few commands need it.
    import duckdb  # noqa: PLC0415

    folder = os.path.join(workspace(), "sort")
    _refuse_low_file_limit(folder, rows)
    options: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": _MEMORY_LIMIT,
        "threads": threads,
        "temp_directory": folder,
    }
    input_batches = _BatchesUntilError(batches)
    reader = pa.RecordBatchReader.from_batches(schema, input_batches)
    with closing(duckdb.connect(":memory:", config=options)) as connection:
        connection.register("input_rows", reader)
        try:
            for batch in connection.sql(query).to_arrow_reader(batch_rows):
                input_batches.check()
                yield batch
            input_batches.check()
        except duckdb.OutOfMemoryException as error:
            raise PublishError(
                f"cannot sort the {rows}: {error}",
                path=folder,
                hint="set TMPDIR to a disk with more space",
            ) from error
        except (duckdb.IOException, duckdb.FatalException, duckdb.InternalException) as error:
            raise PublishError(
                f"cannot sort the {rows}: {error}", path=folder, hint="check TMPDIR and its disk"
            ) from error
        except duckdb.Error as error:
            raise InputError(f"cannot sort the {rows}: {error}") from error


def _refuse_low_file_limit(folder: str, rows: str) -> None:
    """Raise `PublishError` if the limit of open files is so low that DuckDB would abort."""
    with ExitStack() as stack:
        try:
            for _ in range(_REQUIRED_DESCRIPTORS):
                stack.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise publish_error(error, folder, f"sort the {rows}") from error


class _BatchesUntilError:
    """The input batches of a DuckDB query, up to the first error that they raise.

    DuckDB does not receive the error: `check` raises it.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._error: BaseException | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._batches
        except BaseException as error:  # noqa: BLE001, because what it is decides `check`
            self._error = error

    def check(self) -> None:
        """Raise the error that ended the batches, if any."""
        if self._error is not None:
            raise self._error
