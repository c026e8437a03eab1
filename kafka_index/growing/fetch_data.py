"""The outcome of a read of a log that grows (Kafka: ``FetchDataInfo``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Isolation(Enum):
    """Where a read ends (Kafka: ``FetchIsolation``)."""

    LOG_END = "log_end"
    TXN_COMMITTED = "txn_committed"


class AbortedTransaction(NamedTuple):
    """An aborted transaction: readers of committed data skip its records from an offset on."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class FetchData:
    """Bytes of a log from the batch that holds an offset (Kafka: ``FetchDataInfo``).

    Parameters
    ----------
    base_offset : int
        Of that batch; the requested offset when nothing follows it.
    segment_base_offset : int
        Of the segment it is in.
    position_bytes : int
        Where in the log of the segment.
    records : bytes
        Batches; the last may be cut off.
    first_entry_incomplete : bool
        Whether the first batch is larger than the requested size.
    aborted_transactions : tuple of AbortedTransaction, optional
        For a reader of committed data only.
    """

    base_offset: int
    segment_base_offset: int
    position_bytes: int
    records: bytes = b""
    first_entry_incomplete: bool = False
    aborted_transactions: tuple[AbortedTransaction, ...] | None = None
