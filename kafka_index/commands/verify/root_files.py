"""Findings at the root of data directories, and in directories whose logs are not verified.

The rules are those of a starting broker, as `kafka_index.core.startup` has them: it loads such
directories as well, before it looks at their suffixes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kafka_index.commands.verify.findings import FileClass, FileKind, Finding, Judgement, finding_of
from kafka_index.commands.verify.verify_settings import VerifySettings
from kafka_index.core.errors import (
    BadFileError,
    InputError,
    KafkaIndexError,
    StartRefusedError,
    is_retriable,
)
from kafka_index.core.format.names import (
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    METADATA_LOG,
    OFFSET_CHECKPOINTS,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    TopicPartition,
)
from kafka_index.core.format.strings import quote_content
from kafka_index.core.fs.store import is_remote
from kafka_index.core.logdir.data_directory import DataDirectory, FaultEffect
from kafka_index.core.logdir.listing import Listing
from kafka_index.core.logdir.metadata_files import MetaProperties, read_text, read_topic_id
from kafka_index.core.logdir.segment_table import SegmentTable
from kafka_index.core.startup.found_files import find_files, parse_log_directory
from kafka_index.core.startup.identity import (
    check_identity,
    configured_directories,
    configured_node,
    metadata_directory_of,
)
from kafka_index.core.startup.metadata_log import (
    topic_id_error,
    why_not_quorum_state,
    why_not_snapshots,
)
from kafka_index.core.startup.partition_loading import load_partition
from kafka_index.core.startup.prediction import Refusal

_EXITS = "A broker exits before it touches anything."
_MISSING_EFFECTS = {
    RECOVERY_POINT_CHECKPOINT: "After an unclean shutdown every segment is read again.",
    REPLICATION_CHECKPOINT: "High watermarks begin at 0, and rise once replicas are in sync.",
}
_OFFLINE = "A broker takes the data directory offline; with only one it exits."
_RESET = {
    RECOVERY_POINT_CHECKPOINT: "All of it counts as 0: segments are read again.",
    LOG_START_CHECKPOINT: "All of it counts as 0: deleted records are visible again.",
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
_CUT_METADATA = "A node truncates its metadata log there; only other controllers have the rest."
_REGISTERS_UNCLEAN = "Logs are loaded as after a clean shutdown; the broker registers as unclean."


@dataclass(frozen=True, slots=True)
class JudgedRoot:
    """The root of a data directory, with a row per file.

    `identity` is its ``meta.properties``, None if a broker cannot read it; `refused` are the
    reasons why a broker exits over that, or does not use the directory.
    """

    directory: DataDirectory
    findings: Sequence[Finding]
    identity: MetaProperties | None = None
    refused: Sequence[Refusal] = ()

    @property
    def path(self) -> str:
        """The path of the directory."""
        return self.directory.path

    @classmethod
    def of(cls, directory: DataDirectory) -> JudgedRoot:
        """Judge the files of a directory whose faults are tolerated."""
        path = directory.path
        if not directory.has_root_files:
            effect = "Partitions only: a broker needs meta.properties beside them."
            row = Finding(None, None, None, path, FileKind.ROOT, FileClass.MISSING, effect=effect)
            return cls(directory, [row])
        identity, refused, findings = _judge_properties(directory)
        if directory.is_clean:
            findings.append(_judge_marker(directory))
        for name, checkpoint in directory.checkpoints().items():
            row = _row(checkpoint.path, FileClass.VALID)
            if checkpoint.fault is not None:
                findings.append(_judge_fault(row, checkpoint.fault, checkpoint.effect, name))
            elif checkpoint.is_there:
                findings.append(row)
        findings += [
            replace(_row(directory.file(name), FileClass.MISSING), effect=effect)
            for name, effect in _MISSING_EFFECTS.items()
            if not directory.checkpoint(name).is_there
        ]
        return cls(directory, findings, identity, refused)


def _judge_properties(
    directory: DataDirectory,
) -> tuple[MetaProperties | None, Sequence[Refusal], list[Finding]]:
    path = directory.path
    row = _row(directory.file(META_PROPERTIES), FileClass.VALID)
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


def _judge_marker(directory: DataDirectory) -> Finding:
    path = directory.file(CLEAN_SHUTDOWN)
    row = _row(path, FileClass.CORRUPT)
    if directory.is_marker_stuck:
        found = "a directory that is not empty, and cannot be deleted"
        return replace(row, harmful=True, found=found, effect=_OFFLINE)
    try:
        if directory.marker_epoch() is not None:
            return _row(path, FileClass.VALID)
        text = read_text(path) or ""
    except BadFileError as error:
        return replace(row, found=error.message, effect=_REGISTERS_UNCLEAN)
    except InputError as error:
        return row.unreadable(error)
    return replace(row, found=quote_content(text, path), effect=_REGISTERS_UNCLEAN)


def _judge_fault(
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
    """Yield a row per checkpoint whose entry for a partition its log contradicts."""
    for name in OFFSET_CHECKPOINTS:
        offset = directory.offset(name, partition)
        if offset is None or offset <= log_end_offset:
            continue
        if name == LOG_START_CHECKPOINT:
            effect = "A broker deletes the whole partition, and begins an empty log there."
        elif name == CLEANER_CHECKPOINT:
            effect = "The cleaner begins at the log start again."
        else:
            effect = f"Offsets {log_end_offset} to {offset - 1} were in the log once, and are gone."
        yield replace(
            finding_of(partition, directory.file(name), FileKind.ROOT, FileClass.STALE),
            harmful=name != CLEANER_CHECKPOINT,
            expected=f"{log_end_offset} or less, where the log ends",
            found=str(offset),
            effect=effect,
        )


def identity_findings(
    roots: Sequence[JudgedRoot],
    metadata: str | None,
    properties: Mapping[str, str] | None = None,
) -> Iterator[Finding]:
    """Yield a row for each reason why directories of one broker do not belong together.

    The directories may be of several brokers; the metadata log that was given counts if it is of
    the same broker. The settings are those of the broker with their node id, or with their data
    directories; where no directory has that node id, each is compared with it.
    """
    given, place = None, None
    if metadata is not None and not is_remote(metadata):
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
            # A copy of a directory of the dump says nothing of where the metadata log is.
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
    """Return the report row for damage in the given metadata log."""
    return _row(path, FileClass.CORRUPT).refused(damage, _CUT_METADATA)


def _metadata_log_findings(path: str) -> Iterator[Finding]:
    """Yield a row for what a node exits over in its metadata log, beside the log's own files."""
    if is_remote(path) or not os.path.isdir(path):
        return
    for why_not in (topic_id_error, why_not_snapshots, why_not_quorum_state):
        try:
            refusal = why_not(path)
        except StartRefusedError:
            # The row of its partition.metadata says so.
            continue
        except KafkaIndexError as error:
            yield _row(path, FileClass.UNREADABLE).unreadable(error)
        else:
            if refusal is not None:
                yield _refused_row(refusal, _EXITS)


def _refused_row(refusal: Refusal, effect: str) -> Finding:
    reason = refusal.reason if refusal.line is None else f"line {refusal.line}: {refusal.reason}"
    row = _row(refusal.file, FileClass.CORRUPT)
    return row.judged(Judgement(FileClass.CORRUPT, harmful=True, found=reason, effect=effect))


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
                with load_partition(partition, path, settings.loading(root, partition)):
                    pass
            read_topic_id(path)
        except StartRefusedError as error:
            effect = "A broker loads it too: it takes the data directory offline, or exits."
            yield row.refused(error, effect)
        except KafkaIndexError as error:
            yield row.unreadable(error)
