"""The first difference between two transaction indexes of a segment that a fetch can observe.

`TransactionIndex.collect_aborted_txns` reads entries up to the first one whose last stable offset
reaches the upper bound of the fetch. So a fetch collects an entry if it starts at or before the
entry's last offset, and its upper bound is above the entry's first offset and above every earlier
last stable offset. If these bounds are equal in two indexes, no fetch sees a difference, in
whatever order the entries are.

A last stable offset is correct up to the start of the next transaction that is not committed. A
follower appends several batches at once and therefore writes larger ones; a rebuild never does. If
the larger offset is beyond the producer's next transaction, fetches miss that transaction. Such an
index is wrong although a broker wrote it. Source: `ProducerStateManager.lastStableOffset`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Self

import numpy as np

from kafka_index.core.format.integers import INT64_MAX
from kafka_index.core.index.transaction_index import AbortedTxns

_EXPOSES = "Consumers that read committed records get aborted ones."
_LOWEST = np.iinfo(np.int64).min


class TxnFault(StrEnum):
    """A defect of a transaction index, with its effect on consumers."""

    effect: str

    def __new__(cls, value: str, effect: str) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.effect = effect
        return member

    PADDED = "padded", _EXPOSES
    #: An entry for a transaction that was not aborted.
    UNKNOWN = (
        "unknown",
        "Consumers that read committed records do not get records of the transaction.",
    )
    MISSING = "missing", _EXPOSES
    #: An entry that a search does not reach, because an earlier entry has a too large last stable
    #: offset.
    UNREACHED = "unreached", _EXPOSES
    #: A last stable offset that ends searches before they reach later segments.
    TOO_STABLE = "too_stable", "Consumers that read committed records can get aborted ones."


@dataclass(frozen=True, slots=True)
class TxnDifference:
    """A difference that makes a transaction index wrong; `entry` is a slot of the stored index."""

    fault: TxnFault
    entry: int
    expected: str
    found: str


class _Txn(NamedTuple):
    """The fields of an entry that identify a transaction, without the last stable offset."""

    producer_id: int
    first_offset: int
    last_offset: int

    def __str__(self) -> str:
        return f"producer {self.producer_id}, offsets {self.first_offset} to {self.last_offset}"


def compare_aborted_txns(
    stored: AbortedTxns,
    expected: AbortedTxns,
    has_data: Callable[[int, int, int], bool] = lambda *_: True,
    next_start: int = INT64_MAX,
) -> TxnDifference | None:
    """Return the first difference of a stored index that a fetch can observe, None if none.

    `has_data` is called with a producer ID and a range of offsets, both ends inclusive. Entries of
    transactions without data are ignored, and so are first offsets before all data of a
    transaction: the log may start later, and compaction removes batches. Transactions that are open
    or that later segments abort start at `next_start` or later. Entry versions are not compared.
    """
    found, wanted = _txns(stored), _txns(expected)
    zeros = next((at for at, row in enumerate(stored.tolist()) if not any(row[1:])), None)
    if zeros is not None and not any(any(row[1:]) for row in stored[zeros:].tolist()):
        text = f"{zeros} entries, then zeros"
        return TxnDifference(TxnFault.PADDED, zeros, f"{len(wanted)} entries", text)
    by_end = {txn[::2]: txn for txn in wanted}
    for at, txn in enumerate(found):
        same = by_end.get(txn[::2], txn)
        first, end = txn.first_offset, same.first_offset
        if first < end and not has_data(txn.producer_id, first, end - 1):
            found[at] = same
    known = set(wanted)
    for at, txn in enumerate(found):
        if txn not in known and has_data(*txn):
            return TxnDifference(
                TxnFault.UNKNOWN, at, "an aborted transaction of the log", str(txn)
            )
    # A fetch that reaches any of several equal entries also reaches the first one.
    slots = {txn: at for at, txn in reversed(list(enumerate(found)))}
    for at, txn in enumerate(wanted):
        if txn not in slots:
            entry = min(at, len(found))
            return TxnDifference(TxnFault.MISSING, entry, str(txn), "no such entry")
    bounds, wanted_bounds = _bounds(stored), _bounds(expected)
    late = [slots[txn] for at, txn in enumerate(wanted) if bounds[slots[txn]] > wanted_bounds[at]]
    if late:
        entry = min(late)
        return TxnDifference(
            TxnFault.UNREACHED,
            entry,
            "entries in the order of their transaction markers",
            f"{found[entry]}, after an entry with last stable offset {bounds[entry]}",
        )
    for at, offset in enumerate(stored["last_stable_offset"].tolist()):
        if offset > next_start:
            text = f"a last stable offset up to {next_start}"
            return TxnDifference(TxnFault.TOO_STABLE, at, text, str(offset))
    return None


def next_starts(aborted: Sequence[AbortedTxns], open_from: int) -> list[int]:
    """Return the `next_start` of each segment, given the aborted transactions of all segments.

    All open transactions start at or after `open_from`.
    """
    starts = [open_from]
    for entries in reversed(aborted[1:]):
        starts.append(min([starts[-1], *entries["first_offset"].tolist()]))
    return starts[::-1]


def _bounds(entries: AbortedTxns) -> list[int]:
    """Return for each entry the largest upper bound of a fetch that does not collect it."""
    stable = entries["last_stable_offset"].astype(np.int64)
    before = np.maximum.accumulate(np.append(_LOWEST, stable))[:-1]
    bounds: list[int] = np.maximum(entries["first_offset"].astype(np.int64), before).tolist()
    return bounds


def _txns(entries: AbortedTxns) -> list[_Txn]:
    return [_Txn(*row) for row in entries[list(_Txn._fields)].tolist()]
