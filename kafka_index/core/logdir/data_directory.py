"""A data directory: the files at its root, and the effects of their errors on a broker.

Sources: Kafka's ``LogManager.loadLogs``, ``CleanShutdownFileHandler``, ``CheckpointFile``,
``LazyOffsetCheckpoints``.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, partial

from msgspec import json

from kafka_index.core.errors import (
    BadFileError,
    DamageError,
    InputError,
    KafkaIndexError,
    is_retriable,
)
from kafka_index.core.format.checkpoints import (
    CheckpointFault,
    java_lines,
    offsets_or_fault,
    refused_checkpoint,
)
from kafka_index.core.format.integers import INT64_MAX, INT64_MIN
from kafka_index.core.format.names import (
    BROKER_LOCK,
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    OFFSET_CHECKPOINTS,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    TopicPartition,
)
from kafka_index.core.format.state_files import MALFORMED
from kafka_index.core.fs.inputs import BAD_CHECKPOINT, Skipped, note_unread
from kafka_index.core.fs.registry import opening_error, scan_directory, store_of
from kafka_index.core.logdir.metadata_files import read_file, read_properties, read_text


class FaultEffect(Enum):
    """The effect of a checkpoint that a broker cannot read."""

    #: The broker takes the data directory offline, before or after it loads partitions.
    OFFLINE = "offline"
    OFFLINE_LATER = "offline later"
    EXITS = "exits"
    #: The broker treats all entries as 0.
    RESET = "reset"
    #: The broker starts, but serves no partition.
    SERVES_NONE = "serves none"
    #: The log cleaner takes the data directory offline, or stops.
    CLEANER_OFFLINE = "cleaner offline"
    CLEANS_NONE = "cleans none"


@dataclass(frozen=True, slots=True)
class OffsetCheckpoint:
    """An offset checkpoint at the root of a data directory.

    If it has a `fault`, `offsets` is empty. `effect` is None if only this process, and not a
    broker, cannot read the file. `has_entries` is True if the file has more than one line.
    """

    path: str
    exists: bool = False
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    has_entries: bool = False
    fault: InputError | None = None
    effect: FaultEffect | None = None

    @classmethod
    def read(cls, path: str) -> OffsetCheckpoint:
        try:
            text = read_text(path)
        except BadFileError as error:
            return cls.of_fault(path, error)
        except InputError as error:
            return cls(path, exists=True, fault=error)
        return cls(path) if text is None else cls.of_text(path, text)

    @classmethod
    def of_fault(cls, path: str, error: BadFileError) -> OffsetCheckpoint:
        """Return a checkpoint that is not a file, or not text."""
        effect = _effect(path, is_input_output=True)
        return cls(path, exists=True, fault=error, effect=effect)

    @classmethod
    def of_text(cls, path: str, text: str) -> OffsetCheckpoint:
        """Return the checkpoint of a text."""
        found = offsets_or_fault(text)
        if isinstance(found, CheckpointFault):
            effect = _effect(path, is_input_output=found.is_input_output, is_error=found.is_error)
            return cls(path, exists=True, fault=refused_checkpoint(found, path), effect=effect)
        return cls(path, exists=True, offsets=found, has_entries=len(java_lines(text)) > 1)

    def noted_fault(self) -> Skipped | None:
        """Record the file as unread if a broker fails on it; None otherwise."""
        if self.fault is None or self.effect in (None, FaultEffect.RESET):
            return None
        return note_unread(self.path, BAD_CHECKPOINT, self.fault.described)


def _effect(path: str, *, is_input_output: bool, is_error: bool = False) -> FaultEffect:
    name = os.path.basename(path)
    if name == REPLICATION_CHECKPOINT:
        return FaultEffect.OFFLINE_LATER if is_input_output else FaultEffect.SERVES_NONE
    if name == CLEANER_CHECKPOINT:
        return FaultEffect.CLEANER_OFFLINE if is_input_output else FaultEffect.CLEANS_NONE
    if is_input_output:
        return FaultEffect.OFFLINE
    return FaultEffect.EXITS if is_error else FaultEffect.RESET


class DataDirectory:
    """A data directory; each file at its root is read once, on demand.

    The files may be missing, as in the parent of a single copied partition. A malformed checkpoint
    has no entries; if a broker fails on the checkpoint, the listing of the input records it as
    unread. If this process may not read a file, its use raises `InputError`, unless errors are
    `tolerated`.
    """

    def __init__(self, path: str, *, tolerated: bool = False) -> None:
        self.path = path
        self._tolerated = tolerated
        self._checkpoints: dict[str, OffsetCheckpoint] = {}

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def checkpoint(self, name: str) -> OffsetCheckpoint:
        """Return an offset checkpoint; raises `InputError` if this process may not read it."""
        found = self._checkpoints.get(name)
        if found is None:
            found = self._checkpoints[name] = OffsetCheckpoint.read(self.file(name))
        self._raise_untolerated(found.fault)
        return found

    def required_checkpoint(self, name: str) -> OffsetCheckpoint:
        """Return a checkpoint that the caller requires.

        Raises `DamageError` if a broker fails on it, and the errors of `checkpoint`.
        """
        found = self.checkpoint(name)
        if found.fault is not None and found.effect is not FaultEffect.RESET:
            raise DamageError.of(found.fault) from found.fault
        return found

    def _raise_untolerated(self, fault: KafkaIndexError | None) -> None:
        if fault is not None and is_retriable(fault) and not self._tolerated:
            raise fault

    def checkpoints(self) -> dict[str, OffsetCheckpoint]:
        """Return all offset checkpoints by name; raises as `checkpoint`."""
        return {name: self.checkpoint(name) for name in OFFSET_CHECKPOINTS}

    def offset(self, name: str, partition: TopicPartition) -> int | None:
        return self.checkpoint(name).offsets.get(partition)

    def log_start_offset(self, partition: TopicPartition) -> int | None:
        """Return the log start offset; brokers write it only above the first base offset."""
        return self.offset(LOG_START_CHECKPOINT, partition)

    def high_watermark(self, partition: TopicPartition) -> int | None:
        return self.offset(REPLICATION_CHECKPOINT, partition)

    def recovery_point(self, partition: TopicPartition) -> int:
        """Return the recovery point, 0 if there is none."""
        return self.offset(RECOVERY_POINT_CHECKPOINT, partition) or 0

    def cleaned_to(self, partition: TopicPartition) -> int | None:
        """Return the offset up to which a compacted log was cleaned."""
        return self.offset(CLEANER_CHECKPOINT, partition)

    def committed_end(self, partition: TopicPartition) -> int:
        """Return an offset that the log end offset reached: records were committed or flushed."""
        return max(self.high_watermark(partition) or 0, self.recovery_point(partition))

    @property
    def is_clean(self) -> bool:
        """Whether the clean shutdown file exists, whatever its content."""
        return bool(self._clean_shutdown_file)

    @property
    def is_clean_shutdown_file_stuck(self) -> bool:
        """Whether the clean shutdown file is a non-empty directory, which no broker can delete."""
        path = self.file(CLEAN_SHUTDOWN)
        if not store_of(path).hosts_brokers:
            return False  # No broker runs on this directory.
        return not os.path.islink(path) and os.path.isdir(path) and bool(scan_directory(path))

    def clean_shutdown_epoch(self) -> int | None:
        """Return the broker epoch in the clean shutdown file, None if it has no valid epoch.

        Raises the errors of `read_text`.
        """
        try:
            found = json.decode(read_text(self.file(CLEAN_SHUTDOWN)) or "")
        except MALFORMED:
            return None
        epoch = found.get("brokerEpoch") if isinstance(found, dict) else None
        return epoch if type(epoch) is int and INT64_MIN <= epoch <= INT64_MAX else None

    @property
    def properties(self) -> dict[str, str]:
        """The ``meta.properties`` without validation; empty if missing."""
        found = self._read_properties
        return found if isinstance(found, dict) else {}

    @property
    def has_root_files(self) -> bool:
        """Whether a file of a broker exists at the root; otherwise it may be any folder."""
        has_checkpoint = any(each.exists for each in self.checkpoints().values())
        return has_checkpoint or self.is_clean or self._read_properties is not None

    def faults(self) -> list[KafkaIndexError]:
        """Return the tolerated errors of the files at the root."""
        faults = [each.fault for each in self.checkpoints().values()]
        others = (self._clean_shutdown_file, self._read_properties)
        return [each for each in (*faults, *others) if isinstance(each, KafkaIndexError)]

    @cached_property
    def _read_properties(self) -> dict[str, str] | KafkaIndexError | None:
        try:
            return read_properties(self.file(META_PROPERTIES))
        except KafkaIndexError as error:
            self._raise_untolerated(error)
            return error

    @cached_property
    def _clean_shutdown_file(self) -> KafkaIndexError | bool:
        path = self.file(CLEAN_SHUTDOWN)
        if not store_of(path).needs_requests:
            return os.path.exists(path)
        try:
            return read_file(path) is not None
        except KafkaIndexError as error:
            self._raise_untolerated(error)
            return error

    def only(self, partition: TopicPartition) -> DataDirectory:
        found = DataDirectory(self.path, tolerated=self._tolerated)
        found._clean_shutdown_file = self._clean_shutdown_file
        for name, each in self.checkpoints().items():
            offset = each.offsets.get(partition)
            own = {} if offset is None else {partition: offset}
            found._checkpoints[name] = replace(each, offsets=own)
        return found


class DataDirectories:
    """Data directories, each read once per process."""

    def __init__(self, *, tolerated: bool = False) -> None:
        self._tolerated = tolerated
        self._known: dict[str, DataDirectory] = {}

    def __reduce__(self) -> tuple[partial[DataDirectories], tuple[()]]:
        return partial(DataDirectories, tolerated=self._tolerated), ()

    def of(self, partition_directory: str) -> DataDirectory:
        path = os.path.dirname(partition_directory)
        found = self._known.get(path)
        return found or self._known.setdefault(path, DataDirectory(path, tolerated=self._tolerated))


def reject_locked(directory: str, hint: str) -> None:
    """Raise `InputError` if a running broker has locked the directory.

    The lock file is only opened. Also raises if the lock cannot be tested.
    """
    path = os.path.join(directory, BROKER_LOCK)
    if opening_error(path) is not None:
        return
    try:
        # O_NONBLOCK, so that opening a named pipe does not wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise InputError(
            "not a directory", path=directory, hint="give the data directories of a broker"
        ) from error
    except OSError as error:
        raise InputError(f"cannot open the lock: {error.strerror}", path=path) from error
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        raise InputError(
            "a running broker has locked the directory", path=path, hint=hint
        ) from error
    finally:
        os.close(descriptor)


def refuse_running(directory: str, hint: str) -> None:
    """Raise a usage error, not a retriable one, if a running broker has locked the directory."""
    try:
        reject_locked(directory, hint)
    except InputError as error:
        if isinstance(error.__cause__, BlockingIOError):
            raise error from None
        raise
