"""Partitions of each magic and codec, before and after Kafka's cleaner was over half of them."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.golden_segments import GOLDEN

TABLE = GOLDEN / "cleaned.parquet"
#: Logs of a partition, batches of a log, and offsets of a batch.
LOGS, BATCHES, SPAN = 4, 6, 4

_LOGS = pa.map_(pa.int64(), pa.binary())
_SCHEMA = pa.schema(
    [
        pa.field("magic", pa.int8(), nullable=False),
        pa.field("codec", pa.string(), nullable=False),
        pa.field("cleaned_to", pa.int64(), nullable=False),
        pa.field("before", _LOGS, nullable=False),
        pa.field("after", _LOGS, nullable=False),
    ]
)


@dataclass(frozen=True)
class CleanedLogs:
    """A partition, its logs by base offset.

    `cleaned_to`: the first offset that the cleaner has not cleaned. `before`, `after`: the logs as
    they were written, and as the cleaner left them.
    """

    magic: int
    codec: str
    cleaned_to: int
    before: dict[int, bytes]
    after: dict[int, bytes]


def write_cleaned_logs(found: list[CleanedLogs]) -> None:
    """Write the table."""
    rows = [
        {**vars(one), "before": list(one.before.items()), "after": list(one.after.items())}
        for one in found
    ]
    table = pa.Table.from_pylist(rows, schema=_SCHEMA)
    pq.write_table(table, TABLE, compression="zstd", compression_level=19)


def read_cleaned_logs() -> list[CleanedLogs]:
    """Read the table."""
    return [
        CleanedLogs(**{**row, "before": dict(row["before"]), "after": dict(row["after"])})
        for row in pq.read_table(TABLE).to_pylist()
    ]
