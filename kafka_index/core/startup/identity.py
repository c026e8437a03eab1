"""The identity of a broker, from its settings and its directories.

Source: Kafka's ``MetaPropertiesEnsemble`` and ``KafkaRaftServer.initializeLogDirs``, with the
checks in the same order.
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
from kafka_index.core.startup.prediction import Refusal
from kafka_index.core.startup.startup_files import parse_log_directory


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a broker from the ``meta.properties`` of all its directories.

    `by_directory` has the parsed contents, `offline` the directories that the broker marks offline,
    and `refused` the reasons why the broker exits before it changes any file.
    """

    by_directory: Mapping[str, MetaProperties]
    offline: Mapping[str, Refusal]
    refused: tuple[Refusal, ...]


def input_directories(inputs: Sequence[str]) -> list[str]:
    """Return the data directories in the inputs.

    Raises `InputError` if an input does not exist or is a partition directory, or if no input
    contains files of a broker.
    """
    directories = [path for input_path in inputs for path in expand_input(local_path(input_path))]
    for path in directories:
        if not os.path.isdir(path):
            hint = "give the data directories of a broker"
            raise InputError("the path is not a directory", path=path, hint=hint)
    unmarked_directories = [
        path for path in directories if not DataDirectory(path, tolerated=True).has_root_files
    ]
    if not unmarked_directories:
        return directories
    list_logs = list_dump if unmarked_directories == directories else list_any
    listing = list_logs(unmarked_directories, topics=None)
    for path in listing.partition_directories:
        if path in unmarked_directories:
            raise InputError(
                "the input is a partition directory, not a data directory",
                path=path,
                hint=f"give {os.path.dirname(path)}",
            )
    return directories


def configured_node_id(properties: Mapping[str, str] | None) -> int | None:
    """Return ``node.id`` from the settings of a broker, None if it is not set."""
    settings = properties or {}
    node_id = settings.get("node.id") or settings.get("broker.id") or ""
    return parse_java_integer(node_id.strip(), INT32_MAX)


def refused_settings(properties: Mapping[str, str] | None) -> list[Refusal]:
    """Return the broker settings with which no broker starts, whatever its directories."""
    settings = properties or {}
    refusals = []
    if "zookeeper.connect" in settings and not settings.get("process.roles", "").strip():
        reason = (
            "the settings have no process.roles. No broker of Kafka 4 starts with ZooKeeper, and "
            "older brokers are not predicted"
        )
        refusals.append(Refusal("zookeeper.connect", None, reason))
    node_id_text = settings.get("node.id", "").strip()
    node_id = parse_java_integer(node_id_text, INT32_MAX)
    if node_id_text and (node_id is None or node_id < 0):
        refusals.append(
            Refusal("node.id", None, f"it is {node_id_text} in the settings, expected a node id")
        )
    return refusals


def configured_directories(properties: Mapping[str, str] | None) -> frozenset[str]:
    return frozenset(_parse_log_dirs(properties))


def started_directories(
    paths: Sequence[str], properties: Mapping[str, str] | None
) -> Sequence[str]:
    """Return the directories on which a broker starts: the input paths and its configured paths.

    If the settings contain none of the input paths, they are from another machine and are ignored.
    """
    input_paths = {os.path.abspath(path) for path in paths}
    configured = configured_directories(properties)
    if input_paths.isdisjoint({*configured, _parse_metadata_log_dir(properties)}):
        return sorted(input_paths)
    return sorted(input_paths | configured)


def missing_directories_reason(
    data_directories: Sequence[str], properties: Mapping[str, str] | None
) -> str | None:
    """Return why the input may be incomplete, None if it has all configured directories."""
    configured = configured_directories(properties)
    if len(data_directories) >= len(configured):
        return None
    return (
        f"log.dirs contains {len(configured)} data directories, but the input only "
        f"{len(data_directories)}: {', '.join(sorted(configured))}"
    )


def _parse_log_dirs(properties: Mapping[str, str] | None) -> list[str]:
    settings = properties or {}
    paths = (settings.get("log.dirs") or settings.get("log.dir") or "").split(",")
    return [os.path.abspath(path.strip()) for path in paths if path.strip()]


def find_metadata_directory(
    paths: Sequence[str],
    properties: Mapping[str, str] | None,
    requested_directory: str | None = None,
) -> str | None:
    """Return the directory of a broker's metadata log, None if it is not available.

    `paths` are its data directories, possibly with the metadata directory. If the settings contain
    all these directories, the result is the configured directory. A broker exits if this directory
    does not exist. Source: ``KafkaConfig.metadataLogDir``.
    """
    directories = [os.path.abspath(path) for path in paths]
    if requested_directory is not None:
        requested_directory = os.path.abspath(requested_directory)
        if os.path.basename(requested_directory) == METADATA_LOG:
            requested_directory = os.path.dirname(requested_directory)
        if requested_directory in directories or not (
            os.path.isdir(requested_directory) and _has_logs(requested_directory)
        ):
            return requested_directory
    configured = _parse_metadata_log_dir(properties)
    candidates = [
        directory
        for directory in directories
        if os.path.isdir(os.path.join(directory, METADATA_LOG))
    ]
    if configured is None:
        first_directory = next(iter(_parse_log_dirs(properties)), None)
        return first_directory if first_directory in directories else min(candidates, default=None)
    # Settings from another machine contain paths on that machine: ignore the configured directory.
    if {configured, *configured_directories(properties)} >= set(directories):
        return configured
    if not configured_directories(properties) and os.path.isdir(configured):
        return configured
    if _has_separate_metadata_directory(properties):
        candidates = [directory for directory in candidates if not _has_logs(directory)]
    return min(candidates, default=None)


def exclude_metadata_directory(
    paths: Sequence[str], properties: Mapping[str, str] | None, metadata_directory: str | None
) -> Sequence[str]:
    """Return the data directories, except for a directory that has only the metadata log."""
    data_directories = [path for path in paths if path != metadata_directory]
    return (
        data_directories
        if data_directories and _has_separate_metadata_directory(properties)
        else paths
    )


def find_misplaced_metadata(
    paths: Sequence[str], properties: Mapping[str, str] | None, metadata_directory: str | None
) -> Iterator[str]:
    """Yield metadata logs in data directories that may not be the configured location.

    If the configured metadata directory is on another machine, it is unknown whether the broker
    exits because of an unexpected metadata location.
    """
    configured = _parse_metadata_log_dir(properties)
    data_directories = configured_directories(properties)
    expected = configured or next(iter(_parse_log_dirs(properties)), None)
    directories = [os.path.abspath(path) for path in paths]
    if expected is None or metadata_directory == expected or expected in directories:
        return
    has_separate_metadata = configured is not None and configured not in data_directories
    for path in directories:
        log = os.path.join(path, METADATA_LOG)
        if os.path.exists(log) and (
            path in data_directories or (has_separate_metadata and _has_logs(path))
        ):
            yield log


def _parse_metadata_log_dir(properties: Mapping[str, str] | None) -> str | None:
    path = (properties or {}).get("metadata.log.dir", "").strip()
    return os.path.abspath(path) if path else None


def _has_separate_metadata_directory(properties: Mapping[str, str] | None) -> bool:
    """Return whether the settings place the metadata log outside all data directories."""
    data_directories = configured_directories(properties)
    configured = _parse_metadata_log_dir(properties)
    return bool(data_directories) and configured is not None and configured not in data_directories


def _has_logs(directory: str) -> bool:
    """Return whether a directory has partitions, apart from a metadata log (possibly a copy)."""
    names = (entry.name for entry in scan_directory(directory) if entry.is_directory())
    return any(name != METADATA_LOG and parse_log_directory(name) for name in names)


def check_identity(
    directories: Sequence[str], metadata_directory: str | None, node_id: int | None
) -> Identity:
    """Read and compare the ``meta.properties`` of all directories of a broker.

    `metadata_directory` and `node_id` come from the settings, None if unknown.
    """
    all_directories = sorted({*directories, *([metadata_directory] if metadata_directory else [])})
    properties_by_directory: dict[str, MetaProperties] = {}
    offline: dict[str, Refusal] = {}
    missing_properties = []
    for directory in all_directories:
        try:
            parsed = MetaProperties.read(directory)
        except DirectoryFailsError as error:
            offline[directory] = to_refusal(error)
            continue
        if parsed is None:
            missing_properties.append(directory)
        else:
            properties_by_directory[directory] = parsed
    refusals = _compare_properties(properties_by_directory, node_id)
    if metadata_directory in offline:
        refusals.append(offline[metadata_directory])
    if not properties_by_directory:
        refusals += offline.values()
    if metadata_directory is not None:
        refusals += [
            Refusal(
                os.path.join(directory, METADATA_LOG),
                None,
                f"unexpected metadata location: the metadata log directory is {metadata_directory}",
            )
            for directory in properties_by_directory
            if directory != metadata_directory
            and os.path.exists(os.path.join(directory, METADATA_LOG))
        ]
    refusals += [
        Refusal(os.path.join(directory, META_PROPERTIES), None, "there is no meta.properties")
        for directory in missing_properties
    ]
    for properties in properties_by_directory.values():
        for name, value in (("node.id", properties.node_id), ("cluster.id", properties.cluster_id)):
            if value is None:
                refusals.append(Refusal(properties.path, None, f"{name} is missing"))
    return Identity(properties_by_directory, offline, tuple(refusals))


def to_refusal(error: KafkaIndexError) -> Refusal:
    """Convert an error into the reason why a broker does not start or does not use a directory."""
    details = [
        f"{name} {value}"
        for name, value in (("expected", error.expected), ("found", error.found))
        if value is not None
    ]
    location = "" if error.position_bytes is None else f" at byte {error.position_bytes}"
    reason = f"{error.message}{location}" + (f" ({', '.join(details)})" if details else "")
    return Refusal(error.path or "", error.line, reason)


def _compare_properties(
    properties_by_directory: Mapping[str, MetaProperties], node_id: int | None
) -> list[Refusal]:
    refusals = []
    cluster_id: str | None = None
    directories_by_id: dict[str, str] = {}
    for directory, properties in sorted(properties_by_directory.items()):
        if properties.cluster_id is not None:
            cluster_id = properties.cluster_id if cluster_id is None else cluster_id
            if properties.cluster_id != cluster_id:
                found_id = quote_content(properties.cluster_id, properties.path)
                reason = f"cluster.id is {found_id}, but the other directories have {cluster_id}"
                refusals.append(Refusal(properties.path, properties.line("cluster.id"), reason))
        if properties.node_id is not None:
            name = "node.id" if "node.id" in properties.properties else "broker.id"
            is_negative = properties.node_id < 0
            if node_id is None and not is_negative:
                node_id = properties.node_id
            if properties.node_id != node_id or is_negative:
                # ``node.id`` cannot be negative.
                expected = "0 or more" if node_id is None else str(node_id)
                reason = f"{name} is {properties.node_id}, expected {expected}"
                refusals.append(Refusal(properties.path, properties.line(name), reason))
        if properties.directory_id is None:
            continue
        same_id_directory = directories_by_id.setdefault(properties.directory_id, directory)
        reason = ""
        if is_reserved_directory_id(properties.directory_id):
            reason = f"directory.id {properties.directory_id} is reserved"
        elif same_id_directory != directory:
            reason = f"directory.id {properties.directory_id} is also the ID of {same_id_directory}"
        if reason:
            refusals.append(Refusal(properties.path, properties.line("directory.id"), reason))
    return refusals
