"""Classification of the files that do not belong to a single live segment.

These are the files at the root of a data directory, leader epoch checkpoints, producer snapshots,
``partition.metadata``, and files of segments that are not live.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kafka_index.commands.verify.result import (
    Classification,
    FileClass,
    FileKind,
    Finding,
    format_error_content,
    new_finding,
    to_file_kind,
)
from kafka_index.commands.verify.segment import IDENTICAL, NOT_CHECKED
from kafka_index.commands.verify.settings import KnownTopic, VerifySettings
from kafka_index.core.errors import (
    BadFileError,
    CorruptSnapshotError,
    InputError,
    InvalidEpochError,
    KafkaIndexError,
    ReadError,
    StartRefusedError,
    is_retriable,
)
from kafka_index.core.format.leader_epochs import LeaderEpochCache
from kafka_index.core.format.names import (
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    INDEX_SUFFIXES,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_CHECKPOINT,
    LOG_SUFFIX,
    META_PROPERTIES,
    METADATA_LOG,
    OFFSET_CHECKPOINTS,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TopicPartition,
    index_name_for,
    parse_segment_file,
)
from kafka_index.core.format.strings import quote_content
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.store import Entry
from kafka_index.core.log.scan.entry_check import EpochRange, first_wrong_epoch
from kafka_index.core.log.state.partition_state import ProducerExpiration
from kafka_index.core.log.state.snapshots import (
    compare_producers,
    decode_snapshot,
    list_snapshots,
    snapshot_path,
)
from kafka_index.core.logdir.data_directory import DataDirectory, FaultEffect
from kafka_index.core.logdir.listing import Listing
from kafka_index.core.logdir.metadata_files import MetaProperties, read_text, read_topic_id
from kafka_index.core.logdir.partition_files import SegmentFile
from kafka_index.core.logdir.segment_table import SegmentTable
from kafka_index.core.output.publish import is_scratch
from kafka_index.core.startup.identity import (
    check_identity,
    configured_directories,
    configured_node_id,
    find_metadata_directory,
)
from kafka_index.core.startup.metadata_log import (
    quorum_state_error,
    snapshots_error,
    topic_id_error,
)
from kafka_index.core.startup.partition_loading import load_partition
from kafka_index.core.startup.prediction import Refusal
from kafka_index.core.startup.startup_files import (
    NO_OFFSET,
    is_misnamed_log,
    is_rejected_name,
    list_startup_files,
    parse_log_directory,
)

_EXITS = "A broker exits before it changes any file."
_MISSING_EFFECTS = {
    RECOVERY_POINT_CHECKPOINT: "After an unclean shutdown, a broker recovers every segment.",
    REPLICATION_CHECKPOINT: "High watermarks begin at 0, and rise once replicas are in sync.",
}
_OFFLINE = "A broker takes the data directory offline, and exits if it has no other directory."
_RESET_EFFECTS = {
    RECOVERY_POINT_CHECKPOINT: "A broker ignores the complete file, and recovers all segments.",
    LOG_START_CHECKPOINT: "A broker ignores the complete file: deleted records reappear.",
}
_FAULT_EFFECTS = {
    FaultEffect.OFFLINE: _OFFLINE,
    FaultEffect.OFFLINE_LATER: _OFFLINE,
    FaultEffect.CLEANER_OFFLINE: _OFFLINE,
    FaultEffect.EXITS: "A broker exits.",
    FaultEffect.SERVES_NONE: "A broker starts, but serves no partition.",
    FaultEffect.CLEANS_NONE: "The log cleaner stops.",
}
_OTHER_CLUSTER = (
    "The metadata log is from another cluster: a broker exits at startup, and the topics do not "
    "match the data."
)
_METADATA_TRUNCATED = (
    "A node truncates its metadata log at this position. Only other controllers have the later "
    "records."
)
_REGISTERS_UNCLEAN = (
    "A broker skips recovery, but registers with the cluster as after an unclean shutdown."
)


@dataclass(frozen=True, slots=True)
class CheckedRoot:
    """The root of a data directory, with a finding per file.

    `identity` is the parsed ``meta.properties``, None if a broker cannot read the file. `refused`
    are the reasons why a broker exits because of ``meta.properties``, or takes the data directory
    offline.
    """

    directory: DataDirectory
    findings: Sequence[Finding]
    identity: MetaProperties | None = None
    refused: Sequence[Refusal] = ()

    @property
    def path(self) -> str:
        return self.directory.path

    @classmethod
    def from_directory(cls, directory: DataDirectory) -> CheckedRoot:
        """Classify the root files of a data directory; `directory` must tolerate errors."""
        path = directory.path
        if not directory.has_root_files:
            effect = "The directory has only partitions. A broker also requires meta.properties."
            finding = Finding(
                None, None, None, path, FileKind.ROOT, FileClass.MISSING, effect=effect
            )
            return cls(directory, [finding])
        identity, refusals, findings = _classify_properties(directory)
        if directory.is_clean:
            findings.append(_classify_clean_shutdown_file(directory))
        for name, checkpoint in directory.checkpoints().items():
            finding = _new_root_finding(checkpoint.path, FileClass.EQUIVALENT)
            if checkpoint.fault is not None:
                findings.append(
                    _classify_checkpoint_fault(finding, checkpoint.fault, checkpoint.effect, name)
                )
            elif checkpoint.exists:
                findings.append(finding)
        findings += [
            replace(_new_root_finding(directory.file(name), FileClass.MISSING), effect=effect)
            for name, effect in _MISSING_EFFECTS.items()
            if not directory.checkpoint(name).exists
        ]
        return cls(directory, findings, identity, refusals)


def _classify_properties(
    directory: DataDirectory,
) -> tuple[MetaProperties | None, Sequence[Refusal], list[Finding]]:
    path = directory.path
    finding = _new_root_finding(directory.file(META_PROPERTIES), FileClass.EQUIVALENT)
    try:
        broker_identity = check_identity([path], None, None)
    except KafkaIndexError as error:
        return None, (), [finding.unreadable(error)]
    identity, offline = (
        broker_identity.by_directory.get(path),
        tuple(broker_identity.offline.values()),
    )
    if identity is None and not offline:
        missing_finding = replace(
            finding, file_class=FileClass.MISSING, harmful=True, effect=_EXITS
        )
        return None, (), [missing_finding]
    refusals = offline or broker_identity.refused
    effect = _OFFLINE if offline else _EXITS
    return (
        identity,
        refusals,
        [_to_refused_finding(refusal, effect) for refusal in refusals] or [finding],
    )


def _classify_clean_shutdown_file(directory: DataDirectory) -> Finding:
    path = directory.file(CLEAN_SHUTDOWN)
    finding = _new_root_finding(path, FileClass.CORRUPT)
    if directory.is_clean_shutdown_file_stuck:
        description = "a non-empty directory, which a broker cannot delete"
        return replace(finding, harmful=True, found=description, effect=_OFFLINE)
    try:
        if directory.clean_shutdown_epoch() is not None:
            return _new_root_finding(path, FileClass.EQUIVALENT)
        content = read_text(path) or ""
    except BadFileError as error:
        return replace(finding, found=error.message, effect=_REGISTERS_UNCLEAN)
    except InputError as error:
        return finding.unreadable(error)
    return replace(finding, found=quote_content(content, path), effect=_REGISTERS_UNCLEAN)


def _classify_checkpoint_fault(
    finding: Finding, fault: KafkaIndexError, effect: FaultEffect | None, name: str
) -> Finding:
    if effect is None:
        return finding.unreadable(fault)
    if effect is FaultEffect.RESET:
        return replace(finding.refused(fault, _RESET_EFFECTS[name]), harmful=False)
    return finding.refused(fault, _FAULT_EFFECTS[effect])


def _new_root_finding(path: str, file_class: FileClass) -> Finding:
    return Finding(None, None, None, path, FileKind.ROOT, file_class)


def checkpoint_findings(
    directory: DataDirectory, partition: TopicPartition, log_end_offset: int
) -> Iterator[Finding]:
    for name in OFFSET_CHECKPOINTS:
        offset = directory.offset(name, partition)
        if offset is None or offset <= log_end_offset:
            continue
        if name == LOG_START_CHECKPOINT:
            effect = "A broker deletes the complete log, and starts an empty log at this offset."
        elif name == CLEANER_CHECKPOINT:
            effect = "The log cleaner starts again at the log start offset."
        else:
            effect = f"The log once contained offsets {log_end_offset} to {offset - 1}."
        yield replace(
            new_finding(partition, directory.file(name), FileKind.ROOT, FileClass.STALE),
            harmful=name != CLEANER_CHECKPOINT,
            expected=f"at most {log_end_offset} (the log end offset)",
            found=str(offset),
            effect=effect,
        )


def identity_findings(
    roots: Sequence[CheckedRoot],
    metadata: str | None,
    properties: Mapping[str, str] | None = None,
) -> Iterator[Finding]:
    """Yield a finding for each contradiction between the directories of one broker.

    The directories may belong to several brokers. The metadata log in `metadata` is compared with
    the broker of the same cluster and node ID. The settings apply to the broker with the configured
    node ID or data directories, or to all brokers if no directory has the configured node ID.
    """
    metadata_properties, metadata_directory = None, None
    if metadata is not None and store_of(metadata).hosts_brokers:
        metadata_directory = find_metadata_directory([], None, metadata) or metadata
        try:
            metadata_properties = MetaProperties.read(metadata_directory)
        except KafkaIndexError as error:
            finding = _new_root_finding(metadata, FileClass.UNREADABLE)
            yield (
                finding.unreadable(error) if is_retriable(error) else finding.refused(error, _EXITS)
            )
    brokers: dict[tuple[str | None, int | None], dict[str, MetaProperties]] = {}
    for root in roots:
        if root.identity is not None and not root.refused:
            key = root.identity.cluster_id, root.identity.node_id
            brokers.setdefault(key, {})[root.path] = root.identity
    cluster_ids = {key[0] for key in brokers if key[0] is not None}
    if (
        metadata_properties is not None
        and metadata_properties.cluster_id is not None
        and cluster_ids - {metadata_properties.cluster_id}
    ):
        cluster_id = min(cluster_ids - {metadata_properties.cluster_id})
        yield replace(
            _new_root_finding(metadata_properties.path, FileClass.FOREIGN),
            harmful=True,
            expected=f"cluster.id {cluster_id} of the data directories",
            found=f"cluster.id {metadata_properties.cluster_id}",
            effect=_OTHER_CLUSTER,
        )
    configured_id = configured_node_id(properties)
    is_id_found = any(node_id == configured_id for _, node_id in brokers)
    for key, directories in brokers.items():
        is_configured = (
            not is_id_found
            or key[1] == configured_id
            or not configured_directories(properties).isdisjoint(directories)
        )
        has_metadata_log = (
            metadata_properties is not None
            and (metadata_properties.cluster_id, metadata_properties.node_id) == key
            # Otherwise `metadata` is a copy of a data directory that also has the metadata log.
            and not any(
                meta_properties.directory_id == metadata_properties.directory_id
                and os.path.isdir(os.path.join(path, METADATA_LOG))
                for path, meta_properties in directories.items()
            )
        )
        paths = sorted(directories)
        settings = properties if is_configured else None
        metadata_log_directory = find_metadata_directory(
            paths, settings, metadata if has_metadata_log else None
        )
        node_id = configured_id if is_configured else None
        for refusal in check_identity(paths, metadata_log_directory, node_id).refused:
            yield _to_refused_finding(refusal, _EXITS)
    for path in sorted(
        {*(root.path for root in roots), *([metadata_directory] if metadata_directory else ())}
    ):
        yield from _metadata_log_findings(os.path.join(path, METADATA_LOG))


def metadata_finding(path: str, damage: KafkaIndexError) -> Finding:
    return _new_root_finding(path, FileClass.CORRUPT).refused(damage, _METADATA_TRUNCATED)


def _metadata_log_findings(path: str) -> Iterator[Finding]:
    """Yield findings for errors in a metadata log directory because of which a broker exits."""
    if not os.path.isdir(path):  # URIs are not checked.
        return
    for find_error in (topic_id_error, snapshots_error, quorum_state_error):
        try:
            refusal = find_error(path)
        except StartRefusedError:
            # The finding of the file partition.metadata reports this error.
            continue
        except KafkaIndexError as error:
            yield _new_root_finding(path, FileClass.UNREADABLE).unreadable(error)
        else:
            if refusal is not None:
                yield _to_refused_finding(refusal, _EXITS)


def _to_refused_finding(refusal: Refusal, effect: str) -> Finding:
    reason = refusal.reason if refusal.line is None else f"line {refusal.line}: {refusal.reason}"
    finding = _new_root_finding(refusal.file, FileClass.CORRUPT)
    return finding.classified(
        Classification(FileClass.CORRUPT, harmful=True, found=reason, effect=effect)
    )


def root_findings(
    listing: Listing,
    settings: VerifySettings,
    metadata: str | None,
    properties: Mapping[str, str] | None = None,
) -> Iterator[Finding]:
    """Yield the findings of root files, and of partition directories that are not verified.

    `metadata` is the metadata log directory, `properties` are all settings of the broker.
    """
    roots = [
        CheckedRoot.from_directory(DataDirectory(path, tolerated=True))
        for path in sorted(set(listing.data_directories))
    ]
    findings = [finding for root in roots for finding in root.findings]
    yield from findings
    # The metadata log directory may also be a data directory of the input.
    reported = {(finding.path, finding.found) for finding in findings if finding.harmful}
    for finding in identity_findings(roots, metadata, properties):
        if (finding.path, finding.found) not in reported:
            yield finding
    yield from _unlisted_findings(listing, [root.directory for root in roots], settings)


def _unlisted_findings(
    listing: Listing, roots: Sequence[DataDirectory], settings: VerifySettings
) -> Iterator[Finding]:
    """Yield a finding per unverified directory because of which a broker does not start."""
    roots_by_path = {root.path: root for root in roots}
    segments = SegmentTable.from_files(listing.segments)
    verified = {partition_segments.directory for partition_segments in segments.partitions}
    paths = {skipped.path for skipped in listing.skipped} | set(
        listing.partition_directories
    ) - verified
    for path in sorted(paths):
        root = roots_by_path.get(os.path.dirname(path))
        is_started = store_of(path).hosts_brokers
        if root is None or (is_started and not os.path.isdir(path)):
            continue
        parsed_name = parse_log_directory(os.path.basename(path))
        finding = Finding(None, None, None, path, FileKind.ROOT, FileClass.CORRUPT, harmful=True)
        if parsed_name is None:
            if root.has_root_files and is_started:
                description = "the directory name is not a partition name"
                yield replace(finding, found=description, effect="A broker exits.")
            continue
        partition = parsed_name[0]
        finding = replace(finding, topic=partition.topic, partition=partition.partition)
        try:
            if is_started:
                with load_partition(partition, path, settings.loading(root, partition)):
                    pass
            else:
                list_startup_files(partition, path)
            read_topic_id(path)
        except StartRefusedError as error:
            effect = (
                "A broker also loads this directory: it takes the data directory offline, or exits."
            )
            yield finding.refused(error, effect)
        except KafkaIndexError as error:
            yield finding.unreadable(error)


_NO_STATE = (
    "After a clean shutdown, a broker starts without producer state: records of open transactions "
    "become readable."
)
_REMOVED = "At startup, a broker removes the snapshot."
_EARLIER_LOADED = (
    "A broker removes the snapshot, and loads an earlier snapshot or reads the log instead."
)
_REWRITTEN = "At startup, a broker recovers the previous segment and rewrites the snapshot."
_NO_LOG = "The log of this file does not exist: a broker deletes the file at startup."
_LOST_LOG = "The records of the missing log are lost. At startup, a broker deletes the file."
_STRAY = (
    "The partition is stray: a broker creates an empty log, and serves no record of this directory."
)
_OTHER_STATE = (
    "A broker that loads the snapshot has wrong producers or open transactions: it can accept "
    "duplicates, reject producers, or expose records of open transactions."
)


def epoch_findings(
    partition: TopicPartition,
    directory: str,
    ranges: Sequence[EpochRange],
    offsets: tuple[int, int | None],
    *,
    has_indexes: bool,
) -> Iterator[Finding]:
    """Yield the finding of a leader epoch checkpoint, unless it is missing and not needed.

    `ranges` are the epochs of the batches, in order. `offsets` are the log start offset and the log
    end offset, which is None if unknown. If the dump has only logs, without index files, a missing
    checkpoint is harmless.
    """
    path = os.path.join(directory, LEADER_EPOCH_CHECKPOINT)
    finding = new_finding(partition, path, FileKind.EPOCHS, FileClass.MISSING)
    try:
        text = read_text(path)
    except KafkaIndexError as error:
        yield finding.unreadable(error)
        return
    if text is not None:
        try:
            cache = LeaderEpochCache.from_text(text, path=path)
        except (InputError, InvalidEpochError) as error:
            yield finding.refused(error)
        else:
            yield finding.classified(_classify_epochs(text, cache, ranges, *offsets))
    elif ranges:
        effect = "Followers and consumers cannot compare leader epochs: divergence is not detected."
        yield replace(finding, harmful=has_indexes, effect=effect)


def _classify_epochs(
    text: str,
    cache: LeaderEpochCache,
    ranges: Sequence[EpochRange],
    log_start_offset: int,
    end_offset: int | None,
) -> Classification:
    """Classify a leader epoch checkpoint; epochs before the log start are not expected."""
    wrong_epoch = first_wrong_epoch(cache, ranges, log_start_offset)
    if wrong_epoch is not None:
        return Classification(
            FileClass.INCOMPLETE if wrong_epoch.found is None else FileClass.CORRUPT,
            harmful=True,
            expected=f"epoch {wrong_epoch.expected} at offset {wrong_epoch.offset}",
            found="no epoch" if wrong_epoch.found is None else f"epoch {wrong_epoch.found}",
            effect="Followers truncate at a wrong offset, or not at all. Consumers that compare "
            "epochs miss a truncation, or detect a truncation that did not happen.",
        )
    expected = LeaderEpochCache()
    for epoch_range in ranges:
        if epoch_range.last_offset >= log_start_offset:
            expected.assign_from_batch(
                epoch_range.epoch, max(epoch_range.first_offset, log_start_offset)
            )
    if cache.entries == expected.entries and text == expected.text():
        return IDENTICAL
    for entry_number, entry in enumerate(cache.entries):
        if end_offset is not None and entry.start_offset > end_offset:
            return Classification(
                FileClass.STALE,
                entry=entry_number,
                expected=f"a start offset below {end_offset}",
                found=f"epoch {entry.epoch} from offset {entry.start_offset}",
                effect="A broker drops the epochs that start at or after the log end.",
            )
    return Classification(
        FileClass.EQUIVALENT, found="the epochs of all batches, and further epochs without records"
    )


def classify_snapshots(
    partition: TopicPartition,
    directory: str,
    rebuilt: Mapping[str, bytes] | None,
    expiration: ProducerExpiration,
    offsets: tuple[int, int | None],
    base_offsets: Sequence[int],
    *,
    is_clean: bool,
    is_compacted: bool,
    recovered_from: int | None,
) -> Iterator[Finding]:
    """Yield a finding per producer snapshot, also for a missing snapshot.

    Parameters
    ----------
    rebuilt
        The merged files by name, including the expected snapshots; None if unknown.
    expiration
        Producers that have expired are not compared.
    offsets
        Log start offset, and log end offset, which is None if unknown.
    is_clean
        Whether the clean shutdown file exists.
    is_compacted
        Whether the topic is compacted, so that batches of producers may be missing.
    recovered_from
        Base offset of the first segment that startup recovers, None without recovery. Startup
        deletes all later snapshots, and writes new ones.
    """
    log_start_offset, log_end_offset = offsets
    expected = {
        parsed.base_offset: data
        for name, data in (rebuilt or {}).items()
        if (parsed := parse_segment_file(name)) is not None and parsed.kind == SNAPSHOT_SUFFIX
    }
    try:
        snapshot_offsets = list_snapshots(directory)
    except FileNotFoundError:
        snapshot_offsets = []
    for offset in snapshot_offsets:
        path = snapshot_path(directory, offset)
        finding = _new_snapshot_finding(partition, path, offset)
        try:
            data = store_of(path).read(path)
        except FileNotFoundError:
            removed_error = ReadError("the snapshot was removed after it was listed", path=path)
            yield finding.unreadable(removed_error)
            continue
        except KafkaIndexError as error:
            yield finding.unreadable(error)
            continue
        try:
            if log_end_offset is not None and offset > log_end_offset:
                classification = Classification(
                    FileClass.STALE,
                    harmful=True,
                    expected=f"at most {log_end_offset} (the log end offset)",
                    found=str(offset),
                    effect=f"{_REMOVED} The log once reached this offset.",
                )
            elif offset in expected or rebuilt is None or offset in base_offsets:
                classification = _classify_snapshot(
                    data,
                    expected.get(offset),
                    expiration,
                    log_start_offset,
                    is_compacted=is_compacted,
                )
            elif offset < max(base_offsets) or offset <= log_start_offset:
                classification = Classification(FileClass.ORPHAN, effect=_REMOVED)
            else:
                snapshot_at_end = None if log_end_offset is None else expected.get(log_end_offset)
                classification = _classify_inner_snapshot(data, offset, snapshot_at_end, expiration)
        except CorruptSnapshotError as error:
            classification = Classification(
                FileClass.CORRUPT,
                position_bytes=error.position_bytes,
                expected=error.expected,
                found=format_error_content(error),
                effect=_EARLIER_LOADED,
            )
        is_rewritten = recovered_from is not None and recovered_from < offset
        if (
            classification.harmful
            and is_rewritten
            and classification.file_class is not FileClass.STALE
        ):
            classification = replace(classification, harmful=False, effect=_REWRITTEN)
        yield finding.classified(classification)
    if expected and not snapshot_offsets and len(decode_snapshot(expected[max(expected)])):
        effect = _NO_STATE if is_clean else "A broker rebuilds the producer state from the log."
        missing_finding = _new_snapshot_finding(
            partition, snapshot_path(directory, max(expected)), max(expected)
        )
        yield replace(missing_finding, harmful=is_clean, effect=effect)


def _new_snapshot_finding(partition: TopicPartition, path: str, offset: int) -> Finding:
    return new_finding(partition, path, FileKind.SNAPSHOT, FileClass.MISSING, base_offset=offset)


def _classify_inner_snapshot(
    data: bytes, offset: int, snapshot_at_end: bytes | None, expiration: ProducerExpiration
) -> Classification:
    """Classify a producer snapshot at an offset within the last segment, as written at a shutdown.

    If the last batch of a producer is before this offset, the snapshot must have this batch as the
    producer's last batch.
    """
    entries = decode_snapshot(data)
    stored_offsets = {int(row["producer_id"]): int(row["last_offset"]) for row in entries}
    late_producers = [
        producer_id for producer_id, last_offset in stored_offsets.items() if last_offset >= offset
    ]
    missing_producers = []
    if snapshot_at_end is not None:
        missing_producers = [
            int(row["producer_id"])
            # Expired producers are ignored, because the snapshot may lack them.
            for row in expiration.live(decode_snapshot(snapshot_at_end))
            if 0 <= int(row["last_offset"]) < offset
            and stored_offsets.get(int(row["producer_id"])) != int(row["last_offset"])
        ]
    if late_producers or missing_producers:
        return Classification(
            FileClass.CORRUPT,
            harmful=True,
            expected=f"the producers at offset {offset}",
            found=f"the state of producer {(late_producers or missing_producers)[0]} at another "
            "offset",
            effect=_OTHER_STATE,
        )
    return Classification(FileClass.EQUIVALENT, found="a snapshot at an offset inside the segment")


def _classify_snapshot(
    stored_bytes: bytes,
    rebuilt: bytes | None,
    expiration: ProducerExpiration,
    first_offset: int,
    *,
    is_compacted: bool,
) -> Classification:
    """Classify a producer snapshot; compare it with `rebuilt`, unless `rebuilt` is None.

    `first_offset` is the log start; transactions may have been opened before it. In a compacted
    topic, batches of producers may be missing.
    """
    if stored_bytes == rebuilt:
        return IDENTICAL
    entries = decode_snapshot(stored_bytes)
    if rebuilt is None:
        return NOT_CHECKED
    difference = None
    if not is_compacted:
        live_producers = expiration.live(decode_snapshot(rebuilt))
        difference = compare_producers(expiration.live(entries), live_producers, first_offset)
    if difference is not None:
        return Classification(
            FileClass.INCOMPLETE if difference.is_missing else FileClass.CORRUPT,
            harmful=True,
            expected=f"producer {difference.producer_id}: {difference.expected}",
            found=difference.found,
            effect=_OTHER_STATE,
        )
    return Classification(
        FileClass.EQUIVALENT, found="the same producers, except for expired or deleted producers"
    )


def find_leftover_files(
    partition: TopicPartition,
    segments: Sequence[SegmentFile],
    entries: Sequence[Entry],
    lost_base_offsets: Collection[int],
) -> Iterator[Finding]:
    """Yield a finding per file of a segment that is not live.

    `entries` are the entries of the partition directory. `lost_base_offsets` are the base offsets
    of missing ``.log`` files whose index files remain.
    """
    live_names = {os.path.basename(segment.log_path) for segment in segments}
    swaps = {name for name in live_names if name.endswith(SWAP_SUFFIX)}
    owned = {
        index_name_for(name, suffix) for name in live_names for suffix in INDEX_SUFFIXES
    } | live_names
    owned |= {name.removesuffix(SWAP_SUFFIX) + SWAP_SUFFIX for name in swaps}
    for entry in sorted(entries, key=lambda entry: entry.name):
        name, classification = entry.name, None
        if name in owned or is_scratch(name):
            continue
        parsed, reason = parse_segment_file(name), entry.file_error()
        if parsed is None:
            classification = _classify_name(name) if reason is None else None
        elif parsed.transient or parsed.kind == LOG_SUFFIX:
            effect = "At startup, a broker renames or deletes the file." if reason is None else None
            classification = Classification(FileClass.LEFTOVER, found=reason, effect=effect)
        elif parsed.kind != SNAPSHOT_SUFFIX:
            classification = Classification(FileClass.ORPHAN, effect=_NO_LOG)
            if parsed.base_offset in lost_base_offsets and entry.info().size_bytes > 0:
                log = f"{name.partition('.')[0]}{LOG_SUFFIX}"
                classification = Classification(
                    FileClass.ORPHAN,
                    harmful=True,
                    expected=log,
                    found="no log",
                    effect=_LOST_LOG,
                )
        if classification is not None:
            base_offset = None if parsed is None else parsed.base_offset
            kind = FileKind.LOG if parsed is None else to_file_kind(parsed.kind)
            finding = new_finding(
                partition, entry.path, kind, FileClass.ORPHAN, base_offset=base_offset
            )
            yield finding.classified(classification)


def _classify_name(name: str) -> Classification | None:
    """Classify a file that is not named like a segment file; None if the file is harmless."""
    if is_rejected_name(name):
        description, effect = NO_OFFSET, "A broker exits."
    elif is_misnamed_log(name):
        description = "the file name is not an offset of 20 digits"
        effect = "A broker creates an empty segment at the offset in the name."
    else:
        return None
    return Classification(FileClass.CORRUPT, harmful=True, found=description, effect=effect)


def classify_partition_metadata(
    partition: TopicPartition, directory: str, topic: KnownTopic | None, *, is_required: bool
) -> Iterator[Finding]:
    """Yield the finding of a ``partition.metadata``.

    `topic` is the topic in the cluster metadata. `is_required` is True if the partition is in a
    data directory, where a broker requires the file.
    """
    path = os.path.join(directory, PARTITION_METADATA)
    finding = new_finding(partition, path, FileKind.METADATA, FileClass.MISSING)
    try:
        topic_id = read_topic_id(directory)
    except StartRefusedError as error:
        yield finding.refused(error)
    except KafkaIndexError as error:
        yield finding.unreadable(error)
    else:
        if topic_id is not None and topic is not None and topic_id != topic.topic_id:
            yield finding.classified(
                Classification(
                    FileClass.FOREIGN,
                    harmful=True,
                    expected=f"topic ID {topic.topic_id} from the metadata",
                    found=f"topic ID {topic_id}",
                    effect=_STRAY,
                )
            )
        elif topic_id is not None:
            yield finding.classified(
                Classification(FileClass.EQUIVALENT, found=f"topic ID {topic_id}")
            )
        elif is_required:
            yield finding.classified(Classification(FileClass.MISSING, harmful=True, effect=_STRAY))
