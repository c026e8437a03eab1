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
    CheckpointDefect,
    checkpoint_error,
    java_lines,
    parse_offsets_or_defect,
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
    """The effect on a broker of an offset checkpoint that it cannot read."""

    #: The broker takes the data directory offline, before or after it loads partitions.
    OFFLINE = "offline"
    OFFLINE_LATER = "offline later"
    EXITS = "exits"
    #: The broker treats the offsets of all partitions as 0.
    RESET = "reset"
    #: The broker starts, but serves no partition.
    SERVES_NONE = "serves none"
    #: The log cleaner takes the data directory offline, or stops.
    CLEANER_OFFLINE = "cleaner offline"
    CLEANS_NONE = "cleans none"


@dataclass(frozen=True, slots=True)
class OffsetCheckpoint:
    """An offset checkpoint at the root of a data directory.

    Attributes
    ----------
    offsets
        The offsets by partition; empty if there is a `fault`.
    has_entries
        Whether the file has more than one line.
    effect
        The effect of the fault on a broker; None if only this process cannot read the file.
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
            return cls.from_error(path, error)
        except InputError as error:
            return cls(path, exists=True, fault=error)
        return cls(path) if text is None else cls.from_text(path, text)

    @classmethod
    def from_error(cls, path: str, error: BadFileError) -> OffsetCheckpoint:
        """Create a checkpoint from a file that is not a regular file, or not text."""
        effect = _checkpoint_effect(path, is_input_output=True)
        return cls(path, exists=True, fault=error, effect=effect)

    @classmethod
    def from_text(cls, path: str, text: str) -> OffsetCheckpoint:
        """Create a checkpoint from the text of its file."""
        offsets = parse_offsets_or_defect(text)
        if isinstance(offsets, CheckpointDefect):
            effect = _checkpoint_effect(
                path, is_input_output=offsets.is_input_output, is_error=offsets.is_error
            )
            return cls(path, exists=True, fault=checkpoint_error(offsets, path), effect=effect)
        return cls(path, exists=True, offsets=offsets, has_entries=len(java_lines(text)) > 1)

    def note_fault(self) -> Skipped | None:
        """If a broker fails on the file, record the file as unread, and return it as skipped."""
        if self.fault is None or self.effect in (None, FaultEffect.RESET):
            return None
        return note_unread(self.path, BAD_CHECKPOINT, self.fault.described)


def _checkpoint_effect(path: str, *, is_input_output: bool, is_error: bool = False) -> FaultEffect:
    name = os.path.basename(path)
    if name == REPLICATION_CHECKPOINT:
        return FaultEffect.OFFLINE_LATER if is_input_output else FaultEffect.SERVES_NONE
    if name == CLEANER_CHECKPOINT:
        return FaultEffect.CLEANER_OFFLINE if is_input_output else FaultEffect.CLEANS_NONE
    if is_input_output:
        return FaultEffect.OFFLINE
    return FaultEffect.EXITS if is_error else FaultEffect.RESET


class DataDirectory:
    """A data directory; each file at its root is read at most once, when it is needed.

    The root files may be missing, as in the parent of a single copied partition. A malformed
    checkpoint has no offsets. If a broker fails on a checkpoint, the listing of the input records
    the checkpoint as unread. If this process may not read a file, methods that read the file raise
    `InputError`, unless errors are `tolerated`.
    """

    def __init__(self, path: str, *, tolerated: bool = False) -> None:
        self.path = path
        self._tolerated = tolerated
        self._checkpoints: dict[str, OffsetCheckpoint] = {}

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def checkpoint(self, name: str) -> OffsetCheckpoint:
        """Return an offset checkpoint; raises `InputError` if this process may not read it."""
        checkpoint = self._checkpoints.get(name)
        if checkpoint is None:
            checkpoint = self._checkpoints[name] = OffsetCheckpoint.read(self.file(name))
        self._raise_untolerated(checkpoint.fault)
        return checkpoint

    def required_checkpoint(self, name: str) -> OffsetCheckpoint:
        """Return a checkpoint that the caller requires.

        Raises `DamageError` if a broker fails on the checkpoint, and the errors of `checkpoint`.
        """
        checkpoint = self.checkpoint(name)
        if checkpoint.fault is not None and checkpoint.effect is not FaultEffect.RESET:
            raise DamageError.of(checkpoint.fault) from checkpoint.fault
        return checkpoint

    def _raise_untolerated(self, fault: KafkaIndexError | None) -> None:
        if fault is not None and is_retriable(fault) and not self._tolerated:
            raise fault

    def checkpoints(self) -> dict[str, OffsetCheckpoint]:
        """Return all offset checkpoints by file name; raises like `checkpoint`."""
        return {name: self.checkpoint(name) for name in OFFSET_CHECKPOINTS}

    def offset(self, name: str, partition: TopicPartition) -> int | None:
        return self.checkpoint(name).offsets.get(partition)

    def log_start_offset(self, partition: TopicPartition) -> int | None:
        """Return the log start offset, which brokers store only above the first base offset."""
        return self.offset(LOG_START_CHECKPOINT, partition)

    def high_watermark(self, partition: TopicPartition) -> int | None:
        return self.offset(REPLICATION_CHECKPOINT, partition)

    def recovery_point(self, partition: TopicPartition) -> int:
        """Return the recovery point, 0 if the checkpoint has none."""
        return self.offset(RECOVERY_POINT_CHECKPOINT, partition) or 0

    def cleaned_to(self, partition: TopicPartition) -> int | None:
        """Return the offset up to which the log cleaner has cleaned a partition."""
        return self.offset(CLEANER_CHECKPOINT, partition)

    def committed_end(self, partition: TopicPartition) -> int:
        """Return the high watermark or the recovery point, whichever is greater.

        The partition once had at least this log end offset.
        """
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
            content = json.decode(read_text(self.file(CLEAN_SHUTDOWN)) or "")
        except MALFORMED:
            return None
        epoch = content.get("brokerEpoch") if isinstance(content, dict) else None
        return epoch if type(epoch) is int and INT64_MIN <= epoch <= INT64_MAX else None

    @property
    def properties(self) -> dict[str, str]:
        """The content of ``meta.properties`` without validation; empty if the file is missing."""
        properties = self._read_properties
        return properties if isinstance(properties, dict) else {}

    @property
    def has_root_files(self) -> bool:
        """Whether a root file of a broker exists; if not, this may be any folder."""
        has_checkpoint = any(checkpoint.exists for checkpoint in self.checkpoints().values())
        return has_checkpoint or self.is_clean or self._read_properties is not None

    def faults(self) -> list[KafkaIndexError]:
        """Return the tolerated errors of the root files."""
        errors = [checkpoint.fault for checkpoint in self.checkpoints().values()]
        results = (*errors, self._clean_shutdown_file, self._read_properties)
        return [error for error in results if isinstance(error, KafkaIndexError)]

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

    def restrict_to(self, partition: TopicPartition) -> DataDirectory:
        directory = DataDirectory(self.path, tolerated=self._tolerated)
        directory._clean_shutdown_file = self._clean_shutdown_file
        for name, checkpoint in self.checkpoints().items():
            offset = checkpoint.offsets.get(partition)
            offsets = {} if offset is None else {partition: offset}
            directory._checkpoints[name] = replace(checkpoint, offsets=offsets)
        return directory


class DataDirectories:
    """Data directories, each read once per process."""

    def __init__(self, *, tolerated: bool = False) -> None:
        self._tolerated = tolerated
        self._directories: dict[str, DataDirectory] = {}

    def __reduce__(self) -> tuple[partial[DataDirectories], tuple[()]]:
        return partial(DataDirectories, tolerated=self._tolerated), ()

    def for_partition(self, partition_directory: str) -> DataDirectory:
        path = os.path.dirname(partition_directory)
        directory = self._directories.get(path)
        return directory or self._directories.setdefault(
            path, DataDirectory(path, tolerated=self._tolerated)
        )


def reject_locked(directory: str, hint: str) -> None:
    """Raise `InputError` if a running broker has locked the directory.

    The lock file is opened, but not changed. Also raises if the lock cannot be tested.
    """
    path = os.path.join(directory, BROKER_LOCK)
    if opening_error(path) is not None:
        return
    try:
        # Without O_NONBLOCK, opening a named pipe would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise InputError(
            "the path is not a directory",
            path=directory,
            hint="give the data directories of a broker",
        ) from error
    except OSError as error:
        raise InputError(f"cannot open the lock file: {error.strerror}", path=path) from error
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        raise InputError(
            "a running broker has locked the directory", path=path, hint=hint
        ) from error
    finally:
        os.close(descriptor)


def reject_running(directory: str, hint: str) -> None:
    """Raise a non-retriable `InputError` if a running broker has locked the directory."""
    try:
        reject_locked(directory, hint)
    except InputError as error:
        if isinstance(error.__cause__, BlockingIOError):
            raise error from None
        raise
