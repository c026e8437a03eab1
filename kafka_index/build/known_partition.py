"""What an earlier run has left of a partition: segments, and whole partitions, to keep as they are.

No log is read, and no published file: names, sizes, times and ETags are compared with the record
of the partition.
"""

from __future__ import annotations

import os
from dataclasses import fields, replace
from functools import cached_property, lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafka_index.build.partition_start_files import PartitionStartFiles
from kafka_index.build.report import (
    BUILT,
    REPORT_SCHEMA,
    UNCHANGED,
    empty_row,
)
from kafka_index.build.settings import BuildSettings, Output
from kafka_index.build.staged_segment import SegmentPaths, StagedSegment
from kafka_index.errors import KafkaIndexError
from kafka_index.layout.names import (
    SNAPSHOT_SUFFIX,
    TXN_INDEX_SUFFIX,
    parse_segment_file,
)
from kafka_index.records.batch_source import PREALLOCATED_TAIL
from kafka_index.storage import SegmentCounts, SegmentFile
from kafka_index.storage.directories import Entry, scan_directory
from kafka_index.storage.partition_record import (
    PartitionRecord,
    RecordedFile,
    recorded_files,
)
from kafka_index.storage.segment_table import PartitionSegments
from kafka_index.storage.target_files import is_new_folder

_CACHED_PARTITIONS = 64
_COUNTS = tuple(field.name for field in fields(SegmentCounts))
_STATE_KINDS = (SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX)


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
    if is_new_folder(directory, run_id):
        return KnownPartition(directory, None)
    return KnownPartition(directory, PartitionRecord.read(directory))


def expiration_of(settings: BuildSettings) -> tuple[int | None, int | None]:
    """Return how idle producers are left out, as records have it."""
    expiration = settings.expiration
    return (None, None) if expiration is None else (expiration.after_ms, expiration.now_ms)


def wants_record(settings: BuildSettings) -> bool:
    """Return whether a run writes and trusts records of partitions."""
    return settings.keeps_record and Output.INDEX in settings.outputs


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
