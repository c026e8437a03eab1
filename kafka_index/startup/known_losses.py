"""The offsets that a restore reported as lost: `predict` does not count them as losses."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from kafka_index.dump.missing_offsets import MissingRange
from kafka_index.errors import InputError
from kafka_index.layout.names import TopicPartition

#: Ranges of offsets, both ends included; without an end where damage hid it.
OffsetRanges = Sequence[tuple[int, int | None]]
KnownLosses = Mapping[TopicPartition, OffsetRanges]

_COLUMNS = ("topic", "partition", "status", "first_offset", "last_offset")
_FORMATS = {".parquet": "parquet", ".json": "json", ".csv": "csv", ".arrow": "ipc"}


def read_known_losses(path: str) -> KnownLosses:
    """Read the rows of lost offsets in a restore report.

    Raises `InputError` if the file cannot be read, or is not a restore report.
    """
    kind = _FORMATS.get(os.path.splitext(path)[1])
    if kind is None:
        endings = "a restore report that ends in .parquet, .json, .csv or .arrow"
        raise InputError("not a table of lost offsets", path=path, expected=endings)
    # Slow to import, as pandas comes along.
    import pyarrow.dataset as pads  # noqa: PLC0415

    try:
        table = pads.dataset(path, format=kind).to_table(columns=list(_COLUMNS))
    except (OSError, pa.ArrowException) as error:
        text = str(error).partition("\n")[0]
        raise InputError(f"cannot read the restore report: {text}", path=path) from error
    known: dict[TopicPartition, list[tuple[int, int | None]]] = {}
    for row in table.to_pylist():
        if row["status"] == "lost" and row["first_offset"] is not None:
            partition = TopicPartition(row["topic"], row["partition"])
            known.setdefault(partition, []).append((row["first_offset"], row["last_offset"]))
    return known


def is_known(missing: MissingRange, known: OffsetRanges) -> bool:
    """Return whether all missing offsets are known to be lost."""
    next_offset = missing.first_offset
    for first, last in sorted(known, key=lambda each: each[0]):
        if last is None:
            if first == missing.first_offset:
                return True
        elif first <= next_offset:
            next_offset = max(next_offset, last + 1)
    return next_offset >= missing.end_offset


def known_notes(missing: Iterable[MissingRange]) -> list[str]:
    """Return a note for each range that a restore reported as lost."""
    return [
        f"offsets {each.first_offset} to {each.last_offset} are lost, as the restore reported"
        for each in missing
    ]
