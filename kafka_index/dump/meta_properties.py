"""The ``meta.properties`` at the root of a data directory.

Source: Kafka's ``MetaProperties``, ``PropertiesUtils``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from kafka_index.dump.small_files import read_file
from kafka_index.errors import DirectoryFailsError
from kafka_index.layout.integers import INT32_MAX, parse_java_integer
from kafka_index.layout.java_texts import Property, load_properties, parse_java_uuid
from kafka_index.layout.names import META_PROPERTIES
from kafka_index.layout.quoted_content import quote_content

# Java's trim cuts these and nothing else.
_CONTROLS = "".join(map(chr, range(33)))


def read_properties(path: str) -> dict[str, str] | None:
    """Return the properties of a file, without blanks around values; None where there is no file.

    No value is judged. Raises the errors of `read_file`, and `DirectoryFailsError` if the text is
    malformed.
    """
    data = read_file(path)
    if data is None:
        return None
    return {name: one.value.strip() for name, one in _load(data, path).items()}


def _load(data: bytes, path: str) -> dict[str, Property]:
    try:
        return load_properties(data)
    except ValueError as error:
        raise DirectoryFailsError(str(error), path=path) from error


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The content of a ``meta.properties``; all of it by name, and what a broker reads of it.

    The node id of version 0 is ``broker.id``. The directory id is as Kafka writes it.
    """

    path: str
    properties: Mapping[str, Property] = field(default_factory=dict)
    version: int = 0
    node_id: int | None = None
    directory_id: str | None = None

    @property
    def cluster_id(self) -> str | None:
        """The cluster that the directory belongs to."""
        return self.value("cluster.id")

    def value(self, name: str) -> str | None:
        """Return a property, with the blanks after it."""
        found = self.properties.get(name)
        return None if found is None else found.value

    def line(self, name: str) -> int | None:
        """Return the line of a property."""
        found = self.properties.get(name)
        return None if found is None else found.line

    @classmethod
    def read(cls, directory: str) -> MetaProperties | None:
        """Read the file of a directory; None where there is none.

        Raises `DirectoryFailsError` if a broker cannot read it, and takes the directory offline.
        """
        path = os.path.join(directory, META_PROPERTIES)
        data = read_file(path)
        return None if data is None else cls.of(data, path)

    @classmethod
    def of(cls, data: bytes, path: str) -> MetaProperties:
        """Return what the bytes of a file say; raises `DirectoryFailsError` as `read` does."""
        found = _load(data, path)
        read = cls(path, found)
        version = parse_java_integer((read.value("version") or "0").strip(_CONTROLS), INT32_MAX)
        if "version" in found and not found["version"].value:
            version = None
        if version not in (0, 1):
            raise read._unreadable("version", "0 or 1")
        name = "node.id" if version else "broker.id"
        text = read.value(name)
        node_id = None if text is None else parse_java_integer(text, INT32_MAX)
        if node_id is None and (version or text is not None):
            raise read._unreadable(name, "a 32-bit integer in decimal digits")
        text = read.value("directory.id")
        directory_id = None if text is None else parse_java_uuid(text)
        if text is not None and directory_id is None:
            raise read._unreadable("directory.id", "a UUID in base64")
        if version and read.cluster_id is None:
            raise read._unreadable("cluster.id", "the cluster")
        return cls(path, found, version, node_id, directory_id)

    def _unreadable(self, name: str, expected: str) -> DirectoryFailsError:
        found = self.properties.get(name)
        if found is None:
            return DirectoryFailsError(
                f"{name} is missing", path=self.path, expected=expected, found="no such property"
            )
        return DirectoryFailsError(
            f"{name} cannot be read",
            path=self.path,
            expected=expected,
            found=quote_content(found.value, self.path),
            line=found.line,
        )
