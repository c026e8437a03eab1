"""The settings of a read of a dump's records."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from kafka_index.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.records.record_table import CORRUPT_RECORD, DEFAULT_COLUMNS, record_schema
from kafka_index.tables.record_filter import RecordFilter


class Isolation(Enum):
    """The records of transactions that are read (``isolation.level``)."""

    #: All of them.
    READ_UNCOMMITTED = "read_uncommitted"
    #: Those of committed transactions, up to the last stable offset.
    READ_COMMITTED = "read_committed"


class OnDamage(Enum):
    """The action at a batch that cannot be read."""

    #: The read ends with an error.
    FAILFAST = "failfast"
    #: The damage is a row: its place and reason in the column ``_corrupt_record``.
    PERMISSIVE = "permissive"
    #: The batch is left out, and a warning is logged.
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """The settings of a read of records; small, and picklable.

    `columns` are names in `RECORD_SCHEMA`. With `include_control`, control records are rows too;
    `verify_crc` verifies checksums before batches are decoded. `max_decompressed_bytes` bounds the
    decompressed records that the process holds at a time.
    """

    columns: tuple[str, ...] = DEFAULT_COLUMNS
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    include_control: bool = False
    verify_crc: bool = True
    on_damage: OnDamage = OnDamage.FAILFAST
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
    record_filter: RecordFilter | None = None

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        schema = record_schema(self.columns)
        if self.on_damage is OnDamage.PERMISSIVE:
            schema = schema.append(pa.field(CORRUPT_RECORD, pa.string()))
        return schema
