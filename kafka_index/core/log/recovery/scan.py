"""Scan segments into temporary files, with a report row for each.

A staged segment is not published yet. Errors of a segment are in its row.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

from kafka_index.core.errors import KafkaIndexError
from kafka_index.core.format.config import IndexConfig
from kafka_index.core.format.names import OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from kafka_index.core.fs.durable_files import publish_error
from kafka_index.core.fs.paths import target_directory
from kafka_index.core.fs.uris import is_segment_path
from kafka_index.core.index.sparse_indexes import OffsetIndex, TimeIndex
from kafka_index.core.log.choices import BuildOutput
from kafka_index.core.log.recovery.build_manifest import previous_build, uses_manifest
from kafka_index.core.log.recovery.settings import (
    BUILT,
    FAILED,
    TRUNCATED,
    BuildSettings,
    SegmentCounts,
    SegmentReport,
    empty_row,
)
from kafka_index.core.log.recovery.staged_segment import (
    PublishedFile,
    SegmentPaths,
    StagedSegment,
    describe_stored_differences,
    target_directory_of,
)
from kafka_index.core.log.scan.index_builder import IndexBuilder
from kafka_index.core.log.scan.scanner import BatchOrder
from kafka_index.core.log.scan.segment_scan import LogFileSource
from kafka_index.core.log.state.partition_state import (
    PRODUCER_REFUSALS,
    PartitionState,
    ProducerTable,
    SegmentState,
)
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.output.publish import create_scratch
from kafka_index.core.records.batch_table import (
    INVALID_MARKER,
    PREALLOCATED_TAIL,
    ZERO_TAIL,
    BatchSource,
    ScanStop,
)

#: Reason code: a segment with transactions for which no ``.txnindex`` is requested.
TRANSACTIONAL = "transactional"
_TRANSACTIONAL = (
    "transactional: the segment was not built, because a broker that finds an .index does not "
    "rebuild the .txnindex, and would return aborted records; add txnindex to --what"
)
_NOT_PUBLISHED = (
    "the index files were not published, because a broker that finds an .index would keep the "
    "invalid tail"
)


def stage_segments(
    segments: Iterable[SegmentFile], settings: BuildSettings, *, attempt_id: str
) -> Iterator[StagedSegment]:
    """Stage segments one by one; skip the scan of segments whose files are already up to date.

    Attempts of a run that may overlap have different attempt IDs (letters, digits, underscores).
    """
    for segment in segments:
        unchanged = None if settings.force else find_unchanged_segment(segment, settings)
        if unchanged is not None:
            yield unchanged
            continue
        source = LogFileSource.of_segment(segment, verify_crc=settings.verify_crc)
        yield stage_segment(segment, source, settings, attempt_id)


def find_unchanged_segment(segment: SegmentFile, settings: BuildSettings) -> StagedSegment | None:
    """Return a segment that is up to date according to the build manifest; None to scan it."""
    if not uses_manifest(settings):
        return None
    root = settings.target_root
    try:
        directory = target_directory(root, segment.topic_partition, segment.partition_directory)
    except KafkaIndexError:
        # Staging raises and reports the same error.
        return None
    return previous_build(directory, settings.run_id).find_unchanged(segment, settings)


def stage_segment(
    segment: SegmentFile,
    source: BatchSource,
    settings: BuildSettings,
    attempt_id: str,
    directory: str | None = None,
) -> StagedSegment:
    """Scan a segment into temporary files of its target folder, or of `directory`."""
    started = time.perf_counter()
    row = empty_row(segment)
    try:
        if directory is None:
            directory = target_directory_of(segment, settings)
        paths = SegmentPaths.of(segment, directory)
        try:
            row, files = _scan(segment, source, settings, paths, attempt_id)
        except BaseException:
            paths.remove_scratch(settings, attempt_id)
            raise
    except KafkaIndexError as error:
        return StagedSegment(segment, _add_duration(row.failed_by(error), source, started))
    except OSError as error:
        publish_failure = publish_error(error, segment.log_path, "build the indexes")
        return StagedSegment(
            segment, _add_duration(row.failed_by(publish_failure), source, started)
        )
    row = _add_duration(row, source, started)
    is_withheld = row.status == TRUNCATED and settings.in_place
    if row.status == FAILED or (is_withheld and not settings.needs_state):
        paths.remove_scratch(settings, attempt_id)
        return StagedSegment(segment, row, directory)
    if settings.shares_staged:
        try:
            paths.hand_over(settings, attempt_id)
        except KafkaIndexError as error:
            paths.remove_scratch(settings, attempt_id)
            return StagedSegment(segment, row.failed_by(error), directory)
    return StagedSegment(segment, row, directory, attempt_id, is_withheld, files)


def _scan(
    segment: SegmentFile,
    source: BatchSource,
    settings: BuildSettings,
    paths: SegmentPaths,
    attempt_id: str,
) -> tuple[SegmentReport, tuple[PublishedFile, ...]]:
    """Scan a segment into its temporary files; return its row and the written files."""

    def scratch(path: str) -> str:
        return settings.work_path(path, attempt_id)

    config = settings.config.for_topic(segment.topic)
    attributes_of = settings.attributes_of(segment.log_path)
    producers = ProducerTable()
    builder, stop, overlap = _build_indexes(
        segment.base_offset,
        source,
        config,
        producers,
        offset_path=scratch(paths.offset_index),
        time_path=scratch(paths.time_index),
        attributes_of=attributes_of,
    )
    state = SegmentState.of_table(producers)
    if settings.needs_state:
        if stop is not None and stop.code == INVALID_MARKER:
            # Recovery keeps the batch, and fails when it loads the producers of the batch.
            stop = replace(stop, refused=True)
    else:
        # The segment is checked as if it were the only segment of its partition.
        stop = _first_refusal(stop, PartitionState().apply(state)[1])
    row = empty_row(segment)
    if stop is not None and stop.refused:
        return row.failed(stop.reason_code, stop.text, stop.position_bytes), ()
    lacks_txn_index = (
        BuildOutput.INDEX in settings.outputs and BuildOutput.TXN_INDEX not in settings.outputs
    )
    if producers.has_transactions and lacks_txn_index and settings.in_place:
        return row.failed(TRANSACTIONAL, _TRANSACTIONAL), ()
    row = _completed_row(row, segment, source, builder, stop, overlap)
    if is_segment_path(segment.log_path):
        built = {
            OFFSET_INDEX_SUFFIX: _read(scratch(paths.offset_index)),
            TIME_INDEX_SUFFIX: _read(scratch(paths.time_index)),
        }
        row = replace(row, note=describe_stored_differences(segment, built))
    if settings.needs_state:
        os.close(create_scratch(scratch(paths.state), attributes_of=attributes_of))
        state.write(scratch(paths.state))
    published_paths = paths.published(settings) if settings.keeps_digests else ()
    files = tuple(
        PublishedFile.of(scratch(path), os.path.basename(path)) for path in published_paths
    )
    if row.status == TRUNCATED and settings.in_place:
        return replace(row, reason=f"{row.reason}; {_NOT_PUBLISHED}"), files
    return row, files


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _first_refusal(stop: ScanStop | None, refusal: ScanStop | None) -> ScanStop | None:
    """Return where recovery fails first: in the scan, or in checks across segments."""
    if refusal is None or stop is None or not stop.refused:
        return refusal or stop
    if stop.position_bytes != refusal.position_bytes:
        return min(stop, refusal, key=lambda failure: failure.position_bytes)
    # Recovery adds a batch's index entries before it checks epochs and aborted transactions.
    return refusal if stop.code in PRODUCER_REFUSALS else stop


def _completed_row(
    row: SegmentReport,
    segment: SegmentFile,
    source: BatchSource,
    builder: IndexBuilder,
    stop: ScanStop | None,
    overlap: ScanStop | None,
) -> SegmentReport:
    """Return the row of a segment that was scanned to the end of its valid batches."""
    truncation = stop if builder.valid_bytes < source.log_size_bytes else None
    if truncation is not None and truncation.code == PREALLOCATED_TAIL and not segment.is_last:
        truncation = replace(truncation, code=ZERO_TAIL)
    defect = truncation or overlap
    return replace(
        row,
        log_size_bytes=source.log_size_bytes,
        counts=SegmentCounts(
            builder.valid_bytes,
            builder.batch_count,
            builder.offset_index.entries,
            builder.time_index.entries,
            builder.next_offset,
            builder.max_timestamp_ms,
        ),
        status=BUILT if truncation is None else TRUNCATED,
        reason=None if defect is None else defect.text,
        reason_code=None if defect is None else defect.reason_code,
        position_bytes=None if defect is None else defect.position_bytes,
    )


def _build_indexes(
    base_offset: int,
    source: BatchSource,
    config: IndexConfig,
    producers: ProducerTable,
    *,
    offset_path: str,
    time_path: str,
    attributes_of: str | None,
) -> tuple[IndexBuilder, ScanStop | None, ScanStop | None]:
    """Build both index files from a source.

    Returns the builder, the reason why recovery stopped, and the first batch out of order.
    """
    for path in (offset_path, time_path):
        os.close(create_scratch(path, attributes_of=attributes_of))
    size = config.index_size_max_bytes
    with (
        OffsetIndex(offset_path, base_offset, size, growing=True) as offset_index,
        TimeIndex(time_path, base_offset, size, growing=True) as time_index,
    ):
        builder = IndexBuilder(
            offset_index, time_index, config.index_interval_bytes, producers=producers
        )
        stop = overlap = None
        order = BatchOrder(base_offset)
        for batches in source.chunks():
            overlap = overlap or order.first_stop(batches)
            # The log is read to its end even after a stop, to find its size and detect changes.
            if stop is None:
                stop = builder.append(batches)
            if stop is not None and stop.refused:
                break
        if stop is None:
            stop = source.stop
        # If recovery fails, it does not append the last time index entry.
        if stop is None or not stop.refused:
            stop = builder.finish() or stop
    return builder, stop, overlap


def _add_duration(row: SegmentReport, source: BatchSource, started: float) -> SegmentReport:
    return replace(
        row,
        log_size_bytes=source.log_size_bytes or row.log_size_bytes,
        seconds=time.perf_counter() - started,
    )
