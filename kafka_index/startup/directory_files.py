"""The files of a data directory that a starting broker reads before its partitions.

Sources: Kafka's ``LogManager.loadLogs``, ``CleanShutdownFileHandler``, ``CheckpointFile``,
``LazyOffsetCheckpoints``.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass, field

from kafka_index.errors import InputError
from kafka_index.layout.checkpoints import parse_offset_checkpoint
from kafka_index.layout.names import (
    BROKER_LOCK,
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    TopicPartition,
)
from kafka_index.layout.quoted_content import quote_content
from kafka_index.startup.java_texts import (
    OFFSET_FIELDS,
    checkpoint_fault,
    java_lines,
    load_properties,
)
from kafka_index.startup.prediction import DirectoryFailsError, Refusal, StartRefusedError
from kafka_index.startup.root_bytes import read_root_file
from kafka_index.storage.log_directory import RootOffsets, read_checkpoint_text

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
            lines = java_lines(data or b"")
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


def properties_of(text: str) -> dict[str, str]:
    """Return the properties in the text of a ``meta.properties``."""
    try:
        found = load_properties(text.encode())
    except ValueError:
        return {}
    return {name: one.value.strip() for name, one in found.items()}
