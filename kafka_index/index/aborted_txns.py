"""The first difference between two transaction indexes of a segment that a fetch can observe.

`TransactionIndex.collect_aborted_txns` reads entries up to the first whose last stable offset
reaches the upper bound of the fetch. An entry is therefore collected by the fetches that begin at
its last offset or before, and whose upper bound is above its first offset and above every last
stable offset before it. Two indexes with equal such bounds are equal to every fetch, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Self

import numpy as np

from kafka_index.index.transaction_index import AbortedTxns

_EXPOSES = "Consumers that read committed records get aborted ones."
_LOWEST = np.iinfo(np.int64).min


class TxnFault(StrEnum):
    """A fault of a transaction index, with its effect on consumers."""

    effect: str
    is_harmful: bool

    def __new__(cls, value: str, effect: str, is_harmful: bool = True) -> Self:  # noqa: FBT001, FBT002
        """Return a fault with its effect."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.effect = effect
        member.is_harmful = is_harmful
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
    #: Any other last stable offset that differs.
    STABLE_OFFSET = "stable_offset", "Searches are right, and read more entries.", False


@dataclass(frozen=True, slots=True)
class TxnDifference:
    """A difference that decides about a transaction index; `entry` is a slot of the stored one."""

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
) -> TxnDifference | None:
    """Return the first difference of a stored index that matters; None if fetches see none.

    `has_data` is called with a producer id and a range of offsets, both ends included. Entries of
    transactions without data, which compaction has removed, are no difference. The versions of
    entries are not compared.
    """
    found, wanted = _txns(stored), _txns(expected)
    if not (found or wanted):
        return None
    zeros = next((at for at, row in enumerate(stored.tolist()) if not any(row[1:])), None)
    if zeros is not None and not any(any(row[1:]) for row in stored[zeros:].tolist()):
        text = f"{zeros} entries, then zeros"
        return TxnDifference(TxnFault.PADDED, zeros, f"{len(wanted)} entries", text)
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
    stable_offsets = stored["last_stable_offset"].tolist()
    stable = dict(zip(wanted, expected["last_stable_offset"].tolist(), strict=True))
    return _stable_offset(found, stable_offsets, stable)


def _stable_offset(
    found: Sequence[_Txn], stable_offsets: Sequence[int], stable: Mapping[_Txn, int]
) -> TxnDifference | None:
    """Return the first last stable offset that differs, of entries in reach of every fetch."""
    # No last stable offset is above the end of its transaction.
    highest = max([*stable.values(), *(txn.last_offset + 1 for txn in found if txn not in stable)])
    for at, (txn, offset) in enumerate(zip(found, stable_offsets, strict=True)):
        right = min(stable.get(txn, offset), highest)
        if offset != right:
            fault = TxnFault.TOO_STABLE if offset > highest else TxnFault.STABLE_OFFSET
            return TxnDifference(fault, at, f"last stable offset {right}", str(offset))
    return None


def _bounds(entries: AbortedTxns) -> list[int]:
    """Return for each entry the largest upper bound of a fetch that does not collect it."""
    stable = entries["last_stable_offset"].astype(np.int64)
    before = np.maximum.accumulate(np.append(_LOWEST, stable))[:-1]
    bounds: list[int] = np.maximum(entries["first_offset"].astype(np.int64), before).tolist()
    return bounds


def _txns(entries: AbortedTxns) -> list[_Txn]:
    return [_Txn(*row) for row in entries[list(_Txn._fields)].tolist()]
