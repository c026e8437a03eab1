"""The effect of one segment on the state of its partition, for any earlier state.

Segments are scanned in parallel, without knowledge of earlier ones. The result is small: a row per
producer, aborted transaction and leader epoch. `PartitionState` applies them in offset order.

Source: Kafka's ``LogSegment.recover`` and ``ProducerStateManager``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa

from kafka_index.core.errors import InputError
from kafka_index.core.fs.registry import store_of
from kafka_index.core.kernels.headers import CONTROL_COMPRESSED, CONTROL_MESSAGE
from kafka_index.core.kernels.memory import Records
from kafka_index.core.kernels.producer_state import (
    PRODUCERS_MARKER_INVALID,
    PRODUCERS_MARKER_REFUSED,
    PRODUCERS_NO_ROOM,
    PRODUCERS_NOT_TRANSACTIONAL,
    PRODUCERS_OK,
    PRODUCERS_TRANSACTION_UNKNOWN,
    fill_buckets,
    follow_producers,
)
from kafka_index.core.kernels.producer_tables import (
    ABORT,
    EPOCH,
    NO_OFFSET,
    PRODUCER,
    ProducerTables,
)
from kafka_index.core.records.batch_table import (
    COMPRESSED_MARKER,
    INVALID_MARKER,
    BatchColumns,
    ScanStop,
)

#: A non-transactional batch within a transaction of its producer.
NOT_TRANSACTIONAL = "not_transactional"

_REFUSALS = {
    PRODUCERS_MARKER_REFUSED: "unreadable_marker",
    PRODUCERS_NOT_TRANSACTIONAL: NOT_TRANSACTIONAL,
    PRODUCERS_TRANSACTION_UNKNOWN: "transaction_unknown",
}
#: Reasons to reject a batch because of its producer. Recovery fails there, after adding its index
#: entries.
PRODUCER_REFUSALS = frozenset((*_REFUSALS.values(), COMPRESSED_MARKER))

_FIRST_ROWS = 32

# A state file contains the row counts of the tables, the end offset, and the tables, compressed
# column by column, which gives the best ratio. Only the same version reads it.
_LONG = np.dtype("<i8")
_TABLES = (PRODUCER, ABORT, EPOCH)
_HEADER_BYTES = (len(_TABLES) + 1) * _LONG.itemsize
_CODEC = "lz4"


class ProducerTable:
    """Tracks the producers and leader epochs of a segment, chunk by chunk.

    `map_end_offset` follows the last v2 batch, -1 if there is none; v0 and v1 messages do not
    change it. Kafka: ``ProducerStateManager.mapEndOffset``.
    """

    def __init__(self) -> None:
        self.map_end_offset = NO_OFFSET
        self._tables = ProducerTables.empty(_FIRST_ROWS)

    @property
    def has_transactions(self) -> bool:
        """Whether any batch so far is transactional."""
        return bool(self._counts.has_transactions)

    @property
    def producers(self) -> Records:
        """The producers in order of appearance, as a view."""
        return self._tables.producers[: self._counts.producers]

    @property
    def aborts(self) -> Records:
        """The aborted transactions in the order of their markers, as a view."""
        return self._tables.aborts[: self._counts.aborts]

    @property
    def epochs(self) -> Records:
        """Ascending leader epochs with start offset and byte position, as a view."""
        return self._tables.epochs[: self._counts.epochs]

    @property
    def _counts(self) -> Any:
        return self._tables.counts[0]

    def follow(self, batches: BatchColumns) -> tuple[int, ScanStop | None]:
        """Process a chunk.

        Returns how many of its batches recovery indexes, and why recovery stops after them.
        """
        row = 0
        while True:
            code, row = follow_producers(batches, row, self._tables)
            if code != PRODUCERS_NO_ROOM:
                break
            self._make_room()
        if code == PRODUCERS_OK:
            self._advance(batches)
            return batches.rows, None
        self._advance(batches.slice(0, row))
        position = int(batches.position_bytes[row])
        # Includes the batch itself: recovery adds its index entry before it checks the producer.
        if code == PRODUCERS_MARKER_INVALID:
            return row + 1, ScanStop(INVALID_MARKER, position)
        reason = _REFUSALS[code]
        if code == PRODUCERS_MARKER_REFUSED and batches.control_type[row] == CONTROL_COMPRESSED:
            reason = COMPRESSED_MARKER
        return row + 1, ScanStop(reason, position, refused=True)

    def _advance(self, batches: BatchColumns) -> None:
        """Move the end of the map after the last v2 batch (updateMapEndOffset)."""
        row = batches.rows - 1
        if row >= 0 and batches.control_type[row] == CONTROL_MESSAGE:
            rows = np.flatnonzero(batches.control_type != CONTROL_MESSAGE)
            row = int(rows[-1]) if len(rows) else -1
        if row >= 0:
            self.map_end_offset = int((batches.last_offset[row : row + 1] + 1)[0])

    def _make_room(self) -> None:
        """Double each table that is full."""
        tables, counts = self._tables, self._counts
        if counts.producers == len(tables.producers):
            producers = _doubled(tables.producers)
            buckets = np.empty(2 * len(producers), np.int64)
            tables = tables._replace(producers=producers, buckets=buckets)
            fill_buckets(tables)
        if 2 * counts.open_transactions >= len(tables.open_transactions):
            tables = tables._replace(open_transactions=_doubled(tables.open_transactions))
        if counts.aborts == len(tables.aborts):
            tables = tables._replace(aborts=_doubled(tables.aborts))
        if counts.epochs == len(tables.epochs):
            tables = tables._replace(epochs=_doubled(tables.epochs))
        self._tables = tables


@dataclass(frozen=True, eq=False)
class SegmentState:
    """Three `kafka_index.core.kernels.producer_tables`, from a scan without earlier state.

    Producers are in order of appearance, aborts in the order of their markers; epochs are
    ascending. `map_end_offset` is -1 for a segment without v2 batches.
    """

    producers: Records
    aborts: Records
    epochs: Records
    map_end_offset: int

    @classmethod
    def of_table(cls, table: ProducerTable) -> Self:
        """Copy the table after a complete segment."""
        return cls(
            table.producers.copy(), table.aborts.copy(), table.epochs.copy(), table.map_end_offset
        )

    def write(self, path: str) -> None:
        tables = (self.producers, self.aborts, self.epochs)
        header = np.array([*map(len, tables), self.map_end_offset], _LONG)
        columns = b"".join(
            table[name].astype(_LONG).tobytes()
            for table in tables
            for name in table.dtype.names or ()
        )
        with open(path, "wb") as file:
            file.write(header.tobytes())
            file.write(pa.compress(columns, codec=_CODEC))

    @classmethod
    def read(cls, path: str) -> Self:
        """Read a file of `write`; raises `InputError` if it is missing or malformed."""
        try:
            content = store_of(path).read(path)
            *counts, map_end_offset = np.frombuffer(content[:_HEADER_BYTES], _LONG).tolist()
            packed = content[_HEADER_BYTES:]
            tables = [np.empty(rows, dtype) for rows, dtype in zip(counts, _TABLES, strict=True)]
            size = sum(table.nbytes for table in tables)
            data = np.frombuffer(pa.decompress(packed, size, codec=_CODEC), _LONG)
            start = 0
            for table in tables:
                for name in table.dtype.names or ():
                    table[name] = data[start : start + len(table)]
                    start += len(table)
        except (
            InputError,
            OSError,
            ValueError,
            OverflowError,
            MemoryError,
            pa.ArrowException,
        ) as error:
            raise InputError(
                f"cannot read the kept state of a scanned segment: {error}",
                path=path,
                hint="run again; if that does not help, with --overwrite",
            ) from error
        producers, aborts, epochs = tables
        return cls(producers, aborts, epochs, map_end_offset)


def _doubled(table: Records) -> Records:
    larger = np.empty(2 * len(table), table.dtype)
    larger[: len(table)] = table
    return larger
