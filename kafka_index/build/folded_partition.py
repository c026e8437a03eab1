"""The result of a fold: the final rows of a partition, and files that wait to be published."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from kafka_index.build.report import SegmentReport
from kafka_index.build.settings import BuildSettings, Output
from kafka_index.build.staged_segment import PublishedFile, StagedSegment
from kafka_index.errors import KafkaIndexError
from kafka_index.layout.names import TXN_INDEX_SUFFIX, index_name_for
from kafka_index.storage import StagedFile, write_scratch
from kafka_index.storage.directories import Entry
from kafka_index.storage.publish import TargetFiles, is_new_folder


@dataclass(frozen=True, slots=True)
class FoldedSegment:
    """A segment with its final row, and the state files to publish before its ``.index``."""

    staged: StagedSegment
    report: SegmentReport
    files: tuple[StagedFile, ...] = ()


@dataclass
class FoldedPartition:
    """A partition whose files wait to be published.

    `staged` are its segments as they were scanned, `segments` the same, folded up to an error.
    `own_files` belong to no segment, and appear before any other. `first_offset` is the log start
    offset for a broker, `log_start_offset` the checkpointed one beside the logs. `snapshots` are
    the offsets of all snapshots that the partition is to have, None if they are not known;
    `published` are its state files, new or not. An `error` keeps the whole partition from being
    published. `start_entries` is the directory of its logs in a store, as it was listed for the
    fold.
    """

    staged: Sequence[StagedSegment]
    segments: list[FoldedSegment] = field(default_factory=list)
    own_files: tuple[StagedFile, ...] = ()
    first_offset: int = 0
    snapshots: set[int] | None = None
    error: KafkaIndexError | None = None
    published: list[PublishedFile] = field(default_factory=list)
    log_start_offset: int | None = None
    start_entries: Sequence[Entry] | None = None

    @property
    def directory(self) -> str:
        """The target folder: of any segment, as those that failed early may not know it."""
        return max(each.directory for each in self.staged)


class StateFiles:
    """Writes the state files of one partition to scratch files where the target lacks them.

    `published` has all state files that the partition is to have, new or not.
    """

    def __init__(self, settings: BuildSettings, attempt_id: str) -> None:
        self._settings = settings
        self._attempt_id = attempt_id
        self._target: TargetFiles | None = None
        self.published: list[PublishedFile] = []

    def write_txn_index(self, staged: StagedSegment, data: bytes) -> tuple[StagedFile, ...]:
        """Write a segment's transaction index; an empty one only over one that is there."""
        if Output.TXN_INDEX not in self._settings.outputs:
            return ()
        log_name = os.path.basename(staged.segment.log_path)
        path = os.path.join(staged.directory, index_name_for(log_name, TXN_INDEX_SUFFIX))
        if not data and not self._target_of(staged).exists(path):
            return ()
        return self.write(path, data, staged)

    def write(self, path: str, data: bytes, staged: StagedSegment) -> tuple[StagedFile, ...]:
        """Write a file, unless the target holds it already."""
        self.published.append(PublishedFile.of_bytes(os.path.basename(path), data))
        if self._target_of(staged).holds(path, data):
            return ()
        file = StagedFile(self._settings.work_path(path, self._attempt_id), path)
        attributes_of = self._settings.attributes_of(staged.segment.log_path)
        write_scratch(file.scratch_path, data, attributes_of=attributes_of)
        return (file,)

    def _target_of(self, staged: StagedSegment) -> TargetFiles:
        if self._target is None:
            is_new = is_new_folder(staged.directory, self._settings.run_id)
            self._target = TargetFiles(staged.directory, is_new=is_new)
        return self._target
