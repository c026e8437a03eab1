"""The records of one entry of a log, as columns of slices, for every magic and codec.

They are those that Kafka's ``for (Record record : batch)`` returns. It reads a plain batch record
by record, so a fault in a later one does not affect those before it; a compressed batch it reads
whole beforehand. Nothing is copied: keys, values and headers are positions and sizes in the entry
itself, or in what it decompresses to. Sources: Kafka's ``DefaultRecordBatch``,
``AbstractLegacyRecordBatch`` with its ``DeepRecordsIterator``, and ``LegacyRecord``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np

from kafka_index.errors import CorruptLogError, TooLargeError
from kafka_index.kernels.producer_state import fill_last_sequences
from kafka_index.kernels.records import (
    EMPTY_SECTION,
    FIELD_CUT,
    MESSAGES_BAD_LENGTH,
    RECORD_BROKEN,
    RECORD_CUT,
    RECORD_SIZE_CUT,
    RECORD_SIZE_TOO_LONG,
    RECORD_SOUND,
    RECORDS_REMAINING,
    HeaderColumns,
    RecordColumns,
    RecordSection,
    check_records,
    decode_headers,
    decode_records,
    measure_messages,
    record_columns,
)
from kafka_index.layout.integers import Longs
from kafka_index.layout.records import (
    COMPRESSION_MASK,
    COMPRESSION_NAMES,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    MAGIC_RECORD_BATCH,
    MESSAGE_V0_HEADER,
    MESSAGE_V1_HEADER,
    MIN_LENGTH,
    NO_SEQUENCE,
    RECORD_BATCH_HEADER,
    RECORD_BATCH_OVERHEAD_BYTES,
    TIMESTAMP_TYPE_MASK,
    field_position,
)
from kafka_index.records.decompression import DecompressedRecords, DecompressionBudget
from kafka_index.storage import Bytes

#: The most records of a chunk.
CHUNK_RECORDS = 64 * 1024

#: Headers take as much memory as they have in bytes sixteen times over; of these, 32 MiB. A chunk
#: ends long before, unless one record has as many.
_MAX_HEADERS = 1024 * 1024
_MIN_ENTRY_BYTES = LOG_OVERHEAD_BYTES + MIN_LENGTH
_ZSTD = COMPRESSION_NAMES.index("zstd")
_INT32 = struct.Struct(">i")
#: Offset, length, magic, attributes and timestamp of a message. In magic 0, which has no timestamp,
#: at least the sizes of key and value are there, so that it can always be read.
_MESSAGE = struct.Struct(">qi4xbbq")
_V0_KEY = field_position(MESSAGE_V0_HEADER, "key_length")
_V1_KEY = field_position(MESSAGE_V1_HEADER, "key_length")
_NO_BYTES: Bytes = np.frombuffer(b"", np.uint8)

_FAULTS = {
    RECORD_SIZE_CUT: "its size cannot be read",
    RECORD_SIZE_TOO_LONG: "its size cannot be read",
    RECORD_CUT: "it is larger than what is left of the batch",
    RECORD_BROKEN: "its fields do not fill its size",
    RECORDS_REMAINING: "it is the last one, and bytes remain after it",
}

#: Why Kafka throws where a key or a value is asked for.
FIELD_FAULT = "a message ends before its key or its value does"

Header = tuple[bytes, bytes | None]


class RecordContent(NamedTuple):
    """The bytes of a record, copied.

    Parameters
    ----------
    key, value : bytes or None
        None for null.
    headers : tuple of (bytes, bytes or None)
        Names, which are UTF-8 text, and values, in order. Messages of magic 0 and 1 have none.
    """

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordChunk:
    """Some records of an entry, in order, control records included.

    Valid until the `BatchRecords` that they come from are closed.

    Parameters
    ----------
    data : ndarray of uint8
        What positions count from.
    columns : RecordColumns
        Arrays of one length, a row per record.
    section : RecordSection
        All records of the entry, for the kernels.
    """

    data: Bytes
    columns: RecordColumns
    section: RecordSection

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self.columns.offsets)

    def readable(self) -> Self:
        """Return the records before the first whose key or value cannot be read."""
        cut = (self.columns.key_sizes == FIELD_CUT) | (self.columns.value_sizes == FIELD_CUT)
        if not cut.any():
            return self
        rows = int(cut.argmax())
        columns = RecordColumns(*(column[:rows] for column in self.columns))
        return replace(self, columns=columns)

    def headers(self) -> HeaderColumns:
        """Return all headers of these records; ``header_counts`` says how many each record has.

        Raises
        ------
        TooLargeError
            One record has more of them than any broker takes.
        """
        count = int(self.columns.header_counts.sum())
        if count > _MAX_HEADERS:
            raise TooLargeError(
                "the records have too many headers",
                expected=f"{_MAX_HEADERS} or less",
                found=count,
            )
        headers = HeaderColumns(*np.empty((len(HeaderColumns._fields), count), np.int64))
        decode_headers(self.section, self.columns, headers)
        return headers

    def contents(self) -> Iterator[RecordContent]:
        """Yield the bytes of each record.

        Raises
        ------
        CorruptLogError
            The key or the value of a message goes beyond its end.
        """
        readable = self.readable()
        yield from readable._contents()  # noqa: SLF001, of its own kind
        if len(readable) < len(self):
            raise CorruptLogError(FIELD_FAULT)

    def _contents(self) -> Iterator[RecordContent]:
        view = self.data.data
        columns = self.columns
        keys = _slices(view, columns.key_positions, columns.key_sizes)
        values = _slices(view, columns.value_positions, columns.value_sizes)
        if not columns.header_counts.any():
            yield from map(RecordContent, keys, values)
            return
        found = self.headers()
        names = _slices(view, found.key_positions, found.key_sizes)
        contents = _slices(view, found.value_positions, found.value_sizes)
        headers = zip((name or b"" for name in names), contents, strict=True)
        for key, value, count in zip(keys, values, columns.header_counts.tolist(), strict=True):
            yield RecordContent(key, value, tuple(next(headers) for _ in range(count)))


def _slices(view: memoryview, positions: Longs, sizes: Longs) -> Iterator[bytes | None]:
    for start, size in zip(positions.tolist(), sizes.tolist(), strict=True):
        yield None if size < 0 else bytes(view[start : start + size])


class BatchRecords:
    """The records of one entry, decompressed; a context manager that gives the memory back.

    Parameters
    ----------
    section : RecordSection
        Where they are.
    data : ndarray of uint8
        The bytes of the section.
    decompressed : DecompressedRecords, optional
        Closed with this.
    fault : str, optional
        Why Kafka throws after them.

    Attributes
    ----------
    fault : str or None
        Why Kafka throws where it would return a further record; of a plain batch it is known when
        `chunks` is exhausted.
    """

    def __init__(
        self,
        section: RecordSection,
        data: Bytes,
        decompressed: DecompressedRecords | None = None,
        fault: str | None = None,
    ) -> None:
        self.section = section
        self.fault = fault
        self._data = data
        self._decompressed = decompressed

    def __enter__(self) -> Self:
        """Return the records themselves."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close them."""
        self.close()

    def close(self) -> None:
        """Give back what was decompressed; neither section nor chunks may be used any more."""
        self.section, self._data = EMPTY_SECTION, _NO_BYTES
        if self._decompressed is not None:
            self._decompressed.close()

    def chunks(self, max_records: int = CHUNK_RECORDS) -> Iterator[RecordChunk]:
        """Yield the records up to the first that Kafka would not return, in chunks of arrays."""
        section = self.section
        address, left = section.start, int(section.record_count)
        code = RECORD_SOUND
        while left > 0 and code == RECORD_SOUND:
            # The count alone is not to be trusted.
            room = min(left, max_records, len(self._data))
            columns = record_columns(room or 1)
            decoded, address, found = decode_records(section, np.uint64(address), left, columns)
            rows, code = int(decoded), int(found)
            left -= rows
            if rows:
                kept = RecordColumns(*(column[:rows] for column in columns))
                yield RecordChunk(self._data, kept, section)
        if code != RECORD_SOUND:
            self.fault = _fault(int(section.record_count) - left, int(section.record_count), code)


def open_records(batch: Bytes, budget: DecompressionBudget) -> BatchRecords:
    """Open the records of one entry of a log. Its checksum is for the caller to verify.

    Parameters
    ----------
    batch : ndarray of uint8
        The whole entry, header included: a batch of magic 2 or above, or a message of a magic below
        with the messages in it.
    budget : DecompressionBudget
        What is decompressed is counted in it; the calling thread must not hold any of it.

    Raises
    ------
    CorruptLogError
        Kafka throws before it returns any record. The error names no place.
    TooLargeError
        The records alone need more than the budget has.
    """
    if len(batch) < _MIN_ENTRY_BYTES:
        raise CorruptLogError("the entry is shorter than any", found=f"{len(batch)} bytes")
    if _magic(batch) >= MAGIC_RECORD_BATCH:
        return _open_batch(batch, budget)
    return _open_message(batch, budget)


def first_offset(batch: Bytes, budget: DecompressionBudget) -> int:
    """Return the first offset of an entry (``RecordBatch.baseOffset``).

    A batch of magic 2 has it in its header. Older entries have the last one there; if they are
    compressed, the first is that of the first message inside. Parameters are those of
    `open_records`.

    Raises
    ------
    CorruptLogError
        The first message of a compressed one cannot be read.
    """
    if len(batch) >= _MIN_ENTRY_BYTES and _magic(batch) >= MAGIC_RECORD_BATCH:
        return int.from_bytes(batch[:8].tobytes(), "big", signed=True)
    with open_records(batch, budget) as records:
        for chunk in records.chunks(1):
            return int(chunk.columns.offsets[0])
        raise CorruptLogError(records.fault or "the message holds no other")


def has_null_key(batch: Bytes, budget: DecompressionBudget) -> bool:
    """Return whether a record of an entry has no key, which a compacted topic asks for."""
    with open_records(batch, budget) as records:
        return any((chunk.columns.key_sizes < 0).any() for chunk in records.chunks())


def record_sequences(base_sequence: int, offset_deltas: Longs) -> Longs:
    """Return the sequences of records; 0 follows 2^31 - 1 (``incrementSequence``).

    Parameters
    ----------
    base_sequence : int
        Of the batch; -1 for none.
    offset_deltas : ndarray of int64, shape (n,)
        Offsets minus the base offset of the batch.
    """
    sequences = np.full(len(offset_deltas), NO_SEQUENCE, np.int64)
    if base_sequence >= 0:
        fill_last_sequences(np.full_like(sequences, base_sequence), offset_deltas, sequences)
    return sequences


def _magic(batch: Bytes) -> int:
    return int(batch[MAGIC_POSITION].view(np.int8))


def _fault(decoded: int, count: int, code: int) -> str:
    return f"record {decoded + 1} of {count} cannot be read: {_FAULTS[code]}"


def _span(data: Bytes) -> tuple[np.uint64, np.uint64]:
    start = data.ctypes.data
    return np.uint64(start), np.uint64(start + len(data))


def _open_batch(batch: Bytes, budget: DecompressionBudget) -> BatchRecords:
    if len(batch) < RECORD_BATCH_OVERHEAD_BYTES:
        raise CorruptLogError("the batch is shorter than its header", found=f"{len(batch)} bytes")
    header = batch[:RECORD_BATCH_OVERHEAD_BYTES].view(RECORD_BATCH_HEADER)[0]
    count = int(header["record_count"])
    if count == 0:
        # Whatever the codec is, and whatever follows.
        return BatchRecords(EMPTY_SECTION, _NO_BYTES)
    codec = int(header["attributes"]) & COMPRESSION_MASK
    data = batch[RECORD_BATCH_OVERHEAD_BYTES:]
    decompressed = budget.decompress(codec, data) if codec else None
    if decompressed is not None:
        data = decompressed.data
    section = RecordSection(
        *_span(data),
        count,
        int(header["base_offset"]),
        int(header["base_timestamp_ms"]),
        int(header["max_timestamp_ms"]),
        int(header["attributes"]) & TIMESTAMP_TYPE_MASK,
        0,
    )
    records = BatchRecords(section, data, decompressed)
    fault = None
    if count < 0:
        fault = CorruptLogError("the batch has a negative record count", found=count)
    elif codec:
        sound, code = check_records(tuple(section))
        if code != RECORD_SOUND:
            fault = CorruptLogError(_fault(int(sound), count, int(code)))
    if fault is not None:
        records.close()
        raise fault
    return records


def _open_message(batch: Bytes, budget: DecompressionBudget) -> BatchRecords:
    offset, _, magic, attributes, timestamp = _MESSAGE.unpack_from(batch.data)
    codec = attributes & COMPRESSION_MASK
    if codec >= len(COMPRESSION_NAMES):
        raise CorruptLogError("unknown codec", expected="0..4", found=codec)
    if codec == 0:
        return BatchRecords(RecordSection(*_span(batch), 1, 0, 0, 0, 0, 1), batch)
    if magic < 0 or codec == _ZSTD:
        raise CorruptLogError(f"a message of magic {magic} cannot be compressed with codec {codec}")
    packed = _message_value(batch, _V0_KEY if magic == 0 else _V1_KEY)
    decompressed = budget.decompress(codec, packed, magic=magic)
    try:
        return _inner_messages(decompressed, magic, offset, attributes, timestamp)
    except CorruptLogError:
        decompressed.close()
        raise


def _message_value(data: Bytes, key_position: int) -> Bytes:
    try:
        (key_bytes,) = _INT32.unpack_from(data.data, key_position)
        value_position = key_position + _INT32.size + max(key_bytes, 0)
        (value_bytes,) = _INT32.unpack_from(data.data, value_position)
    except struct.error as error:
        raise CorruptLogError("the message ends before its value") from error
    start = value_position + _INT32.size
    if value_bytes < 0:
        raise CorruptLogError("a compressed message without a value")
    if value_bytes > len(data) - start:
        raise CorruptLogError("the message ends before its value does")
    return data[start : start + value_bytes]


def _inner_messages(
    decompressed: DecompressedRecords, magic: int, offset: int, attributes: int, timestamp: int
) -> BatchRecords:
    """Open the messages in a compressed one (``DeepRecordsIterator``)."""
    start, end = _span(decompressed.data)
    count, plain, last_offset, code, address = measure_messages(start, end)
    if code == MESSAGES_BAD_LENGTH:
        (length,) = _INT32.unpack_from(decompressed.data.data, int(address) - int(start) + 8)
        raise CorruptLogError("a message in a compressed one has a wrong length", found=length)
    if not count:
        raise CorruptLogError("a compressed message holds no other")
    base_offset = 0
    if magic == 1:
        if offset != 0 and offset < last_offset:
            raise CorruptLogError("a compressed message has a lower offset than one in it")
        # Inner offsets count from any number, and the wrapper's is that of the last. A librdkafka
        # left it at 0: then the inner ones are absolute. In an array the difference wraps around,
        # as Java's does.
        if offset != 0:
            base_offset = int((np.array([offset], np.int64) - last_offset)[0])
    section = RecordSection(
        start,
        np.uint64(address),
        int(plain),
        base_offset,
        0,
        timestamp if magic == 1 else 0,
        attributes & TIMESTAMP_TYPE_MASK if magic == 1 else 0,
        1,
    )
    fault = None
    if plain < count:
        fault = f"message {plain + 1} of {count} in a compressed one is compressed too"
    return BatchRecords(section, decompressed.data, decompressed, fault)
