"""Partitions to be read as tables, with the rows that they hold."""

from __future__ import annotations

import shutil
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kafka_index.build import build_segment_files
from tests.support.packing import PACKERS
from tests.support.segments import batch, packed, record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

CODECS = (0, *PACKERS)


def write_partition(
    root: Path, segments: Mapping[int, bytes], name: str = "topic-0", *, indexed: bool = False
) -> Path:
    """Write the segments of a partition by base offset, with index files if they are wanted."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    for base_offset, log in segments.items():
        path = folder / f"{base_offset:020d}.log"
        path.write_bytes(log)
        if indexed:
            with TemporaryDirectory() as built:
                build_segment_files(path, built)
                shutil.copytree(built, folder, dirs_exist_ok=True)
    return folder


def batch_of(
    base_offset: int, records: Sequence[tuple[int, bytes | None, bytes | None]], codec: int = 0
) -> bytes:
    """A batch of timestamps, keys and values at consecutive offsets."""
    first = records[0][0]
    payload = b"".join(
        record(number, time - first, key, value)
        for number, (time, key, value) in enumerate(records)
    )
    return batch(
        base_offset,
        payload=packed(payload, codec),
        record_count=len(records),
        last_offset_delta=len(records) - 1,
        attributes=codec,
        base_timestamp=first,
        max_timestamp=max(time for time, _, _ in records),
    )


def rows_of(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    """The rows of some columns, times as numbers."""
    columns = (
        column.cast("int64") if pa.types.is_timestamp(column.type) else column
        for column in map(table.column, names)
    )
    return list(zip(*(column.to_pylist() for column in columns), strict=True))
