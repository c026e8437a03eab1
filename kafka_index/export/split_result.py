"""The result of the export of a split."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_index.errors import KafkaIndexError
from kafka_index.export.log_history import ExportedBatch


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Records that were left out because of damage, or another failure, with place and reason."""

    path: str | None
    position_bytes: int | None
    reason: str

    @classmethod
    def of(cls, error: KafkaIndexError) -> LeftOut:
        """Return the place and reason of an error."""
        reason = error.message
        details = [
            f"{name} {value}"
            for name, value in (("expected", error.expected), ("found", error.found))
            if value is not None
        ]
        if details:
            reason += f" ({', '.join(details)})"
        if error.hint:
            reason += f"; {error.hint}"
        return cls(error.path, error.position_bytes, reason)


@dataclass(frozen=True, slots=True)
class SplitResult:
    """The result of the export of one split, under its number in the plan; small, and picklable.

    `left_out` has the first places of damage, `left_out_count` the number of all. `is_kept`:
    nothing was written, because the data files of an earlier run may hold more. After a `failure`
    nothing of the split is there; `is_retriable`: the environment is at fault. `last_batch` is the
    last batch that was read.
    """

    number: int
    records: int = 0
    files: int = 0
    size_bytes: int = 0
    left_out: tuple[LeftOut, ...] = ()
    left_out_count: int = 0
    is_kept: bool = False
    failure: LeftOut | None = None
    is_retriable: bool = False
    last_batch: ExportedBatch | None = None
