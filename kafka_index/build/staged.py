"""What a segment is between its scan and its publication: a row, and scratch files that wait."""

from __future__ import annotations

import os
from dataclasses import dataclass

from kafka_index.build.outputs import Output
from kafka_index.build.report import SegmentReport
from kafka_index.build.settings import BuildSettings
from kafka_index.layout.names import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TopicPartition,
    index_name_for,
)
from kafka_index.state.segment_state import SegmentState
from kafka_index.storage import (
    BuildRecord,
    FilePublication,
    Publication,
    PublishedFile,
    SegmentFile,
    SegmentPublication,
    StagedFile,
    prepare_target_directory,
    record_path,
    remove_scratch,
    scratch_path,
    state_path,
)


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """A segment whose row is known, and what is left to publish for it.

    Parameters
    ----------
    segment : SegmentFile
        As it was listed.
    report : SegmentReport
        Its row, as far as it can be told without the segments before it.
    directory : str
        The target folder; empty when it could not be made.
    attempt_id : str, optional
        Whose scratch files are waiting; None when there are none.
    is_withheld : bool
        These are there for the segments behind it only, and not to be published.
    """

    segment: SegmentFile
    report: SegmentReport
    directory: str = ""
    attempt_id: str | None = None
    is_withheld: bool = False

    def publication(self, settings: BuildSettings) -> Publication | None:
        """Return the scratch files that are to appear, and where; None when there are none."""
        if self.attempt_id is None or self.is_withheld:
            return None
        return SegmentPaths.of(self.segment, self.directory).publication(settings, self.attempt_id)

    def remove_scratch(self, settings: BuildSettings) -> None:
        """Remove the scratch files, which are not going to be published."""
        if self.attempt_id is not None:
            paths = SegmentPaths.of(self.segment, self.directory)
            paths.remove_scratch(settings, self.attempt_id)


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
        """Return those that are to appear besides the record, in this order: the index last."""
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
            return StagedFile(scratch_path(path, settings.run_id, attempt_id), path)

        files = tuple(map(staged, self.published(settings)))
        attributes_of = settings.attributes_of(self.log_path)
        if Output.INDEX in settings.outputs:
            return SegmentPublication(files, staged(self.record), attributes_of)
        return FilePublication(files, attributes_of) if files else None

    def remove_scratch(self, settings: BuildSettings, attempt_id: str) -> None:
        """Remove whatever scratch files an attempt has left."""
        for path in (self.time_index, self.offset_index, self.state, self.record):
            remove_scratch(scratch_path(path, settings.run_id, attempt_id))


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


def read_state(staged: StagedSegment, settings: BuildSettings) -> SegmentState:
    """Return what the scan of a segment found of its producers and epochs.

    Raises
    ------
    InputError
        It cannot be read.
    """
    path = state_path(staged.directory, staged.segment.base_offset)
    if staged.attempt_id is not None:
        scratch = scratch_path(path, settings.run_id, staged.attempt_id)
        # An attempt that was interrupted while it published may have renamed it. Or given it up,
        # and then an older one may be there.
        if os.path.exists(scratch) or not _is_published(path, staged, settings):
            path = scratch
    return SegmentState.read(path)


def _is_published(path: str, staged: StagedSegment, settings: BuildSettings) -> bool:
    """Tell whether a state file is that of the segment as it is now."""
    segment = staged.segment
    config = settings.config.for_topic(segment.topic)
    place = record_path(staged.directory, segment.base_offset)
    waiting = scratch_path(place, settings.run_id, str(staged.attempt_id))
    record = BuildRecord.read(waiting) or BuildRecord.read(place)
    if record is None or not record.matches(
        segment,
        index_interval_bytes=config.index_interval_bytes,
        index_size_max_bytes=config.index_size_max_bytes,
        verify_crc=settings.verify_crc,
    ):
        return False
    try:
        return PublishedFile.of(path) in record.files
    except OSError:
        return False
