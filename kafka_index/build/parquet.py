"""Building from Parquet: the work on a bin that both engines share, and the engine of threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa

from kafka_index.build.parquet_input import ParquetInput, RowGroup
from kafka_index.build.parquet_plan import (
    GatherLimits,
    can_order,
    count_segments,
    list_row_groups,
    pack,
    why_no_segment,
)
from kafka_index.build.parquet_rows import SegmentCount, SegmentRows, read_bin, split_segments
from kafka_index.build.parquet_source import segment_source
from kafka_index.build.publish import publish_segments
from kafka_index.build.report import ERROR, FAILED, SegmentReport
from kafka_index.build.scan import stage_segment
from kafka_index.build.settings import BuildSettings
from kafka_index.errors import InputError, KafkaIndexError
from kafka_index.layout.names import LOG_SUFFIX, TopicPartition, segment_file_name
from kafka_index.records import BatchSource
from kafka_index.storage.partition_files import SegmentFile

#: Reason codes of segments that were not built from their rows.
UNORDERED = "unordered_positions"
NO_SEGMENT = "no_segment"
INPUT_CHANGED = "input_changed"

_UNORDERED_HINT = "sort the input by segment and position, or use --engine spark"
_GONE = "the input changed since it was counted: the rows of this segment are gone"
_DEFAULT_LIMITS = GatherLimits()
# Size and time of a log that is not there: the record of what was built matches no real log.
_NO_LOG = -1


def build_parquet(
    source: ParquetInput,
    settings: BuildSettings,
    *,
    threads: int,
    on_report: Callable[[SegmentReport], None],
    fail_fast: bool = False,
    limits: GatherLimits = _DEFAULT_LIMITS,
) -> None:
    """Build the indexes of a Parquet input with threads of this process.

    Parameters
    ----------
    source : ParquetInput
        What `open_parquet` checked.
    settings : BuildSettings
        As for logs; `target_root` is needed, and every segment is built, whatever is there.
    threads : int
        Bins at a time.
    on_report : callable
        Called with each segment's row, by one thread at a time.
    fail_fast : bool
        Begin no further segment once one has failed.
    limits : GatherLimits
        Bounds of the memory of a bin.

    Raises
    ------
    InputError
        No target folder, or the input as a whole cannot be used (`count_segments`).
    """
    require_target(settings)
    groups = list_row_groups(source)
    counts = count_segments(source, groups)
    run = _Run(source, groups, settings, on_report, fail_fast=fail_fast)
    runnable = []
    for segment in counts:
        reason = why_no_segment(segment)
        if reason is not None:
            run.report(failed_report(source.path, segment, NO_SEGMENT, reason))
        elif not can_order(segment, source.form, limits):
            reason = f"{UNORDERED}; {_UNORDERED_HINT}"
            run.report(failed_report(source.path, segment, UNORDERED, reason))
        else:
            runnable.append(segment)
    bins = pack(runnable, source.form, limits, threads)
    with ThreadPoolExecutor(threads, thread_name_prefix="build") as pool:
        try:
            for future in [
                pool.submit(run.build, number, work) for number, work in enumerate(bins)
            ]:
                future.result()
        finally:  # an interrupt, or an error of our own: the other bins end early
            run.stopped.set()


def build_stream(
    batches: Iterator[pa.RecordBatch],
    source: ParquetInput,
    settings: BuildSettings,
    *,
    attempt_id: str,
) -> Iterator[SegmentReport]:
    """Build from rows in segment and position order: what both engines call for a bin.

    Parameters
    ----------
    batches : iterator of pa.RecordBatch
        The canonical columns of `source` and `ROW_COUNT`.
    source : ParquetInput
        Where they are from.
    settings : BuildSettings
        How and where to.
    attempt_id : str
        Names this attempt's scratch files.

    Yields
    ------
    SegmentReport
        A row per segment.
    """
    sources: dict[tuple[str, int, int], BatchSource] = {}

    def work() -> Iterator[tuple[SegmentFile, BatchSource]]:
        for rows in split_segments(batches):
            batches_of = segment_source(rows, source.form, verify_crc=settings.verify_crc)
            sources[rows.topic, rows.partition, rows.base_offset] = batches_of
            yield _segment_file(source.path, rows), batches_of

    settings = settings.indexes_alone()
    staged = (stage_segment(segment, each, settings, attempt_id) for segment, each in work())
    for row in publish_segments(staged, settings):
        read = sources.pop((row.topic, row.partition, row.segment_base_offset))
        yield replace(row, log_path=source.path, log_size_bytes=read.log_size_bytes)


def require_target(settings: BuildSettings) -> None:
    """Refuse to build in place: a Parquet input has no logs to write beside.

    Raises
    ------
    InputError
        The settings name no target folder.
    """
    if settings.target_root is None:
        raise InputError("Parquet input cannot be built in place", hint="give --output")


def failed_report(path: str, segment: SegmentCount, code: str, reason: str) -> SegmentReport:
    """Return the row of a segment whose rows were counted and not built."""
    row = SegmentReport(
        segment.topic, segment.partition, segment.base_offset, path, segment.size_bytes
    )
    return row.failed(code, reason)


class _Run:
    """One local build: what its threads share."""

    def __init__(
        self,
        source: ParquetInput,
        groups: Sequence[RowGroup],
        settings: BuildSettings,
        on_report: Callable[[SegmentReport], None],
        *,
        fail_fast: bool,
    ) -> None:
        self.stopped = threading.Event()
        self._source = source
        self._groups = groups
        self._settings = settings
        self._on_report = on_report
        self._fail_fast = fail_fast
        self._lock = threading.Lock()

    def report(self, row: SegmentReport) -> None:
        """Report a row."""
        with self._lock:
            self._on_report(row)
        if self._fail_fast and row.status == FAILED:
            self.stopped.set()

    def build(self, number: int, work: Sequence[SegmentCount]) -> None:
        """Build the segments of a bin; each gets a row, also when reading fails midway."""
        if self.stopped.is_set():
            return
        waiting = {(each.topic, each.partition, each.base_offset): each for each in work}
        batches = read_bin(self._source, self._groups, work)
        code, reason = INPUT_CHANGED, _GONE
        try:
            for row in build_stream(
                batches, self._source, self._settings, attempt_id=f"bin{number}"
            ):
                del waiting[row.topic, row.partition, row.segment_base_offset]
                self.report(row)
                if self.stopped.is_set():
                    return
        except KafkaIndexError as error:
            code, reason = ERROR, str(error)
        for segment in waiting.values():
            self.report(failed_report(self._source.path, segment, code, reason))


def _segment_file(path: str, rows: SegmentRows) -> SegmentFile:
    """Return a stand-in whose log path names the index files as a real log would."""
    folder = TopicPartition(rows.topic, rows.partition).directory_name
    log_path = os.path.join(path, folder, segment_file_name(rows.base_offset, LOG_SUFFIX))
    return SegmentFile(rows.topic, rows.partition, rows.base_offset, log_path, _NO_LOG, _NO_LOG)
