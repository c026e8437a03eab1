"""The ``leader-epoch-checkpoint`` of a partition directory, kept as its epochs change."""

from __future__ import annotations

import os

from kafka_index.errors import InvalidEpochError
from kafka_index.growing.incoming_batches import IncomingBatches
from kafka_index.growing.small_files import write_small_file
from kafka_index.layout.checkpoints import EpochEntry
from kafka_index.layout.names import LEADER_EPOCH_CHECKPOINT
from kafka_index.layout.records import MAGIC_RECORD_BATCH
from kafka_index.state.leader_epochs import LeaderEpochCache


class EpochFile:
    """The leader epochs of a partition, and their file.

    Parameters
    ----------
    directory : str
        The partition directory; an empty file is made in it if there is none.

    Raises
    ------
    InputError, InvalidEpochError
        The file is malformed.
    """

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, LEADER_EPOCH_CHECKPOINT)
        text = ""
        if os.path.exists(self._path):
            with open(self._path, encoding="utf-8") as file:
                text = file.read()
        else:
            write_small_file(self._path, b"")
        self.cache = LeaderEpochCache.from_text(text, path=self._path)

    def check(self, batches: IncomingBatches) -> None:
        """Refuse batches of magic 2 without an epoch, as a broker does.

        Raises
        ------
        InvalidEpochError
            There is one.
        """
        columns = batches.columns
        without = (columns.leader_epoch < 0) & (batches.magic >= MAGIC_RECORD_BATCH)
        if without.any():
            row = int(without.argmax())
            raise InvalidEpochError(
                "cannot append: a batch has no leader epoch",
                position_bytes=int(columns.position_bytes[row]),
                expected="0 or more",
                found=int(columns.leader_epoch[row]),
            )

    def assign(self, batches: IncomingBatches) -> None:
        """Record the epochs of batches that are appended."""
        epochs = batches.columns.leader_epoch
        old_format = batches.magic < MAGIC_RECORD_BATCH
        has_changed = False
        # Only where the epoch is not that of the batch before can anything change.
        changes = [0, *((epochs[1:] != epochs[:-1]).nonzero()[0] + 1).tolist()]
        for row in changes:
            if not old_format[row]:
                has_changed |= self.cache.assign(
                    int(epochs[row]), int(batches.columns.base_offset[row])
                )
            elif self.cache.entries:
                self.cache = LeaderEpochCache()
                has_changed = True
        if has_changed:
            self._write()

    def assign_recovered(self, epoch: int, base_offset: int) -> None:
        """Record the epoch of a batch as recovery does."""
        if self.cache.assign_from_batch(epoch, base_offset):
            self._write()

    def truncate_from_end(self, offset: int) -> None:
        """Drop the epochs that start at an offset or above."""
        if self.cache.truncate_from_end(offset):
            self._write()

    def truncate_from_start(self, offset: int) -> None:
        """Drop the epochs before an offset."""
        if self.cache.truncate_from_start(offset):
            self._write()

    def restore(self, entries: tuple[EpochEntry, ...]) -> None:
        """Roll back to the entries of an earlier moment."""
        if self.cache.entries != entries:
            self.cache = LeaderEpochCache(entries)
            self._write()

    def clear(self) -> None:
        """Drop all epochs."""
        self.cache = LeaderEpochCache()
        self._write()

    def _write(self) -> None:
        write_small_file(self._path, self.cache.text().encode(), replace=True)
