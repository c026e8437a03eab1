"""What the export of a split comes back with."""

from __future__ import annotations

from dataclasses import dataclass

from kafka_index.errors import KafkaIndexError
from kafka_index.export.log_history import ExportedBatch


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Records that were left out because of damage, or what else went wrong.

    Parameters
    ----------
    path : str, optional
        Which file is at fault.
    position_bytes : int, optional
        Where in it.
    reason : str
        Why.
    """

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
    """The export of one split; small, and picklable.

    Parameters
    ----------
    number : int
        The split's, in the plan.
    records, files, size_bytes : int
        How many records were written, to how many data files of how many bytes.
    left_out : tuple of LeftOut
        The first places of damage.
    left_out_count : int
        How many there are.
    is_kept : bool
        Whether nothing was written, because the data files of an earlier run may hold more.
    failure : LeftOut, optional
        Why the split was not exported; then nothing of it is there.
    is_retriable : bool
        Whether the environment is at fault for that.
    last_batch : ExportedBatch, optional
        The last batch that was read.
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
