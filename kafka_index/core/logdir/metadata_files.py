"""Read metadata files at the root of a data directory, or in a partition directory.

Functions return None for a missing file. They raise `BadFileError` for a file that Kafka cannot
read, and a retriable `InputError` for a file that this process may not read. Sources: Kafka's
``MetaProperties``, ``PropertiesUtils``.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field

from kafka_index.core.errors import (
    BadFileError,
    DirectoryFailsError,
    InputError,
    InvalidEpochError,
    LinkedOutError,
    OfflineAtOnceError,
    StartRefusedError,
    is_retriable,
)
from kafka_index.core.format.checkpoints import java_lines
from kafka_index.core.format.integers import INT32_MAX, parse_java_integer
from kafka_index.core.format.leader_epochs import LeaderEpochCache
from kafka_index.core.format.names import (
    LEADER_EPOCH_CHECKPOINT,
    META_PROPERTIES,
    OFFSET_CHECKPOINTS,
    PARTITION_METADATA,
)
from kafka_index.core.format.strings import (
    ZERO_UUID,
    Property,
    load_properties,
    parse_java_uuid,
    quote_content,
)
from kafka_index.core.fs.inputs import (
    BAD_CHECKPOINT,
    LINKED_OUT,
    Skipped,
    note_unread,
    refuse_linked_out,
)
from kafka_index.core.fs.registry import store_of
from kafka_index.core.fs.uris import is_segment_path

# A broker creates these files before it reads them. If the path is a broken link, this fails
# (CheckpointFile).
_CREATED_FIRST = frozenset({*OFFSET_CHECKPOINTS, LEADER_EPOCH_CHECKPOINT})
_FIELD_SEPARATOR = re.compile(r":[ \t\n\v\f\r]+")
_PARTITION_METADATA_LINES = "version: 0, then topic_id: ID"

# Java's trim removes exactly these characters.
_TRIMMED_CHARACTERS = "".join(map(chr, range(33)))


def read_file(path: str) -> bytes | None:
    """Return the bytes of a file, None if it does not exist.

    Raises `BadFileError` if the path is not a regular file, and `InputError` if this process may
    not read the file.
    """
    if is_segment_path(path):
        # Remote segments have no metadata files.
        return None
    store = store_of(path)
    if store.needs_requests:
        try:
            return store.read(path)
        except FileNotFoundError:
            return None
    refuse_linked_out(path, any_name=True)
    name = os.path.basename(path)
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            if is_null_device(os.stat(path)):
                return b""
            # Reading a named pipe would block.
            file_type = "a directory" if os.path.isdir(path) else "not a regular file"
            raise BadFileError(f"{name} is {file_type}", path=path)
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        # A broker tests whether partition.metadata exists before it opens the file, and treats a
        # circular link as missing. It opens all other files without this test.
        is_circular = error.errno == errno.ELOOP and name == PARTITION_METADATA
        if error.errno == errno.ENOENT or is_circular:
            if name in _CREATED_FIRST and os.path.islink(path):
                raise BadFileError("the file is a broken link", path=path) from None
            return None
        kind_of_error = InputError if is_retriable(error) else BadFileError
        raise kind_of_error(f"cannot read the file: {error.strerror}", path=path) from error


def is_null_device(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == os.stat(os.devnull).st_rdev


def read_text(path: str) -> str | None:
    """Return the text of a file with unchanged line ends, None if the file does not exist.

    Raises the errors of `read_file`, and `BadFileError` if the file is not UTF-8.
    """
    data = read_file(path)
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError as error:
        raise BadFileError(
            "the file is not UTF-8 text", path=path, position_bytes=error.start
        ) from error


def read_epochs(directory: str) -> LeaderEpochCache:
    """Read the leader epochs of a partition directory; empty if there is no file.

    Raises the errors of `read_text` and of `LeaderEpochCache.from_text`.
    """
    path = os.path.join(directory, LEADER_EPOCH_CHECKPOINT)
    return LeaderEpochCache.from_text(read_text(path) or "", path=path)


def read_epochs_or_skip(directory: str, skipped: list[Skipped]) -> LeaderEpochCache:
    """Read leader epochs like `read_epochs`, but add a malformed file to `skipped`.

    The result for a malformed file has no epochs. Raises `InputError` if this process may not read
    the file.
    """
    try:
        return read_epochs(directory)
    except (InputError, InvalidEpochError) as error:
        if is_retriable(error):
            raise
        path = os.path.join(directory, LEADER_EPOCH_CHECKPOINT)
        if isinstance(error, LinkedOutError):
            skipped.append(Skipped(path, LINKED_OUT, error.found or ""))
        else:
            skipped.append(note_unread(path, BAD_CHECKPOINT, error.described))
        return LeaderEpochCache()


def read_topic_id(directory: str) -> str | None:
    """Read the topic ID of a partition directory, None if there is no file.

    Raises the errors of `read_text`. Raises `OfflineAtOnceError` if the file is malformed, so that
    a broker takes the data directory offline. Raises `StartRefusedError` if a line is missing or
    the ID is invalid, so that a broker exits. Source: ``PartitionMetadataReadBuffer``.
    """
    path = os.path.join(directory, PARTITION_METADATA)
    text = read_text(path)
    return None if text is None else parse_topic_id(text, path)


def parse_topic_id(text: str, path: str) -> str:
    """Parse the text of a ``partition.metadata``; raises the errors of `read_topic_id`."""
    lines = java_lines(text)
    version = parse_java_integer(_parse_field(lines, 0, path), INT32_MAX)
    if version is None or version < 0:
        raise OfflineAtOnceError(
            "the partition metadata is malformed",
            path=path,
            expected=_PARTITION_METADATA_LINES,
            found=quote_content(lines[0], path),
            line=1,
        )
    topic_id = parse_java_uuid(_parse_field(lines, 1, path))
    if topic_id is None or topic_id == ZERO_UUID:
        error_class = StartRefusedError if topic_id is None else OfflineAtOnceError
        raise error_class(
            "the partition metadata has no valid topic ID",
            path=path,
            found=quote_content(lines[1], path),
            line=2,
        )
    return topic_id


def _parse_field(lines: list[str], line_index: int, path: str) -> str:
    if line_index >= len(lines):
        raise StartRefusedError(
            "the partition metadata lacks a line",
            path=path,
            expected=_PARTITION_METADATA_LINES,
            found=f"{len(lines)} lines",
            line=line_index + 1,
        )
    fields = _FIELD_SEPARATOR.split(lines[line_index])
    while len(fields) > 1 and not fields[-1]:
        fields.pop()
    if len(fields) != 2:
        raise OfflineAtOnceError(
            "the partition metadata is malformed",
            path=path,
            expected="version: 0" if line_index == 0 else "topic_id: ID",
            found=quote_content(lines[line_index], path),
            line=line_index + 1,
        )
    return fields[1]


def read_properties(path: str) -> dict[str, str] | None:
    """Read a properties file with trimmed values, None if it does not exist.

    Values are not validated. Raises the errors of `read_file`, and `DirectoryFailsError` if the
    file is malformed.
    """
    data = read_file(path)
    if data is None:
        return None
    return {
        name: property_.value.strip() for name, property_ in _load_properties(data, path).items()
    }


def _load_properties(data: bytes, path: str) -> dict[str, Property]:
    try:
        return load_properties(data)
    except ValueError as error:
        raise DirectoryFailsError(str(error), path=path) from error


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """A ``meta.properties``: all properties by name, and the parsed values that a broker uses.

    The node ID of version 0 is ``broker.id``. The directory ID is formatted as in Kafka.
    """

    path: str
    properties: Mapping[str, Property] = field(default_factory=dict)
    version: int = 0
    node_id: int | None = None
    directory_id: str | None = None

    @property
    def cluster_id(self) -> str | None:
        return self.value("cluster.id")

    def value(self, name: str) -> str | None:
        """Return the value of a property, including trailing whitespace."""
        entry = self.properties.get(name)
        return None if entry is None else entry.value

    def line(self, name: str) -> int | None:
        entry = self.properties.get(name)
        return None if entry is None else entry.line

    @classmethod
    def read(cls, directory: str) -> MetaProperties | None:
        """Read ``meta.properties`` in a data directory; None if the file does not exist.

        Raises `DirectoryFailsError` if a broker cannot read the file, and marks the directory
        offline.
        """
        path = os.path.join(directory, META_PROPERTIES)
        data = read_file(path)
        return None if data is None else cls.parse(data, path)

    @classmethod
    def parse(cls, data: bytes, path: str) -> MetaProperties:
        """Parse the bytes of a ``meta.properties``; raises `DirectoryFailsError` like `read`."""
        properties = _load_properties(data, path)
        parsed = cls(path, properties)
        version = parse_java_integer(
            (parsed.value("version") or "0").strip(_TRIMMED_CHARACTERS), INT32_MAX
        )
        if "version" in properties and not properties["version"].value:
            version = None
        if version not in (0, 1):
            raise parsed._property_error("version", "0 or 1")
        name = "node.id" if version else "broker.id"
        value = parsed.value(name)
        node_id = None if value is None else parse_java_integer(value, INT32_MAX)
        if node_id is None and (version or value is not None):
            raise parsed._property_error(name, "a 32-bit integer in decimal digits")
        value = parsed.value("directory.id")
        directory_id = None if value is None else parse_java_uuid(value)
        if value is not None and directory_id is None:
            raise parsed._property_error("directory.id", "a UUID in base64")
        if version and parsed.cluster_id is None:
            raise parsed._property_error("cluster.id", "the cluster ID")
        return cls(path, properties, version, node_id, directory_id)

    def _property_error(self, name: str, expected: str) -> DirectoryFailsError:
        entry = self.properties.get(name)
        if entry is None:
            return DirectoryFailsError(f"{name} is missing", path=self.path, expected=expected)
        return DirectoryFailsError(
            f"{name} has an invalid value",
            path=self.path,
            expected=expected,
            found=quote_content(entry.value, self.path),
            line=entry.line,
        )
