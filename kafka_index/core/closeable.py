"""Base class of objects that are closed at the end of a ``with`` block."""

from __future__ import annotations

from typing import Self


class Closeable:
    """A context manager that returns itself and is closed at the end."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release all resources."""
        raise NotImplementedError
