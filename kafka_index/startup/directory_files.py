"""The files of a data directory that a starting broker reads before its partitions.

Sources: Kafka's ``LogManager.loadLogs``, ``MetaPropertiesEnsemble``, ``CleanShutdownFileHandler``,
``CheckpointFile``, ``PartitionMetadataFile``.
"""

from __future__ import annotations

import fcntl
import os
import re
from dataclasses import dataclass, field

from kafka_index.errors import InputError, is_retriable
from kafka_index.layout.checkpoints import check_offset_checkpoint_form, parse_offset_checkpoint
from kafka_index.layout.integers import INT32_MAX, parse_java_integer
from kafka_index.layout.message_bytes import uuid_bytes
from kafka_index.layout.message_fields import ZERO_UUID
from kafka_index.layout.names import (
    BROKER_LOCK,
    CLEANER_CHECKPOINT,
    LOG_START_CHECKPOINT,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
    TopicPartition,
)
from kafka_index.layout.quoted_content import quote_content
from kafka_index.startup.prediction import StartRefusedError
from kafka_index.storage.log_directory import read_checkpoint_text

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")

Offsets = dict[TopicPartition, int]


@dataclass(slots=True)
class DirectoryFiles:
    """What a data directory says of itself.

    Parameters
    ----------
    path : str
        The directory.
    properties : dict of str to str
        Of ``meta.properties``.
    is_clean : bool
        Whether the marker of a clean shutdown is there.
    recovery_points, log_starts, high_watermarks : dict
        The checkpoints, by partition.
    has_high_watermarks : bool
        Whether that checkpoint is there.
    cleaned_to : dict
        The checkpoint of the cleaner, by partition.
    notes : list of str
        What a broker only warns about.
    """

    path: str
    properties: dict[str, str] = field(default_factory=dict)
    is_clean: bool = False
    recovery_points: Offsets = field(default_factory=dict)
    log_starts: Offsets = field(default_factory=dict)
    high_watermarks: Offsets = field(default_factory=dict)
    has_high_watermarks: bool = False
    cleaned_to: Offsets = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: str) -> DirectoryFiles:
        """Read the files of a directory.

        Raises
        ------
        StartRefusedError
            A broker exits, or does not use the directory.
        InputError
            A broker runs on it, or it cannot be read.
        """
        refuse_held(path)
        files = cls(path, properties=read_properties(os.path.join(path, META_PROPERTIES)))
        check_integers(os.path.join(path, META_PROPERTIES))
        files.is_clean = os.path.exists(os.path.join(path, CLEAN_SHUTDOWN))
        files.recovery_points = files.offsets(RECOVERY_POINT_CHECKPOINT)
        files.log_starts = files.offsets(LOG_START_CHECKPOINT)
        files.high_watermarks = files.offsets(REPLICATION_CHECKPOINT)
        files.has_high_watermarks = os.path.exists(os.path.join(path, REPLICATION_CHECKPOINT))
        files.cleaned_to = _cleaner_offsets(path)
        return files

    @property
    def node_id(self) -> int | None:
        """The broker that the directory belongs to."""
        text = self.properties.get("node.id") or self.properties.get("broker.id") or ""
        number = parse_java_integer(text, INT32_MAX)
        return None if number is None or number < 0 else number

    def offsets(self, name: str) -> Offsets:
        """Return a checkpoint; nothing where a broker resets it."""
        path = os.path.join(self.path, name)
        text = read_checkpoint_text(path)
        if not text:
            return {}
        try:
            return parse_offset_checkpoint(text, path=path)
        except InputError as error:
            try:
                check_offset_checkpoint_form(text, path=path)
            except InputError:
                raise StartRefusedError.of(error, path) from error
            if name == REPLICATION_CHECKPOINT:
                self.notes.append(
                    f"{path}: a field is not a number: the broker starts, and serves no partition"
                )
            else:
                self.notes.append(f"{path}: a field is not a number: all of it counts as 0")
            return {}


def _cleaner_offsets(directory: str) -> Offsets:
    """Return the checkpoint of the cleaner, which no start reads; nothing where it is malformed."""
    path = os.path.join(directory, CLEANER_CHECKPOINT)
    try:
        return parse_offset_checkpoint(read_checkpoint_text(path) or "", path=path)
    except InputError as error:
        if is_retriable(error):
            raise
        return {}


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
    pairs = (
        line.partition("=")
        for line in map(str.strip, text.splitlines())
        if line and not line.startswith(("#", "!"))
    )
    return {name.strip(): value.strip() for name, _, value in pairs}


def check_integers(path: str) -> None:
    """Check that Java reads the version and the node in a ``meta.properties``.

    Raises
    ------
    StartRefusedError
        It does not (``MetaProperties.Builder``): a broker exits.
    """
    line, text = _found_property(path, "version") or (None, "0")
    version = parse_java_integer(text.strip(), INT32_MAX)
    if version not in (0, 1):
        raise _refused_number(path, line, "version", text, "0 or 1")
    # Of version 0, the name is that of brokers with ZooKeeper.
    name = "node.id" if version else "broker.id"
    found = _found_property(path, name)
    if found is not None and parse_java_integer(found[1], INT32_MAX) is None:
        raise _refused_number(path, found[0], name, found[1], "a 32-bit integer in decimal digits")


def _refused_number(
    path: str, line: int | None, name: str, found: str, expected: str
) -> StartRefusedError:
    return StartRefusedError(
        f"{name} cannot be read",
        path=path,
        expected=expected,
        found=quote_content(found, path),
        line=line,
    )


def property_line(path: str, name: str) -> int | None:
    """Return the line of a property in a ``meta.properties``."""
    found = _found_property(path, name)
    return None if found is None else found[0]


def _found_property(path: str, name: str) -> tuple[int, str] | None:
    """Return the line of a property, the last one, and its value, with the blanks after it."""
    lines = (read_checkpoint_text(path) or "").splitlines()
    pairs = [(number, line.partition("=")) for number, line in enumerate(lines, start=1)]
    found = [(number, pair[2].lstrip()) for number, pair in pairs if pair[0].strip() == name]
    if not found:
        return None
    line, value = found[-1]
    # As java.util.Properties loads it: Latin-1, in which other characters are escaped.
    return line, _ESCAPE.sub(_unescaped, value.encode().decode("latin-1"))


def _unescaped(match: re.Match[str]) -> str:
    return chr(int(match[1], 16)) if match[1] else match[2]


def read_topic_id(directory: str) -> str | None:
    """Return the topic id of a partition directory; None where the file is missing.

    Raises
    ------
    StartRefusedError
        The file is empty or malformed.
    """
    path = os.path.join(directory, PARTITION_METADATA)
    text = read_checkpoint_text(path)
    if text is None:
        return None
    lines = text.splitlines()
    if len(lines) < 2 or lines[0].replace(" ", "") != "version:0":
        raise StartRefusedError(
            "malformed partition metadata",
            path=path,
            expected="version: 0 and topic_id",
            found=quote_content(text, path),
            line=1 if len(lines) != 1 or lines[0].replace(" ", "") != "version:0" else 2,
        )
    name, _, topic_id = lines[1].partition(": ")
    try:
        uuid_bytes(topic_id.strip())
    except ValueError:
        topic_id = ZERO_UUID
    if name != "topic_id" or topic_id.strip() == ZERO_UUID:
        raise StartRefusedError(
            "no topic id in the partition metadata",
            path=path,
            found=quote_content(lines[1], path),
            line=2,
        )
    return topic_id.strip()
