"""The record kernel once more, slowly: plain Python that follows Kafka's code line by line."""

from __future__ import annotations

from tests.support.twins import int64

Decoded = tuple[list[tuple[int, int]], bool]


class InvalidRecord(Exception):  # noqa: N818
    """Anything that Kafka throws over a record."""


class _Buffer:
    """Java's ByteBuffer over the records of a batch."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    @property
    def remaining(self) -> int:
        return len(self.data) - self.position

    def byte(self) -> int:
        if not self.remaining:
            raise InvalidRecord
        self.position += 1
        return self.data[self.position - 1]

    def varint(self, bits: int = 32) -> int:
        raw = 0
        for number in range(5 if bits == 32 else 10):
            byte = self.byte()
            raw |= (byte & 0x7F) << 7 * number
            if byte < 0x80:
                raw %= 1 << bits
                return -(raw + 1) // 2 if raw % 2 else raw // 2
        raise InvalidRecord

    def skip(self, size: int) -> None:
        if size > self.remaining:
            raise InvalidRecord
        self.position += max(size, 0)


def _read(buffer: _Buffer) -> tuple[int, int]:
    """The timestamp delta and the offset delta of the next record."""
    size = buffer.varint()
    if buffer.remaining < size:
        raise InvalidRecord
    start = buffer.position
    buffer.byte()
    timestamp_delta = buffer.varint(64)
    offset_delta = buffer.varint()
    for _ in ("key", "value"):
        buffer.skip(buffer.varint())
    headers = buffer.varint()
    if not 0 <= headers <= buffer.remaining:
        raise InvalidRecord
    for _ in range(headers):
        key_size = buffer.varint()
        if key_size < 0:
            raise InvalidRecord
        buffer.skip(key_size)
        buffer.skip(buffer.varint())
    if buffer.position - start != size:
        raise InvalidRecord
    return timestamp_delta, offset_delta


def read_all(
    data: bytes,
    count: int,
    base_offset: int = 0,
    base_timestamp: int = 0,
    append_timestamp: int | None = None,
) -> Decoded:
    """Offset and timestamp of the records that are handed out, and whether those are all."""
    buffer = _Buffer(data)
    records: list[tuple[int, int]] = []
    for number in range(1, count + 1):
        try:
            timestamp_delta, offset_delta = _read(buffer)
        except InvalidRecord:
            return records, False
        if number == count and buffer.remaining:
            return records, False
        timestamp = int64(base_timestamp + timestamp_delta)
        if append_timestamp is not None:
            timestamp = append_timestamp
        records.append((int64(base_offset + offset_delta), timestamp))
    return records, True
