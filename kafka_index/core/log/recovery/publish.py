"""Publishing: scanned segments appear, partition by partition, and are recorded.

The fold first settles what depends on earlier segments; then everything is published, the
partition's own files first, each segment's ``.index`` last, and after them the record of the
partition. An attempt that was interrupted is resumed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain, islice
from typing import cast

import pyarrow as pa

from kafka_index.core.errors import KafkaIndexError, PublishError, StagedFileGoneError
from kafka_index.core.format.names import TopicPartition
from kafka_index.core.fs.durable_files import publish_error
from kafka_index.core.fs.registry import scan_directory, store_of
from kafka_index.core.fs.store import DirectoryEntry, Entry, StoredEntry
from kafka_index.core.fs.uris import OBJECT_SCHEMES, scheme_of
from kafka_index.core.log.choices import BuildOutput
from kafka_index.core.log.recovery.build_manifest import (
    PARTITION_RECORD,
    RECORDED_FILES,
    RECORDED_SEGMENTS,
    BuildManifest,
    expiration_of,
    known_partition,
    log_columns,
    start_of,
    wants_record,
)
from kafka_index.core.log.recovery.settings import (
    BUILT,
    FAILED,
    UNCHANGED,
    BuildSettings,
    SegmentCounts,
    SegmentReport,
)
from kafka_index.core.log.recovery.staged_segment import PublishedFile, StagedSegment
from kafka_index.core.log.recovery.state_merge import (
    FoldedPartition,
    FoldedSegment,
    PartitionStart,
    fold_partition,
)
from kafka_index.core.log.state.snapshots import list_snapshots, snapshot_path
from kafka_index.core.output.publish import (
    Publication,
    StagedFile,
    is_new_folder,
    left_to_publish,
    publish_group,
    remove_scratch,
    write_scratch,
)

#: Segments that are published together: many small ones share the cost of making them durable.
GROUP_SEGMENTS = 256
# Another attempt renames a few files meanwhile.
_PATIENCE, _PATIENCE_SECONDS = 20, 0.1


def publish_segment(staged: StagedSegment, settings: BuildSettings) -> SegmentReport:
    """Publish the indexes of one segment, which is recorded nowhere; return its row.

    It was staged with the same settings, which need no state. Its files are then durably in place.
    """
    return _publish_group([(staged, staged.publication(settings), staged.report)])[0]


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
            start=known.get(staged[0].segment.topic_partition),
            listed=beside.get(staged[0].segment.topic_partition),
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
        _publish_group([(each.staged, _left_of(each, settings), each.report) for each in group])
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
    yield from _record_partitions(finished, settings, attempt_id=attempt_id)


def _groups(segments: Sequence[FoldedSegment]) -> Iterator[Sequence[FoldedSegment]]:
    for first in range(0, len(segments), GROUP_SEGMENTS):
        yield segments[first : first + GROUP_SEGMENTS]


def _publish_group(
    group: Sequence[tuple[StagedSegment, Publication | None, SegmentReport]],
) -> list[SegmentReport]:
    """Publish files, and return the row of each segment: as it was, or that of the failure."""
    errors = iter(publish_group([files for _, files, _ in group if files is not None]))
    rows = []
    for staged, files, row in group:
        error = None if files is None else next(errors)
        if files is not None and files.is_shared and isinstance(error, StagedFileGoneError):
            error = _resume(staged, files, error)
        rows.append(row if error is None else row.failed_by(error))
    return rows


def _resume(staged: StagedSegment, files: Publication, error: PublishError) -> PublishError | None:
    """Wait for another attempt that publishes the same scratch files; publish what it leaves."""
    for _ in range(_PATIENCE):
        if staged.is_in_place():
            return None
        time.sleep(_PATIENCE_SECONDS)
    left = left_to_publish(files)
    if left is not None:
        return publish_group([left])[0]
    return None if staged.is_in_place() else error


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
    """Return the files of a segment that are left to publish, its state files first."""
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
    if partition.snapshots is None or BuildOutput.SNAPSHOT not in settings.outputs:
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


def _record_partitions(
    finished: Sequence[tuple[FoldedPartition, list[SegmentReport]]],
    settings: BuildSettings,
    *,
    attempt_id: str,
) -> Iterator[SegmentReport]:
    """Write the records of published partitions; yield the final rows of their segments."""
    waiting: list[tuple[list[SegmentReport], Publication]] = []
    for partition, rows in finished:
        if wants_record(settings):
            try:
                record = _record(partition, rows, settings)
                if record is not None:
                    waiting.append((rows, _staged(partition, record, settings, attempt_id)))
            except KafkaIndexError as error:
                rows[-1] = _without_record(rows[-1], error)
    errors = publish_group([publication for _, publication in waiting])
    for (rows, _), failure in zip(waiting, errors, strict=True):
        if failure is not None:
            rows[-1] = _without_record(rows[-1], failure)
    for _, rows in finished:
        yield from rows


def _without_record(row: SegmentReport, error: KafkaIndexError) -> SegmentReport:
    """Return a row with a note: its files are in place, and only the next run does more."""
    text = f"the next run builds this partition again, as its record was not written: {error}"
    return replace(row, note="; ".join(filter(None, (row.note, text))))


def _staged(
    partition: FoldedPartition, record: BuildManifest, settings: BuildSettings, attempt_id: str
) -> Publication:
    path = os.path.join(partition.directory, PARTITION_RECORD)
    file = StagedFile(settings.work_path(path, attempt_id), path)
    attributes_of = settings.attributes_of(partition.staged[-1].segment.log_path)
    write_scratch(file.scratch_path, record.to_bytes(), attributes_of=attributes_of)
    return Publication((file,), attributes_of=attributes_of)


def _record(
    partition: FoldedPartition, rows: Sequence[SegmentReport], settings: BuildSettings
) -> BuildManifest | None:
    """Return the record of a partition; None where there is nothing new, or nothing to trust.

    A published file that is not as it was written is not to be trusted. Rows of a table are built
    again in every run.
    """
    segment = partition.staged[0].segment
    if not segment.has_log:
        return None
    recorded = []
    files: dict[str, PublishedFile] = {}
    for folded, row in zip(partition.segments, rows, strict=True):
        staged = folded.staged
        if row.status == FAILED or staged.is_withheld or row.counts is None or not staged.files:
            continue
        recorded.append(_recorded_row(row, row.counts, staged))
        files |= {file.name: file for file in staged.files}
    is_whole = len(recorded) == len(rows) and partition.snapshots is not None
    # The files of a fold that ended early are not vouched for.
    files |= {file.name: file for file in partition.published if is_whole}
    if not recorded:
        return None
    table = _files_table(list(files.values()), _entries_of(partition.directory, files))
    if table is None:
        return None
    known = known_partition(partition.directory, settings.run_id)
    if not settings.needs_state and known.covers(settings.outputs, table):
        # It knows of the partition's other files, too.
        return None

    def beside() -> tuple[Sequence[Entry], int | None]:
        start = partition.start
        # In place, with what was published there.
        listed = None if settings.in_place or start is None else start.entries
        entries = scan_directory(segment.partition_directory) if listed is None else listed
        return entries, None if start is None else start.checkpointed_log_start

    record = BuildManifest(
        settings.run_id,
        settings.scan_settings(segment.topic),
        tuple(sorted(settings.outputs)),
        *expiration_of(settings),
        start_of(segment.topic_partition, segment.base_offset, settings, beside),
        is_whole,
        pa.Table.from_pylist(recorded, RECORDED_SEGMENTS),
        table,
    )
    before = known.record
    is_same = before is not None and replace(record, run_id=before.run_id) == before
    return None if is_same else record


def _recorded_row(
    report: SegmentReport, counts: SegmentCounts, staged: StagedSegment
) -> dict[str, object]:
    return {
        "segment_base_offset": staged.segment.base_offset,
        **log_columns(staged.segment),
        **asdict(counts),
        "status": BUILT if report.status == UNCHANGED else report.status,
        "reason": report.reason,
        "position_bytes": report.position_bytes,
        "aborted_txns": report.aborted_txns,
        "producers": report.producers,
        "note": report.note,
        "reason_code": report.reason_code,
        "scan_reason_code": staged.report.reason_code,
    }


def _entries_of(directory: str, names: Iterable[str]) -> dict[str, Entry]:
    """Return the entries of a folder by name; in an object store, only files that were put."""
    if scheme_of(directory) in OBJECT_SCHEMES:
        from kafka_index.core.fs.object_store import ObjectStore  # noqa: PLC0415, slow to import

        store = cast("ObjectStore", store_of(directory))
        put = {name: store.pop_written(f"{directory}/{name}") for name in names}
        known = {name: info for name, info in put.items() if info is not None}
        if len(known) == len(put):
            return {
                name: StoredEntry(
                    DirectoryEntry(info.path, size_bytes=info.size_bytes, version=info.version)
                )
                for name, info in known.items()
            }
    return {entry.name: entry for entry in scan_directory(directory)}


def _files_table(published: Sequence[PublishedFile], found: dict[str, Entry]) -> pa.Table | None:
    """Return `RECORDED_FILES`; None when one is not there as it was written."""
    rows = []
    for file in published:
        entry = found.get(file.name)
        size_bytes, change = (0, "") if entry is None else entry.file_version()
        if entry is None or size_bytes != file.size_bytes:
            return None
        rows.append({**asdict(file), "change": change})
    return pa.Table.from_pylist(rows, RECORDED_FILES)
