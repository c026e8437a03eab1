"""Keys whose newest record is dropped while an older one stays.

Whoever reads a compacted topic as a table takes the newest record of each key: without it the older
one counts again, and without a tombstone the key itself is back.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kafka_index.writing.condition import SelectionError

#: More keys are not remembered: about 200 bytes each.
_MAX_KEYS = 5_000_000


class Revival:
    """Remembers the keys of dropped records, then looks for older and newer ones that stay."""

    def __init__(self) -> None:
        # Key to the last dropped offset, the first kept offset before it, and the last kept one.
        self._keys: dict[bytes, list[int]] = {}

    @property
    def has_keys(self) -> bool:
        """Whether a record with a key is dropped."""
        return bool(self._keys)

    def note_dropped(self, rows: pa.RecordBatch, dropped: NDArray[np.bool_]) -> None:
        """Note the records of a chunk that are dropped."""
        if not dropped.any():
            return
        mask = pa.array(dropped)
        offsets = rows.column("offset").filter(mask).to_pylist()
        for key, offset in zip(rows.column("key").filter(mask).to_pylist(), offsets, strict=True):
            if key is not None:
                self._keys[key] = [offset, -1, -1]
        if len(self._keys) > _MAX_KEYS:
            raise SelectionError(
                "too many keys are dropped to find out what would be revived",
                expected=f"{_MAX_KEYS} or fewer",
                hint="rewrite topic by topic, or give --allow-revive",
            )

    def note_kept(self, rows: pa.RecordBatch, dropped: NDArray[np.bool_]) -> None:
        """Note the records of a chunk that stay, in a second pass."""
        mask = pa.array(~dropped)
        offsets = rows.column("offset").filter(mask).to_pylist()
        for key, offset in zip(rows.column("key").filter(mask).to_pylist(), offsets, strict=True):
            found = self._keys.get(key)
            if found is not None:
                if offset < found[0]:
                    found[1] = offset
                found[2] = offset

    def find(self) -> tuple[int, int] | None:
        """Return the offsets of a dropped record and of the one that it would revive, if any."""
        for dropped, older, last in self._keys.values():
            if older >= 0 and last < dropped:
                return dropped, older
        return None
