"""The metadata log directory of a controller that is to be seeded: formatted, and never used."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafka_index.errors import InputError, raise_retriable
from kafka_index.layout.internal_topics import CLUSTER_METADATA_TOPIC, METADATA_LOG
from kafka_index.layout.message_bytes import MessageReader
from kafka_index.layout.names import BOOTSTRAP_CHECKPOINT, FIRST_SNAPSHOT, META_PROPERTIES
from kafka_index.metadata.decoding import METADATA_CODEC
from kafka_index.metadata.topic_log import TopicLog
from kafka_index.records.decompression import DecompressionBudget
from kafka_index.restore.cluster import CLUSTER_ID, check_identity
from kafka_index.restore.dump_files import refuse_running
from kafka_index.scan import LogFileSource
from kafka_index.startup.directory_files import read_properties
from kafka_index.storage import SegmentFile

ORIGINAL_SUFFIX = ".orig"
_FOOTER = 4
_ELR_FEATURE = "eligible.leader.replicas.version"


@dataclass(frozen=True, slots=True)
class SeedDirectory:
    """The metadata log directory of a controller, formatted and never used.

    Parameters
    ----------
    path : str
        Absolute, links resolved.
    properties : mapping of str to str
        Of its ``meta.properties``.
    """

    path: str
    properties: Mapping[str, str]

    @property
    def bootstrap(self) -> str:
        """The path of the bootstrap records."""
        return os.path.join(self.path, BOOTSTRAP_CHECKPOINT)

    @property
    def original(self) -> str:
        """Where the bootstrap records are kept as formatting wrote them."""
        return self.bootstrap + ORIGINAL_SUFFIX


def check_seed(given: str, properties: Mapping[str, str] | None = None) -> SeedDirectory:
    """Check a metadata log directory; nothing is written.

    Parameters
    ----------
    given : str
        As it was given.
    properties : mapping of str to str, optional
        Its ``meta.properties``, where an unfinished restore has put that away.

    Raises
    ------
    InputError
        It is not formatted, a running controller holds it, or its metadata log has records.
    """
    path = os.path.realpath(given)
    if not os.path.isdir(path):
        raise InputError("the metadata log directory does not exist", path=given)
    refuse_running(path, "a cluster can be seeded only before its first start")
    place = os.path.join(path, META_PROPERTIES)
    if not properties:
        if not os.path.exists(place):
            raise _not_formatted(given, META_PROPERTIES)
        properties = read_properties(place)
        check_identity(properties, place, "format the directory again")
    directory = SeedDirectory(path, properties)
    if not os.path.exists(directory.bootstrap):
        raise _not_formatted(given, BOOTSTRAP_CHECKPOINT)
    refuse_used(directory)
    return directory


def refuse_used(directory: SeedDirectory) -> None:
    """Refuse a directory that a controller has used, or that was formatted again.

    Raises
    ------
    InputError
        Its metadata log has records or snapshots, or its bootstrap records are not those that were
        kept aside.
    """
    _refuse_records(directory.path)
    original = read_bootstrap(original_of(directory))
    with open(directory.bootstrap, "rb") as file:
        begins_alike = file.read(len(original.batches)) == original.batches
    if not begins_alike:
        raise InputError(
            "the bootstrap records are not those that were kept aside before the last seeding",
            path=directory.bootstrap,
            found=os.path.basename(directory.original),
            hint="was the directory formatted again? remove the .orig file",
        )


def one_cluster(directories: Sequence[SeedDirectory], cluster_id: str | None) -> str:
    """Return the cluster id that all directories share, and the output, where it has one.

    Raises
    ------
    InputError
        They are of different clusters.
    """
    wanted = cluster_id
    for directory in directories:
        found = directory.properties.get(CLUSTER_ID, "")
        if wanted is None:
            wanted = found
        if found != wanted:
            raise InputError(
                "the metadata log directory is that of another cluster",
                path=directory.path,
                expected=f"{CLUSTER_ID}={wanted}",
                found=f"{CLUSTER_ID}={found}",
                hint="format all directories with one cluster id",
            )
    return wanted or ""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """A bootstrap file: its batches up to the footer, and that."""

    batches: bytes
    footer: bytes
    end_offset: int
    timestamp_ms: int
    partition_version: int


def original_of(directory: SeedDirectory) -> str:
    """Return the file that holds the records that formatting wrote."""
    kept = os.path.exists(directory.original)
    return directory.original if kept else directory.bootstrap


def read_bootstrap(path: str) -> Bootstrap:
    """Read a bootstrap file.

    Raises
    ------
    InputError
        It is damaged.
    """
    info = os.stat(path)
    segment = SegmentFile(CLUSTER_METADATA_TOPIC, 0, 0, path, info.st_size, info.st_mtime_ns)
    source = LogFileSource.of_segment(segment, verify_crc=True)
    position = end_offset = timestamp_ms = 0
    is_control = False
    for batches in source.chunks():
        if batches.rows:
            position = int(batches.position_bytes[-1])
            end_offset = int(batches.base_offset[-1])
            timestamp_ms = int(batches.max_timestamp_ms[-1])
            is_control = bool(batches.is_control[-1])
    with open(path, "rb") as file:
        data = file.read()
    log = TopicLog([segment], DecompressionBudget(1 << 24))
    records = list(log.records())
    raise_retriable(log.faults)
    if source.stop is not None or not is_control or not records:
        raise InputError(
            "the bootstrap records are damaged", path=path, hint="format the directory again"
        )
    key = MessageReader(records[-1].key or b"", 2)
    if key.int16() != _FOOTER:
        raise InputError("the bootstrap records have no footer", path=path)
    version = 1
    for record in records:
        if record.is_control:
            continue
        decoded = METADATA_CODEC.decode(record.value)
        value = decoded.value
        if decoded.name == "FeatureLevelRecord" and value is not None:
            has_elr = value.text("name") == _ELR_FEATURE and value.integer("featureLevel") > 0
            version = 2 if has_elr else version
    return Bootstrap(data[:position], data[position:], end_offset, timestamp_ms, version)


def _refuse_records(path: str) -> None:
    """Refuse a metadata log that has records, or a snapshot but that of formatting."""
    log = os.path.join(path, METADATA_LOG)
    if not os.path.isdir(log):
        return
    for entry in sorted(os.scandir(log), key=lambda each: each.name):
        is_log = entry.name.endswith(".log") and entry.stat().st_size > 0
        is_snapshot = entry.name.endswith(".checkpoint") and entry.name != FIRST_SNAPSHOT
        if is_log or is_snapshot:
            raise InputError(
                "the metadata log has records: bootstrap records are not read again",
                path=path,
                found=os.path.join(METADATA_LOG, entry.name),
                hint="seed a cluster that was formatted and never started",
            )


def _not_formatted(given: str, name: str) -> InputError:
    return InputError(
        "the metadata log directory is not formatted",
        path=given,
        expected=name,
        hint="format it first: kafka-storage.sh format -t CLUSTER_ID -c server.properties",
    )
