"""The output directory of a rewrite: empty at first, and marked as that of this rewrite.

The mark has no digest until it is decided that the rewrite is written: a refused rewrite, and one
killed before that, leave a directory that any other may be written to. It stays at the end: where
only the report or the summary of a run could not be written, the same run reports again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Self

from kafka_index.dump.data_directory import DataDirectory
from kafka_index.dump.small_files import read_text
from kafka_index.errors import InputError
from kafka_index.layout.checkpoints import format_offset_checkpoint
from kafka_index.layout.names import (
    BROKER_LOCK,
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    REPLICATION_CHECKPOINT,
    TopicPartition,
)
from kafka_index.storage import AtomicFile, DirectoryLock, check_target, make_durable, publish_error
from kafka_index.writing.staging import create_staging, remove_directory, staging_directory

#: Holds the digest of the rewrite that the directory is the output of; empty before the decision.
_MARK = ".rewrite.kafka-index"
#: What it is written as at first, and all that a run killed by then leaves.
_MARK_SCRATCH = f".{_MARK}.tmp"
#: After the digest, once all is there.
_FINISHED = " finished"
#: What holds for the rewritten logs too: offsets do not change.
_CHECKPOINTS = (LOG_START_CHECKPOINT, REPLICATION_CHECKPOINT, CLEANER_CHECKPOINT)


class RewriteOutput:
    """An output directory, held against other runs and brokers while it is open.

    It is made if missing. `is_finished`: it is the whole output of the rewrite with the same
    digest, and must not be written to.
    """

    is_finished = False

    def __init__(self, path: str, inputs: Sequence[str], digest: str) -> None:
        self.root = check_target(path, inputs)
        self.staging = staging_directory(self.root)
        self._digest = digest
        self._mark = os.path.join(self.root, _MARK)
        self._is_begun = False
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Lock the directory, and mark it as one to be decided about."""
        with ExitStack() as stack:
            stack.enter_context(DirectoryLock.of_data_directories([self.root]))
            if not self._is_continued():
                _write(self._mark, "")
                stack.callback(self._remove_undecided)
            self._stack = stack.pop_all()
        return self

    def left_out(self, partition: TopicPartition) -> InputError | None:
        """Return, of a finished output, why a partition is not in it; None if it is."""
        if os.path.isdir(os.path.join(self.root, partition.directory_name)):
            return None
        return InputError("the run that finished has left it out", path=self.root)

    def begin(self) -> None:
        """Mark the directory as the unfinished output of this rewrite, before it is written to."""
        self._is_begun = True
        _write(self._mark, self._digest)
        self._stack.callback(remove_directory, self.staging)
        create_staging(self.staging)

    def __exit__(self, *_: object) -> None:
        """Remove unpublished partitions, and release the directory."""
        self._stack.close()

    def finish(
        self,
        directories: Sequence[str],
        ends: Mapping[TopicPartition, int | None],
        log_starts: Mapping[TopicPartition, int],
    ) -> None:
        """Write the files at the root, and mark the output as finished.

        `ends` has the partitions in the output, and the ends of their logs: no checkpoint goes
        beyond. It is None for a partition that is copied as it is. `log_starts` has the partitions
        whose start is not in the data directories that were read.
        """
        roots = [DataDirectory(each) for each in directories]
        for name in _CHECKPOINTS:
            offsets: dict[TopicPartition, int] = {}
            for root in roots:
                offsets |= root.checkpoint(name).offsets
            if name == LOG_START_CHECKPOINT:
                offsets |= log_starts
            kept = {
                each: _clamped(offset, ends[each])
                for each, offset in offsets.items()
                if each in ends
            }
            if kept:
                _write(os.path.join(self.root, name), format_offset_checkpoint(kept))
        if len(directories) == 1:
            text = read_text(os.path.join(directories[0], META_PROPERTIES))
            if text is not None:
                _write(os.path.join(self.root, META_PROPERTIES), text)
        # Before the mark: what is left then is the whole result, and nothing else.
        remove_directory(self.staging)
        for path, error in make_durable([self.root]).items():
            raise publish_error(error, path, "make it durable")
        _write(self._mark, self._digest + _FINISHED)

    def _is_continued(self) -> bool:
        """Return whether the directory is the output of this rewrite, finished or not."""
        names = set(os.listdir(self.root)) - {BROKER_LOCK, _MARK_SCRATCH}
        if not names:
            return False
        found = read_text(self._mark)
        if found is None or (not found and any(not name.startswith(".") for name in names)):
            raise InputError("the output is not empty", path=self.root, hint="give an empty folder")
        self.is_finished = found == self._digest + _FINISHED
        if not self.is_finished and found.endswith(_FINISHED):
            raise InputError(
                "the output is that of another rewrite", path=self.root, hint="give an empty folder"
            )
        if not self.is_finished and found not in ("", self._digest):
            raise InputError(
                "the output is that of an unfinished rewrite of something else",
                path=self.root,
                hint="remove it, or give another folder",
            )
        return bool(found)

    def _remove_undecided(self) -> None:
        if not self._is_begun:
            with suppress(OSError):
                os.unlink(self._mark)


def _clamped(offset: int, end_offset: int | None) -> int:
    """Return the offset of a checkpoint for a log that ends at another, if that is known."""
    return offset if end_offset is None else min(offset, end_offset)


def _write(path: str, text: str) -> None:
    with AtomicFile(path) as file:
        file.write(text.encode())
        file.commit()
