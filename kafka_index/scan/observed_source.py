"""A log whose batches pass by observers on their way to a build, so that it is read once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from kafka_index.records import BatchSource, ScanStop
from kafka_index.records.batch_table import BatchColumns

#: Returns the row of the first batch that the log does not have any more; None for none.
FirstBeyond = Callable[[BatchColumns], int | None]


class BatchObserver(Protocol):
    """Looks at the batches of a log, in file order."""

    def observe(self, batches: BatchColumns) -> None:
        """Look at a chunk, which is only good until this returns."""


class ObservedSource:
    """A `BatchSource` whose batches pass by observers, chunk by chunk, and that may end early.

    `first_beyond` finds the end of the log in a chunk; without it, all of the log is passed on.
    `cut_at_bytes` is the start of the first batch that was not.
    """

    def __init__(
        self,
        source: BatchSource,
        observers: Sequence[BatchObserver],
        first_beyond: FirstBeyond | None = None,
    ) -> None:
        self._source = source
        self._observers = observers
        self._first_beyond = first_beyond
        self.cut_at_bytes: int | None = None

    @property
    def log_size_bytes(self) -> int:
        """Size of the log in bytes."""
        return self._source.log_size_bytes

    @property
    def stop(self) -> ScanStop | None:
        """The reason why the batches ended before the log did."""
        return self._source.stop

    def chunks(self) -> Iterator[BatchColumns]:
        """Yield the batches."""
        for found in self._source.chunks():
            batches = found
            beyond = None if self._first_beyond is None else self._first_beyond(batches)
            if beyond is not None:
                self.cut_at_bytes = int(batches.position_bytes[beyond])
                batches = BatchColumns(*(column[:beyond] for column in batches))
            if batches.rows:
                for observer in self._observers:
                    observer.observe(batches)
                yield batches
            if beyond is not None:
                return
