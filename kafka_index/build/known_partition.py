"""What an earlier run has left of a partition: segments, and whole partitions, to keep as they are.

No log is read, and no published file: names, sizes, times and ETags are compared with the record
of the partition.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import islice

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.build.report import (
    BUILT,
    REPORT_SCHEMA,
    UNCHANGED,
    SegmentReport,
    empty_row,
)
from kafka_index.build.settings import BuildSettings, Output
from kafka_index.build.staged_segment import SegmentPaths, StagedSegment
from kafka_index.errors import KafkaIndexError
from kafka_index.layout.names import (
    LEADER_EPOCH_CHECKPOINT,
    SNAPSHOT_SUFFIX,
    TXN_INDEX_SUFFIX,
    parse_segment_file,
)
from kafka_index.records.batch_source import PREALLOCATED_TAIL
from kafka_index.storage import PublishedFile, SegmentCounts, SegmentFile, target_directory
from kafka_index.storage.directories import Entry, scan_directory
from kafka_index.storage.log_directory import LogDirectory
from kafka_index.storage.partition_record import (
    RECORDED_FILES,
    PartitionRecord,
    RecordedFile,
    recorded_files,
)
from kafka_index.storage.segment_table import PartitionSegments, SegmentTable
from kafka_index.storage.tiered_partition import TieredPartition

_CACHED_PARTITIONS = 64
# Requests to a store, or folders of a disk, that are looked at at a time.
_LOOKS_AT_A_TIME = 8
_PARTITIONS_AT_A_TIME = 256
_COUNTS = tuple(field.name for field in fields(SegmentCounts))
_STATE_KINDS = (SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX)


@dataclass(frozen=True, slots=True)
class PartitionStartFiles:
    """What a fold begins from, by sizes and times: equal texts mean an equal start."""

    text: str

    @classmethod
    def of(
        cls, first_base_offset: int, entries: Sequence[Entry], log_start_offset: int | None
    ) -> PartitionStartFiles:
        """Return the start of a partition.

        Parameters
        ----------
        first_base_offset : int
            Of its first segment.
        entries : sequence of Entry
            The directory of its logs.
        log_start_offset : int, optional
            As checkpointed.
        """
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
        return cls(orjson.dumps([log_start_offset, sorted(files)]).decode())

    @classmethod
    def of_tiered(cls, tiered: TieredPartition) -> PartitionStartFiles:
        """Return the start of a partition whose first segment may be remote."""
        epochs = [[entry.epoch, entry.start_offset] for entry in tiered.epochs]
        return cls(orjson.dumps([tiered.log_start_offset, epochs, tiered.is_lower_bound]).decode())


#: Where no file depends on earlier segments.
NO_START = PartitionStartFiles("")


class KnownPartition:
    """The record of a partition, and its target folder as it is now.

    Parameters
    ----------
    directory : str
        The target folder.
    record : PartitionRecord, optional
        Its record; None when there is none.
    """

    def __init__(self, directory: str, record: PartitionRecord | None) -> None:
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
        log = [row["log_name"], row["log_size_bytes"], row["log_mtime_ns"], row["log_version"]]
        if log != [
            os.path.basename(segment.log_path),
            segment.log_size_bytes,
            segment.log_mtime_ns,
            segment.log_version,
        ]:
            return None
        code = row["scan_reason_code"]
        if code == PREALLOCATED_TAIL and not segment.is_last:
            # It was the last one then; now its zeros are damage.
            return None
        names = SegmentPaths.of(segment, self.directory).published(settings)
        files = [self._files.get(os.path.basename(name)) for name in names]
        kept = [file.published for file in files if file is not None and self._is_intact(file)]
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
        self, segments: PartitionSegments, settings: BuildSettings, start: PartitionStartFiles
    ) -> pa.Table | None:
        """Return the report of the whole partition if nothing of it has changed, else None."""
        record = self.record
        if (
            record is None
            or not record.is_whole
            or record.outputs != tuple(sorted(settings.outputs))
            or (record.expire_after_ms, record.expire_at_ms) != expiration_of(settings)
            or record.start != start.text
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

    def covers(self, outputs: frozenset[Output], files: pa.Table) -> bool:
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
            elif entry.size_and_change() != was:
                return False
            else:
                untouched += 1
        return untouched == len(recorded)

    def _is_intact(self, file: RecordedFile) -> bool:
        return file.is_intact(self.directory, self._found.get(file.published.name))

    @cached_property
    def _numbers(self) -> dict[int, int]:
        if self.record is None:
            return {}
        bases = self.record.segments.column("segment_base_offset").to_pylist()
        return {base_offset: number for number, base_offset in enumerate(bases)}

    @cached_property
    def _files(self) -> dict[str, RecordedFile]:
        return {} if self.record is None else recorded_files(self.record.files)

    @cached_property
    def _found(self) -> dict[str, Entry]:
        try:
            return {entry.name: entry for entry in scan_directory(self.directory)}
        except KafkaIndexError:
            return {}


@lru_cache(_CACHED_PARTITIONS)
def known_partition(directory: str, run_id: str) -> KnownPartition:
    """Return what is known of a target folder, as it was when this run first looked."""
    del run_id
    return KnownPartition(directory, PartitionRecord.read(directory))


class UnchangedPartitions:
    """Finds the partitions of which nothing has changed since they were built.

    Parameters
    ----------
    settings : BuildSettings
        How and where to a run builds.
    """

    def __init__(self, settings: BuildSettings) -> None:
        self._settings = settings
        self._log_directories: dict[str, LogDirectory] = {}

    def split(self, segments: SegmentTable) -> Iterator[tuple[PartitionSegments, pa.Table | None]]:
        """Yield each partition with its report; without one where it has to be built.

        Parameters
        ----------
        segments : SegmentTable
            Every segment of each partition.
        """
        partitions = iter(segments.partitions)
        if not wants_record(self._settings) or self._settings.force:
            yield from ((members, None) for members in partitions)
            return
        with ThreadPoolExecutor(_LOOKS_AT_A_TIME, thread_name_prefix="unchanged") as pool:
            for some in _batched(partitions):
                yield from zip(some, pool.map(self.rows_of, some), strict=True)

    def rows_of(self, segments: PartitionSegments) -> pa.Table | None:
        """Return the report of a partition, if it is right as it is; None to build it."""
        partition, log_directory = segments.partition, segments.directory
        tiered = self._settings.tiered.get(partition)
        try:
            directory = target_directory(self._settings.target_root, partition, log_directory)
            record = PartitionRecord.read(directory)
            if record is None or not record.is_whole:
                return None
            if not self._settings.needs_state:
                start = NO_START
            elif tiered is not None:
                start = PartitionStartFiles.of_tiered(tiered)
            else:
                root = self._log_directory(os.path.dirname(log_directory))
                start = PartitionStartFiles.of(
                    int(segments.base_offsets[0]),
                    scan_directory(log_directory),
                    root.log_start_offset(partition),
                )
        except KafkaIndexError:
            # Building meets the same error, and reports it.
            return None
        return KnownPartition(directory, record).unchanged_rows(segments, self._settings, start)

    def _log_directory(self, path: str) -> LogDirectory:
        root = self._log_directories.get(path)
        return root or self._log_directories.setdefault(path, LogDirectory(path))


def expiration_of(settings: BuildSettings) -> tuple[int | None, int | None]:
    """Return how idle producers are left out, as records have it."""
    expiration = settings.expiration
    return (None, None) if expiration is None else (expiration.after_ms, expiration.now_ms)


def recorded_row(report: SegmentReport, staged: StagedSegment) -> dict[str, object]:
    """Return the row of a segment for the record of its partition."""
    segment = staged.segment
    counts = report.counts
    if counts is None:
        raise ValueError(f"nothing was counted in {segment.log_path}")
    return {
        "segment_base_offset": segment.base_offset,
        "log_name": os.path.basename(segment.log_path),
        "log_size_bytes": segment.log_size_bytes,
        "log_mtime_ns": segment.log_mtime_ns,
        "log_version": segment.log_version,
        **{name: getattr(counts, name) for name in _COUNTS},
        "status": BUILT if report.status == UNCHANGED else report.status,
        "reason": report.reason,
        "position_bytes": report.position_bytes,
        "aborted_txns": report.aborted_txns,
        "producers": report.producers,
        "note": report.note,
        "reason_code": report.reason_code,
        "scan_reason_code": staged.report.reason_code,
    }


def files_table(published: Sequence[PublishedFile], found: dict[str, Entry]) -> pa.Table | None:
    """Return `RECORDED_FILES`; None when one is not there as it was written."""
    rows = []
    for file in published:
        entry = found.get(file.name)
        size_bytes, change = (0, "") if entry is None else entry.size_and_change()
        if entry is None or size_bytes != file.size_bytes:
            return None
        rows.append((file.name, size_bytes, change, file.digest))
    names = RECORDED_FILES.names
    return pa.Table.from_pylist(
        [dict(zip(names, row, strict=True)) for row in rows], RECORDED_FILES
    )


def wants_record(settings: BuildSettings) -> bool:
    """Return whether a run writes and trusts records of partitions."""
    return Output.INDEX in settings.outputs


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


def _batched(partitions: Iterator[PartitionSegments]) -> Iterator[list[PartitionSegments]]:
    while some := list(islice(partitions, _PARTITIONS_AT_A_TIME)):
        yield some
