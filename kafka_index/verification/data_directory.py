"""The files at the root of a data directory: their entries for its partitions, and their faults.

The rules are those of a starting broker, as `kafka_index.startup` has them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from kafka_index.errors import InputError, KafkaIndexError, is_retriable
from kafka_index.layout.checkpoints import check_offset_checkpoint_form, parse_offset_checkpoint
from kafka_index.layout.names import (
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    OFFSET_CHECKPOINTS,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    TopicPartition,
)
from kafka_index.layout.quoted_content import quote_content
from kafka_index.startup.meta_properties import (
    METADATA_DIRECTORY,
    MetaProperties,
    check_identity,
    configured_directories,
    configured_node,
    metadata_directory_of,
)
from kafka_index.startup.metadata_log import why_not_snapshots, why_not_topic_id
from kafka_index.startup.prediction import Refusal, StartRefusedError
from kafka_index.startup.quorum_state import why_not_quorum_state
from kafka_index.storage.log_directory import RootOffsets, read_checkpoint_text
from kafka_index.stores import is_remote
from kafka_index.verification.findings import FileClass, FileKind, Finding, Judgement

_EXITS = "A broker exits before it touches anything."
_MISSING_EFFECTS = {
    RECOVERY_POINT_CHECKPOINT: "After an unclean shutdown every segment is read again.",
    REPLICATION_CHECKPOINT: "High watermarks begin at 0, and rise once replicas are in sync.",
    META_PROPERTIES: _EXITS,
}
_OFFLINE = "A broker takes the data directory offline; with only one it exits."
_NOT_A_NUMBER = {
    RECOVERY_POINT_CHECKPOINT: (False, "All of it counts as 0: segments are read again."),
    LOG_START_CHECKPOINT: (False, "All of it counts as 0: deleted records are visible again."),
    REPLICATION_CHECKPOINT: (True, "A broker starts, and serves none of the partitions."),
    CLEANER_CHECKPOINT: (True, "The cleaner stops."),
}


@dataclass(slots=True)
class DataDirectory(RootOffsets):
    """The root of a data directory.

    `present` are the root files that exist, `offsets` the readable checkpoints by name and
    partition, and `findings` a row per root file. `identity` is its ``meta.properties``, None if a
    broker cannot read it; `refused` are the reasons why a broker exits over that, or does not use
    the directory.
    """

    present: set[str] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)
    identity: MetaProperties | None = None
    refused: tuple[Refusal, ...] = ()

    @classmethod
    def read(cls, path: str) -> DataDirectory:
        """Read the root files of a directory; their faults are in their rows."""
        directory = cls(path)
        directory._read_properties()
        directory._read_marker()
        for name in OFFSET_CHECKPOINTS:
            directory._read_checkpoint(name)
        if directory.is_known:
            for name, effect in _MISSING_EFFECTS.items():
                if name not in directory.present:
                    is_harmful = name == META_PROPERTIES
                    directory._add(name, FileClass.MISSING, effect, harmful=is_harmful)
        else:
            row = Finding(None, None, None, path, FileKind.ROOT, FileClass.MISSING)
            effect = "Partitions only: a broker needs meta.properties beside them."
            directory.findings = [*directory.findings, _with_effect(row, effect)]
        return directory

    @property
    def is_known(self) -> bool:
        """Whether there is a root file at all, so that this is known to be a data directory."""
        return bool(self.present)

    @property
    def is_clean(self) -> bool:
        """Whether the marker of a clean shutdown is there."""
        return CLEAN_SHUTDOWN in self.present

    def partition_findings(
        self, partition: TopicPartition, log_end_offset: int
    ) -> Iterator[Finding]:
        """Yield a row per checkpoint whose entry for a partition its log contradicts."""
        for name, offset in (
            (name, self.offset(name, partition))
            for name in OFFSET_CHECKPOINTS
            if name in self.offsets
        ):
            if offset is None or offset <= log_end_offset:
                continue
            if name == LOG_START_CHECKPOINT:
                effect = "A broker deletes the whole partition, and begins an empty log there."
            elif name == CLEANER_CHECKPOINT:
                effect = "The cleaner begins at the log start again."
            else:
                effect = (
                    f"Offsets {log_end_offset} to {offset - 1} were in the log once, and are gone."
                )
            yield Finding(
                partition.topic,
                partition.partition,
                None,
                os.path.join(self.path, name),
                FileKind.ROOT,
                FileClass.STALE,
                harmful=name != CLEANER_CHECKPOINT,
                expected=f"{log_end_offset} or less, where the log ends",
                found=str(offset),
                effect=effect,
            )

    def _read_properties(self) -> None:
        try:
            found = check_identity([self.path], None, None)
        except KafkaIndexError as error:
            self._unreadable(META_PROPERTIES, error)
            return
        self.identity = found.by_directory.get(self.path)
        offline = tuple(found.offline.values())
        if self.identity is None and not offline:
            return
        self.present.add(META_PROPERTIES)
        self.refused = offline or found.refused
        for refusal in self.refused:
            self.findings.append(_refused_row(refusal, _OFFLINE if offline else _EXITS))
        if not self.refused:
            self._add(META_PROPERTIES, FileClass.VALID)

    def _read_marker(self) -> None:
        text = self._text(CLEAN_SHUTDOWN)
        if text is None:
            return
        try:
            content = orjson.loads(text)
        except orjson.JSONDecodeError:
            content = None
        if not isinstance(content, dict) or "brokerEpoch" not in content:
            effect = "Logs are loaded as after a clean shutdown; the broker registers as unclean."
            self._add(
                CLEAN_SHUTDOWN,
                FileClass.CORRUPT,
                effect,
                found=quote_content(text, os.path.join(self.path, CLEAN_SHUTDOWN)),
            )
        else:
            self._add(CLEAN_SHUTDOWN, FileClass.VALID)

    def _read_checkpoint(self, name: str) -> None:
        path = os.path.join(self.path, name)
        text = self._text(name)
        if text is None:
            return
        try:
            self.offsets[name] = parse_offset_checkpoint(text, path=path)
        except InputError as error:
            harmful, effect = True, _OFFLINE
            try:
                check_offset_checkpoint_form(text, path=path)
            except InputError:
                pass
            else:
                harmful, effect = _NOT_A_NUMBER[name]
            self._add(
                name,
                FileClass.CORRUPT,
                effect,
                harmful=harmful,
                expected=error.expected,
                found=f"{error.message}: {error.found}",
            )
        else:
            self._add(name, FileClass.VALID)

    def _text(self, name: str) -> str | None:
        """Return the text of a root file; one that is not text is reported."""
        path = os.path.join(self.path, name)
        try:
            text = read_checkpoint_text(path)
        except InputError as error:
            self._unreadable(name, error)
            return None
        if text is not None:
            self.present.add(name)
        return text

    def _unreadable(self, name: str, error: KafkaIndexError) -> None:
        self.present.add(name)
        path = os.path.join(self.path, name)
        row = Finding(None, None, None, path, FileKind.ROOT, FileClass.UNREADABLE)
        self.findings.append(row.unreadable(error))

    def _add(
        self,
        name: str,
        file_class: FileClass,
        effect: str | None = None,
        *,
        harmful: bool = False,
        expected: str | None = None,
        found: str | None = None,
    ) -> None:
        path = os.path.join(self.path, name)
        self.findings.append(
            Finding(
                None,
                None,
                None,
                path,
                FileKind.ROOT,
                file_class,
                harmful,
                expected=expected,
                found=found,
                effect=effect,
            )
        )


class DataDirectories:
    """The roots of data directories, each read once; a copy in another process reads for itself."""

    def __init__(self) -> None:
        self._known: dict[str, DataDirectory] = {}
        self._guard = threading.Lock()

    def __reduce__(self) -> tuple[type[DataDirectories], tuple[()]]:
        return DataDirectories, ()

    def of(self, partition_directory: str) -> DataDirectory:
        """Return the data directory that holds a partition directory."""
        path = os.path.dirname(partition_directory)
        with self._guard:
            if path not in self._known:
                self._known[path] = DataDirectory.read(path)
            return self._known[path]


def identity_findings(
    roots: Sequence[DataDirectory],
    metadata: str | None,
    properties: Mapping[str, str] | None = None,
) -> Iterator[Finding]:
    """Yield a row for each reason why directories of one broker do not belong together.

    The directories may be of several brokers; the metadata log that was given counts if it is of
    the same broker. The settings are those of the broker with their node id, or with their data
    directories; where no directory has that node id, each is compared with it.
    """
    given = None
    if metadata is not None and not is_remote(metadata):
        try:
            given = MetaProperties.read(metadata_directory_of([], None, metadata) or metadata)
        except KafkaIndexError as error:
            if is_retriable(error):
                row = Finding(None, None, None, metadata, FileKind.ROOT, FileClass.UNREADABLE)
                yield row.unreadable(error)
    brokers: dict[tuple[str | None, int | None], dict[str, MetaProperties]] = {}
    for root in roots:
        if root.identity is not None and not root.refused:
            key = root.identity.cluster_id, root.identity.node_id
            brokers.setdefault(key, {})[root.path] = root.identity
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
                and os.path.isdir(os.path.join(path, METADATA_DIRECTORY))
                for path, one in members.items()
            )
        )
        paths = sorted(members)
        place = metadata_directory_of(paths, properties, metadata if is_given else None)
        for refusal in check_identity(paths, place, configured if is_configured else None).refused:
            yield _refused_row(refusal, _EXITS)
    for root in roots:
        yield from _metadata_log_findings(os.path.join(root.path, METADATA_DIRECTORY))


def _metadata_log_findings(path: str) -> Iterator[Finding]:
    """Yield a row for what a node exits over in its metadata log, beside the log's own files."""
    if is_remote(path) or not os.path.isdir(path):
        return
    for why_not in (why_not_topic_id, why_not_snapshots, why_not_quorum_state):
        try:
            refusal = why_not(path)
        except StartRefusedError:
            # The row of its partition.metadata says so.
            continue
        except KafkaIndexError as error:
            row = Finding(None, None, None, path, FileKind.ROOT, FileClass.UNREADABLE)
            yield row.unreadable(error)
        else:
            if refusal is not None:
                yield _refused_row(refusal, _EXITS)


def _refused_row(refusal: Refusal, effect: str) -> Finding:
    reason = refusal.reason if refusal.line is None else f"line {refusal.line}: {refusal.reason}"
    row = Finding(None, None, None, refusal.file, FileKind.ROOT, FileClass.CORRUPT)
    return row.judged(Judgement(FileClass.CORRUPT, harmful=True, found=reason, effect=effect))


def _with_effect(row: Finding, effect: str) -> Finding:
    return Finding(
        row.topic, row.partition, None, row.path, row.kind, row.file_class, effect=effect
    )
