"""The build manifest of a partition: its ``.log`` files, the files built from them, and the report.

The manifest is a hidden file, ``.partition.kafka-index``, in the partition directory. It is written
after all other files. It contains a line of JSON, an Arrow stream with a row per segment, and an
Arrow stream with a row per published file. A broker ignores the manifest, because the name has no
offset (LogFileUtils.offsetFromFileName).

A published file is unchanged if its size and version are the same as right after its publication.
The version is the ETag of an object, or the ctime of a local file, which no program can set. If
only the version differs, as in a copy of the output, the digests are compared. No ``.log`` file is
read.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import json

from kafka_index.core.errors import KafkaIndexError
from kafka_index.core.format.names import (
    LEADER_EPOCH_CHECKPOINT,
    SNAPSHOT_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    parse_segment_file,
)
from kafka_index.core.format.state_files import MALFORMED, Int64, convert_fields
from kafka_index.core.fs.paths import target_directory
from kafka_index.core.fs.registry import scan_directory, store_of
from kafka_index.core.fs.store import Entry
from kafka_index.core.job.engine import map_requests
from kafka_index.core.log.choices import BuildOutput
from kafka_index.core.log.recovery.settings import (
    BUILT,
    REPORT_SCHEMA,
    UNCHANGED,
    BuildSettings,
    ScanSettings,
    SegmentCounts,
    empty_row,
)
from kafka_index.core.log.recovery.staged_segment import PublishedFile, SegmentPaths, StagedSegment
from kafka_index.core.logdir.data_directory import DataDirectories
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.logdir.segment_table import PartitionSegments, SegmentTable
from kafka_index.core.output.publish import is_new_folder
from kafka_index.core.records.batch_table import PREALLOCATED_TAIL

BUILD_MANIFEST = ".partition.kafka-index"
# Increase this version if a build would write other files, so that older manifests are ignored.
_VERSION = 1
_DIGEST_BYTES = 16
_CACHED_PARTITIONS = 64
# Number of manifests that are read concurrently, since most of the time is spent waiting.
_CONCURRENT_READS = 8
_COUNTS = tuple(field.name for field in fields(SegmentCounts))
_STATE_KINDS = (SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX)

#: A row per segment: identifies its ``.log`` file, and has its row of the build report.
MANIFEST_SEGMENTS = pa.schema(
    [
        pa.field("segment_base_offset", pa.int64(), nullable=False),
        pa.field("log_name", pa.string(), nullable=False),
        pa.field("log_size_bytes", pa.int64(), nullable=False),
        pa.field("log_mtime_ns", pa.int64(), nullable=False),
        pa.field("log_version", pa.string(), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in _COUNTS),
        pa.field("status", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
        pa.field("position_bytes", pa.int64()),
        pa.field("aborted_txns", pa.int64()),
        pa.field("producers", pa.int64()),
        pa.field("note", pa.string()),
        pa.field("reason_code", pa.string()),
        # The reason code before the merge, for a run that merges the unchanged segment again.
        pa.field("scan_reason_code", pa.string()),
    ]
)
#: A row per published file, whether it belongs to a segment or to the partition itself.
MANIFEST_FILES = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("change", pa.string(), nullable=False),
        pa.field("digest", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class _ManifestHeader:
    """The scalar fields of a manifest, as stored in JSON."""

    run_id: str
    settings: tuple[Int64, Int64, bool]
    outputs: tuple[str, ...]
    expire_after_ms: Int64 | None
    expire_at_ms: Int64 | None
    start: str
    is_whole: bool


@dataclass(frozen=True, slots=True)
class BuildManifest:
    """The segments and settings from which the files of a partition were built, and these files.

    Attributes
    ----------
    outputs
        Values of `BuildOutput`, sorted.
    expire_after_ms, expire_at_ms
        The fields of the build's `ProducerExpiration`, None if expired producers were not omitted.
    start
        Identifies the checkpoints and snapshots from which the merge started. Empty without a
        merge.
    is_complete
        True if the manifest lists every segment, and all segments were merged.
    segments
        Table of `MANIFEST_SEGMENTS`, by base offset.
    files
        Table of `MANIFEST_FILES`.
    """

    run_id: str
    settings: ScanSettings
    outputs: tuple[str, ...]
    expire_after_ms: int | None
    expire_at_ms: int | None
    start: str
    is_complete: bool
    segments: pa.Table
    files: pa.Table

    @classmethod
    def read(cls, directory: str) -> BuildManifest | None:
        """Read the manifest in a folder; None if it is missing, corrupt or of another version."""
        path = os.path.join(directory, BUILD_MANIFEST)
        try:
            data = store_of(path).read(path)
        except (OSError, KafkaIndexError):
            return None
        return cls.from_bytes(data)

    @classmethod
    def from_bytes(cls, data: bytes) -> BuildManifest | None:
        """Parse the result of `to_bytes`; None for any other bytes."""
        head, _, body = data.partition(b"\n")
        try:
            envelope = json.decode(head)
            if envelope["version"] != _VERSION or envelope["digest"] != _digest(
                json.encode(envelope["record"]) + body
            ):
                return None
            files_start = envelope["segments_bytes"]
            fields = convert_fields(envelope["record"], _ManifestHeader)
            return cls(
                fields.run_id,
                ScanSettings(*fields.settings),
                fields.outputs,
                fields.expire_after_ms,
                fields.expire_at_ms,
                fields.start,
                fields.is_whole,
                _decode_table(body[:files_start], MANIFEST_SEGMENTS),
                _decode_table(body[files_start:], MANIFEST_FILES),
            )
        except (*MALFORMED, ValueError, TypeError, KeyError, pa.ArrowException):
            return None

    def to_bytes(self) -> bytes:
        """Encode the manifest, with a digest of its content."""
        settings = self.settings
        fields = {
            "run_id": self.run_id,
            "settings": [
                settings.index_interval_bytes,
                settings.index_size_max_bytes,
                settings.verify_crc,
            ],
            "outputs": list(self.outputs),
            "expire_after_ms": self.expire_after_ms,
            "expire_at_ms": self.expire_at_ms,
            "start": self.start,
            "is_whole": self.is_complete,
        }
        segments, files = _encode_table(self.segments), _encode_table(self.files)
        envelope = {
            "version": _VERSION,
            "digest": _digest(json.encode(fields) + segments + files),
            "segments_bytes": len(segments),
            "record": fields,
        }
        return b"\n".join((json.encode(envelope), segments + files))

    def allows(self, settings: ScanSettings) -> bool:
        """Return whether scans with `settings` would have the same results."""
        scanned_with = self.settings
        return (
            scanned_with.index_interval_bytes == settings.index_interval_bytes
            and scanned_with.index_size_max_bytes == settings.index_size_max_bytes
            and (scanned_with.verify_crc or not settings.verify_crc)
        )


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A published file; `change` is its `Entry.file_version` right after its publication."""

    published: PublishedFile
    change: str

    def is_intact(self, directory: str, entry: Entry | None) -> bool:
        """Return whether the file has the published content; read it only if versions differ."""
        size_bytes, change = (-1, "") if entry is None else entry.file_version()
        if size_bytes != self.published.size_bytes:
            return False
        if change == self.change:
            return True
        try:
            path = os.path.join(directory, self.published.name)
            return PublishedFile.of(path) == self.published
        except (OSError, KafkaIndexError):
            return False


class PreviousBuild:
    """The manifest in a target folder, None without a valid one, and the folder's current files."""

    def __init__(self, directory: str, manifest: BuildManifest | None) -> None:
        self.directory = directory
        self.manifest = manifest

    def find_unchanged(self, segment: SegmentFile, settings: BuildSettings) -> StagedSegment | None:
        """Return a segment whose files are up to date, with its row and files; None for others."""
        manifest = self.manifest
        number = self._numbers.get(segment.base_offset)
        if manifest is None or number is None:
            return None
        if not manifest.allows(settings.scan_settings(segment.topic)):
            return None
        row = manifest.segments.slice(number, 1).to_pylist()[0]
        if any(row[name] != value for name, value in log_identity(segment).items()):
            return None
        code = row["scan_reason_code"]
        if code == PREALLOCATED_TAIL and not segment.is_last:
            # The zeros at the end were preallocated when the segment was the last one. In other
            # segments, they are corruption.
            return None
        names = SegmentPaths.of(segment, self.directory).published(settings)
        files = [self._files.get(os.path.basename(name)) for name in names]
        published = [
            file.published
            for file in files
            if file is not None
            and file.is_intact(self.directory, self._entries.get(file.published.name))
        ]
        if len(published) != len(names) or not names:
            return None
        status = UNCHANGED if row["status"] == BUILT else row["status"]
        if manifest.run_id == settings.run_id and row["status"] == BUILT:
            # Another attempt of the current run has built the segment.
            status = BUILT
        report = replace(
            empty_row(segment),
            counts=SegmentCounts(*(row[name] for name in _COUNTS)),
            status=status,
            reason=row["reason"],
            reason_code=code,
            position_bytes=row["position_bytes"],
        )
        return StagedSegment(segment, report, self.directory, files=tuple(published))

    def unchanged_rows(
        self, segments: PartitionSegments, settings: BuildSettings, start: str
    ) -> pa.Table | None:
        """Return the partition's report rows if all of its files are up to date, otherwise None."""
        manifest = self.manifest
        if (
            manifest is None
            or not manifest.is_complete
            or manifest.outputs != tuple(sorted(settings.outputs))
            or (manifest.expire_after_ms, manifest.expire_at_ms) != expiration_times(settings)
            or manifest.start != start
            or not manifest.allows(settings.scan_settings(segments.partition.topic))
            or not _has_same_logs(manifest.segments, segments)
        ):
            return None
        codes = manifest.segments.column("scan_reason_code").to_pylist()
        if PREALLOCATED_TAIL in codes[:-1]:
            return None
        if not self._has_unchanged_files(manifest.files, needs_state=settings.needs_state):
            return None
        return _report_rows(manifest.segments, segments)

    def covers(self, outputs: frozenset[BuildOutput], files: pa.Table) -> bool:
        """Return whether the manifest includes `outputs` and all rows of `files`."""
        manifest = self.manifest
        if manifest is None or not manifest.is_complete or not outputs.issubset(manifest.outputs):
            return False
        missing = files.join(manifest.files, files.column_names, join_type="left anti")
        return not missing.num_rows

    def _has_unchanged_files(self, files: pa.Table, *, needs_state: bool) -> bool:
        """Return whether all published files are unchanged, and no other state file exists."""
        names, *versions = (files[name].to_pylist() for name in ("name", "size_bytes", "change"))
        published = dict(zip(names, zip(*versions, strict=True), strict=True))
        unchanged = 0
        for name, entry in self._entries.items():
            version = published.get(name)
            if version is None:
                # A broker could load this file by mistake.
                if needs_state and _is_state_file(name):
                    return False
            elif entry.file_version() != version:
                return False
            else:
                unchanged += 1
        return unchanged == len(published)

    @cached_property
    def _numbers(self) -> dict[int, int]:
        if self.manifest is None:
            return {}
        bases = self.manifest.segments.column("segment_base_offset").to_pylist()
        return {base_offset: number for number, base_offset in enumerate(bases)}

    @cached_property
    def _files(self) -> dict[str, ManifestFile]:
        if self.manifest is None:
            return {}
        columns = [self.manifest.files.column(name).to_pylist() for name in MANIFEST_FILES.names]
        return {
            name: ManifestFile(PublishedFile(name, size_bytes, digest), change)
            for name, size_bytes, change, digest in zip(*columns, strict=True)
        }

    @cached_property
    def _entries(self) -> dict[str, Entry]:
        try:
            return {entry.name: entry for entry in scan_directory(self.directory)}
        except KafkaIndexError:
            return {}


@lru_cache(_CACHED_PARTITIONS)
def previous_build(directory: str, run_id: str) -> PreviousBuild:
    """Return the previous build in a target folder. It is read only once per run."""
    if is_new_folder(directory, run_id):
        return PreviousBuild(directory, None)
    return PreviousBuild(directory, BuildManifest.read(directory))


def uses_manifest(settings: BuildSettings) -> bool:
    """Return whether a run reads and writes build manifests."""
    return settings.keeps_manifest and BuildOutput.INDEX in settings.outputs


class UnchangedPartitions:
    """Finds partitions whose segments and built files have not changed since their last build."""

    def __init__(self, settings: BuildSettings) -> None:
        self._settings = settings
        self._roots = DataDirectories()

    def split(self, segments: SegmentTable) -> Iterator[tuple[PartitionSegments, pa.Table | None]]:
        """Yield each partition with its report rows; None instead of rows if it must be built."""
        partitions = segments.partitions
        if not uses_manifest(self._settings) or self._settings.force:
            yield from ((members, None) for members in partitions)
            return
        unchanged_rows = map_requests(
            self.find_unchanged_rows, partitions, threads=_CONCURRENT_READS, name="unchanged"
        )
        with closing(unchanged_rows):
            yield from zip(partitions, unchanged_rows, strict=True)

    def find_unchanged_rows(self, segments: PartitionSegments) -> pa.Table | None:
        """Return the report rows of a partition if its files are up to date, otherwise None."""
        settings, partition = self._settings, segments.partition

        def read_source_directory() -> tuple[Sequence[Entry], int | None]:
            root = self._roots.for_partition(segments.directory)
            return scan_directory(segments.directory), root.log_start_offset(partition)

        try:
            directory = target_directory(settings.target_root, partition, segments.directory)
            if is_new_folder(directory, settings.run_id):
                return None
            manifest = BuildManifest.read(directory)
            if manifest is None or not manifest.is_complete:
                return None
            start = merge_start(
                partition, int(segments.base_offsets[0]), settings, read_source_directory
            )
        except KafkaIndexError:
            # The build raises the same error, and reports it.
            return None
        return PreviousBuild(directory, manifest).unchanged_rows(segments, settings, start)


def log_identity(segment: SegmentFile) -> dict[str, object]:
    """Return the columns of `MANIFEST_SEGMENTS` that identify a ``.log`` file."""
    return {
        "log_name": os.path.basename(segment.log_path),
        "log_size_bytes": segment.log_size_bytes,
        "log_mtime_ns": segment.log_mtime_ns,
        "log_version": segment.log_version,
    }


def merge_start(
    partition: TopicPartition,
    first_base_offset: int,
    settings: BuildSettings,
    read_source_directory: Callable[[], tuple[Sequence[Entry], int | None]],
) -> str:
    """Return a string that identifies the checkpoints and snapshots from which a merge starts.

    `read_source_directory` returns the entries of the directory with the ``.log`` files, and the
    checkpointed log start offset.
    """
    if not settings.needs_state:
        return ""
    tiered = settings.tiered.get(partition)
    if tiered is not None:
        epochs = [[entry.epoch, entry.start_offset] for entry in tiered.epochs]
        start = [tiered.log_start_offset, epochs, tiered.is_lower_bound]
        return json.encode(start).decode()
    entries, log_start_offset = read_source_directory()
    files = []
    for entry in entries:
        if entry.name != LEADER_EPOCH_CHECKPOINT:
            if not entry.name.endswith(SNAPSHOT_SUFFIX):
                continue
            parsed = parse_segment_file(entry.name)
            if parsed is None or parsed.transient or parsed.base_offset > first_base_offset:
                continue
        info = entry.info()
        files.append([entry.name, info.size_bytes, info.mtime_ns, info.version])
    return json.encode([log_start_offset, sorted(files)]).decode()


def expiration_times(settings: BuildSettings) -> tuple[int | None, int | None]:
    """Return the manifest's `expire_after_ms` and `expire_at_ms` for a build with settings."""
    expiration = settings.expiration
    return (None, None) if expiration is None else (expiration.after_ms, expiration.now_ms)


def _has_same_logs(manifest_segments: pa.Table, segments: PartitionSegments) -> bool:
    if manifest_segments.num_rows != len(segments):
        return False
    integer_columns = (
        ("segment_base_offset", segments.base_offsets),
        ("log_size_bytes", segments.sizes_bytes),
        ("log_mtime_ns", segments.mtimes_ns),
    )
    string_columns = (("log_version", segments.log_versions()), ("log_name", segments.log_names()))
    return all(
        np.array_equal(manifest_segments.column(name).to_numpy(), values)
        for name, values in integer_columns
    ) and all(
        manifest_segments.column(name).equals(pa.chunked_array([values]))
        for name, values in string_columns
    )


def _report_rows(manifest_segments: pa.Table, segments: PartitionSegments) -> pa.Table:
    count = len(segments)
    status = manifest_segments.column("status")
    new_columns = {
        "topic": pa.repeat(segments.partition.topic, count),
        "partition": pa.repeat(pa.scalar(segments.partition.partition, pa.int32()), count),
        "log_path": segments.log_paths(),
        "status": pc.if_else(pc.equal(status, BUILT), UNCHANGED, status),
        "seconds": pa.repeat(0.0, count),
        "retriable": pa.repeat(pa.scalar(value=False), count),
    }
    columns = [
        new_columns[name] if name in new_columns else manifest_segments.column(name)
        for name in REPORT_SCHEMA.names
    ]
    return pa.table(columns, schema=REPORT_SCHEMA)


def _is_state_file(name: str) -> bool:
    if not name.endswith(_STATE_KINDS):
        return False
    parsed = parse_segment_file(name)
    return parsed is not None and not parsed.transient


def _encode_table(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _decode_table(data: bytes, schema: pa.Schema) -> pa.Table:
    with pa.ipc.open_stream(data) as reader:
        table = reader.read_all()
    if table.schema != schema:
        raise ValueError("other columns")
    table.validate(full=True)
    if any(table[field.name].null_count for field in schema if not field.nullable):
        raise ValueError("missing values")
    return table


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
