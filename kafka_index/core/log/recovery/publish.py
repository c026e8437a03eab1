"""Publication of scanned segments, partition by partition.

The state files are merged first. Then all files are published: the partition's own files first,
each segment's ``.index`` last, and after them the build manifest. An interrupted attempt is
resumed.
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
    BUILD_MANIFEST,
    MANIFEST_FILES,
    MANIFEST_SEGMENTS,
    BuildManifest,
    expiration_times,
    log_identity,
    merge_start,
    previous_build,
    uses_manifest,
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
    MergedPartition,
    MergedSegment,
    PartitionStart,
    merge_partition,
)
from kafka_index.core.log.state.snapshots import list_snapshots, snapshot_path
from kafka_index.core.output.publish import (
    Publication,
    StagedFile,
    is_new_folder,
    publish_group,
    remove_scratch,
    unpublished_files,
    write_scratch,
)

#: Segments that are published together: many small segments share the cost of fsync.
GROUP_SEGMENTS = 256
# How often and how long to wait for another attempt that renames the same files.
_WAITS, _WAIT_SECONDS = 20, 0.1


def publish_segment(staged: StagedSegment, settings: BuildSettings) -> SegmentReport:
    """Publish the indexes of one segment durably, without a build manifest; return its row.

    It was staged with the same settings, which need no state.
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
    """Merge the segments of partitions and publish all of their files.

    All segments of each partition must be given, by base offset. Partitions are published together,
    because many small partitions share the cost of fsync. Attempts of a run that may overlap have
    different attempt IDs (letters, digits, underscores). `starts` is the state before the first
    segment of a partition, by default from the files next to its log. `listed` has the directory
    entries next to the logs, if known. Yields a row for each segment after its files are durably in
    place. Temporary files that are not published stay, because another attempt needs them.
    """
    known, beside = starts or {}, listed or {}
    merged = [
        merge_partition(
            staged,
            settings,
            attempt_id=attempt_id,
            start=known.get(staged[0].segment.topic_partition),
            listed=beside.get(staged[0].segment.topic_partition),
        )
        for staged in partitions
    ]
    _publish_own_files(merged, settings)
    publishable = []
    for partition in merged:
        if partition.error is None:
            publishable.append(partition)
        else:
            yield from _failed_rows(partition, partition.error)
    segments = [segment for partition in publishable for segment in partition.segments]
    rows = chain.from_iterable(
        _publish_group([(each.staged, _unpublished(each, settings), each.report) for each in group])
        for group in _groups(segments)
    )
    finished = [
        (
            partition,
            _delete_old_snapshots(partition, list(islice(rows, len(partition.segments))), settings),
        )
        for partition in publishable
    ]
    yield from _write_manifests(finished, settings, attempt_id=attempt_id)


def _groups(segments: Sequence[MergedSegment]) -> Iterator[Sequence[MergedSegment]]:
    for first in range(0, len(segments), GROUP_SEGMENTS):
        yield segments[first : first + GROUP_SEGMENTS]


def _publish_group(
    group: Sequence[tuple[StagedSegment, Publication | None, SegmentReport]],
) -> list[SegmentReport]:
    """Publish files; return the row of each segment, with status failed after an error."""
    errors = iter(publish_group([files for _, files, _ in group if files is not None]))
    rows = []
    for staged, files, row in group:
        error = None if files is None else next(errors)
        if files is not None and files.is_shared and isinstance(error, StagedFileGoneError):
            error = _resume(staged, files, error)
        rows.append(row if error is None else row.failed_by(error))
    return rows


def _resume(staged: StagedSegment, files: Publication, error: PublishError) -> PublishError | None:
    """Wait for another attempt that publishes the same temporary files; publish the rest."""
    for _ in range(_WAITS):
        if staged.is_in_place():
            return None
        time.sleep(_WAIT_SECONDS)
    left = unpublished_files(files)
    if left is not None:
        return publish_group([left])[0]
    return None if staged.is_in_place() else error


def _publish_own_files(merged: Sequence[MergedPartition], settings: BuildSettings) -> None:
    """Publish the files that belong to no segment; set the errors of their partitions."""
    waiting = [each for each in merged if each.error is None and each.own_files]
    publications = [
        Publication(
            each.own_files, attributes_of=settings.attributes_of(each.staged[0].segment.log_path)
        )
        for each in waiting
    ]
    for each, error in zip(waiting, publish_group(publications), strict=True):
        each.error = error


def _failed_rows(partition: MergedPartition, error: KafkaIndexError) -> Iterator[SegmentReport]:
    for file in (*partition.own_files, *(f for each in partition.segments for f in each.files)):
        remove_scratch(file.scratch_path)
    for staged in partition.staged:
        row = staged.report
        yield row if row.status == FAILED else row.failed_by(error)


def _unpublished(merged: MergedSegment, settings: BuildSettings) -> Publication | None:
    """Return the files of a segment that must still be published, its state files first."""
    if merged.report.status == FAILED:
        return None
    publication = merged.staged.publication(settings)
    if publication is not None and publication.is_segment:
        left = unpublished_files(publication)
        if left is None and not merged.staged.is_in_place():
            # An earlier attempt has failed to publish it. Publication reports the error again.
            left = publication
        publication = left
    if publication is None:
        attributes_of = settings.attributes_of(merged.staged.segment.log_path)
        return Publication(merged.files, attributes_of=attributes_of) if merged.files else None
    return replace(publication, files=(*merged.files, *publication.files))


def _delete_old_snapshots(
    partition: MergedPartition, rows: list[SegmentReport], settings: BuildSettings
) -> list[SegmentReport]:
    """Delete the snapshots that a broker would delete in recovery; return the rows."""
    if partition.snapshots is None or BuildOutput.SNAPSHOT not in settings.outputs:
        return rows
    # In place, the next build also starts from the snapshots below the log start.
    lowest = partition.first_offset if settings.in_place else -1
    directory = partition.directory
    if is_new_folder(directory, settings.run_id):
        return rows
    try:
        for offset in list_snapshots(directory):
            if offset > lowest and offset not in partition.snapshots:
                # Another attempt may delete it at the same time.
                store_of(directory).delete([snapshot_path(directory, offset)])
    except KafkaIndexError as error:
        rows[-1] = rows[-1].failed_by(error)
    except OSError as error:
        path = error.filename or directory
        rows[-1] = rows[-1].failed_by(publish_error(error, path, "remove an old snapshot"))
    return rows


def _write_manifests(
    finished: Sequence[tuple[MergedPartition, list[SegmentReport]]],
    settings: BuildSettings,
    *,
    attempt_id: str,
) -> Iterator[SegmentReport]:
    """Write the manifests of published partitions; yield the final rows of their segments."""
    waiting: list[tuple[list[SegmentReport], Publication]] = []
    for partition, rows in finished:
        if uses_manifest(settings):
            try:
                manifest = _new_manifest(partition, rows, settings)
                if manifest is not None:
                    staged = _stage_manifest(partition, manifest, settings, attempt_id)
                    waiting.append((rows, staged))
            except KafkaIndexError as error:
                rows[-1] = _without_manifest(rows[-1], error)
    errors = publish_group([publication for _, publication in waiting])
    for (rows, _), failure in zip(waiting, errors, strict=True):
        if failure is not None:
            rows[-1] = _without_manifest(rows[-1], failure)
    for _, rows in finished:
        yield from rows


def _without_manifest(row: SegmentReport, error: KafkaIndexError) -> SegmentReport:
    """Return a row with a note: its files are in place, but the next run builds them again."""
    text = (
        f"the next run builds this partition again, because its manifest was not written: {error}"
    )
    return replace(row, note="; ".join(filter(None, (row.note, text))))


def _stage_manifest(
    partition: MergedPartition, manifest: BuildManifest, settings: BuildSettings, attempt_id: str
) -> Publication:
    path = os.path.join(partition.directory, BUILD_MANIFEST)
    file = StagedFile(settings.work_path(path, attempt_id), path)
    attributes_of = settings.attributes_of(partition.staged[-1].segment.log_path)
    write_scratch(file.scratch_path, manifest.to_bytes(), attributes_of=attributes_of)
    return Publication((file,), attributes_of=attributes_of)


def _new_manifest(
    partition: MergedPartition, rows: Sequence[SegmentReport], settings: BuildSettings
) -> BuildManifest | None:
    """Return the manifest of a partition; None if it is unchanged or there can be none.

    There is none if a published file has changed since it was written. Segments of a table have
    none either: they are built again in every run.
    """
    segment = partition.staged[0].segment
    if not segment.has_log:
        return None
    segments = []
    files: dict[str, PublishedFile] = {}
    for merged, row in zip(partition.segments, rows, strict=True):
        staged = merged.staged
        if row.status == FAILED or staged.is_withheld or row.counts is None or not staged.files:
            continue
        segments.append(_manifest_row(row, row.counts, staged))
        files |= {file.name: file for file in staged.files}
    is_complete = len(segments) == len(rows) and partition.snapshots is not None
    # A merge that ended early has not determined all of its state files.
    files |= {file.name: file for file in partition.published if is_complete}
    if not segments:
        return None
    table = _files_table(list(files.values()), _entries_of(partition.directory, files))
    if table is None:
        return None
    previous = previous_build(partition.directory, settings.run_id)
    if not settings.needs_state and previous.covers(settings.outputs, table):
        # The previous manifest also has the state files.
        return None

    def beside() -> tuple[Sequence[Entry], int | None]:
        start = partition.start
        # In place, the directory also has the published files.
        listed = None if settings.in_place or start is None else start.entries
        entries = scan_directory(segment.partition_directory) if listed is None else listed
        return entries, None if start is None else start.checkpointed_log_start

    manifest = BuildManifest(
        settings.run_id,
        settings.scan_settings(segment.topic),
        tuple(sorted(settings.outputs)),
        *expiration_times(settings),
        merge_start(segment.topic_partition, segment.base_offset, settings, beside),
        is_complete,
        pa.Table.from_pylist(segments, MANIFEST_SEGMENTS),
        table,
    )
    before = previous.manifest
    is_same = before is not None and replace(manifest, run_id=before.run_id) == before
    return None if is_same else manifest


def _manifest_row(
    report: SegmentReport, counts: SegmentCounts, staged: StagedSegment
) -> dict[str, object]:
    return {
        "segment_base_offset": staged.segment.base_offset,
        **log_identity(staged.segment),
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
    """Return the entries of a folder by name; in an object store, only written objects."""
    if scheme_of(directory) in OBJECT_SCHEMES:
        from kafka_index.core.fs.object_store import ObjectStore  # noqa: PLC0415, slow to import

        store = cast("ObjectStore", store_of(directory))
        written = {name: store.pop_written(f"{directory}/{name}") for name in names}
        known = {name: info for name, info in written.items() if info is not None}
        if len(known) == len(written):
            return {
                name: StoredEntry(
                    DirectoryEntry(info.path, size_bytes=info.size_bytes, version=info.version)
                )
                for name, info in known.items()
            }
    return {entry.name: entry for entry in scan_directory(directory)}


def _files_table(published: Sequence[PublishedFile], found: dict[str, Entry]) -> pa.Table | None:
    """Return `MANIFEST_FILES`; None if a file has changed since it was written."""
    rows = []
    for file in published:
        entry = found.get(file.name)
        size_bytes, change = (0, "") if entry is None else entry.file_version()
        if entry is None or size_bytes != file.size_bytes:
            return None
        rows.append({**asdict(file), "change": change})
    return pa.Table.from_pylist(rows, MANIFEST_FILES)
