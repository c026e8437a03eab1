"""Settings for reading records, and filters on single records.

A filter is evaluated before the other fields of a record are copied.
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
from kafka_index.core.log.choices import Isolation, OnDamage
from kafka_index.core.records.batch_table import BatchColumns
from kafka_index.core.records.record_decoder import RecordChunk, RecordParts
from kafka_index.core.records.record_table import CORRUPT_RECORD, DEFAULT_COLUMNS, record_schema

if TYPE_CHECKING:
    from kafka_index.core.query.typed_records import RecordCondition
    from kafka_index.core.schema.decode import TypedColumns


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Conditions on a record, all of which must be true; small and picklable.

    Raises `InputError` for a malformed regular expression.

    Attributes
    ----------
    from_ms, to_ms : int, optional
        The range of record timestamps; `to_ms` is exclusive.
    key : bytes, optional
        The key.
    key_regex : str, optional
        A regular expression in RE2 syntax that must match any part of the key.
    value_contains : bytes, optional
        A part of the value.
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
                    f"the regular expression is not valid in RE2 syntax: {error}",
                    found=self.key_regex,
                ) from error

    @property
    def parts(self) -> RecordParts:
        parts = RecordParts.NONE
        if self.key is not None or self.key_regex is not None:
            parts |= RecordParts.KEYS
        if self.value_contains is not None:
            parts |= RecordParts.VALUES
        return parts

    def match_batches(self, batches: BatchColumns) -> NDArray[np.bool_]:
        """Return which batches can contain a matching record.

        The maximum timestamp in a batch header is correct: the broker computes it when it validates
        appended records (``LogValidator``).
        """
        if self.from_ms is None:
            return np.ones(batches.rows, np.bool_)
        can_match: NDArray[np.bool_] = batches.max_timestamp_ms >= self.from_ms
        return can_match

    def match_rows(self, chunk: RecordChunk) -> Longs:
        is_match = np.ones(len(chunk), np.bool_)
        if self.from_ms is not None:
            is_match &= chunk.timestamps_ms >= self.from_ms
        if self.to_ms is not None:
            is_match &= chunk.timestamps_ms < self.to_ms
        rows: Longs = np.flatnonzero(is_match)
        if len(rows) and (self.key is not None or self.key_regex is not None):
            keys = _take_rows(chunk.keys, rows)
            if self.key is not None:
                rows, keys = _filter_rows(
                    rows, keys, pc.equal(keys, pa.scalar(self.key, pa.binary()))
                )
            if self.key_regex is not None:
                matches = pc.match_substring_regex(keys, pattern=self.key_regex)
                rows, _ = _filter_rows(rows, keys, matches)
        if len(rows) and self.value_contains is not None:
            values = _take_rows(chunk.values, rows)
            matches = pc.match_substring(values, pattern=self.value_contains)
            rows, _ = _filter_rows(rows, values, matches)
        return rows


def _take_rows(column: pa.Array, rows: Longs) -> pa.Array:
    return column if len(rows) == len(column) else column.take(pa.array(rows))


def _filter_rows(rows: Longs, column: pa.Array, is_match: pa.Array) -> tuple[Longs, pa.Array]:
    """Return the rows for which a condition is true, and the column at these rows."""
    is_true = is_match.fill_null(False)  # noqa: FBT003
    return rows[np.asarray(is_true)], column.filter(is_true)


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """Settings for reading records; small and picklable.

    Attributes
    ----------
    columns : tuple of str
        Names of columns in `RECORD_SCHEMA`.
    include_control : bool
        Whether control records are returned.
    verify_crc : bool
        Whether checksums are verified before batches are decoded.
    max_decompressed_bytes : int
        The memory limit of the process for decompressed records.
    typed : TypedColumns, optional
        How keys and values are decoded into typed columns.
    where : RecordCondition, optional
        Only records that satisfy the condition are returned.
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
        """The columns that are read, from which typed columns are decoded."""
        columns = self.columns if self.typed is None else self.typed.needed
        return (
            columns if self.where is None else tuple(dict.fromkeys((*columns, *self.where.needed)))
        )

    @property
    def record_schema(self) -> pa.Schema:
        """The schema of `record_columns`."""
        schema = record_schema(self.record_columns)
        if self.on_damage is OnDamage.PERMISSIVE:
            schema = schema.append(pa.field(CORRUPT_RECORD, pa.string()))
        return schema

    @property
    def schema(self) -> pa.Schema:
        """The schema of the returned rows."""
        schema = self.record_schema
        if self.typed is not None:
            return self.typed.schema(schema)
        extra_columns = set(self.record_columns) - set(self.columns)
        return pa.schema([field for field in schema if field.name not in extra_columns])
