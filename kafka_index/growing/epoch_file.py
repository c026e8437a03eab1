"""The ``leader-epoch-checkpoint`` of a partition directory, rewritten when its epochs change."""

from __future__ import annotations

import os

from kafka_index.growing.incoming_batches import IncomingBatches
from kafka_index.layout.checkpoints import EpochEntry
from kafka_index.layout.names import LEADER_EPOCH_CHECKPOINT
from kafka_index.layout.records import MAGIC_RECORD_BATCH
from kafka_index.state.leader_epochs import LeaderEpochCache
from kafka_index.storage import AtomicFile
from kafka_index.storage.log_directory import read_checkpoint_text


class EpochFile:
    """The leader epochs of a partition, and their file, which is created empty.

    Raises `InputError` or `InvalidEpochError` if the file is malformed.
    """

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, LEADER_EPOCH_CHECKPOINT)
        text = read_checkpoint_text(self._path)
        if text is None:
            text = ""
            self._write(text)
        self.cache = LeaderEpochCache.from_text(text, path=self._path)

    def assign(self, batches: IncomingBatches) -> None:
        """Record the epochs of batches that are appended."""
        has_changed = False
        for row, epoch, base_offset in batches.epoch_starts():
            if batches.magic[row] >= MAGIC_RECORD_BATCH:
                has_changed |= self.cache.assign(epoch, base_offset)
            elif self.cache.entries:
                self.cache = LeaderEpochCache()
                has_changed = True
        self._write_if(changed=has_changed)

    def assign_recovered(self, batches: IncomingBatches) -> None:
        """Record the epochs of batches as recovery does."""
        has_changed = False
        for _, epoch, base_offset in batches.epoch_starts():
            has_changed |= self.cache.assign_from_batch(epoch, base_offset)
        self._write_if(changed=has_changed)

    def truncate_from_end(self, offset: int) -> None:
        """Drop the epochs that start at an offset or above."""
        self._write_if(changed=self.cache.truncate_from_end(offset))

    def truncate_from_start(self, offset: int) -> None:
        """Drop the epochs before an offset."""
        self._write_if(changed=self.cache.truncate_from_start(offset))

    def restore(self, entries: tuple[EpochEntry, ...]) -> None:
        """Roll back to the entries of an earlier moment."""
        has_changed = self.cache.entries != entries
        self.cache = LeaderEpochCache(entries)
        self._write_if(changed=has_changed)

    def clear(self) -> None:
        """Drop all epochs."""
        self.cache = LeaderEpochCache()
        self._write(self.cache.text())

    def _write_if(self, *, changed: bool) -> None:
        if changed:
            self._write(self.cache.text())

    def _write(self, text: str) -> None:
        with AtomicFile(self._path, scratch_path=f"{self._path}.tmp") as file:
            file.write(text.encode())
            file.commit()
