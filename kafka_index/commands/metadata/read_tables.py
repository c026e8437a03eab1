"""Read the tables of ``metadata`` and `list_partitions` into results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from kafka_index.commands.metadata.request import MetadataRequest, PartitionsRequest
from kafka_index.core.cluster.metadata.directory import ClusterMetadata
from kafka_index.core.cluster.metadata.tables import LAG_TABLES, METADATA_TABLES, read_for_table
from kafka_index.core.errors import KafkaIndexError, is_retriable, plural
from kafka_index.core.format.config import IndexConfig
from kafka_index.core.format.human import format_bytes
from kafka_index.core.format.times import now_ms
from kafka_index.core.fs.inputs import reading_inputs, unread_texts
from kafka_index.core.job.engine import Engine, Listener
from kafka_index.core.job.result import BAD, ReportSink, RunOutcome, Section, TableResult
from kafka_index.core.log.read.partition_files import PartitionFiles
from kafka_index.core.log.read.partition_log import PartitionLog
from kafka_index.core.log.retention import future_segments
from kafka_index.core.logdir.listing import list_any
from kafka_index.core.query.records import list_partitions as list_files


@dataclass(frozen=True, repr=False)
class Metadata(TableResult):
    """The result of `read_metadata`: the rows of a table, or the number of rows of each table.

    Parameters
    ----------
    rows : pa.Table
        The rows.
    ended : RunOutcome
        Damage if records cannot be decoded, environment for failed reads.
    unread : tuple of str
        Input entries that were not read, with reasons.
    what : str or None
        The table; None for the overview.
    faults : tuple of KafkaIndexError
        The first errors that caused missing records.
    fault_count : int
        The number of all errors.
    overview : mapping
        For the overview: partitions that were read, contents of the cluster, and records by topic
        and type; None for a topic that is not in the input.
    """

    what: str | None = None
    faults: tuple[KafkaIndexError, ...] = ()
    fault_count: int = 0
    overview: Mapping[str, Any] = field(default_factory=dict)

    command = "metadata"

    @property
    def headline(self) -> str:
        """The number of rows, and the first error."""
        if self.what is not None:
            text = f"{self.what}: {plural(self.rows.num_rows, 'row')}"
        else:
            sources = self.overview["sources"]
            records = plural(sum(source["records"] for source in sources), "record")
            text = f"{records} in {plural(len(sources), 'partition')} of Kafka's internal topics"
        if not self.fault_count:
            return text
        return f"{text}; {plural(self.fault_count, 'error')}, such as: {self.faults[0]}"

    @property
    def facts(self) -> Sequence[str]:
        """The lines of the overview."""
        return tuple(_overview_lines(self.overview)) if self.overview else ()

    @property
    def sections(self) -> Sequence[Section]:
        """The errors that caused missing records."""
        title = f"{plural(self.fault_count, 'error')}: records are corrupt or missing:"
        return [Section(title, list(map(str, self.faults)), BAD, self.fault_count, "error")]

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of errors."""
        return {"faults": self.fault_count}


def _overview_lines(overview: Mapping[str, Any]) -> Iterator[str]:
    for source in overview["sources"]:
        snapshot = "" if source["snapshot"] is None else f"snapshot {source['snapshot']}, "
        records = plural(source["records"], "record")
        yield f"{source['path']}: {snapshot}{records}, end offset {source['end_offset']}"
    if overview["topics"] is not None:
        counts = [plural(overview[f"{noun}s"], noun) for noun in ("topic", "partition", "broker")]
        if overview["next_producer_id"] is not None:
            counts.append(f"next producer id {overview['next_producer_id']}")
        yield f"cluster: {', '.join(counts)}"
        yield f"features: {_join_counts(dict(sorted(overview['features'].items()))) or 'none'}"
    if overview["groups"] is not None:
        offsets = plural(overview["committed_offsets"] or 0, "committed offset")
        yield f"groups: {_count_list(overview['groups'])}; {offsets}"
    for name in ("transactions", "remote_segments"):
        if overview[name] is not None:
            yield f"{name.replace('_', ' ')}: {_count_list(overview[name])}"
    for topic, counts_by_type in overview["records"].items():
        yield f"records of {topic}: {_join_counts(counts_by_type) or 'none'}"
        unknown_counts = _join_counts(overview["unknown_records"][topic])
        if unknown_counts:
            yield f"unknown record types, not decoded: {unknown_counts}"
    for topic, delayed_segments in overview["future_timestamps"].items():
        segments = plural(delayed_segments["segments"], "segment")
        yield (
            f"timestamps in the future delay retention by time in {segments} of {topic} "
            f"({format_bytes(delayed_segments['size_bytes'])})"
        )


def _join_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _count_list(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


@dataclass(frozen=True, repr=False)
class PartitionList(TableResult):
    """The result of `list_partitions`: a row per partition.

    Parameters
    ----------
    rows : pa.Table
        Topic, partition, path, log start and end offset, number and size of segments. If the end of
        a log cannot be read, it is null, and `reason` has the error.
    ended : RunOutcome
        Damage or environment if the end of a log cannot be read.
    unread : tuple of str
        Input entries that were not read, with reasons.
    """

    command = "lookup"

    @property
    def headline(self) -> str:
        """The number of partitions and topics, and of log ends that cannot be read."""
        topics = len(set(self.rows["topic"].to_pylist()))
        partition_count = f"{plural(self.rows.num_rows, 'partition')} of {plural(topics, 'topic')}"
        unknown = self.rows["log_end_offset"].null_count
        return (
            f"{partition_count}; the log end offsets of {plural(unknown, 'partition')} are unknown"
            if unknown
            else partition_count
        )

    @property
    def counts(self) -> Mapping[str, int]:
        """Partitions and segments."""
        segments = sum(self.rows["segments"].to_pylist())
        return {"partitions": self.rows.num_rows, "segments": segments}

    @property
    def sizes_bytes(self) -> Mapping[str, int]:
        """Size of the logs."""
        return {"logs": sum(self.rows["size_bytes"].to_pylist())}

    def _preview_rows(self) -> pa.Table:
        """Return the rows with the longest column, the path, last."""
        names = [name for name in self.rows.column_names if name != "path"]
        return self.rows.select([*names, "path"])


_OVERVIEW = pa.schema([("table", pa.string()), ("rows", pa.int64())])
#: The columns of `list_partitions`.
PARTITIONS_SCHEMA = pa.schema(
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


def read_tables(
    request: MetadataRequest,
    _engine: Engine,
    _listener: Listener | None = None,
    _report: ReportSink | None = None,
) -> Metadata:
    """Read a table, or the overview.

    Raises `InputError` if a path cannot be read, or none of the topics is in the input.
    """
    paths, table_name, max_bytes = (
        list(request.inputs),
        request.what,
        request.max_decompressed_bytes,
    )
    overview: dict[str, Any] = {}
    with reading_inputs(follow_links=request.follow_links) as unread:
        if table_name in LAG_TABLES:
            from kafka_index.core.query.lag import read_lag  # noqa: PLC0415, slow to import

            rows, faults = read_lag(paths, table_name, max_decompressed_bytes=max_bytes)
        else:
            metadata = read_for_table(paths, table_name, max_decompressed_bytes=max_bytes)
            faults = metadata.faults
            if table_name is None:
                rows, overview = _row_counts(metadata), _overview(metadata, paths)
            else:
                rows = METADATA_TABLES[table_name].build(metadata)
    outcome = RunOutcome.of_faults(faults.retriable)
    errors = tuple(faults.first), faults.total
    return Metadata(rows, outcome, unread_texts(unread), table_name, *errors, overview)


def _row_counts(metadata: ClusterMetadata) -> pa.Table:
    counts = [
        {"table": name, "rows": len(table.make_rows(metadata))}
        for name, table in METADATA_TABLES.items()
        if table.has_content(metadata)
    ]
    return pa.Table.from_pylist(counts, schema=_OVERVIEW)


def _overview(metadata: ClusterMetadata, paths: Sequence[str]) -> dict[str, Any]:
    """Return the members of the overview; None for topics that are not in the input."""
    cluster = metadata.cluster
    cluster_members: dict[str, object] = dict.fromkeys(
        ("topics", "partitions", "brokers", "features", "next_producer_id")
    )
    if cluster is not None:
        block = cluster.producer_ids
        cluster_members = {
            "topics": len(cluster.topics),
            "partitions": sum(len(topic.partitions) for topic in cluster.topics.values()),
            "brokers": len(cluster.brokers),
            "features": cluster.features,
            "next_producer_id": None if block is None else block.next_producer_id,
        }
    groups, transactions, segments = (
        metadata.groups,
        metadata.transactions,
        metadata.remote_segments,
    )
    return {
        "sources": [source._asdict() for source in metadata.sources],
        **cluster_members,
        "groups": None if groups is None else Counter(entry.kind for entry in groups),
        "committed_offsets": None if metadata.offsets is None else len(metadata.offsets),
        "transactions": None
        if transactions is None
        else Counter(entry.state for entry in transactions),
        "remote_segments": None
        if segments is None
        else Counter(entry.state.name for entry in segments),
        "records": _count_records(metadata, is_known=True),
        "unknown_records": _count_records(metadata, is_known=False),
        "future_timestamps": {
            topic: {"segments": count, "size_bytes": size_bytes}
            for topic, (count, size_bytes) in sorted(
                future_segments(list_any(paths, topics=None).segments, now_ms()).items()
            )
        },
        "faults": metadata.faults.total,
    }


def _count_records(metadata: ClusterMetadata, *, is_known: bool) -> dict[str, dict[str, int]]:
    """Count the records of each topic by record type, for known or for unknown types."""
    return {
        topic: {
            record_type.name: count
            for record_type, count in sorted(counts.items())
            if record_type.is_known == is_known
        }
        for topic, counts in metadata.counts.items()
    }


def find_partitions(request: PartitionsRequest) -> PartitionList:
    """List the partitions of a request, sorted by topic and number.

    Raises `InputError` if nothing is found, or a path cannot be listed.
    """
    with reading_inputs(follow_links=request.follow_links) as unread:
        partition_listing = list_files(request.inputs, topics=request.topics, tiered=request.tiered)
        ends = [_read_log_end(files) for files in partition_listing.files]
    rows = [
        {
            "topic": files.topic,
            "partition": files.partition,
            "path": files.segments[-1].partition_directory,
            "log_start_offset": files.log_start_offset,
            "log_end_offset": end_offset,
            "segments": len(files.segments),
            "size_bytes": sum(segment.log_size_bytes for segment in files.segments),
            "is_tiered": files.is_tiered,
            "reason": None if fault is None else str(fault),
        }
        for files, (end_offset, fault) in zip(partition_listing.files, ends, strict=True)
    ]
    outcome = RunOutcome.of_faults(is_retriable(fault) for _, fault in ends if fault is not None)
    return PartitionList(
        pa.Table.from_pylist(rows, schema=PARTITIONS_SCHEMA), outcome, unread_texts(unread)
    )


def _read_log_end(files: PartitionFiles) -> tuple[int | None, KafkaIndexError | None]:
    """Return the log end offset, or why it cannot be read."""
    try:
        with PartitionLog(files, config=IndexConfig()) as log:
            return log.log_end_offset, None
    except KafkaIndexError as error:
        return None, error
