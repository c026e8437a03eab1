"""Scan segments: write their index files to temporary files, and create report rows.

The results are staged segments, which are not published yet. The row of a segment has its error.
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

#: Reason code of a segment with transactions, if an ``.index`` but no ``.txnindex`` is requested.
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
    """Scan segments one by one; segments whose files are up to date are not scanned.

    Attempts of a run that may overlap must have different attempt IDs, of letters, digits and
    underscores.
    """
    for segment in segments:
        unchanged = None if settings.force else find_unchanged_segment(segment, settings)
        if unchanged is not None:
            yield unchanged
            continue
        source = LogFileSource.of_segment(segment, verify_crc=settings.verify_crc)
        yield stage_segment(segment, source, settings, attempt_id)


def find_unchanged_segment(segment: SegmentFile, settings: BuildSettings) -> StagedSegment | None:
    """Return a segment that is up to date according to the build manifest; None for others."""
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
    """Scan a segment; write temporary files to its target folder, or to `directory`."""
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
    """Scan a segment and write its temporary files; return its row and the files to publish."""

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
            # Recovery does not truncate this batch, and fails when it loads the producers.
            stop = replace(stop, refused=True)
    else:
        # Check producers and epochs as if this were the only segment of its partition.
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
    """Return where recovery fails first: in the scan, or when the segment's state is applied."""
    if refusal is None or stop is None or not stop.refused:
        return refusal or stop
    if stop.position_bytes != refusal.position_bytes:
        return min(stop, refusal, key=lambda failure: failure.position_bytes)
    # For one batch, recovery adds index entries, then updates producers, then checks epochs and
    # aborted transactions.
    return refusal if stop.code in PRODUCER_REFUSALS else stop


def _completed_row(
    row: SegmentReport,
    segment: SegmentFile,
    source: BatchSource,
    builder: IndexBuilder,
    stop: ScanStop | None,
    overlap: ScanStop | None,
) -> SegmentReport:
    """Return the row of a segment whose valid batches were all scanned."""
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
    """Build both index files from the batches of a source.

    Returns the builder, why recovery fails or truncates the log, and the first batch out of order.
    The last two are None without such a batch.
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
            # Even after a stop, the log is read to its end, to find its size and to detect changes.
            if stop is None:
                stop = builder.append(batches)
            if stop is not None and stop.refused:
                break
        if stop is None:
            stop = source.stop
        # A failing recovery does not append the last time index entry.
        if stop is None or not stop.refused:
            stop = builder.finish() or stop
    return builder, stop, overlap


def _add_duration(row: SegmentReport, source: BatchSource, started: float) -> SegmentReport:
    return replace(
        row,
        log_size_bytes=source.log_size_bytes or row.log_size_bytes,
        seconds=time.perf_counter() - started,
    )
