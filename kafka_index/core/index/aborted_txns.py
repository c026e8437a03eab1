"""The first difference between two transaction indexes of a segment that a fetch can observe.

`TransactionIndex.collect_aborted_txns` reads entries up to the first whose last stable offset
reaches the upper bound of the fetch. An entry is therefore collected by the fetches that begin at
its last offset or before, and whose upper bound is above its first offset and above every last
stable offset before it. Two indexes with equal such bounds are equal to every fetch, in any order.

A last stable offset is right up to the start of the next transaction that is not committed. A
follower appends several batches at once, and writes such later offsets; a rebuild never does. The
later offset can pass over the producer's next transaction, which fetches then miss: such an index
is wrong, although a broker wrote it. Source: `ProducerStateManager.lastStableOffset`.
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
    """A fault of a transaction index, with its effect on consumers."""

    effect: str

    def __new__(cls, value: str, effect: str) -> Self:
        """Return a fault with its effect."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.effect = effect
        return member

    PADDED = "padded", _EXPOSES
    #: An entry of a transaction that was not aborted.
    UNKNOWN = (
        "unknown",
        "Consumers that read committed records do not get records of the transaction.",
    )
    MISSING = "missing", _EXPOSES
    #: An entry behind one with a last stable offset that ends the search too early.
    UNREACHED = "unreached", _EXPOSES
    #: The last stable offset of an entry ends searches that must read later segments.
    TOO_STABLE = "too_stable", "Consumers that read committed records can get aborted ones."


@dataclass(frozen=True, slots=True)
class TxnDifference:
    """A difference that makes a transaction index wrong; `entry` is a slot of the stored index."""

    fault: TxnFault
    entry: int
    expected: str
    found: str


class _Txn(NamedTuple):
    """An entry without its last stable offset: what identifies a transaction."""

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
    """Return the first difference of a stored index that matters; None if fetches see none.

    `has_data` is called with a producer id and a range of offsets, both ends included. Entries of
    transactions without data, and first offsets before all data of a transaction, are no
    difference: the log may begin later, and compaction removes batches. All transactions that later
    segments abort, are open, or come after the log, begin at `next_start` or later. The versions of
    entries are not compared.
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
    # The first of equal entries is reached by every fetch that reaches another of them.
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
    """Return the `next_start` of each segment, by the aborted transactions of all in order.

    No open transaction begins before `open_from`, nor ends the log before it.
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
