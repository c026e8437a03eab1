"""The build record: what one segment's published index files were built from.

A hidden file beside them, ``.<base offset, 20 digits>.kafka-index``, one line of JSON. A broker
ignores it (its name has no offset before the first dot: LogFileUtils.offsetFromFileName).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, astuple, dataclass, fields
from typing import Any

from kafka_index.errors import KafkaIndexError
from kafka_index.layout.names import segment_file_name
from kafka_index.storage.partition_files import SegmentFile
from kafka_index.stores import is_remote, store_of

RECORD_SUFFIX = ".kafka-index"
STATE_SUFFIX = ".kafka-index-state"
# Raise it whenever the rules of building change: older records then stop counting.
RECORD_VERSION = 3
_MAX_RECORD_BYTES = 64 * 1024
_DIGEST_BYTES = 16
_CHUNK_BYTES = 1 << 20


def record_path(target_directory: str, base_offset: int) -> str:
    """Return the path of a segment's build record."""
    return os.path.join(target_directory, "." + segment_file_name(base_offset, RECORD_SUFFIX))


def state_path(target_directory: str, base_offset: int) -> str:
    """Return the path of what a scan found of a segment's producers and leader epochs.

    A hidden file beside the record: with it a segment need not be scanned again when an earlier
    segment of its partition has changed.
    """
    return os.path.join(target_directory, "." + segment_file_name(base_offset, STATE_SUFFIX))


@dataclass(frozen=True, slots=True)
class SegmentCounts:
    """What a scan counted in a segment.

    Parameters
    ----------
    valid_bytes : int
        Length of the prefix that the indexes cover.
    batch_count : int
        Record batches in that prefix.
    offset_entries, time_entries : int
        Entries of ``.index`` and ``.timeindex``.
    next_offset : int
        The offset after the last one, as a broker reads it: the base offset where offsets go back
        after the last index entry.
    max_timestamp_ms : int
        The largest timestamp; -1 when there is none.
    """

    valid_bytes: int
    batch_count: int
    offset_entries: int
    time_entries: int
    next_offset: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class ScanSettings:
    """The settings that decide what a scan of a segment writes.

    Parameters
    ----------
    index_interval_bytes, index_size_max_bytes : int
        The topic's settings.
    verify_crc : bool
        Whether checksums are verified.
    """

    index_interval_bytes: int
    index_size_max_bytes: int
    verify_crc: bool


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A published file as it was written.

    Parameters
    ----------
    name : str
        Final name, no path.
    size_bytes : int
        Size in bytes.
    digest : str
        BLAKE2b of 16 bytes, in hex.
    """

    name: str
    size_bytes: int
    digest: str

    @classmethod
    def of(cls, path: str, name: str | None = None) -> PublishedFile:
        """Return what the file at `path` is now.

        Parameters
        ----------
        path : str
            The file, maybe a scratch file.
        name : str, optional
            Its final name, if different.

        Raises
        ------
        OSError
            It cannot be read.
        """
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        size_bytes = 0
        if is_remote(path):
            content = store_of(path).read(path)
            digest.update(content)
            return cls(name or os.path.basename(path), len(content), digest.hexdigest())
        with open(path, "rb", buffering=0) as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                size_bytes += len(chunk)
        return cls(name or os.path.basename(path), size_bytes, digest.hexdigest())

    @classmethod
    def of_bytes(cls, name: str, data: bytes) -> PublishedFile:
        """Return what a file of these bytes is."""
        digest = hashlib.blake2b(data, digest_size=_DIGEST_BYTES)
        return cls(name, len(data), digest.hexdigest())


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """What was built, from which log, under which settings, and what was reported.

    Parameters
    ----------
    log_name : str
        Name of the log: an ``X.log.swap`` has index files of other names than ``X.log``.
    log_size_bytes, log_mtime_ns : int
        The log when it was scanned.
    settings : ScanSettings
        How it was scanned.
    status, reason, reason_code, position_bytes
        As reported; a `truncated` segment is truncated again when nothing has changed.
    counts : SegmentCounts
        As reported.
    files : tuple of PublishedFile
        What was published.
    """

    log_name: str
    log_size_bytes: int
    log_mtime_ns: int
    settings: ScanSettings
    status: str
    reason: str | None
    reason_code: str | None
    position_bytes: int | None
    counts: SegmentCounts
    files: tuple[PublishedFile, ...]

    @classmethod
    def read(cls, path: str) -> BuildRecord | None:
        """Read a record; None when there is none that this version understands.

        Missing, unreadable, damaged or of another version: the segment is built again, which is
        always right, so no reason is worth an error.
        """
        try:
            data = store_of(path).read(path, _MAX_RECORD_BYTES + 1)
        except (OSError, KafkaIndexError):
            return None
        return cls.from_bytes(data)

    @classmethod
    def from_bytes(cls, data: bytes) -> BuildRecord | None:
        """Parse what `to_bytes` wrote; None for anything else."""
        if len(data) > _MAX_RECORD_BYTES:
            return None
        try:
            outer = json.loads(data)
            content = outer["record"]
            if outer["version"] != RECORD_VERSION or outer["digest"] != _digest(content):
                return None
            record = cls(
                settings=ScanSettings(*_popped(content, ScanSettings)),
                counts=SegmentCounts(*_popped(content, SegmentCounts)),
                files=tuple(PublishedFile(**file) for file in content.pop("files")),
                **content,
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        return record if record._well_typed() else None

    def to_bytes(self) -> bytes:
        """Return the record as one line of JSON, sealed with a digest of itself."""
        content = asdict(self)
        # Flat, as the counts and settings of records have always been.
        content |= content.pop("settings") | content.pop("counts")
        outer = {"version": RECORD_VERSION, "digest": _digest(content), "record": content}
        return json.dumps(outer, separators=(",", ":")).encode() + b"\n"

    def matches(self, segment: SegmentFile, settings: ScanSettings) -> bool:
        """Return whether building this segment now would give what the record describes.

        A record made without verifying checksums does not do for a run that verifies them.
        """
        return (
            self.log_name == os.path.basename(segment.log_path)
            and self.log_size_bytes == segment.log_size_bytes
            and self.log_mtime_ns == segment.log_mtime_ns
            and self.settings.index_interval_bytes == settings.index_interval_bytes
            and self.settings.index_size_max_bytes == settings.index_size_max_bytes
            and (self.settings.verify_crc or not settings.verify_crc)
        )

    def files_intact(self, target_directory: str) -> bool:
        """Return whether every published file is still what was written, byte for byte.

        A record that names no files vouches for nothing.
        """
        for file in self.files:
            path = os.path.join(target_directory, file.name)
            try:
                # The size first: it costs nothing and reveals most changes.
                if store_of(path).info(path).size_bytes != file.size_bytes:
                    return False
                if PublishedFile.of(path) != file:
                    return False
            except (OSError, KafkaIndexError):
                return False
        return bool(self.files)

    def _well_typed(self) -> bool:
        # JSON says nothing about types, and bool passes for int in Python.
        texts: list[object] = [self.log_name, self.status]
        numbers: list[object] = [
            self.log_size_bytes,
            self.log_mtime_ns,
            self.settings.index_interval_bytes,
            self.settings.index_size_max_bytes,
            *astuple(self.counts),
        ]
        flag: object = self.settings.verify_crc
        texts += [text for text in (self.reason, self.reason_code) if text is not None]
        if self.position_bytes is not None:
            numbers.append(self.position_bytes)
        for file in self.files:
            texts += [file.name, file.digest]
            numbers.append(file.size_bytes)
        return (
            all(type(text) is str for text in texts)
            and all(type(number) is int for number in numbers)
            and type(flag) is bool
            # A name with a folder in it would lead out of the target.
            and all(os.path.basename(file.name) == file.name for file in self.files)
        )


def unchanged_record(
    target_directory: str, segment: SegmentFile, names: Iterable[str], settings: ScanSettings
) -> BuildRecord | None:
    """Return a segment's build record when building the segment again would change nothing.

    Parameters
    ----------
    target_directory : str
        Folder of the published files.
    segment : SegmentFile
        The segment as it is now.
    names : iterable of str
        Final names of the files that a build would publish.
    settings : ScanSettings
        Those of this run; see `BuildRecord.matches`.

    Returns
    -------
    BuildRecord or None
        Its log, settings and files are as recorded; the files were read to be sure.
    """
    record = BuildRecord.read(record_path(target_directory, segment.base_offset))
    if (
        record is not None
        and record.matches(segment, settings)
        and {file.name for file in record.files} == set(names)
        and record.files_intact(target_directory)
    ):
        return record
    return None


def _popped(content: dict[str, Any], kind: type[ScanSettings | SegmentCounts]) -> list[Any]:
    return [content.pop(field.name) for field in fields(kind)]


def _digest(content: Any) -> str:
    text = json.dumps(content, separators=(",", ":"), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()
