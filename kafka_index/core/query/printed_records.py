"""Records for printing, as columns or rows, with decoded records of internal topics."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise, repeat
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.core.errors import CorruptRecordError
from kafka_index.core.format.longs import Longs
from kafka_index.core.format.names import (
    CLUSTER_METADATA_TOPIC,
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_PREFIX,
    REMOTE_LOG_METADATA_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    parse_partition_directory,
)
from kafka_index.core.records.batch_table import WindowBatches
from kafka_index.core.records.record_decoder import RecordChunk
from kafka_index.core.records.record_table import RecordTable
from kafka_index.core.schema.columns import KEY, VALUE, side_names

if TYPE_CHECKING:
    from kafka_index.core.cluster.metadata.decoding import CoordinatorCodec, ValueCodec
#: The numeric columns of a printed record, in order.
NUMBER_COLUMNS = (
    "position_bytes",
    "offset",
    "timestamp",
    "producer_id",
    "producer_epoch",
    "sequence",
    "is_control",
)
#: The columns of printed records.
PRINTED_COLUMNS = ("topic", "partition", *NUMBER_COLUMNS, "key", "value", "headers")
OptionalBytes = memoryview | None
PrintedHeader = tuple[memoryview, OptionalBytes]


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded record: its key and value as JSON (None if null), or the decoding error.

    With `hides_value`, the bytes of the value must not be printed.
    """

    key: str | None = None
    value: str | None = None
    error: str | None = None
    hides_value: bool = False


#: Decodes the key and value of a record that is not a control record.
Decode = Callable[[bytes | None, bytes | None], Decoded]


def log_decoder(path: str) -> Decode | None:
    """Return the record decoder for the path of a log, None if its topic is not internal."""
    partition = parse_partition_directory(os.path.basename(os.path.dirname(os.path.abspath(path))))
    return None if partition is None else topic_decoder(partition.topic)


def topic_decoder(topic: str) -> Decode | None:
    """Return the record decoder for a topic, None if the topic is not internal."""
    if not topic.startswith(INTERNAL_PREFIX):
        return None
    from kafka_index.core.cluster.metadata import decoding  # noqa: PLC0415, slow to import

    codecs = {
        CONSUMER_OFFSETS_TOPIC: decoding.GROUP_CODEC,
        TRANSACTION_STATE_TOPIC: decoding.TRANSACTION_CODEC,
        SHARE_GROUP_STATE_TOPIC: decoding.SHARE_CODEC,
    }
    if topic in codecs:
        return partial(_decode_state, codecs[topic])
    return {
        CLUSTER_METADATA_TOPIC: partial(_decode_metadata, decoding.METADATA_CODEC),
        REMOTE_LOG_METADATA_TOPIC: partial(_decode_remote, decoding.REMOTE_LOG_CODEC),
    }.get(topic)


def _decode_metadata(codec: ValueCodec, _key: bytes | None, value: bytes | None) -> Decoded:
    from kafka_index.core.cluster.metadata.decoding import has_secret  # noqa: PLC0415, slow to import

    try:
        record = codec.decode(value)
    except CorruptRecordError as error:
        # A record of a later Kafka release may contain credentials in fields that are unknown here.
        return Decoded(error=str(error), hides_value=True)
    return Decoded(value=json.dumps(codec.as_json(record)), hides_value=has_secret(record))


def _decode_remote(codec: ValueCodec, _key: bytes | None, value: bytes | None) -> Decoded:
    try:
        return Decoded(value=json.dumps(codec.as_json(codec.decode(value))))
    except CorruptRecordError as error:
        return Decoded(error=str(error))


def _decode_state(codec: CoordinatorCodec, key: bytes | None, value: bytes | None) -> Decoded:
    try:
        key_json, value_json = codec.as_json(codec.decode(key, value))
    except CorruptRecordError as error:
        return Decoded(error=str(error))
    return Decoded(json.dumps(key_json), None if value_json is None else json.dumps(value_json))


class Row(NamedTuple):
    """A record for printing."""

    position_bytes: int
    offset: int
    timestamp_ms: int
    producer_id: int
    producer_epoch: int
    sequence: int
    is_control: bool
    key: OptionalBytes
    value: OptionalBytes
    headers: Sequence[PrintedHeader]
    decoded: Decoded | None = None


@dataclass(frozen=True, slots=True)
class PrintedRecords:
    """Records for printing, as columns.

    `numbers` are columns of `RECORD_SCHEMA`. `header_counts` has the number of headers of each
    record. The header names of all records are concatenated, and so are the header values.
    """

    numbers: pa.RecordBatch
    keys: pa.Array
    values: pa.Array
    header_counts: Longs
    header_names: pa.Array
    header_values: pa.Array
    decoded: Sequence[Decoded | None] | None = None

    @classmethod
    def from_chunk(cls, chunk: RecordChunk, source: WindowBatches) -> Self:
        numbers = RecordTable("", -1, NUMBER_COLUMNS).convert(chunk, source)
        counts, headers = chunk.header_counts(), chunk.header_columns()
        return cls(numbers, chunk.keys, chunk.values, counts, *headers)

    @classmethod
    def from_rows(cls, rows: pa.RecordBatch) -> Self:
        """Convert a table with `NUMBER_COLUMNS`, keys, values and headers.

        If keys or values are typed, other columns of the table contain their bytes.
        """
        headers = rows.column("headers")
        pairs = headers.flatten()
        names = rows.schema.names
        return cls(
            rows.select(NUMBER_COLUMNS),
            rows.column("key_raw" if "key_raw" in names else "key"),
            rows.column("value_raw" if "value_raw" in names else "value"),
            np.asarray(pc.list_value_length(headers).fill_null(0)).astype(np.int64),
            pairs.field("key").cast(pa.binary()),
            pairs.field("value"),
            _decode_rows(rows),
        )

    def __len__(self) -> int:
        return len(self.keys)

    def rows(self) -> Iterator[Row]:
        numbers = (self.numbers[name] for name in NUMBER_COLUMNS)
        # Convert timestamps to integers, because Python's datetime has a smaller range.
        numbers = (
            (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
            for column in numbers
        )
        decoded = repeat(None) if self.decoded is None else self.decoded
        contents = _slice_values(self.keys), _slice_values(self.values), self._headers()
        return map(Row, *numbers, *contents, decoded)

    def _headers(self) -> Iterator[Sequence[PrintedHeader]]:
        names = (name or memoryview(b"") for name in _slice_values(self.header_names))
        pairs = zip(names, _slice_values(self.header_values), strict=True)
        for count in self.header_counts.tolist():
            yield list(islice(pairs, count)) if count else ()


def _decode_rows(rows: pa.RecordBatch) -> list[Decoded | None] | None:
    """Return decoded records with typed keys and values as JSON, None without typed columns."""
    typed = [part for part in (KEY, VALUE) if side_names(part)[3] in rows.schema.names]
    # Without any readable schema, typed columns contain bytes. These rows are decoded, too: whether
    # a row has the decoded fields must not depend on the errors of other rows.
    if not typed:
        return None
    json_by_part = {part: _to_json(rows.column(part)) for part in (KEY, VALUE)}
    errors: list[str | None] = [None] * len(rows)
    for part in typed:
        codes = rows.column(side_names(part)[2]).to_pylist()
        errors = [error or code for error, code in zip(errors, codes, strict=True)]
    return [
        Decoded(key or "null", value, None if error is None else str(error))
        for key, value, error in zip(json_by_part[KEY], json_by_part[VALUE], errors, strict=True)
    ]


def _to_json(column: pa.Array) -> list[str | None]:
    """Return values as JSON; bytes become a string, of hex digits if they are not UTF-8."""
    if not pa.types.is_binary(column.type):
        from kafka_index.core.fs.json_lines import json_values  # noqa: PLC0415, for typed values only

        values_json = json_values(column)
        if isinstance(values_json, pa.Scalar):
            return [values_json.as_py()] * len(column)
        values: list[str | None] = values_json.to_pylist()
        return values
    return [
        None if data is None else json.dumps(_decode_bytes(data)) for data in column.to_pylist()
    ]


def _decode_bytes(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}


def _slice_values(column: pa.Array) -> Iterator[OptionalBytes]:
    _, ends, data = column.buffers()
    view = memoryview(data)
    is_present_rows = column.is_valid().to_pylist()
    for is_present, (start, end) in zip(
        is_present_rows, pairwise(np.frombuffer(ends, np.int32).tolist()), strict=True
    ):
        yield view[start:end] if is_present else None
