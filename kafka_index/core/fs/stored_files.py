"""Remote files as Arrow file objects, and local files to be uploaded."""

from __future__ import annotations

import io
import mmap
import os
import tempfile
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from kafka_index.core.errors import PublishError
from kafka_index.core.fs.durable_files import AtomicFile, publish_error

if TYPE_CHECKING:
    from kafka_index.core.fs.store import ByteSource, Store

#: Suffixes of compressed text.
COMPRESSIONS = (".gz", ".bz2", ".zst", ".lz4")
_DESCRIPTORS = "/proc/self/fd"


class _OpenedFile(io.RawIOBase):
    """A remote file opened by Arrow, which closes it."""

    def __init__(self, source: ByteSource) -> None:
        super().__init__()
        self._source = source

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self._source.close()
        super().close()


class StoredFile(_OpenedFile):
    """A remote file with random access."""

    def __init__(self, source: ByteSource) -> None:
        super().__init__(source)
        self._position = 0

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._source.size_bytes}
        self._position = max(start[whence] + offset, 0)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        target = np.frombuffer(buffer, np.uint8)
        data = self._source.read_at(self._position, len(target))
        target[: len(data)] = data
        self._position += len(data)
        return len(data)


class StoredStream(_OpenedFile):
    """A remote file for one sequential read."""

    def __init__(self, source: ByteSource) -> None:
        super().__init__(source)
        self._pieces = source.stream()
        self._piece = memoryview(b"")

    def read(self, size: int = -1) -> bytes:
        while not self._piece:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._piece = np.ascontiguousarray(piece).data.cast("B")
        found = self._piece[:size] if size >= 0 else self._piece
        self._piece = self._piece[len(found) :]
        return bytes(found)


class StagedFile(AtomicFile):
    """A local temporary file that is uploaded on commit.

    Raises `PublishError`, with `what` in the message, if the temporary folder has no space.
    """

    def __init__(self, store: Store, path: str, *, what: str = "file") -> None:
        self.path = path
        self._store = store
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
        self._descriptor = self._file.fileno()

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def commit(self, *, durable: bool = True) -> None:  # noqa: ARG002, what is put is durable
        """Upload the file.

        Raises `PublishError` if the upload fails; an existing file then stays unchanged.
        """
        size = os.fstat(self._descriptor).st_size
        if not size:
            self._store.put(self.path, b"")
            return
        with mmap.mmap(self._descriptor, size, access=mmap.ACCESS_READ) as content:
            view = memoryview(content)
            try:
                self._store.put(self.path, view)
            finally:
                view.release()

    def error(self, error: OSError) -> PublishError:
        """Return the error for a failed write of the local copy."""
        folder = tempfile.gettempdir()
        return publish_error(error, folder, f"write the {self._what} before it is put in place")
