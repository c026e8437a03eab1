"""As what the output is mounted: the identity in ``meta.properties``, and the broker epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from uuid import uuid4

from kafka_index.layout.message_bytes import uuid_text
from kafka_index.restore.dump_files import Dump


class ClusterMode(StrEnum):
    """Which cluster the output is for."""

    FRESH = "fresh"
    SAME = "same"


#: The broker epoch of a marker without one: the broker registers as after a clean shutdown.
NO_BROKER_EPOCH = -2

CLUSTER_ID, NODE_ID, DIRECTORY_ID = "cluster.id", "node.id", "directory.id"


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
    if not found or not _agree(found, (CLUSTER_ID, NODE_ID)):
        return {}
    # Two directories of one broker have an id each, and what is restored is one directory.
    return dict(found[0]) if _agree(found, (DIRECTORY_ID,)) else found[0] | new_directory_id()


def fresh_identity(cluster_id: str, node_id: str) -> dict[str, str]:
    """Return the properties of a new directory of a broker."""
    return {"version": "1", CLUSTER_ID: cluster_id, NODE_ID: node_id} | new_directory_id()


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
