"""The start of a broker on partitions, predicted with its own loader.

It is predicted for partitions with a harmful file, or with an entry in the place of a file that is
none, and for directories whose logs are not verified: a broker loads them as well, before it looks
at their suffixes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from kafka_index.dump.data_directory import DataDirectory
from kafka_index.dump.small_files import read_topic_id
from kafka_index.errors import KafkaIndexError, StartRefusedError, is_retriable
from kafka_index.layout.names import TopicPartition
from kafka_index.startup.description import lost_records
from kafka_index.startup.found_files import find_files, parse_log_directory
from kafka_index.startup.partition_loading import Loading, load_partition
from kafka_index.startup.prediction import LoadedLog, LostRecords, NotPredictedError
from kafka_index.storage import Listing
from kafka_index.storage.segment_table import SegmentTable
from kafka_index.stores import is_remote
from kafka_index.verification.findings import FileClass, FileKind, Finding, finding_of, found_by
from kafka_index.verification.root_files import JudgedRoot, identity_findings
from kafka_index.verification.verify_settings import VerifySettings


def started(
    row: Finding, root: DataDirectory, settings: VerifySettings, end_offset: int
) -> Finding:
    """Return the row of a partition with the effect of a start on it as it lies.

    The path of the row is the directory; its batches end at `end_offset`.
    """
    if is_remote(row.path) or row.topic is None or row.partition is None:
        return row
    partition = TopicPartition(row.topic, row.partition)
    marker = "With the marker that lies here" if root.is_clean else "Without the marker"
    try:
        log, lost = _load(partition, row.path, root, settings)
    except KafkaIndexError as error:
        if is_retriable(error):
            effect = f"What a start does to it could not be predicted: {error}."
            return replace(row, effect=effect, retriable=True)
        return replace(row, effect=f"{marker} a broker does not start: {error.message}.")
    text = f"{marker} a broker serves offsets {log.log_start_offset} to {log.log_end_offset}"
    if lost.records:
        text += f", and {_loss(lost)}"
    return replace(row, effect=f"{text}.", expected=f"offsets up to {end_offset}")


def root_findings(
    listing: Listing,
    settings: VerifySettings,
    metadata: str | None,
    properties: Mapping[str, str] | None = None,
) -> Iterator[Finding]:
    """Yield the findings in data directories outside the partitions that are verified.

    `metadata` is the directory of the metadata log that was given, `properties` are all settings of
    the broker.
    """
    roots = [
        JudgedRoot.of(DataDirectory(path, tolerated=True))
        for path in sorted(set(listing.data_directories))
    ]
    found = [row for root in roots for row in root.findings]
    yield from found
    # The directory of the metadata log may be a data directory of the input, too.
    known = {(row.path, row.found) for row in found if row.harmful}
    for row in identity_findings(roots, metadata, properties):
        if (row.path, row.found) not in known:
            yield row
    yield from _unlisted_findings(listing, [root.directory for root in roots], settings)


def _unlisted_findings(
    listing: Listing, roots: Sequence[DataDirectory], settings: VerifySettings
) -> Iterator[Finding]:
    """Yield a row per directory without verified logs over which a broker does not start."""
    by_path = {root.path: root for root in roots}
    verified = {each.directory for each in SegmentTable.of(listing.segments).partitions}
    paths = {one.path for one in listing.skipped} | set(listing.partition_directories) - verified
    for path in sorted(paths):
        root = by_path.get(os.path.dirname(path))
        if root is None or not (is_remote(path) or os.path.isdir(path)):
            continue
        split = parse_log_directory(os.path.basename(path))
        row = Finding(None, None, None, path, FileKind.ROOT, FileClass.CORRUPT, harmful=True)
        if split is None:
            if root.has_root_files and not is_remote(path):
                found = "not named like a partition directory"
                yield replace(row, found=found, effect="A broker exits.")
            continue
        partition = split[0]
        row = replace(row, topic=partition.topic, partition=partition.partition)
        try:
            if is_remote(path):
                find_files(partition, path)
            else:
                with load_partition(partition, path, _loading(partition, root, settings)):
                    pass
            read_topic_id(path)
        except StartRefusedError as error:
            effect = "A broker loads it too: it takes the data directory offline, or exits."
            yield _refused(row, error, effect)
        except KafkaIndexError as error:
            yield row.unreadable(error)


def refused_start(
    partition: TopicPartition, directory: str, root: DataDirectory, settings: VerifySettings
) -> Finding | None:
    """Return the row of what a broker does not start over in a partition, or loses records over.

    Its path is the directory where no one file is at fault. None where neither happens, or a read
    fails, which the rows of the files have.
    """
    row = finding_of(partition, directory, FileKind.ROOT, FileClass.CORRUPT, harmful=True)
    if is_remote(directory):
        return None
    try:
        _, lost = _load(partition, directory, root, settings)
    except NotPredictedError as error:
        return _refused(row, error, "Whether a broker starts with it is not known.")
    except StartRefusedError as error:
        return _refused(row, error, "A broker takes the data directory offline, or exits.")
    except KafkaIndexError:
        return None
    if not lost.records:
        return None
    found = "an entry that is not a file, in the place of one"
    return replace(row, found=found, effect=f"A broker {_loss(lost)}.")


def _load(
    partition: TopicPartition, directory: str, root: DataDirectory, settings: VerifySettings
) -> tuple[LoadedLog, LostRecords]:
    """Load a local partition as a broker does; return what it has then, and what is lost."""
    loading = _loading(partition, root, settings)
    with load_partition(partition, directory, loading) as loaded:
        lost, _ = lost_records(loaded, loading.log_start_offset)
        return loaded.log, lost


def _loss(lost: LostRecords) -> str:
    return (
        f"loses or hides {lost.records} records from offset {lost.first_offset} to "
        f"{lost.last_offset}"
    )


def _refused(row: Finding, error: StartRefusedError, effect: str) -> Finding:
    return replace(
        row,
        path=error.path or row.path,
        position_bytes=error.position_bytes,
        expected=error.expected,
        found=found_by(error),
        effect=effect,
    )


def _loading(partition: TopicPartition, root: DataDirectory, settings: VerifySettings) -> Loading:
    return Loading.of(root, partition, settings.config, lambda: settings.now_ms)
