"""Files that take their name whole, in any store.

Locally that is `AtomicFile`. For any other store a file is written to the local disk, without a
name, so that nothing of it is left when the process ends, and put whole.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from types import TracebackType
from typing import IO, Protocol, Self

from kafka_index.errors import PublishError
from kafka_index.stores.durable_files import AtomicFile, publish_error
from kafka_index.stores.registry import store_of
from kafka_index.stores.uris import is_remote

_DESCRIPTORS = "/proc/self/fd"


class WholeFile(Protocol):
    """A file that is being written, and takes its name when it is committed."""

    path: str
    scratch_path: str

    def __enter__(self) -> Self:
        """Return the file itself."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Drop it, unless it was committed."""
        ...

    def write(self, data: bytes) -> None:
        """Append bytes."""
        ...

    def commit(self, *, durable: bool = True) -> None:
        """Give the file its name."""
        ...

    def error(self, error: OSError) -> PublishError:
        """Return the error to raise where writing by `scratch_path` failed."""
        ...


def whole_file(path: str, *, scratch_path: str | None = None, what: str = "file") -> WholeFile:
    """Create a file that appears whole, or not at all.

    The parameters are those of `AtomicFile`; a file in another store has its own scratch path.
    Raises `PublishError` if it cannot be written.
    """
    if is_remote(path):
        return StagedFile(path, what=what)
    return AtomicFile(path, scratch_path=scratch_path, what=what)


class StagedFile:
    """A file on the local disk that is put into its store when it is committed.

    Raises `PublishError`, which names `what`, if there is no room in the folder of temporary files.
    """

    def __init__(self, path: str, *, what: str = "file") -> None:
        self.path = path
        self._what = what
        try:
            if os.path.isdir(_DESCRIPTORS):
                self._file: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115, a member
                self.scratch_path = f"{_DESCRIPTORS}/{self._file.fileno()}"
            else:
                self._file = tempfile.NamedTemporaryFile(buffering=0)  # noqa: SIM115, a member
                self.scratch_path = self._file.name
        except OSError as error:
            raise publish_error(error, tempfile.gettempdir(), "write a temporary file") from error

    def __enter__(self) -> Self:
        """Return the file itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove the local copy."""
        self._file.close()

    def write(self, data: bytes) -> None:
        """Append bytes; raises `PublishError` if there is no room for them."""
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            raise self.error(error) from error

    def commit(self, *, durable: bool = True) -> None:  # noqa: ARG002, what is put is durable
        """Put the file into its store.

        Raises `PublishError` if the store refuses it, or cannot be reached; an older file stays as
        it was.
        """
        size = os.fstat(self._file.fileno()).st_size
        if not size:
            store_of(self.path).put(self.path, b"")
            return
        with mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_READ) as content:
            view = memoryview(content)
            try:
                store_of(self.path).put(self.path, view)
            finally:
                view.release()

    def error(self, error: OSError) -> PublishError:
        """Return the error to raise where writing the local copy failed."""
        folder = tempfile.gettempdir()
        return publish_error(error, folder, f"write the {self._what} before it is put in place")
