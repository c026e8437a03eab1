"""As what the output is mounted: the identity in ``meta.properties``, and the broker epoch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from uuid import uuid4

from kafka_index.errors import InputError
from kafka_index.layout.integers import INT32_MAX, parse_java_integer
from kafka_index.layout.message_bytes import uuid_bytes, uuid_text
from kafka_index.layout.names import META_PROPERTIES
from kafka_index.layout.quoted_content import quote_content
from kafka_index.restore.dump_files import Dump


class ClusterMode(StrEnum):
    """Which cluster the output is for."""

    FRESH = "fresh"
    SAME = "same"


#: The broker epoch of a marker without one: the broker registers as after a clean shutdown.
NO_BROKER_EPOCH = -2

CLUSTER_ID, NODE_ID, DIRECTORY_ID = "cluster.id", "node.id", "directory.id"
VERSION, OLD_NODE_ID = "version", "broker.id"
# DirectoryId: ids below 100 are not those of directories.
_RESERVED_IDS = 100


@dataclass(frozen=True, slots=True)
class Identity:
    """As what a broker takes the output.

    Parameters
    ----------
    properties : mapping of str to str
        Of ``meta.properties``; empty where the directory is to be formatted first.
    broker_epoch : int
        Of the marker.
    """

    properties: Mapping[str, str]
    broker_epoch: int = NO_BROKER_EPOCH


def dump_identity(dump: Dump) -> dict[str, str]:
    """Return the properties of the one broker that a dump is of; empty where that is not known."""
    roots = {id(each.root): each.root for copies in dump.replicas.values() for each in copies}
    found = [each.properties for each in roots.values() if each.properties]
    if not found or not _agree(found, (CLUSTER_ID, NODE_ID, OLD_NODE_ID)):
        return {}
    first = next(each for each in roots.values() if each.properties)
    properties = first.properties
    if properties.get(VERSION, "0") == "0" and OLD_NODE_ID in properties:
        # A broker with ZooKeeper; one of 4.3.1 starts with the version that came after it only.
        properties = fresh_identity(properties.get(CLUSTER_ID, ""), properties[OLD_NODE_ID])
    check_identity(
        properties,
        os.path.join(first.path, META_PROPERTIES),
        "correct the file in a copy, or format --output as a log directory of the broker",
    )
    # Two directories of one broker have an id each, and what is restored is one directory.
    return dict(properties) if _agree(found, (DIRECTORY_ID,)) else properties | new_directory_id()


def check_identity(properties: Mapping[str, str], path: str, hint: str) -> None:
    """Check that a broker starts with the properties of a ``meta.properties``.

    Parameters
    ----------
    properties : mapping of str to str
        By name.
    path, hint : str
        Where they are from, and what to do, for errors.

    Raises
    ------
    InputError
        It exits (``MetaProperties.Builder``, ``SharedServer``).
    """
    node_id = parse_java_integer(properties.get(NODE_ID, ""), INT32_MAX)
    version = parse_java_integer(properties.get(VERSION, "0"), INT32_MAX)
    directory_id = properties.get(DIRECTORY_ID)
    for name, is_right, expected in (
        (VERSION, version == 1, "1"),
        (CLUSTER_ID, bool(properties.get(CLUSTER_ID)), "an id"),
        (NODE_ID, node_id is not None and node_id >= 0, f"0..{INT32_MAX}"),
        (DIRECTORY_ID, directory_id is None or _is_directory_id(directory_id), "a UUID"),
    ):
        if not is_right:
            raise InputError(
                f"no broker starts with this {name}",
                path=path,
                expected=expected,
                found=quote_content(properties.get(name, ""), path),
                hint=hint,
            )


def _is_directory_id(text: str) -> bool:
    try:
        return int.from_bytes(uuid_bytes(text), "big") >= _RESERVED_IDS
    except ValueError:
        return False


def fresh_identity(cluster_id: str, node_id: str) -> dict[str, str]:
    """Return the properties of a new directory of a broker."""
    return {VERSION: "1", CLUSTER_ID: cluster_id, NODE_ID: node_id} | new_directory_id()


def new_directory_id() -> dict[str, str]:
    """Return the property of a directory that no cluster knows yet."""
    return {DIRECTORY_ID: new_uuid()}


def new_uuid() -> str:
    """Return a random id as Kafka makes them, which never begins with a dash (``Uuid``)."""
    while (text := uuid_text(uuid4().bytes)).startswith("-"):
        continue
    return text


def _agree(found: Iterable[Mapping[str, str]], names: tuple[str, ...]) -> bool:
    return len({tuple(each.get(name) for name in names) for each in found}) == 1
