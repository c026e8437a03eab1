"""`LogSegment.shouldRoll` and `append` in plain Python, batch by batch, as Kafka has them."""

from __future__ import annotations

from dataclasses import dataclass, field

INT32_MAX = 2**31 - 1


class TwinFullError(Exception):
    """Kafka throws in the middle of an append."""


@dataclass
class TwinSegment:
    """A segment that counts what it would hold."""

    base_offset: int
    segment_bytes: int
    wait_ms: int
    interval: int
    offset_room: int
    time_room: int
    created_ms: int = 0
    size: int = 0
    bytes_since_entry: int = 0
    largest: tuple[int, int] = (-1, 0)
    first_timestamp: int | None = None
    offset_entries: list[tuple[int, int]] = field(default_factory=list)
    time_entries: list[tuple[int, int]] = field(default_factory=list)

    def should_roll(self, batches: list[tuple[int, int, int]], now_ms: int) -> bool:
        """Whether to roll before an append of (size, last offset, largest timestamp)."""
        latest = max([-1] + [timestamp for _, _, timestamp in batches])
        waited = now_ms - self.created_ms
        if self.first_timestamp is not None and self.first_timestamp >= 0:
            waited = latest - self.first_timestamp
        return (
            self.size > self.segment_bytes - sum(size for size, _, _ in batches)
            or (self.size > 0 and waited > self.wait_ms)
            or self.is_full
            or not 0 <= batches[-1][1] - self.base_offset <= INT32_MAX
        )

    @property
    def is_full(self) -> bool:
        """Whether an index has no room."""
        return (
            len(self.offset_entries) >= self.offset_room
            or len(self.time_entries) >= self.time_room - 1
        )

    def append(self, batches: list[tuple[int, int, int]]) -> None:
        """Append, as one append."""
        if self.first_timestamp is None:
            self.first_timestamp = batches[0][2]
        for size, last_offset, timestamp in batches:
            if timestamp > self.largest[0]:
                self.largest = timestamp, last_offset
            if self.bytes_since_entry > self.interval:
                if self.is_full:
                    raise TwinFullError
                self.offset_entries.append((last_offset, self.size))
                if self.largest[0] > (self.time_entries[-1][0] if self.time_entries else -1):
                    self.time_entries.append(self.largest)
                self.bytes_since_entry = 0
            self.size += size
            self.bytes_since_entry += size
