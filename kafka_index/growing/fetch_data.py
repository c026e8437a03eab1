"""The outcome of a read of a log that grows (Kafka: ``FetchDataInfo``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Isolation(Enum):
    """The offset at which a read ends (Kafka: ``FetchIsolation``)."""

    LOG_END = "log_end"
    TXN_COMMITTED = "txn_committed"


class AbortedTransaction(NamedTuple):
    """An aborted transaction: readers of committed data skip its records from an offset on."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class FetchData:
    """Bytes of a log from the batch that holds an offset (Kafka: ``FetchDataInfo``).

    `base_offset` is that of the batch, or the requested offset when nothing follows it, and
    `position_bytes` its place in the log of the segment. The last of the batches in `records` may
    be cut off. `first_entry_incomplete`: the first batch is larger than the requested size. Aborted
    transactions are for a reader of committed data only.
    """

    base_offset: int
    segment_base_offset: int
    position_bytes: int
    records: bytes = b""
    first_entry_incomplete: bool = False
    aborted_transactions: tuple[AbortedTransaction, ...] | None = None
