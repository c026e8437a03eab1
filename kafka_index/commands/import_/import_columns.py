"""The columns of an imported table: their check, and their conversion to records."""

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
#: Control records cannot be imported.
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
    """Reject a table with a missing, repeated or unknown column."""
    names = schema.names
    if len(set(names)) < len(names):
        raise InputError("a column occurs twice", found=", ".join(names))
    for name in (*_REQUIRED, *filter(None, [settings.order_by])):
        if name not in names:
            raise InputError(f"the table has no column {name}", found=", ".join(names))
    unknown = [name for name in names if name not in {*RECORD_SCHEMA.names, settings.order_by}]
    if unknown:
        raise InputError(
            "a column that a record does not have",
            expected=", ".join(RECORD_SCHEMA.names),
            found=", ".join(unknown),
            hint="kcat -J wrote these records: use --layout kcat"
            if {*names} >= KCAT_COLUMNS
            else "omit it, or rename it; --layout selects the layout of another tool",
        )
    if not {"key", "value"} & set(names):
        raise InputError("the table has neither a column key nor value", found=", ".join(names))
    if "offset" in names and settings.order_by is not None:
        raise InputError(
            "the table has a column offset, so that orderBy would have no effect",
            hint="omit one of the two",
        )
    if "offset" not in names and settings.order_by is None:
        raise InputError(
            "the table has no column offset, and no column to order its records by",
            found=", ".join(names),
            hint="name the column by whose order offsets are assigned (orderBy, --order-by)",
        )


def split_by_partition(batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """Yield the records of each partition of a batch, in their order."""
    if not len(batch):
        return
    topics = batch.column("topic").cast(pa.string()).dictionary_encode()
    numbers = _longs(batch, "partition")
    if topics.indices.null_count:
        raise InputError("a record has no topic")
    codes = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    if (numbers < 0).any() or (numbers > INT32_MAX).any():
        wrong = numbers[(numbers < 0) | (numbers > INT32_MAX)][0]
        raise InputError("not a partition", expected=f"0..{INT32_MAX}", found=int(wrong))
    changes = _changes(codes, numbers)
    if len(changes):
        order = np.lexsort((numbers, codes))
        if (np.diff(order) < 0).any():
            batch, codes, numbers = batch.take(pa.array(order)), codes[order], numbers[order]
            changes = _changes(codes, numbers)
    starts = [0, *(changes + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], len(batch)], strict=True):
        topic = topics.dictionary[int(codes[start])].as_py()
        if not is_legal_topic(topic):
            raise InputError(
                "not a legal topic name",
                expected="1 to 249 of a-z A-Z 0-9 . _ -",
                found=repr(topic),
            )
        yield TopicPartition(topic, int(numbers[start])), batch.slice(start, end - start)


def _changes(codes: Longs, numbers: Longs) -> Longs:
    changes: Longs = np.flatnonzero((np.diff(codes) != 0) | (np.diff(numbers) != 0))
    return changes


@dataclass(frozen=True, slots=True)
class ImportRows:
    """The records of a partition, as arguments of `BatchEncoder.encode`."""

    rows: RecordRows
    groups: Longs
    uses_append_time: Longs


def import_rows(batch: pa.RecordBatch, settings: ImportSettings, end_offset: int) -> ImportRows:
    """Convert the records of a partition, after `check_columns`.

    Their offsets must be at or above the end offset of the log.
    """
    if _IS_CONTROL in batch.schema.names and pc.any(batch.column(_IS_CONTROL)).as_py():
        raise InputError(
            "a control record cannot be imported",
            hint="export without control records",
        )
    keys = _binary(batch, "key")
    if settings.log.is_compacted and keys.null_count:
        raise InputError("a record has no key, but the topic is compacted")
    timestamps, types = _timestamps(batch, settings)
    groups = np.zeros(len(batch), np.int64)
    if types.any():
        # All records of a batch with LogAppendTime have one timestamp.
        differs = (np.diff(types) != 0) | ((types[1:] != 0) & (np.diff(timestamps) != 0))
        np.cumsum(differs, out=groups[1:])
    headers = batch.column("headers").cast(_HEADERS) if "headers" in batch.schema.names else None
    rows = RecordRows.of_arrays(
        _offsets(batch, end_offset), timestamps, keys, _binary(batch, "value"), headers
    )
    return ImportRows(rows, groups, types)


def check_order(batch: pa.RecordBatch, column: str, before: pa.Scalar | None) -> pa.Scalar:
    """Check that records come in the order of a column; return its last value."""
    values = batch.column(column)
    if values.null_count:
        raise InputError(f"a record has no {column}, so its offset cannot be chosen")
    descends = pc.any(pc.less(values[1:], values[:-1])).as_py()
    if descends or (before is not None and pc.less(values[0], before).as_py()):
        raise OrderError(f"the records of a partition are not in the order of {column}")
    return values[len(values) - 1]


def check_continues(batch: pa.RecordBatch, end_offset: int) -> None:
    """Check that records follow the records that this import has written, up to an offset."""
    offset = batch.column("offset")[0].as_py()
    if isinstance(offset, int) and offset < end_offset:
        raise OrderError(
            "the offsets of a partition do not ascend",
            expected=f"{end_offset} or more",
            found=offset,
        )


def _offsets(batch: pa.RecordBatch, end_offset: int) -> Longs:
    if "offset" not in batch.schema.names:
        _check_last(end_offset + len(batch) - 1)
        return end_offset + np.arange(len(batch), dtype=np.int64)
    offsets = _longs(batch, "offset")
    _check_last(int(offsets.max()))
    if int(offsets[0]) < 0:
        raise InputError("a negative offset", expected="0 or more", found=int(offsets[0]))
    if int(offsets[0]) < end_offset:
        raise InputError(
            "the log already has this offset",
            expected=f"{end_offset} or more",
            found=int(offsets[0]),
            hint="omit records that the log has: an interrupted import may have finished this "
            "partition",
        )
    wrong = np.flatnonzero(np.diff(offsets) <= 0)
    if len(wrong):
        row = int(wrong[0])
        raise OrderError(
            "the offsets of a partition do not ascend",
            expected=f"above {int(offsets[row])}",
            found=int(offsets[row + 1]),
        )
    return offsets


def _check_last(offset: int) -> None:
    """Reject the largest offset, because the log end offset follows the last one."""
    if offset >= INT64_MAX:
        raise InputError("no offset follows this one", expected=f"below {INT64_MAX}", found=offset)


def _timestamps(batch: pa.RecordBatch, settings: ImportSettings) -> tuple[Longs, Longs]:
    """Return the timestamps in ms, and 1 for each with the type LogAppendTime."""
    count = len(batch)
    if settings.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return np.full(count, settings.now_ms), np.ones(count, np.int64)
    if "timestamp" not in batch.schema.names:
        return np.full(count, settings.now_ms), np.zeros(count, np.int64)
    kind = batch.schema.field("timestamp").type
    column = batch.column("timestamp")
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("ms", kind.tz), safe=False).view(pa.int64())
    timestamps = _integers(column, "timestamp")
    if (timestamps < NO_TIMESTAMP).any():
        raise InputError(
            "a timestamp is negative",
            expected="0 or more, or -1 ms for none",
            found=int(timestamps.min()),
        )
    if settings.timestamp_type is not None or "timestampType" not in batch.schema.names:
        return timestamps, np.zeros(count, np.int64)
    types = _integers(batch.column("timestampType").fill_null(CREATE_TIME), "timestampType")
    known = np.isin(types, (NO_TIMESTAMP_TYPE, CREATE_TIME, LOG_APPEND_TIME))
    if not known.all():
        raise InputError("not a timestamp type", expected="-1, 0 or 1", found=int(types[~known][0]))
    return timestamps, (types == LOG_APPEND_TIME).astype(np.int64)


def _longs(batch: pa.RecordBatch, name: str) -> Longs:
    return _integers(batch.column(name), name)


def _integers(column: pa.Array, name: str) -> Longs:
    if not pa.types.is_integer(column.type):
        raise InputError(f"the column {name} has another type", found=column.type)
    if column.null_count:
        raise InputError(f"a record has no {name}")
    numbers: Longs = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return numbers


def _binary(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name not in batch.schema.names:
        return pa.nulls(len(batch), pa.binary())
    column = batch.column(name)
    if column.type not in _BINARY:
        raise InputError(f"the column {name} has another type", found=column.type)
    return column.cast(pa.large_binary())
