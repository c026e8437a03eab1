"""`list_partitions`, `read_metadata`, `verify`, `predict`: what a dump holds, and how it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from kafka_index.commands.verify.findings import Finding, PartitionFindings
from kafka_index.commands.verify.verify_job import Verification, VerifyJob, VerifyRequest
from kafka_index.core.arguments import (
    config_of,
    optional_path,
    paths_of,
    properties_of,
    threads_of,
    time_of,
    whole,
    with_flags,
    wrong,
)
from kafka_index.core.cluster.metadata.directory import ClusterMetadata
from kafka_index.core.cluster.metadata.tables import LAG_TABLES, METADATA_TABLES, read_for_table
from kafka_index.core.cluster.remote.options import TieredOptions
from kafka_index.core.errors import ConfigError, KafkaIndexError, is_retriable, plural
from kafka_index.core.format.config import (
    DEFAULT_MAX_DECOMPRESSED_BYTES,
    IndexConfig,
    topics_pattern,
)
from kafka_index.core.format.times import Time
from kafka_index.core.fs.inputs import reading_inputs, unread_texts
from kafka_index.core.job.engine import Listener
from kafka_index.core.job.result import Result, RunOutcome, TableResult
from kafka_index.core.log.read.partition_files import PartitionFiles
from kafka_index.core.log.read.partition_log import PartitionLog
from kafka_index.core.parameters import Config, Path, Paths, Tiered, Topics
from kafka_index.core.query.lag import read_lag
from kafka_index.core.query.records import list_partitions as list_files
from kafka_index.core.startup.conditions import start_conditions
from kafka_index.core.startup.directories import predict_start
from kafka_index.core.startup.identity import input_directories
from kafka_index.core.startup.prediction import Prediction

_OVERVIEW = pa.schema([("table", pa.string()), ("rows", pa.int64())])
_PARTITIONS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("path", pa.string()),
        ("log_start_offset", pa.int64()),
        ("log_end_offset", pa.int64()),
        ("segments", pa.int64()),
        ("size_bytes", pa.int64()),
        ("is_tiered", pa.bool_()),
        ("reason", pa.string()),
    ]
)


@dataclass(frozen=True, repr=False)
class Metadata(Result):
    """The result of `read_metadata`: the rows of a table, or how many each table has.

    Parameters
    ----------
    rows : pa.Table
        The rows.
    what : str or None
        The table; None for the overview.
    faults : tuple of KafkaIndexError
        The first reasons why records are missing.
    fault_count : int
        The number of all of them.
    unread : tuple of str
        Entries of the input that were not read, each with the reason.
    """

    rows: pa.Table
    what: str | None = None
    faults: tuple[KafkaIndexError, ...] = ()
    fault_count: int = 0
    unread: tuple[str, ...] = ()

    command = "metadata"

    @property
    def headline(self) -> str:
        """The number of rows, and the first fault."""
        count = self.rows.num_rows
        text = (
            plural(count, "table") if self.what is None else f"{self.what}: {plural(count, 'row')}"
        )
        if not self.fault_count:
            return text
        return f"{text}, {self.fault_count:,} faults, such as: {self.faults[0]}"

    @property
    def outcome(self) -> RunOutcome:
        """Damage for records that do not decode, the environment for failed reads."""
        return RunOutcome.of_faults(map(is_retriable, self.faults)).with_damage(self.unread)

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of faults."""
        return {"faults": self.fault_count}

    def to_arrow(self) -> pa.Table:
        """Return the rows."""
        return self.rows


@with_flags
def read_metadata(
    paths: Paths,
    what: str | None = None,
    *,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    follow_links: bool = False,
) -> Metadata:
    """Read topics, groups and transactions of a cluster, as ``kafka-index metadata`` does.

    Parameters
    ----------
    paths : path, or list of path
        Data directories, metadata log directories, or directories of partitions of Kafka's own
        topics; local paths or URIs.
    what : str, optional
        The table: ``topics``, ``partitions``, ``brokers``, ``groups``, ``offsets``,
        ``transactions``, ``producers`` or ``remote-segments``; ``lag`` or ``lag-history`` of the
        groups, where the logs that they read are in the input, too. By default an overview: how
        many rows each table has, as far as its topics are in the input.
    max_decompressed_bytes : int
        The most bytes of decompressed records that this process holds at a time.
    follow_links : bool
        Whether snapshots and checkpoints are read also where they are links that lead out of the
        input.

    Returns
    -------
    Metadata
        The rows of the table.

    Raises
    ------
    InputError
        A path cannot be read, or none of the topics is there.
    ConfigError
        An argument is wrong.

    Examples
    --------
    >>> groups = kafka_index.read_metadata("examples/dump", what="groups")
    >>> groups.ok
    True
    >>> groups.to_arrow().column_names[:2]
    ['group', 'type']
    """
    choices = (*METADATA_TABLES, *LAG_TABLES)
    if what is not None and not (isinstance(what, str) and what in choices):  # type: ignore[redundant-expr]
        raise wrong("what is not one of the choices", ", ".join(choices), what)
    most = whole(max_decompressed_bytes, "max_decompressed_bytes", least=1)
    with reading_inputs(follow_links=follow_links) as unread:
        if what in LAG_TABLES:
            rows, faults = read_lag(paths_of(paths), what, max_decompressed_bytes=most)
        else:
            found = read_for_table(paths_of(paths), what, max_decompressed_bytes=most)
            rows, faults = _rows_of(found, what), found.faults
    return Metadata(rows, what, tuple(faults.first), faults.total, unread_texts(unread))


def _rows_of(found: ClusterMetadata, what: str | None) -> pa.Table:
    """Return a table, or the overview."""
    if what is not None:
        return METADATA_TABLES[what].of(found)
    known = [
        {"table": name, "rows": len(table.rows(found))}
        for name, table in METADATA_TABLES.items()
        if table.is_known(found)
    ]
    return pa.Table.from_pylist(known, schema=_OVERVIEW)


@dataclass(frozen=True, repr=False)
class PartitionList(TableResult):
    """The result of `list_partitions`: a row per partition.

    Parameters
    ----------
    rows : pa.Table
        Topic, partition, path, log start and end, number and size of segments. Where the end of a
        log cannot be read, it is null, and `reason` says why.
    ended : RunOutcome
        Damage, or the environment, where the end of a log cannot be read.
    unread : tuple of str
        Entries of the input that were not read, each with the reason.
    """

    command = "lookup"

    @property
    def headline(self) -> str:
        """The number of partitions and their size."""
        topics = len(set(self.rows["topic"].to_pylist()))
        return f"{self.rows.num_rows:,} partitions of {topics:,} topics"

    @property
    def counts(self) -> Mapping[str, int]:
        """Partitions and segments."""
        segments = sum(self.rows["segments"].to_pylist())
        return {"partitions": self.rows.num_rows, "segments": segments}

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Bytes of the logs."""
        return {"logs": sum(self.rows["size_bytes"].to_pylist())}


@with_flags
def list_partitions(
    paths: Paths,
    *,
    tiered: Tiered | None = None,
    topics: Topics | None = None,
    follow_links: bool = False,
) -> PartitionList:
    """List the partitions of a dump, with their offsets and sizes.

    Parameters
    ----------
    paths : path, or list of path
        Data directories, partition directories, or globs of either; local paths or URIs.
    tiered : URI, list of URI, or TieredOptions, optional
        The places of remote segments.
    topics : str, re.Pattern or list of str, optional
        Only topics that match the regular expression in full, or that are named.
    follow_links : bool
        Whether checkpoints are read also where they are links that lead out of the input.

    Returns
    -------
    PartitionList
        A row per partition, sorted by topic and number.

    Raises
    ------
    InputError
        Nothing is found, or a path cannot be listed.
    ConfigError
        An argument is wrong.

    Examples
    --------
    >>> found = kafka_index.list_partitions("examples/dump", topics=["payments"])
    >>> found.to_arrow()["partition"].to_pylist()
    [0, 1]
    """
    with reading_inputs(follow_links=follow_links) as unread:
        listed = list_files(
            paths_of(paths), topics=topics_pattern(topics), tiered=TieredOptions.of(tiered)
        )
        rows, faults = [], []
        for files in listed.files:
            end, fault = _end_of(files)
            rows.append(_row(files, end, fault))
            faults += [] if fault is None else [is_retriable(fault)]
    table = pa.Table.from_pylist(rows, schema=_PARTITIONS)
    return PartitionList(table, RunOutcome.of_faults(faults), unread_texts(unread))


def _row(
    files: PartitionFiles, end_offset: int | None, fault: KafkaIndexError | None
) -> dict[str, object]:
    return {
        "topic": files.topic,
        "partition": files.partition,
        "path": files.segments[-1].partition_directory,
        "log_start_offset": files.log_start_offset,
        "log_end_offset": end_offset,
        "segments": len(files.segments),
        "size_bytes": sum(each.log_size_bytes for each in files.segments),
        "is_tiered": files.is_tiered,
        "reason": None if fault is None else str(fault),
    }


def _end_of(files: PartitionFiles) -> tuple[int | None, KafkaIndexError | None]:
    """Return the end of a log, or why it cannot be read."""
    try:
        with PartitionLog(files, config=IndexConfig()) as log:
            return log.log_end_offset, None
    except KafkaIndexError as error:
        return None, error


@with_flags
def verify(
    paths: Paths,
    *,
    tiered: Tiered | None = None,
    indexes: Path | None = None,
    metadata: Path | None = None,
    against: Paths = (),
    topics: Topics | None = None,
    fast: bool = False,
    config: Config | None = None,
    threads: int | None = None,
    now: Time | None = None,
    follow_links: bool = False,
) -> Verification:
    """Compare every file of a dump with what it should be, as ``kafka-index verify`` does.

    Parameters
    ----------
    paths : path, or list of path
        Data directories, partition directories, or globs of either; local paths or URIs.
    tiered : URI, list of URI, or TieredOptions, optional
        The places of remote segments.
    indexes : path, optional
        Folder that mirrors the partition directories and holds the files to verify; by default
        they are beside the logs.
    metadata : path, optional
        The directory of the metadata log, by default the one in the dump: it says which topics are
        compacted, and their ids.
    against : path, or list of path
        Compare the batches with those of another copy instead: no file is verified.
    topics : str, re.Pattern or list of str, optional
        Only topics that match the regular expression in full, or that are named.
    fast : bool
        Read the headers of batches only: checksums are not verified.
    config : path, mapping or LogConfig, optional
        Kafka's settings, such as a broker's ``server.properties``. The node id and the directory of
        the metadata log among them are compared with the directories.
    threads : int, optional
        Segments scanned at a time; by default one a core, two for remote inputs.
    now : time, optional
        The time at which the broker would start, by default now: producers that are idle then do
        not count.
    follow_links : bool
        Whether index files, checkpoints and snapshots are read also where they are links that lead
        out of the input. Otherwise they are not opened, and what needs them is reported as
        unreadable.

    Returns
    -------
    Verification
        A row per file and partition; a file that cannot be read is a row too.

    Raises
    ------
    InputError
        Nothing is found, or a path cannot be listed.
    ConfigError
        An argument is wrong.

    Examples
    --------
    >>> found = kafka_index.verify("examples/dump", config="examples/dump.properties")
    >>> found.ok
    True
    >>> found.counts["files_harmful"]
    0
    """
    request = VerifyRequest(
        inputs=paths_of(paths),
        tiered=TieredOptions.of(tiered),
        indexes=optional_path(indexes, "indexes"),
        metadata=optional_path(metadata, "metadata"),
        against=paths_of(against, "against"),
        topics=topics_pattern(topics),
        fast=fast,
        config=config_of(config),
        properties=properties_of(config),
        now_ms=None if now is None else time_of(now, "now"),
    )
    others = {"indexes": indexes, "fast": fast or None}
    other = next((name for name, value in others.items() if value is not None), None)
    if request.against and other is not None:
        raise ConfigError(f"against and {other} exclude each other")
    engine = threads_of(threads)
    findings = _Findings()
    with reading_inputs(follow_links=follow_links) as unread:
        job = VerifyJob.prepare(request)
        job.run(engine, findings)
    partitions = sorted(findings.partitions, key=lambda one: (one.topic, one.partition))
    size_bytes = job.segments.total_bytes
    return Verification(partitions, findings.rows, size_bytes, unread_texts(unread))


@with_flags
def predict(
    paths: Paths,
    *,
    metadata: Path | None = None,
    config: Config | None = None,
    known_losses: Path | None = None,
    max_decompressed_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> Prediction:
    """Predict what a broker does to its log directories when it starts, as ``predict`` does.

    Nothing is written.

    Parameters
    ----------
    paths : path, or list of path
        All data directories of one broker, on a local disk.
    metadata : path, optional
        The metadata log directory; by default that of the settings, or the one in the directories.
    config : path, mapping or LogConfig, optional
        Kafka's settings, such as the broker's ``server.properties``.
    known_losses : path, optional
        A restore report. The offsets that it lists as lost are not predicted as losses.
    max_decompressed_bytes : int
        The most bytes of decompressed metadata that this process holds at a time.

    Returns
    -------
    Prediction
        The verdict, the partitions, and a row per segment.

    Raises
    ------
    InputError
        A directory cannot be read, or a running broker holds it.
    ConfigError
        An argument is wrong.

    Examples
    --------
    >>> found = kafka_index.predict("examples/dump")
    >>> found.verdict.value
    'safe'
    >>> found.counts["records_lost"]
    0
    """
    inputs = paths_of(paths)
    if not inputs:
        raise ConfigError("paths is empty", expected="all data directories of one broker")
    directories = input_directories(inputs)
    most = whole(max_decompressed_bytes, "max_decompressed_bytes", least=1)
    conditions = start_conditions(
        directories,
        optional_path(metadata, "metadata"),
        properties_of(config),
        config_of(config),
        most,
        optional_path(known_losses, "known_losses"),
    )
    return predict_start(directories, conditions)


class _Findings(Listener):
    """Keeps what a verification finds."""

    def __init__(self) -> None:
        self.partitions: list[PartitionFindings] = []
        self.rows: list[Finding] = []

    def on_findings(self, findings: Sequence[Finding]) -> None:
        """Keep the findings of files at the root, or of a comparison."""
        self.rows += findings

    def on_partition(self, found: PartitionFindings) -> None:
        """Keep the findings of a partition."""
        self.partitions.append(found)
