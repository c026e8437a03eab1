"""A run as it is asked for, and the broker whose directories are given."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafka_index.commands.backup.capture import COORDINATOR_TOPICS
from kafka_index.commands.backup.high_watermarks import DEFAULT_INTERVAL_MS, INTERVAL_SETTING
from kafka_index.commands.backup.low_impact_io import read_unmarked
from kafka_index.core.errors import InputError
from kafka_index.core.format.config import DEFAULT_MAX_DECOMPRESSED_BYTES
from kafka_index.core.format.integers import INT64_MAX, parse_java_integer
from kafka_index.core.format.names import CLUSTER_METADATA_TOPIC, META_PROPERTIES
from kafka_index.core.fs.backup.manifest import DataDirectory
from kafka_index.core.fs.paths import expand_directories
from kafka_index.core.fs.store import is_remote
from kafka_index.core.logdir.metadata_files import MetaProperties

#: Topics that are in every run, whatever topics are asked for.
ALWAYS_TAKEN = frozenset({*COORDINATOR_TOPICS, CLUSTER_METADATA_TOPIC})


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupRequest:
    """A run as it is asked for.

    `inputs` are all data directories of a broker, with that of its metadata log; `node_id` says
    which broker where they are of several. `brokers` are expected in each run, of a new
    repository. `properties` are the settings of the broker.
    """

    inputs: Sequence[str]
    output: str
    topics: re.Pattern[str] | None = None
    properties: Mapping[str, str] | None = None
    node_id: int | None = None
    brokers: tuple[int, ...] = ()
    bootstrap_server: str | None = None
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES

    @property
    def interval_ms(self) -> int:
        """The time between two writes of the broker's high watermarks."""
        given = parse_java_integer((self.properties or {}).get(INTERVAL_SETTING, ""), INT64_MAX)
        return given if given is not None and given > 0 else DEFAULT_INTERVAL_MS

    def wants(self, topic: str) -> bool:
        """Return whether a topic is in the run."""
        is_wanted = self.topics is None or self.topics.fullmatch(topic) is not None
        return is_wanted or topic in ALWAYS_TAKEN


@dataclass(frozen=True)
class Broker:
    """A broker by its data directories, each with its ``meta.properties``."""

    node_id: int
    cluster_id: str
    directories: tuple[DataDirectory, ...]

    @property
    def paths(self) -> list[str]:
        """The paths of the directories."""
        return [each.path for each in self.directories]

    @classmethod
    def of(cls, request: BackupRequest) -> Broker:
        """Return the broker of a request.

        Raises `InputError` if a directory is not that of a broker, or they are of several.
        """
        for path in request.inputs:
            if is_remote(path):
                raise InputError(
                    "a broker's directories are on a disk of this machine",
                    path=path,
                    hint="run where they are, or a snapshot of them, is mounted",
                )
        found: dict[int, list[tuple[DataDirectory, str]]] = {}
        for path in expand_directories(request.inputs):
            file = os.path.join(path, META_PROPERTIES)
            try:
                text, _ = read_unmarked(file)
            except FileNotFoundError:
                text = b""
            except OSError as error:
                raise InputError(f"cannot read the file: {error.strerror}", path=file) from error
            properties = MetaProperties.of(text, file)
            if properties.cluster_id is None or properties.node_id is None:
                raise InputError(
                    f"not a data directory of a broker: its {META_PROPERTIES} is missing, or names "
                    "neither cluster nor node",
                    path=path,
                )
            directory = DataDirectory(
                path=os.path.abspath(path), meta_properties=text.decode(errors="replace")
            )
            found.setdefault(properties.node_id, []).append((directory, properties.cluster_id))
        node_id = request.node_id
        if node_id is None:
            if len(found) > 1:
                nodes = ", ".join(map(str, sorted(found)))
                raise InputError(
                    "the directories are of several brokers", found=nodes, hint="give --node"
                )
            node_id = min(found)
        clusters = {cluster for _, cluster in found.get(node_id, [])}
        if len(clusters) != 1:
            raise InputError(
                f"the directories of broker {node_id} have to be of one cluster",
                expected="one cluster.id",
                found=", ".join(sorted(clusters)) or f"directories of {sorted(found)}",
            )
        return cls(node_id, clusters.pop(), tuple(each for each, _ in found[node_id]))
