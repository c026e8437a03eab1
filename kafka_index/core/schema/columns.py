"""The names of typed columns: light, for the help of commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

KEY, VALUE = "key", "value"


def side_names(part: str) -> tuple[str, str, str, str]:
    """Return the names of the columns that accompany a decoded key or value.

    They are the id of its schema, the name of its type, the code of its error, and its bytes.
    """
    error = "_decode_error" if part == VALUE else f"_{part}_decode_error"
    return f"{part}_schema_id", f"{part}_type", error, f"{part}_raw"


def is_of_part(name: str, part: str) -> bool:
    """Return whether a column is a key or value, a member of it, or accompanies it."""
    return name == part or name.startswith(f"{part}.") or name in side_names(part)


def is_typed(name: str) -> bool:
    """Return whether there is a column only if records are decoded."""
    return name not in (KEY, VALUE) and (is_of_part(name, KEY) or is_of_part(name, VALUE))


def count_errors(batches: Iterable[pa.RecordBatch]) -> Counter[str]:
    """Count the keys and values in batches that did not decode, by their codes."""
    found: Counter[str] = Counter()
    names = [side_names(part)[2] for part in (KEY, VALUE)]
    for batch in batches:
        for name in names:
            if name in batch.schema.names:
                column = batch.column(name)
                if column.null_count < len(column):
                    found.update(column.drop_null().to_pylist())
    return found
