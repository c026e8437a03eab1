"""The two indexes of segments, whatever came before them, for listed logs and for a single file.

What depends on earlier segments is in `kafka_index.build.fold`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import groupby
from os import PathLike

from kafka_index.build.plan import partition_of
from kafka_index.build.publish import publish_partitions, publish_segment
from kafka_index.build.report import SegmentReport
from kafka_index.build.scan import stage_segment, stage_segments
from kafka_index.build.settings import BuildSettings
from kafka_index.config import IndexConfig, LogConfig
from kafka_index.errors import InputError, refuse_other_types
from kafka_index.layout.names import TopicPartition, parse_partition_directory
from kafka_index.layout.uri_passwords import path_of
from kafka_index.scan import LogFileSource, base_offset_of
from kafka_index.storage import SegmentFile

DEFAULT_CONFIG = IndexConfig()


def build_segments(
    segments: Iterable[SegmentFile], settings: BuildSettings, *, attempt_id: str
) -> Iterator[SegmentReport]:
    """Build the offset and time indexes of listed logs, which come by partition.

    Yields a row for each segment, once the files of its partition are durably in place. Two
    attempts of a run that may overlap differ in their attempt id, of letters, digits and
    underscores.
    """
    settings = settings.indexes_alone()
    for _, members in groupby(segments, key=partition_of):
        staged = list(stage_segments(members, settings, attempt_id=attempt_id))
        yield from publish_partitions([staged], settings, attempt_id=attempt_id)


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
    path = os.path.abspath(path_of(log_path, "log_path"))
    directory = os.path.abspath(path_of(target_directory, "target_directory"))
    refuse_other_types(verify_crc=(verify_crc, bool), config=(config, IndexConfig))
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
    settings = BuildSettings(LogConfig(config), directory, verify_crc=verify_crc).indexes_alone()
    source = LogFileSource.of_segment(segment, verify_crc=verify_crc)
    staged = stage_segment(segment, source, settings, "single", directory)
    return publish_segment(staged, settings)
