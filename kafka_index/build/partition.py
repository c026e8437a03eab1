"""Whole partitions: what both engines call when all segments of one have been scanned.

The fold says what runs on from segment to segment; then everything is published, the partition's
own files first, each segment's ``.index`` last. An attempt that was interrupted is gone on with.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from kafka_index.build.folding import FoldedSegment, PartitionFold
from kafka_index.build.outputs import Output
from kafka_index.build.partition_start import PartitionStart
from kafka_index.build.report import FAILED, SegmentReport
from kafka_index.build.segment import GROUP_SEGMENTS
from kafka_index.build.settings import BuildSettings
from kafka_index.build.staged import StagedSegment
from kafka_index.build.staging import failed_row, keep_segment
from kafka_index.errors import KafkaIndexError
from kafka_index.layout.names import SNAPSHOT_SUFFIX, parse_segment_file
from kafka_index.storage import (
    FilePublication,
    Publication,
    SegmentPublication,
    StagedFile,
    left_to_publish,
    publish_error,
    publish_group,
    remove_scratch,
)


def publish_partition(
    staged: Sequence[StagedSegment], settings: BuildSettings, *, attempt_id: str
) -> Iterator[SegmentReport]:
    """Fold the segments of a partition and publish all there is of it.

    Parameters
    ----------
    staged : sequence of StagedSegment
        Every segment of one partition, by base offset.
    settings : BuildSettings
        How and where to.
    attempt_id : str
        Letters, digits and underscores. Two attempts of a run that may overlap differ in it.

    Yields
    ------
    SegmentReport
        One a segment, once its files are durably in place.

    Notes
    -----
    What the scans left and is not published stays: another attempt at the same rows needs it.
    """
    folded: list[FoldedSegment] = []
    own: tuple[StagedFile, ...] = ()
    try:
        fold = PartitionFold(
            PartitionStart.read(
                staged[0].segment,
                settings.expiration,
                with_epochs=Output.EPOCHS in settings.outputs,
            ),
            settings,
            attempt_id,
        )
        folded += map(fold.take, staged)
        own = fold.last_files(staged[-1])
        _publish_own(own, staged[0], settings)
    except KafkaIndexError as error:
        _give_up(folded, own)
        for one in staged:
            yield one.report if one.report.status == FAILED else failed_row(one.report, error)
        return
    for first in range(0, len(folded), GROUP_SEGMENTS):
        group = folded[first : first + GROUP_SEGMENTS]
        rows = _publish_group(group, settings)
        if group[-1] is folded[-1] and fold.is_whole and Output.SNAPSHOT in settings.outputs:
            # What lies below the start in place is where the next build begins, too.
            lowest = fold.first_offset if settings.in_place else -1
            try:
                _remove_snapshots(staged[0].directory, above=lowest, but=fold.snapshots)
            except KafkaIndexError as error:
                rows[-1] = failed_row(rows[-1], error)
        yield from rows


def _publish_own(
    files: tuple[StagedFile, ...], first: StagedSegment, settings: BuildSettings
) -> None:
    if files:
        attributes_of = settings.attributes_of(first.segment.log_path)
        for error in publish_group([FilePublication(files, attributes_of)]):
            if error is not None:
                raise error


def _give_up(folded: Sequence[FoldedSegment], own: tuple[StagedFile, ...]) -> None:
    for file in (*own, *(file for one in folded for file in one.files)):
        remove_scratch(file.scratch_path)


def _publish_group(group: Sequence[FoldedSegment], settings: BuildSettings) -> list[SegmentReport]:
    publications = [_publication(one, settings) for one in group]
    errors = iter(publish_group([each for each in publications if each is not None]))
    rows = []
    for one, publication in zip(group, publications, strict=True):
        error = None if publication is None else next(errors)
        rows.append(one.report if error is None else failed_row(one.report, error))
    return rows


def _publication(one: FoldedSegment, settings: BuildSettings) -> Publication | None:
    """Return what there is to publish of a segment, its state files first."""
    if one.report.status == FAILED:
        return None
    publication = one.staged.publication(settings)
    if isinstance(publication, SegmentPublication):
        left = left_to_publish(publication)
        if left is None and keep_segment(one.staged.segment, settings) is None:
            # An attempt before this one gave it up: publishing it says so.
            left = publication
        publication = left
    if publication is None:
        attributes_of = settings.attributes_of(one.staged.segment.log_path)
        return FilePublication(one.files, attributes_of) if one.files else None
    files = (*one.files, *publication.files)
    if isinstance(publication, SegmentPublication):
        return SegmentPublication(files, publication.record, publication.attributes_of)
    return FilePublication(files, publication.attributes_of)


def _remove_snapshots(directory: str, *, above: int, but: set[int]) -> None:
    """Remove the snapshots that a broker which recovers the partition would remove."""
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                parsed = parse_segment_file(entry.name)
                if parsed is None or parsed.kind != SNAPSHOT_SUFFIX or parsed.transient:
                    continue
                if parsed.base_offset > above and parsed.base_offset not in but:
                    # Another attempt may be at it, too.
                    with suppress(FileNotFoundError):
                        os.unlink(entry.path)
    except OSError as error:
        place = error.filename or directory
        raise publish_error(error, place, "remove an old snapshot") from error
