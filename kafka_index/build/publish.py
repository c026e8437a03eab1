"""Publishing: scanned segments appear, partition by partition.

The fold first settles what depends on earlier segments; then everything is published, the
partition's own files first, each segment's ``.index`` last. An attempt that was interrupted is
resumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice

from kafka_index.build.fold import fold_partition
from kafka_index.build.folded_partition import FoldedPartition, FoldedSegment
from kafka_index.build.partition_record import record_partitions
from kafka_index.build.partition_start import PartitionStart
from kafka_index.build.plan import partition_of
from kafka_index.build.report import FAILED, SegmentReport
from kafka_index.build.settings import BuildSettings, Output
from kafka_index.build.staged_segment import StagedSegment
from kafka_index.errors import KafkaIndexError
from kafka_index.layout.names import TopicPartition
from kafka_index.state.snapshots import list_snapshots, snapshot_path
from kafka_index.storage import (
    Publication,
    left_to_publish,
    publish_error,
    publish_group,
    remove_scratch,
)
from kafka_index.storage.directories import Entry
from kafka_index.storage.publish import is_new_folder
from kafka_index.stores import store_of

#: Segments that are published together: many small ones share the cost of making them durable.
GROUP_SEGMENTS = 256


def publish_segment(staged: StagedSegment, settings: BuildSettings) -> SegmentReport:
    """Publish the indexes of one segment, which is recorded nowhere; return its row.

    It was staged with the same settings, which need no state. Its files are then durably in place.
    """
    return _publish_group([(staged.publication(settings), staged.report)])[0]


def publish_partitions(
    partitions: Iterable[Sequence[StagedSegment]],
    settings: BuildSettings,
    *,
    attempt_id: str,
    starts: Mapping[TopicPartition, PartitionStart] | None = None,
    listed: Mapping[TopicPartition, Sequence[Entry]] | None = None,
) -> Iterator[SegmentReport]:
    """Fold the segments of partitions and publish all of their files.

    Every segment of each is given, by base offset. They are published together: many small
    partitions share the cost of making files durable. Two attempts of a run that may overlap differ
    in their attempt id, of letters, digits and underscores. `starts` is the state before the first
    segment of a partition, where it is not that of the files beside its log, and `listed` are the
    entries that the listing of the run has found beside the logs. Yields a row for each segment,
    once its files are durably in place. Scratch files that are not published stay: another attempt
    at the same rows needs them.
    """
    known, beside = starts or {}, listed or {}
    folded = [
        fold_partition(
            staged,
            settings,
            attempt_id=attempt_id,
            start=known.get(partition_of(staged[0].segment)),
            listed=beside.get(partition_of(staged[0].segment)),
        )
        for staged in partitions
    ]
    _publish_own_files(folded, settings)
    sound = []
    for partition in folded:
        if partition.error is None:
            sound.append(partition)
        else:
            yield from _given_up(partition, partition.error)
    segments = [segment for partition in sound for segment in partition.segments]
    rows = chain.from_iterable(
        _publish_group([(_left_of(each, settings), each.report) for each in group])
        for group in _groups(segments)
    )
    finished = [
        (
            partition,
            _without_old_snapshots(
                partition, list(islice(rows, len(partition.segments))), settings
            ),
        )
        for partition in sound
    ]
    yield from record_partitions(finished, settings, attempt_id=attempt_id)


def _groups(segments: Sequence[FoldedSegment]) -> Iterator[Sequence[FoldedSegment]]:
    for first in range(0, len(segments), GROUP_SEGMENTS):
        yield segments[first : first + GROUP_SEGMENTS]


def _publish_group(
    group: Sequence[tuple[Publication | None, SegmentReport]],
) -> list[SegmentReport]:
    """Publish files, and return the row of each segment: as it was, or that of the failure."""
    errors = iter(publish_group([files for files, _ in group if files is not None]))
    rows = []
    for files, row in group:
        error = None if files is None else next(errors)
        rows.append(row if error is None else row.failed_by(error))
    return rows


def _publish_own_files(folded: Sequence[FoldedPartition], settings: BuildSettings) -> None:
    """Publish what belongs to no segment, before any segment; an error is the partition's."""
    waiting = [each for each in folded if each.error is None and each.own_files]
    publications = [
        Publication(
            each.own_files, attributes_of=settings.attributes_of(each.staged[0].segment.log_path)
        )
        for each in waiting
    ]
    for each, error in zip(waiting, publish_group(publications), strict=True):
        each.error = error


def _given_up(partition: FoldedPartition, error: KafkaIndexError) -> Iterator[SegmentReport]:
    for file in (*partition.own_files, *(f for each in partition.segments for f in each.files)):
        remove_scratch(file.scratch_path)
    for staged in partition.staged:
        row = staged.report
        yield row if row.status == FAILED else row.failed_by(error)


def _left_of(folded: FoldedSegment, settings: BuildSettings) -> Publication | None:
    """Return what there is left to publish of a segment, its state files first."""
    if folded.report.status == FAILED:
        return None
    publication = folded.staged.publication(settings)
    if publication is not None and publication.is_segment:
        left = left_to_publish(publication)
        if left is None and not folded.staged.is_in_place():
            # An attempt before this one gave it up: publishing it reports that.
            left = publication
        publication = left
    if publication is None:
        attributes_of = settings.attributes_of(folded.staged.segment.log_path)
        return Publication(folded.files, attributes_of=attributes_of) if folded.files else None
    return replace(publication, files=(*folded.files, *publication.files))


def _without_old_snapshots(
    partition: FoldedPartition, rows: list[SegmentReport], settings: BuildSettings
) -> list[SegmentReport]:
    """Remove the snapshots that a broker which recovers the partition would remove."""
    if partition.snapshots is None or Output.SNAPSHOT not in settings.outputs:
        return rows
    # What lies below the start in place is where the next build begins, too.
    lowest = partition.first_offset if settings.in_place else -1
    directory = partition.directory
    if is_new_folder(directory, settings.run_id):
        return rows
    try:
        for offset in list_snapshots(directory):
            if offset > lowest and offset not in partition.snapshots:
                # Another attempt may be at it, too.
                store_of(directory).delete([snapshot_path(directory, offset)])
    except KafkaIndexError as error:
        rows[-1] = rows[-1].failed_by(error)
    except OSError as error:
        place = error.filename or directory
        rows[-1] = rows[-1].failed_by(publish_error(error, place, "remove an old snapshot"))
    return rows
