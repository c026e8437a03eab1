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
import pyarrow.parquet as pq

from kafka_index.errors import InputError
from kafka_index.kernels import producer_state as kernel
from kafka_index.log.producer_table import Longs, ProducerTable

_PRODUCER_NAMES = (
    "producer_id",
    "producer_epoch",
    "last_sequence",
    "last_offset",
    "offset_delta",
    "timestamp_ms",
    "coordinator_epoch",
    "txn_first_offset",
    "node",
    "first_kind",
    "first_position_bytes",
    "first_epoch",
    "epoch_changed",
    "has_data",
    "has_marker",
    "first_marker_row",
    "txn_is_first",
)
_ABORT_NAMES = (
    "row",
    "position_bytes",
    "producer_id",
    "first_offset",
    "last_offset",
    "next_open_offset",
    "may_begin_earlier",
)
_EPOCH_NAMES = ("epoch", "start_offset", "position_bytes")
_TABLES = {"producers": _PRODUCER_NAMES, "aborts": _ABORT_NAMES, "epochs": _EPOCH_NAMES}


def _list_of(names: tuple[str, ...]) -> pa.ListType:
    return pa.list_(pa.struct([pa.field(name, pa.int64(), nullable=False) for name in names]))


#: The file of a segment's state has one row: three lists.
SEGMENT_STATE_SCHEMA = pa.schema(
    [pa.field(table, _list_of(names), nullable=False) for table, names in _TABLES.items()]
)


@dataclass(frozen=True, eq=False)
class SegmentState:
    """The three tables of `kafka_index.kernels.producer_state`, made from an empty past.

    Parameters
    ----------
    producers : ndarray of int64, shape (n, PRODUCER_COLUMNS)
        In the order they appeared.
    aborts : ndarray of int64, shape (n, ABORT_COLUMNS)
        In the order of their markers.
    epochs : ndarray of int64, shape (n, EPOCH_COLUMNS)
        Those higher than all before them in the segment.
    """

    producers: Longs
    aborts: Longs
    epochs: Longs

    @classmethod
    def of_table(cls, table: ProducerTable) -> Self:
        """Return what a table found in a whole segment; a copy."""
        return cls(table.producers.copy(), table.aborts.copy(), table.epochs.copy())

    def write(self, path: str) -> None:
        """Write it as Parquet, over what is at `path`."""
        arrays = [_one_list(getattr(self, table), names) for table, names in _TABLES.items()]
        table = pa.table(arrays, schema=SEGMENT_STATE_SCHEMA)
        pq.write_table(table, path, compression="lz4", write_statistics=False)

    @classmethod
    def read(cls, path: str) -> Self:
        """Read what `write` wrote.

        Raises
        ------
        InputError
            It is missing, or is not such a file.
        """
        try:
            table = pq.read_table(path, partitioning=None, memory_map=False)
            return cls(*(_rows_of(table.column(name), names) for name, names in _TABLES.items()))
        except (OSError, pa.ArrowException, KeyError, ValueError) as error:
            raise InputError(
                f"cannot read what was kept of a scanned segment: {error}",
                path=path,
                hint="run again; with --force if this stays",
            ) from error


def _one_list(rows: Longs, names: tuple[str, ...]) -> pa.Array:
    fields = [pa.field(name, pa.int64(), nullable=False) for name in names]
    columns = [pa.array(np.ascontiguousarray(rows[:, number])) for number in range(len(names))]
    structs = pa.StructArray.from_arrays(columns, fields=fields)
    return pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), structs).cast(
        _list_of(names)
    )


def _rows_of(column: pa.ChunkedArray, names: tuple[str, ...]) -> Longs:
    structs = column.combine_chunks().flatten()
    rows = np.empty((len(structs), len(names)), np.int64)
    for number, name in enumerate(names):
        rows[:, number] = structs.field(name).to_numpy()
    return rows


#: Nothing of producers or epochs: an empty segment, or one of old messages.
EMPTY_SEGMENT_STATE = SegmentState(
    np.empty((0, kernel.PRODUCER_COLUMNS), np.int64),
    np.empty((0, kernel.ABORT_COLUMNS), np.int64),
    np.empty((0, kernel.EPOCH_COLUMNS), np.int64),
)
