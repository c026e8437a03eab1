"""Segments one by one: each scanned, its two indexes published, and a row, whatever came before it.

Segments are staged one by one and published in groups, so that many small ones share the cost of
making files durable. What runs on from segment to segment is in `kafka_index.build.partition`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from os import PathLike

from kafka_index.build.outputs import INDEX_OUTPUTS
from kafka_index.build.report import SegmentReport
from kafka_index.build.settings import BuildSettings
from kafka_index.build.staged import StagedSegment
from kafka_index.build.staging import failed_row, stage_segment, stage_segments
from kafka_index.config import IndexConfig, LogConfig
from kafka_index.errors import InputError
from kafka_index.layout.names import TopicPartition, parse_partition_directory
from kafka_index.records import BatchSource
from kafka_index.scan import LogFileSource, base_offset_of
from kafka_index.storage import SegmentFile, publish_group

DEFAULT_CONFIG = IndexConfig()

#: Segments that are published together.
GROUP_SEGMENTS = 256


def build_segments(
    segments: Iterable[SegmentFile], settings: BuildSettings, *, attempt_id: str
) -> Iterator[SegmentReport]:
    """Build the offset and time indexes of listed logs.

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
    settings = _indexes_alone(settings)
    return _publish(stage_segments(segments, settings, attempt_id=attempt_id), settings)


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
    settings = _indexes_alone(settings)
    staged = (stage_segment(segment, source, settings, attempt_id) for segment, source in work)
    return _publish(staged, settings)


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
    settings = _indexes_alone(BuildSettings(LogConfig(config), directory, verify_crc=verify_crc))
    source = LogFileSource.of_segment(segment, verify_crc=verify_crc)
    staged = stage_segment(segment, source, settings, "single", directory)
    return next(iter(_publish([staged], settings)))


def _indexes_alone(settings: BuildSettings) -> BuildSettings:
    return replace(settings, outputs=settings.outputs & INDEX_OUTPUTS)


def _publish(staged: Iterable[StagedSegment], settings: BuildSettings) -> Iterator[SegmentReport]:
    group: list[StagedSegment] = []
    try:
        for one in staged:
            group.append(one)
            if len(group) == GROUP_SEGMENTS:
                full, group = group, []
                yield from _publish_group(full, settings)
        full, group = group, []
        yield from _publish_group(full, settings)
    finally:
        # Whoever stops asking for rows gets no files for those not asked for.
        for one in group:
            one.remove_scratch(settings)


def _publish_group(group: list[StagedSegment], settings: BuildSettings) -> Iterator[SegmentReport]:
    publications = [one.publication(settings) for one in group]
    errors = iter(publish_group([each for each in publications if each is not None]))
    # Settled before the first row is handed out: a caller may not ask for the second.
    rows = []
    for one, publication in zip(group, publications, strict=True):
        error = None if publication is None else next(errors)
        rows.append(one.report if error is None else failed_row(one.report, error))
    yield from rows
