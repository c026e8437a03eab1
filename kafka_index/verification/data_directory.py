"""The files at the root of a data directory: what they say of its partitions, and what is wrong.

The rules are those of a starting broker, as `kafka_index.startup` has them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import orjson

from kafka_index.errors import InputError
from kafka_index.layout.checkpoints import check_offset_checkpoint_form, parse_offset_checkpoint
from kafka_index.layout.names import (
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    OFFSET_CHECKPOINTS,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    TopicPartition,
)
from kafka_index.layout.quoted_content import quote_content
from kafka_index.startup.directory_files import CLEAN_SHUTDOWN, properties_of
from kafka_index.storage.log_directory import read_checkpoint_text
from kafka_index.verification.findings import FileClass, FileKind, Finding

_MISSING_EFFECTS = {
    RECOVERY_POINT_CHECKPOINT: "After an unclean shutdown every segment is read again.",
    REPLICATION_CHECKPOINT: "High watermarks begin at 0, and rise once replicas are in sync.",
    META_PROPERTIES: "A broker exits before it touches anything.",
}
_OFFLINE = "A broker takes the data directory offline; with only one it exits."
_NOT_A_NUMBER = {
    RECOVERY_POINT_CHECKPOINT: (False, "All of it counts as 0: segments are read again."),
    LOG_START_CHECKPOINT: (False, "All of it counts as 0: deleted records are visible again."),
    REPLICATION_CHECKPOINT: (True, "A broker starts, and serves none of the partitions."),
    CLEANER_CHECKPOINT: (True, "The cleaner stops."),
}


@dataclass(slots=True)
class DataDirectory:
    """The root of a data directory.

    Parameters
    ----------
    path : str
        The directory.
    present : set of str
        The root files that are there.
    offsets : dict of str to dict
        The checkpoints that can be read, by name and partition.
    findings : list of Finding
        A row per root file.
    """

    path: str
    present: set[str] = field(default_factory=set)
    offsets: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @classmethod
    def read(cls, path: str) -> DataDirectory:
        """Read the root files of a directory; what is wrong with them is in their rows."""
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

    def offset(self, name: str, partition: TopicPartition) -> int | None:
        """Return the entry of a partition in a checkpoint; None without one."""
        return self.offsets.get(name, {}).get(partition)

    def recovery_point(self, partition: TopicPartition) -> int:
        """Return the recovery point of a partition, 0 without one."""
        return self.offset(RECOVERY_POINT_CHECKPOINT, partition) or 0

    def log_start_offset(self, partition: TopicPartition) -> int:
        """Return the log start of a partition, 0 without one."""
        return self.offset(LOG_START_CHECKPOINT, partition) or 0

    def known_end(self, partition: TopicPartition) -> int:
        """Return an offset up to which the log was there once: committed, or flushed."""
        names = REPLICATION_CHECKPOINT, RECOVERY_POINT_CHECKPOINT
        return max(self.offset(name, partition) or 0 for name in names)

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
        text = self._text(META_PROPERTIES)
        if text is None:
            return
        properties = properties_of(text)
        wanted = [("version",), ("cluster.id",), ("node.id", "broker.id")]
        missing = ["/".join(names) for names in wanted if not any(map(properties.get, names))]
        if missing:
            self._add(
                META_PROPERTIES,
                FileClass.CORRUPT,
                "A broker exits before it touches anything.",
                harmful=True,
                expected=", ".join(missing),
                found="no such property",
            )
        else:
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
            self.present.add(name)
            row = Finding(None, None, None, path, FileKind.ROOT, FileClass.UNREADABLE)
            self.findings.append(row.unreadable(error))
            return None
        if text is not None:
            self.present.add(name)
        return text

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


def _with_effect(row: Finding, effect: str) -> Finding:
    return Finding(
        row.topic, row.partition, None, row.path, row.kind, row.file_class, effect=effect
    )
