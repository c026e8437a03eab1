"""The identity of a broker, from its settings and its directories.

Source: Kafka's ``MetaPropertiesEnsemble`` and ``KafkaRaftServer.initializeLogDirs``, in their
order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kafka_index.core.errors import DirectoryFailsError, InputError, KafkaIndexError
from kafka_index.core.format.integers import INT32_MAX, parse_java_integer
from kafka_index.core.format.names import META_PROPERTIES, METADATA_LOG
from kafka_index.core.format.strings import is_reserved_directory_id, quote_content
from kafka_index.core.fs.paths import expand_input, local_path
from kafka_index.core.fs.registry import scan_directory
from kafka_index.core.logdir.data_directory import DataDirectory
from kafka_index.core.logdir.listing import list_any, list_dump
from kafka_index.core.logdir.metadata_files import MetaProperties
from kafka_index.core.startup.found_files import parse_log_directory
from kafka_index.core.startup.prediction import Refusal


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a broker from the ``meta.properties`` of all its directories.

    `by_directory` has the parsed contents, `offline` the directories that the broker marks offline,
    and `refused` the reasons why it exits before it changes any file.
    """

    by_directory: Mapping[str, MetaProperties]
    offline: Mapping[str, Refusal]
    refused: tuple[Refusal, ...]


def input_directories(inputs: Sequence[str]) -> list[str]:
    """Return the data directories in the inputs.

    Raises `InputError` if an input does not exist or is a partition directory, or if no input
    contains files of a broker.
    """
    directories = [path for each in inputs for path in expand_input(local_path(each))]
    for path in directories:
        if not os.path.isdir(path):
            hint = "give the data directories of a broker"
            raise InputError("not a directory", path=path, hint=hint)
    bare = [path for path in directories if not DataDirectory(path, tolerated=True).has_root_files]
    if not bare:
        return directories
    list_logs = list_dump if bare == directories else list_any
    listing = list_logs(bare, topics=None)
    for path in listing.partition_directories:
        if path in bare:
            raise InputError(
                "a partition directory, not a data directory",
                path=path,
                hint=f"give {os.path.dirname(path)}",
            )
    return directories


def configured_node(properties: Mapping[str, str] | None) -> int | None:
    """Return ``node.id`` from the settings of a broker, None if it is not set."""
    settings = properties or {}
    text = settings.get("node.id") or settings.get("broker.id") or ""
    return parse_java_integer(text.strip(), INT32_MAX)


def refused_settings(properties: Mapping[str, str] | None) -> list[Refusal]:
    """Return the settings that prevent startup with any directories."""
    settings = properties or {}
    refused = []
    if "zookeeper.connect" in settings and not settings.get("process.roles", "").strip():
        reason = (
            "the settings have no process.roles: no broker of Kafka 4 starts with ZooKeeper, and "
            "a start of an older one is not predicted"
        )
        refused.append(Refusal("zookeeper.connect", None, reason))
    text = settings.get("node.id", "").strip()
    node_id = parse_java_integer(text, INT32_MAX)
    if text and (node_id is None or node_id < 0):
        refused.append(
            Refusal("node.id", None, f"it is {text} in the settings, expected a node id")
        )
    return refused


def configured_directories(properties: Mapping[str, str] | None) -> frozenset[str]:
    return frozenset(_in_order(properties))


def started_directories(
    paths: Sequence[str], properties: Mapping[str, str] | None
) -> Sequence[str]:
    """Return the directories that a broker starts on: the given directories, and its settings'.

    If no given directory is in the settings, they belong to another machine and add nothing.
    """
    given = {os.path.abspath(path) for path in paths}
    configured = configured_directories(properties)
    if given.isdisjoint({*configured, _configured_metadata(properties)}):
        return sorted(given)
    return sorted(given | configured)


def missing_directories_reason(
    data_directories: Sequence[str], properties: Mapping[str, str] | None
) -> str | None:
    """Return an explanation if some data directories in the settings were not given, else None."""
    configured = configured_directories(properties)
    if len(data_directories) >= len(configured):
        return None
    return (
        f"log.dirs names {len(configured)} data directories, and {len(data_directories)} are "
        f"given: {', '.join(sorted(configured))}"
    )


def _in_order(properties: Mapping[str, str] | None) -> list[str]:
    settings = properties or {}
    texts = (settings.get("log.dirs") or settings.get("log.dir") or "").split(",")
    return [os.path.abspath(text.strip()) for text in texts if text.strip()]


def metadata_directory_of(
    paths: Sequence[str], properties: Mapping[str, str] | None, given: str | None = None
) -> str | None:
    """Return the directory of a broker's metadata log, None if it is not available.

    `paths` are its data directories, possibly with the metadata directory. If the settings describe
    exactly these directories, the result is the directory that they configure, even if it does not
    exist: the broker then exits. Source: ``KafkaConfig.metadataLogDir``.
    """
    directories = [os.path.abspath(path) for path in paths]
    if given is not None:
        given = os.path.abspath(given)
        if os.path.basename(given) == METADATA_LOG:
            given = os.path.dirname(given)
        if given in directories or not (os.path.isdir(given) and _has_logs(given)):
            return given
    configured = _configured_metadata(properties)
    holding = [one for one in directories if os.path.isdir(os.path.join(one, METADATA_LOG))]
    if configured is None:
        first = next(iter(_in_order(properties)), None)
        return first if first in directories else min(holding, default=None)
    # Settings of another machine refer to directories on that machine.
    if {configured, *configured_directories(properties)} >= set(directories):
        return configured
    if not configured_directories(properties) and os.path.isdir(configured):
        return configured
    if _is_metadata_apart(properties):
        holding = [one for one in holding if not _has_logs(one)]
    return min(holding, default=None)


def without_metadata_directory(
    paths: Sequence[str], properties: Mapping[str, str] | None, metadata_directory: str | None
) -> Sequence[str]:
    """Return the data directories, except for a directory that has only the metadata log."""
    data = [path for path in paths if path != metadata_directory]
    return data if data and _is_metadata_apart(properties) else paths


def misplaced_metadata(
    paths: Sequence[str], properties: Mapping[str, str] | None, metadata_directory: str | None
) -> Iterator[str]:
    """Yield metadata logs in data directories if the broker may keep its metadata log elsewhere.

    The configured metadata directory does not exist here and may be on another machine. So it is
    unknown whether the broker exits because of an unexpected metadata location.
    """
    configured = _configured_metadata(properties)
    data = configured_directories(properties)
    expected = configured or next(iter(_in_order(properties)), None)
    directories = [os.path.abspath(path) for path in paths]
    if expected is None or metadata_directory == expected or expected in directories:
        return
    is_apart = configured is not None and configured not in data
    for path in directories:
        log = os.path.join(path, METADATA_LOG)
        if os.path.exists(log) and (path in data or (is_apart and _has_logs(path))):
            yield log


def _configured_metadata(properties: Mapping[str, str] | None) -> str | None:
    text = (properties or {}).get("metadata.log.dir", "").strip()
    return os.path.abspath(text) if text else None


def _is_metadata_apart(properties: Mapping[str, str] | None) -> bool:
    """Return whether the settings place the metadata log outside all data directories."""
    data = configured_directories(properties)
    configured = _configured_metadata(properties)
    return bool(data) and configured is not None and configured not in data


def _has_logs(directory: str) -> bool:
    """Return whether a directory has partitions, apart from a metadata log, which may be a copy."""
    names = (entry.name for entry in scan_directory(directory) if entry.is_directory())
    return any(name != METADATA_LOG and parse_log_directory(name) for name in names)


def check_identity(
    directories: Sequence[str], metadata_directory: str | None, node_id: int | None
) -> Identity:
    """Read and compare the ``meta.properties`` of all directories of a broker.

    `metadata_directory` and `node_id` come from the settings, None if unknown.
    """
    everything = sorted({*directories, *([metadata_directory] if metadata_directory else [])})
    found: dict[str, MetaProperties] = {}
    offline: dict[str, Refusal] = {}
    empty = []
    for directory in everything:
        try:
            read = MetaProperties.read(directory)
        except DirectoryFailsError as error:
            offline[directory] = refusal_of(error)
            continue
        if read is None:
            empty.append(directory)
        else:
            found[directory] = read
    refused = _disagreements(found, node_id)
    if metadata_directory in offline:
        refused.append(offline[metadata_directory])
    if not found:
        refused += offline.values()
    if metadata_directory is not None:
        refused += [
            Refusal(
                os.path.join(directory, METADATA_LOG),
                None,
                f"unexpected metadata location: the metadata log is in {metadata_directory}",
            )
            for directory in found
            if directory != metadata_directory
            and os.path.exists(os.path.join(directory, METADATA_LOG))
        ]
    refused += [
        Refusal(os.path.join(directory, META_PROPERTIES), None, "there is no meta.properties")
        for directory in empty
    ]
    for each in found.values():
        for name, value in (("node.id", each.node_id), ("cluster.id", each.cluster_id)):
            if value is None:
                refused.append(Refusal(each.path, None, f"{name} is missing"))
    return Identity(found, offline, tuple(refused))


def refusal_of(error: KafkaIndexError) -> Refusal:
    """Convert an error into the reason why a broker does not start or does not use a directory."""
    details = [
        f"{name} {value}"
        for name, value in (("expected", error.expected), ("found", error.found))
        if value is not None
    ]
    where = "" if error.position_bytes is None else f" at byte {error.position_bytes}"
    text = f"{error.message}{where}" + (f" ({', '.join(details)})" if details else "")
    return Refusal(error.path or "", error.line, text)


def _disagreements(properties: Mapping[str, MetaProperties], node_id: int | None) -> list[Refusal]:
    refused = []
    cluster_id: str | None = None
    seen: dict[str, str] = {}
    for directory, each in sorted(properties.items()):
        if each.cluster_id is not None:
            cluster_id = each.cluster_id if cluster_id is None else cluster_id
            if each.cluster_id != cluster_id:
                found_id = quote_content(each.cluster_id, each.path)
                text = f"cluster.id is {found_id}, but the other directories have {cluster_id}"
                refused.append(Refusal(each.path, each.line("cluster.id"), text))
        if each.node_id is not None:
            name = "node.id" if "node.id" in each.properties else "broker.id"
            is_negative = each.node_id < 0
            if node_id is None and not is_negative:
                node_id = each.node_id
            if each.node_id != node_id or is_negative:
                # ``node.id`` cannot be negative.
                expected = "0 or more" if node_id is None else str(node_id)
                text = f"{name} is {each.node_id}, expected {expected}"
                refused.append(Refusal(each.path, each.line(name), text))
        if each.directory_id is None:
            continue
        other = seen.setdefault(each.directory_id, directory)
        text = ""
        if is_reserved_directory_id(each.directory_id):
            text = f"directory.id {each.directory_id} is reserved"
        elif other != directory:
            text = f"directory.id {each.directory_id} is also the ID of {other}"
        if text:
            refused.append(Refusal(each.path, each.line("directory.id"), text))
    return refused
