"""An index that is opened on first use.

Source: Kafka's ``LazyIndex``, with which a broker starts without opening and mapping two files for
each of its segments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from kafka_index.index.abstract_index import AbstractIndex

_Index = TypeVar("_Index", bound=AbstractIndex)


class LazyIndex(Generic[_Index]):
    """An index file that is opened on first use, and can be closed and opened again.

    Parameters
    ----------
    load : callable
        Opens the index; what it raises, `get` raises.
    """

    def __init__(self, load: Callable[[], _Index]) -> None:
        self._load = load
        self._index: _Index | None = None

    @property
    def is_open(self) -> bool:
        """Whether the file is open now."""
        return self._index is not None

    @property
    def faulted(self) -> bool:
        """Whether the file was cut while it was open."""
        return self._index is not None and self._index.faulted

    def get(self) -> _Index:
        """Return the index, opened."""
        if self._index is None:
            self._index = self._load()
        return self._index

    def close(self) -> None:
        """Unmap the file; the next `get` opens it again."""
        if self._index is not None:
            self._index.close_handler()
            self._index = None
