"""Publish scanned segments, partition by partition.

First, the producers and leader epochs of the segments are merged. Then files are published in this
order: the files of the partition itself, the files of each segment with the ``.index`` last, and
the build manifest. If an attempt is interrupted, the next attempt publishes the remaining files.
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

#: Number of segments that are published together, so that many small segments share the cost of
#: fsync.
GROUP_SEGMENTS = 256
# How often and how long to wait for another attempt that is renaming the same files.
_MAX_WAITS, _WAIT_SECONDS = 20, 0.1


def publish_segment(staged: StagedSegment, settings: BuildSettings) -> SegmentReport:
    """Publish the index files of one segment durably; return the row of the segment.

    No build manifest is written.

    `settings` must be the settings with which the segment was staged, without outputs that depend
    on earlier segments.
    """
    return _publish_group([(staged, staged.publication(settings), staged.report)])[0]


def publish_partitions(
    partitions: Iterable[Sequence[StagedSegment]],
    settings: BuildSettings,
    *,
    attempt_id: str,
    starts: Mapping[TopicPartition, PartitionStart] | None = None,
    listed_entries: Mapping[TopicPartition, Sequence[Entry]] | None = None,
) -> Iterator[SegmentReport]:
    """Merge the segments of partitions, and publish all files of the partitions.

    Yields a row for each segment after its files are published durably. Partitions are published
    together, so that many small partitions share the cost of fsync. Unpublished temporary files are
    not deleted, because another attempt may need them.

    Parameters
    ----------
    partitions
        All segments of each partition, by base offset.
    attempt_id
        Letters, digits and underscores. Overlapping attempts of a run have different IDs.
    starts
        The state before each partition's first segment, by default read from the files next to it.
    listed_entries
        The entries of the directories with the ``.log`` files, if already listed.
    """
    start_by_partition, entries_by_partition = starts or {}, listed_entries or {}
    merged = [
        merge_partition(
            staged,
            settings,
            attempt_id=attempt_id,
            start=start_by_partition.get(staged[0].segment.topic_partition),
            listed_entries=entries_by_partition.get(staged[0].segment.topic_partition),
        )
        for staged in partitions
    ]
    _publish_partition_files(merged, settings)
    publishable = []
    for partition in merged:
        if partition.error is None:
            publishable.append(partition)
        else:
            yield from _fail_partition(partition, partition.error)
    segments = [segment for partition in publishable for segment in partition.segments]
    rows = chain.from_iterable(
        _publish_group(
            [
                (segment.staged, _unpublished_files(segment, settings), segment.report)
                for segment in group
            ]
        )
        for group in _split_into_groups(segments)
    )
    finished = [
        (
            partition,
            _delete_old_snapshots(partition, list(islice(rows, len(partition.segments))), settings),
        )
        for partition in publishable
    ]
    yield from _write_manifests(finished, settings, attempt_id=attempt_id)


def _split_into_groups(segments: Sequence[MergedSegment]) -> Iterator[Sequence[MergedSegment]]:
    for first in range(0, len(segments), GROUP_SEGMENTS):
        yield segments[first : first + GROUP_SEGMENTS]


def _publish_group(
    group: Sequence[tuple[StagedSegment, Publication | None, SegmentReport]],
) -> list[SegmentReport]:
    """Publish files of segments; return the row of each. After an error, its status is failed."""
    errors = iter(publish_group([files for _, files, _ in group if files is not None]))
    rows = []
    for staged, files, row in group:
        error = None if files is None else next(errors)
        if files is not None and files.is_shared and isinstance(error, StagedFileGoneError):
            error = _resume(staged, files, error)
        rows.append(row if error is None else row.failed_by(error))
    return rows


def _resume(staged: StagedSegment, files: Publication, error: PublishError) -> PublishError | None:
    """Wait while another attempt publishes the same files; then publish the remaining ones."""
    for _ in range(_MAX_WAITS):
        if staged.has_published_content():
            return None
        time.sleep(_WAIT_SECONDS)
    remaining = unpublished_files(files)
    if remaining is not None:
        return publish_group([remaining])[0]
    return None if staged.has_published_content() else error


def _publish_partition_files(merged: Sequence[MergedPartition], settings: BuildSettings) -> None:
    """Publish the files of the partitions themselves; set `error` of partitions that fail."""
    publishable = [partition for partition in merged if not partition.error and partition.own_files]
    publications = [
        Publication(
            partition.own_files,
            attributes_of=settings.attributes_of(partition.staged[0].segment.log_path),
        )
        for partition in publishable
    ]
    for partition, error in zip(publishable, publish_group(publications), strict=True):
        partition.error = error


def _fail_partition(partition: MergedPartition, error: KafkaIndexError) -> Iterator[SegmentReport]:
    segment_files = chain.from_iterable(segment.files for segment in partition.segments)
    for file in chain(partition.own_files, segment_files):
        remove_scratch(file.scratch_path)
    for staged in partition.staged:
        row = staged.report
        yield row if row.status == FAILED else row.failed_by(error)


def _unpublished_files(merged: MergedSegment, settings: BuildSettings) -> Publication | None:
    """Return the files of a segment that are not published yet, state files first."""
    if merged.report.status == FAILED:
        return None
    publication = merged.staged.publication(settings)
    if publication is not None and publication.is_segment:
        remaining = unpublished_files(publication)
        if remaining is None and not merged.staged.has_published_content():
            # No temporary file remains, but the published content differs. Publishing then reports
            # an error.
            remaining = publication
        publication = remaining
    if publication is None:
        attributes_of = settings.attributes_of(merged.staged.segment.log_path)
        return Publication(merged.files, attributes_of=attributes_of) if merged.files else None
    return replace(publication, files=(*merged.files, *publication.files))


def _delete_old_snapshots(
    partition: MergedPartition, rows: list[SegmentReport], settings: BuildSettings
) -> list[SegmentReport]:
    """Delete the snapshots that a broker would delete in recovery; return the rows.

    If deletion fails, the last row gets the status failed.
    """
    if partition.snapshots is None or BuildOutput.SNAPSHOT not in settings.outputs:
        return rows
    # A build in place keeps snapshots up to the log start offset: the next build starts from these.
    kept_to = partition.first_offset if settings.in_place else -1
    directory = partition.directory
    if is_new_folder(directory, settings.run_id):
        return rows
    try:
        for offset in list_snapshots(directory):
            if offset > kept_to and offset not in partition.snapshots:
                # Another attempt may delete the snapshot at the same time.
                store_of(directory).delete([snapshot_path(directory, offset)])
    except KafkaIndexError as error:
        rows[-1] = rows[-1].failed_by(error)
    except OSError as error:
        path = error.filename or directory
        rows[-1] = rows[-1].failed_by(publish_error(error, path, "delete an old snapshot"))
    return rows


def _write_manifests(
    finished: Sequence[tuple[MergedPartition, list[SegmentReport]]],
    settings: BuildSettings,
    *,
    attempt_id: str,
) -> Iterator[SegmentReport]:
    """Write the manifests of published partitions; yield the final rows of their segments."""
    staged_manifests: list[tuple[list[SegmentReport], Publication]] = []
    for partition, rows in finished:
        if uses_manifest(settings):
            try:
                manifest = _create_manifest(partition, rows, settings)
                if manifest is not None:
                    staged = _stage_manifest(partition, manifest, settings, attempt_id)
                    staged_manifests.append((rows, staged))
            except KafkaIndexError as error:
                rows[-1] = _note_missing_manifest(rows[-1], error)
    errors = publish_group([publication for _, publication in staged_manifests])
    for (rows, _), failure in zip(staged_manifests, errors, strict=True):
        if failure is not None:
            rows[-1] = _note_missing_manifest(rows[-1], failure)
    for _, rows in finished:
        yield from rows


def _note_missing_manifest(row: SegmentReport, error: KafkaIndexError) -> SegmentReport:
    note = (
        f"the build manifest was not written, so the next run builds this partition again: {error}"
    )
    return replace(row, note="; ".join(filter(None, (row.note, note))))


def _stage_manifest(
    partition: MergedPartition, manifest: BuildManifest, settings: BuildSettings, attempt_id: str
) -> Publication:
    path = os.path.join(partition.directory, BUILD_MANIFEST)
    file = StagedFile(settings.work_path(path, attempt_id), path)
    attributes_of = settings.attributes_of(partition.staged[-1].segment.log_path)
    write_scratch(file.scratch_path, manifest.to_bytes(), attributes_of=attributes_of)
    return Publication((file,), attributes_of=attributes_of)


def _create_manifest(
    partition: MergedPartition, rows: Sequence[SegmentReport], settings: BuildSettings
) -> BuildManifest | None:
    """Return the new manifest of a partition; None if none must be written.

    No manifest is written if it would not change, or if a published file has changed since it was
    written. Segments that were built from a table of batches have no manifest, so each run builds
    them again.
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
    # If the merge ended early, some state files of the partition are unknown.
    files |= {file.name: file for file in partition.published if is_complete}
    if not segments:
        return None
    files_table = _files_table(
        list(files.values()), _list_published_entries(partition.directory, files)
    )
    if files_table is None:
        return None
    previous = previous_build(partition.directory, settings.run_id)
    if not settings.needs_state and previous.covers(settings.outputs, files_table):
        # Keep the previous manifest, which also lists state files.
        return None

    def read_source_directory() -> tuple[Sequence[Entry], int | None]:
        start = partition.start
        # Next to the logs, list the directory again, because files were published since the first
        # listing.
        entries = None if settings.in_place or start is None else start.entries
        if entries is None:
            entries = scan_directory(segment.partition_directory)
        return entries, None if start is None else start.checkpointed_log_start

    manifest = BuildManifest(
        settings.run_id,
        settings.scan_settings(segment.topic),
        tuple(sorted(settings.outputs)),
        *expiration_times(settings),
        merge_start(segment.topic_partition, segment.base_offset, settings, read_source_directory),
        is_complete,
        pa.Table.from_pylist(segments, MANIFEST_SEGMENTS),
        files_table,
    )
    previous_manifest = previous.manifest
    is_same = (
        previous_manifest is not None
        and replace(manifest, run_id=previous_manifest.run_id) == previous_manifest
    )
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


def _list_published_entries(directory: str, names: Iterable[str]) -> dict[str, Entry]:
    """Return the entries of a folder by name; in an object store, only those just published."""
    if scheme_of(directory) in OBJECT_SCHEMES:
        from kafka_index.core.fs.object_store import ObjectStore  # noqa: PLC0415, slow to import

        store = cast("ObjectStore", store_of(directory))
        written_objects = {name: store.pop_written(f"{directory}/{name}") for name in names}
        found_objects = {name: info for name, info in written_objects.items() if info is not None}
        if len(found_objects) == len(written_objects):
            return {
                name: StoredEntry(
                    DirectoryEntry(info.path, size_bytes=info.size_bytes, version=info.version)
                )
                for name, info in found_objects.items()
            }
    return {entry.name: entry for entry in scan_directory(directory)}


def _files_table(published: Sequence[PublishedFile], entries: dict[str, Entry]) -> pa.Table | None:
    """Return the `MANIFEST_FILES` table; None if a file is missing or has another size."""
    rows = []
    for file in published:
        entry = entries.get(file.name)
        size_bytes, change = (0, "") if entry is None else entry.file_version()
        if entry is None or size_bytes != file.size_bytes:
            return None
        rows.append({**asdict(file), "change": change})
    return pa.Table.from_pylist(rows, MANIFEST_FILES)
