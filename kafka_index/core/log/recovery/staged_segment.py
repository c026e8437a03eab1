"""A segment between scan and publication: a report row, and temporary files.

Index files of a remote segment are compared with the stored index files.
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

# Suffix of a hidden file with the producers and leader epochs of a segment. If only an earlier
# segment of the partition has changed, this file is read instead of the log.
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
    """A written file: its final name, size, and BLAKE2b digest of 16 bytes in hex."""

    name: str
    size_bytes: int
    digest: str

    @classmethod
    def of(cls, path: str, name: str | None = None) -> PublishedFile:
        """Describe the file at `path`; raises `OSError` if it cannot be read."""
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
    """The final paths of a segment's own files, and its log."""

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
        """Return the files to publish, in order: the ``.index`` is last."""
        # The state file is used only with a build manifest, which identifies the log.
        has_index = BuildOutput.INDEX in settings.outputs
        paths = (
            (self.state, has_index and settings.needs_state),
            (self.time_index, BuildOutput.TIME_INDEX in settings.outputs),
            (self.offset_index, has_index),
        )
        return tuple(path for path, is_published in paths if is_published)

    def publication(self, settings: BuildSettings, attempt_id: str) -> Publication | None:
        """Return an attempt's temporary files to publish, None without such files."""

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
        """Upload an attempt's temporary files for the process that publishes them.

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
        """Delete an attempt's local temporary files.

        Another attempt may need remote temporary files, which are deleted at the end of the run.
        """
        for path in self._written_paths:
            remove_scratch(settings.work_path(path, attempt_id))

    @property
    def _written_paths(self) -> tuple[str, ...]:
        return self.time_index, self.offset_index, self.state


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """A scanned segment, and the files that are not yet published.

    Attributes
    ----------
    report
        The row, without values that depend on earlier segments.
    directory
        Target folder, empty if the folder could not be created.
    attempt_id
        ID in the names of temporary files, None without temporary files.
    is_withheld
        True if later segments need the temporary files, which are not published.
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
        """Return the temporary files to publish and their targets, None without such files."""
        if self.attempt_id is None or self.is_withheld:
            return None
        return self.paths.publication(settings, self.attempt_id)

    def remove_scratch(self, settings: BuildSettings) -> None:
        """Delete the temporary files that are not published."""
        if self.attempt_id is not None:
            self.paths.remove_scratch(settings, self.attempt_id)

    def read_state(self, settings: BuildSettings) -> SegmentState:
        """Read the producers and epochs of the segment.

        Raises `InputError` if the state file cannot be read.
        """
        path = self.paths.state
        if self.attempt_id is None:
            return SegmentState.read(path)
        try:
            return SegmentState.read(settings.staged_path(path, self.attempt_id))
        except InputError:
            # Another attempt may have published the staged file by a rename. The published file is
            # compared, because it may be from an earlier scan. In object stores, the staged file
            # remains.
            if not store_of(path).stages_locally or not self._is_published(path):
                raise
            return SegmentState.read(path)

    def is_published(self) -> bool:
        return not self.is_withheld and bool(self.files) and self.has_published_content()

    def has_published_content(self) -> bool:
        """Return whether all files of the segment are published with the written content."""
        return all(
            self._is_published(os.path.join(self.directory, file.name)) for file in self.files
        )

    def _is_published(self, path: str) -> bool:
        """Return whether a published file has the written content."""
        try:
            return PublishedFile.of(path) in self.files
        except (OSError, KafkaIndexError):
            return False


def target_directory_of(segment: SegmentFile, settings: BuildSettings) -> str:
    """Return the folder of a segment's index files; create it if missing.

    Raises `PublishError` if the folder cannot be created.
    """
    return prepare_target_directory(
        settings.target_root,
        segment.topic_partition,
        segment.partition_directory,
    )


def describe_stored_differences(segment: SegmentFile, built: Mapping[str, bytes]) -> str | None:
    """Return how the stored indexes of a remote segment differ from the built indexes.

    Returns None if all are equal, and for a local segment, which has no stored indexes.
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
