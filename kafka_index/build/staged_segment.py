"""What a segment is between its scan and its publication: a row, and scratch files that wait."""

from __future__ import annotations

import os
from dataclasses import dataclass

from kafka_index.build.report import SegmentReport
from kafka_index.build.settings import BuildSettings, Output
from kafka_index.errors import KafkaIndexError
from kafka_index.layout.names import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TopicPartition,
    index_name_for,
)
from kafka_index.state.segment_state import SegmentState
from kafka_index.storage import (
    Publication,
    PublishedFile,
    SegmentFile,
    StagedFile,
    prepare_target_directory,
    record_path,
    remove_scratch,
    state_path,
)
from kafka_index.storage.target_files import is_new_folder
from kafka_index.stores import is_remote, store_of


@dataclass(frozen=True, slots=True)
class SegmentPaths:
    """Where the files are that a segment has of its own.

    Parameters
    ----------
    time_index, offset_index, state, record : str
        Their final paths.
    log_path : str
        The log.
    """

    time_index: str
    offset_index: str
    state: str
    record: str
    log_path: str

    @classmethod
    def of(cls, segment: SegmentFile, directory: str) -> SegmentPaths:
        """Return the paths of a segment's files in its target folder."""
        log_name = os.path.basename(segment.log_path)
        return cls(
            os.path.join(directory, index_name_for(log_name, TIME_INDEX_SUFFIX)),
            os.path.join(directory, index_name_for(log_name, OFFSET_INDEX_SUFFIX)),
            state_path(directory, segment.base_offset),
            record_path(directory, segment.base_offset),
            segment.log_path,
        )

    def published(self, settings: BuildSettings) -> tuple[str, ...]:
        """Return those that are to appear, in order: the index last."""
        # Without a record beside it, nobody would know what the state belongs to.
        has_record = Output.INDEX in settings.outputs
        wanted = (
            (self.state, has_record and settings.needs_state),
            (self.time_index, Output.TIME_INDEX in settings.outputs),
            (self.offset_index, has_record),
        )
        return tuple(path for path, is_wanted in wanted if is_wanted)

    def publication(self, settings: BuildSettings, attempt_id: str) -> Publication | None:
        """Return the scratch files of an attempt that are to appear; None for none."""

        def staged(path: str) -> StagedFile:
            return StagedFile(settings.staged_path(path, attempt_id), path)

        files = tuple(map(staged, self.published(settings)))
        attributes_of = settings.attributes_of(self.log_path)
        if Output.INDEX in settings.outputs:
            # Its partition has a record of its own, which is written after all segments.
            is_new = is_new_folder(os.path.dirname(self.record), settings.run_id)
            return Publication(
                files, attributes_of=attributes_of, old_record=self.record, is_new=is_new
            )
        return Publication(files, attributes_of=attributes_of) if files else None

    def hand_over(self, settings: BuildSettings, attempt_id: str) -> None:
        """Put the scratch files of an attempt where the process that publishes them finds them.

        Raises
        ------
        PublishError
            The store refuses one.
        """
        for path in self._all:
            work_path = settings.work_path(path, attempt_id)
            staged_path = settings.staged_path(path, attempt_id)
            if work_path != staged_path and os.path.exists(work_path):
                with open(work_path, "rb") as file:
                    store_of(staged_path).put(staged_path, file.read())
                remove_scratch(work_path)

    def remove_scratch(self, settings: BuildSettings, attempt_id: str) -> None:
        """Remove the scratch files an attempt has left, but for those in a store.

        Another attempt may need them, and the end of the run sweeps them.
        """
        for path in self._all:
            remove_scratch(settings.work_path(path, attempt_id))

    @property
    def _all(self) -> tuple[str, ...]:
        return self.time_index, self.offset_index, self.state, self.record


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """A segment whose row is known, and what is left to publish for it.

    Parameters
    ----------
    segment : SegmentFile
        As it was listed.
    report : SegmentReport
        Its row, as far as it is known without the segments before it.
    directory : str
        The target folder; empty when it could not be made.
    attempt_id : str, optional
        The attempt whose scratch files are waiting; None when there are none.
    is_withheld : bool
        They serve the segments after it only, and are not published.
    files : tuple of PublishedFile
        Its files of its own, as they were written by this scan or by an earlier run.
    """

    segment: SegmentFile
    report: SegmentReport
    directory: str = ""
    attempt_id: str | None = None
    is_withheld: bool = False
    files: tuple[PublishedFile, ...] = ()

    @property
    def paths(self) -> SegmentPaths:
        """Where its files are."""
        return SegmentPaths.of(self.segment, self.directory)

    def publication(self, settings: BuildSettings) -> Publication | None:
        """Return the scratch files that are to appear, and where; None when there are none."""
        if self.attempt_id is None or self.is_withheld:
            return None
        return self.paths.publication(settings, self.attempt_id)

    def remove_scratch(self, settings: BuildSettings) -> None:
        """Remove the scratch files that are not published."""
        if self.attempt_id is not None:
            self.paths.remove_scratch(settings, self.attempt_id)

    def read_state(self, settings: BuildSettings) -> SegmentState:
        """Return what the scan found of the segment's producers and epochs.

        Raises
        ------
        InputError
            It cannot be read.
        """
        path = self.paths.state
        if self.attempt_id is not None:
            scratch = settings.staged_path(path, self.attempt_id)
            # An attempt that was interrupted while it published may have renamed it, or may have
            # given it up: then an older one may be there. Objects are copied, not renamed.
            if is_remote(path) or os.path.exists(scratch) or not self._is_published(path):
                path = scratch
        return SegmentState.read(path)

    def is_published(self) -> bool:
        """Return whether it has files that are to be published, and all of its own are."""
        return not self.is_withheld and bool(self.files) and self.is_in_place()

    def is_in_place(self) -> bool:
        """Return whether all files of its own are published as they were written."""
        return all(
            self._is_published(os.path.join(self.directory, file.name)) for file in self.files
        )

    def _is_published(self, path: str) -> bool:
        """Return whether a published file is that of the segment as it was scanned."""
        try:
            return PublishedFile.of(path) in self.files
        except (OSError, KafkaIndexError):
            return False


def target_directory_of(segment: SegmentFile, settings: BuildSettings) -> str:
    """Return the folder of a segment's index files, made if it is missing.

    Raises
    ------
    PublishError
        It cannot be made.
    """
    return prepare_target_directory(
        settings.target_root,
        TopicPartition(segment.topic, segment.partition),
        segment.partition_directory,
    )
