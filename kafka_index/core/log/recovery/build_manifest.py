"""The record of a partition: what its published files were built from, and what was reported.

One hidden file beside them, ``.partition.kafka-index``, written after all of them are in place: a
line of JSON, and two Arrow streams, a row per segment and a row per published file. A broker
ignores it (its name has no offset before the first dot: LogFileUtils.offsetFromFileName).

Published files are trusted by size and ETag (of local files the time of their last change, which
no program can set), as they were right after their publication. Where that differs, as in a copy of
the output, the digest decides. No log is read.
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

PARTITION_RECORD = ".partition.kafka-index"
# Raise it whenever the rules of building change: older records then stop counting.
_VERSION = 1
_DIGEST_BYTES = 16
_CACHED_PARTITIONS = 64
# Requests to a store, or folders of a disk, that are looked at at a time.
_LOOKS_AT_A_TIME = 8
_COUNTS = tuple(field.name for field in fields(SegmentCounts))
_STATE_KINDS = (SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX)

#: A row per segment: its log, and its row of the build report.
RECORDED_SEGMENTS = pa.schema(
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
        # The row as the scan alone left it, for a run that folds again.
        pa.field("scan_reason_code", pa.string()),
    ]
)
#: A row per published file, those of segments, and those of the partition itself.
RECORDED_FILES = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("change", pa.string(), nullable=False),
        pa.field("digest", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class _Head:
    """The scalar fields of a partition's build record, as stored in JSON."""

    run_id: str
    settings: tuple[Int64, Int64, bool]
    outputs: tuple[str, ...]
    expire_after_ms: Int64 | None
    expire_at_ms: Int64 | None
    start: str
    is_whole: bool


@dataclass(frozen=True, slots=True)
class BuildManifest:
    """The files that were built of a partition, from which logs and with which settings.

    The outputs are sorted. `expire_after_ms` and `expire_at_ms` are given if idle producers were
    left out. `start` identifies the files that the fold began from, by sizes and times; it is empty
    without a fold. `is_whole`: every segment is listed, and was folded. The tables are
    `RECORDED_SEGMENTS`, by base offset, and `RECORDED_FILES`.
    """

    run_id: str
    settings: ScanSettings
    outputs: tuple[str, ...]
    expire_after_ms: int | None
    expire_at_ms: int | None
    start: str
    is_whole: bool
    segments: pa.Table
    files: pa.Table

    @classmethod
    def read(cls, directory: str) -> BuildManifest | None:
        """Read the record of a folder; None when there is none that this version understands."""
        path = os.path.join(directory, PARTITION_RECORD)
        try:
            data = store_of(path).read(path)
        except (OSError, KafkaIndexError):
            return None
        return cls.from_bytes(data)

    @classmethod
    def from_bytes(cls, data: bytes) -> BuildManifest | None:
        """Parse what `to_bytes` wrote; None for anything else."""
        head, _, body = data.partition(b"\n")
        try:
            outer = json.decode(head)
            if outer["version"] != _VERSION or outer["digest"] != _digest(
                json.encode(outer["record"]) + body
            ):
                return None
            middle = outer["segments_bytes"]
            kept = convert_fields(outer["record"], _Head)
            return cls(
                kept.run_id,
                ScanSettings(*kept.settings),
                kept.outputs,
                kept.expire_after_ms,
                kept.expire_at_ms,
                kept.start,
                kept.is_whole,
                _table(body[:middle], RECORDED_SEGMENTS),
                _table(body[middle:], RECORDED_FILES),
            )
        except (*MALFORMED, ValueError, TypeError, KeyError, pa.ArrowException):
            return None

    def to_bytes(self) -> bytes:
        """Return the record, sealed with a digest of itself."""
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
            "is_whole": self.is_whole,
        }
        segments, files = _stream(self.segments), _stream(self.files)
        outer = {
            "version": _VERSION,
            "digest": _digest(json.encode(fields) + segments + files),
            "segments_bytes": len(segments),
            "record": fields,
        }
        return b"\n".join((json.encode(outer), segments + files))

    def allows(self, settings: ScanSettings) -> bool:
        """Return whether scans with these settings would give what is recorded."""
        mine = self.settings
        return (
            mine.index_interval_bytes == settings.index_interval_bytes
            and mine.index_size_max_bytes == settings.index_size_max_bytes
            and (mine.verify_crc or not settings.verify_crc)
        )


@dataclass(frozen=True, slots=True)
class RecordedFile:
    """A published file, and its `Entry.size_and_change` right after its publication."""

    published: PublishedFile
    change: str

    def is_intact(self, directory: str, found: Entry | None) -> bool:
        """Return whether the file has the bytes that were published; it is read where in doubt."""
        size_bytes, change = (-1, "") if found is None else found.file_version()
        if size_bytes != self.published.size_bytes:
            return False
        if change == self.change:
            return True
        try:
            path = os.path.join(directory, self.published.name)
            return PublishedFile.of(path) == self.published
        except (OSError, KafkaIndexError):
            return False


class KnownPartition:
    """The record of a partition, None without one, and its target folder as it is now."""

    def __init__(self, directory: str, record: BuildManifest | None) -> None:
        self.directory = directory
        self.record = record

    def keep(self, segment: SegmentFile, settings: BuildSettings) -> StagedSegment | None:
        """Return a segment that is right as it is; None to scan it."""
        record = self.record
        number = self._numbers.get(segment.base_offset)
        if record is None or number is None:
            return None
        if not record.allows(settings.scan_settings(segment.topic)):
            return None
        row = record.segments.slice(number, 1).to_pylist()[0]
        if any(row[name] != value for name, value in log_columns(segment).items()):
            return None
        code = row["scan_reason_code"]
        if code == PREALLOCATED_TAIL and not segment.is_last:
            # It was the last one then; now its zeros are damage.
            return None
        names = SegmentPaths.of(segment, self.directory).published(settings)
        files = [self._files.get(os.path.basename(name)) for name in names]
        kept = [
            file.published
            for file in files
            if file is not None
            and file.is_intact(self.directory, self._found.get(file.published.name))
        ]
        if len(kept) != len(names) or not names:
            return None
        status = UNCHANGED if row["status"] == BUILT else row["status"]
        if record.run_id == settings.run_id and row["status"] == BUILT:
            # By another attempt of this very run.
            status = BUILT
        report = replace(
            empty_row(segment),
            counts=SegmentCounts(*(row[name] for name in _COUNTS)),
            status=status,
            reason=row["reason"],
            reason_code=code,
            position_bytes=row["position_bytes"],
        )
        return StagedSegment(segment, report, self.directory, files=tuple(kept))

    def unchanged_rows(
        self, segments: PartitionSegments, settings: BuildSettings, start: str
    ) -> pa.Table | None:
        """Return the report of the whole partition if nothing of it has changed, else None."""
        record = self.record
        if (
            record is None
            or not record.is_whole
            or record.outputs != tuple(sorted(settings.outputs))
            or (record.expire_after_ms, record.expire_at_ms) != expiration_of(settings)
            or record.start != start
            or not record.allows(settings.scan_settings(segments.partition.topic))
            or not _same_logs(record.segments, segments)
        ):
            return None
        codes = record.segments.column("scan_reason_code").to_pylist()
        if PREALLOCATED_TAIL in codes[:-1]:
            return None
        if not self._is_untouched(record.files, needs_state=settings.needs_state):
            return None
        return _report_of(record.segments, segments)

    def covers(self, outputs: frozenset[BuildOutput], files: pa.Table) -> bool:
        """Return whether the record has these kinds of files, and every row of `files`."""
        record = self.record
        if record is None or not record.is_whole or not outputs.issubset(record.outputs):
            return False
        missing = files.join(record.files, files.column_names, join_type="left anti")
        return not missing.num_rows

    def _is_untouched(self, files: pa.Table, *, needs_state: bool) -> bool:
        """Return whether the recorded files are there as they were, and no other state file is."""
        names, *changes = (files[name].to_pylist() for name in ("name", "size_bytes", "change"))
        recorded = dict(zip(names, zip(*changes, strict=True), strict=True))
        untouched = 0
        for name, entry in self._found.items():
            was = recorded.get(name)
            if was is None:
                # A stray snapshot could be loaded by mistake.
                if needs_state and _is_state_file(name):
                    return False
            elif entry.file_version() != was:
                return False
            else:
                untouched += 1
        return untouched == len(recorded)

    @cached_property
    def _numbers(self) -> dict[int, int]:
        if self.record is None:
            return {}
        bases = self.record.segments.column("segment_base_offset").to_pylist()
        return {base_offset: number for number, base_offset in enumerate(bases)}

    @cached_property
    def _files(self) -> dict[str, RecordedFile]:
        if self.record is None:
            return {}
        columns = [self.record.files.column(name).to_pylist() for name in RECORDED_FILES.names]
        return {
            name: RecordedFile(PublishedFile(name, size_bytes, digest), change)
            for name, size_bytes, change, digest in zip(*columns, strict=True)
        }

    @cached_property
    def _found(self) -> dict[str, Entry]:
        try:
            return {entry.name: entry for entry in scan_directory(self.directory)}
        except KafkaIndexError:
            return {}


@lru_cache(_CACHED_PARTITIONS)
def known_partition(directory: str, run_id: str) -> KnownPartition:
    """Return what is known of a target folder, as it was when this run first looked."""
    if is_new_folder(directory, run_id):
        return KnownPartition(directory, None)
    return KnownPartition(directory, BuildManifest.read(directory))


def wants_record(settings: BuildSettings) -> bool:
    """Return whether a run writes and trusts records of partitions."""
    return settings.keeps_record and BuildOutput.INDEX in settings.outputs


class UnchangedPartitions:
    """Finds the partitions of which nothing has changed since they were built."""

    def __init__(self, settings: BuildSettings) -> None:
        self._settings = settings
        self._roots = DataDirectories()

    def split(self, segments: SegmentTable) -> Iterator[tuple[PartitionSegments, pa.Table | None]]:
        """Yield each partition with its report; without one where it has to be built."""
        partitions = segments.partitions
        if not wants_record(self._settings) or self._settings.force:
            yield from ((members, None) for members in partitions)
            return
        found = map_requests(self.rows_of, partitions, threads=_LOOKS_AT_A_TIME, name="unchanged")
        with closing(found):
            yield from zip(partitions, found, strict=True)

    def rows_of(self, segments: PartitionSegments) -> pa.Table | None:
        """Return the report of a partition, if it is right as it is; None to build it."""
        settings, partition = self._settings, segments.partition

        def beside() -> tuple[Sequence[Entry], int | None]:
            root = self._roots.of(segments.directory)
            return scan_directory(segments.directory), root.log_start_offset(partition)

        try:
            directory = target_directory(settings.target_root, partition, segments.directory)
            if is_new_folder(directory, settings.run_id):
                return None
            record = BuildManifest.read(directory)
            if record is None or not record.is_whole:
                return None
            start = start_of(partition, int(segments.base_offsets[0]), settings, beside)
        except KafkaIndexError:
            # Building meets the same error, and reports it.
            return None
        return KnownPartition(directory, record).unchanged_rows(segments, settings, start)


def log_columns(segment: SegmentFile) -> dict[str, object]:
    """Return the columns of `RECORDED_SEGMENTS` that identify a log."""
    return {
        "log_name": os.path.basename(segment.log_path),
        "log_size_bytes": segment.log_size_bytes,
        "log_mtime_ns": segment.log_mtime_ns,
        "log_version": segment.log_version,
    }


def start_of(
    partition: TopicPartition,
    first_base_offset: int,
    settings: BuildSettings,
    beside: Callable[[], tuple[Sequence[Entry], int | None]],
) -> str:
    """Return the start of a fold; equal texts mean an equal start.

    `beside` reads the directory of the logs, and the checkpointed log start offset.
    """
    if not settings.needs_state:
        return ""
    tiered = settings.tiered.get(partition)
    if tiered is not None:
        epochs = [[entry.epoch, entry.start_offset] for entry in tiered.epochs]
        start = [tiered.log_start_offset, epochs, tiered.is_lower_bound]
        return json.encode(start).decode()
    entries, log_start_offset = beside()
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


def expiration_of(settings: BuildSettings) -> tuple[int | None, int | None]:
    """Return when idle producers are left out, as a record has it."""
    expiration = settings.expiration
    return (None, None) if expiration is None else (expiration.after_ms, expiration.now_ms)


def _same_logs(recorded: pa.Table, segments: PartitionSegments) -> bool:
    if recorded.num_rows != len(segments):
        return False
    longs = (
        ("segment_base_offset", segments.base_offsets),
        ("log_size_bytes", segments.sizes_bytes),
        ("log_mtime_ns", segments.mtimes_ns),
    )
    texts = (("log_version", segments.log_versions()), ("log_name", segments.log_names()))
    return all(
        np.array_equal(recorded.column(name).to_numpy(), found) for name, found in longs
    ) and all(recorded.column(name).equals(pa.chunked_array([found])) for name, found in texts)


def _report_of(recorded: pa.Table, segments: PartitionSegments) -> pa.Table:
    count = len(segments)
    status = recorded.column("status")
    made = {
        "topic": pa.repeat(segments.partition.topic, count),
        "partition": pa.repeat(pa.scalar(segments.partition.partition, pa.int32()), count),
        "log_path": segments.log_paths(),
        "status": pc.if_else(pc.equal(status, BUILT), UNCHANGED, status),
        "seconds": pa.repeat(0.0, count),
        "retriable": pa.repeat(pa.scalar(value=False), count),
    }
    columns = [
        made[name] if name in made else recorded.column(name) for name in REPORT_SCHEMA.names
    ]
    return pa.table(columns, schema=REPORT_SCHEMA)


def _is_state_file(name: str) -> bool:
    if not name.endswith(_STATE_KINDS):
        return False
    parsed = parse_segment_file(name)
    return parsed is not None and not parsed.transient


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _table(data: bytes, schema: pa.Schema) -> pa.Table:
    with pa.ipc.open_stream(data) as reader:
        table = reader.read_all()
    if table.schema != schema:
        raise ValueError("other columns")
    table.validate(full=True)
    if any(table[each.name].null_count for each in schema if not each.nullable):
        raise ValueError("missing values")
    return table


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
