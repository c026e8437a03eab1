"""The small files that a starting broker reads, of a data directory and of a partition.

Sources: Kafka's ``LogManager.loadLogs``, ``CleanShutdownFileHandler``, ``CheckpointFile``,
``LazyOffsetCheckpoints``, ``UnifiedLog.initializeTopicId``, ``PartitionMetadataReadBuffer``.
"""

from __future__ import annotations

import fcntl
import os
import re
from dataclasses import dataclass, field

from kafka_index.errors import InputError, is_retriable
from kafka_index.layout.checkpoints import (
    OFFSET_FIELDS,
    checkpoint_fault,
    java_lines,
    parse_offset_checkpoint,
)
from kafka_index.layout.integers import INT32_MAX, parse_java_integer
from kafka_index.layout.java_texts import parse_java_uuid, properties_of
from kafka_index.layout.message_fields import ZERO_UUID
from kafka_index.layout.names import (
    BROKER_LOCK,
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    TopicPartition,
)
from kafka_index.layout.quoted_content import quote_content
from kafka_index.startup.prediction import (
    DirectoryFailsError,
    OfflineAtOnceError,
    Refusal,
    StartRefusedError,
)
from kafka_index.storage.log_directory import RootOffsets, read_checkpoint_text
from kafka_index.stores import is_remote, store_of
from kafka_index.stores.inputs import refuse_linked_out

Offsets = dict[TopicPartition, int]
# As a broker reads them: the first that it fails on is the reason.
_IN_ORDER = (
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    CLEANER_CHECKPOINT,
)


@dataclass(slots=True)
class DirectoryFiles(RootOffsets):
    """The checkpoints of a data directory, and its marker.

    Parameters
    ----------
    path : str
        The directory.
    is_clean : bool
        Whether the marker of a clean shutdown is there.
    offsets : dict of str to dict
        The checkpoints, by name and partition.
    has_log_starts : bool
        Whether the log starts are known: that checkpoint has content, which can be read.
    offline, offline_later : Refusal or None
        Why a broker takes the directory offline, before it loads a partition or after all.
    refused : Refusal or None
        Why it exits.
    unserved : list of str
        Why it serves no partition, or not for long.
    notes : list of str
        What a broker only warns about.
    """

    is_clean: bool = False
    has_log_starts: bool = False
    offline: Refusal | None = None
    offline_later: Refusal | None = None
    refused: Refusal | None = None
    unserved: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: str) -> DirectoryFiles:
        """Read the files of a directory.

        Raises
        ------
        InputError
            They cannot be read by this process.
        """
        files = cls(path, is_clean=os.path.exists(os.path.join(path, CLEAN_SHUTDOWN)))
        for name in _IN_ORDER:
            files.offsets[name] = files._read_offsets(name)
        return files

    def _read_offsets(self, name: str) -> Offsets:
        """Return a checkpoint; nothing where a broker resets it, or fails on it."""
        path = os.path.join(self.path, name)
        try:
            data = read_root_file(path, may_dangle=False)
            lines = java_lines((data or b"").decode())
        except (DirectoryFailsError, UnicodeDecodeError) as error:
            text = error.message if isinstance(error, DirectoryFailsError) else "not UTF-8 text"
            self._fail(name, Refusal(path, None, text))
            return {}
        fault = checkpoint_fault(lines, OFFSET_FIELDS)
        if fault is not None:
            found = quote_content(lines[fault.line - 1], path)
            text = f"the checkpoint is malformed: line {fault.line}: {found}"
            why = Refusal(path, fault.line, f"{text} ({fault.exception})")
            if fault.is_input_output:
                self._fail(name, why)
            elif name in (REPLICATION_CHECKPOINT, CLEANER_CHECKPOINT):
                does = "serves no partition" if name == REPLICATION_CHECKPOINT else "cleans none"
                self.unserved.append(f"{path}: {text}: the broker starts, and {does}")
            elif fault.is_error:
                self.refused = why
            else:
                self.notes.append(f"{path}: {text}: all of it counts as 0")
            return {}
        if name == LOG_START_CHECKPOINT:
            self.has_log_starts = len(lines) > 1
        text = (data or b"").decode()
        return parse_offset_checkpoint(text, path=path)

    def _fail(self, name: str, why: Refusal) -> None:
        if name == CLEANER_CHECKPOINT:
            text = "the cleaner fails on it, and the broker takes the directory offline"
            self.unserved.append(f"{why.file}: {why.reason}: {text}")
        elif name == REPLICATION_CHECKPOINT:
            self.offline_later = why
        elif self.offline is None:
            self.offline = why


def refuse_held(directory: str) -> None:
    """Refuse a directory that a running broker holds; the lock file is only opened.

    Raises
    ------
    InputError
        One does.
    """
    path = os.path.join(directory, BROKER_LOCK)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
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
            "a running broker holds the directory",
            path=path,
            hint="predict from a copy, or after the broker has stopped",
        ) from error
    finally:
        os.close(descriptor)


def read_properties(path: str) -> dict[str, str]:
    """Return the properties of a ``meta.properties``.

    Raises
    ------
    StartRefusedError
        There is none: a broker exits.
    """
    text = read_checkpoint_text(path)
    if text is None:
        raise StartRefusedError(
            "there is no meta.properties", path=path, hint="restore it, or format the directory"
        )
    return properties_of(text)


def read_root_file(path: str, *, may_dangle: bool = True) -> bytes | None:
    """Return the bytes of a file; None where there is none.

    Parameters
    ----------
    path : str
        Its path or URI.
    may_dangle : bool
        Whether a link to nothing counts as no file: not where a broker creates one first.

    Raises
    ------
    OfflineAtOnceError
        It is not a file: a broker that reads it gets an ``IOException``.
    InputError
        This process may not read it, which says nothing of a broker.
    """
    if not is_remote(path):
        refuse_linked_out(path, any_name=True)
    try:
        if is_remote(path):
            return store_of(path).read(path)
        if os.path.exists(path) and not os.path.isfile(path):
            kind = "a directory" if os.path.isdir(path) else "not a regular file"
            raise OfflineAtOnceError(f"{os.path.basename(path)} is {kind}", path=path)
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        if os.path.islink(path) and not may_dangle:
            raise OfflineAtOnceError("a link to nothing", path=path) from None
        return None
    except OSError as error:
        if is_retriable(error):
            raise InputError(f"cannot read the file: {error.strerror}", path=path) from error
        raise OfflineAtOnceError(f"cannot be read: {error.strerror}", path=path) from error


_SPLIT = re.compile(r":[ \t\n\v\f\r]+")


def read_topic_id(directory: str) -> str | None:
    """Return the topic id of a partition directory; None where the file is missing.

    Raises
    ------
    OfflineAtOnceError
        The file is malformed: a broker takes the data directory offline.
    StartRefusedError
        A broker exits: a line is missing, or the id is not one.
    """
    path = os.path.join(directory, PARTITION_METADATA)
    data = read_root_file(path)
    if data is None:
        return None
    try:
        lines = java_lines(data.decode())
    except UnicodeDecodeError as error:
        raise OfflineAtOnceError(
            "malformed partition metadata: not UTF-8 text", path=path, position_bytes=error.start
        ) from error
    version = parse_java_integer(_value(lines, 0, path), INT32_MAX)
    if version is None or version < 0:
        raise OfflineAtOnceError(
            "malformed partition metadata",
            path=path,
            expected="version: 0 and topic_id",
            found=quote_content(lines[0], path),
            line=1,
        )
    topic_id = parse_java_uuid(_value(lines, 1, path))
    if topic_id is None or topic_id == ZERO_UUID:
        error_class = StartRefusedError if topic_id is None else OfflineAtOnceError
        raise error_class(
            "no topic id in the partition metadata",
            path=path,
            found=quote_content(lines[1], path),
            line=2,
        )
    return topic_id


def _value(lines: list[str], at: int, path: str) -> str:
    if at >= len(lines):
        raise StartRefusedError(
            "malformed partition metadata: a line is missing",
            path=path,
            expected="version: 0 and topic_id",
            found=f"{len(lines)} lines",
            line=at + 1,
        )
    parts = _SPLIT.split(lines[at])
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    if len(parts) != 2:
        raise OfflineAtOnceError(
            "malformed partition metadata",
            path=path,
            expected="version: 0" if at == 0 else "topic_id: ID",
            found=quote_content(lines[at], path),
            line=at + 1,
        )
    return parts[1]
