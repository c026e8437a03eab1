"""Staging: one segment scanned into scratch files beside its target, and its row of the report.

Nothing is visible yet when a segment is staged. Whatever is wrong with it is in its row.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace

from kafka_index.build.report import BUILT, FAILED, TRUNCATED, UNCHANGED, SegmentReport
from kafka_index.build.settings import BuildSettings
from kafka_index.config import IndexConfig
from kafka_index.errors import KafkaIndexError
from kafka_index.index import OffsetIndex, TimeIndex
from kafka_index.layout.names import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TopicPartition,
    index_name_for,
)
from kafka_index.log import BatchSource, IndexBuilder, ScanStop
from kafka_index.log.source import PREALLOCATED_TAIL, ZERO_TAIL
from kafka_index.storage import (
    BuildRecord,
    PublishedFile,
    SegmentFile,
    SegmentPublication,
    StagedFile,
    create_scratch,
    prepare_target_directory,
    publish_error,
    record_path,
    remove_scratch,
    scratch_path,
    unchanged_record,
    write_scratch,
)

TRANSACTIONAL = (
    "transactional: not built in place, because a broker that finds an .index never rebuilds "
    ".txnindex and would show aborted records; use --output"
)
NOT_IN_PLACE = (
    "not published in place, because a broker that finds an .index would keep the invalid tail"
)


@dataclass(frozen=True, slots=True)
class StagedSegment:
    """A segment whose row is known, and what is left to publish for it."""

    report: SegmentReport
    publication: SegmentPublication | None = None


def _index_names(segment: SegmentFile) -> tuple[str, str]:
    """Return the names of the time and the offset index: the order they are published in."""
    log_name = os.path.basename(segment.log_path)
    return (
        index_name_for(log_name, TIME_INDEX_SUFFIX),
        index_name_for(log_name, OFFSET_INDEX_SUFFIX),
    )


def _target_directory(segment: SegmentFile, settings: BuildSettings) -> str:
    return prepare_target_directory(
        settings.target_root,
        TopicPartition(segment.topic, segment.partition),
        segment.partition_directory,
    )


def keep_segment(segment: SegmentFile, settings: BuildSettings) -> StagedSegment | None:
    """Return the row of a segment that is known to be right as it is."""
    started = time.perf_counter()
    config = settings.config.for_topic(segment.topic)
    try:
        record = unchanged_record(
            _target_directory(segment, settings),
            segment,
            _index_names(segment),
            index_interval_bytes=config.index_interval_bytes,
            index_size_max_bytes=config.index_size_max_bytes,
            verify_crc=settings.verify_crc,
        )
    except KafkaIndexError:
        # Staging meets the same error, and reports it.
        return None
    if record is None:
        return None
    return StagedSegment(
        replace(
            _empty_row(segment),
            valid_bytes=record.valid_bytes,
            batch_count=record.batch_count,
            offset_entries=record.offset_entries,
            time_entries=record.time_entries,
            next_offset=record.next_offset,
            max_timestamp_ms=record.max_timestamp_ms,
            # Damage that was reported once is damage still.
            status=UNCHANGED if record.status == BUILT else record.status,
            reason=record.reason,
            position_bytes=record.position_bytes,
            seconds=time.perf_counter() - started,
        )
    )


def stage_segment(
    segment: SegmentFile,
    source: BatchSource,
    settings: BuildSettings,
    attempt_id: str,
    directory: str | None = None,
) -> StagedSegment:
    """Scan a segment into scratch files of its target folder, or of the one given."""
    started = time.perf_counter()
    row = _empty_row(segment)
    try:
        if directory is None:
            directory = _target_directory(segment, settings)
        names = _index_names(segment)
        record_file = record_path(directory, segment.base_offset)
        files = [
            StagedFile(scratch_path(path, settings.run_id, attempt_id), path)
            for path in (*(os.path.join(directory, name) for name in names), record_file)
        ]
        attributes_of = segment.log_path if settings.in_place else None
        publication = SegmentPublication((files[0], files[1]), files[2], attributes_of)
        try:
            staged = _scan(segment, source, settings, publication)
        except BaseException:
            remove_staged(publication)
            raise
    except KafkaIndexError as error:
        return StagedSegment(_timed(failed_row(row, error), source, started))
    except OSError as error:
        found = publish_error(error, segment.log_path, "build the indexes")
        return StagedSegment(_timed(failed_row(row, found), source, started))
    if staged.publication is None:
        remove_staged(publication)
    return replace(staged, report=_timed(staged.report, source, started))


def _scan(
    segment: SegmentFile,
    source: BatchSource,
    settings: BuildSettings,
    publication: SegmentPublication,
) -> StagedSegment:
    """Scan a segment into its scratch files, and settle its row."""
    config = settings.config.for_topic(segment.topic)
    row = _empty_row(segment)
    time_file, offset_file = publication.files
    builder, stop = _fill(
        segment.base_offset,
        source,
        config,
        offset_path=offset_file.scratch_path,
        time_path=time_file.scratch_path,
        attributes_of=publication.attributes_of,
    )
    if stop is not None and stop.refused:
        return StagedSegment(replace(row, reason=stop.text, position_bytes=stop.position_bytes))
    if builder.has_transactions and settings.in_place:
        return StagedSegment(replace(row, reason=TRANSACTIONAL))
    cut = stop if builder.valid_bytes < source.log_size_bytes else None
    if cut is not None and cut.reason == PREALLOCATED_TAIL and not segment.is_last:
        cut = replace(cut, reason=ZERO_TAIL)
    row = replace(
        row,
        log_size_bytes=source.log_size_bytes,
        valid_bytes=builder.valid_bytes,
        batch_count=builder.batch_count,
        offset_entries=builder.offset_index.entries,
        time_entries=builder.time_index.entries,
        next_offset=builder.next_offset,
        max_timestamp_ms=builder.max_timestamp_ms,
        status=BUILT if cut is None else TRUNCATED,
        reason=None if cut is None else cut.text,
        position_bytes=None if cut is None else cut.position_bytes,
    )
    if cut is not None and settings.in_place:
        return StagedSegment(replace(row, reason=f"{cut.text}; {NOT_IN_PLACE}"))
    record = _record(segment, row, builder, settings, publication)
    write_scratch(
        publication.record.scratch_path,
        record.to_bytes(),
        attributes_of=publication.attributes_of,
    )
    return StagedSegment(row, publication)


def _fill(
    base_offset: int,
    source: BatchSource,
    config: IndexConfig,
    *,
    offset_path: str,
    time_path: str,
    attributes_of: str | None,
) -> tuple[IndexBuilder, ScanStop | None]:
    """Fill both index files from a source; return also why recovery went no further."""
    for path in (offset_path, time_path):
        os.close(create_scratch(path, attributes_of=attributes_of))
    size = config.index_size_max_bytes
    with (
        OffsetIndex(offset_path, base_offset, size, growing=True) as offset_index,
        TimeIndex(time_path, base_offset, size, growing=True) as time_index,
    ):
        builder = IndexBuilder(offset_index, time_index, config.index_interval_bytes)
        stop = None
        for batches in source.chunks():
            # Behind its end the log is still read on: its size, and whether it changed, count.
            if stop is None:
                stop = builder.append(batches)
            if stop is not None and stop.refused:
                break
        if stop is None:
            stop = source.stop
        # A source that saw an offset recovery refuses says so; recovery then never comes to an end.
        if stop is None or not stop.refused:
            stop = builder.finish() or stop
    return builder, stop


def _record(
    segment: SegmentFile,
    row: SegmentReport,
    builder: IndexBuilder,
    settings: BuildSettings,
    publication: SegmentPublication,
) -> BuildRecord:
    config = settings.config.for_topic(segment.topic)
    return BuildRecord(
        log_name=os.path.basename(segment.log_path),
        log_size_bytes=segment.log_size_bytes,
        log_mtime_ns=segment.log_mtime_ns,
        index_interval_bytes=config.index_interval_bytes,
        index_size_max_bytes=config.index_size_max_bytes,
        verify_crc=settings.verify_crc,
        status=row.status,
        reason=row.reason,
        position_bytes=row.position_bytes,
        valid_bytes=builder.valid_bytes,
        batch_count=builder.batch_count,
        offset_entries=builder.offset_index.entries,
        time_entries=builder.time_index.entries,
        next_offset=builder.next_offset,
        max_timestamp_ms=builder.max_timestamp_ms,
        files=tuple(
            PublishedFile.of(file.scratch_path, os.path.basename(file.final_path))
            for file in publication.files
        ),
    )


def _empty_row(segment: SegmentFile) -> SegmentReport:
    return SegmentReport.failed(
        segment.topic,
        segment.partition,
        segment.base_offset,
        segment.log_path,
        segment.log_size_bytes,
    )


def failed_row(row: SegmentReport, error: KafkaIndexError) -> SegmentReport:
    """Return the row of a segment that an error put an end to."""
    return replace(row, status=FAILED, reason=str(error), position_bytes=error.position_bytes)


def _timed(row: SegmentReport, source: BatchSource, started: float) -> SegmentReport:
    return replace(
        row,
        log_size_bytes=source.log_size_bytes or row.log_size_bytes,
        seconds=time.perf_counter() - started,
    )


def remove_staged(publication: SegmentPublication) -> None:
    """Remove the scratch files of a segment that is not going to be published."""
    for staged in publication.staged:
        remove_scratch(staged.scratch_path)
