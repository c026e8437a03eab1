"""State files of a partition: written to scratch files where the target does not hold them."""

from __future__ import annotations

import os

from kafka_index.build.settings import BuildSettings, Output
from kafka_index.build.staged_segment import StagedSegment
from kafka_index.layout.names import TXN_INDEX_SUFFIX, index_name_for
from kafka_index.storage import PublishedFile, StagedFile, write_scratch
from kafka_index.storage.target_files import TargetFiles, is_new_folder


class StateFiles:
    """Writes the state files of one partition, and records what it is to have.

    Parameters
    ----------
    settings : BuildSettings
        How and where to.
    attempt_id : str
        Names the scratch files.

    Attributes
    ----------
    published : list of PublishedFile
        The files that the partition is to have, new or not.
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
