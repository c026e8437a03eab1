"""A file that is read whole, appended to, and created by its first append; or bytes instead."""

from __future__ import annotations

import contextlib
import os
import stat

from kafka_index.errors import InputError, PublishError
from kafka_index.storage import publish_error
from kafka_index.stores.inputs import refuse_linked_out

_MODE = 0o644


class AppendFile:
    """A file that reads as empty while it does not exist; its name may change while it is open.

    Without `writable` it is opened read-only and needs no write permission. With `content`, the
    fetched bytes of the file, nothing is opened or written. Raises `InputError` if the file exists
    and cannot be opened, or is not a regular file.
    """

    def __init__(self, path: str, *, writable: bool, content: bytes | None = None) -> None:
        self.path = path
        self.writable = writable and content is None
        self.size_bytes = 0 if content is None else len(content)
        self.is_open = True
        self._content = content
        self._descriptor: int | None = None
        if content is not None:
            return
        try:
            self._descriptor = self._opened(os.O_RDWR if writable else os.O_RDONLY)
            self.size_bytes = os.fstat(self._descriptor).st_size
        except FileNotFoundError:
            pass
        except OSError as error:
            raise InputError(f"cannot open the index: {error.strerror}", path=path) from error

    def read(self, size_bytes: int) -> bytes:
        """Return the first bytes; raises `InputError` if the file was cut after it was opened."""
        if self._content is not None:
            return self._content[:size_bytes]
        parts: list[bytes] = []
        position = 0
        while position < size_bytes and self._descriptor is not None:
            try:
                part = os.pread(self._descriptor, size_bytes - position, position)
            except OSError as error:
                raise InputError(
                    f"cannot read the index: {error.strerror}",
                    path=self.path,
                    position_bytes=position,
                ) from error
            if not part:
                raise InputError(
                    "the index was cut after it was opened",
                    path=self.path,
                    expected=f"{self.size_bytes} bytes",
                    found=f"{position} bytes",
                )
            parts.append(part)
            position += len(part)
        return b"".join(parts)

    def append(self, data: bytes) -> None:
        """Write at the end: all of it, or nothing.

        Raises `PublishError` if the file is read-only, or cannot be created or written.
        """
        self.check_writable()
        try:
            if self._descriptor is None:
                self._descriptor = self._opened(os.O_RDWR | os.O_CREAT)
                self.size_bytes = os.fstat(self._descriptor).st_size
            written = 0
            while written < len(data):
                place = self.size_bytes + written
                written += os.pwrite(self._descriptor, data[written:], place)
        except OSError as error:
            if self._descriptor is not None:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, self.size_bytes)
            raise publish_error(error, self.path, "write the index") from error
        self.size_bytes += len(data)

    def truncate(self, size_bytes: int) -> None:
        """Cut the file, if there is one.

        Raises `PublishError` if it is read-only, or cannot be cut.
        """
        self.check_writable()
        if self._descriptor is None:
            return
        try:
            os.ftruncate(self._descriptor, size_bytes)
        except OSError as error:
            raise publish_error(error, self.path, "cut the index") from error
        self.size_bytes = size_bytes

    def flush(self) -> None:
        """Make the written bytes durable."""
        if self._descriptor is not None and self.writable:
            try:
                os.fsync(self._descriptor)
            except OSError as error:
                raise publish_error(error, self.path, "write the index") from error

    def close(self) -> None:
        """Close the file."""
        self.is_open = False
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def check_writable(self) -> None:
        """Raise PublishError when the file is read-only."""
        if not self.writable:
            raise PublishError("the index is open for reading only", path=self.path)

    def _opened(self, flags: int) -> int:
        if not self.writable:
            refuse_linked_out(self.path)
        # O_NONBLOCK so that a named pipe is refused here instead of waited for.
        descriptor = os.open(self.path, flags | os.O_CLOEXEC | os.O_NONBLOCK, _MODE)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise InputError("the index is not a regular file", path=self.path)
        return descriptor
