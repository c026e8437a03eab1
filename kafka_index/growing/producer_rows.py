"""Batches with producers as tuples, which plain Python works through faster than through columns.

A tuple holds: row, base offset, last offset, producer id, producer epoch, base sequence,
attributes, largest timestamp, control type, coordinator epoch, timestamp of the marker, position.
"""

from __future__ import annotations

from kafka_index.config import INT32_MAX
from kafka_index.growing.incoming_batches import IncomingBatches
from kafka_index.index import Longs
from kafka_index.kernels.markers import CONTROL_EMPTY
from kafka_index.layout.records import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    CONTROL_MASK,
    NO_SEQUENCE,
    TRANSACTIONAL_MASK,
)
from kafka_index.state.producer_entry import (
    CompletedTxn,
    ProducerAppend,
    Refusal,
)

Row = tuple[int, ...]


def producer_rows(batches: IncomingBatches, rows: Longs) -> list[Row]:
    """Return what is needed of some rows as tuples of Python's own integers."""
    columns = batches.columns
    return list(
        zip(
            rows.tolist(),
            *(
                column[rows].tolist()
                for column in (
                    columns.base_offset,
                    columns.last_offset,
                    columns.producer_id,
                    columns.producer_epoch,
                    columns.base_sequence,
                    columns.attributes,
                    columns.max_timestamp_ms,
                    columns.control_type,
                    columns.coordinator_epoch,
                    columns.control_timestamp_ms,
                    columns.position_bytes,
                )
            ),
            strict=True,
        )
    )


def last_sequence(row: Row) -> int:
    """Return the sequence of a batch's last record; behind 2^31 - 1 comes 0."""
    if row[5] == NO_SEQUENCE:
        return NO_SEQUENCE
    last = row[5] + row[2] - row[1]
    return last - INT32_MAX - 1 if last > INT32_MAX else last


def apply_row(append: ProducerAppend, row: Row) -> CompletedTxn | None:
    """Let an append take note of a batch; return the transaction that it ends, if one is open.

    Raises
    ------
    Refusal
        Its producer must not append it, or it is a control batch of another kind.
    """
    _, base, last, _, epoch, sequence, attributes, timestamp, control, coordinator, at, _ = row
    if not attributes & CONTROL_MASK:
        batch = last_sequence(row), last, last - base, timestamp
        append.add_data(
            epoch, sequence, batch, base, is_transactional=bool(attributes & TRANSACTIONAL_MASK)
        )
        return None
    if control == CONTROL_EMPTY:
        return None
    if control not in (CONTROL_ABORT, CONTROL_COMMIT):
        raise Refusal("its control record is no marker", "an abort or a commit", control)
    return append.add_marker(epoch, coordinator, base, at, is_abort=control == CONTROL_ABORT)
