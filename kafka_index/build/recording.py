"""Recording partitions: after all of their files are in place, what they were built from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import cast

import pyarrow as pa

from kafka_index.build.folded_partition import FoldedPartition
from kafka_index.build.known_partition import expiration_of, known_partition, wants_record
from kafka_index.build.partition_start_files import NO_START, PartitionStartFiles
from kafka_index.build.report import BUILT, FAILED, UNCHANGED, SegmentReport
from kafka_index.build.settings import BuildSettings
from kafka_index.build.staged_segment import StagedSegment
from kafka_index.errors import KafkaIndexError
from kafka_index.layout.names import TopicPartition
from kafka_index.storage import (
    Publication,
    PublishedFile,
    StagedFile,
    publish_group,
    write_scratch,
)
from kafka_index.storage.directories import Entry, StoredEntry, scan_directory
from kafka_index.storage.partition_record import (
    RECORDED_FILES,
    RECORDED_SEGMENTS,
    PartitionRecord,
    partition_record_path,
)
from kafka_index.stores import DirectoryEntry, scheme_of, store_of
from kafka_index.stores.uris import OBJECT_SCHEMES


def record_partitions(
    finished: Sequence[tuple[FoldedPartition, list[SegmentReport]]],
    settings: BuildSettings,
    *,
    attempt_id: str,
) -> Iterator[SegmentReport]:
    """Write the records of published partitions; yield the rows of their segments.

    Parameters
    ----------
    finished : sequence of (FoldedPartition, list of SegmentReport)
        Each with the final row of each segment.
    settings : BuildSettings
        How and where to.
    attempt_id : str
        Names the scratch files.
    """
    waiting: list[tuple[list[SegmentReport], Publication]] = []
    for partition, rows in finished:
        if wants_record(settings):
            try:
                record = _record(partition, rows, settings)
                if record is not None:
                    waiting.append((rows, _staged(partition, record, settings, attempt_id)))
            except KafkaIndexError as error:
                rows[-1] = _without_record(rows[-1], error)
    errors = publish_group([publication for _, publication in waiting])
    for (rows, _), failure in zip(waiting, errors, strict=True):
        if failure is not None:
            rows[-1] = _without_record(rows[-1], failure)
    for _, rows in finished:
        yield from rows


def _without_record(row: SegmentReport, error: KafkaIndexError) -> SegmentReport:
    """Return a row with a note: its files are in place, and only the next run does more."""
    text = f"the next run builds this partition again, as its record was not written: {error}"
    return replace(row, note="; ".join(filter(None, (row.note, text))))


def _staged(
    partition: FoldedPartition, record: PartitionRecord, settings: BuildSettings, attempt_id: str
) -> Publication:
    last = partition.staged[-1]
    path = partition_record_path(partition.directory)
    file = StagedFile(settings.work_path(path, attempt_id), path)
    attributes_of = settings.attributes_of(last.segment.log_path)
    write_scratch(file.scratch_path, record.to_bytes(), attributes_of=attributes_of)
    return Publication((file,), attributes_of=attributes_of)


def _record(
    partition: FoldedPartition, rows: Sequence[SegmentReport], settings: BuildSettings
) -> PartitionRecord | None:
    """Return the record of a partition; None where there is nothing new, or nothing to trust.

    A published file that is not as it was written is not to be trusted. Rows of a table are built
    again in every run.
    """
    if not partition.staged[0].segment.has_log:
        return None
    recorded = []
    files: dict[str, PublishedFile] = {}
    for folded, row in zip(partition.segments, rows, strict=True):
        staged = folded.staged
        if row.status == FAILED or staged.is_withheld or row.counts is None or not staged.files:
            continue
        recorded.append(_recorded_row(row, staged))
        files |= {file.name: file for file in staged.files}
    is_whole = len(recorded) == len(rows) and partition.snapshots is not None
    # What belongs to a fold that ended early is not vouched for.
    files |= {file.name: file for file in partition.published if is_whole}
    if not recorded:
        return None
    directory = partition.directory
    table = _files_table(list(files.values()), _entries_of(directory, files))
    if table is None:
        return None
    segment = partition.staged[0].segment
    known = known_partition(directory, settings.run_id)
    if not settings.needs_state and known.covers(settings.outputs, table):
        # It knows of the partition's other files, too.
        return None
    start = _start(partition, settings)
    after_ms, at_ms = expiration_of(settings)
    before = known.record
    record = PartitionRecord(
        settings.run_id,
        settings.scan_settings(segment.topic),
        tuple(sorted(settings.outputs)),
        after_ms,
        at_ms,
        start.text,
        is_whole,
        pa.Table.from_pylist(recorded, RECORDED_SEGMENTS),
        table,
    )
    is_same = before is not None and replace(record, run_id=before.run_id) == before
    return None if is_same else record


def _start(partition: FoldedPartition, settings: BuildSettings) -> PartitionStartFiles:
    if not settings.needs_state:
        return NO_START
    segment = partition.staged[0].segment
    tiered = settings.tiered.get(TopicPartition(segment.topic, segment.partition))
    if tiered is not None:
        return PartitionStartFiles.of_tiered(tiered)
    return PartitionStartFiles.of(
        segment.base_offset,
        _start_entries(partition, settings),
        partition.log_start_offset,
    )


def _start_entries(partition: FoldedPartition, settings: BuildSettings) -> Sequence[Entry]:
    """Return the directory of the logs: in place, with what was published there."""
    if settings.in_place or partition.start_entries is None:
        return scan_directory(partition.staged[0].segment.partition_directory)
    return partition.start_entries


def _recorded_row(report: SegmentReport, staged: StagedSegment) -> dict[str, object]:
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
        **asdict(counts),
        "status": BUILT if report.status == UNCHANGED else report.status,
        "reason": report.reason,
        "position_bytes": report.position_bytes,
        "aborted_txns": report.aborted_txns,
        "producers": report.producers,
        "note": report.note,
        "reason_code": report.reason_code,
        "scan_reason_code": staged.report.reason_code,
    }


def _entries_of(directory: str, names: Iterable[str]) -> dict[str, Entry]:
    """Return the entries of a folder by name; of an object store, those that have been put."""
    if scheme_of(directory) in OBJECT_SCHEMES:
        from kafka_index.stores.object_store import ObjectStore  # noqa: PLC0415, slow to import

        store = cast("ObjectStore", store_of(directory))
        put = {name: store.pop_written(f"{directory}/{name}") for name in names}
        known = {name: info for name, info in put.items() if info is not None}
        if len(known) == len(put):
            return {
                name: StoredEntry(
                    DirectoryEntry(info.path, size_bytes=info.size_bytes, version=info.version)
                )
                for name, info in known.items()
            }
    return {entry.name: entry for entry in scan_directory(directory)}


def _files_table(published: Sequence[PublishedFile], found: dict[str, Entry]) -> pa.Table | None:
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
