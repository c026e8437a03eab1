"""The settings of a read of records, and filters on single records.

Filters are evaluated before a record's other fields are copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kafka_index.core.errors import InputError
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.longs import Longs
from kafka_index.core.query.choices import Isolation, OnDamage
from kafka_index.core.records.batch_table import BatchColumns
from kafka_index.core.records.record_decoder import RecordChunk, RecordParts
from kafka_index.core.records.record_table import CORRUPT_RECORD, DEFAULT_COLUMNS, record_schema

if TYPE_CHECKING:
    from kafka_index.core.query.typed_records import RecordCondition
    from kafka_index.core.schema.decode import TypedColumns


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Conditions that a record must all meet; small and picklable.

    The record's own timestamp is from `from_ms` to `to_ms`, exclusive; the key equals `key`; a part
    of it matches `key_regex`, in RE2 syntax; the value contains `value_contains`. A malformed
    expression raises `InputError`.
    """

    from_ms: int | None = None
    to_ms: int | None = None
    key: bytes | None = None
    key_regex: str | None = None
    value_contains: bytes | None = None

    def __post_init__(self) -> None:
        if self.key_regex is not None:
            try:
                pc.match_substring_regex(pa.array([b""]), pattern=self.key_regex)
            except pa.ArrowInvalid as error:
                raise InputError(
                    f"not a regular expression in RE2 syntax: {error}", found=self.key_regex
                ) from error

    @property
    def parts(self) -> RecordParts:
        parts = RecordParts.NONE
        if self.key is not None or self.key_regex is not None:
            parts |= RecordParts.KEYS
        if self.value_contains is not None:
            parts |= RecordParts.VALUES
        return parts

    def batches(self, batches: BatchColumns) -> NDArray[np.bool_]:
        """Return which batches can contain a matching record.

        The maximum timestamp in a header is the maximum of its records: the broker computes it when
        it validates an append (``LogValidator``).
        """
        if self.from_ms is None:
            return np.ones(batches.rows, np.bool_)
        found: NDArray[np.bool_] = batches.max_timestamp_ms >= self.from_ms
        return found

    def rows(self, chunk: RecordChunk) -> Longs:
        kept = np.ones(len(chunk), np.bool_)
        if self.from_ms is not None:
            kept &= chunk.timestamps_ms >= self.from_ms
        if self.to_ms is not None:
            kept &= chunk.timestamps_ms < self.to_ms
        rows: Longs = np.flatnonzero(kept)
        if len(rows) and (self.key is not None or self.key_regex is not None):
            keys = _at(chunk.keys, rows)
            if self.key is not None:
                rows, keys = _where(rows, keys, pc.equal(keys, pa.scalar(self.key, pa.binary())))
            if self.key_regex is not None:
                found = pc.match_substring_regex(keys, pattern=self.key_regex)
                rows, _ = _where(rows, keys, found)
        if len(rows) and self.value_contains is not None:
            values = _at(chunk.values, rows)
            found = pc.match_substring(values, pattern=self.value_contains)
            rows, _ = _where(rows, values, found)
        return rows


def _at(column: pa.Array, rows: Longs) -> pa.Array:
    return column if len(rows) == len(column) else column.take(pa.array(rows))


def _where(rows: Longs, column: pa.Array, found: pa.Array) -> tuple[Longs, pa.Array]:
    """Return the rows for which a condition is true, not null."""
    mask = found.fill_null(False)  # noqa: FBT003
    return rows[np.asarray(mask)], column.filter(mask)


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """The settings of a read of records; small and picklable.

    `columns` are names in `RECORD_SCHEMA`. `include_control` returns control records too.
    `verify_crc` verifies checksums before batches are decoded. `max_decompressed_bytes` is the
    memory limit for decompressed records of the process. With `typed`, these typed columns are
    read. With `where`, only records that meet the condition are read.
    """

    columns: tuple[str, ...] = DEFAULT_COLUMNS
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    include_control: bool = False
    verify_crc: bool = True
    on_damage: OnDamage = OnDamage.FAILFAST
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES
    record_filter: RecordFilter | None = None
    typed: TypedColumns | None = None
    where: RecordCondition | None = None

    @property
    def record_columns(self) -> tuple[str, ...]:
        """The columns of records that are read, before any is decoded."""
        own = self.columns if self.typed is None else self.typed.needed
        return own if self.where is None else tuple(dict.fromkeys((*own, *self.where.needed)))

    @property
    def record_schema(self) -> pa.Schema:
        """The schema of the rows before any column is decoded."""
        schema = record_schema(self.record_columns)
        if self.on_damage is OnDamage.PERMISSIVE:
            schema = schema.append(pa.field(CORRUPT_RECORD, pa.string()))
        return schema

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        own = self.record_schema
        if self.typed is not None:
            return self.typed.schema(own)
        added = set(self.record_columns) - set(self.columns)
        return pa.schema([one for one in own if one.name not in added])
