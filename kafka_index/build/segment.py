"""The one function of a build that both engines call: segments in, published files and rows out.

A segment is scanned into scratch files beside its target. Segments are published in groups, so
that many small ones share the cost of making files durable. Whatever is wrong with a segment
becomes its row of the report.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from os import PathLike

from kafka_index.build.report import BUILT, FAILED, TRUNCATED, UNCHANGED, SegmentReport
from kafka_index.build.settings import BuildSettings
from kafka_index.config import IndexConfig, LogConfig
from kafka_index.errors import InputError, KafkaIndexError
from kafka_index.index import OffsetIndex, TimeIndex
from kafka_index.layout.names import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TopicPartition,
    index_name_for,
    parse_partition_directory,
)
from kafka_index.log import BatchSource, IndexBuilder, LogFileSource, ScanStop
from kafka_index.log.segment_scan import base_offset_of
from kafka_index.storage import (
    BuildRecord,
    PublishedFile,
    SegmentFile,
    SegmentPublication,
    StagedFile,
    create_scratch,
    prepare_target_directory,
    publish_group,
    record_path,
    remove_scratch,
    scratch_path,
    unchanged_record,
    write_scratch,
)

DEFAULT_CONFIG = IndexConfig()

#: Segments that are published together.
GROUP_SEGMENTS = 256

TRANSACTIONAL = (
    "transactional: not built in place, because a broker that finds an .index never rebuilds "
    ".txnindex and would show aborted records; use --output"
)
NOT_IN_PLACE = (
    "not published in place, because a broker that finds an .index would keep the invalid tail"
)


@dataclass(frozen=True, slots=True)
class _Staged:
    """A segment whose row is known, and what is left to publish for it."""

    report: SegmentReport
    publication: SegmentPublication | None = None


def build_segments(
    segments: Iterable[SegmentFile], settings: BuildSettings, *, attempt_id: str
) -> Iterator[SegmentReport]:
    """Build the indexes of listed logs.

    Parameters
    ----------
    segments : iterable of SegmentFile
        The logs.
    settings : BuildSettings
        How and where to.
    attempt_id : str
        Letters, digits and underscores. Two attempts of a run that may overlap differ in it.

    Yields
    ------
    SegmentReport
        One a segment, once its files are durably in place; in order within a group.
    """

    def stage() -> Iterator[_Staged]:
        for segment in segments:
            kept = None if settings.force else _kept(segment, settings)
            if kept is not None:
                yield kept
                continue
            source = LogFileSource.of_segment(segment, verify_crc=settings.verify_crc)
            yield _stage(segment, source, settings, attempt_id)

    return _publish(stage())


def build_from_sources(
    work: Iterable[tuple[SegmentFile, BatchSource]], settings: BuildSettings, *, attempt_id: str
) -> Iterator[SegmentReport]:
    """Build the indexes of segments whose batches come from elsewhere; nothing is reused.

    Parameters
    ----------
    work : iterable of (SegmentFile, BatchSource)
        The log path names the files that are written; a source is read before the next is
        asked for.
    settings, attempt_id
        As for `build_segments`.
    """
    return _publish(_stage(segment, source, settings, attempt_id) for segment, source in work)


def build_segment_files(
    log_path: str | PathLike[str],
    target_directory: str | PathLike[str],
    *,
    config: IndexConfig = DEFAULT_CONFIG,
    verify_crc: bool = True,
) -> SegmentReport:
    """Build the index files of one log into a folder, whatever its own folder is called.

    Parameters
    ----------
    log_path : path
        The ``.log``; its name holds the base offset.
    target_directory : path
        An existing folder, which must not be that of the log.
    config : IndexConfig
        Kafka's settings.
    verify_crc : bool
        Whether checksums are verified.

    Returns
    -------
    SegmentReport
        As a row of a build's report; whatever is wrong with the segment is in there.

    Raises
    ------
    InputError
        The log is missing, its name holds no base offset, or the folder is that of the log.
    """
    path = os.path.abspath(log_path)
    directory = os.path.abspath(target_directory)
    try:
        found = os.stat(path)
        in_place = os.path.samefile(directory, os.path.dirname(path))
    except OSError as error:
        raise InputError(f"cannot be found: {error.strerror}", path=error.filename) from error
    if in_place:
        raise InputError("the target is the folder of the log", path=directory)
    name = parse_partition_directory(os.path.basename(os.path.dirname(path)))
    partition = TopicPartition("", -1) if name is None else name
    segment = SegmentFile(
        partition.topic,
        partition.partition,
        base_offset_of(path),
        path,
        found.st_size,
        found.st_mtime_ns,
    )
    settings = BuildSettings(LogConfig(config), directory, verify_crc=verify_crc)
    source = LogFileSource.of_segment(segment, verify_crc=verify_crc)
    staged = _stage(segment, source, settings, "single", directory)
    return next(iter(_publish([staged])))


def _publish(staged: Iterable[_Staged]) -> Iterator[SegmentReport]:
    group: list[_Staged] = []
    try:
        for one in staged:
            group.append(one)
            if len(group) == GROUP_SEGMENTS:
                full, group = group, []
                yield from _publish_group(full)
        full, group = group, []
        yield from _publish_group(full)
    finally:
        # Whoever stops asking for rows gets no files for those not asked for.
        for one in group:
            if one.publication is not None:
                _remove(one.publication)


def _publish_group(group: list[_Staged]) -> Iterator[SegmentReport]:
    errors = iter(publish_group([one.publication for one in group if one.publication is not None]))
    # Settled before the first row is handed out: a caller may not ask for the second.
    rows = []
    for one in group:
        error = None if one.publication is None else next(errors)
        rows.append(one.report if error is None else _failed_row(one.report, error))
    yield from rows


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


def _kept(segment: SegmentFile, settings: BuildSettings) -> _Staged | None:
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
    return _Staged(
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


def _stage(
    segment: SegmentFile,
    source: BatchSource,
    settings: BuildSettings,
    attempt_id: str,
    directory: str | None = None,
) -> _Staged:
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
            _remove(publication)
            raise
    except KafkaIndexError as error:
        return _Staged(_timed(_failed_row(row, error), source, started))
    if staged.publication is None:
        _remove(publication)
    return replace(staged, report=_timed(staged.report, source, started))


def _scan(
    segment: SegmentFile,
    source: BatchSource,
    settings: BuildSettings,
    publication: SegmentPublication,
) -> _Staged:
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
        return _Staged(replace(row, reason=stop.text, position_bytes=stop.position_bytes))
    if builder.has_transactions and settings.in_place:
        return _Staged(replace(row, reason=TRANSACTIONAL))
    cut = stop if builder.valid_bytes < source.log_size_bytes else None
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
        return _Staged(replace(row, reason=f"{cut.text}; {NOT_IN_PLACE}"))
    record = _record(segment, row, builder, settings, publication)
    write_scratch(
        publication.record.scratch_path,
        record.to_bytes(),
        attributes_of=publication.attributes_of,
    )
    return _Staged(row, publication)


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
        for batches in source.chunks():
            stop = builder.append(batches)
            if stop is not None:
                break
        else:
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
    return SegmentReport(
        topic=segment.topic,
        partition=segment.partition,
        segment_base_offset=segment.base_offset,
        log_path=segment.log_path,
        log_size_bytes=segment.log_size_bytes,
        valid_bytes=None,
        batch_count=None,
        offset_entries=None,
        time_entries=None,
        next_offset=None,
        max_timestamp_ms=None,
        status=FAILED,
        reason=None,
        position_bytes=None,
        seconds=0.0,
    )


def _failed_row(row: SegmentReport, error: KafkaIndexError) -> SegmentReport:
    return replace(row, status=FAILED, reason=str(error), position_bytes=error.position_bytes)


def _timed(row: SegmentReport, source: BatchSource, started: float) -> SegmentReport:
    return replace(
        row,
        log_size_bytes=source.log_size_bytes or row.log_size_bytes,
        seconds=time.perf_counter() - started,
    )


def _remove(publication: SegmentPublication) -> None:
    for staged in publication.staged:
        remove_scratch(staged.scratch_path)
