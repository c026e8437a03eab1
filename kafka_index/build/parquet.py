"""Building from Parquet: rows are counted, put in order where they are in none, staged, published.

Whatever runs them, parts of the work read the row groups of their segments themselves, from any
store, with the credentials that each process finds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from zlib import crc32

import pyarrow as pa

from kafka_index.build.building import BuildListener, Publisher
from kafka_index.build.job import BuildRequest
from kafka_index.build.parquet_input import ParquetInput
from kafka_index.build.parquet_order import (
    Bin,
    SegmentCount,
    SegmentKey,
    count_segments,
    pack,
    read_bin,
    sorted_input,
    why_no_segment,
)
from kafka_index.build.parquet_source import segment_source, split_segments
from kafka_index.build.publish import GROUP_SEGMENTS
from kafka_index.build.report import SegmentReport
from kafka_index.build.scan import stage_segment
from kafka_index.build.settings import ALL_OUTPUTS, INDEX_OUTPUTS, BuildSettings
from kafka_index.build.staged_segment import StagedSegment
from kafka_index.build.waves import join_partitions
from kafka_index.errors import InputError, KafkaIndexError
from kafka_index.execution import Workers
from kafka_index.layout.names import LOG_SUFFIX, TopicPartition, segment_file_name
from kafka_index.storage import SegmentFile, check_target, lock_of_output, swept_target
from kafka_index.storage.partition_files import NO_LOG_MTIME_NS

#: How far a build in other processes is, in all.
SHARES = 100
#: How far it is once the rows have been counted.
COUNT_SHARES = 10
#: Reason codes of segments that were not built from their rows.
NO_SEGMENT = "no_segment"
INPUT_CHANGED = "input_changed"

_GONE = "the input changed since it was counted: the rows of this segment are gone"
# So that no worker waits long for the last one.
_BINS_PER_WORKER = 4


def build_parquet(
    workers: Workers,
    source: ParquetInput,
    settings: BuildSettings,
    *,
    listener: BuildListener,
    fail_fast: bool = False,
) -> None:
    """Build from a Parquet input of `open_parquet`, on threads.

    A target root is needed, and every segment is built, whatever exists; one is published only
    where all the rows that were counted have been read. Rows in no order are sorted by DuckDB. With
    `fail_fast`, no further bin begins once a segment has failed. Raises `InputError` without a
    target folder, for files that need columns which the input lacks, or if the input as a whole
    cannot be used (`count_segments`), and `PublishError` if there is no room to sort it.
    """
    check_settings(source, settings)
    named = PathListener(source.path, listener)
    with sorted_input(count_segments(source, workers), workers) as counted:
        known, refused = split_refused(source, counted.segments)
        bins = list(pack(counted, known, workers.count * _BINS_PER_WORKER))
        planned = _partition_groups(known)
        publisher = Publisher(map(len, planned), settings, named, fail_fast=fail_fast)
        for row in refused:
            publisher.report(row)
        group_of = {each.key: number for number, group in enumerate(planned) for each in group}

        def build(work: Bin, attempt_id: str) -> None:
            if publisher.stopped.is_set():
                return
            for staged in stage_bin(counted.source, work, settings, attempt_id=attempt_id):
                publisher.add(group_of[_key_of(staged)], staged, attempt_id)
                if publisher.stopped.is_set():
                    return

        sizes = [work.size_bytes for work in bins]
        publisher.finish(workers.run(bins, build, sizes=sizes, what="build {:,} bins"))


def stage_bin(
    source: ParquetInput, work: Bin, settings: BuildSettings, *, attempt_id: str
) -> Iterator[StagedSegment]:
    """Stage the segments of a bin, each of them once, also when reading fails midway."""
    waiting = {segment.key: segment for segment in work.segments}
    counts = {segment.key: segment.row_count for segment in work.segments}
    failure: KafkaIndexError | None = None

    def rows() -> Iterator[pa.RecordBatch]:
        nonlocal failure
        try:
            yield from read_bin(source, work)
        except KafkaIndexError as error:
            # Staging makes it the row of the segment that is read, and ends as if all were read.
            failure = error
            raise

    try:
        for staged in stage_stream(rows(), source, settings, counts=counts, attempt_id=attempt_id):
            # An input that has changed may have it twice.
            del waiting[_key_of(staged)], counts[_key_of(staged)]
            yield staged
    except KafkaIndexError as error:
        failure = error
    for segment in waiting.values():
        file = _segment_file(source, segment.key, settings)
        row = SegmentReport(*segment.key, file.log_path, segment.size_bytes)
        gone = row.failed(INPUT_CHANGED, _GONE)
        yield StagedSegment(file, gone if failure is None else row.failed_by(failure))


def stage_stream(
    batches: Iterator[pa.RecordBatch],
    source: ParquetInput,
    settings: BuildSettings,
    *,
    attempt_id: str,
    counts: Mapping[SegmentKey, int] | None = None,
) -> Iterator[StagedSegment]:
    """Stage segments from rows in segment and position order, counted as for `split_segments`."""
    for rows in split_segments(batches, counts):
        batches_of = segment_source(rows, source, verify_crc=settings.verify_crc)
        segment = _segment_file(source, rows.key, settings)
        staged = stage_segment(segment, batches_of, settings, attempt_id)
        rows.skip_rest()
        report = replace(staged.report, log_size_bytes=batches_of.log_size_bytes)
        yield replace(staged, report=report)


def settings_of(
    request: BuildRequest, source: ParquetInput, target_root: str | None, run_id: str
) -> BuildSettings:
    """Return the settings of a run, by default for all files that the columns allow.

    Raises as `check_settings` does.
    """
    outputs = INDEX_OUTPUTS if source.missing_for_state else ALL_OUTPUTS
    settings = request.settings(target_root, run_id, outputs)
    check_settings(source, settings)
    return settings


@contextmanager
def held_target(
    request: BuildRequest, source: ParquetInput, output: str, run_id: str
) -> Iterator[BuildSettings]:
    """Hold the output, and give the settings of the run.

    Raises `InputError` if the output overlaps the input, or as `check_settings` does, and
    `PublishError` if the output cannot be made, locked or written.
    """
    root = check_target(output, request.inputs)
    settings = settings_of(request, source, root, run_id)
    with lock_of_output(root, run_id), swept_target(root, [], run_id=run_id):
        yield settings


def check_settings(source: ParquetInput, settings: BuildSettings) -> None:
    """Refuse settings without a target folder, or with files for which columns are missing."""
    if settings.target_root is None:
        raise InputError("Parquet input cannot be built in place", hint="give --output")
    if settings.needs_state and source.missing_for_state:
        raise InputError(
            "from this batch metadata only index and timeindex are built",
            path=source.path,
            expected=f"columns {', '.join(source.missing_for_state)} in every file",
            hint="add the columns, build from raw batches, or use --what index,timeindex",
        )


def split_refused(
    source: ParquetInput, counts: Sequence[SegmentCount]
) -> tuple[list[SegmentCount], list[SegmentReport]]:
    """Separate the segments that a broker can have from the report rows of the others."""
    known, refused = [], []
    for segment in counts:
        reason = why_no_segment(segment.key)
        if reason is None:
            known.append(segment)
        else:
            row = SegmentReport(*segment.key, source.path, segment.size_bytes)
            refused.append(row.failed(NO_SEGMENT, reason))
    return known, refused


@dataclass(frozen=True, slots=True)
class PathListener:
    """Reports the input as the log path: the logs have no files."""

    path: str
    listener: BuildListener

    def on_scanned(self, row: SegmentReport) -> None:
        """Pass on a row."""
        self.listener.on_scanned(replace(row, log_path=self.path))

    def on_report(self, row: SegmentReport) -> None:
        """Pass on a final row."""
        self.listener.on_report(replace(row, log_path=self.path))


def _partition_groups(segments: Sequence[SegmentCount]) -> list[list[SegmentCount]]:
    """Join whole partitions into groups that are published together."""
    partitions: dict[tuple[str, int], list[SegmentCount]] = {}
    for segment in segments:
        partitions.setdefault(segment.key[:2], []).append(segment)
    groups = join_partitions(partitions.values(), max_segments=GROUP_SEGMENTS)
    return [[segment for members in group for segment in members] for group in groups]


def _key_of(staged: StagedSegment) -> SegmentKey:
    segment = staged.segment
    return SegmentKey(segment.topic, segment.partition, segment.base_offset)


def _segment_file(source: ParquetInput, key: SegmentKey, settings: BuildSettings) -> SegmentFile:
    """Return a stand-in whose log path names the files as a real log would.

    What an earlier run has recorded does not match it.
    """
    folder = TopicPartition(key.topic, key.partition).directory_name
    log_path = os.path.join(source.path, folder, segment_file_name(key.base_offset, LOG_SUFFIX))
    run = NO_LOG_MTIME_NS - crc32(settings.run_id.encode())
    return SegmentFile(*key, log_path, 0, run)
