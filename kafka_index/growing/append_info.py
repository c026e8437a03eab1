"""What an append to a log did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from kafka_index.growing.incoming_batches import IncomingBatches


@dataclass(frozen=True, slots=True)
class AppendInfo:
    """What an append did (Kafka: ``LogAppendInfo``).

    Parameters
    ----------
    first_offset, last_offset : int
        Of what was appended; -1 when nothing was.
    appended_batches : int
        How many.
    duplicates : tuple of (int, int)
        First and last offsets of batches that a client sent again: they are in the log already,
        and were left out.
    """

    first_offset: int = -1
    last_offset: int = -1
    appended_batches: int = 0
    duplicates: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, batches: IncomingBatches, duplicates: tuple[tuple[int, int], ...] = ()) -> Self:
        """Return what the append of batches did."""
        return cls(
            int(batches.columns.base_offset[0]),
            int(batches.columns.last_offset[-1]),
            len(batches),
            duplicates,
        )
