"""What is lost of a partition, and what people can choose to keep of a damaged one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Salvage(StrEnum):
    """What is kept of a damaged partition."""

    PREFIX = "prefix"
    BATCHES = "batches"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class LostRange:
    """Records that were in the log, or should be, and are not in the output.

    Parameters
    ----------
    segment_base_offset : int
        Of the segment that they were in, or would follow.
    path : str
        Its log in the dump.
    first_offset, last_offset : int or None
        The offsets that are missing; where the log was compacted, not all of them had a record.
    first_timestamp_ms, last_timestamp_ms : int or None
        The smallest and the largest timestamp, as far as headers say.
    records : int or None
        How many; None where that cannot be known.
    size_bytes : int
        The bytes that were left out; 0 where they are not in the dump.
    position_bytes : int or None
        Where they begin in the log of the dump.
    code, reason : str
        Why, for programs and for people.
    is_known : bool
        Whether it is known that they are lost: compaction or retention may have removed others.
    kept_by_batches : int
        How many of the offsets are in sound batches, which ``--salvage batches`` keeps.
    """

    segment_base_offset: int
    path: str
    first_offset: int | None
    last_offset: int | None
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None
    records: int | None
    size_bytes: int
    position_bytes: int | None
    code: str
    reason: str
    is_known: bool = True
    kept_by_batches: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether no offset is missing."""
        first, last = self.first_offset, self.last_offset
        return first is not None and last is not None and last < first
