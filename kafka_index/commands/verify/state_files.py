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
    finding_of,
    found_by,
    kind_of,
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
from kafka_index.core.startup.found_files import (
    NO_OFFSET,
    find_files,
    is_misnamed_log,
    is_refused_name,
    parse_log_directory,
)
from kafka_index.core.startup.identity import (
    check_identity,
    configured_directories,
    configured_node,
    metadata_directory_of,
)
from kafka_index.core.startup.metadata_log import (
    quorum_state_error,
    snapshots_error,
    topic_id_error,
)
from kafka_index.core.startup.partition_loading import load_partition
from kafka_index.core.startup.prediction import Refusal

_EXITS = "A broker exits before it touches anything."
_MISSING_EFFECTS = {
    RECOVERY_POINT_CHECKPOINT: "After an unclean shutdown, a broker recovers every segment.",
    REPLICATION_CHECKPOINT: "High watermarks begin at 0, and rise once replicas are in sync.",
}
_OFFLINE = "A broker takes the data directory offline, and exits if it has no other directory."
_RESET = {
    RECOVERY_POINT_CHECKPOINT: "A broker ignores the whole file, and recovers all segments.",
    LOG_START_CHECKPOINT: "A broker ignores the whole file: deleted records reappear.",
}
_EFFECTS = {
    FaultEffect.OFFLINE: _OFFLINE,
    FaultEffect.OFFLINE_LATER: _OFFLINE,
    FaultEffect.CLEANER_OFFLINE: _OFFLINE,
    FaultEffect.EXITS: "A broker exits.",
    FaultEffect.SERVES_NONE: "A broker starts, and serves none of the partitions.",
    FaultEffect.CLEANS_NONE: "The cleaner stops.",
}
_OTHER_CLUSTER = (
    "The metadata log is from another cluster: a broker exits when it starts, and the topics do "
    "not match the data."
)
_CUT_METADATA = (
    "A node truncates its metadata log there; only other controllers have the later records."
)
_REGISTERS_UNCLEAN = "Logs are loaded as after a clean shutdown; the broker registers as unclean."


@dataclass(frozen=True, slots=True)
class CheckedRoot:
    """The root of a data directory, with a finding per file.

    `identity` is its ``meta.properties``, None if a broker cannot read the file. `refused` are the
    reasons why a broker exits because of this file, or does not use the directory.
    """

    directory: DataDirectory
    findings: Sequence[Finding]
    identity: MetaProperties | None = None
    refused: Sequence[Refusal] = ()

    @property
    def path(self) -> str:
        return self.directory.path

    @classmethod
    def of(cls, directory: DataDirectory) -> CheckedRoot:
        """Classify the files of a directory whose errors are tolerated."""
        path = directory.path
        if not directory.has_root_files:
            effect = "The directory has partitions only; a broker also requires meta.properties."
            row = Finding(None, None, None, path, FileKind.ROOT, FileClass.MISSING, effect=effect)
            return cls(directory, [row])
        identity, refused, findings = _classify_properties(directory)
        if directory.is_clean:
            findings.append(_classify_clean_shutdown_file(directory))
        for name, checkpoint in directory.checkpoints().items():
            row = _row(checkpoint.path, FileClass.EQUIVALENT)
            if checkpoint.fault is not None:
                findings.append(_classify_fault(row, checkpoint.fault, checkpoint.effect, name))
            elif checkpoint.exists:
                findings.append(row)
        findings += [
            replace(_row(directory.file(name), FileClass.MISSING), effect=effect)
            for name, effect in _MISSING_EFFECTS.items()
            if not directory.checkpoint(name).exists
        ]
        return cls(directory, findings, identity, refused)


def _classify_properties(
    directory: DataDirectory,
) -> tuple[MetaProperties | None, Sequence[Refusal], list[Finding]]:
    path = directory.path
    row = _row(directory.file(META_PROPERTIES), FileClass.EQUIVALENT)
    try:
        found = check_identity([path], None, None)
    except KafkaIndexError as error:
        return None, (), [row.unreadable(error)]
    identity, offline = found.by_directory.get(path), tuple(found.offline.values())
    if identity is None and not offline:
        missing = replace(row, file_class=FileClass.MISSING, harmful=True, effect=_EXITS)
        return None, (), [missing]
    refused = offline or found.refused
    effect = _OFFLINE if offline else _EXITS
    return identity, refused, [_refused_row(each, effect) for each in refused] or [row]


def _classify_clean_shutdown_file(directory: DataDirectory) -> Finding:
    path = directory.file(CLEAN_SHUTDOWN)
    row = _row(path, FileClass.CORRUPT)
    if directory.is_clean_shutdown_file_stuck:
        found = "a directory that is not empty, and cannot be deleted"
        return replace(row, harmful=True, found=found, effect=_OFFLINE)
    try:
        if directory.clean_shutdown_epoch() is not None:
            return _row(path, FileClass.EQUIVALENT)
        text = read_text(path) or ""
    except BadFileError as error:
        return replace(row, found=error.message, effect=_REGISTERS_UNCLEAN)
    except InputError as error:
        return row.unreadable(error)
    return replace(row, found=quote_content(text, path), effect=_REGISTERS_UNCLEAN)


def _classify_fault(
    row: Finding, fault: KafkaIndexError, effect: FaultEffect | None, name: str
) -> Finding:
    if effect is None:
        return row.unreadable(fault)
    if effect is FaultEffect.RESET:
        return replace(row.refused(fault, _RESET[name]), harmful=False)
    return row.refused(fault, _EFFECTS[effect])


def _row(path: str, file_class: FileClass) -> Finding:
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
            effect = "The cleaner starts again at the log start offset."
        else:
            effect = (
                f"Offsets {log_end_offset} to {offset - 1} are missing: the log once "
                "contained them."
            )
        yield replace(
            finding_of(partition, directory.file(name), FileKind.ROOT, FileClass.STALE),
            harmful=name != CLEANER_CHECKPOINT,
            expected=f"at most {log_end_offset}, the log end offset",
            found=str(offset),
            effect=effect,
        )


def identity_findings(
    roots: Sequence[CheckedRoot],
    metadata: str | None,
    properties: Mapping[str, str] | None = None,
) -> Iterator[Finding]:
    """Yield a finding for each contradiction between the directories of one broker.

    The directories may belong to several brokers. A given metadata log is included if it belongs to
    one of them. The settings apply to the broker with their node ID, or with their data
    directories. If no directory has this node ID, all directories are compared with it.
    """
    given, place = None, None
    if metadata is not None and store_of(metadata).hosts_brokers:
        place = metadata_directory_of([], None, metadata) or metadata
        try:
            given = MetaProperties.read(place)
        except KafkaIndexError as error:
            row = _row(metadata, FileClass.UNREADABLE)
            yield row.unreadable(error) if is_retriable(error) else row.refused(error, _EXITS)
    brokers: dict[tuple[str | None, int | None], dict[str, MetaProperties]] = {}
    for root in roots:
        if root.identity is not None and not root.refused:
            key = root.identity.cluster_id, root.identity.node_id
            brokers.setdefault(key, {})[root.path] = root.identity
    others = {key[0] for key in brokers if key[0] is not None}
    if given is not None and given.cluster_id is not None and others - {given.cluster_id}:
        other = min(others - {given.cluster_id})
        yield replace(
            _row(given.path, FileClass.FOREIGN),
            harmful=True,
            expected=f"cluster.id {other}, as the data directories have",
            found=f"cluster.id {given.cluster_id}",
            effect=_OTHER_CLUSTER,
        )
    configured = configured_node(properties)
    is_found = any(node_id == configured for _, node_id in brokers)
    for key, members in brokers.items():
        is_configured = (
            not is_found
            or key[1] == configured
            or not configured_directories(properties).isdisjoint(members)
        )
        is_given = (
            given is not None
            and (given.cluster_id, given.node_id) == key
            # The given directory is a copy of a directory in the dump, which has the metadata log.
            and not any(
                one.directory_id == given.directory_id
                and os.path.isdir(os.path.join(path, METADATA_LOG))
                for path, one in members.items()
            )
        )
        paths = sorted(members)
        settings = properties if is_configured else None
        expected = metadata_directory_of(paths, settings, metadata if is_given else None)
        node_id = configured if is_configured else None
        for refusal in check_identity(paths, expected, node_id).refused:
            yield _refused_row(refusal, _EXITS)
    for path in sorted({*(root.path for root in roots), *([place] if place else ())}):
        yield from _metadata_log_findings(os.path.join(path, METADATA_LOG))


def metadata_finding(path: str, damage: KafkaIndexError) -> Finding:
    return _row(path, FileClass.CORRUPT).refused(damage, _CUT_METADATA)


def _metadata_log_findings(path: str) -> Iterator[Finding]:
    """Yield findings for errors in the metadata log directory on which a node exits."""
    if not os.path.isdir(path):  # A URI is not a directory either.
        return
    for why_not in (topic_id_error, snapshots_error, quorum_state_error):
        try:
            refusal = why_not(path)
        except StartRefusedError:
            # The finding of the file partition.metadata reports this error.
            continue
        except KafkaIndexError as error:
            yield _row(path, FileClass.UNREADABLE).unreadable(error)
        else:
            if refusal is not None:
                yield _refused_row(refusal, _EXITS)


def _refused_row(refusal: Refusal, effect: str) -> Finding:
    reason = refusal.reason if refusal.line is None else f"line {refusal.line}: {refusal.reason}"
    row = _row(refusal.file, FileClass.CORRUPT)
    return row.classified(
        Classification(FileClass.CORRUPT, harmful=True, found=reason, effect=effect)
    )


def root_findings(
    listing: Listing,
    settings: VerifySettings,
    metadata: str | None,
    properties: Mapping[str, str] | None = None,
) -> Iterator[Finding]:
    """Yield the findings in data directories outside the verified partitions.

    `metadata` is the given metadata log directory, `properties` are all settings of the broker.
    """
    roots = [
        CheckedRoot.of(DataDirectory(path, tolerated=True))
        for path in sorted(set(listing.data_directories))
    ]
    found = [row for root in roots for row in root.findings]
    yield from found
    # The metadata log directory may also be a data directory of the input.
    known = {(row.path, row.found) for row in found if row.harmful}
    for row in identity_findings(roots, metadata, properties):
        if (row.path, row.found) not in known:
            yield row
    yield from _unlisted_findings(listing, [root.directory for root in roots], settings)


def _unlisted_findings(
    listing: Listing, roots: Sequence[DataDirectory], settings: VerifySettings
) -> Iterator[Finding]:
    """Yield a finding per directory without verified logs on which a broker does not start."""
    by_path = {root.path: root for root in roots}
    verified = {each.directory for each in SegmentTable.from_files(listing.segments).partitions}
    paths = {one.path for one in listing.skipped} | set(listing.partition_directories) - verified
    for path in sorted(paths):
        root = by_path.get(os.path.dirname(path))
        is_started = store_of(path).hosts_brokers
        if root is None or (is_started and not os.path.isdir(path)):
            continue
        split = parse_log_directory(os.path.basename(path))
        row = Finding(None, None, None, path, FileKind.ROOT, FileClass.CORRUPT, harmful=True)
        if split is None:
            if root.has_root_files and is_started:
                found = "not named like a partition directory"
                yield replace(row, found=found, effect="A broker exits.")
            continue
        partition = split[0]
        row = replace(row, topic=partition.topic, partition=partition.partition)
        try:
            if is_started:
                with load_partition(partition, path, settings.loading(root, partition)):
                    pass
            else:
                find_files(partition, path)
            read_topic_id(path)
        except StartRefusedError as error:
            effect = "A broker also loads this directory: it takes it offline, or exits."
            yield row.refused(error, effect)
        except KafkaIndexError as error:
            yield row.unreadable(error)


_NO_STATE = (
    "After a clean shutdown, a broker assumes that there are no producers: open transactions "
    "vanish, and their records are exposed."
)
_REMOVED = "A broker that starts here removes the snapshot."
_EARLIER = "A broker removes the snapshot, and loads an earlier snapshot or reads the log instead."
_REWRITTEN = "A broker that starts here recovers the previous segment and rewrites the snapshot."
_NO_LOG = "The file has no log: a broker deletes it at startup."
_LOST_LOG = "A broker that starts here deletes the file; the records of its log are lost."
_STRAY = (
    "The partition is stray: an empty log replaces it, and the broker serves none of its records."
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
    """Yield the finding of a leader epoch checkpoint; none if it is not needed.

    `ranges` are the epochs of the batches, in order. `offsets` are the start and the end of the
    log; the end is None if unknown. A dump of logs only, without index files, needs no checkpoint.
    """
    path = os.path.join(directory, LEADER_EPOCH_CHECKPOINT)
    finding = finding_of(partition, path, FileKind.EPOCHS, FileClass.MISSING)
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
    """Classify a checkpoint, which has no epochs before the log start."""
    wrong = first_wrong_epoch(cache, ranges, log_start_offset)
    if wrong is not None:
        return Classification(
            FileClass.INCOMPLETE if wrong.found is None else FileClass.CORRUPT,
            harmful=True,
            expected=f"epoch {wrong.expected} at offset {wrong.offset}",
            found="no epoch" if wrong.found is None else f"epoch {wrong.found}",
            effect="Followers truncate at a wrong offset, or not at all. Consumers that compare "
            "epochs miss a truncation, or detect one that did not happen.",
        )
    expected = LeaderEpochCache()
    for one in ranges:
        if one.last_offset >= log_start_offset:
            expected.assign_from_batch(one.epoch, max(one.first_offset, log_start_offset))
    if cache.entries == expected.entries and text == expected.text():
        return IDENTICAL
    for at, entry in enumerate(cache.entries):
        if end_offset is not None and entry.start_offset > end_offset:
            return Classification(
                FileClass.STALE,
                entry=at,
                expected=f"a start offset below {end_offset}",
                found=f"epoch {entry.epoch} from offset {entry.start_offset}",
                effect="A broker drops the epochs that start at or after the log end.",
            )
    return Classification(
        FileClass.EQUIVALENT, found="the epochs of all batches, and epochs without records"
    )


def classify_snapshots(
    partition: TopicPartition,
    directory: str,
    built: Mapping[str, bytes] | None,
    expiration: ProducerExpiration,
    offsets: tuple[int, int | None],
    base_offsets: Sequence[int],
    *,
    is_clean: bool,
    is_compacted: bool,
    recovered_from: int | None,
) -> Iterator[Finding]:
    """Yield a finding per snapshot.

    `built` has the expected snapshots by name, None if unknown. A broker that starts now drops the
    producers that are idle according to `expiration`. `offsets` are the start and the end of the
    log; the end is None if unknown. `is_clean`: the clean shutdown file exists. `is_compacted`:
    batches of producers may be missing. A startup deletes the snapshots after `recovered_from`, the
    base offset of the first recovered segment.
    """
    start, end = offsets
    expected = {
        parsed.base_offset: data
        for name, data in (built or {}).items()
        if (parsed := parse_segment_file(name)) is not None and parsed.kind == SNAPSHOT_SUFFIX
    }
    try:
        found = list_snapshots(directory)
    except FileNotFoundError:
        found = []
    for offset in found:
        path = snapshot_path(directory, offset)
        finding = _snapshot_row(partition, path, offset)
        try:
            data = store_of(path).read(path)
        except FileNotFoundError:
            gone = ReadError("the snapshot was removed after it was listed", path=path)
            yield finding.unreadable(gone)
            continue
        except KafkaIndexError as error:
            yield finding.unreadable(error)
            continue
        try:
            if end is not None and offset > end:
                classification = Classification(
                    FileClass.STALE,
                    harmful=True,
                    expected=f"at most {end}, the log end offset",
                    found=str(offset),
                    effect=f"{_REMOVED} The log reached that offset once.",
                )
            elif offset in expected or built is None or offset in base_offsets:
                classification = _classify_snapshot(
                    data, expected.get(offset), expiration, start, is_compacted=is_compacted
                )
            elif offset < max(base_offsets) or offset <= start:
                classification = Classification(FileClass.ORPHAN, effect=_REMOVED)
            else:
                at_end = None if end is None else expected.get(end)
                classification = _classify_inner_snapshot(data, offset, at_end, expiration)
        except CorruptSnapshotError as error:
            classification = Classification(
                FileClass.CORRUPT,
                position_bytes=error.position_bytes,
                expected=error.expected,
                found=found_by(error),
                effect=_EARLIER,
            )
        is_rewritten = recovered_from is not None and recovered_from < offset
        if (
            classification.harmful
            and is_rewritten
            and classification.file_class is not FileClass.STALE
        ):
            classification = replace(classification, harmful=False, effect=_REWRITTEN)
        yield finding.classified(classification)
    if expected and not found and len(decode_snapshot(expected[max(expected)])):
        effect = _NO_STATE if is_clean else "A broker rebuilds the producer state from the log."
        row = _snapshot_row(partition, snapshot_path(directory, max(expected)), max(expected))
        yield replace(row, harmful=is_clean, effect=effect)


def _snapshot_row(partition: TopicPartition, path: str, offset: int) -> Finding:
    return finding_of(partition, path, FileKind.SNAPSHOT, FileClass.MISSING, base_offset=offset)


def _classify_inner_snapshot(
    data: bytes, offset: int, at_end: bytes | None, expiration: ProducerExpiration
) -> Classification:
    """Classify a snapshot taken within the last segment, as at a shutdown.

    A producer whose last batch is before the snapshot must have the same state in the snapshot.
    """
    entries = decode_snapshot(data)
    stored = {int(row["producer_id"]): int(row["last_offset"]) for row in entries}
    late = [producer_id for producer_id, last in stored.items() if last >= offset]
    missing = []
    if at_end is not None:
        missing = [
            int(row["producer_id"])
            # The snapshot may lack producers that are idle now.
            for row in expiration.live(decode_snapshot(at_end))
            if 0 <= int(row["last_offset"]) < offset
            and stored.get(int(row["producer_id"])) != int(row["last_offset"])
        ]
    if late or missing:
        return Classification(
            FileClass.CORRUPT,
            harmful=True,
            expected=f"the producers at offset {offset}",
            found=f"the state of producer {(late or missing)[0]} at another offset",
            effect=_OTHER_STATE,
        )
    return Classification(FileClass.EQUIVALENT, found="a snapshot inside the segment")


def _classify_snapshot(
    data: bytes,
    built: bytes | None,
    expiration: ProducerExpiration,
    first_offset: int,
    *,
    is_compacted: bool,
) -> Classification:
    """Classify a ``.snapshot``, compared with the built one if it is known.

    A transaction may have been opened before the log start, `first_offset`. In a compacted topic,
    batches of producers may be missing.
    """
    if data == built:
        return IDENTICAL
    entries = decode_snapshot(data)
    if built is None:
        return NOT_CHECKED
    difference = None
    if not is_compacted:
        live = expiration.live(decode_snapshot(built))
        difference = compare_producers(expiration.live(entries), live, first_offset)
    if difference is not None:
        return Classification(
            FileClass.INCOMPLETE if difference.is_missing else FileClass.CORRUPT,
            harmful=True,
            expected=f"producer {difference.producer_id}: {difference.expected}",
            found=difference.found,
            effect=_OTHER_STATE,
        )
    return Classification(
        FileClass.EQUIVALENT, found="the same producers, except for expired or older producers"
    )


def other_files(
    partition: TopicPartition,
    segments: Sequence[SegmentFile],
    entries: Sequence[Entry],
    lost: Collection[int],
) -> Iterator[Finding]:
    """Yield a finding per file of a segment that is not live.

    `entries` are the entries of the directory. `lost` are the base offsets of missing logs whose
    index files remain.
    """
    live = {os.path.basename(segment.log_path) for segment in segments}
    swaps = {name for name in live if name.endswith(SWAP_SUFFIX)}
    owned = {index_name_for(name, suffix) for name in live for suffix in INDEX_SUFFIXES} | live
    owned |= {name.removesuffix(SWAP_SUFFIX) + SWAP_SUFFIX for name in swaps}
    for entry in sorted(entries, key=lambda entry: entry.name):
        name, classification = entry.name, None
        if name in owned or is_scratch(name):
            continue
        parsed, reason = parse_segment_file(name), entry.file_error()
        if parsed is None:
            classification = _classify_name(name) if reason is None else None
        elif parsed.transient or parsed.kind == LOG_SUFFIX:
            effect = (
                "A broker that starts here renames or deletes the file." if reason is None else None
            )
            classification = Classification(FileClass.LEFTOVER, found=reason, effect=effect)
        elif parsed.kind != SNAPSHOT_SUFFIX:
            classification = Classification(FileClass.ORPHAN, effect=_NO_LOG)
            if parsed.base_offset in lost and entry.info().size_bytes > 0:
                log = f"{name.partition('.')[0]}{LOG_SUFFIX}"
                classification = Classification(
                    FileClass.ORPHAN,
                    harmful=True,
                    expected=log,
                    found="no such log",
                    effect=_LOST_LOG,
                )
        if classification is not None:
            base_offset = None if parsed is None else parsed.base_offset
            kind = FileKind.LOG if parsed is None else kind_of(parsed.kind)
            row = finding_of(partition, entry.path, kind, FileClass.ORPHAN, base_offset=base_offset)
            yield row.classified(classification)


def _classify_name(name: str) -> Classification | None:
    """Classify a file whose name is not the name of a segment file; None if it is harmless."""
    if is_refused_name(name):
        found, effect = NO_OFFSET, "A broker exits."
    elif is_misnamed_log(name):
        found = "its name is not an offset of 20 digits"
        effect = "A broker creates an empty segment at the offset in the name."
    else:
        return None
    return Classification(FileClass.CORRUPT, harmful=True, found=found, effect=effect)


def classify_partition_metadata(
    partition: TopicPartition, directory: str, topic: KnownTopic | None, *, is_known: bool
) -> Iterator[Finding]:
    """Yield the finding of a ``partition.metadata``.

    `topic` is the topic in the cluster metadata. `is_known`: the partition is in a data directory,
    where a broker requires the file.
    """
    path = os.path.join(directory, PARTITION_METADATA)
    finding = finding_of(partition, path, FileKind.METADATA, FileClass.MISSING)
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
                    expected=f"topic id {topic.topic_id}, as in the metadata",
                    found=f"topic id {topic_id}",
                    effect=_STRAY,
                )
            )
        elif topic_id is not None:
            yield finding.classified(
                Classification(FileClass.EQUIVALENT, found=f"topic id {topic_id}")
            )
        elif is_known:
            yield finding.classified(Classification(FileClass.MISSING, harmful=True, effect=_STRAY))
