"""Keys whose newest record is dropped while an older one stays.

Whoever reads a compacted topic as a table takes the newest record of each key: without it the older
one counts again, and without a tombstone the key itself is back. A reader with read_uncommitted
sees all records. One with read_committed, and the log cleaner, see those of committed transactions
only, and whether an open transaction is committed is not known yet: no key may come back however it
ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.kernels.headers import CONTROL_MESSAGE
from kafka_index.layout.integers import Longs
from kafka_index.layout.records import TRANSACTIONAL_MASK
from kafka_index.reading.transactions import AbortedTransactions
from kafka_index.records.batch_table import BatchColumns
from kafka_index.writing.condition import SelectionError

#: More keys are not remembered: about 500 bytes each.
_MAX_KEYS = 5_000_000
_COMMITTED, _ABORTED = -1, -2
_NONE = -1


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The outcome of each transaction of a partition.

    `opened` has the first offsets of open ones, by producer id.
    """

    aborted: AbortedTransactions
    opened: dict[int, int]

    @classmethod
    def of(cls, aborted: Sequence[NDArray[np.void]], producers: NDArray[np.void]) -> Outcomes:
        """Return the outcomes after a log: entries of transaction indexes, and its producers."""
        is_open = producers["current_txn_first_offset"] >= 0
        ids = producers["producer_id"][is_open].tolist()
        firsts = producers["current_txn_first_offset"][is_open].tolist()
        return cls(AbortedTransactions.of_entries(aborted), dict(zip(ids, firsts, strict=True)))

    def of_batches(self, batches: BatchColumns) -> Longs:
        """Return, of each batch, the producer whose transaction is open, or that it is none.

        That is -1 where its records are committed, or in no transaction, and -2 where they are
        aborted.
        """
        outcomes = np.where(self.aborted.hold(batches), _ABORTED, _COMMITTED)
        in_transaction = batches.attributes & TRANSACTIONAL_MASK != 0
        in_transaction &= batches.control_type != CONTROL_MESSAGE
        for producer, first_offset in self.opened.items():
            is_open = in_transaction & (batches.producer_id == producer)
            outcomes[is_open & (batches.base_offset >= first_offset)] = producer
        return outcomes


@dataclass(slots=True)
class _View:
    """The records of a key that a reader sees."""

    #: The newest record that stays, and a newer record that is dropped.
    older: int = _NONE
    dropped: int = _NONE

    def drop(self, offset: int) -> None:
        if self.older != _NONE:
            self.dropped = offset

    def keep(self, offset: int) -> None:
        self.older, self.dropped = offset, _NONE


@dataclass(slots=True)
class _Key:
    """The records of a key so far."""

    uncommitted: _View = field(default_factory=_View)
    #: If no open transaction is committed; the older record may be of one.
    committed: _View = field(default_factory=_View)
    #: By open transaction, the newest one of it that is dropped while no newer one stays for
    #: certain, and an older one.
    opened: dict[int, tuple[int, int]] = field(default_factory=dict)

    def drop(self, offset: int, outcome: int) -> None:
        self.uncommitted.drop(offset)
        if outcome == _COMMITTED:
            self.committed.drop(offset)
        elif outcome != _ABORTED and self.committed.older != _NONE:
            self.opened[outcome] = offset, self.committed.older

    def keep(self, offset: int, outcome: int) -> None:
        self.uncommitted.keep(offset)
        if outcome == _COMMITTED:
            self.committed.keep(offset)
            self.opened.clear()
        elif outcome != _ABORTED:
            self.opened.pop(outcome, None)
            if self.committed.dropped == _NONE:
                self.committed.older = offset

    def revived(self) -> tuple[int, int] | None:
        """Return the offsets of a dropped record, and of an older one that it would revive."""
        for view in (self.uncommitted, self.committed):
            if view.dropped != _NONE:
                return view.dropped, view.older
        return max(self.opened.values(), default=None)


class Revival:
    """Remembers the keys of dropped records, then looks for older and newer records that stay."""

    def __init__(self) -> None:
        self._keys: dict[bytes, _Key | None] = {}

    @property
    def has_keys(self) -> bool:
        """Whether a record with a key is dropped."""
        return bool(self._keys)

    def note_keys(self, rows: pa.RecordBatch, dropped: NDArray[np.bool_]) -> None:
        """Note the keys of a chunk that are dropped."""
        if not dropped.any():
            return
        keys = rows.column("key").filter(pa.array(dropped)).unique().to_pylist()
        self._keys |= dict.fromkeys(key for key in keys if key is not None)
        if len(self._keys) > _MAX_KEYS:
            raise SelectionError(
                "too many keys are dropped to find out what would be revived",
                expected=f"{_MAX_KEYS} or fewer",
                hint="rewrite topic by topic, or give --allow-revive",
            )

    def note_records(
        self, rows: pa.RecordBatch, dropped: NDArray[np.bool_], outcomes: Longs
    ) -> None:
        """Note the records of a chunk, in a second pass, with `Outcomes.of_batches` of each."""
        offsets = rows.column("offset").to_pylist()
        keys = rows.column("key").to_pylist()
        known = self._keys
        for row, key in enumerate(keys):
            if key not in known:
                continue
            found = known[key]
            if found is None:
                found = known[key] = _Key()
            note = found.drop if dropped[row] else found.keep
            note(offsets[row], int(outcomes[row]))

    def find(self) -> tuple[int, int] | None:
        """Return the offsets of a dropped record and of the record that it would revive, if any."""
        for found in self._keys.values():
            revived = None if found is None else found.revived()
            if revived is not None:
                return revived
        return None
