"""The leader epochs of a partition and their start offsets (``leader-epoch-checkpoint``).

Source: Kafka's ``LeaderEpochFileCache``. The caller writes the file.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from os import PathLike
from typing import Self

from kafka_index.core.errors import InvalidEpochError
from kafka_index.core.format.checkpoints import (
    EpochEntry,
    format_leader_epoch_checkpoint,
    parse_leader_epoch_checkpoint,
)
from kafka_index.core.format.records import NO_LEADER_EPOCH

#: Result of `LeaderEpochCache.end_offset_for` if the end offset is unknown
#: (``OffsetsForLeaderEpochResponse.UNDEFINED_EPOCH_OFFSET``).
UNDEFINED_EPOCH_OFFSET = -1


class LeaderEpochCache:
    """Epochs and their start offsets, both strictly ascending.

    Parameters
    ----------
    entries : iterable of EpochEntry
        Assigned in this order: an entry that does not ascend removes the entries it contradicts.

    Raises
    ------
    InvalidEpochError
        An epoch or a start offset is negative.
    """

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        self._entries: list[EpochEntry] = []
        for entry in entries:
            self.assign(entry.epoch, entry.start_offset)

    @classmethod
    def from_text(cls, text: str, *, path: str | PathLike[str] | None = None) -> Self:
        """Parse a ``leader-epoch-checkpoint``.

        Parameters
        ----------
        text : str
            The complete file.
        path : path, optional
            Its path, for errors.

        Raises
        ------
        InputError
            The text is malformed; the message contains the line number.
        InvalidEpochError
            An epoch or a start offset is negative.
        """
        cache = cls()
        for row, entry in enumerate(parse_leader_epoch_checkpoint(text, path=path)):
            try:
                cache.assign(entry.epoch, entry.start_offset)
            except InvalidEpochError as error:
                raise InvalidEpochError(
                    f"line {row + 3} of a checkpoint: {error.message}",
                    path=path,
                    expected=error.expected,
                    found=error.found,
                    line=row + 3,
                ) from None
        return cache

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """All entries, earliest first."""
        return tuple(self._entries)

    @property
    def latest_epoch(self) -> int | None:
        """The latest epoch, None if there is none."""
        return self._entries[-1].epoch if self._entries else None

    def text(self) -> str:
        """Format a ``leader-epoch-checkpoint``."""
        return format_leader_epoch_checkpoint(self._entries)

    def copy(self) -> Self:
        """Return a copy."""
        return type(self)(self._entries)

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that an epoch starts at an offset.

        Trailing entries that are not below it in both fields are removed first. The latest epoch
        changes only if it starts earlier than recorded.

        Parameters
        ----------
        epoch : int
            Leader epoch.
        start_offset : int
            Absolute.

        Returns
        -------
        bool
            Whether anything changed.

        Raises
        ------
        InvalidEpochError
            The epoch or the offset is negative.

        Notes
        -----
        Source: LeaderEpochFileCache.assign, maybeTruncateNonMonotonicEntries.
        """
        if epoch < 0 or start_offset < 0:
            raise InvalidEpochError(
                "a leader epoch or its start offset is negative",
                expected="0 or more",
                found=f"epoch {epoch} from offset {start_offset}",
            )
        entries = self._entries
        if entries and entries[-1].epoch == epoch and entries[-1].start_offset <= start_offset:
            return False
        while entries and (entries[-1].epoch >= epoch or entries[-1].start_offset >= start_offset):
            entries.pop()
        entries.append(EpochEntry(epoch, start_offset))
        return True

    def assign_from_batch(self, epoch: int, base_offset: int) -> bool:
        """Assign the epoch of a batch like recovery: only if it is above the latest.

        Parameters
        ----------
        epoch : int
            The batch's leader epoch, -1 for none.
        base_offset : int
            The batch's base offset, absolute.

        Returns
        -------
        bool
            Whether anything changed.

        Notes
        -----
        Source: LogSegment.recover.
        """
        latest = self.latest_epoch
        if epoch < 0 or (latest is not None and epoch <= latest):
            return False
        return self.assign(epoch, base_offset)

    def truncate_from_start(self, offset: int) -> bool:
        """Remove the epochs before an offset; the epoch of the offset then starts at the offset.

        Returns
        -------
        bool
            Whether an epoch started at or before the offset. Kafka then writes the checkpoint, even
            if nothing has changed.
        """
        removed_count = bisect_right(self._entries, offset, key=_start_offset)
        if removed_count:
            self._entries[:removed_count] = [
                EpochEntry(self._entries[removed_count - 1].epoch, offset)
            ]
        return removed_count > 0

    def truncate_from_end(self, offset: int) -> bool:
        """Remove the epochs that start at or above an offset; return whether there were any.

        A negative offset removes nothing.
        """
        kept_count = bisect_left(self._entries, offset, key=_start_offset)
        if offset < 0 or kept_count == len(self._entries):
            return False
        del self._entries[kept_count:]
        return True

    def epoch_for_offset(self, offset: int) -> int | None:
        """Return the epoch of an offset, None before the first epoch."""
        next_row = bisect_right(self._entries, offset, key=_start_offset)
        return self._entries[next_row - 1].epoch if next_row else None

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the last epoch at or below the given one, and its end offset.

        Parameters
        ----------
        epoch : int
            The requested epoch.
        log_end_offset : int
            End of the latest epoch.

        Returns
        -------
        tuple of int
            The epoch and its exclusive end offset: the start of the next epoch. An epoch before the
            first known one is returned with the start of the first. ``(-1, -1)`` for -1, or above
            the latest.
        """
        if epoch == NO_LEADER_EPOCH:
            return NO_LEADER_EPOCH, UNDEFINED_EPOCH_OFFSET
        if epoch == self.latest_epoch:
            return epoch, log_end_offset
        next_row = bisect_right(self._entries, epoch, key=_epoch)
        if next_row == len(self._entries):
            return NO_LEADER_EPOCH, UNDEFINED_EPOCH_OFFSET
        earlier_epoch = self._entries[next_row - 1].epoch if next_row else epoch
        return earlier_epoch, self._entries[next_row].start_offset


def _epoch(entry: EpochEntry) -> int:
    return entry.epoch


def _start_offset(entry: EpochEntry) -> int:
    return entry.start_offset
