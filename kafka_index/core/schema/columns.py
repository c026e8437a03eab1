"""The names of typed columns. This module imports no library, because command help uses it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

KEY, VALUE = "key", "value"


def side_names(part: str) -> tuple[str, str, str, str]:
    """Return the names of the side columns of a decoded key or value.

    These columns contain the ID of the schema, the name of the type, the error code, and the bytes.
    """
    error = "_decode_error" if part == VALUE else f"_{part}_decode_error"
    return f"{part}_schema_id", f"{part}_type", error, f"{part}_raw"


def is_of_part(name: str, part: str) -> bool:
    """Return whether a column is the key or value (`part`), a member of it, or a side column."""
    return name == part or name.startswith(f"{part}.") or name in side_names(part)


def is_typed(name: str) -> bool:
    """Return whether a column exists only if records are decoded."""
    return name not in (KEY, VALUE) and (is_of_part(name, KEY) or is_of_part(name, VALUE))


class UnmatchedErrors:
    """Errors of keys and values that do not decode, and whose records thus match no condition.

    Errors are stored with offsets only for the last batch, so that `counts` can end within this
    batch. A search that resumes within the batch reads it again.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._last: list[tuple[list[int], list[str]]] = []

    def begin_batch(self) -> None:
        """Begin a batch, whose records follow the records of earlier batches."""
        self._counts = self.counts()
        self._last = []

    def add(self, offsets: list[int], codes: list[str]) -> None:
        """Add the errors of records of the current batch."""
        self._last.append((offsets, codes))

    def counts(self, end_offset: int | None = None) -> Counter[str]:
        """Return the number of errors before an offset, keyed by code."""
        counts = Counter(self._counts)
        for offsets, codes in self._last:
            counts.update(
                code
                for offset, code in zip(offsets, codes, strict=True)
                if end_offset is None or offset < end_offset
            )
        return counts


def count_errors(batches: Iterable[pa.RecordBatch]) -> Counter[str]:
    """Count the keys and values in batches that did not decode, keyed by error code."""
    counts: Counter[str] = Counter()
    names = [side_names(part)[2] for part in (KEY, VALUE)]
    for batch in batches:
        for name in names:
            if name in batch.schema.names:
                column = batch.column(name)
                if column.null_count < len(column):
                    counts.update(column.drop_null().to_pylist())
    return counts
