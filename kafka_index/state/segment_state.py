"""What one segment does to the state of its partition, whatever that state was before.

A segment is scanned without knowing what came before it, so that segments can be scanned side by
side. What is left of it is small: a row per producer, per aborted transaction and per leader epoch.
`PartitionState` joins these in offset order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from kafka_index.errors import InputError
from kafka_index.kernels.producer_columns import (
    ABORT_COLUMNS,
    EPOCH_COLUMNS,
    PRODUCER_COLUMNS,
)
from kafka_index.state.producer_table import Longs, ProducerTable

# A file is the number of rows of each table, the end offset, and then all tables, packed: column
# by column, because neighbours within a column are alike. It is read by the version that wrote it.
_LONG = np.dtype("<i8")
_COLUMNS = (PRODUCER_COLUMNS, ABORT_COLUMNS, EPOCH_COLUMNS)
_HEADER_BYTES = (len(_COLUMNS) + 1) * _LONG.itemsize
_CODEC = "lz4"


@dataclass(frozen=True, eq=False)
class SegmentState:
    """The three tables of `kafka_index.kernels.producer_columns`, made from an empty past.

    Parameters
    ----------
    producers : ndarray of int64, shape (n, PRODUCER_COLUMNS)
        In the order they appeared.
    aborts : ndarray of int64, shape (n, ABORT_COLUMNS)
        In the order of their markers.
    epochs : ndarray of int64, shape (n, EPOCH_COLUMNS)
        Those higher than all before them in the segment.
    map_end_offset : int
        The offset after the last record batch; -1 for a segment without any.
    """

    producers: Longs
    aborts: Longs
    epochs: Longs
    map_end_offset: int

    @classmethod
    def of_table(cls, table: ProducerTable) -> Self:
        """Return what a table found in a whole segment; a copy."""
        return cls(
            table.producers.copy(), table.aborts.copy(), table.epochs.copy(), table.map_end_offset
        )

    def write(self, path: str) -> None:
        """Write it over what is at `path`."""
        tables = (self.producers, self.aborts, self.epochs)
        header = np.array([*map(len, tables), self.map_end_offset], _LONG)
        columns = b"".join(table.T.astype(_LONG, copy=False).tobytes() for table in tables)
        with open(path, "wb") as file:
            file.write(header.tobytes())
            file.write(pa.compress(columns, codec=_CODEC))

    @classmethod
    def read(cls, path: str) -> Self:
        """Read what `write` wrote.

        Raises
        ------
        InputError
            It is missing, or is not such a file.
        """
        try:
            with open(path, "rb") as file:
                header = np.frombuffer(file.read(_HEADER_BYTES), _LONG)
                *counts, map_end_offset = header.tolist()
                sizes = [rows * columns for rows, columns in zip(counts, _COLUMNS, strict=True)]
                packed = file.read()
            data = pa.decompress(packed, sum(sizes) * _LONG.itemsize, codec=_CODEC)
            parts = np.split(np.frombuffer(data, _LONG), np.cumsum(sizes[:-1]))
            producers, aborts, epochs = (
                np.ascontiguousarray(part.reshape(columns, -1).T)
                for part, columns in zip(parts, _COLUMNS, strict=True)
            )
            return cls(producers, aborts, epochs, map_end_offset)
        except (OSError, ValueError, OverflowError, MemoryError, pa.ArrowException) as error:
            raise InputError(
                f"cannot read what was kept of a scanned segment: {error}",
                path=path,
                hint="run again; with --force if this stays",
            ) from error
