"""A scanned segment that is not published yet: its report row and temporary files.

For a remote segment, the built index files are also compared with its stored index files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kafka_index.core.errors import CorruptObjectError, InputError, KafkaIndexError
from kafka_index.core.format.names import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    index_name_for,
    segment_file_name,
)
from kafka_index.core.format.records import ABORTED_TXN, OFFSET_ENTRY, TIME_ENTRY
from kafka_index.core.fs.paths import prepare_target_directory
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.uris import is_segment_path
from kafka_index.core.log.choices import BuildOutput
from kafka_index.core.log.recovery.settings import BuildSettings, SegmentReport
from kafka_index.core.log.state.partition_state import SegmentState
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.output.publish import Publication, StagedFile, is_new_folder, remove_scratch

# Suffix of a hidden file with the producers and leader epochs of a segment. If only other segments
# of the partition have changed, this file is read instead of the ``.log`` file.
_STATE_SUFFIX = ".kafka-index-state"
_DIGEST_BYTES = 16
_CHUNK_BYTES = 1 << 20

_ENTRY_BYTES = {
    OFFSET_INDEX_SUFFIX: OFFSET_ENTRY.itemsize,
    TIME_INDEX_SUFFIX: TIME_ENTRY.itemsize,
    TXN_INDEX_SUFFIX: ABORTED_TXN.itemsize,
}


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file to publish: its final name, its size, and its 16-byte BLAKE2b digest in hex."""

    name: str
    size_bytes: int
    digest: str

    @classmethod
    def of(cls, path: str, name: str | None = None) -> PublishedFile:
        """Read the file at `path` and compute its digest; raises `OSError` if this fails."""
        name = name or os.path.basename(path)
        store = store_of(path)
        if store.needs_requests:
            return cls.of_bytes(name, store.read(path))
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        size_bytes = 0
        with open(path, "rb", buffering=0) as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                size_bytes += len(chunk)
        return cls(name, size_bytes, digest.hexdigest())

    @classmethod
    def of_bytes(cls, name: str, data: bytes) -> PublishedFile:
        digest = hashlib.blake2b(data, digest_size=_DIGEST_BYTES)
        return cls(name, len(data), digest.hexdigest())


@dataclass(frozen=True, slots=True)
class SegmentPaths:
    """The final paths of the files that are built for a segment, and the path of its log."""

    time_index: str
    offset_index: str
    state: str
    log_path: str

    @classmethod
    def of(cls, segment: SegmentFile, directory: str) -> SegmentPaths:
        log_name = os.path.basename(segment.log_path)
        return cls(
            os.path.join(directory, index_name_for(log_name, TIME_INDEX_SUFFIX)),
            os.path.join(directory, index_name_for(log_name, OFFSET_INDEX_SUFFIX)),
            os.path.join(directory, "." + segment_file_name(segment.base_offset, _STATE_SUFFIX)),
            segment.log_path,
        )

    def published(self, settings: BuildSettings) -> tuple[str, ...]:
        """Return the final paths of the files to publish in this order, the ``.index`` last."""
        # A state file is useful only with a build manifest, which is written only with an
        # ``.index``.
        has_index = BuildOutput.INDEX in settings.outputs
        paths = (
            (self.state, has_index and settings.needs_state),
            (self.time_index, BuildOutput.TIME_INDEX in settings.outputs),
            (self.offset_index, has_index),
        )
        return tuple(path for path, is_published in paths if is_published)

    def publication(self, settings: BuildSettings, attempt_id: str) -> Publication | None:
        """Return the temporary files of an attempt with their final paths, None without any."""

        def staged(path: str) -> StagedFile:
            return StagedFile(settings.staged_path(path, attempt_id), path)

        files = tuple(map(staged, self.published(settings)))
        attributes_of = settings.attributes_of(self.log_path)
        if BuildOutput.INDEX in settings.outputs:
            is_new = is_new_folder(os.path.dirname(self.offset_index), settings.run_id)
            return Publication(
                files,
                attributes_of=attributes_of,
                is_segment=True,
                is_new=is_new,
                is_shared=settings.shares_staged,
            )
        return Publication(files, attributes_of=attributes_of) if files else None

    def hand_over(self, settings: BuildSettings, attempt_id: str) -> None:
        """Upload the temporary files of an attempt, if another process publishes them.

        Raises `PublishError` if an upload fails.
        """
        for path in self._written_paths:
            work_path = settings.work_path(path, attempt_id)
            staged_path = settings.staged_path(path, attempt_id)
            if work_path != staged_path and os.path.exists(work_path):
                with open(work_path, "rb") as file:
                    store_of(staged_path).put(staged_path, file.read())
                remove_scratch(work_path)

    def remove_scratch(self, settings: BuildSettings, attempt_id: str) -> None:
        """Delete the local temporary files of an attempt.

        Remote temporary files are deleted at the end of the run, since another attempt may need
        them.
        """
        for path in self._written_paths:
            remove_scratch(settings.work_path(path, attempt_id))

    @property
    def _written_paths(self) -> tuple[str, ...]:
        return self.time_index, self.offset_index, self.state


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """A scanned segment, and its temporary files.

    Attributes
    ----------
    report
        The report row, without values that depend on earlier segments.
    directory
        Target folder, empty if the folder could not be created.
    attempt_id
        ID in the names of the temporary files, None if there are none.
    is_withheld
        True if the temporary files must not be published, and are only needed to merge later
        segments.
    files
        Index files and state file of the segment, from this scan or an earlier run.
    """

    segment: SegmentFile
    report: SegmentReport
    directory: str = ""
    attempt_id: str | None = None
    is_withheld: bool = False
    files: tuple[PublishedFile, ...] = ()

    @property
    def paths(self) -> SegmentPaths:
        return SegmentPaths.of(self.segment, self.directory)

    def publication(self, settings: BuildSettings) -> Publication | None:
        """Return the temporary files to publish with their final paths, None without any."""
        if self.attempt_id is None or self.is_withheld:
            return None
        return self.paths.publication(settings, self.attempt_id)

    def remove_scratch(self, settings: BuildSettings) -> None:
        """Delete the local temporary files."""
        if self.attempt_id is not None:
            self.paths.remove_scratch(settings, self.attempt_id)

    def read_state(self, settings: BuildSettings) -> SegmentState:
        """Read the segment's producers and leader epochs from its state file.

        Raises `InputError` if the state file cannot be read.
        """
        path = self.paths.state
        if self.attempt_id is None:
            return SegmentState.read(path)
        try:
            return SegmentState.read(settings.staged_path(path, self.attempt_id))
        except InputError:
            # Another attempt may have renamed the temporary file to its final path. The digest of
            # that file is compared, because it may be from an earlier scan. In object stores, the
            # temporary file remains.
            if not store_of(path).stages_locally or not self._is_published(path):
                raise
            return SegmentState.read(path)

    def is_published(self) -> bool:
        return not self.is_withheld and bool(self.files) and self.has_published_content()

    def has_published_content(self) -> bool:
        """Return whether each file exists at its final path with the content of this scan."""
        return all(
            self._is_published(os.path.join(self.directory, file.name)) for file in self.files
        )

    def _is_published(self, path: str) -> bool:
        """Return whether the file at a final path has the content of this scan."""
        try:
            return PublishedFile.of(path) in self.files
        except (OSError, KafkaIndexError):
            return False


def target_directory_of(segment: SegmentFile, settings: BuildSettings) -> str:
    """Return the target folder of a segment's index files; create it if it is missing.

    Raises `PublishError` if the folder cannot be created.
    """
    return prepare_target_directory(
        settings.target_root,
        segment.topic_partition,
        segment.partition_directory,
    )


def describe_stored_differences(segment: SegmentFile, built: Mapping[str, bytes]) -> str | None:
    """Return how the stored indexes of a remote segment differ from the built indexes.

    Returns None if all are equal, and for local segments, which have no stored indexes.
    """
    if not is_segment_path(segment.log_path):
        return None
    differences = (_describe_difference(segment, suffix, data) for suffix, data in built.items())
    return "; ".join(filter(None, differences)) or None


def _describe_difference(segment: SegmentFile, suffix: str, built_bytes: bytes) -> str | None:
    directory, log_name = os.path.split(segment.log_path)
    path = os.path.join(directory, index_name_for(log_name, suffix))
    try:
        stored_bytes = store_of(path).read(path)
    except FileNotFoundError:
        return f"the segment has no stored {suffix}" if built_bytes else None
    except CorruptObjectError as error:
        return f"the stored {suffix} cannot be read: {error}"
    if stored_bytes == built_bytes:
        return None
    entry_bytes = _ENTRY_BYTES[suffix]
    shared_bytes = min(len(stored_bytes), len(built_bytes))
    arrays = (np.frombuffer(data[:shared_bytes], np.uint8) for data in (stored_bytes, built_bytes))
    different_bytes = np.flatnonzero(np.not_equal(*arrays))
    first_byte = int(different_bytes[0]) if len(different_bytes) else shared_bytes
    return (
        f"the stored {suffix} differs from the built {suffix} at entry {first_byte // entry_bytes} "
        f"(stored {len(stored_bytes) // entry_bytes} entries, "
        f"built {len(built_bytes) // entry_bytes} entries)"
    )
