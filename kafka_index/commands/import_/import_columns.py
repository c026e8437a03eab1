"""The columns of an imported table: checks, and the conversion to records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.commands.import_.request import ImportSettings
from kafka_index.core.errors import InputError
from kafka_index.core.format.integers import INT32_MAX, INT64_MAX
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import TopicPartition, is_legal_topic
from kafka_index.core.format.records import NO_TIMESTAMP
from kafka_index.core.log.append.settings import TimestampType
from kafka_index.core.records.record_batch import RecordRows
from kafka_index.core.records.record_table import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    NO_TIMESTAMP_TYPE,
    RECORD_SCHEMA,
)

_REQUIRED = ("topic", "partition")
_HEADERS = RECORD_SCHEMA.field("headers").type
#: The column that marks control records, which cannot be imported.
_IS_CONTROL = "is_control"
_BINARY = (
    *(pa.binary(), pa.large_binary(), pa.binary_view()),
    *(pa.string(), pa.large_string(), pa.string_view()),
)


#: The columns of ``kcat -J``.
KCAT_COLUMNS = frozenset(("topic", "partition", "offset", "key", "payload"))


class OrderError(InputError):
    """The records of a partition are not in the order of their offsets."""


def check_columns(schema: pa.Schema, settings: ImportSettings) -> None:
    """Raise `InputError` if a column is missing, repeated or unknown."""
    names = schema.names
    if len(set(names)) < len(names):
        raise InputError("the table has two columns with the same name", found=", ".join(names))
    for name in (*_REQUIRED, *filter(None, [settings.order_by])):
        if name not in names:
            raise InputError(f"the table has no column {name}", found=", ".join(names))
    unknown = [name for name in names if name not in {*RECORD_SCHEMA.names, settings.order_by}]
    if unknown:
        raise InputError(
            "the table has a column that is not a field of a record",
            expected=", ".join(RECORD_SCHEMA.names),
            found=", ".join(unknown),
            hint="kcat -J wrote these records: use --layout kcat"
            if {*names} >= KCAT_COLUMNS
            else "omit or rename the column, or give --layout for files of another tool",
        )
    if not {"key", "value"} & set(names):
        raise InputError(
            "the table has neither a column key nor a column value", found=", ".join(names)
        )
    if "offset" in names and settings.order_by is not None:
        raise InputError(
            "the table has a column offset, so orderBy (--order-by) would have no effect",
            hint="omit the column or the option",
        )
    if "offset" not in names and settings.order_by is None:
        raise InputError(
            "the table has no column offset, and no order of records is given",
            found=", ".join(names),
            hint="give the column by which records are ordered (orderBy, --order-by)",
        )


def split_by_partition(batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """Split a batch by partition; the records of a partition keep their order."""
    if not len(batch):
        return
    topics = batch.column("topic").cast(pa.string()).dictionary_encode()
    partition_numbers = _read_integers(batch, "partition")
    if topics.indices.null_count:
        raise InputError("a record has no topic")
    codes = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    if (partition_numbers < 0).any() or (partition_numbers > INT32_MAX).any():
        invalid_number = partition_numbers[
            (partition_numbers < 0) | (partition_numbers > INT32_MAX)
        ][0]
        raise InputError(
            "the partition of a record is out of range",
            expected=f"0..{INT32_MAX}",
            found=int(invalid_number),
        )
    changes = _change_rows(codes, partition_numbers)
    if len(changes):
        order = np.lexsort((partition_numbers, codes))
        if (np.diff(order) < 0).any():
            batch, codes, partition_numbers = (
                batch.take(pa.array(order)),
                codes[order],
                partition_numbers[order],
            )
            changes = _change_rows(codes, partition_numbers)
    starts = [0, *(changes + 1).tolist()]
    for first_row, end_row in zip(starts, [*starts[1:], len(batch)], strict=True):
        topic = topics.dictionary[int(codes[first_row])].as_py()
        if not is_legal_topic(topic):
            raise InputError(
                "the topic name is illegal",
                expected="1 to 249 of a-z A-Z 0-9 . _ -",
                found=repr(topic),
            )
        yield (
            TopicPartition(topic, int(partition_numbers[first_row])),
            batch.slice(first_row, end_row - first_row),
        )


def _change_rows(codes: Longs, partition_numbers: Longs) -> Longs:
    changes: Longs = np.flatnonzero((np.diff(codes) != 0) | (np.diff(partition_numbers) != 0))
    return changes


@dataclass(frozen=True, slots=True)
class ImportRows:
    """The records of a partition, as arguments of `BatchEncoder.encode`."""

    rows: RecordRows
    groups: Longs
    uses_append_time: Longs


def import_rows(batch: pa.RecordBatch, settings: ImportSettings, end_offset: int) -> ImportRows:
    """Convert the records of a partition, after `check_columns`.

    Raises `InputError` if an offset is before the end offset of the log.
    """
    if _IS_CONTROL in batch.schema.names and pc.any(batch.column(_IS_CONTROL)).as_py():
        raise InputError(
            "a control record cannot be imported",
            hint="export the records without control records",
        )
    keys = _read_bytes(batch, "key")
    if settings.log.is_compacted and keys.null_count:
        raise InputError("a record has no key, but the topic is compacted")
    timestamps, types = _read_timestamps(batch, settings)
    groups = np.zeros(len(batch), np.int64)
    if types.any():
        # All records of a batch with LogAppendTime have one timestamp.
        differs = (np.diff(types) != 0) | ((types[1:] != 0) & (np.diff(timestamps) != 0))
        np.cumsum(differs, out=groups[1:])
    headers = batch.column("headers").cast(_HEADERS) if "headers" in batch.schema.names else None
    rows = RecordRows.of_arrays(
        _assign_offsets(batch, end_offset), timestamps, keys, _read_bytes(batch, "value"), headers
    )
    return ImportRows(rows, groups, types)


def check_order(batch: pa.RecordBatch, column: str, previous_value: pa.Scalar | None) -> pa.Scalar:
    """Raise `OrderError` if records are not sorted by a column; return the last value."""
    values = batch.column(column)
    if values.null_count:
        raise InputError(
            f"a record has no value in {column}, so it has no place in the order of offsets"
        )
    descends = pc.any(pc.less(values[1:], values[:-1])).as_py()
    if descends or (previous_value is not None and pc.less(values[0], previous_value).as_py()):
        raise OrderError(f"the records of a partition are not sorted by {column}")
    return values[len(values) - 1]


def check_continues(batch: pa.RecordBatch, end_offset: int) -> None:
    """Raise `OrderError` if a batch begins below the end offset of the earlier batches."""
    offset = batch.column("offset")[0].as_py()
    if isinstance(offset, int) and offset < end_offset:
        raise OrderError(
            "the offsets of a partition do not ascend",
            expected=f"{end_offset} or more",
            found=offset,
        )


def _assign_offsets(batch: pa.RecordBatch, end_offset: int) -> Longs:
    if "offset" not in batch.schema.names:
        _check_max_offset(end_offset + len(batch) - 1)
        return end_offset + np.arange(len(batch), dtype=np.int64)
    offsets = _read_integers(batch, "offset")
    _check_max_offset(int(offsets.max()))
    if int(offsets[0]) < 0:
        raise InputError("an offset is negative", expected="0 or more", found=int(offsets[0]))
    if int(offsets[0]) < end_offset:
        raise InputError(
            "the log already has this offset",
            expected=f"{end_offset} or more",
            found=int(offsets[0]),
            hint="omit the records that an earlier import has already written",
        )
    descending_rows = np.flatnonzero(np.diff(offsets) <= 0)
    if len(descending_rows):
        row = int(descending_rows[0])
        raise OrderError(
            "the offsets of a partition do not ascend",
            expected=f"above {int(offsets[row])}",
            found=int(offsets[row + 1]),
        )
    return offsets


def _check_max_offset(offset: int) -> None:
    """Raise `InputError` for the maximum of int64: the log end offset would overflow."""
    if offset >= INT64_MAX:
        raise InputError(
            "the offset is too large, because the log end offset would overflow",
            expected=f"below {INT64_MAX}",
            found=offset,
        )


def _read_timestamps(batch: pa.RecordBatch, settings: ImportSettings) -> tuple[Longs, Longs]:
    """Return the timestamps in ms, and their types: 1 for LogAppendTime, otherwise 0."""
    count = len(batch)
    if settings.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return np.full(count, settings.now_ms), np.ones(count, np.int64)
    if "timestamp" not in batch.schema.names:
        return np.full(count, settings.now_ms), np.zeros(count, np.int64)
    column_type = batch.schema.field("timestamp").type
    column = batch.column("timestamp")
    if pa.types.is_timestamp(column_type):
        column = column.cast(pa.timestamp("ms", column_type.tz), safe=False).view(pa.int64())
    timestamps = _to_integers(column, "timestamp")
    if (timestamps < NO_TIMESTAMP).any():
        raise InputError(
            "a timestamp is negative",
            expected="0 or more, or -1 for no timestamp",
            found=int(timestamps.min()),
        )
    if settings.timestamp_type is not None or "timestampType" not in batch.schema.names:
        return timestamps, np.zeros(count, np.int64)
    types = _to_integers(batch.column("timestampType").fill_null(CREATE_TIME), "timestampType")
    is_valid_type = np.isin(types, (NO_TIMESTAMP_TYPE, CREATE_TIME, LOG_APPEND_TIME))
    if not is_valid_type.all():
        raise InputError(
            "the timestamp type of a record is invalid",
            expected="-1, 0 or 1",
            found=int(types[~is_valid_type][0]),
        )
    return timestamps, (types == LOG_APPEND_TIME).astype(np.int64)


def _read_integers(batch: pa.RecordBatch, name: str) -> Longs:
    return _to_integers(batch.column(name), name)


def _to_integers(column: pa.Array, name: str) -> Longs:
    if not pa.types.is_integer(column.type):
        raise InputError(f"the column {name} has an invalid type", found=column.type)
    if column.null_count:
        raise InputError(f"a record has no {name}")
    numbers: Longs = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return numbers


def _read_bytes(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name not in batch.schema.names:
        return pa.nulls(len(batch), pa.binary())
    column = batch.column(name)
    if column.type not in _BINARY:
        raise InputError(f"the column {name} has an invalid type", found=column.type)
    return column.cast(pa.large_binary())
