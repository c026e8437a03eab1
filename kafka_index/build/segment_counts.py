"""The counts of the first pass over a Parquet input: rows of each segment, and their places."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

#: Topic, partition and base offset.
SegmentKey = tuple[str, int, int]


class CountedRows(NamedTuple):
    """Rows of one segment that a batch of the input holds: their number, and their positions."""

    row_count: int
    first_position: int
    last_position: int
    highest_position: int
    in_order: bool


@dataclass(slots=True)
class SegmentCount:
    """The counts of the first pass for a segment.

    The size is about that of the log (exact only for batch metadata that is in order). `in_order`:
    the rows, as stored, ascend in position. `row_groups` are the ascending numbers of those that
    hold its rows, and `last_position` is that of the row that was counted last.
    """

    topic: str
    partition: int
    base_offset: int
    row_count: int
    size_bytes: int
    in_order: bool = True
    row_groups: list[int] = field(default_factory=list)
    last_position: int | None = None

    @property
    def key(self) -> SegmentKey:
        """Topic, partition and base offset."""
        return self.topic, self.partition, self.base_offset

    def add(self, rows: CountedRows, *, last_bytes: int, row_group: int) -> None:
        """Count further rows, whose last batch has about `last_bytes`."""
        self.row_count += rows.row_count
        self.size_bytes = max(self.size_bytes, rows.highest_position + last_bytes)
        self.in_order &= rows.in_order and (
            self.last_position is None or rows.first_position > self.last_position
        )
        self.last_position = rows.last_position
        if row_group not in self.row_groups[-1:]:
            self.row_groups.append(row_group)
